"""A database of the model in which a commit can be captured before anybody sees it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pyodbc

from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.postgresql.standby import SETTINGS, LateStandby
from replicator_testbed.sqlserver.databases import SqlServerDatabase, SqlServers
from replicator_testbed.sqlserver.foreign import DSN, needs_model


@contextmanager
def late_database(*statements: str) -> Iterator[tuple[SqlServerDatabase, LateStandby]]:
    """A database on a server of its own, after some statements, and the server's standby, which `late_writer` waits for."""
    if DSN in os.environ:
        needs_model("commits that are captured before anybody sees them")
    with (
        PostgresServer.distribution(settings={**SETTINGS, "wal_level": "logical"}) as server,
        LateStandby(server) as standby,
        SqlServers(postgres=server).database() as database,
    ):
        database.execute(*statements)
        yield database, standby


@contextmanager
def late_writer(database: SqlServerDatabase) -> Iterator[pyodbc.Connection]:
    """A connection whose commits nobody sees until the standby acknowledges them."""
    model = database.server.database
    ((name,),) = model.execute("SELECT current_database()")
    model.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = on')
    with closing(database.connect()) as writer:
        model.execute(f'ALTER DATABASE "{name}" RESET synchronous_commit')
        yield writer

"""Captures of PostgreSQL databases, and a server whose standby acknowledges late."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replicator.plugins.source import SourceContext
from replicator_source_postgresql.config import PostgresqlConfig
from replicator_source_postgresql.source import PostgresqlSource
from replicator_testbed.journals.captured import Captured
from replicator_testbed.postgresql.captures import (
    Make,
    table,
)
from replicator_testbed.postgresql.servers import PostgresServer, ScratchDatabase
from replicator_testbed.postgresql.standby import SETTINGS, LateStandby


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes the captures of tables of a database; further arguments are settings of the source."""
    made: list[Captured] = []

    def of(database: ScratchDatabase, *tables: str, **settings: Any) -> Captured:
        server = database.server

        def source(context: SourceContext) -> PostgresqlSource:
            own = {"host": server.host, "port": server.port, "user": server.user, "database": database.name}
            config = PostgresqlConfig(**{**own, **settings})
            return PostgresqlSource(config, context)

        folder = tmp_path / f"capture{len(made)}"
        folder.mkdir()
        captured = Captured(folder=folder, name=database.name, make_source=source, tables=[table(t) for t in tables])
        made.append(captured)
        return captured

    yield of
    for captured in made:
        captured.close()


@pytest.fixture(scope="module")
def late_server() -> Iterator[tuple[PostgresServer, LateStandby]]:
    """A server whose synchronous standby acknowledges late."""
    with PostgresServer.distribution(settings=SETTINGS) as server, LateStandby(server) as standby:
        yield server, standby


@pytest.fixture
def late(late_server: tuple[PostgresServer, LateStandby]) -> Iterator[tuple[ScratchDatabase, LateStandby]]:
    """A database there."""
    server, standby = late_server
    with server.database() as database:
        try:
            yield database, standby
        finally:
            standby.release()

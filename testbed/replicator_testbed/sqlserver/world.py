"""Captured tables and readers of their log, as tests of the source's log need them: the capture job runs when it is told to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pyodbc

from replicator.config import Secret
from replicator.model.errors import TableError
from replicator.model.schema import TableId
from replicator.plugins.source import LogReader, PullLimits
from replicator_source_sqlserver.catalogue import discovery
from replicator_source_sqlserver.cdc import queries as capturelog
from replicator_source_sqlserver.cdc.job import CaptureHealth
from replicator_source_sqlserver.cdc.log import ChangeReader
from replicator_source_sqlserver.cdc.marks import AwaitedMarks
from replicator_source_sqlserver.cdc.position import Position
from replicator_source_sqlserver.cdc.tables import CapturedTables
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.connecting.connection import Connector, Session
from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.drivers import Address, Driver, connect, library
from replicator_testbed.sqlserver.foreign import server_under_test
from replicator_testbed.sqlserver.model import SqlServerModel
from replicator_testing.source_harness import Change, Delivered

WIDE: Final = PullLimits(rows=10_000, bytes=64 << 20, wait_s=0.0)
"""Whatever there is."""


@dataclass(kw_only=True)
class World:
    """A server with captured tables, and readers of its log.

    Attributes:
        sql: Changes the tables.
        board: The marks that its readers look for.
        tables: Those that a reader follows.
    """

    model: SqlServerModel
    sql: pyodbc.Connection
    connector: Connector
    board: AwaitedMarks = field(default_factory=lambda: AwaitedMarks("test"))
    tables: Sequence[TableId] = ()

    def execute(self, *statements: str) -> None:
        """Run statements, each in a transaction of its own."""
        for statement in statements:
            self.sql.execute(statement)

    def capture(self) -> None:
        """Have everything captured that was committed."""
        self.model.capture.scan_all()

    def enable(self, table: TableId, **more: str) -> None:
        """Make a capture instance of a table, and have it begin."""
        arguments = {"source_schema": table.namespace, "source_name": table.name, **more}
        written = ", ".join(f"@{name} = N'{value}'" for name, value in arguments.items())
        self.execute(f"EXEC sys.sp_cdc_enable_table {written}, @role_name = NULL, @supports_net_changes = 0")
        self.capture()

    def session(self) -> Session:
        """A session as the source has it; the caller closes it."""
        return Session(self.connector)

    def position(self) -> Position:
        """Behind everything that was captured."""
        return position_of(self.connector)

    def last_commit(self, table: TableId) -> bytes:
        """The last commit that changed a table, as its first instance has it."""
        name = f"{table.namespace}_{table.name}_CT"
        last = f"SELECT TOP (1) [__$start_lsn] FROM cdc.[{name}] ORDER BY [__$start_lsn] DESC"
        ((lsn,),) = self.sql.execute(last).fetchall()
        return bytes(lsn)

    def open(self, position: Position, tables: Sequence[TableId] = ()) -> ChangeReader:
        """A reader of the log behind a position, of these tables, or of all."""
        return reader_of(self.connector, position, tables or self.tables, board=self.board)


def connector_of(address: Address, driver: Driver = Driver.FREETDS) -> Connector:
    """Connections as the source has them; the caller closes it."""
    return Connector(
        SqlServerConfig(
            host=address.host, port=address.port, user=address.user, password=Secret(address.password),
            database=address.database, driver=str(library(driver)), tls="disable",
        )
    )  # fmt: skip


def position_of(connector: Connector) -> Position:
    """Behind everything that was captured."""
    with closing(Session(connector)) as session, session.use("asking") as connection:
        begin = capturelog.head(connection) or capturelog.beginning(connection)
        assert begin is not None
        return capturelog.position_at(connection, begin)


def reader_of(
    connector: Connector, position: Position, tables: Sequence[TableId], *, board: AwaitedMarks | None = None
) -> ChangeReader:
    """A reader of the log of some tables behind a position; the caller closes it."""
    with closing(Session(connector)) as session, session.use("asking") as connection:
        found = discovery.read_tables(connection, tables)
        zone = capturelog.zone(connection)
    return ChangeReader(
        Session(connector),
        position=position,
        tables=CapturedTables({t: d.schema for t, d in found.items()}, {t: d.object_id for t, d in found.items()}),
        board=board or AwaitedMarks("test"),
        mark_table=lambda _: (),
        health=CaptureHealth(None),
        zone=zone,
    )


@contextmanager
def world_of(model: SqlServerModel, *, tables: Sequence[TableId] = ()) -> Iterator[World]:
    """A world on a model that runs."""
    sql = connect(Driver.FREETDS, model.address)
    connector = connector_of(model.address)
    try:
        yield World(model=model, sql=sql, connector=connector, tables=tables)
    finally:
        sql.close()
        connector.close()


@contextmanager
def world(postgres: PostgresServer) -> Iterator[World]:
    """A world of its own, whose database is captured."""
    with server_under_test(postgres) as model, world_of(model) as world:
        world.execute("EXEC sys.sp_cdc_enable_db")
        yield world


@contextmanager
def world_of_two(postgres: PostgresServer) -> Iterator[World]:
    """A world with two captured tables, `dbo.t` and `dbo.u`."""
    with world(postgres) as found:
        found.tables = (TableId("dbo", "t"), TableId("dbo", "u"))
        for table in found.tables:
            found.execute(
                f"CREATE TABLE {table} (id int NOT NULL PRIMARY KEY, name nvarchar(50) NULL, note nvarchar(max) NULL)"
            )
            found.enable(table)
        yield found


@dataclass
class Drained(Delivered):
    """What a reader has delivered, with the tables that failed."""

    table_errors: dict[TableId, TableError] = field(default_factory=dict)


def drained(reader: LogReader, limits: PullLimits = WIDE) -> Drained:
    """Everything that has been captured."""
    delivered = Drained()
    while True:
        batch = reader.pull(limits)
        delivered.add(batch)
        delivered.table_errors |= batch.table_errors
        if not batch.events and batch.offset is None and batch.open_transaction is None:
            return delivered


def shown(delivered: Delivered) -> list[tuple[str, str, Any]]:
    """Of each change its table, operation, and number of the row."""
    return [(change.table.name, change.operation, id_of(change)) for change in delivered.changes]


def id_of(change: Change) -> Any:
    """The number of the row."""
    row = change.row or change.before
    assert row is not None
    return row["id"]


def labels(delivered: Delivered) -> list[Any]:
    """Numbers of rows, and names of events."""
    return [id_of(e) if isinstance(e, Change) else str(e.operation) for e in delivered.events]


def codes(delivered: Drained) -> dict[str, str]:
    """Why which table failed."""
    return {str(table): error.code for table, error in delivered.table_errors.items()}

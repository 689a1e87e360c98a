"""A database of the model, as tests and the demo use a database of any kind."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyodbc

from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.drivers import Driver, connect, library
from replicator_testbed.sqlserver.foreign import server_under_test
from replicator_testbed.sqlserver.model import SqlServerModel

MARKS: Final = "dbo.replicator_marks"
_KEYED: Final = "SELECT OBJECT_NAME(object_id) FROM sys.indexes WHERE is_primary_key = 1"

_numbers = itertools.count(1)
"""A target that several tests share tells their tables apart by the database's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlServerDatabase:
    """A database with change data capture, whose capture job runs, and a mark table; or with change tracking (`is_tracked`)."""

    server: SqlServerModel
    name: str
    is_tracked: bool = False

    def connect(self, *, autocommit: bool = True) -> pyodbc.Connection:
        """Open a connection."""
        connection = connect(Driver.FREETDS, self.server.address)
        connection.autocommit = autocommit
        return connection

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run the statements, each in a transaction of its own, and return the rows of the last one."""
        found: list[tuple[Any, ...]] = []
        with contextlib.closing(self.connect()) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
                found = [tuple(row) for row in cursor.fetchall()] if cursor.description else []
        return found

    def capture(self, *tables: str) -> None:
        """Have changes of tables of `dbo` captured; change tracking is for those with a key only."""
        if not self.is_tracked:
            self.execute(*(enable(table) for table in tables))
            return
        keyed = {row[0] for row in self.execute(_KEYED)}
        self.execute(*(f"ALTER TABLE dbo.[{table}] ENABLE CHANGE_TRACKING" for table in tables if table in keyed))

    @property
    def source(self) -> dict[str, Any]:
        """The `source:` block of a YAML file, except the password."""
        address = self.server.address
        captured = (
            {"capture": "change_tracking"} if self.is_tracked else {"mark_table": MARKS, "chunk_isolation": "locking"}
        )
        return {
            "type": "sqlserver",
            "host": address.host,
            "port": address.port,
            "user": address.user,
            "database": address.database,
            "driver": str(library(Driver.FREETDS)),
            "tls": "disable",
            **captured,
        }

    @property
    def namespace(self) -> str:
        """What stands before the dot in the names of its tables."""
        return "dbo"

    def columns(self, table: str) -> list[str]:
        """A table's column names, in order."""
        query = f"SELECT name FROM sys.columns WHERE object_id = OBJECT_ID(N'dbo.{table}') ORDER BY column_id"
        return [row[0] for row in self.execute(query)]

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[Sequence[Any]]:
        """A table's rows, as pyodbc reads them."""
        names = ", ".join(f"[{name}]" for name in columns)
        with contextlib.closing(self.connect()) as connection:
            yield from connection.execute(f"SELECT {names} FROM dbo.[{table}]")


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlServers:
    """Models on the databases of one PostgreSQL."""

    postgres: PostgresServer
    is_tracked: bool = False

    @contextlib.contextmanager
    def database(self, name: str | None = None, **options: Any) -> Iterator[SqlServerDatabase]:
        """A model with one database; `options` are those of `SqlServerModel`."""
        name = name or f"shop_{next(_numbers)}"
        with server_under_test(self.postgres, database=name, **options) as model:
            if self.is_tracked:
                tracked = SqlServerDatabase(server=model, name=name, is_tracked=True)
                tracked.execute(
                    "ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON",
                    "ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON (CHANGE_RETENTION = 7 DAYS, AUTO_CLEANUP = ON)",
                )
                yield tracked
                return
            database = SqlServerDatabase(server=model, name=name)
            database.execute(
                "ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON",
                "EXEC sys.sp_configure N'max text repl size', -1",
                "RECONFIGURE",
                "EXEC sys.sp_cdc_enable_db",
                f"CREATE TABLE {MARKS} (id int NOT NULL PRIMARY KEY, token varchar(64) NULL)",
            )
            database.capture("replicator_marks")
            model.capture.start()
            try:
                yield database
            finally:
                model.capture.stop()


def enable(table: str, instance: str = "") -> str:
    """The statement that enables change data capture of a table of `dbo`."""
    named = f", @capture_instance = N'{instance}'" if instance else ""
    return (
        f"EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', @source_name = N'{table}', @role_name = NULL,"
        f" @supports_net_changes = 0{named}"
    )

"""The model's database: a database of a real PostgreSQL that is made to look like one of SQL Server."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from importlib.resources import files
from typing import Any, Final

import psycopg

from replicator_testbed.sqlserver import sqltypes
from replicator_testbed.sqlserver.capture.instances import Cdc
from replicator_testbed.sqlserver.engine.changetracking import ChangeTracking
from replicator_testbed.sqlserver.engine.names import Names
from replicator_testbed.sqlserver.engine.permissions import Permissions
from replicator_testbed.sqlserver.engine.scan_locks import ScanLocks
from replicator_testbed.sqlserver.engine.types import NATIVE, catalogue_row, create_domain, domain_name
from replicator_testbed.sqlserver.sqltypes import MAX, SqlType, TypeName

SEARCH_PATH: Final = "sqlserver, dbo, sys, pg_catalog"
_FOLDER: Final = files("replicator_testbed.sqlserver.engine") / "sql"
_SCRIPTS: Final = (
    "01_types.sql",
    "02_catalogue.sql",
    "03_cdc.sql",
    "05_permissions.sql",
    "06_change_tracking.sql",
    "07_clr_types.sql",
)
_FIRST_TYPES: Final = (
    *(
        sqltypes.of(name)
        for name in TypeName
        if name
        not in {
            TypeName.CHAR,
            TypeName.VARCHAR,
            TypeName.NCHAR,
            TypeName.NVARCHAR,
            TypeName.BINARY,
            TypeName.VARBINARY,
            TypeName.DECIMAL,
            TypeName.NUMERIC,
            TypeName.SYSNAME,
        }
    ),
    sqltypes.SYSNAME,
    sqltypes.LSN,
    *(sqltypes.of(TypeName.CHAR, n) for n in (1, 2)),
    *(sqltypes.of(TypeName.NVARCHAR, n) for n in (35, 60, 128, 4000, MAX)),
    *(sqltypes.of(TypeName.VARCHAR, n) for n in (1, MAX)),
    *(sqltypes.of(TypeName.VARBINARY, n) for n in (10, 128, MAX)),
    sqltypes.of(TypeName.NCHAR, 1),
    sqltypes.of(TypeName.BINARY, 1),
    sqltypes.of(TypeName.DATETIME2, scale=7),
    sqltypes.of(TypeName.DECIMAL, precision=18),
    sqltypes.of(TypeName.NUMERIC, precision=18),
)


class Database:
    """One database and what its sessions share. Thread-safe."""

    def __init__(self, dsn: str, name: str) -> None:
        """Prepare an empty database of PostgreSQL; `name` is what SQL Server's catalogue calls it."""
        self.dsn = dsn
        self.name = name
        self._lock = threading.RLock()
        self._types: dict[str, int] = {}
        self.version = 0
        """Grows with every change of the catalogue."""
        self.waits_for_commits = False
        """Whether a locking read waits for a commit that is captured, and that nobody sees yet."""
        self._admin = psycopg.connect(dsn, autocommit=True)
        self._admin.execute("SET client_min_messages = warning")
        self._prepare()
        self._admin.execute("INSERT INTO sqlserver.database (name) VALUES (%s)", (name,))
        self.cdc = Cdc(self)
        self.tracking = ChangeTracking(self)
        self.scan_locks = ScanLocks()
        self.permissions = Permissions(self.execute, name)

    def close(self) -> None:
        """Close the connection that changes the catalogue."""
        self._admin.close()

    def connect(self) -> psycopg.Connection[Any]:
        """Open a connection for a session: autocommit, in UTC, with the model's search path."""
        connection = psycopg.connect(self.dsn, autocommit=True)
        connection.execute(f"SET search_path = {SEARCH_PATH}")
        connection.execute("SET timezone = 'UTC'")
        return connection

    def make_type(self, kind: SqlType) -> None:
        """Make sure that PostgreSQL has a type; it stays, whatever becomes of the transaction that asked for it."""
        with self._lock:
            if domain_name(kind) not in self._types:
                self._admin.execute(_making(kind).encode())
                self._read_types()

    def type_names(self) -> dict[int, str]:
        """The domains by PostgreSQL's oid."""
        with self._lock:
            return {oid: name for name, oid in self._types.items()}

    def changed(self) -> None:
        """Note a change of the catalogue: sessions read it again."""
        with self._lock:
            self.version += 1

    def names(self, connection: psycopg.Connection[Any]) -> Names:
        """The catalogue as a connection sees it."""
        return Names.load(connection, self.name)

    def execute(self, statement: str, parameters: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement of PostgreSQL in a transaction of its own, as the server itself."""
        with self._lock:
            cursor = self._admin.execute(statement.encode(), list(parameters) or None)
            return cursor.fetchall() if cursor.description else []

    def _prepare(self) -> None:
        """Run everything that an empty database needs, at once: a test makes many."""
        first, *others = ((_FOLDER / name).read_text() for name in _SCRIPTS)
        script = "\n".join((first, *(_making(kind) for kind in _FIRST_TYPES), *others))
        self._admin.execute(script.encode())
        self._read_types()

    def _read_types(self) -> None:
        rows = self._admin.execute("SELECT name, pg_type::bigint FROM sqlserver.types").fetchall()
        self._types = dict(rows)


def _making(kind: SqlType) -> str:
    """The statements that make a type and note what SQL Server says of it."""
    name, native = domain_name(kind), NATIVE.get(kind.name)
    pg_type = f"pg_catalog.{native}" if native else f'sqlserver."{name}"'
    system_name, *numbers, is_text, user_type = catalogue_row(kind)
    facts = ", ".join(str(number) for number in numbers)
    noted = f"INSERT INTO sqlserver.types VALUES ('{pg_type}'::regtype, '{name}', '{system_name}', {facts}, {is_text}, {user_type});"
    return f"{create_domain(kind) or 'SELECT 1'}; {noted}"

"""The formats of the state store: a new one has the current format, and one of an earlier program is migrated.

To change the format, change `tables.py`, append a function to `MIGRATIONS`, and nothing else: the version is the first one
plus the number of migrations. A migration is frozen once released: it holds its own SQL and never looks at `tables.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sqlalchemy import Connection, text
from sqlalchemy.schema import CreateSchema

from replicator.model.errors import FatalError
from replicator.state.database.errors import DamagedValueError
from replicator.state.tables import METADATA, STORE

POSTGRESQL_SCHEMA: Final = "replicator"
"""Our tables live in a schema of their own, so that the database may be shared."""

FIRST_VERSION: Final = 22
"""Lowest format that is read: those below it were never released."""
MIGRATIONS: Final[Sequence[Callable[[Connection], None]]] = ()
FORMAT_VERSION: Final = FIRST_VERSION + len(MIGRATIONS)

_LOCK: Final = 0x5265_706C_6963_6174  # "Replicat"
_TABLE_NAMES: Final = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'",
    "postgresql": "SELECT tablename FROM pg_tables WHERE schemaname = 'replicator'",
}


def stored_version(connection: Connection) -> int:
    """Return the format of the store; 0 for one without any table.

    Raises:
        DamagedValueError: There are tables, but not ours.
    """
    names = set(connection.scalars(text(_TABLE_NAMES[connection.dialect.name])))
    if not names:
        return 0
    if "store" not in names:
        raise DamagedValueError(f"it holds tables that are not the Replicator's ({', '.join(sorted(names)[:3])})")
    version = connection.scalar(text("SELECT format_version FROM store WHERE id = 1"))
    if not isinstance(version, int) or version < 1:
        raise DamagedValueError("its format version is missing")
    return version


def is_current(connection: Connection, location: str) -> bool:
    """Return whether nothing is to be created or migrated.

    Raises:
        FatalError: `newer_state`, `older_state`: another program has written the store, in a format that this one does not read.
    """
    version = stored_version(connection)
    if version > FORMAT_VERSION:
        raise FatalError(
            f"The state store {location} has format {version}; this version supports formats up to {FORMAT_VERSION}.",
            code="newer_state",
            action="Use the version of the Replicator that wrote it, or a newer one.",
        )
    if 0 < version < FIRST_VERSION:
        raise FatalError(
            f"The state store {location} has format {version}; this version supports formats from {FIRST_VERSION} on.",
            code="older_state",
            action="Delete its replicators with the version that wrote it, move the store away, and start them again.",
        )
    return version == FORMAT_VERSION


def migrate(connection: Connection, location: str) -> None:
    """Create the tables of a new store or bring an older one to the current format, in the transaction that `connection` is in.

    Of several processes that come at once one does the work and the others then find it done: SQLite's write transaction
    excludes them, on PostgreSQL an advisory lock does. A crash leaves the old format.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    if is_current(connection, location):
        return
    version = stored_version(connection)
    if not version:
        _create(connection)
        return
    for step in MIGRATIONS[version - FIRST_VERSION :]:
        step(connection)
    connection.execute(text("UPDATE store SET format_version = :version"), {"version": FORMAT_VERSION})


def _create(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(CreateSchema(POSTGRESQL_SCHEMA, if_not_exists=True))
    METADATA.create_all(connection, checkfirst=False)
    connection.execute(STORE.insert().values(id=1, format_version=FORMAT_VERSION, last_id=0, epoch_floor=0))

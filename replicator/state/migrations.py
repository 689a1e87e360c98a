"""The formats of the state store: how each came out of the one before it.

A migration is frozen once released: it holds its own SQL and never looks at `tables.py`. To change the format, change
`tables.py`, append a function to `MIGRATIONS`, and nothing else: the version is the number of migrations done.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from sqlalchemy import Connection, RowMapping, text

from replicator.model.errors import FatalError
from replicator.state.errors import DamagedValueError
from replicator.state.first_format import FIRST_FORMAT

POSTGRESQL_SCHEMA: Final = "replicator"
"""Our tables live in a schema of their own, so that the database may be shared."""

_LOCK: Final = 0x5265_706C_6963_6174  # "Replicat"
_TABLE_NAMES: Final = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'",
    "postgresql": "SELECT tablename FROM pg_tables WHERE schemaname = 'replicator'",
}


def _first_format(connection: Connection) -> None:
    if connection.dialect.name == "postgresql" and not connection.scalar(
        text("SELECT 1 FROM pg_namespace WHERE nspname = :name"), {"name": POSTGRESQL_SCHEMA}
    ):
        connection.execute(text(f"CREATE SCHEMA {POSTGRESQL_SCHEMA}"))
    for statement in FIRST_FORMAT:
        connection.execute(text(statement))


def _claims(connection: Connection) -> None:
    """Which epoch claimed was not recorded, and a worker of the former version that still runs does not record it either."""
    connection.execute(text("ALTER TABLE applied ADD COLUMN claimed_by BIGINT"))


def _audits(connection: Connection) -> None:
    """Earlier versions did not look; the next worker finds out whether the target holds the whole table."""
    connection.execute(text("ALTER TABLE applied ADD COLUMN audit TEXT"))


_APPLIED_4: Final = """CREATE TABLE applied (
        replicator TEXT NOT NULL REFERENCES replicators (name),
        table_name TEXT NOT NULL,
        incarnation BIGINT NOT NULL,
        claimed_by BIGINT,
        last_applied BIGINT NOT NULL,
        row_count BIGINT NOT NULL,
        source_time TEXT,
        state TEXT NOT NULL,
        error TEXT,
        audit TEXT NOT NULL,
        PRIMARY KEY (replicator, table_name)
    )"""
_NO_AUDIT: Final[dict[str, Any]] = {"has_copy": None, "merged": {}, "audited_to": None, "alarms": []}


def _explicit_states(connection: Connection) -> None:
    """States that were told by what was not there get names of their own, and so do their columns.

    Because of the columns a worker of the version before that still runs cannot write any more: it stops, and what it had not sealed is
    read again.
    """
    connection.execute(text("ALTER TABLE replicators RENAME COLUMN prepared TO preparation"))
    connection.execute(text("ALTER TABLE tables RENAME COLUMN stage TO state"))
    connection.execute(text("UPDATE tables SET state = 'failed' WHERE state = 'failing'"))
    _rewrite(connection, "tables", "document", ("replicator", "table_name"), _table_4)
    # An event is written with its name first.
    where = 'WHERE event LIKE \'{"event":"SNAPSHOT%\''
    _rewrite(connection, "segment_events", "event", ("replicator", "segment_id", "sequence_num"), _kind_4, where)
    for table, key in (("replicators", "name"), ("runs", "id")):
        _rewrite(connection, table, "error", (key,), _error_4, "WHERE error IS NOT NULL")
    _applied_4(connection)
    renamed = {"now": "position", "before": "place"}
    connection.execute(text("UPDATE requests SET kind = :now WHERE kind = :before"), renamed)
    for row in connection.execute(text("SELECT id, payload FROM requests WHERE kind = 'snapshot'")).all():
        if json.loads(row.payload).get("recreate"):
            connection.execute(text("UPDATE requests SET kind = 'recreate' WHERE id = :id"), {"id": row.id})


def _rewrite(
    connection: Connection,
    table: str,
    column: str,
    key: Sequence[str],
    change: Callable[[dict[str, Any]], dict[str, Any]],
    where: str = "",
) -> None:
    """Replace the JSON documents of a column."""
    columns = ", ".join(key)
    rows = connection.execute(text(f"SELECT {columns}, {column} FROM {table} {where}")).all()  # noqa: S608 (names of ours)
    if rows:
        same = " AND ".join(f"{name} = :{name}" for name in key)
        connection.execute(
            text(f"UPDATE {table} SET {column} = :document WHERE {same}"),  # noqa: S608 (names of ours)
            [{**dict(zip(key, row[:-1], strict=True)), "document": _text(change(json.loads(row[-1])))} for row in rows],
        )


def _table_4(document: dict[str, Any]) -> dict[str, Any]:
    """Without an identity a table that had been begun was to begin a new incarnation."""
    snapshot = document["snapshot"]
    if snapshot is not None:
        snapshot = {"is_outdated": False, **_kind_4(snapshot)}
    return {
        **document,
        "is_recreated": document["identity"] is None and document["schema"] is not None,
        "snapshot": snapshot,
        "error": None if document["error"] is None else _error_4(document["error"]),
    }


def _kind_4(document: dict[str, Any]) -> dict[str, Any]:
    """Without a start number a snapshot was the first of its incarnation."""
    return {**document, "kind": "first" if document["start_number"] is None else "in_place"}


def _error_4(document: dict[str, Any]) -> dict[str, Any]:
    return {"is_finding": False, **document}


def _applied_4(connection: Connection) -> None:
    rows = connection.execute(text("SELECT * FROM applied")).mappings().all()
    connection.execute(text("DROP TABLE applied"))
    connection.execute(text(_APPLIED_4))
    names = (
        "replicator", "table_name", "incarnation", "claimed_by", "last_applied", "row_count", "source_time", "state", "error", "audit",
    )  # fmt: skip
    insert = f"INSERT INTO applied ({', '.join(names)}) VALUES ({', '.join(f':{name}' for name in names)})"  # noqa: S608 (names of ours)
    if rows:
        connection.execute(text(insert), [_applied_row_4(row) for row in rows])


def _applied_row_4(row: RowMapping) -> dict[str, Any]:
    """Without a source time, and without a note that the table was whole, its snapshot was running."""
    audit = json.loads(row["audit"]) if row["audit"] else dict(_NO_AUDIT)
    has_copy, is_fresh = audit.pop("has_copy"), row["source_time"] is not None
    copy = "whole" if has_copy else "snapshot" if not is_fresh else "unknown" if has_copy is None else "changes"
    error = None if row["error"] is None else _text(_error_4(json.loads(row["error"])))
    changed = {"state": "failed" if row["is_failing"] else "applying", "error": error}
    kept = {name: value for name, value in row.items() if name not in ("is_failing", "audit", "error")}
    return {**kept, **changed, "audit": _text({"copy": copy, **audit})}


def _typed_identities(connection: Connection) -> None:
    """What the host reads of a table's identity gets fields of its own.

    The column is renamed so that a worker of the version before that still runs cannot write any more.
    """
    connection.execute(text("ALTER TABLE tables RENAME COLUMN document TO record"))
    _rewrite(connection, "tables", "record", ("replicator", "table_name"), _table_5)


def _table_5(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "identity": _identity_5(document["identity"]) if document["identity"] else None}


def _identity_5(parts: dict[str, Any]) -> dict[str, Any]:
    """Storage was a number, several of them, a date, or what a TRUNCATE made; `null` was the last, too, and explained nothing."""
    parts = dict(parts)
    object_ = parts.pop("oid", None)
    storage: Any = None
    if "filenode" in parts:
        match parts.pop("filenode"):
            case {"truncated_by": by}:
                storage = {"truncated_by": by}
            case None:
                storage = {"truncated_by": None}
            case [*numbers]:
                storage = ":".join(map(str, numbers))
            case other:
                storage = str(other)
    return {"object": None if object_ is None else str(object_), "storage": storage, "parts": parts}


def _crashes(connection: Connection) -> None:
    """A worker of the version before that still runs leaves the column as it is."""
    nothing = _text({"crashes": 0, "upkeep_crash": None})
    connection.exec_driver_sql(f"ALTER TABLE applied ADD COLUMN engine TEXT NOT NULL DEFAULT '{nothing}'")


def _journal_claims(connection: Connection) -> None:
    """A worker of the version before that still runs does not claim the journal's folder."""
    connection.exec_driver_sql("ALTER TABLE leases ADD COLUMN journal_claims TEXT NOT NULL DEFAULT '{}'")


def _alterations(connection: Connection) -> None:
    """Shapes of tables may have numbers of columns and kept columns, and events the shape before: nothing of it is there yet.

    A version that does not know them would take a table with kept columns for one without.
    """
    del connection


_HISTORY: Final = (
    """CREATE TABLE history (
        replicator TEXT NOT NULL REFERENCES replicators (name),
        id BIGINT NOT NULL,
        sequence_num BIGINT NOT NULL,
        table_name TEXT NOT NULL,
        incarnation BIGINT NOT NULL,
        at TEXT NOT NULL,
        resume_offset TEXT,
        entry TEXT NOT NULL,
        PRIMARY KEY (replicator, id)
    )""",
    "CREATE INDEX history_of_table ON history (replicator, table_name, id)",
)


def _history(connection: Connection) -> None:
    """What was altered before is not known. Whether a table was altered since its identity was accepted was not stored.

    A worker of the version before that still runs leaves both as they are.
    """
    for statement in _HISTORY:
        connection.execute(text(statement))
    connection.exec_driver_sql("ALTER TABLE tables ADD COLUMN is_altered BOOLEAN NOT NULL DEFAULT FALSE")


def _source_tables(connection: Connection) -> None:
    """Tables that were renamed in the source; until now none was followed.

    A version that does not know it would look for them under the names that they had.
    """
    connection.exec_driver_sql("ALTER TABLE tables ADD COLUMN source_table TEXT")


_VERIFICATIONS: Final = """CREATE TABLE verifications (
    replicator TEXT NOT NULL REFERENCES replicators (name),
    table_name TEXT NOT NULL,
    incarnation BIGINT NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (replicator, table_name)
)"""


def _verifications(connection: Connection) -> None:
    """What was verified before is not known. A worker of the version before that still runs verifies nothing by itself."""
    connection.execute(text(_VERIFICATIONS))


_VERIFIED_RANGES: Final = """CREATE TABLE verified_ranges (
    replicator TEXT NOT NULL REFERENCES replicators (name),
    table_name TEXT NOT NULL,
    number BIGINT NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (replicator, table_name, number)
)"""


def _verified_ranges(connection: Connection) -> None:
    """Tables that were proven stay proven, and are compared by ranges when they are due."""
    connection.execute(text(_VERIFIED_RANGES))


_COUNTERS: Final = """CREATE TABLE counters (
    replicator TEXT NOT NULL REFERENCES replicators (name),
    counter TEXT NOT NULL,
    labels TEXT NOT NULL,
    value BIGINT NOT NULL,
    PRIMARY KEY (replicator, counter, labels)
)"""


def _counters(connection: Connection) -> None:
    """Counting begins here. A worker of the version before that still runs counts nothing."""
    connection.execute(text(_COUNTERS))


def _comparing(_: Connection) -> None:
    """Nothing is being compared. A version that does not know the state could not read a table that is in it."""


_TOKENS: Final = """CREATE TABLE tokens (
    name TEXT NOT NULL PRIMARY KEY,
    scope TEXT NOT NULL,
    digest TEXT NOT NULL UNIQUE,
    created_at TEXT NOT NULL,
    expires_at TEXT
)"""


def _tokens(connection: Connection) -> None:
    """Until now nothing asked for a token. A worker of the version before that still runs does not read them."""
    connection.execute(text(_TOKENS))


_WATCHES: Final = (
    """CREATE TABLE watches (
        replicator TEXT NOT NULL REFERENCES replicators (name),
        job TEXT NOT NULL,
        holder TEXT,
        expires_at TEXT,
        record TEXT NOT NULL,
        PRIMARY KEY (replicator, job)
    )""",
    """CREATE TABLE alerts (
        replicator TEXT NOT NULL REFERENCES replicators (name),
        kind TEXT NOT NULL,
        subject TEXT NOT NULL,
        record TEXT NOT NULL,
        PRIMARY KEY (replicator, kind, subject)
    )""",
    """CREATE TABLE alert_messages (
        replicator TEXT NOT NULL REFERENCES replicators (name),
        id BIGINT NOT NULL,
        channel TEXT NOT NULL,
        record TEXT NOT NULL,
        PRIMARY KEY (replicator, id)
    )""",
)


def _watches(connection: Connection) -> None:
    """Until now nobody was told anything. A worker of the version before that still runs tells nobody."""
    for statement in _WATCHES:
        connection.execute(text(statement))


_WORKERS: Final = """CREATE TABLE workers (
    holder TEXT NOT NULL PRIMARY KEY,
    capacity BIGINT NOT NULL,
    is_draining BOOLEAN NOT NULL,
    version TEXT NOT NULL,
    started_at TEXT NOT NULL,
    seen_at TEXT NOT NULL,
    refusals TEXT NOT NULL
)"""


def _workers(connection: Connection) -> None:
    """A worker of the version before that still runs is not in it: it takes what is free, and keeps it."""
    connection.execute(text(_WORKERS))


_POINTS: Final = """CREATE TABLE points (
    replicator TEXT NOT NULL REFERENCES replicators (name),
    minute TEXT NOT NULL,
    freshness_ms BIGINT,
    late BIGINT NOT NULL,
    PRIMARY KEY (replicator, minute)
)"""


def _points(connection: Connection) -> None:
    """How fresh replicators were until now is not known. A program of the version before could not delete one that has points."""
    connection.execute(text(_POINTS))


def _restarts(connection: Connection) -> None:
    """When replicators began at new positions of the log is not known. A worker of the version before does not record it."""
    connection.exec_driver_sql("ALTER TABLE replicators ADD COLUMN restarted_at TEXT")


def _earlier_times(connection: Connection) -> None:
    """Of older segments it is not known any more. A worker of the version before cannot write here."""
    connection.exec_driver_sql("ALTER TABLE segments ADD COLUMN earlier_time TEXT")
    connection.exec_driver_sql("ALTER TABLE applied DROP COLUMN source_time")


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


MIGRATIONS: Final[Sequence[Callable[[Connection], None]]] = (
    _first_format,
    _claims,
    _audits,
    _explicit_states,
    _typed_identities,
    _crashes,
    _journal_claims,
    _alterations,
    _history,
    _source_tables,
    _verifications,
    _verified_ranges,
    _counters,
    _comparing,
    _tokens,
    _watches,
    _workers,
    _points,
    _restarts,
    _earlier_times,
)
FORMAT_VERSION: Final = len(MIGRATIONS)


def stored_version(connection: Connection) -> int:
    """The format that the store has; 0 for one without any table.

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
    """Whether nothing is to be migrated.

    Raises:
        FatalError: `newer_state`: a newer program has written the store.
    """
    version = stored_version(connection)
    if version > FORMAT_VERSION:
        raise FatalError(
            f"The state store {location} has format {version}; this version supports formats up to {FORMAT_VERSION}.",
            code="newer_state",
            action="Use the version of the Replicator that wrote it, or a newer one.",
        )
    return version == FORMAT_VERSION


def migrate(connection: Connection, location: str) -> None:
    """Bring the store to the current format, inside the transaction that `connection` is in.

    Of several processes that come at once one does the work and the others then find it done: SQLite's write transaction
    excludes them, on PostgreSQL an advisory lock does. A crash leaves the old format.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    if is_current(connection, location):
        return
    for step in MIGRATIONS[stored_version(connection) :]:
        step(connection)
    connection.execute(text("UPDATE store SET format_version = :version"), {"version": FORMAT_VERSION})

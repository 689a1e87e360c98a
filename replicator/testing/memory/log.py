"""The log of the in-memory database, and what a table holds according to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from replicator.model.events import DDLEvent, DDLOperation, DMLOperation
from replicator.model.schema import TableId, TableSchema

Row = Mapping[str, Any]
Key = tuple[Any, ...]
State = Mapping[tuple[Any, ...], int]
"""A table's content as a multiset: row values in column order → how often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A row's change as the log holds it. `row` is whole; `absent` names the columns that a reader of the log is not given."""

    oid: int
    schema: TableSchema
    operation: DMLOperation
    before: Row | None
    row: Row | None
    absent: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """One statement that changes the shape, or truncates, one or several tables."""

    oids: tuple[int, ...]
    events: tuple[DDLEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTransaction:
    """A committed transaction in the log."""

    id: str
    committed_at: datetime
    entries: tuple[Change | SchemaChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMark:
    """A mark in the log."""

    text: str


def state_of(schema: TableSchema, rows: Sequence[Row]) -> State:
    """Rows as a multiset of their values in column order."""
    return dict(Counter(tuple(row[c.name] for c in schema.columns) for row in rows))


def replay(table: TableId, content: list[Row], entry: Change | SchemaChange) -> TableSchema | None:
    """Apply one entry of the log to a table's content, in place; the table's shape afterwards, None if the entry is not about it."""
    if isinstance(entry, SchemaChange):
        event = next((e for e in entry.events if e.table == table), None)
        if event is None:
            return None
        if event.operation is DDLOperation.TRUNCATE_TABLE:
            content.clear()
        elif event.schema is not None:
            names = [c.name for c in event.schema.columns]
            content[:] = [{n: row.get(n) for n in names} for row in content]
        return event.schema
    if entry.schema.table != table:
        return None
    key = entry.schema.key
    old = entry.before or entry.row if entry.operation is not DMLOperation.INSERT else None
    if old is not None:
        found = next(i for i, row in enumerate(content) if (all(row[n] == old[n] for n in key) if key else row == old))
        del content[found]
    if entry.row is not None:
        content.append(entry.row)
    return entry.schema

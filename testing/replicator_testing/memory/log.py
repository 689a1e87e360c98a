"""The log of the in-memory database, and the content of a table according to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from replicator.model.alteration import steps
from replicator.model.events import DDLEvent, DDLOperation, DMLOperation, no_fill
from replicator.model.schema import TableId, TableSchema

Row = Mapping[str, Any]
Key = tuple[Any, ...]
State = Mapping[tuple[Any, ...], int]
"""A table's content as a multiset: row values in column order → count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryChange:
    """A row's change in the log. `row` is whole; `absent` names the columns that a reader of the log does not get."""

    oid: int
    schema: TableSchema
    operation: DMLOperation
    before: Row | None
    row: Row | None
    absent: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """Statement that changes the schema, or truncates, one or several tables. `fill`: values of rows in new columns; others are NULL."""

    oids: tuple[int, ...]
    events: tuple[DDLEvent, ...]
    fill: Row = field(default_factory=dict)

    @classmethod
    def alter(
        cls, oid: int, before: TableSchema, schema: TableSchema, fill: Row, *, transaction_id: str, is_known: bool
    ) -> SchemaChange:
        """Return the statement that gives a table another schema."""
        filled = [column for column in schema.columns if column.name in fill]
        row = pa.RecordBatch.from_arrays(
            [pa.array([fill[column.name]], column.type) for column in filled], names=[column.name for column in filled]
        )
        event = DDLEvent(
            operation=DDLOperation.ALTER_TABLE,
            table=schema.table,
            before=before,
            schema=schema,
            fill=(row if filled else no_fill()) if is_known else None,
            transaction_id=transaction_id,
        )
        return cls(oids=(oid,), events=(event,), fill=fill)

    def altered(self, row: Row) -> Row:
        """Return a row in the schema after an alteration."""
        (event,) = self.events
        assert event.before is not None
        assert event.schema is not None
        return altered_row(row, event.before, event.schema, self.fill)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTransaction:
    """A committed transaction in the log."""

    id: str
    committed_at: datetime
    entries: tuple[MemoryChange | SchemaChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMark:
    """A mark in the log."""

    text: str


def state_of(schema: TableSchema, rows: Sequence[Row]) -> State:
    """Return rows as a multiset of their values in column order."""
    return dict(Counter(tuple(row[c.name] for c in schema.columns) for row in rows))


def altered_row(row: Row, before: TableSchema, after: TableSchema, fill: Row) -> dict[str, Any]:
    """Convert a row from one schema to another: values are cast, and new columns filled."""
    types = {column.name: column.type for column in before.held}
    origin = steps(before, after).origin
    return {
        column.name: fill.get(column.name) if old is None else cast(row[old], types[old], column.type)
        for column in after.held
        for old in (origin[column.name],)
    }


def cast(value: Any, before: pa.DataType, after: pa.DataType) -> Any:
    """Convert a value from one type to another; pyarrow's error if it does not fit."""
    return value if before == after else pa.scalar(value, before).cast(after).as_py()


def replay(table: TableId, content: list[Row], entry: MemoryChange | SchemaChange) -> TableSchema | None:
    """Apply one entry of the log to a table's content, in place; return the schema afterwards, None if the entry concerns another table."""
    if isinstance(entry, SchemaChange):
        event = next((e for e in entry.events if e.table == table), None)
        if event is None:
            return None
        if event.operation is DDLOperation.TRUNCATE_TABLE:
            content.clear()
        elif event.operation is DDLOperation.ALTER_TABLE:
            content[:] = [entry.altered(row) for row in content]
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

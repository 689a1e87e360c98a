"""Compares what the catalogue shows of columns and the log does not: whether they may be NULL, and their defaults. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from replicator.model.events import DDLEvent
from replicator.model.identity import ColumnConstraints, TableIdentity
from replicator.model.schema import Column, TableSchema
from replicator.plugins.source import TableDescription

_SPELLED_MAX: Final = 200
"""Characters of a default that messages have."""


@dataclass(frozen=True, slots=True)
class OtherConstraints:
    """A table with other constraints than before.

    Attributes:
        before, after: Its shape, which differs in nothing but in what may be NULL.
        defaults: What became of defaults, in words.
    """

    before: TableSchema
    after: TableSchema
    defaults: tuple[str, ...]


def compare_constraints(
    tracked: TableSchema, accepted: TableIdentity, found: TableDescription
) -> OtherConstraints | None:
    """Compare the columns of one table that live still; None if nothing is known to have changed.

    What was accepted before constraints were known says nothing, nor does another object of the name. Columns of the key are never NULL. Of
    a column that has come since, only `tracked` says something.
    """
    now = found.identity.constraints
    if not accepted.constraints or not now or accepted.object != found.identity.object:
        return None
    keys = {column.id for column in found.schema.columns if column.name in found.schema.key}
    before: list[Column] = []
    after: list[Column] = []
    defaults: list[str] = []
    for column in tracked.columns:
        new = now.get(str(column.id))
        if new is None:
            before.append(column)
            after.append(column)
            continue
        old = accepted.constraints.get(str(column.id)) or replace(new, nullable=column.nullable)
        is_key = column.id in keys or column.name in tracked.key
        before.append(replace(column, nullable=new.nullable if is_key else old.nullable))
        after.append(replace(column, nullable=new.nullable))
        if old.has_other_default(new):
            defaults.append(f"changed the default of {column.name} from {_spelled(old)} to {_spelled(new)}")
    if before == after and not defaults:
        return None
    return OtherConstraints(
        replace(tracked, columns=tuple(before)), replace(tracked, columns=tuple(after)), tuple(defaults)
    )


def with_nullability(schema: TableSchema, other: TableSchema) -> TableSchema:
    """The same shape, whose columns may be NULL where those of `other` may that are the same, by number or else by name."""
    has_ids = all(column.id is not None for column in (*schema.columns, *other.columns))
    found = {column.id if has_ids else column.name: column.nullable for column in other.columns}
    columns = (replace(c, nullable=found.get(c.id if has_ids else c.name, c.nullable)) for c in schema.columns)
    return replace(schema, columns=tuple(columns))


def with_known_nullability(event: DDLEvent, tracked: TableSchema) -> DDLEvent:
    """An ALTER_TABLE of the log, with what is tracked of columns that it leaves alone.

    The log may have been opened before the catalogue showed what may be NULL by now.
    """
    if event.before is None or event.schema is None:
        return event
    before = with_nullability(event.before, tracked)
    unchanged, known = with_nullability(event.schema, event.before), with_nullability(event.schema, before)
    pairs = zip(event.schema.columns, unchanged.columns, known.columns, strict=True)
    columns = (new if told.nullable == column.nullable else column for column, told, new in pairs)
    return replace(event, before=before, schema=replace(event.schema, columns=tuple(columns)))


def _spelled(constraints: ColumnConstraints) -> str:
    text = "none" if constraints.default is None else constraints.default
    return text if len(text) <= _SPELLED_MAX else f"{text[:_SPELLED_MAX]}…"

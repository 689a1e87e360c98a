"""What an altered table becomes in the target, by policy. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import pyarrow as pa

from replicator.capture.catalogue import columns_changed, same_columns
from replicator.config.model import DDLConfig
from replicator.model.alteration import Alteration, alteration
from replicator.model.errors import SchemaConflictError
from replicator.model.events import RESERVED_COLUMNS, DDLEvent, DDLOperation
from replicator.model.naming import check_columns, folded, refuse_columns
from replicator.model.schema import Column, TableSchema


class Effect(StrEnum):
    """What an ALTER_TABLE of the log means for a table."""

    COLUMNS = "columns"
    """It has other columns from here on."""
    ROWS = "rows"
    """It has the columns that it had, but its rows may have other values in them, or be others."""
    OTHER = "other"
    """Nothing, or another key, or nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Altered:
    """An alteration that the target is to follow.

    Attributes:
        before: The table as the target has it, every column with a number.
        schema: The table as the target is to have it, with the same numbers.
        fill: What rows that are there already get in new columns, by name (`DDLEvent.fill`).
        needs_snapshot: Whether only a new snapshot tells what these have there.
    """

    before: TableSchema
    schema: TableSchema
    fill: pa.RecordBatch | None
    needs_snapshot: bool

    def event(self, told: DDLEvent | None) -> DDLEvent:
        """What the journal says of it. `told`: what the log said, if it did."""
        told = told or DDLEvent(operation=DDLOperation.ALTER_TABLE, table=self.schema.table)
        return replace(told, before=self.before, schema=self.schema, fill=self.fill)


def effect_of(known: TableSchema, event: DDLEvent) -> Effect:
    """What an ALTER_TABLE means for a table of this shape."""
    if event.before is not None and same_columns(known, event.before):
        # With the numbers that tell columns apart: those that are tracked may have none yet.
        known = event.before
    if event.schema is None:
        return Effect.OTHER
    if not same_columns(known, event.schema):
        return Effect.COLUMNS
    has_lost_ids = _all_have_ids(known.columns) and not _all_have_ids(event.schema.columns)
    is_told = event.before is not None or has_lost_ids
    return Effect.ROWS if is_told and event.fill is None else Effect.OTHER


def decide(
    known: TableSchema,
    found: TableSchema,
    policies: DDLConfig,
    *,
    before: TableSchema | None,
    fill: pa.RecordBatch | None,
) -> Altered:
    """Decide what becomes of a table whose source says that it has other columns.

    Args:
        known: As it is tracked.
        found: As the source says that it is now.
        policies: Of the table.
        before: What `found` is to be compared with, if the source says so (`DDLEvent.before`).
        fill: As `DDLEvent.fill`.

    Raises:
        SchemaConflictError: The table must fail: a policy says so, or this part of the change cannot be followed.
    """
    is_in_step = before is None or same_columns(_bare(known), _bare(before))
    if not is_in_step:
        # The source went by another shape: its numbers, and what it says of values, are not about this one.
        known, before, fill = _bare(known), None, None
    old, new = _numbered(known, found, before)
    change = alteration(old, new)
    if change.added and before is None and _all_have_ids(found.columns) and not _all_have_ids(known.columns):
        # Compared by names, of which one may be a column that was renamed.
        fill = None
    _refuse(known, found, change, policies)
    kept = old.kept
    if policies.drop_column in ("keep", "ignore"):
        kept = (*kept, *(replace(column, nullable=True) for column in change.dropped))
    schema = replace(new, kept=_named(kept, new.columns))
    refuse_columns(schema, check_columns(schema))
    names = {column.name for column in change.added}
    known_fill = None if fill is None else fill.select([name for name in fill.schema.names if name in names])
    return Altered(before=old, schema=schema, fill=known_fill, needs_snapshot=fill is None)


def _refuse(known: TableSchema, found: TableSchema, change: Alteration, policies: DDLConfig) -> None:
    if change.retyped or change.has_other_key:
        raise columns_changed(known, found)
    for policy, setting, what in (
        (policies.add_column, "add_column", [f"added {column.name}" for column in change.added]),
        (policies.drop_column, "drop_column", [f"dropped {column.name}" for column in change.dropped]),
        (policies.rename_column, "rename_column", [f"renamed {old.name} to {new.name}" for old, new in change.renamed]),
    ):
        if policy == "stop" and what:
            raise SchemaConflictError(
                f"The source {', '.join(what)}. The policy ddl.{setting} is `stop`.",
                code="ddl_stop",
                table=str(known.table),
                action="Run `replicator snapshot NAME TABLE`: it takes the table with its new columns.",
            )


def _numbered(known: TableSchema, found: TableSchema, before: TableSchema | None) -> tuple[TableSchema, TableSchema]:
    """Both shapes with numbers that tell which columns are the same; kept columns have numbers of their own, below zero."""
    old, new = known.columns, found.columns
    if before is not None and _all_have_ids(before.columns):
        old = before.columns
    if not (_all_have_ids(old) and _all_have_ids(new)):
        # By name. A source's own numbers stay as they are, since it will compare by them.
        if _all_have_ids(new):
            ids = {column.name: column.id for column in new}
            lower = itertools.count(-len(known.kept) - 1, -1)
            old = tuple(replace(c, id=ids[c.name] if c.name in ids else next(lower)) for c in old)
        else:
            old = old if _all_have_ids(old) else tuple(replace(c, id=id_) for id_, c in enumerate(old, start=1))
            ids = {column.name: column.id for column in old}
            higher = itertools.count(max(column.id or 0 for column in old) + 1)
            new = tuple(replace(c, id=ids[c.name] if c.name in ids else next(higher)) for c in new)
    kept = tuple(replace(column, id=-id_) for id_, column in enumerate(known.kept, start=1))
    return replace(known, columns=old, kept=kept), replace(found, columns=new, kept=kept)


def _named(kept: Sequence[Column], columns: Sequence[Column]) -> tuple[Column, ...]:
    """Kept columns give up their names to columns that the source has."""
    taken = {folded(column.name) for column in columns} | {folded(name) for name in RESERVED_COLUMNS}
    named: list[Column] = []
    for column in kept:
        name = next(name for name in _names_of(column.name) if folded(name) not in taken)
        taken.add(folded(name))
        named.append(replace(column, name=name))
    return tuple(named)


def _names_of(name: str) -> Iterator[str]:
    yield name
    number = 1
    while True:
        yield f"{name}__dropped_{number}"
        number += 1


def _all_have_ids(columns: Sequence[Column]) -> bool:
    return all(column.id is not None for column in columns)


def _bare(schema: TableSchema) -> TableSchema:
    return replace(schema, columns=tuple(replace(column, id=None) for column in schema.columns))

"""What the catalogue shows of columns and the log does not: whether they may be NULL, and their defaults."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final

from replicator.capture.definitions.policies import decide
from replicator.capture.settings import CaptureSettings
from replicator.capture.tables import TrackedTable, TrackedTables
from replicator.model.errors import TableError
from replicator.model.events import DDLEvent, DDLOperation, no_fill
from replicator.model.identity import ColumnConstraints, TableIdentity
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.source import TableDescription
from replicator.state import table_life

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Called by the loop's thread alone.

    Nothing of it changes rows, so no snapshot is needed. What was found is durable with the entry of the history that tells it, so a
    restart finds it no second time.

    Attributes:
        to_recreate: As `CatalogTracker`.
        fail: Ends a table, for a reason.
        outdate: What was asked of the catalogue about a table before is older than what is known.
    """

    tables: TrackedTables
    settings: CaptureSettings
    to_recreate: Collection[TableId]
    fail: Callable[[TrackedTable, TableError], None]
    outdate: Callable[[TableId], None]

    def follow(self, tracked: TrackedTable, found: TableDescription) -> bool:
        """Follow what the catalogue shows; return whether the table continues. If a policy stops it, it has failed."""
        record = tracked.record
        if record.identity is None or not table_life.has_begun(record):
            return True
        other = compare_constraints(tracked.schema, record.identity, found)
        if other is None:
            return True
        altered = decide(
            other.before,
            other.after,
            self.settings.ddl(tracked.table),
            before=other.before,
            fill=no_fill(),
            ignored=record.ignored,
            can_widen=self.settings.widens,
            is_accepted=self._is_accepted(tracked),
            other_defaults=other.defaults,
        )
        event = DDLEvent(
            operation=DDLOperation.ALTER_TABLE, table=tracked.table, before=other.before, schema=other.after
        )
        reason = altered.error.message if altered.error else None
        if reason is None and other.defaults:
            reason = f"The source {', '.join(other.defaults)}."
        self.tables.note(tracked, event, altered.decision, changes=altered.changes, reason=reason)
        if altered.error is not None:
            self.fail(tracked, altered.error)
            return False
        if other.before != other.after:
            self.tables.event(tracked, altered.event(event))
        self.tables.put(table_life.constrained(record, altered.tracked, found.identity))
        self.outdate(tracked.table)
        return True

    def _is_accepted(self, tracked: TrackedTable) -> bool:
        """Whether no policy stops the table: a snapshot after a failure, and a new incarnation, take it as it is now."""
        record = tracked.record
        is_new = record.is_recreated or tracked.table in self.to_recreate
        return record.is_accepted or table_life.has_failed(record) or is_new


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

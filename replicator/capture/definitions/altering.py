"""Brings captured tables to their new columns: the journal says so, and what was read with the old ones is dropped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from replicator.capture.definitions.catalogue import (
    UNEXPLAINED,
    CatalogChange,
    columns_changed,
    dropped_by_policy,
    judge,
    missing,
    not_understood,
    same_shape,
    truncated,
    truncated_by_policy,
)
from replicator.capture.definitions.constraints import with_known_nullability, with_nullability
from replicator.capture.definitions.policies import Altered, bare, decide, sets_default, stopped_at_default
from replicator.capture.settings import Widens
from replicator.capture.snapshots.driver import SnapshotRunner
from replicator.capture.tables import TrackedTable, TrackedTables
from replicator.config import DDLConfig
from replicator.model.alteration import Change
from replicator.model.errors import SchemaConflictError, TableError
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.identity import TableIdentity, Truncated
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import SourceLog, TableDescription
from replicator.state import table_life
from replicator.state.records import Decision, Stage, TableRecord

_READ_AGAIN: Final = "Only a new snapshot in place tells what the rows have."


@dataclass(frozen=True, slots=True)
class Dropped:
    """What becomes of a table that does not exist any more.

    Attributes:
        error: With which it fails.
        stopped_at: As `TableRecord.stopped_at`.
        is_in_target: The target drops it, too.
    """

    error: SchemaConflictError
    stopped_at: Change | None = None
    is_in_target: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Altering:
    """Called by the loop's thread alone.

    Each method says what becomes of the table, and raises SchemaConflictError where it must fail. What SNAPSHOT and REBUILD ask for is the
    caller's: a snapshot in place, or as a new incarnation.

    Attributes:
        policies: Those of a table.
        widens: What the target can do.
    """

    source: SourceLog
    tables: TrackedTables
    snapshots: SnapshotRunner
    policies: Callable[[TableId], DDLConfig]
    widens: Widens

    def by_log(self, tracked: TrackedTable, event: DDLEvent, number: int) -> Decision:
        """The log says that the table has other columns, or another key, from this number on."""
        event = with_known_nullability(event, tracked.schema)
        assert event.schema is not None, "it says which"
        altered = decide(
            tracked.schema,
            event.schema,
            self.policies(tracked.table),
            before=event.before,
            fill=event.fill,
            ignored=tracked.record.ignored,
            can_widen=self.widens,
        )
        if altered.has_other_key_type and tracked.record.stage is Stage.SNAPSHOT and altered.schema.key:
            # How far it was read is known by the old key.
            altered = replace(altered, fill=None, decision=Decision.SNAPSHOT)
        told = replace(event, before=event.before or tracked.schema)
        decision = self._follow(tracked, altered, told, number)
        if decision not in (Decision.SNAPSHOT, Decision.REBUILD):
            self._read_again(tracked)
            # It may have another identity, which chunks and comparisons are to know soon.
            self.snapshots.suspicious.add(tracked.table)
        return decision

    def by_catalogue(self, tracked: TrackedTable, found: TableDescription) -> Decision:
        """The catalogue shows other columns, or another key, and the log does not say how they came."""
        if is_other_object(tracked.record, found.identity):
            # Its snapshot sees what becomes of its shape.
            return Decision.SNAPSHOT
        identity = tracked.record.identity
        altered = self._compared(tracked, found)
        change = judge(altered.tracked, identity, found, truncates_since=0)
        is_truncated = identity is not None and isinstance(identity.storage, Truncated)
        # What the catalogue says of rows, it says of those in a storage that is known.
        is_storage_known = change in (CatalogChange.NONE, CatalogChange.EXPLAINED) and not is_truncated
        if not is_storage_known:
            altered = _with_snapshot(altered, _READ_AGAIN)
        decision = self._follow(tracked, altered, self._told(tracked, found), None)
        if decision in (Decision.SNAPSHOT, Decision.REBUILD):
            return decision
        if not is_storage_known:
            return Decision.SNAPSHOT
        self.tables.put(table_life.accepted(tracked.record, found.identity))
        self.source.accept({tracked.table: found.identity})
        self._read_again(tracked)
        return decision

    def before_snapshot(self, tracked: TrackedTable, found: TableDescription) -> Decision:
        """Its snapshot begins, and tells what its rows have in new columns: in place (SNAPSHOT), or as a new incarnation (REBUILD)."""
        record = tracked.record
        if same_shape(tracked.schema, found.schema):
            return Decision.SNAPSHOT
        is_other = is_other_object(record, found.identity)
        altered = self._compared(tracked, found, is_accepted=record.is_accepted, is_other=is_other)
        if self.is_asked_for_as_it_is(tracked, found) or (is_other and altered.error is not None):
            # Somebody asked for the table as it is now; or it is another table than the one whose policies these are.
            altered = replace(altered, decision=Decision.REBUILD, error=None)
        altered = _with_snapshot(altered, "Found when a new snapshot of the table began.")
        decision = self._follow(tracked, altered, self._told(tracked, found), None)
        return decision if decision is Decision.REBUILD else Decision.SNAPSHOT

    def is_asked_for_as_it_is(self, tracked: TrackedTable, found: TableDescription) -> bool:
        """Whether it failed, and a snapshot that somebody asked for takes it as it is now, which is not as it was."""
        record = tracked.record
        has_failed = table_life.has_failed(record) and table_life.has_begun(record) and not record.is_accepted
        return has_failed and not same_shape(tracked.schema, found.schema)

    def truncated(self, tracked: TrackedTable, event: DDLEvent, number: int) -> SchemaConflictError | None:
        """The log says that the table was truncated; return why it stops, if it does. Where the policy allows it, the journal says so."""
        policy = self.policies(tracked.table).truncate_table
        tracked.truncates += 1
        self.tables.put(replace(tracked.record, identity=truncated(tracked.record.identity, event.transaction_id)))
        self.tables.note(tracked, event, Decision(policy), changes=(Change.TRUNCATE_TABLE,), number=number)
        if policy == "apply":
            self.tables.event(tracked, event, number)
        return truncated_by_policy(tracked.table) if policy == "stop" else None

    def dropped(self, tracked: TrackedTable, event: DDLEvent | None, number: int | None) -> Dropped:
        """The table does not exist any more. Where the policy, or somebody, says so, the journal says it, too."""
        is_accepted = tracked.record.is_accepted and tracked.record.stopped_at is Change.DROP_TABLE
        policy = "apply" if is_accepted else self.policies(tracked.table).drop_table
        event = event or DDLEvent(operation=DDLOperation.DROP_TABLE, table=tracked.table)
        if tracked.is_captured or is_accepted:
            reason = "An operator accepted it." if is_accepted else None
            changes = (Change.DROP_TABLE,)
            self.tables.note(tracked, event, Decision(policy), changes=changes, reason=reason, number=number)
            if policy == "apply":
                self.tables.event(tracked, event, number)
                return Dropped(missing(tracked.table), is_in_target=True)
        if policy == "stop" and table_life.has_begun(tracked.record):
            return Dropped(dropped_by_policy(tracked.table), stopped_at=Change.DROP_TABLE)
        return Dropped(missing(tracked.table))

    def note_rows(self, tracked: TrackedTable, event: DDLEvent, number: int, *, are_others: bool) -> Decision:
        """The log names a statement that left the columns as they were; the rows may have other values, or be others.

        One that the source did not understand stops the table.
        """
        if event.shown is not None:
            error = not_understood(tracked.table, event.shown)
            event = replace(event, before=tracked.schema)
            self.tables.note(
                tracked, event, Decision.STOP, changes=(Change.UNKNOWN,), reason=error.message, number=number
            )
            raise error
        decision = Decision.SNAPSHOT if are_others else Decision.RECORD
        changes: tuple[Change, ...] = ()
        stop = None
        if sets_default(event):
            changes = (Change.CHANGE_DEFAULT,)
            stop = stopped_at_default(tracked.table, self.policies(tracked.table))
        if stop is not None:
            decision = Decision.STOP
        if are_others or event.statement is not None:
            reason = stop.message if stop else _READ_AGAIN if are_others else None
            self.tables.note(tracked, event, decision, changes=changes, reason=reason, number=number)
        if stop is not None:
            raise stop
        return decision

    def note_unexplained(self, tracked: TrackedTable, change: CatalogChange) -> None:
        """The catalogue shows that the table may have other rows than the log tells of: a snapshot in place follows."""
        is_other = change is CatalogChange.OBJECT
        operation = DDLOperation.CREATE_TABLE if is_other else DDLOperation.ALTER_TABLE
        event = DDLEvent(operation=operation, table=tracked.table)
        reason = f"{_READ_AGAIN} In the catalogue, {UNEXPLAINED[change]}."
        self.tables.note(tracked, event, Decision.SNAPSHOT, changes=(), reason=reason)

    def note_replaced(self, tracked: TrackedTable, event: DDLEvent, number: int) -> None:
        """The log shows that another table took the name, or that rows came or went which it does not name: the same follows."""
        self.tables.note(tracked, event, Decision.SNAPSHOT, changes=(), reason=_READ_AGAIN, number=number)

    def contradicted(self, tracked: TrackedTable, schema: TableSchema | None) -> SchemaConflictError:
        """The log has rows of another shape, and no statement says how it came; return why the table stops."""
        error = columns_changed(tracked.schema, schema)
        self.note_unknown(tracked, error, after=schema)
        return error

    def note_unknown(self, tracked: TrackedTable, error: TableError, *, after: TableSchema | None = None) -> None:
        """Nobody knows what became of the table."""
        event = DDLEvent(
            operation=DDLOperation.ALTER_TABLE,
            table=tracked.table,
            before=tracked.schema if table_life.has_begun(tracked.record) else None,
            schema=after,
        )
        self.tables.note(tracked, event, Decision.STOP, changes=(Change.UNKNOWN,), reason=error.message)

    def _compared(
        self, tracked: TrackedTable, found: TableDescription, *, is_accepted: bool = False, is_other: bool = False
    ) -> Altered:
        """What lies between the table and what the catalogue shows; the numbers of another table's columns are its own."""
        return decide(
            bare(tracked.schema) if is_other else _as_found(tracked, found),
            found.schema,
            self.policies(tracked.table),
            before=None,
            fill=found.fill,
            ignored=tracked.record.ignored,
            can_widen=self.widens,
            is_accepted=is_accepted,
        )

    def _told(self, tracked: TrackedTable, found: TableDescription) -> DDLEvent:
        before = _as_found(tracked, found)
        return DDLEvent(operation=DDLOperation.ALTER_TABLE, table=tracked.table, before=before, schema=found.schema)

    def _follow(self, tracked: TrackedTable, altered: Altered, told: DDLEvent, number: int | None) -> Decision:
        """Do what was decided, unless the table is to be rebuilt or stops."""
        reason = altered.error.message if altered.error is not None else altered.reason
        if reason is None and altered.decision is Decision.SNAPSHOT:
            reason = _READ_AGAIN
        # As the source has it, with the columns that the target keeps.
        before = None if told.before is None else replace(told.before, kept=tracked.schema.kept)
        noted = replace(told, before=before, schema=altered.tracked)
        self.tables.note(tracked, noted, altered.decision, changes=altered.changes, reason=reason, number=number)
        if altered.error is not None:
            raise altered.error
        if altered.decision is not Decision.REBUILD:
            self.tables.alter(tracked, altered, told, number)
        return altered.decision

    def _read_again(self, tracked: TrackedTable) -> None:
        if table_life.is_reading(tracked.record):
            # What was read, and is not written yet, has the old columns.
            self.snapshots.begin(tracked)


def _as_found(tracked: TrackedTable, found: TableDescription) -> TableSchema:
    """The shape as tracked; where `Constraints` finds what may be NULL, as the catalogue shows that."""
    if not found.identity.constraints or is_other_object(tracked.record, found.identity):
        return tracked.schema
    return with_nullability(tracked.schema, found.schema)


def _with_snapshot(altered: Altered, reason: str) -> Altered:
    """The same, followed by a snapshot in place."""
    if altered.decision in (Decision.STOP, Decision.REBUILD):
        return altered
    # What is ignored stays so.
    decision = altered.decision if altered.decision is Decision.IGNORE else Decision.SNAPSHOT
    return replace(altered, decision=decision, reason=reason)


def is_other_object(record: TableRecord, found: TableIdentity) -> bool:
    """Whether another table has its name, or nothing is known of the one that had it."""
    if record.identity is None:
        return True
    return record.identity.object is not None and record.identity.object != found.object

"""A table's life: its states, and one function per transition. Pure; no other module assigns a state.

Capture's stage (`TableRecord.stage`):

    added ──▶ PENDING ──────── begun, begun_in_place ───────▶ SNAPSHOT ── completed ──▶ STREAMING
              ▲  ▲ └────────────── begun_without_snapshot ──────────────────────────────▲ │
              │  └───────────────────────── suspended ───────────┴────────────────────────┘
              │ suspended
    PENDING, with `is_changed_only` ── begun_comparing ──▶ COMPARING ── completed ──▶ STREAMING;   from COMPARING as from SNAPSHOT
    every state but REMOVED ── failed, journal_lost ──▶ FAILED;   a snapshot that is asked for begins there, too: begun, begun_in_place
    FAILED ── resumed, by itself once the source is found in order ──▶ PENDING
    a STREAMING or COMPARING table reads some of its rows again: rereading, until rows_reread
    every state ── removed ──▶ REMOVED ── returned ──▶ PENDING, as the next incarnation

A table stopped at a change which the operator accepts: `change_accepted`; it stays FAILED until its snapshot begins, or is to begin.

A table whose incarnation has begun gets another schema: `altered`; its identity is accepted: `accepted`. Any table has another name in the
source: `renamed`. None of them changes its state.

Any table that is not captured, and a captured one as it stops: `recreated`: its next snapshot begins a new incarnation.

At a new position in the log: `compared_next`, where the target has the table as a whole; `read_next`, where all rows are to be read.

Apply's state (`AppliedRecord.state`): `nothing_applied` begins, `refused` ──▶ FAILED, `taken_up` ──▶ APPLYING, `begun_in_target` begins
again with the next incarnation; `crashed` counts and changes no state, `nothing_left` ends the count. It does not change capture's stage:
capture continues, and the journal keeps what apply will need. The target's state (`AppliedRecord.copy`): `begun_in_target`,
`snapshot_begun_in_target` ──▶ SNAPSHOT, `snapshot_completed_in_target` ──▶ WHOLE, `found_whole` ──▶ WHOLE or CHANGES.

Both together decide what is shown (`has_failed`) and what the journal must keep (`needs_journal`). A table whose changes the journal had to
drop (`journal_given_up`) needs nothing of it until its next snapshot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from replicator.model.alteration import Change
from replicator.model.events import SnapshotKind
from replicator.model.identity import TableIdentity
from replicator.model.schema import TableId, TableSchema
from replicator.projection.columns import NO_PROJECTION, ProjectedColumn, Projection
from replicator.state.records import (
    AlarmRecord,
    AppliedRecord,
    ApplyState,
    ErrorRecord,
    SnapshotProgress,
    Stage,
    TableRecord,
    TargetCopy,
)
from replicator.state.verification.records import VerificationRecord

if TYPE_CHECKING:
    from replicator.plugins.source import Cursor

JOURNAL_GIVEN_UP: Final = "journal_given_up"
"""Code of the error of a table whose changes the journal had to drop."""

DDL_STOP: Final = "ddl_stop"
"""Code of the error of a table whose policies stop it at a change of its definition."""

VALUE_DOES_NOT_FIT: Final = "value_does_not_fit"
"""Code of the error of a table with a value that is not the same in the type that the target keeps."""

ACCEPTABLE: Final = (DDL_STOP, "ddl_not_understood", "schema_changed", VALUE_DOES_NOT_FIT)
"""Codes of the errors after which a table continues once the operator accepts the change."""

TABLE_MISSING: Final = "table_missing"
"""Code of the error of a table that does not exist in the source."""

TABLE_RENAMED: Final = "table_renamed"
"""Code of the error of a table that has another name in the source, under which it is not replicated."""

RESUMES_MAX: Final = 3
RESUMES_WITHIN: Final = timedelta(days=1)
"""Limit of automatic retries: a table that has continued this often within this time waits for the operator: each costs a snapshot."""

CAPTURED: Final = (Stage.SNAPSHOT, Stage.COMPARING, Stage.STREAMING)
"""Stages in which the table's changes are written."""
UNFINISHED: Final = (Stage.PENDING, Stage.SNAPSHOT, Stage.COMPARING)
"""Stages in which the table's snapshot is not complete, or has not begun."""
REPLICATED: Final = (Stage.PENDING, Stage.SNAPSHOT, Stage.COMPARING, Stage.STREAMING, Stage.FAILED)
"""Stages of all tables that the configuration selects."""


# --- what is asked ------------------------------------------------------------------------------------------------------


def is_captured(record: TableRecord) -> bool:
    """Return whether the table's changes are written."""
    return record.stage in CAPTURED


def is_replicated(record: TableRecord) -> bool:
    """Return whether the configuration selects the table, as far as capture has acted on it."""
    return record.stage is not Stage.REMOVED


def waits(record: TableRecord) -> bool:
    """Return whether the table waits for a snapshot to begin."""
    return record.stage is Stage.PENDING


def has_begun(record: TableRecord) -> bool:
    """Return whether its incarnation has begun: the schema is known, and an event in the journal creates the target table."""
    return record.schema is not None


def is_unfinished(record: TableRecord) -> bool:
    """Return whether its snapshot is not complete, or has not begun."""
    return record.stage in UNFINISHED


def is_complete(record: TableRecord) -> bool:
    """Return whether its snapshot is captured, and its changes are."""
    return record.stage is Stage.STREAMING


def is_comparing(record: TableRecord) -> bool:
    """Return whether a comparison of both sides finds the changes that the target lacks."""
    return record.stage is Stage.COMPARING


def can_reread(record: TableRecord) -> bool:
    """Return whether some of its rows can be read again."""
    return record.stage in _REREADING


def is_outdated(record: TableRecord) -> bool:
    """Return whether its snapshot is complete and must be repeated."""
    return is_complete(record) and record.snapshot is not None and record.snapshot.is_outdated


def has_snapshot_to_apply(record: TableRecord, applied: AppliedRecord | None) -> bool:
    """Return whether the snapshot is captured, and the target does not have the whole of it yet."""
    if not is_complete(record) or record.snapshot is None:
        return False
    if applied is None or applied.incarnation != record.incarnation or applied.copy is TargetCopy.SNAPSHOT:
        return True
    start = record.snapshot.start_number
    return start is not None and applied.last_applied < start


def is_whole_in_target(record: TableRecord, applied: AppliedRecord) -> bool:
    """Return whether the target has the table as it was at some moment, and its changes since then are captured."""
    is_begun = applied.incarnation == record.incarnation and applied.copy is not TargetCopy.SNAPSHOT
    return is_complete(record) and is_begun and not has_snapshot_to_apply(record, applied)


def has_failed(record: TableRecord, applied: AppliedRecord | None = None) -> bool:
    """Return whether capture or apply has given the table up until a snapshot begins."""
    return record.stage is Stage.FAILED or (applied is not None and applied.has_failed)


def is_reading(record: TableRecord) -> bool:
    """Return whether rows of it are being read: its snapshot, or some rows once more."""
    return record.stage is Stage.SNAPSHOT or record.reread is not None


def progress_of(record: TableRecord) -> SnapshotProgress | None:
    """Return the progress of the current reading: of some rows, else of the snapshot."""
    return record.snapshot if record.reread is None else record.reread


def is_dropped(record: TableRecord) -> bool:
    """Return whether the table failed because the source has no table of its name any more."""
    codes = (TABLE_MISSING, TABLE_RENAMED)
    return record.stage is Stage.FAILED and record.error is not None and record.error.code in codes


def waits_for_acceptance(record: TableRecord) -> bool:
    """Return whether the table failed at a change that the operator may accept."""
    return record.stage is Stage.FAILED and record.error is not None and record.error.code in ACCEPTABLE


def resumes_itself(record: TableRecord, now: datetime) -> bool:
    """Return whether the table failed for a cause that may be fixed in the source, and continues by itself then."""
    is_curable = record.stage is Stage.FAILED and record.error is not None and record.error.is_curable
    return is_curable and not has_resumed_often(record, now)


def may_have_finding(record: TableRecord) -> bool:
    """Return whether the source's check may know the reason of the table's failure: not of a policy's, nor of the target's."""
    if record.stage is not Stage.FAILED or record.error is None or record.error.is_curable:
        return False
    return record.error.code not in (TABLE_MISSING, TABLE_RENAMED, DDL_STOP, VALUE_DOES_NOT_FIT, JOURNAL_GIVEN_UP)


def has_resumed_often(record: TableRecord, now: datetime) -> bool:
    """Return whether it has continued by itself as often as it may, and waits for the operator."""
    return sum(now - at < RESUMES_WITHIN for at in record.resumed_at) >= RESUMES_MAX


def needs_journal(record: TableRecord) -> bool:
    """Return whether the journal must keep what apply has not applied: not for a removed table, nor where some of it was dropped."""
    is_given_up = record.stage is Stage.FAILED and record.error is not None and record.error.code == JOURNAL_GIVEN_UP
    return is_replicated(record) and not is_given_up


_REREADING: Final = (Stage.COMPARING, Stage.STREAMING)


# --- capture's transitions ----------------------------------------------------------------------------------------------


def added(table: TableId) -> TableRecord:
    """The configuration selects a table that it never selected before."""
    return TableRecord(table=table, incarnation=1, stage=Stage.PENDING)


def returned(record: TableRecord) -> TableRecord:
    """The configuration selects a table again that it had left out: its old state is obsolete."""
    _assert_in(record, (Stage.REMOVED,))
    return TableRecord(
        table=record.table,
        incarnation=record.incarnation + 1,
        stage=Stage.PENDING,
        projected=record.projected,
        plain_before=record.plain_before,
    )


def removed(record: TableRecord) -> TableRecord:
    """The configuration selects the table no longer."""
    return replace(
        record,
        stage=Stage.REMOVED,
        source_table=None,
        snapshot=None,
        reread=None,
        error=None,
        is_changed_only=False,
        is_accepted=False,
        stopped_at=None,
    )


def suspended(record: TableRecord) -> TableRecord:
    """Nothing of the table is written until its next snapshot begins, which it waits for."""
    _assert_in(record, REPLICATED)
    return replace(record, stage=Stage.PENDING, snapshot=None, reread=None, error=None, stopped_at=None)


def resumed(record: TableRecord, at: datetime) -> TableRecord:
    """The cause of the table's failure is fixed: the table waits for a snapshot, which is scheduled automatically."""
    _assert_in(record, (Stage.FAILED,))
    return replace(suspended(record), resumed_at=(*record.resumed_at, at)[-RESUMES_MAX:])


def compared_next(record: TableRecord) -> TableRecord:
    """Log was lost since the target had the whole table: a comparison finds the missing changes, not a snapshot."""
    _assert_in(record, (Stage.PENDING, Stage.COMPARING, Stage.STREAMING))
    return replace(record, is_changed_only=True)


def read_next(record: TableRecord) -> TableRecord:
    """The next snapshot of the table reads all of its rows, whatever was planned before."""
    return replace(record, is_changed_only=False)


def begun(
    record: TableRecord,
    schema: TableSchema,
    identity: TableIdentity,
    *,
    incarnation: int,
    snapshot: SnapshotProgress,
    projected: tuple[ProjectedColumn, ...] = (),
) -> TableRecord:
    """The snapshot of an incarnation begins, into an empty table."""
    _assert_in(record, REPLICATED)
    return TableRecord(
        table=record.table,
        incarnation=incarnation,
        stage=Stage.SNAPSHOT,
        schema=schema,
        identity=identity,
        projected=projected,
        plain_before=record.plain_before,
        source_table=record.source_table,
        snapshot=snapshot,
        resumed_at=record.resumed_at,
    )


def begun_without_snapshot(
    record: TableRecord,
    schema: TableSchema,
    identity: TableIdentity,
    *,
    incarnation: int,
    projected: tuple[ProjectedColumn, ...] = (),
) -> TableRecord:
    """An incarnation begins of which only changes are wanted."""
    _assert_in(record, REPLICATED)
    return TableRecord(
        table=record.table,
        incarnation=incarnation,
        stage=Stage.STREAMING,
        schema=schema,
        identity=identity,
        projected=projected,
        plain_before=record.plain_before,
        source_table=record.source_table,
        resumed_at=record.resumed_at,
    )


def begun_in_place(
    record: TableRecord, identity: TableIdentity, *, snapshot: SnapshotProgress, number: int
) -> TableRecord:
    """A snapshot of a table that the target holds begins with the event of this number."""
    _assert_in(record, REPLICATED)
    return replace(
        record,
        stage=Stage.SNAPSHOT,
        identity=identity,
        is_altered=False,
        is_changed_only=False,
        is_accepted=False,
        stopped_at=None,
        snapshot=snapshot,
        reread=None,
        first_change=number if record.first_change is None else record.first_change,
        error=None,
    )


def begun_comparing(
    record: TableRecord, identity: TableIdentity, *, snapshot: SnapshotProgress, number: int
) -> TableRecord:
    """The changes of a table that the target holds are written again, after the event of this number. A comparison finds what it lacks."""
    assert record.is_changed_only, f"{record.table} is to be read as a whole"
    return replace(
        begun_in_place(record, identity, snapshot=snapshot, number=number), stage=Stage.COMPARING, is_changed_only=True
    )


def altered(record: TableRecord, schema: TableSchema, projection: Projection = NO_PROJECTION) -> TableRecord:
    """The table has another schema from here on; an event in the journal says so. `projection`: what lies between it and the target's."""
    assert has_begun(record), f"{record.table} has no shape yet"
    return replace(record, schema=schema, ignored=projection.ignored, projected=projection.columns, is_altered=True)


def protected(before: TableRecord, after: TableRecord, number: int) -> TableRecord:
    """Return the record after settings of columns were followed: what was sealed before may have values that they protect from here on.

    Args:
        before: The record before.
        after: The record after.
        number: The next sequence number.
    """
    known = {column.name for column in before.schema.columns} if before.schema is not None else set()
    was, now = before.projection, after.projection
    is_more = any(
        entry.is_protected and was.of(entry.column) != entry for entry in now.columns if entry.column in known
    )
    return replace(after, plain_before=number) if is_more else after


def without_plain(record: TableRecord) -> TableRecord:
    """The journal has no values any more that settings protect."""
    return replace(record, plain_before=None)


def constrained(record: TableRecord, schema: TableSchema, found: TableIdentity) -> TableRecord:
    """Other columns may be NULL from here on, or have other defaults. `schema` has the same columns and types; its rows are the same."""
    assert record.identity is not None, f"nothing was known of {record.table}"
    return replace(record, schema=schema, identity=replace(record.identity, constraints=found.constraints))


def respelled(record: TableRecord, schema: TableSchema) -> TableRecord:
    """The schema is the same, with the source's new spelling of types: `varchar(20)` where it was `varchar(10)`."""
    assert record.schema is not None
    now = {column.name: column.source_type for column in schema.columns}
    columns = tuple(replace(column, source_type=now[column.name]) for column in record.schema.columns)
    return replace(record, schema=replace(record.schema, columns=columns))


def renamed(record: TableRecord, source_table: TableId) -> TableRecord:
    """The source has the table under this name from here on; its stored identity may have changed with it."""
    name = None if source_table == record.table else source_table
    return replace(record, source_table=name, is_altered=record.is_altered or has_begun(record))


def accepted(record: TableRecord, identity: TableIdentity) -> TableRecord:
    """The table is the known one, although its identity in the catalogue is another."""
    return replace(record, identity=identity, is_altered=False)


def completed(record: TableRecord, at: datetime) -> TableRecord:
    """The snapshot is complete; or the table was compared, and is equal on both sides."""
    _assert_in(record, (Stage.SNAPSHOT, Stage.COMPARING))
    assert record.snapshot is not None, "a snapshot is running"
    snapshot = replace(record.snapshot, completed_at=at)
    return replace(record, stage=Stage.STREAMING, is_changed_only=False, snapshot=snapshot)


def rereading(record: TableRecord, keys: Iterable[Cursor], at: datetime) -> TableRecord:
    """The rows of these keys are read again, in addition to those that are being read again already."""
    _assert_in(record, _REREADING)
    known = record.reread or SnapshotProgress(kind=SnapshotKind.KEYS, ranges=(), started_at=at)
    return replace(record, reread=replace(known, keys=tuple(dict.fromkeys((*known.keys, *keys)))))


def advanced(record: TableRecord, progress: SnapshotProgress) -> TableRecord:
    """The reading of the table advanced, or begins again."""
    return replace(record, snapshot=progress) if record.reread is None else replace(record, reread=progress)


def rows_reread(record: TableRecord) -> TableRecord:
    """All rows to read again are in the journal. Of a table that is being compared, they count as rows of its snapshot."""
    _assert_in(record, _REREADING)
    snapshot = record.snapshot
    if is_comparing(record) and snapshot is not None and record.reread is not None:
        snapshot = replace(snapshot, rows=snapshot.rows + record.reread.rows)
    return replace(record, snapshot=snapshot, reread=None)


def failed(record: TableRecord, error: ErrorRecord, *, stopped_at: Change | None = None) -> TableRecord:
    """Nothing of the table is written until a snapshot is requested. A second failure replaces the first."""
    _assert_in(record, REPLICATED)
    return replace(
        record,
        stage=Stage.FAILED,
        reread=None,
        error=error,
        is_changed_only=False,
        is_accepted=False,
        stopped_at=stopped_at,
    )


def change_accepted(record: TableRecord) -> TableRecord:
    """The operator has accepted the change at which the table stopped: its next snapshot follows it.

    A type that the target was to keep is no longer ignored in the next incarnation.
    """
    assert waits_for_acceptance(record), f"{record.table} waits for nothing"
    assert record.error is not None, "it says why"
    is_recreated = record.is_recreated or record.error.code == VALUE_DOES_NOT_FIT
    return replace(record, is_accepted=True, is_recreated=is_recreated)


def journal_lost(record: TableRecord, message: str, *, action: str, at: datetime) -> TableRecord:
    """The journal had to drop changes of the table that are not applied: only a new snapshot restores them."""
    return failed(record, ErrorRecord(code=JOURNAL_GIVEN_UP, message=message, action=action, at=at))


def recreated(record: TableRecord) -> TableRecord:
    """The next snapshot of the table is to begin a new incarnation."""
    _assert_in(record, REPLICATED)
    return replace(record, is_recreated=True)


# --- apply's transitions ------------------------------------------------------------------------------------------------


def nothing_applied(table: TableId) -> AppliedRecord:
    """Return the record of a table of which apply has recorded nothing: its first incarnation has not begun in the target."""
    return AppliedRecord(table=table, incarnation=0)


def refused(applied: AppliedRecord, error: ErrorRecord) -> AppliedRecord:
    """The target cannot take the table's changes; the target keeps what it has."""
    return replace(applied, state=ApplyState.FAILED, error=error)


def taken_up(applied: AppliedRecord) -> AppliedRecord:
    """Something was applied, or a snapshot replaces what could not be."""
    return replace(applied, state=ApplyState.APPLYING, error=None, crashes=0)


def crashed(applied: AppliedRecord, *, was_alone: bool) -> AppliedRecord:
    """The target's engine ended while it worked on the table: alone, or together with others that may be the cause."""
    return replace(applied, crashes=max(1, applied.crashes + was_alone))


def nothing_left(applied: AppliedRecord) -> AppliedRecord:
    """The journal has nothing more that can be applied to the table: what crashed the engine is applied, or given up."""
    return replace(applied, crashes=0)


def snapshot_begun_in_target(applied: AppliedRecord, alarms: tuple[AlarmRecord, ...]) -> AppliedRecord:
    """A snapshot has begun in the target, or may have: until it is complete, the target is at no moment of the source."""
    return replace(applied, copy=TargetCopy.SNAPSHOT, whole_before=applied.whole, alarms=alarms)


def snapshot_completed_in_target(applied: AppliedRecord, alarms: tuple[AlarmRecord, ...]) -> AppliedRecord:
    """The target has the whole snapshot."""
    return replace(applied, copy=TargetCopy.WHOLE, alarms=alarms)


def found_whole(applied: AppliedRecord, *, has_snapshot: bool) -> AppliedRecord:
    """Everything that the journal has of the table is applied, with the end of its snapshot. Where none was wanted: only changes."""
    return replace(applied, copy=TargetCopy.WHOLE if has_snapshot else TargetCopy.CHANGES)


def begun_in_target(applied: AppliedRecord, incarnation: int, alarms: tuple[AlarmRecord, ...]) -> AppliedRecord:
    """Apply continues with a new incarnation: nothing of it is applied, and it replaces what the target has."""
    return AppliedRecord(table=applied.table, incarnation=incarnation, whole_before=applied.whole, alarms=alarms)


def _assert_in(record: TableRecord, stages: Collection[Stage]) -> None:
    assert record.stage in stages, f"{record.table} is {record.stage.value}"


def found_different(record: TableRecord, verified: VerificationRecord | None) -> bool:
    """Return whether the last comparison of its incarnation found rows that differ."""
    return verified is not None and verified.incarnation == record.incarnation and verified.alarm is not None

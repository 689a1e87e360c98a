"""Judges alterations: what the log or the catalogue says of a table's shape comes in, an outcome goes out. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from replicator.capture.definitions.catalogue import (
    UNEXPLAINED,
    CatalogChange,
    columns_changed,
    dropped_by_policy,
    judge,
    missing,
    not_understood,
    same_columns,
    same_shape,
    truncated,
    truncated_by_policy,
    unexplained,
)
from replicator.capture.definitions.constraints import (
    compare_constraints,
    with_known_nullability,
    with_nullability,
)
from replicator.capture.definitions.outcome import Failure, JournalEntry, Note, TableOutcome, failed
from replicator.capture.definitions.policies import (
    Altered,
    Effect,
    bare,
    decide,
    effect_of,
    sets_default,
    stopped_at_default,
)
from replicator.capture.settings import CaptureSettings
from replicator.model.alteration import Change
from replicator.model.errors import TableError
from replicator.model.events import DDLEvent, DDLOperation, no_fill
from replicator.model.identity import TableIdentity, Truncated
from replicator.model.schema import TableSchema
from replicator.plugins.source import TableDescription
from replicator.projection.rules import PROJECTION_ERRORS
from replicator.state import table_life
from replicator.state.records import Decision, Stage, TableRecord

_READ_AGAIN: Final = "Only a new snapshot in place tells what the rows have."


# --- what the log says ------------------------------------------------------------------------------------------------


def altered_by_log(record: TableRecord, event: DDLEvent, number: int, settings: CaptureSettings) -> TableOutcome:
    """Judge an ALTER_TABLE of the log."""
    schema = _schema_of(record)
    effect = effect_of(schema, event)
    if effect is Effect.COLUMNS:
        return _other_columns(record, event, number, settings)
    noted = _same_columns(record, event, number, settings, are_other_rows=effect is Effect.ROWS)
    if effect is Effect.OTHER and noted.continues:
        shaped = reshaped(record, event.schema)
        return replace(shaped, notes=(*noted.notes, *shaped.notes))
    return noted


def truncated_by_log(record: TableRecord, event: DDLEvent, number: int, settings: CaptureSettings) -> TableOutcome:
    """Judge a TRUNCATE of the log. Where the policy allows it, the journal says so."""
    policy = settings.ddl(record.table).truncate_table
    return TableOutcome(
        notes=(Note(event=event, decision=Decision(policy), changes=(Change.TRUNCATE_TABLE,), number=number),),
        entries=(JournalEntry(event, number),) if policy == "apply" else (),
        record=replace(record, identity=truncated(record.identity, event.transaction_id)),
        is_suspicious=True,
        failure=Failure(truncated_by_policy(record.table), Change.TRUNCATE_TABLE) if policy == "stop" else None,
    )


def replaced(record: TableRecord, event: DDLEvent, number: int) -> TableOutcome:
    """Judge a CREATE_TABLE of the log: another table took the name, or rows came or went which the log does not name."""
    return TableOutcome(
        notes=(Note(event=event, decision=Decision.SNAPSHOT, reason=_READ_AGAIN, number=number),),
        record=replace(record, identity=None),
        needs_snapshot=True,
    )


def reshaped(record: TableRecord, schema: TableSchema | None) -> TableOutcome:
    """Judge rows of another shape whose origin the log does not tell: another key is looked up, other columns fail the table."""
    known = _schema_of(record)
    if schema is not None and same_shape(known, schema):
        respelled = table_life.respelled(record, schema)
        return TableOutcome(record=respelled if respelled != record else None)
    if schema is None or not same_columns(known, schema):
        return unknown(record, columns_changed(known, schema), after=schema)
    return TableOutcome(needs_snapshot=True)


def unknown(record: TableRecord, error: TableError, *, after: TableSchema | None = None) -> TableOutcome:
    """Stop a table of which nobody knows what became of it."""
    event = DDLEvent(
        operation=DDLOperation.ALTER_TABLE,
        table=record.table,
        before=_schema_of(record) if table_life.has_begun(record) else None,
        schema=after,
    )
    note = Note(event=event, decision=Decision.STOP, changes=(Change.UNKNOWN,), reason=error.message)
    return failed(error, note)


def _other_columns(record: TableRecord, event: DDLEvent, number: int, settings: CaptureSettings) -> TableOutcome:
    """The table has other columns, or another key, from this number on."""
    schema = _schema_of(record)
    event = with_known_nullability(event, schema)
    assert event.schema is not None, "it says which"
    altered = decide(
        schema,
        event.schema,
        settings.ddl(record.table),
        before=event.before,
        fill=event.fill,
        projection=record.projection,
        rules=settings.columns(record.table),
        can_widen=settings.widens,
    )
    if altered.has_other_key_type and record.stage is Stage.SNAPSHOT and altered.schema.key:
        # How far it was read is known by the old key.
        altered = replace(altered, fill=None, decision=Decision.SNAPSHOT)
    outcome = _carried_over(record, altered, replace(event, before=event.before or schema), number)
    if outcome.continues and not outcome.needs_snapshot:
        # It may have another identity, which chunks and comparisons are to know soon.
        return replace(outcome, reads_again=True, is_suspicious=True)
    return outcome


def _same_columns(
    record: TableRecord, event: DDLEvent, number: int, settings: CaptureSettings, *, are_other_rows: bool
) -> TableOutcome:
    """The columns are as they were; the rows may have other values, or be others. What the source did not understand stops the table."""
    if event.shown is not None:
        error = not_understood(record.table, event.shown)
        told = replace(event, before=_schema_of(record))
        unread = (Change.UNKNOWN,)
        return failed(
            error, Note(event=told, decision=Decision.STOP, changes=unread, reason=error.message, number=number)
        )
    sets = sets_default(event)
    stop = stopped_at_default(record.table, settings.ddl(record.table)) if sets else None
    changes = (Change.CHANGE_DEFAULT,) if sets else ()
    if stop is not None:
        decision, reason = Decision.STOP, stop.message
    elif are_other_rows:
        decision, reason = Decision.SNAPSHOT, _READ_AGAIN
    else:
        decision, reason = Decision.RECORD, None
    is_told = are_other_rows or event.statement is not None
    note = Note(event=event, decision=decision, changes=changes, reason=reason, number=number)
    notes = (note,) if is_told else ()
    if stop is not None:
        return failed(stop, *notes)
    return TableOutcome(notes=notes, needs_snapshot=decision is Decision.SNAPSHOT)


# --- what the catalogue says ------------------------------------------------------------------------------------------


def altered_in_catalogue(record: TableRecord, found: TableDescription, settings: CaptureSettings) -> TableOutcome:
    """Judge other columns, or another key, that the catalogue shows and the log does not explain."""
    if is_other_object(record, found.identity):
        # Its snapshot sees what becomes of its shape.
        return TableOutcome(needs_snapshot=True, reopens=True)
    identity = record.identity
    altered = _compared(record, found, settings)
    change = judge(altered.tracked, identity, found, truncates_since=0)
    is_truncated = identity is not None and isinstance(identity.storage, Truncated)
    # What the catalogue says of rows, it says of those in a storage that is known.
    is_storage_known = change in (CatalogChange.NONE, CatalogChange.EXPLAINED) and not is_truncated
    if not is_storage_known:
        altered = _with_snapshot(altered, _READ_AGAIN)
    outcome = _carried_over(record, altered, _told(record, found), None).reopening()
    if not outcome.continues or outcome.needs_snapshot:
        return outcome
    if not is_storage_known:
        return replace(outcome, needs_snapshot=True)
    altered_record = table_life.accepted(outcome.record or record, found.identity)
    return replace(outcome, record=altered_record, accepts=found.identity, reads_again=True)


def before_snapshot(record: TableRecord, found: TableDescription, settings: CaptureSettings) -> TableOutcome:
    """Judge the shape in which a snapshot that begins finds its table: it follows in place, is recreated (`recreates`), or stops."""
    if same_shape(_schema_of(record), found.schema):
        return replace(other_settings(record, settings), needs_snapshot=False)
    is_other = is_other_object(record, found.identity)
    altered = _compared(record, found, settings, is_accepted=record.is_accepted, is_other=is_other)
    is_unprotected = altered.error is not None and altered.error.code in PROJECTION_ERRORS
    if not is_unprotected and (is_asked_for_as_it_is(record, found) or (is_other and altered.error is not None)):
        # Somebody asked for the table as it is now; or it is another table than the one whose policies these are.
        altered = replace(altered, decision=Decision.REBUILD, error=None)
    altered = _with_snapshot(altered, "Found when a new snapshot of the table began.")
    return replace(_carried_over(record, altered, _told(record, found), None), needs_snapshot=False)


def other_settings(record: TableRecord, settings: CaptureSettings) -> TableOutcome:
    """Judge a table whose columns have other settings than those that it goes by."""
    schema = _schema_of(record)
    altered = decide(
        schema,
        schema,
        settings.ddl(record.table),
        before=schema,
        fill=no_fill(),
        projection=record.projection,
        rules=settings.columns(record.table),
        can_widen=settings.widens,
    )
    if altered.error is None and altered.projection == record.projection and altered.decision is Decision.RECORD:
        return TableOutcome()
    told = DDLEvent(operation=DDLOperation.ALTER_TABLE, table=record.table, before=schema, schema=schema)
    return _carried_over(record, altered, told, None)


def is_asked_for_as_it_is(record: TableRecord, found: TableDescription) -> bool:
    """Return whether the table failed, and a snapshot that somebody asked for takes it as it is now, which is not as it was."""
    has_failed = table_life.has_failed(record) and table_life.has_begun(record) and not record.is_accepted
    return has_failed and not same_shape(_schema_of(record), found.schema)


def unexplained_in_catalogue(record: TableRecord, change: CatalogChange, settings: CaptureSettings) -> TableOutcome:
    """Judge a sign in the catalogue that the table may have other rows than the log tells of.

    Raises:
        FatalError: The policy for that is `stop`.
    """
    if settings.unexplained_change == "stop" and not record.is_altered:
        raise unexplained(record.table, change)
    is_other = change is CatalogChange.OBJECT
    operation = DDLOperation.CREATE_TABLE if is_other else DDLOperation.ALTER_TABLE
    event = DDLEvent(operation=operation, table=record.table)
    reason = f"{_READ_AGAIN} In the catalogue, {UNEXPLAINED[change]}."
    return TableOutcome(notes=(Note(event=event, decision=Decision.SNAPSHOT, reason=reason),), needs_snapshot=True)


def explained_in_catalogue(record: TableRecord, found: TableDescription) -> TableOutcome:
    """Accept what the catalogue shows: the log explains it."""
    return TableOutcome(record=table_life.accepted(record, found.identity), accepts=found.identity)


def other_constraints(
    record: TableRecord, found: TableDescription, settings: CaptureSettings, *, is_recreated: bool
) -> TableOutcome:
    """Judge columns that may be NULL, or have defaults, otherwise than before. Nothing of it changes rows, so no snapshot is needed.

    What is found is durable with the entry of the history that tells it, so a restart finds it no second time.

    Args:
        record: Of the table.
        found: Its description in the catalogue.
        settings: Of capture.
        is_recreated: The next snapshot begins a new incarnation, which takes the table as it is now.
    """
    if record.identity is None or not table_life.has_begun(record):
        return TableOutcome()
    other = compare_constraints(_schema_of(record), record.identity, found)
    if other is None:
        return TableOutcome()
    # A snapshot after a failure, and a new incarnation, take it as it is now.
    is_accepted = record.is_accepted or table_life.has_failed(record) or record.is_recreated or is_recreated
    altered = decide(
        other.before,
        other.after,
        settings.ddl(record.table),
        before=other.before,
        fill=no_fill(),
        projection=record.projection,
        rules=settings.columns(record.table),
        can_widen=settings.widens,
        is_accepted=is_accepted,
        other_defaults=other.defaults,
    )
    event = DDLEvent(operation=DDLOperation.ALTER_TABLE, table=record.table, before=other.before, schema=other.after)
    reason = altered.error.message if altered.error else None
    if reason is None and other.defaults:
        reason = f"The source {', '.join(other.defaults)}."
    note = Note(event=event, decision=altered.decision, changes=altered.changes, reason=reason)
    if altered.error is not None:
        return failed(altered.error, note)
    return TableOutcome(
        notes=(note,),
        entries=(JournalEntry(altered.event(event)),) if other.before != other.after else (),
        record=table_life.constrained(record, altered.tracked, found.identity),
        is_outdated=True,
    )


# --- both -------------------------------------------------------------------------------------------------------------


def dropped(record: TableRecord, event: DDLEvent | None, number: int | None, settings: CaptureSettings) -> TableOutcome:
    """Judge a table that does not exist any more. Where the policy, or somebody, says so, the journal says it, too."""
    is_accepted = record.is_accepted and record.stopped_at is Change.DROP_TABLE
    policy = "apply" if is_accepted else settings.ddl(record.table).drop_table
    event = event or DDLEvent(operation=DDLOperation.DROP_TABLE, table=record.table)
    notes: tuple[Note, ...] = ()
    if table_life.is_captured(record) or is_accepted:
        reason = "An operator accepted it." if is_accepted else None
        changes = (Change.DROP_TABLE,)
        notes = (Note(event=event, decision=Decision(policy), changes=changes, reason=reason, number=number),)
        if policy == "apply":
            outcome = failed(missing(record.table), *notes)
            return replace(outcome, entries=(JournalEntry(event, number),), recreates=True)
    if policy == "stop" and table_life.has_begun(record):
        return failed(dropped_by_policy(record.table), *notes, stopped_at=Change.DROP_TABLE)
    return failed(missing(record.table), *notes)


def is_other_object(record: TableRecord, found: TableIdentity) -> bool:
    """Return whether another table has the name, or nothing is known of the one that had it."""
    if record.identity is None:
        return True
    return record.identity.object is not None and record.identity.object != found.object


def _schema_of(record: TableRecord) -> TableSchema:
    assert record.schema is not None, "the snapshot has not begun"
    return record.schema


def _compared(
    record: TableRecord,
    found: TableDescription,
    settings: CaptureSettings,
    *,
    is_accepted: bool = False,
    is_other: bool = False,
) -> Altered:
    """Decide what lies between the table and what the catalogue shows; the numbers of another table's columns are its own."""
    return decide(
        bare(_schema_of(record)) if is_other else _as_found(record, found),
        found.schema,
        settings.ddl(record.table),
        before=None,
        fill=found.fill,
        projection=record.projection,
        rules=settings.columns(record.table),
        can_widen=settings.widens,
        is_accepted=is_accepted,
    )


def _told(record: TableRecord, found: TableDescription) -> DDLEvent:
    before = _as_found(record, found)
    return DDLEvent(operation=DDLOperation.ALTER_TABLE, table=record.table, before=before, schema=found.schema)


def _carried_over(record: TableRecord, altered: Altered, told: DDLEvent, number: int | None) -> TableOutcome:
    """Make an outcome of what was decided. A table that is rebuilt, or stops, keeps its shape until then."""
    reason = altered.error.message if altered.error is not None else altered.reason
    if reason is None and altered.decision is Decision.SNAPSHOT:
        reason = _READ_AGAIN
    # As the source has it, with the columns that the target keeps.
    before = None if told.before is None else replace(told.before, kept=_schema_of(record).kept)
    note = Note(
        event=replace(told, before=before, schema=altered.tracked),
        decision=altered.decision,
        changes=altered.changes,
        reason=reason,
        number=number,
    )
    if altered.error is not None:
        return failed(altered.error, note)
    if altered.decision is Decision.REBUILD:
        return TableOutcome(notes=(note,), recreates=True, needs_snapshot=True)
    return TableOutcome(
        notes=(note,),
        entries=(JournalEntry(altered.event(told), number),),
        record=table_life.altered(record, altered.tracked, altered.projection),
        needs_snapshot=altered.decision is Decision.SNAPSHOT,
    )


def _as_found(record: TableRecord, found: TableDescription) -> TableSchema:
    """Return the shape as tracked; where the source tells what may be NULL, as the catalogue shows that."""
    schema = _schema_of(record)
    if not found.identity.constraints or is_other_object(record, found.identity):
        return schema
    return with_nullability(schema, found.schema)


def _with_snapshot(altered: Altered, reason: str) -> Altered:
    """Return the same alteration, altered_record by a snapshot in place."""
    if altered.decision in (Decision.STOP, Decision.REBUILD):
        return altered
    # What is ignored stays so.
    decision = altered.decision if altered.decision is Decision.IGNORE else Decision.SNAPSHOT
    return replace(altered, decision=decision, reason=reason)

"""Builds the status document of a replicator, from the state store alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Final, TypeVar

from replicator.model.documents import ordering
from replicator.model.documents.status import (
    VERSION,
    AlarmStatus,
    DesiredState,
    EngineStatus,
    ErrorStatus,
    FindingStatus,
    JournalStatus,
    MergedStatus,
    OpenTransactionStatus,
    ProjectionState,
    ReplicatorState,
    ReplicatorStatus,
    RetryStatus,
    SnapshotStatus,
    SourceStatus,
    TableState,
    TableStatus,
    UpkeepStatus,
    WaitingStatus,
    WorkerStatus,
)
from replicator.model.errors import with_names
from replicator.model.events import SnapshotKind
from replicator.model.merged import Merged
from replicator.model.processes.reports import (
    AppliedTable,
    ApplyReport,
    CapturedTable,
    CaptureReport,
    OpenTransactionReport,
    Report,
    RunningStep,
    UpkeepReport,
    WaitingReport,
)
from replicator.model.schema import TableId
from replicator.service.configuring.stored import find
from replicator.service.status import alerts as alert_status
from replicator.service.status import refused as refused_status
from replicator.service.status import source as source_status
from replicator.service.status import verified as verified_status
from replicator.service.status.objectives import meets_objective
from replicator.state import table_life
from replicator.state.next_steps import next_step
from replicator.state.records import (
    AlarmRecord,
    AppliedRecord,
    Desired,
    ErrorRecord,
    ReplicatorRecord,
    Reported,
    Reports,
    SnapshotProgress,
    Stage,
    TableOutline,
    TableRecord,
)
from replicator.state.store import StateStore
from replicator.state.verification.records import VerificationRecord

R = TypeVar("R", bound=Report)

_STALE: Final = timedelta(seconds=15)
_SLIP: Final = timedelta(seconds=60)
"""Time by which a commit may lie ahead of our estimate of the source's clock, which is measured now and then."""
_DESIRED: Final = {
    Desired.RUNNING: DesiredState.RUNNING,
    Desired.PAUSED: DesiredState.PAUSED,
    Desired.DELETED: DesiredState.DELETED,
}
_STATES: Final = {
    Stage.PENDING: TableState.PENDING,
    Stage.SNAPSHOT: TableState.SNAPSHOT,
    Stage.COMPARING: TableState.SNAPSHOT,
    Stage.STREAMING: TableState.STREAMING,
    Stage.FAILED: TableState.FAILED,
}


def statuses(store: StateStore, name: str | None = None, *, worst_first: bool = False) -> Sequence[ReplicatorStatus]:
    """Return the state of the replicator of that name, or of all; with `worst_first` the ones in trouble come first, tables included.

    Raises:
        ConfigError: `unknown_replicator`.
    """
    found = [status(store, record) for record in ([find(store, name)] if name else store.replicators())]
    if not worst_first:
        return sorted(found, key=lambda one: ordering.natural(one.name))
    found = [one.model_copy(update={"tables": tuple(sorted(one.tables, key=ordering.worst_first))}) for one in found]
    return sorted(found, key=ordering.worst_replicator_first)


def status(store: StateStore, record: ReplicatorRecord) -> ReplicatorStatus:
    """Return the state of one replicator."""
    now = store.now()
    # Before the tables' records: what is true of a table that is captured is not asked of one that is by now captured no more.
    reached = store.reached.of(record.name)
    reports = store.reports(record.name)
    capture, apply = _fresh(reports.capture, now), _fresh(reports.apply, now)
    retry = _retry(reports, now)
    # Also of a capture that no longer runs: the log position where it stopped stays, and clocks differ as they did.
    last_report = reports.capture.report if reports.capture else CaptureReport()
    clock = now + timedelta(seconds=last_report.clock_ahead_s or 0.0)
    applied = store.applied(record.name)
    verified = store.verifications.of(record.name)
    objective = _objectives(record.config)
    outlines = [one for one in store.outlines(record.name) if table_life.is_replicated(one.record)]
    found = (
        _table(
            record.name, outline, applied.get(outline.record.table), verified.get(outline.record.table), capture, apply, clock, now,
            reached=reached.get(str(outline.record.table)), objective=objective(outline.record.table),
            pending=_pending(store, record.name, outline.record, applied.get(outline.record.table)),
        )
        for outline in outlines
    )  # fmt: skip
    tables = tuple(sorted(found, key=ordering.by_name))
    lease = store.leases.current(record.name)
    ages = [table.freshness_s for table in tables if table.freshness_s is not None]
    segment = store.journal.last_segment(record.name)
    sealed_to = segment.source_time if segment else None
    time_left_s = _time_left(sealed_to, last_report, clock)
    return ReplicatorStatus(
        version=VERSION,
        name=record.name,
        uuid=record.uuid,
        desired=DesiredState.APPLY_PAUSED if record.apply_paused else _DESIRED[record.desired],
        state=_state(record, is_held=lease is not None, is_captured=capture is not None, is_retried=retry is not None),
        worker=WorkerStatus(holder=lease.holder, epoch=lease.epoch) if lease else None,
        freshness_s=max(ages) if ages and len(ages) == len(tables) else None,
        source=SourceStatus(
            retained_bytes=None if last_report.retained_bytes is None else max(0, last_report.retained_bytes),
            position=capture.report.position if capture else None,
            waiting_for=capture.report.waiting_for if capture else (),
            oldest_open=_oldest_open(last_report.oldest_open, clock),
            findings=_findings(capture.report) if capture else (),
            time_left_s=time_left_s,
            lag_s=None if sealed_to is None else _seconds(clock - sealed_to),
            is_alive=source_status.is_alive(capture, now),
            guarantee=last_report.guarantee,
            headroom=source_status.headroom(reports.capture, time_left_s, now),
        ),
        journal=JournalStatus(
            bytes=store.journal.total_bytes(record.name), last_sequence_num=segment.last if segment else -1
        ),
        retry=retry,
        error=_error(record.error, record.name),
        refused=refused_status.of_replicator(store, record, reports, lease),
        verify=verified_status.of_tables(tables, verified_status.every(record.config)),
        alerts=alert_status.of_replicator(store, record),
        tables=tables,
    )


def _pending(store: StateStore, name: str, table: TableRecord, applied: AppliedRecord | None) -> int:
    """Return rows of its snapshot that are captured and not in the target yet. A table whose copy is whole has none, and is not queried."""
    if table.snapshot is None or (
        table_life.is_complete(table) and not table_life.has_snapshot_to_apply(table, applied)
    ):
        return 0
    is_begun = applied is not None and applied.incarnation == table.incarnation
    reached = applied.last_applied if applied is not None and is_begun else -1
    start = table.snapshot.start_number
    after = reached if start is None else max(reached, start - 1)
    return store.journal.snapshot_rows_above(name, table.table, table.incarnation, after)


def _findings(report: CaptureReport) -> tuple[FindingStatus, ...]:
    return tuple(FindingStatus(**finding.model_dump()) for finding in report.findings)


def _oldest_open(oldest: OpenTransactionReport | None, clock: datetime) -> OpenTransactionStatus | None:
    return None if oldest is None else OpenTransactionStatus(name=oldest.name, age_s=_seconds(clock - oldest.since))


def _time_left(sealed_to: datetime | None, report: CaptureReport, clock: datetime) -> float | None:
    """Return the least time that the source still keeps the log after our position: a file stays `keeps_log_s` after its last change."""
    if report.keeps_log_s is None or sealed_to is None:
        return None
    reached = min(sealed_to, clock, *([report.oldest_open.since] if report.oldest_open else ()))
    return _seconds(timedelta(seconds=report.keeps_log_s) - (clock - reached))


def _seconds(duration: timedelta) -> float:
    return round(max(0.0, duration.total_seconds()), 1)


def _table(
    replicator: str,
    outline: TableOutline,
    applied: AppliedRecord | None,
    verified: VerificationRecord | None,
    capture: Reported[CaptureReport] | None,
    apply: Reported[ApplyReport] | None,
    clock: datetime,
    now: datetime,
    *,
    reached: datetime | None,
    objective: timedelta | None,
    pending: int,
) -> TableStatus:
    table = outline.record
    name = str(table.table)
    of_capture = capture.report.tables.get(name, CapturedTable()) if capture else CapturedTable()
    of_apply = apply.report.tables.get(name, AppliedTable()) if apply else AppliedTable()
    has_failed = table_life.has_failed(table, applied)
    error = table.error or (applied.error if applied else None)
    source_time = _source_time(table, applied, reached, clock)
    freshness = None if source_time is None else _seconds(clock - source_time)
    waiting = _waiting(of_apply.waiting, apply) or _waiting(of_capture.waiting, capture)
    snapshot = _snapshot(table.snapshot, of_capture.snapshot_step, pending)
    return TableStatus(
        table=name,
        source_table=None if table.source_table is None else str(table.source_table),
        state=_table_state(table, applied, has_failed=has_failed),
        incarnation=table.incarnation,
        snapshot=snapshot,
        next_snapshot=of_capture.step,
        changes_applied=applied.rows if applied else 0,
        snapshot_rows_applied=applied.snapshot_rows if applied else 0,
        last_applied=applied.last_applied if applied else -1,
        freshness_s=freshness,
        freshness_objective_s=None if objective is None else objective.total_seconds(),
        is_objective_met=meets_objective(
            objective, freshness, has_failed=has_failed, was_whole=applied is not None and applied.whole > 0
        ),
        last_batch=of_apply.last_batch,
        engine=None if of_apply.engine is None else EngineStatus(**of_apply.engine.model_dump()),
        waiting=None if has_failed else waiting,
        upkeep=_upkeep(of_apply.upkeep, apply, replicator, name),
        error=_error(error, replicator, name) if has_failed else None,
        resumes_by_itself=table_life.resumes_itself(table, now),
        merged=MergedStatus(**asdict(applied.merged if applied else Merged())),
        projection=_projection_state(table),
        kept_columns=outline.kept_columns,
        alarms=tuple(
            AlarmStatus(
                code=alarm.code,
                message=alarm.message,
                action=with_names(_next_step(alarm, outline, applied, verified), replicator, name),
                at=alarm.at,
                count=alarm.count,
            )
            for alarm in _alarms(table, applied, verified)
        ),
        verify=verified_status.of_table(table, verified, now),
    )


def _projection_state(table: TableRecord) -> ProjectionState | None:
    """Return whether values that settings protect may still be where they were."""
    if not table.projected and table.plain_before is None:
        return None
    return ProjectionState.ACTIVE if table.plain_before is None else ProjectionState.PENDING


def _next_step(
    alarm: AlarmRecord, outline: TableOutline, applied: AppliedRecord | None, verified: VerificationRecord | None
) -> str:
    is_of_it = verified is not None and verified.incarnation == outline.record.incarnation
    return next_step(
        alarm.code, applied=applied, verified=verified if is_of_it else None, kept_columns=outline.kept_columns
    )


def _alarms(
    table: TableRecord, applied: AppliedRecord | None, verified: VerificationRecord | None
) -> tuple[AlarmRecord, ...]:
    """Return the alarms of apply and verification, by code."""
    alarms = applied.alarms if applied else ()
    if verified is not None and verified.alarm is not None and table_life.found_different(table, verified):
        alarms = (*alarms, verified.alarm)
    return tuple(sorted(alarms, key=lambda alarm: alarm.code))


def _table_state(table: TableRecord, applied: AppliedRecord | None, *, has_failed: bool) -> TableState:
    if table_life.is_dropped(table):
        return TableState.DROPPED
    if has_failed:
        return TableState.FAILED
    return TableState.SNAPSHOT if table_life.has_snapshot_to_apply(table, applied) else _STATES[table.stage]


def _snapshot(progress: SnapshotProgress | None, step: RunningStep | None, pending: int) -> SnapshotStatus | None:
    if progress is None:
        return None
    return SnapshotStatus(
        rows=progress.rows,
        rows_in_target=max(0, progress.rows - pending),
        estimated_rows=progress.estimated_rows,
        is_complete=progress.is_complete,
        is_in_place=progress.kind in (SnapshotKind.IN_PLACE, SnapshotKind.CHANGED),
        is_changed_only=progress.kind is SnapshotKind.CHANGED,
        step=step,
    )


def _waiting(
    waiting: WaitingReport | None, reported: Reported[CaptureReport] | Reported[ApplyReport] | None
) -> WaitingStatus | None:
    """Return a process's report of a wait, with the moment until which the table waits."""
    if waiting is None or reported is None:
        return None
    until = reported.at + timedelta(seconds=waiting.retry_in_s)
    return WaitingStatus(
        retry_in_s=max(0.0, waiting.retry_in_s),
        until=until.replace(microsecond=0),
        code=waiting.code,
        message=waiting.message,
    )


def _upkeep(
    upkeep: UpkeepReport | None, reported: Reported[ApplyReport] | None, replicator: str, table: str
) -> UpkeepStatus | None:
    """Return apply's report of failed upkeep, with moments instead of seconds."""
    if upkeep is None or reported is None:
        return None
    at, until = (reported.at + timedelta(seconds=s) for s in (-upkeep.failed_s, upkeep.retry_in_s))
    action = upkeep.action and with_names(upkeep.action, replicator, table)
    error = ErrorStatus(code=upkeep.code, message=upkeep.message, action=action, at=at)
    return UpkeepStatus(failures=upkeep.failures, last_error=error, retry_at=until.replace(microsecond=0))


def _source_time(
    table: TableRecord, applied: AppliedRecord | None, reached: datetime | None, clock: datetime
) -> datetime | None:
    """Return the time up to which the target has everything committed; None while it matches no moment of the source, or if unknown.

    Unknown, too, if the source's clock, or ours, was set back so far that nothing can be said.
    """
    if applied is None or reached is None or not table_life.is_whole_in_target(table, applied):
        return None
    return reached if reached <= clock + _SLIP else None


def _state(record: ReplicatorRecord, *, is_held: bool, is_captured: bool, is_retried: bool) -> ReplicatorState:
    if record.desired is Desired.DELETED:
        return ReplicatorState.DELETING
    if record.error:
        return ReplicatorState.FAILED
    if record.desired is Desired.PAUSED:
        return ReplicatorState.PAUSED
    if not is_held:
        return ReplicatorState.NO_WORKER
    if is_retried:
        return ReplicatorState.RETRYING
    return ReplicatorState.RUNNING if is_captured else ReplicatorState.STARTING


def _retry(reports: Reports, now: datetime) -> RetryStatus | None:
    """Return the retry that the supervisor waits for, until the worker that failed has reported again."""
    said = reports.supervisor
    if said is None or now - said.at > _STALE + timedelta(seconds=said.report.retry_in_s):
        return None
    worker = reports.capture if said.report.role == "capture" else reports.apply
    if worker is not None and worker.report.stamp > said.report.stamp:
        return None
    return RetryStatus(
        role=said.report.role,
        retry_in_s=said.report.retry_in_s,
        code=said.report.code,
        message=said.report.message,
    )


def _fresh(reported: Reported[R] | None, now: datetime) -> Reported[R] | None:
    return None if reported is None or now - reported.at > _STALE else reported


def _error(error: ErrorRecord | None, replicator: str, table: str | None = None) -> ErrorStatus | None:
    if error is None:
        return None
    action = error.action and with_names(error.action, replicator, table)
    return ErrorStatus(code=error.code, message=error.message, action=action, at=error.at)


def _objectives(config: str) -> Callable[[TableId], timedelta | None]:
    """Return a function for the objectives of tables, with references resolved by this process's environment."""
    if "freshness" not in config:
        return lambda _: None
    # Loaded only if there may be an objective: the configuration's models take their time.
    from replicator.service.configuring.stored_settings import stored_settings

    return stored_settings(config).config.freshness_for

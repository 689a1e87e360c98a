"""Documents of the status, for tests of what is shown of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from replicator.model.documents.status import (
    AlarmStatus,
    DesiredState,
    JournalStatus,
    MergedStatus,
    ReplicatorState,
    ReplicatorStatus,
    SnapshotStatus,
    SourceStatus,
    TableState,
    TableStatus,
    WaitingStatus,
)
from replicator.service.status import verified as verified_status
from replicator_testing.defaults import NEVER_VERIFIED

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def snapshot_status(rows: int, in_target: int, *, estimated: int | None = None, **changes: Any) -> SnapshotStatus:
    """A first snapshot that is under way."""
    running = SnapshotStatus(
        rows=rows,
        rows_in_target=in_target,
        estimated_rows=estimated,
        is_complete=False,
        is_in_place=False,
        is_changed_only=False,
        step=None,
    )
    return running.model_copy(update=changes)


def table_status(table: str, *, alarmed: bool = False, waits: bool = False, **changes: Any) -> TableStatus:
    """A table that streams."""
    alarm = AlarmStatus(code="target_diverged", message="Rows were missing.", action="Verify it.", at=NOW, count=1)
    waiting = WaitingStatus(retry_in_s=60.0, until=NOW, code="quota_exceeded", message="The quota is used up.")
    streaming = TableStatus(
        table=table, source_table=None, state=TableState.STREAMING, incarnation=1, snapshot=None, next_snapshot=None,
        changes_applied=0, snapshot_rows_applied=0, last_applied=-1, freshness_s=None, freshness_objective_s=None,
        is_objective_met=None, last_batch=None, engine=None,
        waiting=waiting if waits else None, upkeep=None, error=None, projection=None, kept_columns=(), alarms=(alarm,) if alarmed else (),
        resumes_by_itself=False,
        merged=MergedStatus(matched=0, inserted=0, deleted=0, not_found=0), verify=NEVER_VERIFIED,
    )  # fmt: skip
    return streaming.model_copy(update=changes)


def replicator_status(name: str, *, tables: tuple[TableStatus, ...] = (), **changes: Any) -> ReplicatorStatus:
    """A replicator that runs."""
    running = ReplicatorStatus(
        version=2, name=name, uuid=name, desired=DesiredState.RUNNING, state=ReplicatorState.RUNNING, worker=None, freshness_s=None,
        source=SourceStatus(
            retained_bytes=None, position=None, waiting_for=(), oldest_open=None, time_left_s=None, lag_s=None, is_alive=None,
            guarantee=None, headroom=None, findings=(),
        ),
        journal=JournalStatus(bytes=0, last_sequence_num=-1), retry=None, error=None,
        verify=verified_status.of_tables(tables, None), alerts=None, refused=(), tables=tables,
    )  # fmt: skip
    return running.model_copy(update=changes)

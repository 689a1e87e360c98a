"""What the code of commit 632f1a9 wrote into `format_4.sql` is read as it was meant."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from replicator.model.events import DDLEvent, DDLOperation, SnapshotEvent, SnapshotKind, SnapshotPhase
from replicator.model.identity import TableIdentity
from replicator.model.merged import Merged
from replicator.model.offset import Offset
from replicator.model.reports import (
    AppliedTable,
    ApplyReport,
    CapturedTable,
    CaptureReport,
    CaptureStage,
    OpenTransactionReport,
    RetryReport,
    SnapshotStep,
    UpkeepReport,
    WaitingReport,
)
from replicator.model.schema import Column, TableId, TableSchema
from replicator.model.status import DesiredState, ReplicatorState, TableState
from replicator.service.status import status
from replicator.state.records import (
    AlarmRecord,
    AppliedRecord,
    ApplyState,
    Desired,
    ErrorRecord,
    EventEntry,
    KeyRange,
    Lease,
    Preparation,
    ReplicatorRecord,
    Reported,
    Reports,
    RequestKind,
    Run,
    Segment,
    SegmentFile,
    SnapshotProgress,
    Stage,
    TableRecord,
    TargetCopy,
)
from replicator.state.store import StateStore

NOW: Final = datetime(2026, 11, 22, 14, tzinfo=UTC)
LATER: Final = datetime(2026, 11, 22, 14, 0, 7, 250_000, tzinfo=UTC)
ERROR: Final = ErrorRecord(code="schema_changed", message="a « message »", action="an action", at=NOW)
FINDING: Final = ErrorRecord(code="select_missing", message="a finding", action=None, at=LATER, is_finding=True)

MISSING: Final = ErrorRecord(
    code="table_missing", message="the table does not exist in the source.", action="Exclude it.", at=NOW
)


def _schema(name: str) -> TableSchema:
    columns = (
        Column(name="id", type=pa.int64(), source_type="bigint", nullable=False),
        Column(name="price", type=pa.decimal128(20, 4), source_type="numeric(20,4)"),
        Column(name="at", type=pa.timestamp("us", tz="UTC"), source_type="timestamptz"),
        Column(name="Ünïcode", type=pa.string(), source_type="text"),
    )
    return TableSchema(table=TableId("public", name), columns=columns, key=("id",))


SCHEMA: Final = _schema("streaming")
IN_PLACE: Final = SnapshotProgress(
    kind=SnapshotKind.IN_PLACE,
    start_number=3,
    ranges=(KeyRange(after=("1", "ä"), upto=("9", ""), is_done=False), KeyRange(after=None, upto=None, is_done=True)),
    keys=(("4",), ("5", "x")),
    rows=10,
    estimated_rows=9,
    started_at=NOW,
    completed_at=None,
    is_outdated=True,
)
WHOLE: Final = SnapshotProgress(rows=12, started_at=NOW, completed_at=LATER)
TABLES: Final = (
    TableRecord(
        table=TableId("public", "copying"),
        incarnation=1,
        stage=Stage.SNAPSHOT,
        schema=_schema("copying"),
        identity=TableIdentity(object="7", parts={"columns": ["id"]}),
        snapshot=SnapshotProgress(rows=7),
    ),
    TableRecord(
        table=TableId("public", "dropped"),
        incarnation=2,
        stage=Stage.FAILED,
        schema=_schema("dropped"),
        is_recreated=True,
        error=ErrorRecord(
            code="table_missing", message="the table does not exist in the source.", action="Exclude it.", at=NOW
        ),
    ),
    TableRecord(table=TableId("public", "failed"), incarnation=1, stage=Stage.FAILED, error=FINDING),
    TableRecord(
        table=TableId("public", "in.place"),
        incarnation=3,
        stage=Stage.SNAPSHOT,
        schema=_schema("in.place"),
        identity=TableIdentity(object="8", parts={"parts": {"a": None}}),
        snapshot=IN_PLACE,
        first_change=4,
    ),
    TableRecord(table=TableId("public", "pending"), incarnation=1, stage=Stage.PENDING),
    TableRecord(table=TableId("public", "removed"), incarnation=1, stage=Stage.REMOVED),
    TableRecord(
        table=TableId("public", "streaming"),
        incarnation=1,
        stage=Stage.STREAMING,
        schema=SCHEMA,
        identity=TableIdentity(object="9"),
        snapshot=WHOLE,
        first_change=0,
    ),
)
ALARM: Final = AlarmRecord(
    code="target_diverged", message="Rows were missing.", action="Take a snapshot.", at=LATER, count=2, is_covered=True
)
APPLIED: Final = (
    AppliedRecord(table=TableId("public", "copying"), incarnation=1, claimed_by=None, copy=TargetCopy.UNKNOWN),
    AppliedRecord(
        table=TableId("public", "failed"),
        incarnation=1,
        claimed_by=1,
        state=ApplyState.FAILED,
        error=ERROR,
        copy=TargetCopy.CHANGES,
    ),
    AppliedRecord(
        table=TableId("public", "streaming"),
        incarnation=1,
        claimed_by=1,
        last_applied=9,
        rows=10,
        copy=TargetCopy.WHOLE,
        merged=Merged(matched=1, inserted=2, deleted=3, not_found=4),
        audited_to="v2",
        alarms=(ALARM,),
    ),
)
_FILE: Final = SegmentFile(
    table=SCHEMA.table,
    incarnation=1,
    schema_fingerprint=SCHEMA.fingerprint,
    uri="file:///j/a.parquet",
    rows=4,
    bytes=100,
    sha256="ab" * 32,
    first=0,
    last=3,
    snapshot_rows=2,
    has_absent=True,
    has_key_changes=False,
    seal=1,
)
_EVENTS: Final[Sequence[DDLEvent | SnapshotEvent]] = (
    DDLEvent(operation=DDLOperation.CREATE_TABLE, table=SCHEMA.table, schema=SCHEMA),
    SnapshotEvent(phase=SnapshotPhase.STARTED, table=SCHEMA.table),
    SnapshotEvent(
        phase=SnapshotPhase.STARTED, table=TableId("public", "in.place"), kind=SnapshotKind.IN_PLACE, start_number=3
    ),
    SnapshotEvent(phase=SnapshotPhase.COMPLETED, table=SCHEMA.table),
    DDLEvent(operation=DDLOperation.TRUNCATE_TABLE, table=SCHEMA.table, source_timestamp=LATER, transaction_id="77"),
)
SEGMENT: Final = Segment(
    id=1,
    first=0,
    last=9,
    epoch=1,
    offset=Offset.of({"lsn": 1, "gtid": "ä"}),
    source_time=LATER,
    ring=("7@3", "8"),
    files=(_FILE,),
    events=tuple(
        EventEntry(sequence_num=5 + i, table=event.table, incarnation=1, event=event) for i, event in enumerate(_EVENTS)
    ),
    sealed_at=NOW,
)
EMPTY: Final = Segment(
    id=2, first=10, last=9, epoch=1, offset=None, source_time=None, ring=(), files=(), events=(), sealed_at=NOW
)
REPORTS: Final = Reports(
    supervisor=Reported(
        at=NOW,
        report=RetryReport(
            role="apply", retry_in_s=1.5, code="spark_lost", message="Spark's JVM has died.", stamp=(1, 98.5)
        ),
    ),
    capture=Reported(
        at=NOW,
        report=CaptureReport(
            stage=CaptureStage.CAPTURING,
            position='{"gtid":"ä","lsn":1}',
            retained_bytes=4096,
            clock_ahead_s=0.5,
            keeps_log_s=3600.0,
            oldest_open=OpenTransactionReport(name="XA a", since=NOW - timedelta(seconds=60)),
            source_time=NOW,
            waiting_for=("transaction 7",),
            tables={
                "public.copying": CapturedTable(
                    waiting=WaitingReport(retry_in_s=3.5, code="lock_timeout", message="it is locked")
                ),
                "public.pending": CapturedTable(step=SnapshotStep.SETTLING),
                "public.streaming": CapturedTable(),
            },
            stamp=(1, 99.5),
        ),
    ),
    apply=Reported(
        at=NOW,
        report=ApplyReport(
            tables={
                "public.streaming": AppliedTable(
                    last_batch={"way": "merge", "rows": 4, "pause_s": None},
                    waiting=WaitingReport(retry_in_s=600.0, code=None, message=None),
                    upkeep=UpkeepReport(
                        failures=2, code="internal_error", message="no", action=None, failed_s=60.0, retry_in_s=120.0
                    ),
                )
            },
            stamp=(1, 100.5),
        ),
    ),
)


@pytest.fixture
def store(url: str, state_file: Path) -> Iterator[StateStore]:
    state_file.parent.mkdir()
    with closing(sqlite3.connect(state_file)) as connection:
        connection.executescript((Path(__file__).parent / "format_4.sql").read_text(encoding="utf-8"))
    store = StateStore(url, clock=lambda: NOW)
    yield store
    store.close()


def test_records_are_read(store: StateStore) -> None:
    assert store.tables("shop") == list(TABLES)
    assert store.applied("shop") == {record.table: record for record in APPLIED}
    assert store.segments("shop", 0, 9) == [SEGMENT, EMPTY]
    assert store.schema("shop", SCHEMA.table, SCHEMA.fingerprint) == SCHEMA
    assert [(request.kind, request.payload) for request in store.requests("shop")] == [
        (RequestKind.RECREATE, {"tables": ["public.failed"]}),
        (RequestKind.DELETE, {"drop_target": True, "force": False}),
    ]


def test_the_replicator_and_its_run_are_read(store: StateStore) -> None:
    uuid = "00000000-0000-0000-0000-000000000007"
    assert store.replicator("shop") == ReplicatorRecord(
        name="shop", uuid=uuid, desired=Desired.RUNNING, config="name: shop",
        identity={"source": {"system_id": "1"}, "target": {"path": "/lake"}}, preparation=Preparation.READY, start_offset=SEGMENT.offset,
        journal_uri="file:///j", apply_paused=True, error=ERROR, created_at=NOW,
    )  # fmt: skip
    run = Run(
        id=1, replicator="shop", epoch=1, holder="host:1:boot", started_at=NOW, ended_at=NOW, outcome="failed", error=ERROR
    )  # fmt: skip
    assert store.runs("shop") == [run]
    assert store.lease("shop") == Lease(
        replicator="shop", epoch=1, holder="host:1:boot", expires_at=NOW + timedelta(seconds=10)
    )


def test_reports_are_read_and_what_is_no_longer_reported_is_left_out(store: StateStore) -> None:
    assert store.reports("shop") == REPORTS


def test_the_status_is_made_of_them(store: StateStore) -> None:
    record = store.replicator("shop")
    assert record is not None
    found = status(store, record)
    assert {table.table: table.state for table in found.tables} == {
        "public.copying": TableState.SNAPSHOT,
        "public.dropped": TableState.DROPPED,
        "public.failed": TableState.FAILED,
        "public.in\\.place": TableState.SNAPSHOT,
        "public.pending": TableState.PENDING,
        "public.streaming": TableState.STREAMING,
    }
    assert (found.desired, found.state) == (DesiredState.APPLY_PAUSED, ReplicatorState.FAILED)

"""Records go in and come out; the index keeps its order."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from replicator.model.documents.verdict import Result
from replicator.model.errors import ConfigError, CorruptStreamError, FatalError, FencedError
from replicator.model.events import DDLEvent, DDLOperation, SnapshotEvent, SnapshotKind, SnapshotPhase
from replicator.model.identity import TableIdentity, Truncated
from replicator.model.merged import Merged
from replicator.model.offset import Offset
from replicator.model.processes.reports import (
    AppliedTable,
    ApplyReport,
    CapturedTable,
    CaptureReport,
    CaptureStage,
    OpenTransactionReport,
    RetryReport,
    RunningStep,
    SnapshotStep,
    UpkeepReport,
    WaitingReport,
)
from replicator.model.schema import Column, TableId, TableSchema
from replicator.state import holder_id
from replicator.state.records import (
    AlarmRecord,
    AppliedRecord,
    ApplyState,
    Decision,
    Desired,
    ErrorRecord,
    EventEntry,
    HistoryEntry,
    Preparation,
    Reported,
    Reports,
    RequestKind,
    Segment,
    SegmentFile,
    SnapshotProgress,
    SnapshotRange,
    Stage,
    TableRecord,
    TargetCopy,
)
from replicator.state.runs import RUNS_KEPT
from replicator.state.store import StateStore
from replicator.state.verification.records import VerificationOutcome
from replicator_testbed.present import present

if TYPE_CHECKING:
    from tests.unit.state.conftest import FakeClock

NOW = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)
A, B = TableId("public", "a"), TableId("public", 'odd."name\\')
SCHEMA = TableSchema(
    table=B,
    columns=(
        Column(name="id", type=pa.int64(), source_type="bigint", nullable=False),
        Column(name="v", type=pa.string(), source_type="text"),
    ),
    key=("id",),
)
ERROR = ErrorRecord(code="key_missing", message="no key", action="ALTER TABLE …", at=NOW)


def file(table: TableId, first: int, last: int, *, incarnation: int = 1, **values: Any) -> SegmentFile:
    defaults: dict[str, Any] = {
        "schema_fingerprint": SCHEMA.fingerprint, "uri": f"file:///j/{table.name}-{first}.parquet", "rows": last - first + 1, "bytes": 100,
        "sha256": "ab" * 32, "snapshot_rows": 0, "has_absent": False, "has_key_changes": True, "seal": 0,
    }  # fmt: skip
    return SegmentFile(table=table, incarnation=incarnation, first=first, last=last, **(defaults | values))


def entry(
    table: TableId, number: int, *, incarnation: int = 1, event: DDLEvent | SnapshotEvent | None = None
) -> EventEntry:
    event = event or SnapshotEvent(phase=SnapshotPhase.STARTED, table=table)
    return EventEntry(sequence_num=number, table=table, incarnation=incarnation, event=event)


def segment(
    id_: int,
    first: int,
    last: int,
    *,
    files: Iterable[SegmentFile] = (),
    events: Iterable[EventEntry] = (),
    epoch: int = 1,
    **values: Any,
) -> Segment:
    defaults: dict[str, Any] = {"offset": Offset.of({"lsn": last}), "source_time": NOW, "ring": (), "sealed_at": NOW}
    return Segment(
        id=id_, first=first, last=last, epoch=epoch, files=tuple(files), events=tuple(events), **(defaults | values)
    )


@pytest.fixture
def sealed(store: StateStore) -> StateStore:
    store.create_replicator("r", "config", "/j")
    lease = store.leases.acquire("r", holder_id(), 60)
    assert lease is not None
    assert lease.epoch == 1
    return store


def test_replicators_round_trip(store: StateStore, clock: FakeClock) -> None:
    made = store.create_replicator("shop", "name: shop\n", "file:///j")
    assert store.replicator("shop") == made
    assert (made.desired, made.preparation, made.identity, made.created_at) == (
        Desired.RUNNING,
        Preparation.NONE,
        {},
        clock.time,
    )
    assert made.uuid != store.create_replicator("other", "", "/k").uuid
    assert [r.name for r in store.replicators()] == ["other", "shop"]
    lease = store.leases.acquire("shop", holder_id(), 60)
    assert lease is not None
    store.set_desired("shop", Desired.PAUSED, apply_paused=True)
    store.set_config("shop", "név: bolt\n")
    store.set_identity("shop", {"source": {"system": "7"}, "target": "é"})
    store.set_preparation(lease, Preparation.INTENT)
    store.set_preparation(lease, Preparation.READY, Offset.of({"lsn": 5}))
    store.set_preparation(lease, Preparation.READY)
    store.set_error("shop", ERROR)
    found = store.replicator("shop")
    assert found == replace(
        made, desired=Desired.PAUSED, apply_paused=True, config="név: bolt\n", identity={"source": {"system": "7"}, "target": "é"},
        preparation=Preparation.READY, start_offset=Offset.of({"lsn": 5}), error=ERROR,
    )  # fmt: skip
    store.set_error("shop", None)
    assert present(store.replicator("shop")).error is None


def test_a_name_is_taken_once(store: StateStore) -> None:
    made = store.create_replicator("a", "one", "/j")
    with pytest.raises(ConfigError) as caught:
        store.create_replicator("a", "two", "/k")
    assert caught.value.code == "exists"
    assert store.replicator("a") == made


def test_unknown_names_are_refused(store: StateStore) -> None:
    assert store.replicator("x") is None
    for write in (
        lambda: store.set_desired("x", Desired.PAUSED),
        lambda: store.set_config("x", ""),
        lambda: store.set_error("x", None),
        lambda: store.requests.add("x", RequestKind.SNAPSHOT, {}),
        lambda: store.put_report("x", ApplyReport()),
    ):
        with pytest.raises(ConfigError) as caught:
            write()
        assert caught.value.code == "unknown_replicator"
    with pytest.raises(FencedError):
        store.leases.check_epoch("x", 0)


def test_segments_round_trip(sealed: StateStore) -> None:
    ddl = DDLEvent(
        operation=DDLOperation.CREATE_TABLE,
        table=B,
        schema=SCHEMA,
        statement="CREATE …",
        transaction_id="7",
        source_timestamp=NOW,
    )
    one = segment(
        1, 0, 9, files=[file(A, 0, 3, seal=1, has_absent=True, snapshot_rows=2), file(B, 5, 8, seal=1, incarnation=3)],
        events=[entry(B, 4, incarnation=3, event=ddl)], ring=("741", "742"), epoch=1,
    )  # fmt: skip
    two = segment(2, 10, 9, offset=None, source_time=None)
    sealed.seal("r", 1, [one, two], schemas=[SCHEMA])
    assert sealed.journal.segments("r", 0, 10) == [one, two]
    assert sealed.journal.segments("r", 1, 10) == [two]
    assert sealed.journal.segments("r", 0, 1) == [one]
    assert sealed.journal.last_segment("r") == two
    assert sealed.journal.schema("r", B, SCHEMA.fingerprint) == SCHEMA
    assert sealed.journal.uris("r") == {f.uri for f in one.files}
    assert sealed.journal.total_bytes("r") == 200
    assert sealed.journal.feed_tables("r") == {A: 3, B: 8}
    assert (sealed.journal.feed_end("r", A), sealed.journal.feed_end("r", B)) == (3, 8)


def test_an_empty_index_has_nothing(sealed: StateStore) -> None:
    assert sealed.journal.last_segment("r") is None
    assert sealed.journal.segments("r", 0, 10) == []
    assert sealed.journal.feed("r", A, -1, 10) == []
    assert sealed.journal.feed_tables("r") == {}
    assert sealed.journal.feed_end("r", A) is None
    assert sealed.journal.dropped("r", A) is None
    assert sealed.journal.total_bytes("r") == 0


def test_times_come_back_in_utc(sealed: StateStore) -> None:
    local = NOW.astimezone(timezone(timedelta(hours=5, minutes=30)))
    sealed.seal("r", 1, [segment(1, 0, -1, source_time=local)])
    found = present(sealed.journal.last_segment("r")).source_time
    assert found == NOW
    assert found.tzinfo is UTC


def test_a_missing_schema_is_corruption(sealed: StateStore) -> None:
    with pytest.raises(CorruptStreamError) as caught:
        sealed.journal.schema("r", A, "0" * 16)
    assert caught.value.code == "corrupt_state"


@pytest.mark.parametrize(
    "bad",
    [
        segment(2, 6, 7),  # a gap of numbers
        segment(2, 4, 7),  # an overlap
        segment(3, 5, 7),  # a gap of ids
        segment(1, 5, 7),  # the same id again
        segment(2, 5, 3),  # a negative range
    ],
)
def test_what_does_not_follow_is_refused_whole(sealed: StateStore, bad: Segment) -> None:
    good = segment(1, 0, 4, files=[file(A, 0, 4)])
    sealed.seal("r", 1, [good])
    record = TableRecord(table=A, incarnation=1, stage=Stage.STREAMING)
    shifted = replace(bad, id=bad.id + 1, first=bad.first + 1, last=bad.last + 1)
    for segments in ([bad], [segment(2, 5, 5, events=[entry(A, 5)]), shifted]):
        with pytest.raises(FatalError) as caught:
            sealed.seal("r", 1, segments, schemas=[SCHEMA], tables=[record])
        assert caught.value.code == "index_conflict"
    assert sealed.journal.segments("r", 0, 10) == [good]
    assert sealed.tables("r") == []


def test_a_journal_begins_with_segment_one_and_number_zero(sealed: StateStore) -> None:
    for bad in (segment(1, 1, 2), segment(2, 0, 2)):
        with pytest.raises(FatalError):
            sealed.seal("r", 1, [bad])


def test_empty_segments_do_not_pile_up(sealed: StateStore) -> None:
    sealed.seal("r", 1, [segment(1, 0, 4, files=[file(A, 0, 4)])])
    for id_ in range(2, 6):
        sealed.seal("r", 1, [segment(id_, 5, 4, offset=Offset.of({"lsn": id_}))])
    sealed.seal("r", 1, [segment(6, 5, 9)])  # numbers that were not used
    assert [s.id for s in sealed.journal.segments("r", 0, 10)] == [1, 6]
    sealed.seal("r", 1, [segment(7, 10, 10, events=[entry(A, 10)]), segment(8, 11, 10)])
    assert [s.id for s in sealed.journal.segments("r", 0, 10)] == [1, 7, 8]
    assert present(sealed.journal.last_segment("r")).last == 10


def test_a_seal_closes_requests_and_keeps_records_in_one_go(sealed: StateStore) -> None:
    ids = [sealed.requests.add("r", RequestKind.SNAPSHOT, {"tables": [str(A)]}) for _ in range(3)]
    assert [(r.id, r.kind, r.payload) for r in sealed.requests.open("r")] == [
        (i, "snapshot", {"tables": ["public.a"]}) for i in ids
    ]
    record = TableRecord(table=A, incarnation=1, stage=Stage.SNAPSHOT)
    sealed.seal("r", 1, [segment(1, 0, -1)], tables=[record], done_requests=ids[:2])
    assert [r.id for r in sealed.requests.open("r")] == ids[2:]
    assert sealed.tables("r") == [record]
    assert sealed.requests.add("r", RequestKind.SNAPSHOT, {}) not in ids


def test_the_seal_that_closes_a_restart_notes_when_it_was(sealed: StateStore, clock: FakeClock) -> None:
    for id_, (payload, moment) in enumerate([({"changed_only": True}, None), ({}, clock.time)], start=1):
        request = sealed.requests.add("r", RequestKind.RESTART, payload)
        sealed.seal("r", 1, [segment(id_, 0, -1)], done_requests=[request])
        assert (present(sealed.replicator("r")).restarted_at, sealed.requests.open("r")) == (moment, [])


def noted(table: TableId, number: int, **values: Any) -> HistoryEntry:
    defaults: dict[str, Any] = {
        "incarnation": 1,
        "operation": DDLOperation.TRUNCATE_TABLE,
        "changes": ("truncate_table",),
    }
    defaults |= {"decision": Decision.APPLY, "at": NOW}
    return HistoryEntry(table=table, sequence_num=number, **(defaults | values))


def test_the_history_is_sealed_with_the_journal_and_outlives_its_segments(sealed: StateStore) -> None:
    altered = noted(
        B, 3, operation=DDLOperation.ALTER_TABLE, changes=("add_column", "drop_column"), decision=Decision.SNAPSHOT, reason="nobody knows",
        statement="ALTER TABLE …", before=SCHEMA, after=replace(SCHEMA, kept=SCHEMA.columns[1:]), incarnation=2, new_table=A,
    )  # fmt: skip
    first, second = (Offset.of({"lsn": lsn}) for lsn in (1, 2))
    sealed.seal("r", 1, [segment(1, 0, 4, offset=first)], history=[altered, noted(A, 4)])
    sealed.seal("r", 1, [segment(2, 5, 6, offset=second)], history=[noted(A, 6)])
    sealed.drop_segments("r", 1, [1])
    assert sealed.histories.latest("r", 10) == [
        replace(altered, offset=first),
        replace(noted(A, 4), offset=first),
        replace(noted(A, 6), offset=second),
    ]
    assert [e.sequence_num for e in sealed.histories.latest("r", 2)] == [4, 6]
    assert [e.sequence_num for e in sealed.histories.latest("r", 1, table=A)] == [6]
    assert [bool(sealed.histories.latest("r", 1, table=table)) for table in (A, B, TableId("public", "c"))] == [
        True,
        True,
        False,
    ]


def test_what_is_not_sealed_is_not_in_the_history(sealed: StateStore) -> None:
    with pytest.raises(FatalError):
        sealed.seal("r", 1, [segment(7, 0, 4)], history=[noted(A, 4)])
    with pytest.raises(FencedError):
        sealed.seal("r", 2, [segment(1, 0, 4)], history=[noted(A, 4)])
    assert sealed.histories.latest("r", 10) == []


def test_the_history_of_a_replicator_is_bounded(sealed: StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicator.state.histories.HISTORY_KEPT", 3)
    for id_ in range(1, 5):
        entries = [noted(A, 2 * id_), noted(B, 2 * id_ + 1)]
        sealed.seal("r", 1, [segment(id_, 10 * id_ - 10, 10 * id_ - 1)], history=entries)
    assert [e.sequence_num for e in sealed.histories.latest("r", 10)] == [7, 8, 9]


def test_table_records_round_trip(sealed: StateStore) -> None:
    full = TableRecord(
        table=B, incarnation=2, stage=Stage.FAILED, schema=SCHEMA, first_change=77, error=ERROR,
        identity=TableIdentity(object="5", storage=Truncated(by="7"), parts={"columns": ["id"]}, altered="9"),
        snapshot=SnapshotProgress(
            kind=SnapshotKind.IN_PLACE, start_number=5,
            ranges=(SnapshotRange(after=("1", "a"), upto=("9", "z")), SnapshotRange(is_done=True)),
            keys=(("3", "ű"),), rows=9, estimated_rows=100, started_at=NOW, completed_at=NOW,
        ),
    )  # fmt: skip
    plain = TableRecord(table=A, incarnation=1, stage=Stage.PENDING, is_altered=True)
    sealed.put_tables("r", 1, [full, plain])
    found = {record.table: record for record in sealed.tables("r")}
    assert found == {A: plain, B: full}
    identity = found[B].identity
    assert identity is not None
    assert identity.altered == "9", "which a comparison leaves out"
    changed = replace(plain, stage=Stage.STREAMING, snapshot=SnapshotProgress())
    sealed.put_tables("r", 1, [changed])
    assert {r.table: r for r in sealed.tables("r")} == {A: changed, B: full}
    assert (sealed.table("r", A), sealed.table("r", B)) == (changed, full)
    assert sealed.table("r", TableId("public", "unknown")) is None
    assert sealed.table("s", A) is None


def test_applied_records_round_trip(sealed: StateStore) -> None:
    alarm = AlarmRecord(code="target_diverged", message="m", action="a", at=NOW, count=2, is_covered=True)
    full = AppliedRecord(
        table=B,
        incarnation=2,
        last_applied=9,
        rows=4,
        state=ApplyState.FAILED,
        error=ERROR,
        copy=TargetCopy.SNAPSHOT,
        whole_before=1,
        merged=Merged(matched=1, inserted=2, deleted=3, not_found=4),
        audited_to="v7",
        alarms=(alarm,),
    )
    sealed.put_applied("r", 1, [full, AppliedRecord(table=A, incarnation=1)])
    sealed.put_applied("r", 1, [AppliedRecord(table=A, incarnation=1, last_applied=3)])
    assert sealed.applied("r") == {A: AppliedRecord(table=A, incarnation=1, last_applied=3), B: full}


def test_reports_are_replaced_and_stamped(sealed: StateStore, clock: FakeClock) -> None:
    waiting = WaitingReport(retry_in_s=1.5, code="lock_timeout", message="« locked »")
    upkeep = UpkeepReport(failures=2, code="c", message="m", action=None, failed_s=1.0, retry_in_s=2.0)
    capture = CaptureReport(
        stage=CaptureStage.CAPTURING,
        waiting_for=("a", "b"),
        position="{}",
        source_time=clock.time,
        retained_bytes=1 << 40,
        clock_ahead_s=-0.5,
        keeps_log_s=3600.0,
        stamp=(3, 99.5),
        oldest_open=OpenTransactionReport(name="XA a", since=clock.time),
        tables={
            "public.a": CapturedTable(step=SnapshotStep.MARKING, snapshot_step=RunningStep.READING, waiting=waiting)
        },
    )
    table = AppliedTable(last_batch={"way": "merge", "rows": [1, None]}, waiting=waiting, upkeep=upkeep)
    apply = ApplyReport(tables={"public.a": table}, stamp=(3, 100.5))
    retry = RetryReport(role="apply", retry_in_s=1.5, code="c", message="m", stamp=(3, 98.5))
    sealed.put_report("r", CaptureReport(retained_bytes=1))
    sealed.put_report("r", retry)
    clock.advance(5)
    sealed.put_report("r", capture)
    sealed.put_report("r", apply)
    found = sealed.reports("r")
    assert found == Reports(
        supervisor=Reported(at=clock.time - timedelta(seconds=5), report=retry),
        capture=Reported(at=clock.time, report=capture),
        apply=Reported(at=clock.time, report=apply),
    )


def test_a_report_that_is_none_is_a_damaged_store(sealed: StateStore) -> None:
    sealed.put_report("r", ApplyReport())
    with sealed._database.write() as connection:
        connection.exec_driver_sql("""UPDATE statuses SET document = '{"tables": 7}'""")
    with pytest.raises(CorruptStreamError) as caught:
        sealed.reports("r")
    assert caught.value.code == "corrupt_state"


def test_runs_are_kept_newest_first_and_bounded(
    sealed: StateStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.state.runs.RUNS_KEPT", 3)
    assert RUNS_KEPT > 3
    lease = sealed.leases.current("r")
    assert lease is not None
    ids = [sealed.runs.start(lease) for _ in range(5)]
    sealed.runs.end(lease, ids[-1], "failed", ERROR)
    runs = sealed.runs.latest("r")
    assert [run.id for run in runs] == ids[:1:-1]
    assert (runs[0].outcome, runs[0].error, runs[0].ended_at, runs[0].epoch) == ("failed", ERROR, clock.time, 1)
    assert (runs[1].outcome, runs[1].ended_at) == (None, None)
    assert [run.id for run in sealed.runs.latest("r", limit=1)] == ids[-1:]


def test_only_the_holder_of_the_epoch_says_why_it_stopped(sealed: StateStore) -> None:
    old = sealed.leases.current("r")
    assert old is not None
    run = sealed.runs.start(old)
    new = sealed.leases.acquire("r", holder_id(), 60)
    assert new is not None
    with pytest.raises(FencedError):
        sealed.runs.end(old, run, "failed", ERROR)
    with pytest.raises(FencedError):
        sealed.set_error("r", ERROR, epoch=old.epoch)
    assert (present(sealed.replicator("r")).error, sealed.runs.latest("r")[0].outcome) == (None, None)
    sealed.runs.end(new, run, "failed", ERROR)
    assert present(sealed.replicator("r")).error == ERROR


def test_deleting_spares_a_later_replicator_of_the_same_name(store: StateStore) -> None:
    old = store.create_replicator("a", "one", "/j")
    store.delete_replicator("a", old.uuid)
    new = store.create_replicator("a", "two", "/j")
    store.delete_replicator("a", old.uuid)
    assert store.replicator("a") == new


def test_dropping_keeps_the_newest_and_remembers_what_was_dropped(sealed: StateStore) -> None:
    first = segment(1, 0, 9, files=[file(A, 0, 4), file(B, 5, 9, incarnation=2)])
    second = segment(2, 10, 19, files=[file(A, 10, 14)], events=[entry(A, 15, incarnation=2)])
    sealed.seal("r", 1, [first, second])
    record = TableRecord(table=A, incarnation=1, stage=Stage.FAILED, error=ERROR)
    sealed.drop_segments("r", 1, [1, 2, 99], tables=[record])
    assert sealed.journal.segments("r", 0, 9) == [second]
    assert (sealed.journal.dropped("r", A), sealed.journal.dropped("r", B)) == ((1, 4), (2, 9))
    assert sealed.journal.total_bytes("r") == 100
    assert sealed.tables("r") == [record]
    sealed.seal("r", 1, [segment(3, 20, 20, events=[entry(B, 20, incarnation=2)])])
    sealed.drop_segments("r", 1, [2])
    assert (sealed.journal.dropped("r", A), sealed.journal.dropped("r", B)) == ((2, 15), (2, 9))
    assert present(sealed.journal.last_segment("r")).last == 20


def test_deleting_removes_every_row_and_no_others(sealed: StateStore) -> None:
    for name in ("r", "other"):
        if name == "other":
            sealed.create_replicator(name, "", "/k")
        lease = sealed.leases.acquire(name, holder_id(), 60)
        assert lease is not None
        sealed.seal(
            name,
            lease.epoch,
            [segment(1, 0, 1, files=[file(A, 0, 0)], events=[entry(A, 1)])],
            schemas=[SCHEMA],
            history=[noted(A, 1)],
        )
        sealed.put_tables(name, lease.epoch, [TableRecord(table=A, incarnation=1, stage=Stage.STREAMING)])
        sealed.put_applied(name, lease.epoch, [AppliedRecord(table=A, incarnation=1)])
        sealed.put_report(name, ApplyReport())
        sealed.requests.add(name, RequestKind.SNAPSHOT, {})
        outcome = VerificationOutcome(table=A, incarnation=1, result=Result.EQUAL, is_whole=True, begun_at=sealed.now())
        sealed.verifications.note(name, outcome)
        sealed.runs.start(lease)
    uuid = present(sealed.replicator("r")).uuid
    for _ in range(2):
        sealed.delete_replicator("r", uuid)
    assert [r.name for r in sealed.replicators()] == ["other"]
    assert len(sealed.journal.segments("other", 0, 9)) == 1
    with sealed._database.read() as connection:
        for table in (
            "segments",
            "segment_files",
            "history",
            "verifications",
            "tables",
            "applied",
            "statuses",
            "requests",
            "runs",
            "schemas",
            "leases",
        ):
            assert connection.exec_driver_sql(f"SELECT replicator FROM {table}").fetchall() == [("other",)], table


items = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["file", "event", "none"]), st.integers(1, 5)),
    min_size=1,
    max_size=25,
)
counter = itertools.count()


@given(items, st.data())
def test_a_feed_is_complete_and_in_order_however_it_is_cut(
    tmp_path_factory: pytest.TempPathFactory, layout: list[tuple[str, str, int]], data: DataObject
) -> None:
    """Any layout of files and events over segments: reading page by page from anywhere gives every item above, once, ascending."""
    store = shared_store(tmp_path_factory)
    name = f"r{next(counter)}"
    store.create_replicator(name, "", "/j")
    epoch = present(store.leases.acquire(name, holder_id(), 60)).epoch
    everything: dict[str, list[SegmentFile | EventEntry]] = {"a": [], "b": []}
    number = 0
    segments = []
    for id_, (table, kind, count) in enumerate(layout, start=1):
        last = number + count - 1
        files = [file(TableId("s", table), number, last)] if kind == "file" else []
        events = [entry(TableId("s", table), n) for n in range(number, last + 1)] if kind == "event" else []
        everything[table] += [*files, *events]
        segments.append(segment(id_, number, last, files=files, events=events, epoch=epoch))
        number = last + 1
    cut = data.draw(st.integers(0, len(segments)))
    for part in (segments[:cut], segments[cut:]):
        store.seal(name, epoch, part)
    table, after, limit = (
        data.draw(st.sampled_from(["a", "b"])),
        data.draw(st.integers(-1, number)),
        data.draw(st.integers(1, 4)),
    )
    wanted = [i for i in everything[table] if (i.last if isinstance(i, SegmentFile) else i.sequence_num) > after]
    found: list[SegmentFile | EventEntry] = []
    position = after
    while page := store.journal.feed(name, TableId("s", table), position, limit):
        assert len(page) <= limit
        found += page
        position = page[-1].last if isinstance(page[-1], SegmentFile) else page[-1].sequence_num
    assert found == wanted


_stores: list[StateStore] = []


def shared_store(factory: pytest.TempPathFactory) -> StateStore:
    if not _stores:
        _stores.append(StateStore(f"sqlite:///{factory.mktemp('feed')}/state.db"))
    return _stores[0]


@pytest.fixture(autouse=True, scope="module")
def _close_shared_store() -> Iterator[None]:
    yield
    while _stores:
        _stores.pop().close()

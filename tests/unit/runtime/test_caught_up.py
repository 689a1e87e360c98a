"""Caught up is judged after what was asked for has begun, and never by a failure that a new snapshot has overtaken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from replicator.model.events import SnapshotEvent, SnapshotPhase
from replicator.model.schema import TableId
from replicator.runtime.caught_up import CatchUp, CaughtUp
from replicator.state import holder_id
from replicator.state.records import (
    AlarmRecord,
    AppliedRecord,
    ApplyState,
    ErrorRecord,
    EventEntry,
    RequestKind,
    Segment,
    SnapshotProgress,
    Stage,
    TableRecord,
    TargetCopy,
)
from replicator.state.store import StateStore

NAME = "shop"
TABLE = TableId("public", "t")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    store = StateStore(f"sqlite:///{tmp_path / 'state.db'}")
    store.create_replicator(NAME, f"name: {NAME}", f"file://{tmp_path}/journal")
    yield store
    store.close()


def _put(store: StateStore, *, snapshot_at: datetime, failed_at: datetime, snapshot_in: int = 1) -> None:
    lease = store.leases.acquire(NAME, "test", 60)
    assert lease is not None
    progress = SnapshotProgress(started_at=snapshot_at, completed_at=snapshot_at)
    store.put_tables(
        NAME, lease.epoch, [TableRecord(table=TABLE, incarnation=snapshot_in, stage=Stage.STREAMING, snapshot=progress)]
    )
    error = ErrorRecord(code="schema_conflict", message="other columns", action=None, at=failed_at)
    applied = AppliedRecord(table=TABLE, incarnation=1, state=ApplyState.FAILED, error=error)
    store.put_applied(NAME, lease.epoch, [applied])


@pytest.mark.parametrize(("completed_after_s", "failed"), [(-60, (TABLE,)), (60, ())])
def test_a_failure_counts_until_a_copy_has_begun_after_it(
    store: StateStore, completed_after_s: int, failed: tuple[TableId, ...]
) -> None:
    _put(store, snapshot_at=NOON + timedelta(seconds=completed_after_s), failed_at=NOON)
    assert CatchUp(store=store, name=NAME, _asked=0, _position=0).check() == CaughtUp(failed=failed)


def test_a_failure_of_an_earlier_run_counts_at_once_where_nothing_is_left_to_try(store: StateStore) -> None:
    _put(store, snapshot_at=NOON - timedelta(minutes=2), failed_at=NOON - timedelta(minutes=1))
    catch_up = CatchUp(store=store, name=NAME, since=NOON, _asked=0, _position=0)
    assert catch_up.check() == CaughtUp(failed=(TABLE,))


def test_a_table_that_is_recreated_is_waited_for_although_the_old_one_was_refused_once_more(store: StateStore) -> None:
    _put(store, snapshot_at=NOON, failed_at=NOON + timedelta(minutes=1), snapshot_in=2)
    assert CatchUp(store=store, name=NAME, _asked=0, _position=0).check() is None


def test_a_snapshot_that_was_asked_for_is_waited_for(store: StateStore) -> None:
    _put(store, snapshot_at=NOON, failed_at=NOON + timedelta(minutes=1))
    store.requests.add(NAME, RequestKind.SNAPSHOT, {"tables": [str(TABLE)]})
    assert CatchUp(store=store, name=NAME, _asked=0, _position=0).check() is None


def _seal(store: StateStore, *, number: int, stages: dict[TableId, Stage], closes: Sequence[int] = ()) -> None:
    """One segment, with an event of each table."""
    lease = store.leases.current(NAME) or store.leases.acquire(NAME, holder_id(), 60)
    assert lease is not None
    numbers = range(number, number + len(stages))
    events = [
        EventEntry(sequence_num=n, table=t, incarnation=1, event=SnapshotEvent(phase=SnapshotPhase.COMPLETED, table=t))
        for n, t in zip(numbers, stages, strict=True)
    ]
    segment = Segment(
        id=number + 1, first=numbers[0], last=numbers[-1], epoch=lease.epoch, offset=None, source_time=None, ring=(), files=(),
        events=events, sealed_at=NOON,
    )  # fmt: skip
    tables = [TableRecord(table=t, incarnation=1, stage=stage) for t, stage in stages.items()]
    store.seal(NAME, lease.epoch, [segment], tables=tables, done_requests=closes)


def _apply(store: StateStore, table: TableId, upto: int, state: ApplyState = ApplyState.APPLYING) -> None:
    lease = store.leases.current(NAME)
    assert lease is not None
    error = (
        ErrorRecord(code="schema_conflict", message="other columns", action=None, at=NOON)
        if state is ApplyState.FAILED
        else None
    )
    record = AppliedRecord(table=table, incarnation=1, last_applied=upto, state=state, error=error)
    store.put_applied(NAME, lease.epoch, [record])


def test_the_position_is_read_behind_the_answer_to_the_request(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    _seal(store, number=0, stages={TABLE: Stage.STREAMING})
    _apply(store, TABLE, 0)
    catch_up = CatchUp(store=store, name=NAME)
    assert catch_up.check() is None
    read = store.journal.last_segment

    def answer() -> None:
        if asked := [r.id for r in store.requests.open(NAME)]:
            _seal(store, number=1, stages={TABLE: Stage.STREAMING}, closes=asked)

    def read_before_the_answer(name: str) -> Segment | None:
        found = read(name)
        answer()
        return found

    monkeypatch.setattr(store.journal, "last_segment", read_before_the_answer)
    assert catch_up.check() is None
    answer()
    assert [catch_up.check() for _ in range(2)] == [None, None]
    _apply(store, TABLE, 1)
    assert catch_up.check() == CaughtUp(failed=())


def test_a_copy_that_begins_while_the_position_is_waited_for_is_waited_for_to_its_end(store: StateStore) -> None:
    _seal(store, number=0, stages={TABLE: Stage.STREAMING})
    catch_up = CatchUp(store=store, name=NAME, _asked=0, _position=0)
    _seal(store, number=1, stages={TABLE: Stage.SNAPSHOT})
    assert catch_up.check() is None
    _seal(store, number=2, stages={TABLE: Stage.STREAMING})
    _apply(store, TABLE, 1)
    assert catch_up.check() is None
    (asked,) = store.requests.open(NAME)
    _seal(store, number=3, stages={TABLE: Stage.STREAMING}, closes=[asked.id])
    assert [catch_up.check() for _ in range(2)] == [None, None]
    _apply(store, TABLE, 3)
    assert catch_up.check() == CaughtUp(failed=())


def test_a_copy_of_which_no_look_saw_anything_is_waited_for_to_its_end(store: StateStore) -> None:
    _seal(store, number=0, stages={TABLE: Stage.STREAMING})
    _seal(store, number=1, stages={TABLE: Stage.STREAMING})
    _apply(store, TABLE, 0)
    catch_up = CatchUp(store=store, name=NAME, _asked=0, _position=0)
    assert catch_up.check() is None
    lease = store.leases.current(NAME)
    assert lease is not None
    store.put_applied(NAME, lease.epoch, [replace(store.applied(NAME)[TABLE], copy=TargetCopy.WHOLE)])
    assert catch_up.check() == CaughtUp(failed=())


def test_what_is_sealed_waits_for_no_removed_table_and_names_those_that_failed(store: StateStore) -> None:
    other, gone = TableId("public", "u"), TableId("public", "gone")
    _seal(store, number=0, stages={TABLE: Stage.STREAMING, other: Stage.STREAMING, gone: Stage.REMOVED})
    catch_up = CatchUp(store=store, name=NAME)
    _apply(store, other, -1, ApplyState.FAILED)
    assert catch_up.check_sealed() is None
    _apply(store, TABLE, 0)
    assert catch_up.check_sealed() == CaughtUp(failed=(other,))


def test_a_snapshot_that_failed_in_capture_is_not_complete(store: StateStore) -> None:
    _seal(store, number=0, stages={TABLE: Stage.FAILED})
    _apply(store, TABLE, 0)
    assert CatchUp(store=store, name=NAME).check_sealed() == CaughtUp(failed=(TABLE,))


def test_a_table_with_an_alarm_is_named(store: StateStore) -> None:
    _put(store, snapshot_at=NOON, failed_at=NOON - timedelta(minutes=1))
    lease = store.leases.acquire(NAME, "test", 60)
    assert lease is not None
    alarm = AlarmRecord(code="target_diverged", message="m", action="a", at=NOON, count=1)
    applied = AppliedRecord(table=TABLE, incarnation=1, alarms=(alarm,))
    store.put_applied(NAME, lease.epoch, [applied])
    assert CatchUp(store=store, name=NAME, _asked=0, _position=0).check() == CaughtUp(failed=(), alarmed=(TABLE,))

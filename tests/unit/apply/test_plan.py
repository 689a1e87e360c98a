"""What the planner takes as the next unit of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from sys import maxsize

import pytest

from replicator.apply.plan import (
    APPEND_NOTHING,
    MORE,
    AdvanceUnit,
    BatchLimits,
    BatchUnit,
    BeginUnit,
    EventUnit,
    Item,
    More,
    Passed,
    Unit,
    append_bound,
    next_unit,
)
from replicator.model.errors import CorruptStreamError
from replicator.model.events import DDLEvent, DDLOperation, SnapshotEvent, SnapshotKind, SnapshotPhase
from replicator.model.schema import TableId, TableSchema
from replicator.state.records import EventEntry, SegmentFile, SnapshotProgress, Stage, TableRecord

T = TableId("s", "t")
WIDE = BatchLimits(rows=1_000, bytes=1_000)


def file(
    first: int,
    last: int,
    *,
    seal: int,
    rows: int = 1,
    snapshot: bool = False,
    shape: str = "a",
    incarnation: int = 1,
) -> SegmentFile:
    return SegmentFile(
        table=T,
        incarnation=incarnation,
        schema_fingerprint=shape,
        uri=f"file:///{first}",
        rows=rows,
        bytes=10,
        sha256="",
        first=first,
        last=last,
        snapshot_rows=rows if snapshot else 0,
        has_absent=False,
        has_key_changes=False,
        seal=seal,
    )


def ddl(number: int, operation: DDLOperation, incarnation: int = 1) -> EventEntry:
    schema = TableSchema(table=T, columns=())
    return EventEntry(
        sequence_num=number,
        table=T,
        incarnation=incarnation,
        event=DDLEvent(operation=operation, table=T, schema=schema),
    )


def snapshot(number: int, phase: SnapshotPhase, start: int | None = None) -> EventEntry:
    kind = SnapshotKind.FIRST if start is None else SnapshotKind.IN_PLACE
    event = SnapshotEvent(phase=phase, table=T, kind=kind, start_number=start)
    return EventEntry(sequence_num=number, table=T, incarnation=1, event=event)


def plan(
    *items: Item,
    limits: BatchLimits = WIDE,
    is_whole: bool = True,
    incarnation: int = 1,
    append_below: int = APPEND_NOTHING,
    barriers: Sequence[int] = (),
) -> Unit | More | None:
    return next_unit(
        items, incarnation=incarnation, is_whole=is_whole, limits=limits, append_below=append_below, barriers=barriers
    )


def batch(unit: object) -> tuple[list[int], int, bool]:
    assert isinstance(unit, BatchUnit)
    return [f.first for f in unit.files], unit.last, unit.is_append


def test_nothing_is_nothing() -> None:
    assert plan() is None
    assert plan(is_whole=False) is MORE


def test_a_batch_takes_everything_up_to_the_next_event() -> None:
    unit = plan(file(1, 2, seal=1), file(3, 4, seal=2), ddl(5, DDLOperation.TRUNCATE_TABLE), file(6, 6, seal=3))
    assert batch(unit) == ([1, 3], 4, False)
    assert isinstance(unit, BatchUnit)
    assert unit.following == 5


def test_a_batch_ends_where_the_shape_changes() -> None:
    assert batch(plan(file(1, 2, seal=1), file(3, 4, seal=1, shape="b")))[0] == [1]


def test_a_batch_ends_at_a_barrier_and_the_next_one_begins_behind_it() -> None:
    files = [file(n, n, seal=n) for n in range(1, 6)]
    assert batch(plan(*files, barriers=[2, 4]))[0] == [1, 2]
    assert batch(plan(*files[2:], barriers=[2, 4]))[0] == [3, 4]
    # The barrier that stands holds nothing up.
    assert batch(plan(*files[4:], barriers=[2, 4]))[0] == [5]


@pytest.mark.parametrize("limits", [BatchLimits(rows=2, bytes=1000), BatchLimits(rows=1000, bytes=20)])
def test_limits_end_a_batch_between_commits(limits: BatchLimits) -> None:
    files = [file(n, n, seal=n) for n in range(1, 6)]
    assert batch(plan(*files, limits=limits)) == ([1, 2], 2, False)


def test_limits_never_split_a_commit() -> None:
    files = [file(1, 1, seal=1), *[file(n, n, seal=4) for n in (2, 3, 4)], file(5, 5, seal=5)]
    assert batch(plan(*files, limits=BatchLimits(rows=2, bytes=1000)))[0] == [1, 2, 3, 4]
    assert batch(plan(*files[1:], limits=BatchLimits(rows=1, bytes=1000)))[0] == [2, 3, 4]


def test_a_commit_may_be_cut_next_to_a_file_of_snapshot_rows() -> None:
    files = [
        file(1, 1, seal=9, snapshot=True),
        file(2, 2, seal=9),
        file(3, 3, seal=9),
        file(4, 4, seal=9, snapshot=True),
    ]
    assert batch(plan(*files, limits=BatchLimits(rows=1, bytes=1000)))[0] == [1]
    assert batch(plan(*files[1:], limits=BatchLimits(rows=1, bytes=1000)))[0] == [2, 3]


def test_a_commit_that_is_not_all_at_hand_is_read_further() -> None:
    assert plan(file(1, 1, seal=2), file(2, 2, seal=2), is_whole=False) is MORE
    unit = plan(file(1, 1, seal=1), file(2, 2, seal=2), is_whole=False)
    assert batch(unit)[0] == [1]
    assert isinstance(unit, BatchUnit)
    assert unit.following == 2
    assert batch(plan(file(1, 1, seal=1), ddl(2, DDLOperation.TRUNCATE_TABLE), is_whole=False))[0] == [1]


def test_plain_snapshot_rows_are_appended_and_kept_apart_from_the_rest() -> None:
    files = [
        file(1, 1, seal=1, snapshot=True),
        file(2, 2, seal=2, snapshot=True),
        file(3, 3, seal=3),
        file(4, 4, seal=4, snapshot=True),
    ]
    assert batch(plan(*files, append_below=3)) == ([1, 2], 2, True)
    assert batch(plan(*files[2:], append_below=3)) == ([3, 4], 4, False)
    assert batch(plan(*files, append_below=2)) == ([1], 1, True)
    assert batch(plan(*files)) == ([1, 2, 3, 4], 4, False)


def test_partial_rows_are_never_appended() -> None:
    assert batch(plan(replace(file(1, 1, seal=1, snapshot=True), has_absent=True), append_below=maxsize))[2] is False


def test_the_bound_of_appending_is_the_first_change_of_the_incarnation() -> None:
    record = TableRecord(table=T, incarnation=2, stage=Stage.SNAPSHOT, snapshot=SnapshotProgress())
    assert append_bound(None, 2) == append_bound(record, 1) == APPEND_NOTHING
    assert append_bound(record, 2) == maxsize
    assert append_bound(replace(record, first_change=7), 2) == 7
    in_place = replace(record, snapshot=SnapshotProgress(kind=SnapshotKind.IN_PLACE, start_number=9))
    assert append_bound(in_place, 2) == APPEND_NOTHING
    assert append_bound(replace(in_place, first_change=7), 2) == 7
    compared = replace(record, snapshot=SnapshotProgress(kind=SnapshotKind.CHANGED, ranges=()))
    assert append_bound(compared, 2) == APPEND_NOTHING
    assert append_bound(replace(compared, first_change=7), 2) == 7


def test_events_that_ask_nothing_ride_along() -> None:
    started, completed = snapshot(1, SnapshotPhase.STARTED), snapshot(4, SnapshotPhase.COMPLETED)
    unit = plan(ddl(0, DDLOperation.CREATE_TABLE), started, file(2, 3, seal=1), completed)
    assert isinstance(unit, EventUnit)
    assert (unit.last, unit.passed, unit.following) == (1, Passed(starts=True), 2)
    unit = plan(file(2, 3, seal=1), completed)
    assert isinstance(unit, BatchUnit)
    assert (batch(unit), unit.passed, unit.following) == (([2], 4, False), Passed(completes=True), None)
    unit = plan(started, file(2, 3, seal=1), completed)
    assert isinstance(unit, BatchUnit)
    assert unit.passed == Passed(completes=True)


def test_alone_they_move_the_ledger() -> None:
    assert plan(snapshot(4, SnapshotPhase.COMPLETED)) == AdvanceUnit(
        last=4, passed=Passed(completes=True), following=None
    )
    assert plan(snapshot(4, SnapshotPhase.COMPLETED), is_whole=False) is MORE


def test_the_end_of_an_in_place_snapshot_is_a_unit_of_its_own() -> None:
    completed = snapshot(4, SnapshotPhase.COMPLETED, start=2)
    assert batch(plan(file(2, 3, seal=1), completed))[1] == 3
    assert plan(completed) == EventUnit(entry=completed, last=4, passed=Passed(completes=True), following=None)


def test_readers_come_to_see_a_later_incarnation_by_an_event_of_its_own() -> None:
    first = replace(snapshot(4, SnapshotPhase.COMPLETED), incarnation=2)
    rows = file(2, 3, seal=1, incarnation=2)
    assert batch(plan(rows, first, incarnation=2))[1] == 3
    assert plan(first, incarnation=2) == EventUnit(entry=first, last=4, passed=Passed(completes=True), following=None)
    in_place = replace(snapshot(4, SnapshotPhase.COMPLETED, start=2), incarnation=2)
    seen = replace(snapshot(5, SnapshotPhase.COMPLETED), incarnation=2)
    assert plan(in_place, seen, incarnation=2) == EventUnit(entry=in_place, last=4, passed=Passed(), following=5)
    assert plan(seen, incarnation=2) == EventUnit(entry=seen, last=5, passed=Passed(completes=True), following=None)


def test_an_incarnation_without_a_snapshot_is_seen_at_once_and_is_never_a_whole_table() -> None:
    event = SnapshotEvent(phase=SnapshotPhase.COMPLETED, table=T, kind=SnapshotKind.NONE)
    entry = EventEntry(sequence_num=1, table=T, incarnation=2, event=event)
    assert plan(entry, incarnation=2) == EventUnit(entry=entry, last=1, passed=Passed(), following=None)


@pytest.mark.parametrize("incarnation", [1, 2])
def test_the_end_of_a_comparison_asks_nothing_of_the_target(incarnation: int) -> None:
    """No row is deleted, and readers see the table all the time."""
    event = SnapshotEvent(phase=SnapshotPhase.COMPLETED, table=T, kind=SnapshotKind.CHANGED)
    entry = EventEntry(sequence_num=1, table=T, incarnation=incarnation, event=event)
    expected = AdvanceUnit(last=1, passed=Passed(completes=True), following=None)
    assert plan(entry, incarnation=incarnation) == expected


def test_a_new_incarnation_supersedes_what_stands_before_it() -> None:
    newest = ddl(9, DDLOperation.CREATE_TABLE, incarnation=3)
    items: list[Item] = [
        file(1, 1, seal=1),
        ddl(5, DDLOperation.CREATE_TABLE, incarnation=2),
        newest,
        file(10, 10, seal=2, incarnation=3),
    ]
    assert plan(*items) == BeginUnit(entry=newest)
    assert plan(*items, incarnation=0) == BeginUnit(entry=newest)
    assert plan(*items, incarnation=3) == EventUnit(entry=newest, last=9, passed=Passed(), following=10)


def test_an_incarnation_without_a_beginning_is_corrupt() -> None:
    with pytest.raises(CorruptStreamError):
        plan(file(1, 1, seal=1, incarnation=2))

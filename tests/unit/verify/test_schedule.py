"""Which table the schedule verifies next, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from replicator.model.documents.verdict import Result
from replicator.model.events import SnapshotKind
from replicator.model.schema import TableId
from replicator.state.records import (
    AlarmRecord,
    AppliedRecord,
    ApplyState,
    SnapshotProgress,
    Stage,
    TableRecord,
    TargetCopy,
)
from replicator.state.verification.records import RangeRecord, VerificationRecord
from replicator.verify import VerifySchedule
from replicator.verify.schedule import RETRY_MIN, Known

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
DAY = timedelta(days=1)
A, B, C = (TableId("shop", name) for name in "abc")
WEEKLY = VerifySchedule(every=7 * DAY, rows_per_second=1_000_000)
ALARM = AlarmRecord(code="verify_different", message="m", action="a", at=NOW, count=1)


def table(name: TableId, **changes: Any) -> TableRecord:
    snapshot = SnapshotProgress(kind=SnapshotKind.FIRST, completed_at=NOW)
    return TableRecord(**{"table": name, "incarnation": 1, "stage": Stage.STREAMING, "snapshot": snapshot, **changes})


def applied(name: TableId, **changes: Any) -> AppliedRecord:
    return AppliedRecord(**{"table": name, "incarnation": 1, "copy": TargetCopy.WHOLE, **changes})


def proven(name: TableId, ago: timedelta, **changes: Any) -> VerificationRecord:
    at = NOW - ago
    known = {"result": Result.EQUAL, "verified_at": at, "proven_at": at, "scheduled_at": at, "rows": 10, "position": 1}
    return VerificationRecord(**{"table": name, "incarnation": 1, **known, **changes})


def chosen(
    records: Mapping[TableId, VerificationRecord | None],
    *,
    schedule: VerifySchedule = WEEKLY,
    tables: Mapping[TableId, TableRecord] | None = None,
    done: Mapping[TableId, AppliedRecord] | None = None,
) -> TableId | None:
    tables, done = tables or {}, done or {}
    known = Known(
        tables=[tables.get(name, table(name)) for name in records],
        applied={name: done.get(name, applied(name)) for name in records},
        verified={name: record for name, record in records.items() if record is not None},
    )
    found = schedule.next_table(known, NOW)
    return None if found is None else found.table


def test_the_longest_unproven_table_comes_first() -> None:
    assert chosen({A: proven(A, 8 * DAY), B: proven(B, 9 * DAY), C: proven(C, 6 * DAY)}) == B
    assert chosen({A: proven(A, 9 * DAY), B: None}) == B
    # A proof of an earlier incarnation is none.
    assert (
        chosen(
            {A: proven(A, 9 * DAY), B: proven(B, DAY)},
            tables={B: table(B, incarnation=2)},
            done={B: applied(B, incarnation=2)},
        )
        == B
    )


def test_what_was_proven_within_the_time_is_left_alone() -> None:
    assert chosen({A: proven(A, 6 * DAY), B: proven(B, timedelta(0))}) is None
    assert chosen({A: proven(A, 6.4 * DAY)}) == A  # there is time until its proof is too old
    # By a command, which the schedule did not begin.
    assert chosen({A: proven(A, DAY, scheduled_at=None)}) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"result": Result.NOT_VERIFIED, "reason": "its snapshot is not complete"},
        {"result": Result.NOT_VERIFIED, "proven_at": None},
        {"result": Result.DIFFERENT, "alarm": ALARM},
    ],
    ids=["not_verified", "never_proven", "different"],
)
def test_what_was_not_found_equal_is_tried_again_sooner(changes: dict[str, Any]) -> None:
    soon, later = proven(A, WEEKLY.retry / 2, **changes), proven(A, WEEKLY.retry, **changes)
    assert (chosen({A: soon}), chosen({A: later})) == (None, A)
    hasty = VerifySchedule(every=timedelta(minutes=1), rows_per_second=1000)
    assert chosen({A: soon}, schedule=hasty) == A


def test_a_table_is_tried_again_no_more_than_once_an_hour_and_no_less_than_once_in_the_time() -> None:
    retries = {every: VerifySchedule(every=every, rows_per_second=1).retry for every in (7 * DAY, DAY / 2, DAY / 48)}
    assert retries == {7 * DAY: timedelta(hours=7), DAY / 2: RETRY_MIN, DAY / 48: DAY / 48}


def test_a_table_with_an_alarm_is_verified_before_its_time() -> None:
    alarmed = {A: applied(A, alarms=(ALARM,))}
    assert chosen({A: proven(A, 2 * WEEKLY.retry)}, done=alarmed) == A
    assert chosen({A: proven(A, 2 * WEEKLY.retry)}) is None


def test_what_is_equal_in_part_is_compared_as_often_as_what_is_proven() -> None:
    in_part: dict[str, Any] = {"result": Result.EQUAL_IN_PART, "proven_at": None, "not_compared": ("n",)}
    assert chosen({A: proven(A, DAY, **in_part)}) is None
    assert chosen({A: proven(A, 7 * DAY, **in_part)}) == A
    assert chosen({A: proven(A, DAY, **in_part, alarm=ALARM)}) == A
    # It clears no alarm of apply's, so one that it has seen is no reason to compare again.
    for ago, expected in ((2 * DAY, None), (DAY / 2, A)):
        seen = replace(ALARM, code="target_changed", at=NOW - ago)
        assert chosen({A: proven(A, DAY, **in_part)}, done={A: applied(A, alarms=(seen,))}) == expected


def test_of_those_never_proven_one_that_was_tried_does_not_stop_the_others() -> None:
    """A comparison that killed its process must not be the next one again."""
    tried = VerificationRecord(table=A, incarnation=1, scheduled_at=NOW - 2 * WEEKLY.retry)
    assert chosen({A: tried, B: None}) == B


@pytest.mark.parametrize(
    ("record", "done"),
    [
        (table(A, stage=Stage.FAILED), applied(A)),
        (table(A, stage=Stage.REMOVED), applied(A)),
        (table(A, stage=Stage.SNAPSHOT, snapshot=SnapshotProgress()), applied(A)),
        (table(A), applied(A, state=ApplyState.FAILED)),
        (table(A), applied(A, copy=TargetCopy.SNAPSHOT)),
        (table(A, incarnation=2), applied(A)),
    ],
    ids=["failed", "removed", "snapshot", "refused", "not whole", "not begun"],
)
def test_what_cannot_be_compared_is_not_tried(record: TableRecord, done: AppliedRecord) -> None:
    assert chosen({A: None}, tables={A: record}, done={A: done}) is None


def test_the_next_table_waits_until_the_rows_of_the_last_one_are_worth_the_time() -> None:
    slow = VerifySchedule(every=7 * DAY, rows_per_second=100)
    last = proven(A, timedelta(seconds=99), scheduled_rows=10_000)
    assert chosen({A: last, B: None}, schedule=slow) is None
    assert chosen({A: proven(A, timedelta(seconds=100), scheduled_rows=10_000), B: None}, schedule=slow) == B
    # What a command read does not count.
    assert (
        chosen({A: proven(A, timedelta(seconds=1), scheduled_rows=10_000, scheduled_at=None), B: None}, schedule=slow)
        == B
    )


def test_a_clock_that_was_set_back_stops_nothing() -> None:
    ahead = proven(A, -3 * DAY)
    assert chosen({A: ahead, B: None}) == B
    assert chosen({A: ahead}) == A
    # A command proved it, or the schedule was killed when it had begun to prove it again: it is not left alone until the clock is there.
    for begun in (None, NOW - DAY):
        assert chosen({A: replace(ahead, scheduled_at=begun), B: proven(B, 8 * DAY)}) == A
    assert chosen({A: replace(ahead, scheduled_at=NOW, result=Result.NOT_VERIFIED)}) is None, "it was just tried"


def test_a_walk_that_was_killed_is_continued_at_once_if_it_got_somewhere() -> None:
    killed = proven(A, timedelta(minutes=1), proven_at=None, result=None, verified_at=None)
    assert chosen({A: killed}) is None
    assert chosen({A: replace(killed, scheduled_rows=1)}) == A
    again = proven(A, 8 * DAY, scheduled_at=NOW - timedelta(minutes=1), scheduled_rows=1)
    assert chosen({A: again}) == A
    assert chosen({A: replace(again, verified_at=NOW)}) is None, "it has ended"


def test_ranges_are_compared_again_that_would_soon_be_due() -> None:
    def is_kept(ago: timedelta, alarms: Sequence[AlarmRecord] = (), **changes: Any) -> bool:
        known = {"definition": "d", "after": None, "upto": ("5",), "position": 1, "rows": 1, "proven_at": NOW - ago}
        return WEEKLY.keeps(RangeRecord(**{**known, **changes}), alarms, NOW)

    assert [is_kept(days * DAY) for days in (0, 5.5, 5.7, 6.4)] == [True, True, False, False]
    assert not is_kept(DAY, proven_at=None), "it differs"
    assert not is_kept(-DAY), "the clock was set back"
    assert not is_kept(DAY, [ALARM]), "it was compared before somebody changed the table"
    assert is_kept(DAY, [ALARM], disproves=(ALARM,))

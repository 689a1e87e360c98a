"""What the record of a table makes of comparisons, in whatever order they come."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from replicator.model.documents.verdict import Result
from replicator.model.errors import ConfigError, FencedError
from replicator.model.schema import TableId
from replicator.state import holder_id
from replicator.state.records import AlarmRecord, RequestKind, Segment
from replicator.state.store import StateStore
from replicator.state.verification.outcomes import VERIFY_DIFFERENT, after
from replicator.state.verification.records import VerificationOutcome, VerificationRecord

A = TableId("shop", "a")
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
ALARM = AlarmRecord(code="target_changed", message="m", action="a", at=NOW, count=1)


def outcome(result: Result, position: int | None = None, **changes: Any) -> VerificationOutcome:
    known = {
        "table": A,
        "incarnation": 1,
        "is_whole": True,
        "begun_at": NOW,
        "rows": 5,
        "message": "why",
        "action": "do",
    }
    return VerificationOutcome(**{**known, "result": result, "position": position, **changes})


def record_of(*outcomes: VerificationOutcome) -> VerificationRecord:
    record: VerificationRecord | None = None
    for one in outcomes:
        record = after(record, one, NOW)
    assert record is not None
    return record


EQUAL, DIFFERENT = outcome(Result.EQUAL, 10, disproves=(ALARM,)), outcome(Result.DIFFERENT, 20, differ=3)
NOT_VERIFIED = outcome(Result.NOT_VERIFIED)


def test_a_table_that_is_equal_is_proven() -> None:
    record = record_of(EQUAL)
    assert (record.result, record.proven_at, record.proven_position, record.rows) == (Result.EQUAL, NOW, 10, 5)
    assert (record.disproved, record.alarm, record.reason) == ((ALARM,), None, None)


def test_a_difference_is_an_alarm_until_the_whole_table_is_equal() -> None:
    record = record_of(EQUAL, DIFFERENT)
    assert record.alarm == AlarmRecord(code=VERIFY_DIFFERENT, message="why", action="do", at=NOW, count=3)
    assert (record.result, record.proven_position, record.disproved) == (Result.DIFFERENT, 10, ())
    sample = outcome(Result.EQUAL, 30, is_whole=False)
    assert record_of(EQUAL, DIFFERENT, sample, NOT_VERIFIED).alarm == record.alarm
    assert record_of(EQUAL, DIFFERENT, outcome(Result.EQUAL, 30)).alarm is None


def test_what_is_equal_in_part_is_no_proof_and_disproves_only_what_it_covers() -> None:
    in_part = outcome(Result.EQUAL_IN_PART, 30, not_compared=("n",), disproves=(ALARM,))
    record = record_of(in_part)
    assert (record.result, record.not_compared, record.rows) == (Result.EQUAL_IN_PART, ("n",), 5)
    assert (record.proven_at, record.disproved) == (None, ())
    # Of a table that was proven as a whole before, the proof becomes older.
    assert (record_of(EQUAL, in_part).proven_position, record_of(EQUAL, in_part).disproved) == (10, (ALARM,))
    # The difference may be in a column that was compared then, and is not now.
    assert record_of(DIFFERENT, in_part) == record_of(DIFFERENT)
    without = outcome(Result.DIFFERENT, 20, differ=1, not_compared=("m", "n"))
    assert record_of(without, in_part).alarm is None
    assert record_of(without, in_part).result is Result.EQUAL_IN_PART
    # Of two differences, the earlier one may be in more columns.
    both = outcome(Result.DIFFERENT, 25, differ=1, not_compared=("n", "o"))
    assert record_of(without, both).not_compared == ("n",)
    assert record_of(without, both, outcome(Result.EQUAL_IN_PART, 30, not_compared=("m", "n"))).alarm is not None


def test_of_some_rows_only_a_difference_says_something_of_the_table() -> None:
    sample = outcome(Result.DIFFERENT, 30, is_whole=False, rows=1, differ=1)
    record = record_of(EQUAL, sample)
    assert record.alarm is not None
    assert (record.rows, record.proven_position) == (5, 10)
    assert record_of(EQUAL, outcome(Result.EQUAL, 30, is_whole=False)) == record_of(EQUAL)
    assert record_of(EQUAL, outcome(Result.NOT_VERIFIED, is_whole=False)) == record_of(EQUAL)


def test_a_table_that_could_not_be_compared_stays_what_it_was() -> None:
    record = record_of(EQUAL, NOT_VERIFIED)
    assert (record.result, record.reason, record.action) == (Result.NOT_VERIFIED, "why", "do")
    assert (record.proven_position, record.position, record.rows) == (10, 10, 5)
    assert record_of(EQUAL, NOT_VERIFIED, outcome(Result.EQUAL, 11)).reason is None


def test_the_later_position_counts_whichever_comparison_ends_first() -> None:
    assert record_of(DIFFERENT, EQUAL) == record_of(DIFFERENT)
    assert record_of(outcome(Result.EQUAL, 30), DIFFERENT).alarm is None


def test_of_a_new_incarnation_nothing_is_proven_and_an_old_one_says_nothing() -> None:
    new = outcome(Result.NOT_VERIFIED, incarnation=2)
    record = record_of(EQUAL, DIFFERENT, new)
    assert (record.incarnation, record.proven_at, record.alarm, record.position) == (2, None, None, None)
    assert record_of(EQUAL, DIFFERENT, new, outcome(Result.EQUAL, 99)) == record


@pytest.fixture
def shop(store: StateStore) -> StateStore:
    store.create_replicator("shop", "", "/j")
    return store


def test_records_are_kept(shop: StateStore) -> None:
    assert shop.verifications.of("shop") == {}
    assert shop.verifications.note("shop", EQUAL) == shop.verifications.of("shop")[A]
    noted = shop.verifications.note("shop", DIFFERENT)
    assert shop.verifications.of("shop") == shop.verifications.of("shop", [A]) == {A: noted}
    assert shop.verifications.of("shop", [TableId("shop", "b")]) == shop.verifications.of("shop", []) == {}
    assert noted.alarm is not None
    with pytest.raises(ConfigError):
        shop.verifications.note("nobody", EQUAL)


def test_the_schedule_notes_that_it_begins(shop: StateStore) -> None:
    lease = shop.leases.acquire("shop", holder_id(), 60)
    assert lease is not None
    shop.verifications.begin("shop", lease.epoch, A, 1)
    first = shop.verifications.of("shop")[A]
    assert first.scheduled_at is not None
    assert abs(first.scheduled_at - shop.now()) < timedelta(hours=1)
    assert first.result is None
    noted = shop.verifications.note("shop", EQUAL)
    assert noted.scheduled_at == first.scheduled_at
    with pytest.raises(FencedError):
        shop.verifications.begin("shop", lease.epoch - 1, A, 1)


def test_a_barrier_keeps_who_asked_for_it(shop: StateStore) -> None:
    lease = shop.leases.acquire("shop", holder_id(), 60)
    assert lease is not None
    asked = shop.requests.add("shop", RequestKind.BARRIER, {"is_scheduled": True})
    segment = Segment(
        id=1, first=0, last=4, epoch=lease.epoch, offset=None, source_time=None, ring=(), files=(), events=(), sealed_at=NOW
    )  # fmt: skip
    shop.seal("shop", lease.epoch, [segment], barriers=[asked])
    (request,) = shop.requests.open("shop")
    assert request.payload == {"is_scheduled": True, "position": 4, "ring": []}

"""What is known of a table's ranges after any comparisons: never more than they proved, and of every key."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from replicator.model.documents.verdict import Result
from replicator.model.schema import TableId
from replicator.plugins.kit.keyranges import holds, sort_key
from replicator.plugins.verification import KeyRange
from replicator.state import holder_id
from replicator.state.records import AlarmRecord
from replicator.state.store import StateStore
from replicator.state.verification import ranges
from replicator.state.verification.ranges import Gap, gaps, is_proven, is_tiled, with_range
from replicator.state.verification.records import RangeOutcome, RangeRecord, VerificationOutcome

A = TableId("shop", "a")
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
ALARM = AlarmRecord(code="target_changed", message="m", action="a", at=NOW, count=1)
KEYS = range(-3, 24)


def ranged(after: int | None, upto: int | None, position: int = 1, **changes: Any) -> RangeRecord:
    known = {"definition": "d", "rows": 10, "proven_at": NOW + timedelta(seconds=position)}
    bounds = {"after": None if after is None else (str(after),), "upto": None if upto is None else (str(upto),)}
    return RangeRecord(**{**known, **bounds, "position": position, **changes})


def known_of(*found: RangeRecord) -> Sequence[RangeRecord]:
    known: Sequence[RangeRecord] = ()
    for one in found:
        known = with_range(known, one)
    return known


def bounds(known: Sequence[RangeRecord]) -> list[tuple[int | None, int | None]]:
    return [(one.after and int(one.after[0]), one.upto and int(one.upto[0])) for one in known]  # type: ignore[misc]


def has(one: RangeRecord | Gap, key: int) -> bool:
    return holds(KeyRange(("id",), one.after, one.upto), [str(key)])


def test_a_range_replaces_what_it_covers() -> None:
    known = known_of(ranged(None, None))
    assert is_proven(known)
    known = with_range(known, ranged(5, 10, 2))
    assert bounds(known) == [(None, 5), (5, 10), (10, None)]
    assert [one.position for one in known] == [1, 2, 1]
    known = with_range(known, ranged(7, 12, 3, proven_at=None))
    assert bounds(known) == [(None, 5), (5, 7), (7, 12), (12, None)]
    assert (is_tiled(known), is_proven(known)) == (True, False)
    assert is_proven(with_range(known, ranged(6, 13, 4)))
    assert bounds(with_range(known, ranged(None, None, 9))) == [(None, None)]


def test_numbers_are_not_ordered_as_text() -> None:
    assert bounds(known_of(ranged(10, 100), ranged(-10, -9), ranged(9, 10), ranged(-9, 9))) == [
        (-10, -9), (-9, 9), (9, 10), (10, 100),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("less", "more"),
    [
        (("9",), ("10",)),
        (("-10",), ("-9.5",)),
        (("1.50", "7"), ("1.50", "10")),
        (("1$00",), ("2$0000",)),
        (("2$00ff",), ("1$01",)),
        (("36:0a000000-0000-0000-0000-000000000000",), ("36:a0000000-0000-0000-0000-000000000000",)),
        (("0$",), ("1$00",)),
    ],
)
def test_bounds_have_the_order_of_values(less: tuple[str, ...], more: tuple[str, ...]) -> None:
    assert sort_key(less) < sort_key(more)


def test_an_older_comparison_and_one_of_an_older_definition_change_nothing() -> None:
    known = known_of(ranged(None, 5, 7), ranged(5, None, 9))
    assert with_range(known, ranged(None, None, 8)) == known
    assert with_range(known, ranged(None, 5, 6, proven_at=None)) == known
    assert with_range(known, ranged(None, 5, 8, definition="older")) == known
    assert bounds(with_range(known, ranged(None, 5, 9, definition="newer"))) == [(None, 5)]


def test_what_is_to_be_compared_is_what_is_not_kept() -> None:
    known = known_of(ranged(None, 5), ranged(5, 10, 2), ranged(10, 15, 3), ranged(20, None, 4))

    def left(keeps: Callable[[RangeRecord], bool]) -> list[tuple[Any, Any, int]]:
        return [(gap.after and gap.after[0], gap.upto and gap.upto[0], gap.rows) for gap in gaps(known, keeps)]

    assert left(lambda _: False) == [(None, None, 40)]
    assert left(lambda _: True) == [("15", "20", 30)]
    assert left(lambda one: one.position in (1, 3)) == [("5", "10", 20), ("15", None, 40)]
    assert left(lambda one: one.position == 4) == [(None, "20", 30)]
    assert left(lambda one: one.position == 2) == [(None, "5", 10), ("10", None, 40)]
    assert gaps((), lambda _: True) == [Gap(None, None)]
    assert gaps(known_of(ranged(None, None)), lambda _: True) == []


@pytest.mark.parametrize("seed", range(30))
def test_of_each_key_the_last_comparison_counts(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a model that knows it for each key; also where ranges are merged, which may only make a proof older."""
    monkeypatch.setattr(ranges, "RANGES_MAX", 1000 if seed % 2 else 5)
    draw, known = random.Random(seed), list[RangeRecord]()
    model: dict[int, RangeRecord | None] = dict.fromkeys(KEYS)
    for position in range(60):
        low, high = sorted(draw.sample(range(-2, 22), 2))
        new = ranged(
            None if draw.random() < 0.2 else low,
            None if draw.random() < 0.2 else high,
            position,
            proven_at=None if draw.random() < 0.3 else NOW + timedelta(seconds=draw.randint(0, 100)),
        )
        known = list(with_range(known, new))
        model.update({key: new for key in KEYS if has(new, key)})
        assert len(known) <= ranges.RANGES_MAX
        assert all(sort_key(one.upto or ()) <= sort_key(other.after or ()) for one, other in pairwise(known))
        for key, last in model.items():
            found = [one for one in known if has(one, key)]
            assert len(found) <= 1
            if found and found[0].proven_at is not None:
                assert last is not None
                assert last.proven_at is not None
                assert found[0].proven_at <= last.proven_at
                assert found[0].position <= last.position
        if ranges.RANGES_MAX == 1000:
            assert {key for key in KEYS if any(has(one, key) for one in known)} == {k for k, v in model.items() if v}
        left = gaps(known, lambda one: one.proven_at is not None)
        for key in KEYS:
            is_known = any(has(one, key) and one.proven_at is not None for one in known)
            assert is_known is not any(has(gap, key) for gap in left)


def test_there_are_never_more_ranges_than_may_be_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "RANGES_MAX", 300)
    known: Sequence[RangeRecord] = ()
    for n in range(ranges.RANGES_MAX + 200):
        known = with_range(known, ranged(n or None, n + 1, n))
    assert len(known) == ranges.RANGES_MAX
    known = with_range(known, ranged(ranges.RANGES_MAX + 200, None, 5000))
    assert is_proven(known)
    assert sum(one.rows for one in known) == 10 * (ranges.RANGES_MAX + 201)


# -- what the state store makes of it


@pytest.fixture
def shop(store: StateStore) -> StateStore:
    store.create_replicator("shop", "", "/j")
    return store


def outcome(one: RangeRecord, **changes: Any) -> RangeOutcome:
    known = {"table": A, "incarnation": 1, "range": one, "begun_at": NOW, "message": "why", "action": "do"}
    return RangeOutcome(**{**known, **changes})


def whole(result: Result, position: int | None, **changes: Any) -> VerificationOutcome:
    known = {"table": A, "incarnation": 1, "is_whole": True, "begun_at": NOW, "message": "why", "action": "do"}
    return VerificationOutcome(**{**known, "result": result, "position": position, **changes})


def test_a_table_is_proven_once_its_last_range_is_and_is_as_old_as_its_oldest(shop: StateStore) -> None:
    first = shop.verifications.note_range("shop", outcome(ranged(None, 5, 10, disproves=(ALARM,))))
    assert (first.proven_at, first.ranges_proven, first.ranges_total, first.result) == (None, 1, None, None)
    both = shop.verifications.note_range("shop", outcome(ranged(5, None, 20, disproves=(ALARM,))))
    assert (both.proven_at, both.proven_position, both.rows) == (NOW + timedelta(seconds=10), 10, 20)
    assert (both.ranges_proven, both.ranges_total, both.result) == (2, 2, Result.EQUAL)
    assert both.disproved == (ALARM,)
    assert shop.verifications.of("shop")[A] == both
    assert bounds(shop.verifications.ranges("shop", A)) == [(None, 5), (5, None)]
    assert shop.verifications.ranges("shop", TableId("shop", "b")) == []
    later = shop.verifications.note_range("shop", outcome(ranged(None, 5, 30)))
    assert (later.proven_at, later.proven_position, later.position) == (NOW + timedelta(seconds=20), 20, 30)
    assert later.disproved == (), "not all of it was compared since then"


def test_a_range_that_differs_is_an_alarm_until_it_is_equal(shop: StateStore) -> None:
    shop.verifications.note_range("shop", outcome(ranged(None, 5, 10)))
    found = shop.verifications.note_range("shop", outcome(ranged(5, None, 20, proven_at=None), differ=3))
    assert found.alarm is not None
    assert (found.alarm.count, found.alarm.message, found.result) == (3, "why", Result.DIFFERENT)
    assert (found.ranges_proven, found.ranges_total, found.proven_at) == (1, 2, None)
    ended = shop.verifications.note("shop", whole(Result.DIFFERENT, 20, differ=3, is_by_range=True))
    assert (ended.result, ended.ranges_proven) == (Result.DIFFERENT, 1)
    assert shop.verifications.note_range("shop", outcome(ranged(None, 5, 30))).alarm is not None
    last = shop.verifications.note_range("shop", outcome(ranged(5, None, 40)))
    assert (last.alarm, last.result, last.proven_position) == (None, Result.EQUAL, 30)


def test_what_was_repaired_is_proven_and_the_other_ranges_stay(shop: StateStore) -> None:
    shop.verifications.note_range("shop", outcome(ranged(None, 5, 10)))
    shop.verifications.note_range("shop", outcome(ranged(5, None, 20, proven_at=None, disproves=(ALARM,)), differ=3))
    found = shop.verifications.note("shop", whole(Result.EQUAL, 30))
    assert (found.alarm, found.ranges_proven, found.ranges_total) == (None, 2, 2)
    assert (found.proven_at, found.proven_position, found.disproved) == (NOW, 10, ())


def test_a_difference_somewhere_unproves_every_range(shop: StateStore) -> None:
    for one in (ranged(None, 5, 10), ranged(5, None, 20)):
        shop.verifications.note_range("shop", outcome(one))
    found = shop.verifications.note("shop", whole(Result.DIFFERENT, 30, is_whole=False, differ=1))
    assert (found.ranges_proven, found.ranges_total, found.proven_position) == (0, None, 10)
    assert shop.verifications.ranges("shop", A) == []
    # A walk that was under way then has not seen it.
    late = shop.verifications.note_range("shop", outcome(ranged(None, None, 29)))
    assert late.alarm is not None
    assert shop.verifications.note_range("shop", outcome(ranged(None, None, 31))).alarm is None


def test_of_an_incarnation_that_is_gone_nothing_is_noted(shop: StateStore) -> None:
    shop.verifications.note_range("shop", outcome(ranged(None, None, 10, definition="new"), incarnation=2))
    known = shop.verifications.ranges("shop", A)
    assert shop.verifications.note_range("shop", outcome(ranged(None, None, 99), incarnation=1)).position == 10
    assert shop.verifications.ranges("shop", A) == known
    again = shop.verifications.note_range("shop", outcome(ranged(None, 5, 100, definition="newest"), incarnation=3))
    assert (again.proven_at, again.ranges_proven) == (None, 1)


def test_a_walk_of_the_schedule_that_was_killed_is_under_way(shop: StateStore) -> None:
    lease = shop.leases.acquire("shop", holder_id(), 60)
    assert lease is not None
    shop.verifications.begin("shop", lease.epoch, A, 1)
    assert not shop.verifications.of("shop")[A].is_under_way, "it got nowhere: another attempt may end as this one did"
    shop.verifications.note_range("shop", outcome(ranged(None, 5, 10)))
    assert shop.verifications.of("shop")[A].scheduled_rows == 0, "a command's rows are not the schedule's"
    found = shop.verifications.note_range("shop", outcome(ranged(5, 9, 10), is_scheduled=True))
    assert (found.is_under_way, found.scheduled_rows) == (True, 10)
    done = shop.verifications.note("shop", whole(Result.NOT_VERIFIED, None, begun_at=shop.now()))
    assert not done.is_under_way
    shop.verifications.begin("shop", lease.epoch, A, 1)
    assert shop.verifications.of("shop")[A].scheduled_rows == 0


def test_ranges_go_with_their_replicator(shop: StateStore) -> None:
    shop.verifications.note_range("shop", outcome(ranged(None, None)))
    record = shop.replicator("shop")
    assert record is not None
    shop.delete_replicator("shop", record.uuid)
    shop.create_replicator("shop", "", "/j")
    assert shop.verifications.ranges("shop", A) == []


def test_binary_and_several_columns_are_kept_as_they_are(shop: StateStore) -> None:
    one = replace(ranged(None, None), upto=("1$00", "36:a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "-1.50"))
    shop.verifications.note_range("shop", outcome(one))
    assert shop.verifications.ranges("shop", A) == [one]

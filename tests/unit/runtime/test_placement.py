"""Who takes which replicator: every one is taken, the load is even, and nothing moves that need not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.runtime.placement import Placement, Seat

STEPS_MAX = 200


def placed(held: Mapping[str, Sequence[str]], capacities: Mapping[str, int] | None = None) -> Placement:
    return Placement(
        seats={
            worker: Seat(worker=worker, capacity=(capacities or {}).get(worker, 10), held=len(names))
            for worker, names in held.items()
        }
    )


def settled(held: dict[str, list[str]], free: list[str], capacities: Mapping[str, int]) -> int:
    """Let all workers act in turn until none does; the number of replicators that were given away."""
    given = 0
    for _ in range(STEPS_MAX):
        has_acted = False
        for worker, mine in held.items():
            placement = placed(held, capacities)
            wanted = next((name for name in free if worker in placement.takers(name)), None)
            if wanted is not None:
                free.remove(wanted)
                mine.append(wanted)
                has_acted = True
            elif not free and (names := placement.to_give(worker, sorted(mine))):
                mine.remove(names[0])
                free.append(names[0])
                given += 1
                has_acted = True
        if not has_acted:
            return given
    raise AssertionError(f"it does not end: {held}")


def test_what_is_free_goes_to_the_worker_with_the_lowest_load() -> None:
    assert placed({"a": ["x"], "b": []}).takers("y") == ["b"]
    assert placed({"a": [], "b": []}).takers("y") == ["a", "b"]
    assert placed({"a": ["x"], "b": []}, {"a": 10, "b": 2}).takers("y") == ["a"]


def test_a_worker_takes_no_more_than_its_capacity() -> None:
    assert placed({"a": ["x"], "b": ["y"]}, {"a": 1, "b": 1}).takers("z") == []
    assert not placed({"a": ["x"]}, {"a": 1}).can_take("a", "z")


def test_what_a_host_cannot_run_is_left_to_others_and_not_given_to_it() -> None:
    seats = {
        "a": Seat(worker="a", capacity=10, held=4),
        "b": Seat(worker="b", capacity=10, held=0, refused=frozenset({"x"})),
    }
    placement = Placement(seats=seats)
    assert placement.takers("x") == ["a"]
    assert placement.to_give("a", ["x", "y"]) == ["y"]


def test_a_worker_that_joins_gets_its_share_and_no_more_moves_than_that() -> None:
    held = {"a": [f"r{n}" for n in range(9)], "b": [], "c": []}
    assert settled(held, [], {}) == 6
    assert sorted(map(len, held.values())) == [3, 3, 3]


def test_nothing_moves_to_make_the_load_no_more_even() -> None:
    assert settled({"a": ["x"], "b": []}, [], {}) == 0
    assert settled({"a": ["x", "y"], "b": ["z"]}, [], {}) == 0


@given(
    st.dictionaries(st.sampled_from("abcde"), st.integers(1, 8), min_size=1),
    st.integers(0, 12),
    st.randoms(use_true_random=False),
)
def test_all_is_taken_and_even_for_any_capacities(capacities: dict[str, int], count: int, draw: Random) -> None:
    names = [f"r{n:02}" for n in range(count)]
    held: dict[str, list[str]] = {worker: [] for worker in sorted(capacities)}
    free: list[str] = []
    for name in names:
        worker = draw.choice([*held, None])
        (held[worker] if worker is not None and len(held[worker]) < capacities[worker] else free).append(name)
    settled(held, free, capacities)
    room = sum(capacities.values())
    assert len(free) == max(0, count - room)
    loads = {worker: Fraction(len(held[worker]), capacities[worker]) for worker in held}
    for worker, capacity in capacities.items():
        if len(held[worker]) < capacity:
            assert Fraction(len(held[worker]) + 1, capacity) >= max(loads.values()), "nobody should give it one"


@pytest.mark.parametrize("other", ["a", "c"])
def test_of_equal_workers_one_gives_at_a_time(other: str) -> None:
    placement = placed({"b": ["x", "y"], other: ["z", "w"], "d": []})
    givers = [worker for worker in ("b", other) if placement.to_give(worker, ["x"])]
    assert len(givers) == 1

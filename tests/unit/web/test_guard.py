"""How often a caller may ask, and how long an answer is kept."""

from __future__ import annotations

import pytest

from replicator.model.errors import StateUnavailableError
from replicator.web.guard import Rates
from replicator.web.recent import KEPT_S, Recent


class Clock:
    """Stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_caller_may_ask_twice_as_often_for_a_moment_and_then_at_its_rate() -> None:
    clock = Clock()
    rates = Rates(10, clock)
    assert [rates.take("a") for _ in range(21)] == [True] * 20 + [False]
    assert rates.take("b")
    clock.now += 0.5
    assert [rates.take("a") for _ in range(6)] == [True] * 5 + [False]


def test_an_answer_is_made_once_a_second_and_for_each_key() -> None:
    clock, made = Clock(), []
    recent = Recent(clock)

    def make() -> bytes:
        made.append(1)
        return b"%d" % len(made)

    assert [recent.get("a", make), recent.get("a", make), recent.get("b", make)] == [b"1", b"1", b"2"]
    clock.now += KEPT_S
    assert recent.get("a", make) == b"3"


def test_a_failure_is_not_kept() -> None:
    def fail() -> bytes:
        raise StateUnavailableError("away", code="state_locked")

    recent = Recent(Clock())
    with pytest.raises(StateUnavailableError):
        recent.get("a", fail)
    assert recent.get("a", lambda: b"there") == b"there"

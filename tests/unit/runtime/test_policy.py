"""What follows from an error, and how long it is tried."""

from __future__ import annotations

import random

import pytest

from replicator.model.errors import (
    ConfigError,
    CorruptStreamError,
    FatalError,
    LogGapError,
    PluginError,
    ReplicatorError,
    SourceLagsError,
    SourceUnavailableError,
    TableError,
    TargetUnavailableError,
    ThrottledError,
    given_up,
)
from replicator.runtime.policy import Consequence, RetryBudget, RetryLimits, consequence


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (SourceUnavailableError("away", code="x"), Consequence.RETRY),
        (TargetUnavailableError("away", code="x"), Consequence.RETRY),
        (ThrottledError("slower", code="x", table="s.t"), Consequence.RETRY),
        (ConfigError("wrong", code="x"), Consequence.REFUSE),
        (FatalError("stop", code="x"), Consequence.STOP),
        (CorruptStreamError("stop", code="x"), Consequence.STOP),
        (PluginError("broken", code="x"), Consequence.STOP),
        (TableError("escaped", code="x"), Consequence.STOP),
        (ReplicatorError("other", code="x"), Consequence.STOP),
        (ZeroDivisionError(), Consequence.STOP),
    ],
)
def test_every_error_has_one_verdict(error: BaseException, expected: Consequence) -> None:
    assert consequence(error) is expected


def test_a_server_that_was_waited_for_in_vain_is_a_gap() -> None:
    lags = given_up(SourceLagsError("it lacks something", code="source_lags", action="Name another."))
    assert (type(lags), lags.code, lags.action) == (LogGapError, "source_lags", "Name another.")
    away = given_up(SourceUnavailableError("away", code="source_unavailable"))
    assert (type(away), consequence(away)) == (FatalError, Consequence.STOP)


def _budget(give_up_after_s: float = 100.0) -> RetryBudget:
    return RetryBudget(
        limits=RetryLimits(first_s=1, longest_s=8, give_up_after_s=give_up_after_s), rng=random.Random(1)
    )


def test_delays_double_up_to_the_longest_with_jitter() -> None:
    budget = _budget()
    delays = [budget.delay(now=0.0) for _ in range(6)]
    for delay, longest in zip(delays, [1, 2, 4, 8, 8, 8], strict=True):
        assert delay is not None
        assert longest / 2 <= delay <= longest


def test_budget_runs_from_the_first_failure_since_progress() -> None:
    budget = _budget()
    assert budget.delay(now=50.0) is not None
    assert budget.delay(now=149.0) is not None
    assert budget.delay(now=150.0) is None


def test_progress_begins_a_full_budget_again() -> None:
    budget = _budget()
    budget.delay(now=0.0)
    budget.progressed()
    assert budget.delay(now=99.0) is not None
    assert budget.delay(now=198.0) is not None
    assert budget.attempts == 2


def test_a_budget_of_nothing_gives_up_at_once() -> None:
    assert _budget(give_up_after_s=0).delay(now=0.0) is None


def test_a_limit_uses_up_no_budget_and_is_asked_less_and_less_often() -> None:
    budget = _budget()
    assert budget.delay(now=0.0) is not None
    delays = [budget.delay_at_limit() for _ in range(2000)]
    assert max(delays) <= 8
    assert min(delays[3:]) >= 4
    assert budget.delay(now=99.0) is not None
    assert budget.delay(now=198.0) is not None
    assert budget.delay(now=199.0) is None
    assert 0.5 <= _budget(give_up_after_s=0).delay_at_limit() <= 1

"""Consequences of an error: the only module that decides to retry."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from replicator.config import RetryConfig
from replicator.model.errors import ConfigError, FatalError, PluginError, ReplicatorError, TableError, TransientError

_DOUBLINGS_MAX: Final = 64


class Consequence(StrEnum):
    """Action of the supervisor after an error."""

    RETRY = "retry"
    STOP = "stop"
    REFUSE = "refuse"


def consequence(error: BaseException) -> Consequence:
    """Map an error that ended a worker to its consequence.

    A `TableError` that arrives here was not confined to its table by the pump, and an unknown exception is a
    bug: both stop the replicator. A `ThrottledError` does not get here: the pump lets its table wait, and fails it
    when a budget of its own is used up. Nor does a `TargetUnavailableError` of one table while the target takes others.
    """
    match error:
        case TransientError():
            return Consequence.RETRY
        case ConfigError():
            return Consequence.REFUSE
        case FatalError() | PluginError() | TableError() | ReplicatorError():
            return Consequence.STOP
        case _:
            return Consequence.STOP


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    """Back-off from `first_s` to `longest_s`, doubling, each delay drawn from its upper half.

    Attempts end `give_up_after_s` after the last progress.
    """

    first_s: float
    longest_s: float
    give_up_after_s: float

    @classmethod
    def of(cls, config: RetryConfig) -> RetryLimits:
        """The limits of a configuration."""
        return cls(
            first_s=config.backoff_initial.total_seconds(),
            longest_s=config.backoff_max.total_seconds(),
            give_up_after_s=config.give_up_after.total_seconds(),
        )


@dataclass(slots=True, kw_only=True)
class RetryBudget:
    """Counts the attempts of one worker, or of one table, since its last progress.

    Only newly sealed or applied changes are progress, not changes that were merely read again.

    Times are seconds of a monotonic clock, given by the caller.
    """

    limits: RetryLimits
    rng: random.Random = field(default_factory=random.Random)
    attempts: int = 0
    failing_since: float | None = None

    def progressed(self) -> None:
        """Begin a full budget again."""
        self.attempts = 0
        self.failing_since = None

    def delay(self, now: float) -> float | None:
        """Seconds to wait before the next attempt; None once the budget is used up."""
        if self.failing_since is None:
            self.failing_since = now
        if now - self.failing_since >= self.limits.give_up_after_s:
            return None
        return self._drawn()

    def delay_at_limit(self) -> float:
        """Seconds to wait before the next attempt, after an answer that is not a failure: the budget restarts, the delays keep growing."""
        self.failing_since = None
        return self._drawn()

    def _drawn(self) -> float:
        longest = min(self.limits.longest_s, self.limits.first_s * 2.0 ** min(self.attempts, _DOUBLINGS_MAX))
        self.attempts += 1
        return longest * self.rng.uniform(0.5, 1.0)

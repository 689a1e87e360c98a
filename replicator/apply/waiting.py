"""Tables that are left alone for a while, and what the other tables' work says about the cause. Pure: not thread-safe, time by a clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from replicator.apply.settings import Patience
from replicator.model.errors import ReplicatorError, TableError, TargetUnavailableError, ThrottledError
from replicator.model.schema import TableId


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A table that the target cannot take now: until when it waits, on the clock, and why.

    `units` counts the units of all tables applied when the table first had to wait: later ones are of other tables.
    """

    until: float
    error: ReplicatorError
    units: int


class Others(Enum):
    """Outcome of other tables' work since a table first had to wait; unknown while it need not."""

    UNKNOWN = auto()
    APPLIED = auto()
    STUCK = auto()


class Waits:
    """The tables that wait, each by a retry policy of its own.

    Args:
        patience: Makes the retry policy of a table.
        clock: Monotonic seconds.

    Attributes:
        retried: Waits so far, by the code of their error.
    """

    def __init__(self, patience: Callable[[], Patience], clock: Callable[[], float]) -> None:
        self.retried: Counter[str] = Counter()
        self._make, self._clock = patience, clock
        self._waits: dict[TableId, Wait] = {}
        self._patience: dict[TableId, Patience] = {}
        self._held_until: dict[TableId, float] = {}
        self._units = self._units_at_failure = 0

    @property
    def has_applied(self) -> bool:
        """Return whether a unit of any table was applied."""
        return self._units > 0

    def of(self, table: TableId) -> Wait | None:
        """Return the wait of a table; None if it need not wait."""
        return self._waits.get(table)

    def left_s(self, table: TableId) -> float:
        """Return the seconds that the table still waits."""
        wait = self._waits.get(table)
        return 0.0 if wait is None else max(0.0, wait.until - self._clock())

    def hold(self, table: TableId, seconds: float) -> None:
        """Have a table rest that was held back."""
        self._held_until[table] = self._clock() + seconds

    def held_s(self, table: TableId) -> float | None:
        """Return the seconds that a table which is held back still rests; None if it never was."""
        until = self._held_until.get(table)
        return None if until is None else max(0.0, until - self._clock())

    def let_wait(self, table: TableId, error: TargetUnavailableError | TableError) -> float | None:
        """Return the seconds for which the table is left alone; None if it was retried for as long as the policy allows."""
        now, patience = self._clock(), self._patience.setdefault(table, self._make())
        if isinstance(error, ThrottledError):
            delay = patience.delay_at_limit() if error.is_limit else patience.delay(now)
            least_s = error.rest_s
        else:
            delay, least_s = patience.delay(now), 0.0
        if delay is None:
            return None
        delay, before = max(delay, least_s), self._waits.get(table)
        units = self._units if before is None else before.units
        self._waits[table] = Wait(until=now + delay, error=error, units=units)
        self.retried[error.code] += 1
        return delay

    def pause(self, table: TableId, error: TableError) -> None:
        """Leave a table that has failed before alone, each time for longer."""
        delay = self._patience.setdefault(table, self._make()).delay_at_limit()
        self._waits[table] = Wait(until=self._clock() + delay, error=error, units=self._units)

    def resume(self, table: TableId, units: int = 0) -> None:
        """Take in that a table need not wait any more, and how many units of it were applied."""
        self._units += units
        self._waits.pop(table, None)
        self._patience.pop(table, None)

    def note_failure(self) -> None:
        """Take in that a table failed."""
        self._units_at_failure = self._units

    def others(self, table: TableId) -> Others:
        """Return what became of other tables since this one first had to wait."""
        wait = self._waits.get(table)
        if wait is None:
            return Others.UNKNOWN
        return Others.APPLIED if self._units > wait.units else Others.STUCK

    def is_still(self, table: TableId) -> bool:
        """Return whether nothing was applied since the table first had to wait, or since a table failed."""
        wait = self._waits.get(table)
        return self._units == (self._units_at_failure if wait is None else wait.units)

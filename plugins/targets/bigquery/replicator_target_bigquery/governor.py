"""How long tables rest between batches, so that quotas and budgets of a day hold. Pure: time is passed in."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from replicator.model.schema import TableId
from replicator_target_bigquery.config import BudgetConfig

DAY_S: Final = 86_400.0
_CAREFUL_FROM: Final = 0.5


class _Use(NamedTuple):
    at: float
    load_jobs: int
    bytes_billed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the last 24 hours have used up, as far as this process knows."""

    load_jobs: int
    bytes_billed: int


class Governor:
    """Remembers what batches used, and says how long a table is to rest. Thread-safe.

    Args:
        budget: What may be used up in 24 hours.
        every_s: The rest of a table while there is plenty.
        clock: Monotonic seconds.
    """

    def __init__(self, budget: BudgetConfig, every_s: float, clock: Callable[[], float]) -> None:
        self._budget = budget
        self._every_s = every_s
        self._clock = clock
        self._lock = threading.Lock()
        self._uses: deque[_Use] = deque()
        self._ended: dict[TableId, float] = {}

    def used(self, table: TableId, *, load_jobs: int, bytes_billed: int) -> None:
        """Take note of a batch that has just ended."""
        with self._lock:
            now = self._clock()
            self._ended[table] = now
            self._uses.append(_Use(now, load_jobs, bytes_billed))

    def rest_s(self, table: TableId, *, is_behind: bool = False) -> float:
        """Seconds from now until the table's next batch may begin; 0 before its first.

        A table that is behind is held back by budgets only.
        """
        with self._lock:
            now = self._clock()
            ended = self._ended.get(table)
            pause = self._pause(now, 0.0 if is_behind else self._every_s)
            return 0.0 if ended is None else max(0.0, ended + pause - now)

    def pause_s(self) -> float:
        """The present time between two batches of a table."""
        with self._lock:
            return self._pause(self._clock(), self._every_s)

    def usage(self) -> Usage:
        """What was used in the last 24 hours."""
        with self._lock:
            return self._usage(self._clock())

    def _usage(self, now: float) -> Usage:
        while self._uses and self._uses[0].at <= now - DAY_S:
            self._uses.popleft()
        return Usage(
            load_jobs=sum(use.load_jobs for use in self._uses),
            bytes_billed=sum(use.bytes_billed for use in self._uses),
        )

    def _pause(self, now: float, every_s: float) -> float:
        usage = self._usage(now)
        batches = max(1, len(self._uses))
        oldest = self._uses[0].at if self._uses else now
        tables = max(1, len(self._ended))
        pauses = [every_s]
        for used, bound in (
            (usage.load_jobs, self._budget.load_jobs_per_day),
            (usage.bytes_billed, self._budget.bytes_per_day),
        ):
            if bound is not None:
                pauses.append(stretched(used, bound, used / batches, tables, until_oldest_s=oldest + DAY_S - now))
        return max(pauses)


def stretched(used: float, bound: float, per_batch: float, tables: int, *, until_oldest_s: float) -> float:
    """The pause that makes what is left of a bound last for a day.

    Args:
        used: In the last 24 hours.
        bound: Of 24 hours.
        per_batch: What a batch takes on average.
        tables: That share what is left.
        until_oldest_s: After which the oldest use no longer counts.

    Returns:
        Seconds; 0 while less than half of the bound is used.
    """
    if used < bound * _CAREFUL_FROM or per_batch <= 0:
        return 0.0
    left = (bound - used) / per_batch
    if left < tables:
        return max(1.0, until_oldest_s)
    return min(DAY_S, tables * DAY_S / left)

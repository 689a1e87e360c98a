"""Rest tables between batches, so that quotas and budgets of a day hold. Pure: time is passed in.

Use is kept in each table's ledger, hour by hour, and found there by the next process.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from replicator.model.schema import TableId
from replicator_target_bigquery.config import BudgetConfig

DAY_S: Final = 86_400.0
_HOUR_S: Final = 3_600.0
_CAREFUL_FROM: Final = 0.5
_SHORTEST_S: Final = 1.0


class _Use(NamedTuple):
    at: float
    table: TableId
    batches: int
    load_jobs: int
    bytes_billed: int
    slot_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The use of the last 24 hours."""

    batches: int = 0
    load_jobs: int = 0
    bytes_billed: int = 0
    slot_ms: int = 0


def steady_clock() -> Callable[[], float]:
    """Return a clock of the seconds since 1970, as the host knows them now: changes of the host's clock do not move it."""
    began = time.time() - time.monotonic()
    return lambda: began + time.monotonic()


class Governor:
    """Records the use of batches, and tells the rest of each table. Thread-safe.

    Args:
        budget: The limits of 24 hours.
        every_s: The rest of a table while there is plenty.
        clock: Returns seconds since 1970: the next process, perhaps on another host, continues with the same clock. It never goes back.
    """

    def __init__(self, budget: BudgetConfig, every_s: float, clock: Callable[[], float]) -> None:
        self._budget = budget
        self._every_s = every_s
        self._clock = clock
        self._lock = threading.Lock()
        self._uses: deque[_Use] = deque()
        self._total = Usage()
        self._ended: dict[TableId, float] = {}
        self._last_bytes: dict[TableId, int] = {}
        self._known: set[TableId] = set()
        # Batches that have begun and not ended, with what they will be billed, as far as that can be known.
        self._under_way: dict[TableId, int] = {}

    def now(self) -> float:
        """Return the time of its clock."""
        return self._clock()

    def begin(self, table: TableId) -> float:
        """Make room for a batch within the bounds of a day; no other table can take that room until `ended`.

        Returns:
            0 if the batch may begin; else the seconds until there is room.
        """
        with self._lock:
            room_s = self._room_s(table, self._clock())
            if room_s == 0:
                self._under_way[table] = self._last_bytes.get(table, 0)
            return room_s

    def ended(self, table: TableId) -> None:
        """Note that a batch has ended, successfully or not."""
        with self._lock:
            self._under_way.pop(table, None)

    def used(
        self,
        table: TableId,
        *,
        load_jobs: int = 0,
        bytes_billed: int | None = 0,
        slot_ms: int = 0,
        is_batch: bool = False,
    ) -> None:
        """Record the use of a job.

        Args:
            table: The table that it worked on.
            load_jobs: The number of load jobs.
            bytes_billed: The billed bytes; None if they are unknown: it counts as the table's batch before.
            slot_ms: Milliseconds of slots.
            is_batch: True for the job that ends a batch, after which the table rests.
        """
        with self._lock:
            now = self._clock()
            self._known.add(table)
            billed = self._last_bytes.get(table, 0) if bytes_billed is None else bytes_billed
            if is_batch:
                self._ended[table] = now
                self._last_bytes[table] = billed or self._last_bytes.get(table, 0)
            self._add([_Use(now, table, int(is_batch), load_jobs, billed, slot_ms)])

    def memory(self, table: TableId) -> str:
        """Return the use of a table, for its ledger, as if the batch that is about to be committed were billed as the last one was."""
        with self._lock:
            now = self._clock()
            self._forget(now)
            coming = _Use(now, table, 1, 0, self._last_bytes.get(table, 0), 0)
            hours: dict[int, list[float]] = {}
            for use in [*(use for use in self._uses if use.table == table), coming]:
                hour = hours.setdefault(int(use.at // _HOUR_S), [0.0, 0, 0, 0, 0])
                hour[0] = round(max(hour[0], use.at), 1)
                for index, value in enumerate((use.batches, use.load_jobs, use.bytes_billed, use.slot_ms), 1):
                    hour[index] += value
            return json.dumps(list(hours.values()), separators=(",", ":"))

    def recall(self, table: TableId, memory: str | None, ended_at: float | None) -> None:
        """Continue from the use that an earlier process wrote into the table's ledger; do nothing for a table that is known already."""
        with self._lock:
            if table in self._known:
                return
            self._known.add(table)
            now = self._clock()
            if ended_at is not None:
                self._ended[table] = min(ended_at, now)
            uses = [
                _Use(min(at, now), table, int(batches), int(load_jobs), int(bytes_billed), int(slot_ms))
                for at, batches, load_jobs, bytes_billed, slot_ms in json.loads(memory or "[]")
            ]
            for use in uses:
                if use.batches:
                    self._last_bytes[table] = use.bytes_billed // use.batches
            self._add(uses)

    def rest_s(self, table: TableId, *, is_behind: bool = False) -> float:
        """Return the seconds from now until the table's next batch may begin; 0 before its first, where the budgets have room for it.

        A table that lags is held back by budgets only.
        """
        with self._lock:
            now = self._clock()
            ended = self._ended.get(table)
            pause = self._pause(now, 0.0 if is_behind else self._every_s)
            rest_s = 0.0 if ended is None else max(0.0, ended + pause - now)
            return max(rest_s, self._room_s(table, now))

    def pause_s(self) -> float:
        """The present time between two batches of a table."""
        with self._lock:
            return self._pause(self._clock(), self._every_s)

    def usage(self, table: TableId | None = None) -> Usage:
        """Return the use of the last 24 hours by a table, or by all that this process knows of."""
        with self._lock:
            self._forget(self._clock())
            return self._total if table is None else _sum(use for use in self._uses if use.table == table)

    def _room_s(self, table: TableId, now: float) -> float:
        """Return the seconds until a batch of the table, billed as its last one was, fits within the bounds of a day, with all others."""
        self._forget(now)
        others = [billed for other, billed in self._under_way.items() if other != table]
        bounds = (
            (1, len(others), self._budget.load_jobs_per_day, lambda use: use.load_jobs),
            (self._last_bytes.get(table, 0), sum(others), self._budget.bytes_per_day, lambda use: use.bytes_billed),
        )
        waits = [
            self._until(bound - needed - taken, now, amount)
            if needed <= bound
            else self._until_alone(bool(others), now)
            for needed, taken, bound, amount in bounds
            if bound is not None
        ]
        return max(waits, default=0.0)

    def _until(self, bound: int, now: float, amount: Callable[[_Use], int]) -> float:
        """Return the seconds until no more than `bound` counts any longer."""
        left = sum(amount(use) for use in self._uses) - bound
        if left <= 0:
            return 0.0
        for use in self._uses:
            left -= amount(use)
            if left <= 0:
                return max(_SHORTEST_S, use.at + DAY_S - now)
        return _SHORTEST_S  # those under way take the room

    def _until_alone(self, are_others: bool, now: float) -> float:
        """Return the seconds until a batch may begin that takes more than is allowed for a day: it comes once a day, and alone."""
        last = max((use.at for use in self._uses if use.batches), default=None)
        if last is not None:
            return max(_SHORTEST_S, last + DAY_S - now)
        return _SHORTEST_S if are_others else 0.0

    def _add(self, uses: Iterable[_Use]) -> None:
        added = list(uses)
        self._uses.extend(added)
        if len(added) > 1 or (len(self._uses) > 1 and self._uses[-1].at < self._uses[-2].at):
            self._uses = deque(sorted(self._uses, key=lambda use: use.at))
        self._total = _sum(added, self._total)

    def _forget(self, now: float) -> None:
        while self._uses and self._uses[0].at <= now - DAY_S:
            self._total = _sum([self._uses.popleft()], self._total, sign=-1)

    def _pause(self, now: float, every_s: float) -> float:
        self._forget(now)
        batches = max(1, self._total.batches)
        oldest = self._uses[0].at if self._uses else now
        tables = max(1, len(self._ended))
        pauses = [every_s]
        for used, bound in (
            (self._total.load_jobs, self._budget.load_jobs_per_day),
            (self._total.bytes_billed, self._budget.bytes_per_day),
        ):
            if bound is not None:
                pauses.append(stretched(used, bound, used / batches, tables, until_oldest_s=oldest + DAY_S - now))
        return max(pauses)


def _sum(uses: Iterable[_Use], start: Usage | None = None, sign: int = 1) -> Usage:
    total = start or Usage()
    for use in uses:
        total = Usage(
            batches=total.batches + sign * use.batches,
            load_jobs=total.load_jobs + sign * use.load_jobs,
            bytes_billed=total.bytes_billed + sign * use.bytes_billed,
            slot_ms=total.slot_ms + sign * use.slot_ms,
        )
    return total


def stretched(used: float, bound: float, per_batch: float, tables: int, *, until_oldest_s: float) -> float:
    """Return the pause between batches that makes the rest of a bound last for a day.

    Args:
        used: The use of the last 24 hours.
        bound: The limit of 24 hours.
        per_batch: The average use of a batch.
        tables: The number of tables that share the rest.
        until_oldest_s: Seconds after which the oldest use no longer counts.

    Returns:
        Seconds; 0 while less than half of the bound is used.
    """
    if used < bound * _CAREFUL_FROM or per_batch <= 0:
        return 0.0
    left = (bound - used) / per_batch
    if left < tables:
        return max(1.0, until_oldest_s)
    return min(DAY_S, tables * DAY_S / left)

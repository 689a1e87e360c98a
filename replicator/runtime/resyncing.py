"""Order and retries of the tables to resynchronise (`Resync` does the work)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from replicator.model.documents.verdict import Result
from replicator.model.schema import TableId
from replicator.observability import get_logger
from replicator.runtime.policy import RetryBudget, RetryLimits
from replicator.state.records import TableRecord
from replicator.state.store import StateStore
from replicator.verify import Resync, Verdict
from replicator.verify.barriers import NotVerifiedError
from replicator.verify.resync import left_to_compare

_log = get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class _Tried:
    """Attempts on a table since its comparison began (`since`)."""

    since: datetime | None
    budget: RetryBudget
    not_before: float = 0.0


@dataclass(slots=True, kw_only=True)
class Resyncing:
    """The tables of one replicator that are being compared, one after the other.

    A table that cannot be compared is tried again, with back-off; after `retry.give_up_after` a snapshot in place reads all of its rows.
    The time that apply needs does not count.

    Attributes:
        rows_max: As `Resync.rows_max`.
        clock: A monotonic clock in seconds.
    """

    store: StateStore
    name: str
    rows_max: int
    limits: RetryLimits
    clock: Callable[[], float] = time.monotonic
    _tried: dict[TableId, _Tried] = field(default_factory=dict)

    def next_table(self) -> TableRecord | None:
        """Return the table to resynchronise now, the least often tried first; None if there is none."""
        if not self.store.verifications.is_comparing(self.name):
            self._tried.clear()
            return None
        left = left_to_compare(self.store.tables(self.name), self.store.requests.open(self.name))
        due = [table for table in left if self._of(table).not_before <= self.clock()]
        return min(due, key=lambda table: (self._of(table).budget.attempts, table.table), default=None)

    def resync(self, record: TableRecord, resync: Resync, verified: Callable[[], Verdict]) -> Verdict:
        """Bring a table nearer to its source. The verdict is the one of `Resync.resync`, which `verified` calls."""
        tried = self._of(record)
        try:
            resync.catch_up(record.table)
        except NotVerifiedError as error:
            tried.not_before = self.clock() + tried.budget.delay_at_limit()
            return Verdict(table=record.table, result=Result.NOT_VERIFIED, reason=error.reason, action=error.action)
        verdict = verified()
        if verdict.result is Result.NOT_VERIFIED:
            delay = tried.budget.delay(self.clock())
            if delay is None:
                verdict = resync.read_all(verdict)
            else:
                tried.not_before = self.clock() + delay
        _log.info(
            "table_compared",
            table=str(record.table),
            result=verdict.result.value,
            differed=(verdict.repaired or verdict.counts).total,
            reason=verdict.reason,
        )
        return verdict

    def _of(self, record: TableRecord) -> _Tried:
        since = record.snapshot.started_at if record.snapshot is not None else None
        known = self._tried.get(record.table)
        if known is None or known.since != since:
            known = self._tried[record.table] = _Tried(since=since, budget=RetryBudget(limits=self.limits))
        return known

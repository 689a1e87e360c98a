"""Upkeep and audits of tables that have nothing to apply.

An upkeep that fails is postponed, counted and shown: it never ends anything, and nothing waits for it. Only a table that cannot be read
any more fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from replicator.apply.table import TableApplier
from replicator.model.errors import FencedError, ReplicatorError, TargetCrashedError, TargetDamagedError
from replicator.model.isolation import INTERNAL, table_error
from replicator.model.processes.reports import UpkeepReport
from replicator.model.schema import TableId
from replicator.observability import get_logger

_log = get_logger(__name__)
_DOUBLINGS_MAX = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failed:
    """A failed upkeep; times are on the pump's clock."""

    failures: int
    error: ReplicatorError
    at: float
    retry_at: float


class Upkeep:
    """Does the upkeep of tables. One table from one thread at a time, as its applier.

    Args:
        pause_s, pause_max_s: Delay before a table's upkeep is retried, the first time and at most.
        audit_every_s: Seconds between two audits of a table that has nothing to apply, and from the start to the first one.
        clock: Monotonic seconds.
        now: Returns the time for `AppliedRecord.upkeep_crash`.
    """

    def __init__(
        self,
        *,
        pause_s: float,
        pause_max_s: float,
        audit_every_s: float,
        clock: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        self._pause_s, self._pause_max_s, self._audit_every_s, self._clock = pause_s, pause_max_s, audit_every_s, clock
        self._now = now
        self._began = clock()
        self._audited: dict[TableId, float] = {}
        self._failed: dict[TableId, _Failed] = {}

    def is_due(self, table: TableId, applier: TableApplier) -> bool:
        """Return whether a table that has nothing to apply needs upkeep."""
        if applier.is_given_up or applier.crashes or self.is_postponed(table, applier):
            return False
        return applier.is_upkeep_due or table in self._failed

    def is_audit_due(self, table: TableId, applier: TableApplier) -> bool:
        """Return whether it is time to ask what others changed in a table that has nothing to apply."""
        if applier.is_given_up or applier.record.incarnation == 0 or self.is_postponed(table, applier):
            return False
        return self._clock() - self._audited.get(table, self._began) >= self._audit_every_s

    def is_postponed(self, table: TableId, applier: TableApplier) -> bool:
        """Return whether the table is left alone after upkeep that failed."""
        failed = self._failed.get(table)
        return (failed is not None and self._clock() < failed.retry_at) or self._crashed_s(applier) is not None

    def look_after(self, table: TableId, applier: TableApplier) -> None:
        """Let the target do the upkeep of a table that is claimed.

        Raises:
            FencedError: A newer epoch has the table.
            TargetDamagedError: The table fails.
        """
        if self._try(applier.maintain, table, applier):
            self._failed.pop(table, None)

    def audit(self, table: TableId, applier: TableApplier) -> None:
        """Ask the target what others changed in a table that is claimed.

        Raises:
            FencedError: A newer epoch has the table.
            TargetDamagedError: The table fails.
        """
        self._audited[table] = self._clock()
        self._try(applier.audit, table, applier)

    def _try(self, act: Callable[[], None], table: TableId, applier: TableApplier) -> bool:
        try:
            act()
        except (FencedError, TargetDamagedError):
            self._failed.pop(table, None)
            raise
        except Exception as error:  # noqa: BLE001 - shown in the status, and tried again
            applier.forget_claim()
            if isinstance(error, TargetCrashedError):
                # Other tables may have been in the engine: the loop ends, and a new one must know.
                applier.note_upkeep_crash(error)
            self._postpone(table, error)
            return False
        return True

    def report(self, table: TableId, applier: TableApplier) -> UpkeepReport | None:
        """Return the failures in a row, the last one, and when it is retried; None if the last upkeep did not fail."""
        failed = self._failed.get(table)
        if failed is None:
            return self._crash_report(applier)
        now = self._clock()
        return UpkeepReport(
            failures=failed.failures,
            code=failed.error.code,
            message=failed.error.message,
            action=failed.error.action,
            failed_s=round(now - failed.at, 1),
            retry_in_s=round(max(0.0, failed.retry_at - now), 1),
        )

    def _crashed_s(self, applier: TableApplier) -> float | None:
        """Return the seconds since the target's engine crashed in the table's upkeep, in any process; None once that is long enough."""
        crash = applier.record.upkeep_crash
        if crash is None:
            return None
        passed_s = (self._now() - crash.at).total_seconds()
        return passed_s if passed_s < self._pause_max_s else None

    def _crash_report(self, applier: TableApplier) -> UpkeepReport | None:
        crash, passed_s = applier.record.upkeep_crash, self._crashed_s(applier)
        if crash is None or passed_s is None:
            return None
        return UpkeepReport(
            failures=1,
            code=crash.code,
            message=crash.message,
            action=crash.action,
            failed_s=round(passed_s, 1),
            retry_in_s=round(self._pause_max_s - passed_s, 1),
        )

    def _postpone(self, table: TableId, error: Exception) -> None:
        ours = error if isinstance(error, ReplicatorError) else table_error(error, table, "doing its upkeep")
        if ours is None:
            ours = ReplicatorError(f"Unexpected {type(error).__name__} during its upkeep.", code=INTERNAL)
        before = self._failed.get(table)
        failures = 1 if before is None else before.failures + 1
        pause_s = min(self._pause_max_s, self._pause_s * 2.0 ** min(failures - 1, _DOUBLINGS_MAX))
        now = self._clock()
        self._failed[table] = _Failed(failures=failures, error=ours, at=now, retry_at=now + pause_s)
        _log.warning(
            "upkeep_postponed",
            table=str(table),
            code=ours.code,
            reason=ours.message,
            failures=failures,
            retry_in_ms=round(pause_s * 1000),
            exc_info=None if isinstance(error, ReplicatorError) else error,
        )

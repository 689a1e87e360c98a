"""Chooses the table to verify next, and the time, if `verify.every` says that tables are verified continuously. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from replicator.model.documents.verdict import Result
from replicator.model.schema import TableId
from replicator.state import table_life
from replicator.state.records import AlarmRecord, AppliedRecord, TableRecord, TargetCopy
from replicator.state.verification.records import RangeRecord, VerificationRecord

DUE_AT: Final = 0.9
"""Part of `every` after which a table is due: while the tables before it are read, its proof does not become older than `every`."""
RENEWED_AT: Final = 0.8
"""Part of `every` after which the ranges of a table that is due are compared again; the others are due later."""
RETRIES: Final = 24
RETRY_MIN: Final = timedelta(hours=1)
"""A table that was not found equal is verified again `RETRIES` times within `every`, but no sooner than this, unless `every` is shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Records of tables in the state store."""

    tables: Iterable[TableRecord]
    applied: Mapping[TableId, AppliedRecord]
    verified: Mapping[TableId, VerificationRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySchedule:
    """Times at which tables are verified: all of them within `every`, and no more than `rows_per_second` on average."""

    every: timedelta
    rows_per_second: int

    @property
    def retry(self) -> timedelta:
        """Return the delay before a table that was not found equal is verified again."""
        return min(self.every, max(RETRY_MIN, self.every / RETRIES))

    def next_table(self, known: Known, now: datetime) -> TableRecord | None:
        """Return the table to verify now; None if none is due. Of several, the one that was not proven for the longest time."""
        if self.rest_s(known, now) > 0:
            return None
        due = [table for table in known.tables if self._is_due(table, known, now)]
        return min(due, key=lambda table: _urgency(table, known.verified.get(table.table), now), default=None)

    def rest_s(self, known: Known, now: datetime) -> float:
        """Return the seconds for which nothing is read, because of the rows that were."""
        rests = (self._rests_until(record, now) - now for record in known.verified.values())
        return max((rest.total_seconds() for rest in rests), default=0.0)

    def keeps(self, one: RangeRecord, alarms: Collection[AlarmRecord], now: datetime) -> bool:
        """Return whether a range of a due table is not compared again. `alarms`: apply's, which only a later comparison disproves."""
        if one.proven_at is None or one.proven_at > now:  # see `_proven_at`
            return False
        return one.proven_at + self.every * RENEWED_AT > now and set(alarms) <= set(one.disproves)

    def _rests_until(self, record: VerificationRecord, now: datetime) -> datetime:
        """Return the time until which nothing else is read, because this table's rows were."""
        if record.scheduled_at is None or record.scheduled_at > now:  # the clock was set back
            return now
        return record.scheduled_at + timedelta(seconds=record.scheduled_rows / self.rows_per_second)

    def _is_due(self, table: TableRecord, known: Known, now: datetime) -> bool:
        applied, record = known.applied.get(table.table), known.verified.get(table.table)
        if not _can_be_compared(table, applied):
            return False
        if record is None or record.incarnation < table.incarnation:
            return True
        moments = [record.scheduled_at + self.retry] if record.scheduled_at and not record.is_under_way else []
        if (found_at := _found_equal_at(record, applied.alarms if applied else (), now)) is not None:
            moments.append(found_at + self.every * DUE_AT)
        is_ahead = record.scheduled_at is not None and record.scheduled_at > now
        return is_ahead or all(moment <= now for moment in moments)


def _can_be_compared(table: TableRecord, applied: AppliedRecord | None) -> bool:
    """Return whether a comparison can give a result. Other problems that it meets are retried later."""
    return (
        applied is not None
        and table_life.is_replicated(table)
        and not table_life.has_failed(table, applied)
        and table_life.is_complete(table)
        and applied.incarnation == table.incarnation
        and applied.copy is TargetCopy.WHOLE
    )


def _found_equal_at(record: VerificationRecord, alarms: Collection[AlarmRecord], now: datetime) -> datetime | None:
    """Return the start of the last comparison that proves all that can be proven of a table; None: another may prove more."""
    if record.alarm is not None:
        return None
    if record.result is Result.EQUAL_IN_PART and record.verified_at is not None and record.verified_at <= now:
        # It clears no alarm, however often it is made.
        return record.verified_at if all(alarm.at < record.verified_at for alarm in alarms) else None
    return _proven_at(record, now) if record.result is Result.EQUAL and not alarms else None


def _proven_at(record: VerificationRecord, now: datetime) -> datetime | None:
    """Return when a table was proven equal; None also for a time in the future, whose age is unknown: the clock was set back."""
    return None if record.proven_at is None or record.proven_at > now else record.proven_at


def _urgency(table: TableRecord, record: VerificationRecord | None, now: datetime) -> tuple[bool, float, float, str]:
    """Sort key: never proven first, then the longest unproven; of those the one whose last attempt is the oldest."""
    is_known = record is not None and record.incarnation == table.incarnation
    proven = _proven_at(record, now) if record is not None and is_known else None
    tried = record.scheduled_at if record is not None else None
    return (
        proven is not None,
        proven.timestamp() if proven else 0.0,
        tried.timestamp() if tried else 0.0,
        str(table.table),
    )

"""What the state store holds of comparisons of both sides, as immutable records."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from replicator.model.verdict import Result
from replicator.state.records import AlarmRecord
from replicator.state.stored import StoredTableId


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationOutcome:
    """What one comparison of a table found.

    Attributes:
        incarnation: Which was compared.
        is_whole: All of the table's rows were.
        begun_at: When it began; the source was read later.
        position: Sequence number at which both sides were compared; None if they were not.
        rows: Of the target, there.
        differ: How many rows differ.
        is_by_range: Each range was noted already (`RangeOutcome`), and `position` is that of the last.
        message, action: Of the alarm, where rows differ; of a table that was not verified: why, and what to do about it.
        disproves: Apply's alarms when it began. If the whole table is equal, they hold no longer.
        not_compared: Columns that the target has from the source, but that could not be compared.
    """

    table: StoredTableId
    incarnation: int
    result: Result
    is_whole: bool
    begun_at: datetime
    position: int | None = None
    rows: int | None = None
    differ: int = 0
    is_by_range: bool = False
    message: str | None = None
    action: str | None = None
    disproves: tuple[AlarmRecord, ...] = ()
    not_compared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeRecord:
    """Rows of a table between two bounds of its key, and what the last comparison of them found.

    Attributes:
        definition: What was compared: tables with another incarnation, other columns or another key have another one.
        after: Where it begins, as in `KeyRange`; None: at the first key.
        upto: Where it ends; None: behind the last key. A table that is compared in one read is one range without bounds.
        position: Sequence number at which it was compared.
        rows: Of the target, there. An estimate, once another range has taken a part of it.
        proven_at: When the comparison began that found it equal; None: it differs.
        disproves: Apply's alarms when it began.
        not_compared: As in `VerificationOutcome`: its rows were equal without these columns.
    """

    definition: str
    after: tuple[str, ...] | None
    upto: tuple[str, ...] | None
    position: int
    rows: int
    proven_at: datetime | None
    disproves: tuple[AlarmRecord, ...] = ()
    not_compared: tuple[str, ...] = ()

    @property
    def is_proof(self) -> bool:
        """Whether its rows were equal in every column that the target has from the source."""
        return self.proven_at is not None and not self.not_compared


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeOutcome:
    """What the comparison of one range of a table found.

    Attributes:
        incarnation: Which was compared.
        range: The range, as it is now known.
        begun_at: When the comparison of it began.
        is_scheduled: The schedule compared it: its rows count for the pauses.
        differ, message, action: Of the alarm, if it differs; with the ranges that were compared before it.
    """

    table: StoredTableId
    incarnation: int
    range: RangeRecord
    begun_at: datetime
    is_scheduled: bool = False
    differ: int = 0
    message: str = ""
    action: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationRecord:
    """What is known of a table from comparisons; written by any process that compares it (`verifications.after`).

    Attributes:
        incarnation: Which was compared last; what else is said here is about it.
        result: Of the last comparison; of one of some rows only if they differed. None: there was none yet.
        verified_at: When that began.
        reason, action: Why it was not verified, and what to do about it.
        position: Sequence number of the last comparison that could be made.
        rows: Of the target, when the whole table was last compared.
        proven_at: When the comparison began that proved its oldest range; None: it was never proven as a whole.
        proven_position: The lowest sequence number at which a range was proven.
        alarm: The last comparison found rows that differ.
        disproved: Apply's alarms that hold no longer, because the table was equal afterwards. Apply removes them.
        scheduled_at: When the schedule last began to compare it, whatever came of it.
        scheduled_rows: How many rows it has read since then.
        ranges_proven: How many of its ranges are known to be equal.
        ranges_total: How many ranges it has; None: not all were compared yet.
        not_compared: What the last comparison left out, as in `VerificationOutcome`. With an `alarm`: what every comparison that found a
            difference left out. One that leaves out more does not disprove it.
    """

    table: StoredTableId
    incarnation: int
    result: Result | None = None
    verified_at: datetime | None = None
    reason: str | None = None
    action: str | None = None
    position: int | None = None
    rows: int | None = None
    proven_at: datetime | None = None
    proven_position: int | None = None
    alarm: AlarmRecord | None = None
    disproved: tuple[AlarmRecord, ...] = ()
    scheduled_at: datetime | None = None
    scheduled_rows: int = 0
    ranges_proven: int = 0
    ranges_total: int | None = None
    not_compared: tuple[str, ...] = ()

    @property
    def is_under_way(self) -> bool:
        """Whether the schedule has begun to compare it, proved something, and has not ended: the next attempt has less to do."""
        if self.scheduled_at is None or not self.scheduled_rows:
            return False
        return self.verified_at is None or self.verified_at < self.scheduled_at

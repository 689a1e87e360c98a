"""Immutable records of comparisons of both sides in the state store."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from replicator.model.documents.verdict import Result
from replicator.state.records import AlarmRecord
from replicator.state.stored import StoredTableId


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationOutcome:
    """Result of one comparison of a table.

    Attributes:
        incarnation: Incarnation that was compared.
        is_whole: True if all of the table's rows were compared.
        begun_at: Time when it began; the source was read later.
        position: Sequence number at which both sides were compared; None if they were not.
        rows: Rows in the target, at that position.
        differ: Number of rows that differ.
        is_by_range: Each range was recorded already (`RangeOutcome`), and `position` is that of the last.
        message, action: Text and next step of the alarm, where rows differ; of a table that was not verified: reason and next step.
        disproves: Apply's alarms when it began. If the whole table is equal, they are disproved.
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
    """Rows of a table between two bounds of its key, and the result of their last comparison.

    Attributes:
        definition: Digest of the table's definition: tables with another incarnation, other columns or another key have another one.
        after: Beginning of the range, as in `KeyRange`; None: the first key.
        upto: End of the range; None: after the last key. A table that is compared in one read is one range without bounds.
        position: Sequence number at which it was compared.
        rows: Rows in the target, at that position. An estimate, once another range has taken a part of it.
        proven_at: Start of the comparison that found it equal; None: it differs.
        disproves: Apply's alarms when it began.
        not_compared: See `VerificationOutcome`: its rows were equal without these columns.
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
        """Return whether its rows were equal in every column that the target has from the source."""
        return self.proven_at is not None and not self.not_compared


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeOutcome:
    """Result of the comparison of one range of a table.

    Attributes:
        incarnation: Incarnation that was compared.
        range: The range, as it is now known.
        begun_at: Time when its comparison began.
        is_scheduled: The schedule compared it: its rows count for the pauses.
        differ, message, action: Values of the alarm, if it differs; including the ranges that were compared before it.
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
    """Result of all comparisons of a table; written by any process that compares it (`verifications.after`).

    Attributes:
        incarnation: Incarnation that was compared last; all other attributes are about it.
        result: Result of the last comparison; of one of some rows only if they differed. None: there was none yet.
        verified_at: Time when that comparison began.
        reason, action: Reason why it was not verified, and the next step.
        position: Sequence number of the last comparison that could be made.
        rows: Rows in the target, when the whole table was last compared.
        proven_at: Start of the comparison that proved its oldest range; None: it was never proven as a whole.
        proven_position: The lowest sequence number at which a range was proven.
        alarm: Alarm of the last comparison, if it found rows that differ.
        disproved: Apply's alarms that are disproved, because the table was equal afterwards. Apply removes them.
        scheduled_at: Time when the schedule last began to compare it, whatever the result.
        scheduled_rows: Rows that it has read since then.
        ranges_proven: Number of its ranges that are known to be equal.
        ranges_total: Number of its ranges; None: not all were compared yet.
        not_compared: Columns that the last comparison left out, as in `VerificationOutcome`. With an `alarm`: those that every comparison
            that found a difference left out. One that leaves out more does not disprove it.
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
        """Return whether the schedule has begun to compare it, proved something, and has not ended: the next attempt has less to do."""
        if self.scheduled_at is None or not self.scheduled_rows:
            return False
        return self.verified_at is None or self.verified_at < self.scheduled_at

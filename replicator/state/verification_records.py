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
        message, action: Of the alarm, where rows differ; of a table that was not verified: why, and what to do about it.
        disproves: Apply's alarms when it began. If the whole table is equal, they hold no longer.
    """

    table: StoredTableId
    incarnation: int
    result: Result
    is_whole: bool
    begun_at: datetime
    position: int | None = None
    rows: int | None = None
    differ: int = 0
    message: str | None = None
    action: str | None = None
    disproves: tuple[AlarmRecord, ...] = ()


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
        proven_at: When the last comparison of the whole table that found it equal began; None: none did.
        proven_position: Its sequence number.
        alarm: The last comparison found rows that differ.
        disproved: Apply's alarms that hold no longer, because the table was equal afterwards. Apply removes them.
        scheduled_at: When the schedule last began to compare it, whatever came of it.
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

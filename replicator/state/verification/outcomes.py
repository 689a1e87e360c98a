"""Results of comparisons of both sides, per table: proofs that they are equal, and alarms that they are not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from sqlalchemy import ColumnElement, Connection, delete, select

from replicator.model.documents.verdict import Result
from replicator.model.schema import TableId
from replicator.state import counters, leases
from replicator.state.codec import read_range, read_verification, write_range, write_verification
from replicator.state.database.engine import Database, check_exists, upsert
from replicator.state.records import AlarmRecord, Stage
from replicator.state.tables import TABLES, VERIFICATIONS, VERIFIED_RANGES
from replicator.state.verification import ranges
from replicator.state.verification.records import RangeOutcome, RangeRecord, VerificationOutcome, VerificationRecord

VERIFY_DIFFERENT: Final = "verify_different"


def after(before: VerificationRecord | None, outcome: VerificationOutcome, now: datetime) -> VerificationRecord:
    """Return the record of a table after a comparison. Pure.

    A comparison at an earlier position than the recorded one, or of an earlier incarnation, changes nothing.
    """
    record = before if before is not None else nothing_verified(outcome.table, outcome.incarnation)
    if record.incarnation < outcome.incarnation:
        record = replace(nothing_verified(outcome.table, outcome.incarnation), scheduled_at=record.scheduled_at)
    if outcome.incarnation < record.incarnation or _is_older(outcome, record):
        return record
    if not outcome.is_whole and outcome.result is not Result.DIFFERENT:
        return record
    seen = replace(record, result=outcome.result, verified_at=outcome.begun_at, reason=None, action=None)
    if outcome.result is Result.NOT_VERIFIED:
        return replace(seen, reason=outcome.message, action=outcome.action)
    if outcome.is_by_range and outcome.result in (Result.EQUAL, Result.EQUAL_IN_PART):
        # The ranges have the proofs. An alarm was raised meanwhile about rows that may be in any of them.
        return replace(seen, not_compared=outcome.not_compared) if record.alarm is None else record
    if outcome.result is Result.EQUAL_IN_PART and not _covers(outcome.not_compared, record):
        return record
    rows = outcome.rows if outcome.is_whole and not outcome.is_by_range else record.rows
    seen = replace(seen, position=outcome.position, rows=rows)
    if outcome.result is Result.DIFFERENT:
        left_out = _left_out(outcome.not_compared, record)
        return replace(seen, alarm=_alarm(outcome, now), disproved=(), not_compared=left_out)
    seen = replace(seen, alarm=None, not_compared=outcome.not_compared)
    if outcome.result is Result.EQUAL_IN_PART:
        return seen
    return replace(
        seen,
        proven_at=outcome.begun_at,
        proven_position=outcome.position,
        disproved=outcome.disproves,
    )


def after_range(before: VerificationRecord | None, outcome: RangeOutcome, now: datetime) -> VerificationRecord:
    """Return the record of a table after the comparison of a range, without the summary of all ranges (`summed`). Pure."""
    record = before if before is not None else nothing_verified(outcome.table, outcome.incarnation)
    if record.incarnation < outcome.incarnation:
        record = replace(nothing_verified(outcome.table, outcome.incarnation), scheduled_at=record.scheduled_at)
    rows = record.scheduled_rows + (outcome.range.rows if outcome.is_scheduled else 0)
    record = replace(record, scheduled_rows=rows)
    position = outcome.range.position
    if outcome.incarnation < record.incarnation:
        return record
    if outcome.range.proven_at is not None:
        return replace(record, position=max(position, record.position or 0))
    if record.position is not None and position < record.position:
        return record
    return replace(
        record,
        result=Result.DIFFERENT,
        verified_at=outcome.begun_at,
        reason=None,
        action=None,
        position=position,
        alarm=_alarm(outcome, now),
        disproved=(),
        not_compared=_left_out(outcome.range.not_compared, record),
    )


def summed(record: VerificationRecord, known: Sequence[RangeRecord]) -> VerificationRecord:
    """Return the record of a table with the summary of its ranges. Pure."""
    counted = replace(
        record,
        ranges_proven=sum(one.is_proof for one in known),
        ranges_total=len(known) if ranges.is_tiled(known) else None,
    )
    if not ranges.is_proven(known):
        return counted
    left_out = tuple(sorted({column for one in known for column in one.not_compared}))
    if left_out and not _covers(left_out, record):
        return counted
    counted = replace(
        counted,
        result=Result.EQUAL_IN_PART if left_out else Result.EQUAL,
        reason=None,
        action=None,
        rows=sum(one.rows for one in known),
        alarm=None,
        not_compared=left_out,
    )
    if left_out:
        return counted
    first, *others = known
    return replace(
        counted,
        proven_at=min(one.proven_at for one in known if one.proven_at is not None),
        proven_position=min(one.position for one in known),
        disproved=tuple(alarm for alarm in first.disproves if all(alarm in one.disproves for one in others)),
    )


def nothing_verified(table: TableId, incarnation: int) -> VerificationRecord:
    """Return the record of a table that was never compared."""
    return VerificationRecord(table=table, incarnation=incarnation)


def _covers(left_out: Collection[str], record: VerificationRecord) -> bool:
    """Return whether a comparison that left out these columns saw all that raised the record's alarm."""
    return record.alarm is None or set(left_out) <= set(record.not_compared)


def _left_out(left_out: Collection[str], record: VerificationRecord) -> tuple[str, ...]:
    """Return the columns to record for a comparison that left out these columns and found a difference."""
    return tuple(sorted(left_out if record.alarm is None else set(left_out) & set(record.not_compared)))


def _is_older(outcome: VerificationOutcome, record: VerificationRecord) -> bool:
    return outcome.position is not None and record.position is not None and outcome.position < record.position


def _alarm(outcome: VerificationOutcome | RangeOutcome, now: datetime) -> AlarmRecord:
    return AlarmRecord(
        code=VERIFY_DIFFERENT,
        message=outcome.message or "",
        action=outcome.action or "",
        at=now,
        count=outcome.differ,
    )


def _find(connection: Connection, name: str, table: TableId) -> VerificationRecord | None:
    mine = (VERIFICATIONS.c.replicator == name) & (VERIFICATIONS.c.table_name == str(table))
    row = connection.execute(select(VERIFICATIONS).where(mine).with_for_update()).one_or_none()
    return None if row is None else read_verification(row)


def _with_ranges(
    connection: Connection, name: str, record: VerificationRecord, kept: Sequence[RangeRecord]
) -> VerificationRecord:
    """Store a table's ranges; return its record with their summary."""
    known, wanted = _stored_ranges(connection, name, record.table), set(kept)
    replaced = [number for number, one in known.items() if one not in wanted]
    if replaced:
        mine = _ranges_of(name, record.table) & VERIFIED_RANGES.c.number.in_(replaced)
        connection.execute(delete(VERIFIED_RANGES).where(mine))
    there, first = set(known.values()), max(known, default=0) + 1
    added = [one for one in kept if one not in there]
    owner = {"replicator": name, "table_name": str(record.table)}
    upsert(
        connection, VERIFIED_RANGES, [{**owner, "number": n, **write_range(one)} for n, one in enumerate(added, first)]
    )
    return summed(record, kept)


def _stored_ranges(connection: Connection, name: str, table: TableId) -> Mapping[int, RangeRecord]:
    rows = connection.execute(select(VERIFIED_RANGES).where(_ranges_of(name, table)))
    return {row.number: read_range(row) for row in rows}


def _ranges_of(name: str, table: TableId) -> ColumnElement[bool]:
    return (VERIFIED_RANGES.c.replicator == name) & (VERIFIED_RANGES.c.table_name == str(table))


class Verifications:
    """Reads and writes the results of comparisons. Errors as those of `StateStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def is_comparing(self, name: str) -> bool:
        """Return whether any of its tables is being compared (`Stage.COMPARING`)."""
        with self._database.read() as connection:
            mine = (TABLES.c.replicator == name) & (TABLES.c.stage == Stage.COMPARING.value)
            return connection.scalar(select(TABLES.c.table_name).where(mine).limit(1)) is not None

    def of(self, name: str, tables: Collection[TableId] | None = None) -> Mapping[TableId, VerificationRecord]:
        """Return the results of comparisons of both sides, of some tables or (None) of all."""
        with self._database.read() as connection:
            query = select(VERIFICATIONS).where(VERIFICATIONS.c.replicator == name)
            if tables is not None:
                query = query.where(VERIFICATIONS.c.table_name.in_([str(table) for table in tables]))
            return {record.table: record for record in map(read_verification, connection.execute(query))}

    def note(self, name: str, outcome: VerificationOutcome) -> VerificationRecord:
        """Merge a comparison into the record of its table; return the record. Not fenced: it is true whichever process made it."""
        with self._database.write() as connection:
            check_exists(connection, name)
            counters.add(connection, name, counters.of_verification(outcome))
            now = self._database.now(connection)
            before = _find(connection, name, outcome.table)
            record = after(before, outcome, now)
            if record is not before and not outcome.is_by_range and outcome.position is not None:
                known = list_ranges(connection, name, outcome.table)
                if outcome.result is Result.DIFFERENT:
                    # It is not known in which range.
                    record = _with_ranges(connection, name, record, ())
                elif outcome.result in (Result.EQUAL, Result.EQUAL_IN_PART) and outcome.is_whole:
                    kept = ranges.repaired(known, outcome.position, outcome.begun_at)
                    record = _with_ranges(connection, name, record, kept)
            _put(connection, name, record)
            return record

    def note_range(self, name: str, outcome: RangeOutcome) -> VerificationRecord:
        """Merge the comparison of a range of a table into its record, and return that. Not fenced: as `note_verification`."""
        with self._database.write() as connection:
            check_exists(connection, name)
            counters.add(connection, name, counters.of_range(outcome))
            now = self._database.now(connection)
            record = after_range(_find(connection, name, outcome.table), outcome, now)
            is_older = record.alarm is not None and outcome.range.position < (record.position or 0)
            if outcome.incarnation == record.incarnation and not is_older:
                known = list_ranges(connection, name, outcome.table)
                record = _with_ranges(connection, name, record, ranges.with_range(known, outcome.range))
            _put(connection, name, record)
            return record

    def ranges(self, name: str, table: TableId) -> Sequence[RangeRecord]:
        """Return the ranges of a table that were compared, in key order."""
        with self._database.read() as connection:
            return list_ranges(connection, name, table)

    def begin(self, name: str, epoch: int, table: TableId, incarnation: int) -> None:
        """Record that the schedule begins to compare a table; fenced by epoch."""
        with self._database.write() as connection:
            leases.check_epoch(connection, name, epoch)
            now = self._database.now(connection)
            before = _find(connection, name, table) or nothing_verified(table, incarnation)
            _put(connection, name, replace(before, scheduled_at=now, scheduled_rows=0))


def list_ranges(connection: Connection, name: str, table: TableId) -> Sequence[RangeRecord]:
    """Return the ranges of a table that were compared, in key order."""
    return ranges.in_order(_stored_ranges(connection, name, table).values())


def _put(connection: Connection, name: str, record: VerificationRecord) -> None:
    upsert(connection, VERIFICATIONS, [{"replicator": name, **write_verification(record)}])

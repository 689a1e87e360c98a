"""What is known of tables from comparisons of both sides: the proofs that they are equal, and the alarms that they are not."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, select

from replicator.model.schema import TableId
from replicator.model.verdict import Result
from replicator.state.codec import read_verification, write_verification
from replicator.state.database import upsert
from replicator.state.records import AlarmRecord
from replicator.state.tables import VERIFICATIONS
from replicator.state.verification_records import VerificationOutcome, VerificationRecord

VERIFY_DIFFERENT: Final = "verify_different"


def after(before: VerificationRecord | None, outcome: VerificationOutcome, now: datetime) -> VerificationRecord:
    """The record of a table after a comparison. Pure.

    A comparison at an earlier position than one that is known, or of an earlier incarnation, changes nothing.
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
    seen = replace(seen, position=outcome.position, rows=outcome.rows if outcome.is_whole else record.rows)
    if outcome.result is Result.DIFFERENT:
        return replace(seen, alarm=_alarm(outcome, now), disproved=())
    return replace(
        seen,
        proven_at=outcome.begun_at,
        proven_position=outcome.position,
        alarm=None,
        disproved=outcome.disproves,
    )


def nothing_verified(table: TableId, incarnation: int) -> VerificationRecord:
    """The record of a table that was never compared."""
    return VerificationRecord(table=table, incarnation=incarnation)


def list_records(
    connection: Connection, name: str, tables: Collection[TableId] | None = None
) -> Mapping[TableId, VerificationRecord]:
    """The records of some tables of a replicator; None: of all."""
    query = select(VERIFICATIONS).where(VERIFICATIONS.c.replicator == name)
    if tables is not None:
        query = query.where(VERIFICATIONS.c.table_name.in_([str(table) for table in tables]))
    return {record.table: record for record in map(read_verification, connection.execute(query))}


def note(connection: Connection, name: str, outcome: VerificationOutcome, now: datetime) -> VerificationRecord:
    """Take a comparison into the record of its table."""
    record = after(_find(connection, name, outcome.table), outcome, now)
    _put(connection, name, record)
    return record


def note_begin(connection: Connection, name: str, table: TableId, incarnation: int, now: datetime) -> None:
    """Record that the schedule begins to compare a table."""
    before = _find(connection, name, table) or nothing_verified(table, incarnation)
    _put(connection, name, replace(before, scheduled_at=now))


def _is_older(outcome: VerificationOutcome, record: VerificationRecord) -> bool:
    return outcome.position is not None and record.position is not None and outcome.position < record.position


def _alarm(outcome: VerificationOutcome, now: datetime) -> AlarmRecord:
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


def _put(connection: Connection, name: str, record: VerificationRecord) -> None:
    upsert(connection, VERIFICATIONS, [{"replicator": name, **write_verification(record)}])

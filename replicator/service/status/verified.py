"""Verification in the status."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from replicator.model.documents.status import TableStatus, VerifiedTableStatus, VerifyStatus
from replicator.model.documents.verdict import Result
from replicator.state.records import TableRecord
from replicator.state.verification.outcomes import nothing_verified
from replicator.state.verification.records import VerificationRecord


def every(config: str) -> timedelta | None:
    """Return `verify.every` of a stored configuration; None if there is none, or it is a reference: only workers resolve these."""
    if "verify" not in config:
        return None
    from pydantic import (
        ValidationError,  # loaded only where there may be a schedule: the configuration's models take their time
    )

    from replicator.config import VerifyConfig
    from replicator.service.configuring.stored_settings import stored_document

    block = stored_document(config).values.get("verify")
    if not isinstance(block, dict):
        return None
    try:
        return VerifyConfig.model_validate({"every": block.get("every")}).every
    except ValidationError:
        return None


def of_table(table: TableRecord, verified: VerificationRecord | None, now: datetime) -> VerifiedTableStatus:
    """Return the verification of one table. Records of an earlier incarnation do not count."""
    record = verified
    if record is None or record.incarnation != table.incarnation:
        record = nothing_verified(table.table, table.incarnation)
    age = None if record.proven_at is None else round(max(0.0, (now - record.proven_at).total_seconds()), 1)
    return VerifiedTableStatus(
        verify_age_seconds=age,
        proven_at=record.proven_at,
        proven_position=record.proven_position,
        result=record.result,
        verified_at=record.verified_at,
        position=record.position,
        rows=record.rows,
        reason=record.reason,
        ranges_proven=record.ranges_proven,
        ranges_total=record.ranges_total,
        not_compared=record.not_compared,
    )


def of_tables(tables: Sequence[TableStatus], every: timedelta | None) -> VerifyStatus:
    """Return the verification of all tables together."""
    proven = [table for table in tables if _is_proven(table, every)]
    ages = [table.verify.verify_age_seconds for table in tables]
    known_ages = [age for age in ages if age is not None]
    rows, all_rows = (sum(table.verify.rows or 0 for table in some) for some in (proven, tables))
    is_counted = all(table.verify.rows is not None for table in tables)
    return VerifyStatus(
        every_s=None if every is None else every.total_seconds(),
        verify_age_seconds=max(known_ages) if known_ages and len(known_ages) == len(ages) else None,
        tables_proven=len(proven),
        coverage_tables=round(len(proven) / len(tables), 4) if tables else None,
        coverage_rows=round(rows / all_rows, 4) if is_counted and all_rows else None,
        result=_result([table.verify.result for table in tables]),
    )


def _is_proven(table: TableStatus, every: timedelta | None) -> bool:
    age = table.verify.verify_age_seconds
    is_doubted = table.verify.result in (Result.DIFFERENT, Result.EQUAL_IN_PART)
    return age is not None and not is_doubted and (every is None or age <= every.total_seconds())


def _result(results: Sequence[Result | None]) -> Result | None:
    if all(result is None for result in results):
        return None
    if Result.DIFFERENT in results:
        return Result.DIFFERENT
    if not set(results) <= {Result.EQUAL, Result.EQUAL_IN_PART}:
        return Result.NOT_VERIFIED
    return Result.EQUAL_IN_PART if Result.EQUAL_IN_PART in results else Result.EQUAL

"""Counters of a replicator: they grow in the transactions that make the counted things durable, and never decrease.

They end with the replicator. Events that a crash keeps from being recorded are not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, select

from replicator.model.counts import BatchCount, CounterName, Counts
from replicator.model.processes.reports import ApplyReport, Report, RetryReport
from replicator.state.codec import write_error
from replicator.state.database.engine import insert_into
from replicator.state.records import AppliedRecord, ErrorRecord, HistoryEntry, Segment, Stage, TableRecord
from replicator.state.tables import APPLIED, COUNTERS, TABLES
from replicator.state.verification.records import RangeOutcome, VerificationOutcome


def add(connection: Connection, name: str, counts: Counts) -> None:
    """Add to a replicator's counters, in the same order in every process."""
    rows = [
        {"replicator": name, "counter": counter.value, "labels": list(labels), "value": value}
        for (counter, labels), value in sorted(counts.items())
        if value
    ]
    if rows:
        statement = insert_into(connection, COUNTERS)
        grown = {"value": COUNTERS.c.value + statement.excluded.value}
        key = [column.name for column in COUNTERS.primary_key]
        connection.execute(statement.on_conflict_do_update(index_elements=key, set_=grown), rows)


def read(connection: Connection, name: str) -> Counts:
    """Return a replicator's counters. Counters of other versions are left out."""
    rows = connection.execute(select(COUNTERS).where(COUNTERS.c.replicator == name))
    known = {counter.value: counter for counter in CounterName}
    return Counter(
        {(known[row.counter], tuple(row.labels)): row.value for row in rows if row.counter in known},
    )


def of_seal(segments: Iterable[Segment], changes: Mapping[str, int], history: Iterable[HistoryEntry]) -> Counts:
    """Return the counts of a seal. `changes`: changes of the source's log, by operation."""
    counts: Counts = Counter()
    for operation, number in changes.items():
        counts[CounterName.CHANGES_CAPTURED, (operation,)] += number
    counts[CounterName.ROWS_SNAPSHOTTED, ()] = sum(f.snapshot_rows for segment in segments for f in segment.files)
    for entry in history:
        for change in entry.changes:
            counts[CounterName.SCHEMA_CHANGES, (change, entry.decision.value)] += 1
    return counts


def of_batch(batch: BatchCount | None) -> Counts:
    """Return the counts of a batch."""
    return Counter() if batch is None else batch.counts()


def of_report(report: Report, retried: Mapping[str, int]) -> Counts:
    """Return the counts of a report: its retry, or the retries of tables, by code."""
    counts: Counts = Counter()
    match report:
        case RetryReport():
            counts[CounterName.RETRIES, (report.role,)] = 1
            counts[CounterName.ERRORS, (report.code,)] = 1
        case ApplyReport():
            for code, number in retried.items():
                counts[CounterName.RETRIES, ("table",)] += number
                counts[CounterName.ERRORS, (code,)] += number
        case _:
            pass
    return counts


def of_error(error: ErrorRecord | None) -> Counts:
    """Return the counts of an error that ended a run."""
    return Counter() if error is None else Counter({(CounterName.ERRORS, (error.code,)): 1})


def of_verification(outcome: VerificationOutcome) -> Counts:
    """Return the counts of a comparison."""
    counts: Counts = Counter({(CounterName.VERIFICATIONS, (outcome.result.value,)): 1})
    counts[CounterName.VERIFY_ROWS, ()] = outcome.rows or 0
    return counts


def of_range(outcome: RangeOutcome) -> Counts:
    """Return the counts of the comparison of a range."""
    return Counter({(CounterName.VERIFY_ROWS, ()): outcome.range.rows})


def of_failed_tables(connection: Connection, name: str, records: Sequence[TableRecord]) -> Counts:
    """Return the counts of table records that are about to be stored: the errors with which tables failed, each once."""
    failed = {
        str(record.table): error for record in records if record.stage is Stage.FAILED and (error := record.error)
    }
    if not failed:
        return Counter()
    mine = (TABLES.c.replicator == name) & TABLES.c.table_name.in_(failed)
    stored = connection.execute(select(TABLES.c.table_name, TABLES.c.record).where(mine))
    return _new_errors(failed, {row.table_name: row.record["error"] for row in stored})


def of_failed_applied(connection: Connection, name: str, records: Sequence[AppliedRecord]) -> Counts:
    """Return the same counts for apply's records of tables."""
    failed = {str(record.table): error for record in records if record.has_failed and (error := record.error)}
    if not failed:
        return Counter()
    mine = (APPLIED.c.replicator == name) & APPLIED.c.table_name.in_(failed)
    stored = connection.execute(select(APPLIED.c.table_name, APPLIED.c.error).where(mine))
    return _new_errors(failed, {row.table_name: row.error for row in stored})


def _new_errors(failed: Mapping[str, ErrorRecord], stored: Mapping[str, Mapping[str, Any] | None]) -> Counts:
    counts: Counts = Counter()
    for table, error in failed.items():
        if write_error(error) != stored.get(table):
            counts[CounterName.ERRORS, (error.code,)] += 1
    return counts

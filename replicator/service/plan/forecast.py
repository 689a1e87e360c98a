"""Forecast of the effort of replicating tables, computed from statistics, a sample and settings. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from pydantic import Field, NonNegativeInt

from replicator.config import JournalConfig, format_duration, format_size
from replicator.model.documents.status import StatusModel
from replicator.model.errors import Problem, Severity
from replicator.model.figures import Basis, Figure, derived, product, total, unknown
from replicator.model.schema import TableSchema
from replicator.plugins.planning import Price, SourceStatistics, SupportsTargetPlanning, TableCost, TableLoad
from replicator.service.plan.sampling import Sampled, TableSample, is_young
from replicator.service.status.snapshots import counted, duration

DAY_S: Final = 86_400.0
_TIB: Final = 1 << 40
_NOT_SAMPLED: Final = "the table was not sampled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Values of the configuration.

    Attributes:
        journal: The block `journal`.
        max_wait_s: Time that a table rests between two batches.
        target: The target's settings, if they can tell the cost of tables there.
        free_bytes: Free bytes on the disk of the journal.
        price: Price of a TiB given by the user, instead of the documented price.
    """

    journal: JournalConfig
    max_wait_s: float
    target: SupportsTargetPlanning | None
    free_bytes: Figure
    price: Price | None = None


class TableForecast(StatusModel, title="TableForecastDocument"):
    """Forecast of a table."""

    table: str = Field(description="schema.table, as in the status.")
    sampled_rows: NonNegativeInt = Field(description="Rows of it that were read.")
    rows: Figure = Field(description="Its rows.")
    source_bytes: Figure = Field(description="Its size in the source, without indexes.")
    snapshot_s: Figure = Field(description="Seconds that its first snapshot takes, until it is in the journal.")
    changes_per_day: Figure = Field(description="Rows that are inserted, updated and deleted in a day.")
    merges_per_day: Figure = Field(description="Batches in which these are applied.")
    journal_snapshot_bytes: Figure = Field(description="Size of its snapshot in the journal.")
    journal_bytes_per_day: Figure = Field(description="Size of a day's changes in the journal.")
    target_bytes: Figure = Field(description="Its size in the target after the snapshot.")
    target_bytes_per_day: Figure = Field(description="Bytes that its batches write in a day.")
    billed_bytes_per_day: Figure | None = Field(
        description="Bytes that the target bills for its batches; null if it bills nothing."
    )


class Totals(StatusModel, title="TotalsDocument"):
    """Forecast of all tables."""

    rows: Figure = Field(description="Rows.")
    source_bytes: Figure = Field(description="Size in the source.")
    snapshot_s: Figure = Field(
        description="Seconds of the first snapshot, until it is in the journal. The target's time for it is not included."
    )
    changes_per_day: Figure = Field(description="Changes in a day.")
    merges_per_day: Figure = Field(description="Batches in a day.")
    journal_bytes: Figure = Field(
        description="The most that the journal takes: the snapshot, and the changes of journal.keep."
    )
    target_bytes: Figure = Field(description="Size in the target after the snapshot.")
    target_bytes_per_day: Figure = Field(description="Bytes that batches write in a day.")
    billed_bytes_per_day: Figure | None = Field(
        description="Bytes that the target bills for a day's batches; null if it bills nothing."
    )
    usd_per_day: Figure | None = Field(description="Their price in US dollars; null if there is none.")
    log_bytes_per_day: Figure = Field(description="Growth of the source's log in a day.")
    log_pause_s: Figure | None = Field(
        description="Seconds that a worker may be stopped before the source gives up log that is needed; null: the source has no limit."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Forecast of all tables. `problems`: settings and figures that do not go together."""

    tables: Sequence[TableForecast]
    totals: Totals
    problems: Sequence[Problem]


def forecast(schemas: Sequence[TableSchema], sampled: Sampled, given: Given) -> Forecast:
    """Compute the forecast."""
    speed = _seconds_per_byte(sampled)
    tables = [_table(schema, sampled, given, speed) for schema in schemas]
    billed = [one.billed_bytes_per_day for one in tables if one.billed_bytes_per_day is not None]
    billed_per_day = total(billed, "the sum of the tables") if billed else None
    price = given.price or (given.target.price() if given.target else None)
    before, after = sampled.before, sampled.after
    log_bytes_per_day = _per_day(sampled, before.log_bytes, after.log_bytes, before.log_since)
    totals = Totals(
        rows=total((one.rows for one in tables), "the sum of the tables"),
        source_bytes=total((one.source_bytes for one in tables), "the sum of the tables"),
        snapshot_s=total((one.snapshot_s for one in tables), "the sum of the tables, which are read one after another"),
        changes_per_day=total((one.changes_per_day for one in tables), "the sum of the tables"),
        merges_per_day=total((one.merges_per_day for one in tables), "the sum of the tables"),
        journal_bytes=_journal_bytes(tables, given.journal),
        target_bytes=total((one.target_bytes for one in tables), "the sum of the tables"),
        target_bytes_per_day=total((one.target_bytes_per_day for one in tables), "the sum of the tables"),
        billed_bytes_per_day=billed_per_day,
        usd_per_day=None if price is None or billed_per_day is None else _usd(billed_per_day, price),
        log_bytes_per_day=log_bytes_per_day,
        log_pause_s=_log_pause(after, log_bytes_per_day),
    )
    return Forecast(tables=tables, totals=totals, problems=_problems(totals, after, given))


def _usd(billed: Figure, price: Price) -> Figure:
    return replace(billed.times(price.usd_per_tib / _TIB), how=price.how)


def merges_per_day(changes_per_day: Figure, rest_s: float) -> Figure:
    """Return the number of batches in which a table's changes are applied: at most one in `rest_s`, and none if nothing changed.

    Changes are taken to be spread evenly over the day; if they come all at once, there are fewer batches.
    """
    slots = DAY_S / max(rest_s, 1e-3)
    every = f"{rest_s:g} s"
    if changes_per_day.value is None:
        return Figure(slots, Basis.ESTIMATED, f"at most one in {every}: how often the table changes is unknown")
    merges = -slots * math.expm1(-changes_per_day.value / slots)
    return derived(
        merges, f"one in {every} if anything changed, with changes spread evenly over the day", changes_per_day
    )


def _table(schema: TableSchema, sampled: Sampled, given: Given, speed: Figure) -> TableForecast:
    found = sampled.samples.get(schema.table)
    before, after = (of.tables.get(schema.table) for of in (sampled.before, sampled.after))
    if before is None or after is None:
        missing = unknown("the catalogue does not have the table")
        rows = size = changes = missing
    else:
        rows, size = after.rows, after.bytes
        changes = _per_day(sampled, before.changes, after.changes, sampled.before.changes_since)
    why = sampled.failed.get(schema.table, _NOT_SAMPLED)
    rows = _rows(rows, found)
    row_bytes = unknown(why)
    if found is not None and found.rows.num_rows:
        each = found.journal_bytes / found.rows.num_rows
        row_bytes = Figure(
            each, Basis.MEASURED, f"{counted(found.rows.num_rows, 'row')}, encoded as the journal's files"
        )
    elif found is not None:
        row_bytes = unknown("the table has no rows")
    rest_s = max(given.max_wait_s, given.journal.seal_every.total_seconds())
    merges = merges_per_day(changes, rest_s)
    load = TableLoad(
        schema=schema,
        sample=None if found is None else found.rows,
        rows=rows,
        row_bytes=row_bytes,
        changes_per_day=changes,
        merges_per_day=merges,
    )
    cost = _cost(given.target, load)
    return TableForecast(
        table=str(schema.table),
        sampled_rows=0 if found is None else found.rows.num_rows,
        rows=rows,
        source_bytes=size,
        snapshot_s=_snapshot_s(rows, size, found, speed, why),
        changes_per_day=changes,
        merges_per_day=merges,
        journal_snapshot_bytes=_times(rows, row_bytes, "rows times the size of a row of the sample"),
        journal_bytes_per_day=_times(changes, row_bytes, "changes times the size of a row of the sample"),
        target_bytes=cost.bytes,
        target_bytes_per_day=cost.written_per_day,
        billed_bytes_per_day=cost.billed_per_day,
    )


def _cost(target: SupportsTargetPlanning | None, load: TableLoad) -> TableCost:
    if target is None:
        missing = unknown("this type of target does not say")
        return TableCost(bytes=missing, written_per_day=missing)
    return target.table_cost(load)


def _times(count: Figure, each: Figure, how: str) -> Figure:
    """Multiply; zero times unknown is zero."""
    return derived(0.0, how, count) if count.value == 0 else product(how, count, each)


def _rows(estimate: Figure, found: TableSample | None) -> Figure:
    if found is None:
        return estimate
    read = found.rows.num_rows
    if found.is_whole:
        return Figure(read, Basis.MEASURED, "the sample read the whole table")
    if estimate.value is not None and estimate.value < read:
        return Figure(read, Basis.ESTIMATED, f"at least: the sample read more than {estimate.how} has")
    return estimate


def _seconds_per_byte(sampled: Sampled) -> Figure:
    """Return the seconds in which a byte of the source's tables was read, by the tables whose size is known."""
    seconds = size = 0.0
    for table, found in sampled.samples.items():
        known = sampled.after.tables.get(table)
        if known is None or not known.bytes.value or not known.rows.value or not found.rows.num_rows:
            continue
        seconds += found.seconds
        size += known.bytes.value * min(1.0, found.rows.num_rows / known.rows.value)
    if not size:
        return unknown(_NOT_SAMPLED)
    return Figure(seconds / size, Basis.ESTIMATED, "not sampled: as fast, by its size, as the tables that were")


def _snapshot_s(rows: Figure, size: Figure, found: TableSample | None, speed: Figure, why: str) -> Figure:
    if found is None:
        return unknown(why) if why != _NOT_SAMPLED else product(speed.how, size, speed)
    if found.is_whole:
        return Figure(found.seconds, Basis.MEASURED, "the sample read and encoded the whole table")
    each = Figure(
        found.seconds / max(found.rows.num_rows, 1),
        Basis.MEASURED,
        f"the first {counted(found.rows.num_rows, 'row')}, read and encoded in {found.seconds:.2f} s",
    )
    return product(each.how, rows, each)


def _per_day(sampled: Sampled, first: Figure, last: Figure, since: datetime | None) -> Figure:
    """Return the growth of a counter in a day: since it began, or else between two readings."""
    if first.value is None or last.value is None:
        return last if last.value is None else first
    until = sampled.after.at
    if since is not None and not is_young(since, until):
        age_s = (until - since).total_seconds()
        how = f"{last.how} since {since:%Y-%m-%d %H:%M} UTC ({duration(age_s)})"
        return Figure(last.value / age_s * DAY_S, Basis.COUNTED, how)
    seconds = (until - sampled.before.at).total_seconds()
    if seconds <= 0 or last.value < first.value:
        return unknown(f"{last.how} was reset meanwhile")
    how = f"{last.how}, two readings {seconds:.1f} s apart"
    return Figure((last.value - first.value) / seconds * DAY_S, Basis.MEASURED, how)


def _log_pause(found: SourceStatistics, per_day: Figure) -> Figure | None:
    """Return the time that a worker may be stopped."""
    if found.log_kept_for is not None:
        return Figure(found.log_kept_for.total_seconds(), Basis.CONFIGURED, found.log_kept_how)
    if found.log_kept_bytes is None:
        return None
    if not per_day.value:
        return unknown(per_day.how if per_day.value is None else f"{found.log_kept_how}; the log does not grow now")
    return derived(
        found.log_kept_bytes / per_day.value * DAY_S, f"{found.log_kept_how}, as fast as the log grows", per_day
    )


def _journal_bytes(tables: Sequence[TableForecast], journal: JournalConfig) -> Figure:
    """Return the bytes of a snapshot, and of the changes for as long as applied segments are kept."""
    days = journal.keep.total_seconds() / DAY_S
    snapshot = total((one.journal_snapshot_bytes for one in tables), "the snapshot")
    changes = total((one.journal_bytes_per_day.times(days) for one in tables), "the changes")
    if changes.value is None and snapshot.value is not None:
        return derived(snapshot.value, f"at least: the snapshot. Of the changes: {changes.how}", snapshot)
    return total(
        [snapshot, changes], f"the snapshot, and the changes of journal.keep ({format_duration(journal.keep)})"
    )


def _problems(found: Totals, source: SourceStatistics, given: Given) -> Sequence[Problem]:
    problems: list[Problem] = []
    pause, snapshot = found.log_pause_s, found.snapshot_s.value or 0.0
    if pause is not None and pause.value is not None and pause.value < max(DAY_S, snapshot):
        problems.append(
            Problem(
                code="plan_log_short",
                message=f"The source keeps its log for about {duration(pause.value)} ({source.log_kept_how}): a worker that is stopped "
                f"for longer loses its position. The first snapshot takes about {duration(snapshot)}.",
                location="source",
                action="Have the source keep its log for longer than any stop of a worker, at least a day.",
                severity=Severity.WARNING,
            )
        )
    needed = found.journal_bytes.value
    if needed is not None and needed > given.journal.bytes_max:
        problems.append(
            Problem(
                code="plan_journal_limit",
                message=f"The journal will take about {format_size(round(needed))}, more than journal.bytes_max "
                f"({format_size(given.journal.bytes_max)}).",
                location="journal.bytes_max",
                action="Raise journal.bytes_max, or lower journal.keep.",
                severity=Severity.WARNING,
            )
        )
    free = given.free_bytes.value
    if needed is not None and free is not None and needed > free:
        problems.append(
            Problem(
                code="plan_disk_small",
                message=f"The journal will take about {format_size(round(needed))}; {given.free_bytes.how} has {format_size(round(free))} "
                "free.",
                location="journal.uri",
                action="Name a larger disk in journal.uri, or lower journal.keep.",
                severity=Severity.WARNING,
            )
        )
    if given.target is not None and found.billed_bytes_per_day is not None:
        problems += given.target.planned_problems(found.billed_bytes_per_day, found.merges_per_day)
    return problems

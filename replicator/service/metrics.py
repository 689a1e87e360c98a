"""Metrics of all replicators of a state store, for Prometheus. Nothing is counted here: the store holds the counters."""

from __future__ import annotations

import importlib.metadata
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from replicator.model.counts import BATCH_ROWS_BOUNDS, BATCH_SECONDS_BOUNDS, BEYOND, CounterName, Counts
from replicator.model.documents.status import ReplicatorState, ReplicatorStatus, TableState, TableStatus
from replicator.model.errors import ConfigError
from replicator.observability.metrics import BY_NAME, METRICS, PREFIX, MetricKind
from replicator.service.configuring.stored_settings import stored_settings
from replicator.service.status.assemble import status
from replicator.state import table_life
from replicator.state.records import ReplicatorRecord
from replicator.state.store import StateStore

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
TABLES_MAX: Final = 1000
"""Limit for all replicators together: above it, only the worst tables of each are shown one by one."""
WORST_SHOWN: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Input of a replicator's metrics.

    Attributes:
        oldest_unapplied_s: Age of the oldest segment that some table has not applied; 0 if there is none.
        journal_disk: Free and all bytes of the journal's disk; None if it is not on this host.
        started: Start of running snapshots, by table.
        now: The store's clock.
    """

    document: ReplicatorStatus
    counts: Counts
    journal_bytes_max: int
    oldest_unapplied_s: float
    journal_disk: tuple[int, int] | None
    started: Mapping[str, datetime]
    now: datetime


Samples = Iterator[tuple[str, tuple[str, ...], float]]
"""Names without the prefix, label values, values."""


def exposition(store: StateStore) -> bytes:
    """Return the metrics in Prometheus' text format (`CONTENT_TYPE`).

    Raises:
        ConfigError: `missing_extra`: prometheus-client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, generate_latest
    except ImportError as error:
        raise ConfigError(
            "Metrics need prometheus-client, which is not installed.",
            code="missing_extra",
            action="Install `replicator[web]`.",
        ) from error
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(families([observed(store, record) for record in store.replicators()])))
    return generate_latest(registry)


def observed(store: StateStore, record: ReplicatorRecord) -> Observed:
    """Read the input of a replicator's metrics."""
    now, tables, applied = store.now(), store.tables(record.name), store.applied(record.name)
    ends = store.journal.feed_tables(record.name)
    behind = {
        table.table: last
        for table in tables
        if table_life.is_replicated(table) and not table_life.has_failed(table, applied.get(table.table))
        for last in (applied[table.table].last_applied if table.table in applied else -1,)
        if ends.get(table.table, -1) > last
    }
    oldest = store.journal.oldest_above(record.name, behind)
    return Observed(
        document=status(store, record),
        counts=store.counters(record.name),
        journal_bytes_max=stored_settings(record.config).config.journal.bytes_max,
        oldest_unapplied_s=0.0 if oldest is None else max(0.0, (now - oldest).total_seconds()),
        journal_disk=journal_disk(record.journal_uri),
        started={str(t.table): t.snapshot.started_at for t in tables if t.snapshot and t.snapshot.started_at},
        now=now,
    )


def worst_first(tables: Iterable[TableStatus]) -> Sequence[TableStatus]:
    """Return the tables sorted: failed ones, then those that do not meet their objective, then of unknown freshness, then by age."""

    def badness(table: TableStatus) -> tuple[bool, bool, bool, bool, float]:
        has_failed = table.state in (TableState.FAILED, TableState.DROPPED)
        is_unknown = table.freshness_s is None
        return has_failed, bool(table.alarms), table.is_objective_met is False, is_unknown, table.freshness_s or 0.0

    return sorted(tables, key=badness, reverse=True)


def families(all_observed: Sequence[Observed]) -> Sequence[Family]:
    """Build the metrics. Pure."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    made: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
    histograms: dict[str, HistogramMetricFamily] = {}
    for metric in METRICS:
        match metric.kind:
            case MetricKind.GAUGE:
                made[metric.name] = GaugeMetricFamily(PREFIX + metric.name, metric.help, labels=metric.labels)
            case MetricKind.COUNTER:
                made[metric.name] = CounterMetricFamily(PREFIX + metric.name, metric.help, labels=metric.labels)
            case MetricKind.HISTOGRAM:
                histograms[metric.name] = HistogramMetricFamily(PREFIX + metric.name, metric.help, labels=metric.labels)
    made["build_info"].add_metric((importlib.metadata.version("replicator"),), 1.0)
    are_many = sum(len(one.document.tables) for one in all_observed) > TABLES_MAX
    for one in all_observed:
        name = one.document.name
        shown = worst_first(one.document.tables)[:WORST_SHOWN] if are_many else one.document.tables
        for metric_name, labels, value in (*_of_replicator(one), *_of_tables(one, shown), *_counted(one.counts)):
            made[metric_name].add_metric((name, *labels), value)
        for metric_name, bounds, total in _histograms(one.counts):
            histograms[metric_name].add_metric((name,), buckets=bounds, sum_value=total)
    return [*made.values(), *histograms.values()]


def _of_replicator(one: Observed) -> Samples:
    document = one.document
    for state in ReplicatorState:
        yield "state", (state.value,), float(document.state is state)
    yield "worker_alive", (), float(document.worker is not None)
    for table_state in TableState:
        yield "tables", (table_state.value,), float(sum(table.state is table_state for table in document.tables))
    yield "tables_stale", (), float(sum(table.is_objective_met is False for table in document.tables))
    codes = sorted({alarm.code for table in document.tables for alarm in table.alarms})
    for code in codes:
        alarmed = sum(any(alarm.code == code for alarm in table.alarms) for table in document.tables)
        yield "tables_alarmed", (code,), float(alarmed)
    ages = [table.freshness_s for table in document.tables if table.freshness_s is not None]
    headroom, disk, source = document.source.headroom, one.journal_disk, document.source
    optional = {
        "lease_epoch": document.worker.epoch if document.worker else None,
        "freshness_max_seconds": max(ages, default=None),
        "capture_lag_seconds": source.lag_s,
        "source_alive": source.is_alive,
        "source_log_retained_bytes": source.retained_bytes,
        "source_log_headroom_seconds": headroom.seconds if headroom else None,
        "source_log_headroom_ratio": headroom.share if headroom else None,
        "journal_bytes": document.journal.bytes,
        "journal_bytes_max": one.journal_bytes_max,
        "journal_disk_free_bytes": disk[0] if disk else None,
        "journal_disk_bytes": disk[1] if disk else None,
        "journal_oldest_unapplied_seconds": one.oldest_unapplied_s,
        "alerts_open": len(document.alerts.open) if document.alerts else None,
    }
    for channel in document.alerts.channels if document.alerts else ():
        yield "alert_messages_waiting", (channel.channel,), float(channel.waiting)
    yield from ((name, (), float(value)) for name, value in optional.items() if value is not None)


def _of_tables(one: Observed, tables: Iterable[TableStatus]) -> Samples:
    sealed_lag = one.document.source.lag_s
    for table in tables:
        for state in TableState:
            yield "table_state", (table.table, state.value), float(table.state is state)
        freshness, progress = table.freshness_s, table.snapshot
        is_running = progress is not None and not progress.is_complete
        different = [alarm.count for alarm in table.alarms if alarm.code == "verify_different"]
        was_verified = table.verify.result is not None
        optional = {
            "freshness_seconds": freshness,
            "freshness_objective_seconds": table.freshness_objective_s,
            "apply_lag_seconds": None if freshness is None or sealed_lag is None else max(0.0, freshness - sealed_lag),
            "snapshot_rows": progress.rows if progress and is_running else None,
            "snapshot_rows_estimate": progress.estimated_rows if progress and is_running else None,
            "snapshot_eta_seconds": _eta_s(table, one) if is_running else None,
            "verify_age_seconds": table.verify.verify_age_seconds,
            "verify_mismatched_rows": sum(different) if different or was_verified else None,
        }
        yield from ((name, (table.table,), float(value)) for name, value in optional.items() if value is not None)


def _eta_s(table: TableStatus, one: Observed) -> float | None:
    progress, started = table.snapshot, one.started.get(table.table)
    if progress is None or started is None or not progress.estimated_rows or not progress.rows:
        return None
    passed_s = (one.now - started).total_seconds()
    return max(0.0, passed_s * (progress.estimated_rows - progress.rows) / progress.rows)


_COUNTERS: Final = {
    CounterName.CHANGES_CAPTURED: "changes_captured",
    CounterName.ROWS_SNAPSHOTTED: "rows_snapshotted",
    CounterName.RETRIES: "retries",
    CounterName.ERRORS: "errors",
    CounterName.SCHEMA_CHANGES: "schema_changes",
    CounterName.VERIFY_ROWS: "verify_rows",
    CounterName.VERIFICATIONS: "verifications",
    CounterName.ALERTS_SENT: "alerts_sent",
    CounterName.ALERT_FAILURES: "alert_failures",
    CounterName.ALERTS_GIVEN_UP: "alerts_given_up",
    CounterName.LINEAGE_EVENTS: "lineage_events",
}
_HISTOGRAMS: Final = {
    "batch_rows": (CounterName.BATCH_ROWS, BATCH_ROWS_BOUNDS, CounterName.BATCH_ROWS_SUM, 1),
    "batch_seconds": (CounterName.BATCH_SECONDS, BATCH_SECONDS_BOUNDS, CounterName.BATCH_MICROSECONDS_SUM, 1_000_000),
}


def _counted(counts: Counts) -> Samples:
    """Yield the counters. Those without further labels begin at 0, so that their first increase is seen."""
    for counter, name in _COUNTERS.items():
        if len(BY_NAME[name].labels) == 1:
            yield name, (), float(counts[counter, ()])
    for (counter, labels), value in sorted(counts.items()):
        if labels and counter in _COUNTERS:
            yield _COUNTERS[counter], labels, float(value)
    yield (
        "batches_applied",
        (),
        float(sum(n for (counter, _), n in counts.items() if counter is CounterName.BATCH_ROWS)),
    )


def _histograms(counts: Counts) -> Iterator[tuple[str, list[tuple[str, float]], float]]:
    """Yield cumulated histograms, as Prometheus wants them; also by bounds that another version had."""
    for name, (counter, bounds, sum_counter, unit) in _HISTOGRAMS.items():
        parts = {labels[0]: value for (of, labels), value in counts.items() if of is counter}
        total = 0.0
        buckets: list[tuple[str, float]] = []
        for bound in sorted({*(f"{bound:g}" for bound in bounds), *parts, BEYOND}, key=float):
            total += parts.get(bound, 0)
            buckets.append((bound if bound == BEYOND else str(float(bound)), total))
        yield name, buckets, counts[sum_counter, ()] / unit


def journal_disk(uri: str) -> tuple[int, int] | None:
    """Return free and all bytes of the disk of a journal in a local folder; None if it is not on this host."""
    parts = urlsplit(uri)
    if parts.scheme not in ("", "file"):
        return None
    folder = Path(unquote(parts.path) if parts.scheme else uri)
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None  # it is on another host, or not there yet
    return usage.free, usage.total


class _Collected:
    """Families that are already built, in the form that a registry asks for."""

    def __init__(self, made: Sequence[Family]) -> None:
        self._made = made

    def collect(self) -> Iterable[Family]:
        """Return the families, as prometheus_client requires."""
        return self._made

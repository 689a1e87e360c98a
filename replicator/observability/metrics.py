"""Catalogue of metrics: name, kind, labels and meaning of each. docs/metrics.md lists the same."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

PREFIX: Final = "replicator_"


class MetricKind(StrEnum):
    """Prometheus type of a metric."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric; `name` without the prefix, and as a counter without `_total`."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ("replicator",)

    @property
    def full_name(self) -> str:
        """Name as Prometheus stores it; of a histogram without `_bucket`, `_sum` and `_count`."""
        return f"{PREFIX}{self.name}{'_total' if self.kind is MetricKind.COUNTER else ''}"


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(name=name, kind=MetricKind.GAUGE, help=text, labels=("replicator", *labels))


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(name=name, kind=MetricKind.COUNTER, help=text, labels=("replicator", *labels))


def _histogram(name: str, text: str) -> Metric:
    return Metric(name=name, kind=MetricKind.HISTOGRAM, help=text)


METRICS: Final = (
    Metric(name="build_info", kind=MetricKind.GAUGE, help="1; its label is the version that wrote the metrics.", labels=("version",)),
    _gauge("state", "1 for the state of the replicator, 0 for the other states.", "state"),
    _gauge("worker_alive", "1 if a worker runs the replicator, otherwise 0."),
    _gauge("lease_epoch", "Epoch of the worker; grows with every take-over. Absent without a worker."),
    _gauge("tables", "Number of tables in a state.", "state"),
    _gauge("tables_stale", "Number of tables that do not meet their freshness objective, or have failed with one."),
    _gauge("tables_alarmed", "Number of tables with an alarm.", "code"),
    _gauge("freshness_max_seconds", "Largest known freshness of the tables. Absent if none is known."),
    _gauge("capture_lag_seconds", "Time on the source's clock since the commit up to which everything is in the journal."),
    _gauge("source_alive", "1 if the source's log told anything within three heartbeats, otherwise 0. Absent while capture is down."),
    _gauge("source_log_retained_bytes", "Log that the source keeps for the replicator."),
    _gauge("source_log_headroom_seconds", "Time until the source gives up the log that is still needed. Absent without a limit."),
    _gauge("source_log_headroom_ratio", "What is left of the source's limit for its log, from 0 to 1. Absent without a limit."),
    _gauge("journal_bytes", "Bytes of the journal."),
    _gauge("journal_bytes_max", "Its limit: journal.bytes_max."),
    _gauge("journal_disk_free_bytes", "Free bytes of the disk of a journal in a local folder, where the metrics are read there."),
    _gauge("journal_disk_bytes", "Size of that disk."),
    _gauge("journal_oldest_unapplied_seconds", "Age of the oldest segment that a table, unless it failed, has not applied; 0 if none."),
    _gauge("table_state", "1 for the state of the table, 0 for the other states.", "table", "state"),
    _gauge("freshness_seconds", "Time on the source's clock since the commit up to which everything is in the target.", "table"),
    _gauge("freshness_objective_seconds", "Freshness objective of the table.", "table"),
    _gauge("apply_lag_seconds", "Part of the freshness that arises after the journal.", "table"),
    _gauge("snapshot_rows", "Rows that the running snapshot has captured.", "table"),
    _gauge("snapshot_rows_estimate", "Rows that it will capture, by the source's statistics.", "table"),
    _gauge("snapshot_eta_seconds", "Time until all of them are captured, at the rate so far.", "table"),
    _gauge("verify_age_seconds", "Time since the last proof that the table was equal began.", "table"),
    _gauge("verify_mismatched_rows", "Rows that differed when the table was last verified.", "table"),
    _gauge("alerts_open", "Number of open alerts. Absent without alerts in the configuration."),
    _gauge("alert_messages_waiting", "Messages that wait for a channel.", "channel"),
    _counter("changes_captured", "Changes of the source's log in the journal, without rows of snapshots.", "op"),
    _counter("rows_snapshotted", "Rows of snapshots in the journal."),
    _counter("batches_applied", "Batches that the target took."),
    _histogram("batch_rows", "Changes of a batch that the target took."),
    _histogram("batch_seconds", "Time that the target took for a batch."),
    _counter("retries", "Attempts that failed and are repeated: of capture, of apply, or of a table.", "where"),
    _counter("errors", "Errors at which a table, a process or a run failed, or had to wait.", "code"),
    _counter("schema_changes", "Changes of tables' definitions.", "kind", "decision"),
    _counter("verify_rows", "Rows of the target that were compared with the source."),
    _counter("verifications", "Comparisons of tables.", "result"),
    _counter("alerts_sent", "Messages about alerts that a channel took.", "channel"),
    _counter("alert_failures", "Attempts to deliver a message that failed.", "channel"),
    _counter("alerts_given_up", "Messages that were given up.", "channel"),
    _counter("lineage_events", "Events for OpenLineage that were sent, or dropped because they could not be.", "result"),
)  # fmt: skip

BY_NAME: Final = {metric.name: metric for metric in METRICS}

"""Metrics, made from a real state store."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from replicator.cli.entry import main
from replicator.model.counts import BatchCount, CounterName
from replicator.model.documents.alerts import AlertKind, AlertMessage
from replicator.model.documents.verdict import Result
from replicator.model.events import DDLOperation
from replicator.model.offset import Offset
from replicator.model.processes.reports import ApplyReport, CaptureReport, RetryReport
from replicator.model.schema import TableId
from replicator.observability.metrics import METRICS, PREFIX, MetricKind
from replicator.service import metrics
from replicator.state import holder_id
from replicator.state.alert_records import AlertRecord
from replicator.state.records import (
    AlarmRecord,
    AppliedRecord,
    Decision,
    ErrorRecord,
    HistoryEntry,
    Lease,
    Segment,
    SegmentFile,
    SnapshotProgress,
    Stage,
    TableRecord,
    TargetCopy,
)
from replicator.state.store import StateStore
from replicator.state.verification.records import VerificationOutcome
from replicator.state.watches import WatchJob
from replicator_testbed.present import present

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
ORDERS, COPYING, FAILED = (TableId("public", name) for name in ("orders", "snapshotting", "failed"))
ERROR = ErrorRecord(code="schema_changed", message="no", action=None, at=NOW)
CONFIG = "name: shop\nfreshness: 5m\njournal: {bytes_max: 1GiB}\nalerts: {commands: {ops: {argv: ['false']}}}\n"


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/state.db"


@pytest.fixture
def store(url: str, clock: Clock) -> Iterator[StateStore]:
    store = StateStore(url, clock=clock)
    yield store
    store.close()


def file(first: int, last: int, *, snapshot_rows: int = 0) -> SegmentFile:
    return SegmentFile(
        table=ORDERS, incarnation=1, schema_fingerprint="0" * 16, uri=f"file:///j/{first}.parquet", rows=last - first + 1, bytes=100,
        sha256="ab" * 32, first=first, last=last, snapshot_rows=snapshot_rows, has_absent=False, has_key_changes=False,
    )  # fmt: skip


def segment(id_: int, epoch: int, *files: SegmentFile, sealed_at: datetime = NOW, age_s: int = 2) -> Segment:
    return Segment(
        id=id_, first=files[0].first, last=files[-1].last, epoch=epoch, offset=Offset.of({"lsn": id_}),
        source_time=NOW - timedelta(seconds=age_s), ring=(), files=files, events=(), sealed_at=sealed_at,
    )  # fmt: skip


def fill(store: StateStore, journal: str) -> Lease:
    """A replicator with everything that a metric tells of."""
    store.create_replicator("shop", CONFIG, journal)
    lease = present(store.leases.acquire("shop", holder_id(), 60))
    entry = HistoryEntry(
        sequence_num=0, table=ORDERS, incarnation=1, operation=DDLOperation.ALTER_TABLE, changes=("add_column", "drop_column"),
        decision=Decision.APPLY, at=NOW,
    )  # fmt: skip
    running = SnapshotProgress(rows=25, estimated_rows=100, started_at=NOW - timedelta(seconds=30))
    store.seal(
        "shop",
        lease.epoch,
        [segment(1, lease.epoch, file(0, 9, snapshot_rows=4), sealed_at=NOW - timedelta(seconds=90), age_s=7)],
        tables=[
            TableRecord(table=ORDERS, incarnation=1, stage=Stage.STREAMING),
            TableRecord(table=COPYING, incarnation=1, stage=Stage.SNAPSHOT, snapshot=running),
            TableRecord(table=FAILED, incarnation=1, stage=Stage.FAILED, error=ERROR),
        ],
        history=[entry],
        changes={"INSERT": 3, "UPDATE": 2, "DELETE": 1},
    )
    store.seal(
        "shop",
        lease.epoch,
        [segment(2, lease.epoch, file(10, 19), sealed_at=NOW - timedelta(seconds=60))],
        changes={"INSERT": 10},
    )
    alarm = AlarmRecord(code="target_diverged", message="no", action="Do.", at=NOW, count=1)
    record = AppliedRecord(
        table=ORDERS, incarnation=1, last_applied=9, rows=10, copy=TargetCopy.WHOLE, alarms=(alarm,),
    )  # fmt: skip
    store.put_applied("shop", lease.epoch, [record], batch=BatchCount(rows=10, seconds=0.25))
    store.put_report("shop", RetryReport(role="apply", retry_in_s=1.0, code="target_full", message="no"))
    store.put_report("shop", ApplyReport(), retried={"throttled": 2})
    store.put_report(
        "shop",
        CaptureReport(
            retained_bytes=4096,
            log_bytes_left=1000,
            log_bytes_max=4000,
            log_bytes_per_s=10.0,
            silent_s=1.0,
            heartbeat_s=10.0,
        ),
    )
    compared = VerificationOutcome(
        table=ORDERS,
        incarnation=1,
        result=Result.EQUAL,
        is_whole=True,
        begun_at=NOW - timedelta(days=1),
        position=5,
        rows=50,
    )
    store.verifications.note("shop", compared)
    tell(store)
    return lease


def tell(store: StateStore) -> None:
    """A channel took one message, has given up one, and another one waits."""
    holder = holder_id()
    assert store.watches.hold("shop", WatchJob.ALERTS, holder, 60)
    message = AlertMessage(replicator="shop", uuid="u", created_at=NOW, summary="no", alerts=())
    open_ = AlertRecord(
        kind=AlertKind.TABLE_FAILED, table="public.failed", message="no", action=None, code=None, is_true=True, since=NOW,
        is_open=True,
    )  # fmt: skip
    for changed in ((open_,), (), ()):
        store.alerts.change("shop", holder, changed=changed, ended=(), messages={"ops": message}, messages_max=9)
    assert store.watches.hold("shop", WatchJob.LINEAGE, holder, 60)
    store.watches.remember("shop", WatchJob.LINEAGE, holder, {}, Counter({(CounterName.LINEAGE_EVENTS, ("sent",)): 1}))
    sent, given_up, _ = store.alerts.read("shop").messages
    store.alerts.sent("shop", holder, sent, NOW)
    store.alerts.failed("shop", holder, given_up, "no", NOW, None)


def scraped(store: StateStore) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample, by name and labels without the replicator."""
    found = {}
    for family in text_string_to_metric_families(metrics.exposition(store).decode()):
        for sample in family.samples:
            labels = frozenset((k, v) for k, v in sample.labels.items() if k != "replicator")
            assert (sample.name, labels) not in found
            found[sample.name, labels] = sample.value
    return found


def value(store: StateStore, name: str, **labels: str) -> float | None:
    return scraped(store).get((f"replicator_{name}", frozenset(labels.items())))


def test_everything_of_the_catalogue_is_exposed_and_nothing_else(store: StateStore, tmp_path: Path) -> None:
    fill(store, str(tmp_path))
    families = text_string_to_metric_families(metrics.exposition(store).decode())
    with_samples = {family.name: family.type for family in families if family.samples}
    assert with_samples == {PREFIX + metric.name: metric.kind.value for metric in METRICS}


def test_messages_about_alerts_are_counted_by_channel(store: StateStore, tmp_path: Path) -> None:
    fill(store, str(tmp_path))
    counted = ("alerts_sent_total", "alert_failures_total", "alerts_given_up_total", "alert_messages_waiting")
    assert {name: value(store, name, channel="ops") for name in counted} == dict.fromkeys(counted, 1.0)
    assert value(store, "alerts_open") == 1.0


def test_labels_are_those_of_the_catalogue(store: StateStore, tmp_path: Path) -> None:
    fill(store, str(tmp_path))
    labels = {PREFIX + metric.name: set(metric.labels) for metric in METRICS}
    for family in text_string_to_metric_families(metrics.exposition(store).decode()):
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == labels[family.name]


def test_values_are_those_of_the_store(store: StateStore, tmp_path: Path) -> None:
    fill(store, str(tmp_path))
    found = scraped(store)

    def of(name: str, **labels: str) -> float:
        return found[f"replicator_{name}", frozenset(labels.items())]

    assert [of("changes_captured_total", op=op) for op in ("INSERT", "UPDATE", "DELETE")] == [13, 2, 1]
    assert of("rows_snapshotted_total") == 4
    assert of("batches_applied_total") == 1
    assert (of("batch_rows_bucket", le="1.0"), of("batch_rows_bucket", le="10.0"), of("batch_rows_sum")) == (0, 1, 10)
    assert (of("batch_seconds_bucket", le="0.1"), of("batch_seconds_bucket", le="0.3")) == (0, 1)
    assert (of("batch_seconds_count"), of("batch_seconds_sum")) == (1, 0.25)
    assert (of("retries_total", where="apply"), of("retries_total", where="table")) == (1, 2)
    assert [of("errors_total", code=code) for code in ("target_full", "throttled", "schema_changed")] == [1, 2, 1]
    assert of("schema_changes_total", kind="drop_column", decision="apply") == 1
    assert (of("verify_rows_total"), of("verifications_total", result="equal")) == (50, 1)
    assert of("verify_age_seconds", table="public.orders") == 86_400
    assert (of("freshness_seconds", table="public.orders"), of("capture_lag_seconds")) == (7, 2)
    assert of("apply_lag_seconds", table="public.orders") == 5
    assert of("freshness_objective_seconds", table="public.orders") == 300
    assert of("snapshot_eta_seconds", table="public.snapshotting") == 90
    assert of("table_state", table="public.failed", state="failed") == 1
    assert (of("tables", state="failed"), of("tables_alarmed", code="target_diverged")) == (1, 1)
    assert (of("source_log_headroom_seconds"), of("source_log_headroom_ratio"), of("source_alive")) == (100, 0.25, 1)
    assert (of("journal_bytes"), of("journal_bytes_max")) == (200, 1 << 30)
    assert of("journal_oldest_unapplied_seconds") == 60


def test_counters_survive_a_restart_and_never_go_back(store: StateStore, url: str, tmp_path: Path) -> None:
    lease = fill(store, str(tmp_path))
    store.close()
    again = StateStore(url, clock=Clock())
    assert value(again, "changes_captured_total", op="INSERT") == 13
    # What is stored again is not counted again.
    again.put_tables(
        "shop",
        lease.epoch,
        [TableRecord(table=FAILED, incarnation=1, stage=Stage.FAILED, error=ERROR, is_altered=True)],
    )
    assert value(again, "errors_total", code="schema_changed") == 1
    again.seal("shop", lease.epoch, [segment(3, lease.epoch, file(20, 20))], changes={"INSERT": 1})
    assert value(again, "changes_captured_total", op="INSERT") == 14
    again.close()


def test_a_seal_that_is_refused_counts_nothing(store: StateStore, tmp_path: Path) -> None:
    lease = fill(store, str(tmp_path))
    with pytest.raises(Exception, match="does not continue"):
        store.seal("shop", lease.epoch, [segment(9, lease.epoch, file(90, 99))], changes={"INSERT": 10})
    assert value(store, "changes_captured_total", op="INSERT") == 13


def test_a_silent_source_and_a_log_that_shrinks_are_seen(store: StateStore, clock: Clock, tmp_path: Path) -> None:
    fill(store, str(tmp_path))
    store.put_report(
        "shop",
        CaptureReport(silent_s=31.0, heartbeat_s=10.0, log_bytes_left=1000, log_bytes_max=4000, log_bytes_per_s=10.0),
    )
    assert value(store, "source_alive") == 0
    # Capture is down: nothing is measured, and the log grows all the same.
    clock.now += timedelta(seconds=40)
    assert value(store, "source_alive") is None
    assert (value(store, "source_log_headroom_seconds"), value(store, "source_log_headroom_ratio")) == (60, 0.15)


def test_with_many_tables_the_worst_are_told_apart_and_all_are_summed_up(
    store: StateStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fill(store, str(tmp_path))
    monkeypatch.setattr(metrics, "TABLES_MAX", 2)
    monkeypatch.setattr(metrics, "WORST_SHOWN", 1)
    text = metrics.exposition(store).decode()
    assert set(re.findall(r'table="([^"]*)"', text)) == {"public.failed"}
    assert (value(store, "tables", state="failed"), value(store, "tables", state="streaming")) == (1, 1)


def test_the_command_prints_the_same(store: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, str(tmp_path))
    monkeypatch.setenv("REPLICATOR_HOME", str(tmp_path))
    monkeypatch.delenv("REPLICATOR_STATE_URL", raising=False)
    done = CliRunner().invoke(main, ["metrics"])
    assert done.exit_code == 0
    assert 'replicator_changes_captured_total{op="INSERT",replicator="shop"} 13.0' in done.stdout


def test_without_the_extra_the_command_says_so(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\nfrom replicator.cli.entry import main\nmain(['metrics'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"REPLICATOR_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "replicator[web]" in done.stderr


def test_counters_are_deleted_with_their_replicator(store: StateStore, tmp_path: Path) -> None:
    fill(store, str(tmp_path))
    store.delete_replicator("shop", present(store.replicator("shop")).uuid)
    store.create_replicator("shop", CONFIG, str(tmp_path))
    assert value(store, "changes_captured_total", op="INSERT") is None


def test_the_catalogue_has_no_name_twice() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert {metric.kind for metric in METRICS} == set(MetricKind)

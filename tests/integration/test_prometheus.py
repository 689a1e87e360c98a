"""A real Prometheus reads the metrics of a real state store, and the rules of `examples/monitoring/`."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from replicator.model.counts import BatchCount
from replicator.model.schema import TableId
from replicator.service.metrics import CONTENT_TYPE, exposition
from replicator.state import holder_id
from replicator.state.records import AppliedRecord, ErrorRecord, Segment, Stage, TableRecord, TargetCopy
from replicator.state.store import StateStore
from replicator_testbed.present import present
from replicator_testbed.scratch_servers import free_port
from replicator_testing.waiting import wait_until

RULES = Path(__file__).parents[2] / "examples" / "monitoring" / "alerts.yml"
NOW = datetime.now(UTC)
ORDERS, FAILED = TableId("public", "orders"), TableId("public", "failed")


@pytest.fixture(scope="module")
def programs() -> Path:
    """The folder of prometheus and promtool, as `make setup` unpacks them."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    root = Path(os.environ.get("REPLICATOR_PROMETHEUS_ROOT", cache / "replicator" / "prometheus"))
    if not (root / "usr/bin/prometheus").exists():
        pytest.skip("no Prometheus is unpacked: tools/install_prometheus.sh")
    return root / "usr/bin"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    store = StateStore(f"sqlite:///{tmp_path}/state.db")
    store.create_replicator("shop", "name: shop\nfreshness: 5m\n", str(tmp_path))
    lease = present(store.leases.acquire("shop", holder_id(), 600))
    error = ErrorRecord(code="schema_changed", message="no", action=None, at=NOW)
    store.put_tables(
        "shop",
        lease.epoch,
        [
            TableRecord(table=ORDERS, incarnation=1, stage=Stage.STREAMING),
            TableRecord(table=FAILED, incarnation=1, stage=Stage.FAILED, error=error),
        ],
    )
    # An idle table is as fresh as the last position that was sealed.
    hour_ago = NOW - timedelta(hours=1)
    segment = Segment(
        id=1, first=0, last=-1, epoch=lease.epoch, offset=None, source_time=hour_ago, ring=(), files=(), events=(), sealed_at=hour_ago,
    )  # fmt: skip
    store.seal("shop", lease.epoch, [segment], tables=[])
    record = AppliedRecord(table=ORDERS, incarnation=1, rows=10, copy=TargetCopy.WHOLE)
    store.put_applied("shop", lease.epoch, [record], batch=BatchCount(rows=10, seconds=0.25))
    yield store
    store.close()


@contextmanager
def served(store: StateStore) -> Iterator[int]:
    """The metrics at a port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = exposition(store)
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.end_headers()
            self.wfile.write(body)

        @override
        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def prometheus(programs: Path, folder: Path, port: int) -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """A Prometheus that reads that port every second; answers queries."""
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "replicator", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}],
    }
    file = folder / "prometheus.yml"
    file.write_text(json.dumps(config), encoding="utf-8")
    own = free_port()
    log = folder / "prometheus.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                programs / "prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{own}",
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
        )  # fmt: skip

    def query(text: str) -> list[dict[str, Any]]:
        assert process.poll() is None, log.read_text(encoding="utf-8")
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{own}/api/v1/query?{urllib.parse.urlencode({'query': text})}", timeout=10
            ) as answer:
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
                return found
        except urllib.error.URLError:
            return []  # it starts

    try:
        yield query
    finally:
        process.terminate()
        process.wait()


def test_prometheus_reads_the_metrics_and_the_rules_fire(programs: Path, store: StateStore, tmp_path: Path) -> None:
    with served(store) as port, prometheus(programs, tmp_path, port) as query:
        (sample,) = wait_until(lambda: query("replicator_freshness_seconds"), "the metrics are read")
        assert sample["metric"]["table"] == "public.orders"
        assert float(sample["value"][1]) >= 3600
        (median,) = query("histogram_quantile(0.5, replicator_batch_rows_bucket)")
        assert 1 <= float(median["value"][1]) <= 10
        firing = wait_until(lambda: query('ALERTS{alertname="ReplicatorTableFailed",alertstate="firing"}'), "it fires")
        assert firing[0]["metric"]["replicator"] == "shop"
        # It waits for a minute before it fires.
        pending = wait_until(lambda: query('ALERTS{alertname="ReplicatorFreshnessBreached"}'), "it is noticed")
        assert pending[0]["metric"]["table"] == "public.orders"
        assert query('ALERTS{alertname="ReplicatorNoWorker"}') == []


def test_promtool_accepts_the_metrics_and_the_rules(programs: Path, store: StateStore) -> None:
    for arguments, given in (
        (["metrics"], exposition(store)),
        (["rules", "--lint-fatal", str(RULES)], b""),
    ):
        done = subprocess.run(
            [programs / "promtool", "check", *arguments], input=given, capture_output=True, check=False
        )
        assert (done.returncode, done.stdout + done.stderr if done.returncode else b"") == (0, b"")

"""Spark on a cluster: a real standalone master with two workers, an executor and the apply worker killed, upkeep, the same rows."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from replicator.model.errors import FatalError
from replicator.model.schema import TableId
from replicator.plugins.registry import Registry
from replicator.plugins.target import TargetContext, TargetTable
from replicator.spark.session import SparkHost, SparkSettings
from replicator.testing.waiting import wait_until
from replicator_testbed.copies import Copies, DeltaCopies
from replicator_testbed.databases import Database
from replicator_testbed.demo.sources import Shop, Writer
from replicator_testbed.java import short_lived_options
from replicator_testbed.rig import Rig
from replicator_testbed.spark import lake_needs
from replicator_testbed.spark_cluster import SparkCluster

# Upkeep is due after nearly every merge, and a purge after nearly every row that is hidden.
UPKEEP = "{small_files_max: 2, deleted_rows_share_max: 0.0001, vacuum_every: 1m, vacuum_retention: 1m}"


@pytest.fixture
def cluster() -> Iterator[SparkCluster]:
    """A master and two workers of one core and 1 GiB."""
    with SparkCluster() as cluster:
        yield cluster


@pytest.fixture
def rig(cluster: SparkCluster, opened: tuple[Shop, Rig]) -> Rig:
    """A replicator of the shop whose Spark is the cluster."""
    return on(cluster, opened[1])


@pytest.fixture
def copies(rig: Rig) -> Copies:
    """What the lake holds."""
    return DeltaCopies(rig.lake)


def on(cluster: SparkCluster, rig: Rig, **settings: str) -> Rig:
    """Let the rig's Spark be the cluster."""
    options = {"spark.driver.memory": "1g", **short_lived_options(), **cluster.settings(**settings)}
    rig.extra = f"""
snapshot: {{chunk_rows: 1000}}
retry: {{backoff_initial: 20ms, backoff_max: 2s, give_up_after: 30m}}
spark:
  master: {cluster.url}
  executors_timeout: 20s
  settings: {json.dumps(options)}
"""
    rig.target = f"  type: delta\n  path: {rig.lake}\n  maintenance: {UPKEEP}"
    rig.write_yaml()
    return rig


def history(rig: Rig, table: str) -> list[str]:
    """The operations of a table of the lake, oldest first, as its log has them."""
    folder = rig.lake / rig.database.namespace / table / "_delta_log"
    found = []
    for file in sorted(folder.glob("*.json")):
        infos = [json.loads(line)["commitInfo"] for line in file.read_text().splitlines() if '"commitInfo"' in line]
        found += [info["operation"] for info in infos]
    return found


def apply_worker(rig: Rig, process: Any) -> psutil.Process:
    """The process that applies."""

    def look() -> psutil.Process | None:
        for child in psutil.Process(process.pid).children():
            if "apply" in child.cmdline():
                return child
        return None

    return wait_until(look, lambda: f"the apply worker runs\n{rig.output()}")


def goes_on(rig: Rig, cluster: SparkCluster) -> None:
    """Wait for one more merge."""
    merges = history(rig, "customers").count("MERGE")
    wait_until(
        lambda: history(rig, "customers").count("MERGE") > merges,
        lambda: f"one more merge\n{rig.status()}\n{rig.output()}\n{cluster.log}",
        timeout_s=300,
    )


def ends_equal(rig: Rig, process: subprocess.Popen[str], writer: Writer, copies: Copies) -> None:
    """Stop to write, let everything be applied, and compare."""
    writer.stop()
    rig.settle(process)
    assert rig.stop(process) == 0, rig.output()
    assert rig.differences(copies) == {}
    assert "internal_error" not in rig.output()


# Of the long runs until it is quick: beside other tests on two cores it has taken more than five minutes.
@pytest.mark.slow
def test_a_cluster_copies_and_looks_after_tables_whatever_dies(
    cluster: SparkCluster, rig: Rig, writer: Writer, copies: Copies
) -> None:
    process = rig.start()
    goes_on(rig, cluster)
    cluster.kill_executor()
    goes_on(rig, cluster)
    apply_worker(rig, process).send_signal(signal.SIGKILL)
    goes_on(rig, cluster)
    writer.stop()
    rig.settle(process)
    # Upkeep comes when there is nothing else to do.
    for table in rig.tables:
        wait_until(
            lambda table=table: "REORG" in history(rig, table),
            lambda table=table: f"{table} is purged: {history(rig, table)}\n{rig.output()}",
        )
    ends_equal(rig, process, writer, copies)


def test_executors_that_do_not_share_the_lake_are_noticed_before_anything_is_written(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    table = TargetTable(table=TableId("public", "people"), uuid="u-1", incarnation=1, epoch=1)
    with SparkCluster(workers=0) as cluster:
        cluster.start_worker(without=lake)
        host = SparkHost(
            SparkSettings(
                master=cluster.url,
                needs=lake_needs(),
                memory="1g",
                settings={**short_lived_options(), **cluster.settings()},
            ),
            cores=1,
        )
        context = TargetContext(replicator="test", uuid="u-1", epoch=1, spark=host.session)
        made = Registry.discover().target("delta")
        target = made(made.config_model(path=str(lake)), context)
        try:
            with pytest.raises(FatalError, match="0 of them arrived") as caught:
                target.claim(table)
        finally:
            host.stop()
    assert caught.value.code == "path_not_shared"


def test_a_master_that_is_not_there_is_refused_before_anything_is_made(tmp_path: Path, origin: Database) -> None:
    origin.execute("CREATE TABLE people (id int PRIMARY KEY)")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        master = f"spark://127.0.0.1:{taken.getsockname()[1]}"
        rig = Rig(folder=tmp_path, database=origin, tables=("people",), extra=f"spark: {{master: '{master}'}}\n")
        for command in ("validate", "run"):
            done = rig.command(command, str(rig.file), check=2)
            assert "spark_master_unreachable" in done.stdout + done.stderr
    assert origin.execute("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()") == [(0,)]
    assert origin.execute("SELECT count(*) FROM pg_publication") == [(0,)]

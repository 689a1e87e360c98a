"""Spark on a cluster: a real standalone master with two workers; executors, workers, master and driver die, and the rows are the same."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from replicator.config import SparkConfig
from replicator.model.errors import FatalError
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.registry import Registry
from replicator.plugins.target import TargetTable
from replicator.spark.session import SparkHost
from replicator_testbed.databases import Database
from replicator_testbed.demo.shop import ShopWriter
from replicator_testbed.demo.sources import Shop
from replicator_testbed.present import present
from replicator_testbed.rig import Rig, has_snapshots
from replicator_testbed.spark.cluster import SparkCluster
from replicator_testbed.spark.java import short_lived_options
from replicator_testbed.spark.session import lake_needs
from replicator_testbed.target_tables import DeltaLakeTables, TargetTables
from replicator_testing.defaults import target_context
from replicator_testing.waiting import wait_until

# Upkeep is due after nearly every merge, and a purge after nearly every row that is hidden.
UPKEEP = "{small_files_max: 2, deleted_rows_share_max: 0.0001, vacuum_every: 1m, vacuum_retention: 1m}"

CHANGES = (
    # What executors write does not depend on their host's character set.
    "UPDATE customers SET name = 'Größe 😀', balance = balance + 1 WHERE id % 3 = 0",
    "UPDATE customers SET id = id + 10000000 WHERE id % 50 = 0",
    "DELETE FROM customers WHERE id % 7 = 0",
    "INSERT INTO customers (email) VALUES ('new@example.org')",
    "DELETE FROM page_views WHERE customer_id < 10",
    "INSERT INTO page_views VALUES (1, '/', 0.5)",
)


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
def target_tables(rig: Rig) -> TargetTables:
    """What the lake holds."""
    return DeltaLakeTables(rig.lake)


def on(
    cluster: SparkCluster,
    rig: Rig,
    *,
    executors_timeout: str = "2m",
    # Executors are to write: a direct commit would be made by the driver.
    engine: str = "engine: spark",
    **settings: str,
) -> Rig:
    """Let the rig's Spark be the cluster."""
    options = {"spark.driver.memory": "1g", **short_lived_options(), **cluster.settings(**settings)}
    rig.extra = f"""
snapshot: {{chunk_rows: 1000}}
# Files by the hundred, of a machine that has much else to do, would be what takes the time.
journal: {{seal_every: 1s}}
retry: {{backoff_initial: 20ms, backoff_max: 2s, give_up_after: 30m}}
spark:
  master: {cluster.url}
  executors_timeout: {executors_timeout}
  settings: {json.dumps(options)}
"""
    rig.target = f"  type: delta\n  path: {rig.lake}\n  {engine}\n  maintenance: {UPKEEP}"
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


def files_of(rig: Rig) -> set[str]:
    """Data files and deletion vectors of all tables, committed or not."""
    walk = os.walk(rig.lake / rig.database.namespace)  # which allows folders to vanish
    found = {f"{folder}/{name}" for folder, _, names in walk if "_delta_log" not in folder for name in names}
    return {path for path in found if path.endswith((".parquet", ".bin"))}


def files_since(rig: Rig, before: set[str]) -> set[str]:
    """Those that have come since then."""
    return files_of(rig) - before


def is_purged(rig: Rig, table: str) -> bool:
    """Whether deletion vectors were purged."""
    return "REORG" in history(rig, table)


def told_of(rig: Rig, table: str) -> str:
    """How things stand while the purge of a table is waited for."""
    return f"{table} is purged: {history(rig, table)}\n{rig.output()}"


def is_vacuumed(rig: Rig, table: str) -> bool:
    """Whether a VACUUM has come to its end."""
    folder = rig.lake / rig.database.namespace / table / "_delta_log"
    return any('"replicator/vacuum"' in file.read_text() for file in folder.glob("*.json"))


def rungs(rig: Rig) -> dict[str, str]:
    """What applied the last batch of each table that had one since the start."""
    found = {table.table: table.engine.rung for table in present(rig.status()).tables if table.engine is not None}
    return {TableId.parse(name).name: rung for name, rung in found.items()}


def wait_for_rungs(rig: Rig, **expected: str) -> None:
    """Wait until the status has them: what a worker reports of itself is a little older than what it has applied."""
    wait_until(lambda: rungs(rig).items() >= expected.items(), lambda: f"{expected}: {rungs(rig)}\n{rig.output()}")


def driver(process: subprocess.Popen[str]) -> psutil.Process | None:
    """Spark's driver, if it runs."""
    for worker in psutil.Process(process.pid).children():
        for child in worker.children():
            if child.name() == "java":
                return child
    return None


def check_it_continues(rig: Rig, cluster: SparkCluster) -> None:
    """Wait for one more merge of any table."""

    def merges() -> int:
        return sum(history(rig, table).count("MERGE") for table in rig.tables)

    before = merges()
    wait_until(
        lambda: merges() > before,
        lambda: f"one more merge\n{rig.status()}\n{rig.output()}\n{cluster.log}",
        timeout_s=600,
    )


def ends_equal(rig: Rig, process: subprocess.Popen[str], writer: ShopWriter, target_tables: TargetTables) -> None:
    """Stop to write, let everything be applied, and compare."""
    writer.stop()
    rig.settle(process)
    stops_equal(rig, process, target_tables)


def stops_equal(rig: Rig, process: subprocess.Popen[str], target_tables: TargetTables) -> None:
    """Stop and compare."""
    assert rig.stop(process) == 0, rig.output()
    assert rig.differences(target_tables) == {}
    assert "internal_error" not in rig.output()


def test_a_cluster_replicates(opened: tuple[Shop, Rig]) -> None:
    """One worker, one table; the matrix kills executors and looks for upkeep."""
    with SparkCluster(workers=1) as cluster:
        rig = on(cluster, opened[1])
        rig.extra = rig.extra.replace("chunk_rows: 1000", "chunk_rows: 10000")
        rig.tables = ("customers",)
        rig.write_yaml()
        process = rig.start()
        wait_until(lambda: rig.output().count('"snapshot_complete"') == len(rig.tables), rig.output)
        for statement in CHANGES:
            rig.database.execute(statement)
        rig.settle(process)
        assert "MERGE" in history(rig, "customers")
        stops_equal(rig, process, DeltaLakeTables(rig.lake))


@pytest.mark.matrix
def test_a_cluster_replicates_and_looks_after_tables_though_an_executor_is_killed(
    cluster: SparkCluster, rig: Rig, target_tables: TargetTables
) -> None:
    """One table, with as few batches as show it: a writer that never rests makes a merge every few seconds.

    The changes are there before Spark is: upkeep comes when there is nothing to apply for the first time.
    """
    rig.tables = ("customers",)
    rig.write_yaml()
    process = rig.start()
    wait_until(lambda: rig.output().count('"snapshot_complete"') == len(rig.tables), rig.output)
    for statement in CHANGES:
        rig.database.execute(statement)
    wait_until(lambda: files_of(rig), lambda: f"the copy is being written\n{rig.output()}\n{cluster.log}")
    cluster.kill_executor()
    rig.settle(process)
    # Upkeep comes when there is nothing else to do.
    wait_until(partial(is_purged, rig, "customers"), partial(told_of, rig, "customers"))
    assert "MERGE" in history(rig, "customers")
    stops_equal(rig, process, target_tables)


@pytest.mark.matrix
def test_executors_find_and_write_the_rows_of_a_table_whose_keys_do_not_fit(
    cluster: SparkCluster, opened: tuple[Shop, Rig]
) -> None:
    """The default engine. Executors have no Python."""
    rig = on(cluster, opened[1], engine="index_memory: 0")
    process = rig.start()
    rig.settle(process)
    rig.database.execute("UPDATE customers SET balance = balance + 1 WHERE id % 5 = 0")
    rig.settle(process)
    wait_for_rungs(rig, customers="L2")
    stops_equal(rig, process, DeltaLakeTables(rig.lake))


@pytest.mark.soak
def test_executors_that_are_killed_while_they_write(
    cluster: SparkCluster, rig: Rig, writer: ShopWriter, target_tables: TargetTables
) -> None:
    process = rig.start()
    for _ in range(8):
        before = files_of(rig)
        # At first those of the snapshot, later those of merges.
        wait_until(partial(files_since, rig, before), lambda: f"a file is written\n{rig.output()}")
        cluster.kill_executor()
    check_it_continues(rig, cluster)
    writer.stop()
    rig.settle(process)
    for table in rig.tables:
        wait_until(
            partial(is_vacuumed, rig, table),
            lambda: f"a VACUUM\n{rig.output()}\n{cluster.log}",
            timeout_s=300,
        )
    stops_equal(rig, process, target_tables)


@pytest.mark.soak
def test_direct_commits_beside_a_cluster(cluster: SparkCluster, opened: tuple[Shop, Rig]) -> None:
    """The default engine: the driver commits what it can by itself, and executors find the rows of a table whose keys do not fit."""
    rig = on(cluster, opened[1], engine="index_memory: 1MiB")
    process = rig.start()
    rig.wait_for_status(has_snapshots, process)
    for statement in CHANGES:
        rig.database.execute(statement)
    rig.settle(process)
    wait_for_rungs(rig, customers="L1", page_views="L0")
    rig.database.execute("INSERT INTO customers (email) SELECT 'x' || n FROM generate_series(1, 150000) n")
    rig.settle(process)
    before = files_of(rig)
    rig.database.execute("UPDATE customers SET balance = balance + 1 WHERE id % 2 = 0")
    wait_until(partial(files_since, rig, before), lambda: f"a file is written\n{rig.output()}")
    cluster.kill_executor()
    rig.settle(process)
    wait_for_rungs(rig, customers="L2")
    stops_equal(rig, process, DeltaLakeTables(rig.lake))


@pytest.mark.soak
def test_executors_that_are_given_back_and_asked_for_again(
    cluster: SparkCluster, opened: tuple[Shop, Rig], shop: Shop
) -> None:
    rig = on(
        cluster,
        opened[1],
        **{
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.shuffleTracking.enabled": "true",
            "spark.dynamicAllocation.shuffleTracking.timeout": "5s",
            "spark.dynamicAllocation.minExecutors": "0",
            "spark.dynamicAllocation.maxExecutors": "2",
            "spark.dynamicAllocation.executorIdleTimeout": "5s",
            "spark.dynamicAllocation.cachedExecutorIdleTimeout": "5s",
        },
    )
    process = rig.start()
    rig.settle(process)
    for _ in range(2):
        wait_until(
            lambda: not cluster.executors(), lambda: f"all executors are given back\n{cluster.log}", timeout_s=300
        )
        shop.view_pages(100)
        rig.settle(process)
    assert rig.stop(process) == 0, rig.output()
    assert rig.differences(DeltaLakeTables(rig.lake)) == {}


@pytest.mark.soak
def test_a_master_that_is_away_for_a_minute(
    cluster: SparkCluster, opened: tuple[Shop, Rig], writer: ShopWriter, target_tables: TargetTables
) -> None:
    """The master that comes back does not know the application, and has its executors ended."""
    rig = on(cluster, opened[1], executors_timeout="30s")
    process = rig.start()
    check_it_continues(rig, cluster)
    cluster.stop_master()
    check_it_continues(rig, cluster)
    threading.Event().wait(60)
    check_it_continues(rig, cluster)
    before = {executor.pid for executor in cluster.executors()}
    cluster.start_master()
    wait_until(
        lambda: not before & {executor.pid for executor in cluster.executors()},
        lambda: f"the workers end what the master does not know\n{cluster.log}",
        timeout_s=300,
    )
    wait_until(lambda: "spark_no_executors" in rig.output(), lambda: f"it is told\n{rig.output()}", timeout_s=300)
    check_it_continues(rig, cluster)
    ends_equal(rig, process, writer, target_tables)


@pytest.mark.soak
def test_workers_that_come_and_go(
    cluster: SparkCluster, opened: tuple[Shop, Rig], writer: ShopWriter, target_tables: TargetTables
) -> None:
    rig = on(cluster, opened[1], executors_timeout="30s")
    process = rig.start()
    check_it_continues(rig, cluster)
    cluster.stop_worker(cluster.workers[0])
    check_it_continues(rig, cluster)
    cluster.stop_worker(cluster.workers[0])
    wait_until(lambda: "spark_no_executors" in rig.output(), lambda: f"nobody works\n{rig.output()}", timeout_s=300)
    for _ in range(2):
        cluster.start_worker()
    check_it_continues(rig, cluster)
    ends_equal(rig, process, writer, target_tables)


@pytest.mark.soak
def test_drivers_and_apply_workers_that_are_killed(
    cluster: SparkCluster, rig: Rig, writer: ShopWriter, target_tables: TargetTables
) -> None:
    process = rig.start()
    check_it_continues(rig, cluster)
    for is_worker in (False, True):
        found = wait_until(lambda: driver(process), lambda: f"a driver runs\n{rig.output()}")
        present(found.parent() if is_worker else found).kill()
        check_it_continues(rig, cluster)
    ends_equal(rig, process, writer, target_tables)


@pytest.mark.matrix
def test_a_host_that_does_not_share_the_lake_is_noticed_when_it_joins(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    table = TargetTable(table=TableId("public", "people"), uuid="u-1", incarnation=1, epoch=1)
    column = Column(name="id", type=pa.int64(), source_type="bigint", nullable=False)
    schema = TableSchema(table=table.table, columns=(column,), key=("id",))
    created = DDLEvent(operation=DDLOperation.CREATE_TABLE, table=table.table, schema=schema)
    with SparkCluster(workers=1) as cluster:
        settings = {"spark.driver.memory": "1g", **short_lived_options(), **cluster.settings()}
        host = SparkHost(SparkConfig(master=cluster.url, settings=settings), lake_needs(), cores=1)
        context = target_context(replicator="test", uuid="u-1", epoch=1, spark=host.session)
        made = Registry.discover().target("delta")
        target = made(made.config_model(path=str(lake), maintenance={"small_files_max": 2}), context)

        def claim_another() -> None:
            target.claim(TargetTable(table=TableId("public", "another"), uuid="u-1", incarnation=1, epoch=1))

        try:
            target.claim(table)
            target.apply_ddl(table, created, 1)
            for number in range(3):
                host.session().sql(f"INSERT INTO delta.`{lake}/public/people` VALUES ({number}, 1)")
            cluster.start_worker(host="127.0.0.2", without=lake)
            with pytest.raises(FatalError, match=r"wrote \d+ files .* [1-9]\d* of them arrived") as claimed:
                # The first writes may come before the new executor takes tasks.
                wait_until(claim_another, lambda: cluster.log)
            with pytest.raises(FatalError, match=r"wrote \d+ files") as maintained:
                target.maintain(table)
        finally:
            host.stop()
    assert (claimed.value.code, maintained.value.code) == ("path_not_shared", "path_not_shared")


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

"""Hours under load with a `kill -9` every minute: nothing is lost, and neither files nor merges grow without end.

REPLICATOR_SOAK_MINUTES says how long (60).
"""

from __future__ import annotations

import logging
import os
import random
import statistics
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from replicator_testbed.demo.shop import ShopWriter
from replicator_testbed.present import present
from replicator_testbed.processes import kill_one
from replicator_testbed.rig import Rig, is_running
from replicator_testbed.target_tables import TargetTables
from replicator_testing.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINUTES: Final = float(os.environ.get("REPLICATOR_SOAK_MINUTES", "60"))
SMALL_FILES_MAX: Final = 16
KEPT_S: Final = 300
UPKEEP: Final = f"{{small_files_max: {SMALL_FILES_MAX}, vacuum_every: 1m, vacuum_retention: {KEPT_S}s, deleted_rows_share_max: 0.2}}"


_PAUSE: Final = threading.Event()
_log = logging.getLogger(__name__)


def _merge_times(spark: SparkSession, path: Path) -> list[int]:
    """How long each merge took, oldest first, in milliseconds, as the table's own history says."""
    history = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").where("operation = 'MERGE'").orderBy("version").collect()
    return [int(row["operationMetrics"]["executionTimeMs"]) for row in history]


def _files(spark: SparkSession, path: Path) -> int:
    return int(present(spark.sql(f"DESCRIBE DETAIL delta.`{path}`").first())["numFiles"])


def _left_over(spark: SparkSession, path: Path) -> list[str]:
    """Data files that no version has needed since long before the retention."""
    oldest = time.time() - KEPT_S - 240
    needed = {Path(name).name for name in spark.read.format("delta").load(str(path)).inputFiles()}
    files = [f for f in path.rglob("*.parquet") if "_delta_log" not in f.parts]
    return [f.name for f in files if f.name not in needed and f.stat().st_mtime < oldest]


def _wait_for_upkeep(spark: SparkSession, path: Path) -> None:
    """Upkeep comes when nothing else is to be done."""
    wait_until(
        lambda: _files(spark, path) <= SMALL_FILES_MAX, lambda: f"{path} is compacted: {_files(spark, path)} files"
    )
    wait_until(
        lambda: not _left_over(spark, path), lambda: f"old files go: {_left_over(spark, path)}", timeout_s=2 * KEPT_S
    )


def _check_merges(spark: SparkSession, path: Path) -> None:
    """Side by side in one run: the batches of the last third take no longer than twice those of the first, and what a busy machine adds."""
    times = _merge_times(spark, path)
    third = len(times) // 3
    assert third >= 3, f"{path}: only {len(times)} merges"
    first, last = statistics.median(times[:third]), statistics.median(times[-third:])
    _log.info("%s: %d merges, %d ms in the first third, %d ms in the last", path.name, len(times), first, last)
    assert last < 2 * first + 500, f"{path}: batches took {first} ms at first and {last} ms in the end"


def _kill_one(rig: Rig, worker: Any, draw: random.Random) -> Any:
    """Kill the supervisor, the capture or the apply process; start the worker again if it was its supervisor."""
    kill_one(worker, draw)
    return worker if worker.poll() is None else rig.start()


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["postgresql", "mariadb", "mysql"])
def test_files_and_merges_stay_bounded_under_load_and_kills(
    rig: Rig, writer: ShopWriter, target_tables: TargetTables, spark: SparkSession
) -> None:
    rig.target = f"  type: delta\n  path: {rig.lake}\n  maintenance: {UPKEEP}"
    rig.extra += "\njournal: {keep: 1m}"
    rig.write_yaml()
    draw = random.Random(20261121)
    worker = rig.start()
    end = time.monotonic() + MINUTES * 60
    while time.monotonic() < end:
        rig.wait_for_status(lambda s: is_running(s) and s.freshness_s is not None, worker, timeout_s=600)
        _PAUSE.wait(draw.uniform(30, 90))
        worker = _kill_one(rig, worker, draw)
    writer.stop()
    rig.settle(worker)
    paths = [rig.lake / rig.database.namespace / table for table in rig.tables]
    for path in paths:
        _wait_for_upkeep(spark, path)
    rig.verify()
    assert rig.stop(worker) == 0, rig.output()
    assert rig.differences(target_tables) == {}
    for path in paths:
        _check_merges(spark, path)

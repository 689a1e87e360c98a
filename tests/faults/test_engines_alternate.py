"""Engines alternate at random on the same tables, each killed at a point of its own; between them a user's OPTIMIZE, REORG or VACUUM.

Every start is a claim of another epoch. In one process, without kills: `plugins/targets/delta/tests/test_engine.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pytest

from replicator.model.documents.status import ReplicatorStatus
from replicator_testbed.demo.shop import ShopWriter
from replicator_testbed.processes import kill_all
from replicator_testbed.rig import Rig, crashes, with_crashes
from replicator_testbed.target_tables import TargetTables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENGINES: Final = {
    "L0": "engine: spark",
    "L1": "engine: auto",
    # No key fits into memory: Spark finds the rows.
    "L2": "index_memory: 0",
}
LANE: Final = ("lane.rows_written", "lane.vectors_written", "lane.before_put", "lane.after_put")
POINTS: Final = {"L0": ("target.before_merge", "target.after_merge"), "L1": LANE, "L2": LANE}
STATEMENTS: Final = ("OPTIMIZE {table}", "REORG TABLE {table} APPLY (PURGE)", "VACUUM {table} RETAIN 0 HOURS")
TABLE: Final = "customers"


@pytest.mark.matrix
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("seed", "rounds"), [pytest.param(1, 3, id="slice"), (2, 12), (3, 12)])
def test_engines_that_alternate_and_are_killed_lose_and_double_nothing(
    rig: Rig, writer: ShopWriter, spark: SparkSession, target_tables: TargetTables, seed: int, rounds: int
) -> None:
    draw = random.Random(seed)
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    # The first three rounds have each engine once.
    order = draw.sample(list(ENGINES), k=3) + draw.choices(list(ENGINES), k=rounds)
    statements = draw.sample(STATEMENTS, k=3) + draw.choices(STATEMENTS, k=rounds)
    for number in range(rounds):
        rung, point = order[number], draw.choice(POINTS[order[number]])
        rig.target = f"  type: delta\n  path: {rig.lake}\n  {ENGINES[rung]}"
        rig.write_yaml()
        # Each point kills once; the record is of this round alone.
        with_crashes(rig, [point])
        (rig.folder / "crashes").unlink(missing_ok=True)
        process = rig.start()
        rig.wait_for_status(lambda _: crashes(rig), process, timeout_s=600)
        rig.wait_for_status(_applied_by(rung), process, timeout_s=600)
        # At once, Spark's JVM included: the test's own JVM writes next.
        kill_all(process)
        spark.sql(statements[number].format(table=f"delta.`{rig.lake / rig.database.namespace / TABLE}`"))
    process = rig.start()
    writer.stop()
    rig.settle(process)
    assert rig.stop(process) == 0, rig.output()
    assert rig.differences(target_tables) == {}


def _applied_by(rung: str) -> Callable[[ReplicatorStatus], bool]:
    """Whether the table's last batch was applied by that engine."""

    def is_so(status: ReplicatorStatus) -> bool:
        engines = [found.engine for found in status.tables if found.table.endswith(f".{TABLE}")]
        return any(engine is not None and engine.rung == rung for engine in engines)

    return is_so

"""From the command to the rows, with each of Delta's engines: the first row of a small table, and a table to its end."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks import data
from benchmarks.measure import busy_cores, say
from benchmarks.report import Line, Report
from benchmarks.scale import Scale
from benchmarks.steady import ENGINES, Engine, first_version
from replicator.model.schema import TableId
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testbed.rig import Rig
from replicator_testing.waiting import wait_until

GOAL_FIRST_S: Final = 10.0
GOAL_WHOLE_S: Final = 20.0
_TABLE: Final = TableId("public", "rows")


def run(scale: Scale) -> Report:
    """A table of a thousand rows until the first is visible, and one of 100,000 with `--until-caught-up`."""
    lines: list[Line] = []
    raw: dict[str, Any] = {"cores busy before": busy_cores()}
    for what, rows, measure, goal_s in (
        ("1,000 rows: from `run` to the first visible", 1_000, _first, GOAL_FIRST_S),
        ("100,000 rows: `run --until-caught-up`", scale.rows // 10, _whole, GOAL_WHOLE_S),
    ):
        times: dict[Engine, list[float]] = {engine: [] for engine in ENGINES}
        for number in range(scale.repetitions):
            for engine in ENGINES if number % 2 else reversed(ENGINES):
                say(f"{what}, engine: {engine}")
                times[engine].append(_measured(rows, engine, measure))
        auto, spark = (statistics.median(times[engine]) for engine in ("auto", "spark"))
        raw[what] = times
        lines.append(
            Line(
                what=what,
                figure=f"{auto:.1f} s",
                against=f"engine: spark: {spark:.1f} s",
                ratio=auto / spark,
                goal=f"≤ {goal_s:.0f} s",
                is_met=auto <= goal_s,
            )
        )
    return Report(name="start", lines=lines, raw=raw)


def _measured(rows: int, engine: Engine, measure: Callable[[Rig], float]) -> float:
    with (
        data.server() as server,
        server.database("bench") as database,
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
    ):
        _fill(database, rows)
        target = f"  type: delta\n  path: {folder}/lake\n  engine: {engine}"
        return measure(Rig(folder=Path(folder), database=database, name="bench", target=target))


def _fill(database: ScratchDatabase, rows: int) -> None:
    database.execute(
        f"CREATE TABLE {_TABLE.name} (id bigint PRIMARY KEY, note text NOT NULL)",
        f"INSERT INTO {_TABLE.name} SELECT i, md5(i::text) FROM generate_series(1, {rows}) AS i",
    )


def _first(rig: Rig) -> float:
    began, process = time.time(), rig.start()
    try:
        wait_until(lambda: first_version(rig.lake, _TABLE) is not None, "a row is visible", every_s=0.1)
    finally:
        rig.stop(process)
    visible = first_version(rig.lake, _TABLE)
    assert visible is not None, "it was there"
    return visible - began


def _whole(rig: Rig) -> float:
    began = time.time()
    rig.catch_up()
    return time.time() - began

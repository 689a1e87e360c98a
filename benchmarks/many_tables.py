"""How old the tables are when there are many small ones, with each of Delta's engines."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from benchmarks.freshness import side_by_side
from benchmarks.report import Line, Report
from benchmarks.scale import Scale
from benchmarks.steady import ENGINES, Load, measure

GOAL_FIRST_S: Final = 60.0
GOAL_P99_S: Final = 5.0


def run(scale: Scale) -> Report:
    """A hundred tables with one transaction a second each."""
    tables, seconds = (4, 15) if scale.is_quick else (100, 60)
    load = Load(tables=tables, held_rows=scale.rows // 1000, rate=tables, warm_s=seconds, measured_s=seconds)
    spark, auto = (measure(load, engine) for engine in ENGINES)
    what = f"{tables} tables of {load.held_rows:,} rows, {tables} transactions/s in all: commit → visible"
    first = Line(
        what=f"{tables} tables of {load.held_rows:,} rows: from `run` to all visible",
        figure=f"{auto.first_s:.1f} s",
        against=f"engine: spark: {spark.first_s:.1f} s",
        ratio=auto.first_s / spark.first_s,
        goal=f"≤ {GOAL_FIRST_S:.0f} s",
        is_met=auto.first_s <= GOAL_FIRST_S,
    )
    lines = [first, *side_by_side(what, load, spark, auto, p50=None, p99=GOAL_P99_S)]
    return Report(name="many_tables", lines=lines, raw={"spark": asdict(spark), "auto": asdict(auto)})

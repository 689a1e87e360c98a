"""How old the target table is under a thousand transactions a second, with each of Delta's engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from benchmarks.measure import quantile
from benchmarks.report import Line, Report, at_most
from benchmarks.scale import Scale
from benchmarks.steady import ENGINES, Load, Measured, measure

GOAL_P50_S: Final = 0.8
GOAL_P99_S: Final = 1.9
RATIO_MAX: Final = 0.25
CPU_RATIO_MAX: Final = 0.05
_RATE: Final = 1000


def run(scale: Scale) -> Report:
    """A small table, and a large one."""
    warm_s, measured_s = (15, 15) if scale.is_quick else (60, 90)
    lines: list[Line] = []
    raw = {}
    for held_rows in (scale.rows // 10, 5 * scale.rows):
        load = Load(tables=1, held_rows=held_rows, rate=_RATE, warm_s=warm_s, measured_s=measured_s)
        spark, auto = (measure(load, engine) for engine in ENGINES)
        what = f"{_RATE} transactions/s into {held_rows:,} rows: commit → visible"
        lines += side_by_side(what, load, spark, auto, p50=GOAL_P50_S, p99=GOAL_P99_S)
        raw[f"{held_rows:,}"] = {"spark": asdict(spark), "auto": asdict(auto)}
    return Report(name="freshness", lines=lines, raw=raw)


def side_by_side(
    what: str, load: Load, spark: Measured, auto: Measured, *, p50: float | None, p99: float
) -> Sequence[Line]:
    """`engine: auto` against `engine: spark`; goals are seconds, and ratios where the machine is busy."""
    cpu, cpu_spark = auto.cpu_per_1000(load), spark.cpu_per_1000(load)
    is_quiet = auto.was_quiet and spark.was_quiet
    return [
        _line(f"{what}, p50", auto.age(0.5), spark.age(0.5), p50, is_quiet=is_quiet),
        _line(f"{what}, p95", auto.age(0.95), spark.age(0.95)),
        _line(f"{what}, p99", auto.age(0.99), spark.age(0.99), p99, is_quiet=is_quiet),
        Line(
            what="processor time of apply and Spark per 1,000 changes",
            figure=f"{cpu:.2f} s",
            against=f"engine: spark: {cpu_spark:.2f} s",
            ratio=cpu / cpu_spark,
            goal=f"≤ {CPU_RATIO_MAX}x",
            is_met=cpu <= CPU_RATIO_MAX * cpu_spark,
        ),
        _line("time between two versions of a table, p50", auto.gap(), spark.gap()),
        _line("from `run` to the first snapshot visible", auto.first_s, spark.first_s),
        at_most("commit → sealed in the journal, p99", quantile(auto.sealed, 0.99), None, "s"),
        at_most("written to the lake", auto.bytes_per_s / 1e6, None, "MB/s"),
        at_most("data files at the end, those not vacuumed yet included", auto.files, None, "files"),
        at_most("cores that others used before or after", max(auto.busy_cores, spark.busy_cores), None, "cores"),
        *(at_most(f"cores used by the {name}", share, None, "cores") for name, share in sorted(auto.cores.items())),
    ]


def _line(what: str, auto_s: float, spark_s: float, goal_s: float | None = None, *, is_quiet: bool = True) -> Line:
    """The goal is one of seconds on a quiet machine, and of the ratio on a busy one."""
    ratio = auto_s / spark_s
    return Line(
        what=what,
        figure=f"{auto_s:.2f} s",
        against=f"engine: spark: {spark_s:.2f} s",
        ratio=ratio,
        goal="" if goal_s is None else f"≤ {goal_s} s" if is_quiet else f"≤ {RATIO_MAX}x (busy machine)",
        is_met=None if goal_s is None else auto_s <= goal_s if is_quiet else ratio <= RATIO_MAX,
    )

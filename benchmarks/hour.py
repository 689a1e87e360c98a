"""The product for an hour under a thousand transactions a second: what it needs, what it writes, and what readers find in the end.

Readers' time is that of Spark, which reads the table as the hour left it, and a copy of it that was written and optimised just now, in
turns, with nothing else running.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.measure import rss_mib, say
from benchmarks.product import Product
from benchmarks.report import Line, Report, at_most
from benchmarks.scale import Scale
from benchmarks.steady import Load, Measured, measure
from replicator.config import SparkConfig
from replicator.model.schema import TableId
from replicator.spark.session import SparkHost
from replicator_target_delta.spark.settings import SPARK_NEEDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GOAL_READ_RATIO: Final = 1.5
_RATE: Final = 1000
_READS: Final = 5
"""Of each side, behind one that warms Spark up."""

Query = Callable[["DataFrame"], "DataFrame"]


def run(scale: Scale) -> Report:
    """One table."""
    held_rows = scale.rows // 10
    load = load_of(scale, tables=1, held_rows=held_rows, rate=_RATE)
    return report("hour", f"{_RATE} transactions/s into {held_rows:,} rows", load)


def load_of(scale: Scale, *, tables: int, held_rows: int, rate: int) -> Load:
    """A minute to warm up, then as long as is asked for."""
    warm_s = 15 if scale.is_quick else 60
    return Load(tables=tables, held_rows=held_rows, rate=rate, warm_s=warm_s, measured_s=round(60 * scale.minutes))


@dataclass(slots=True, kw_only=True)
class Seen:
    """What was seen of the product.

    Attributes:
        memory: MiB that each process had resident, at each look.
        live: Data files of all tables that the newest versions name.
        rows: Of the table that is read.
        reads: Seconds of each read, by query and side.
    """

    table: TableId
    memory: dict[str, list[float]] = field(default_factory=dict)
    live: int = 0
    rows: int = 0
    reads: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def look(self, product: Product) -> None:
        """Note what its processes have resident."""
        for role, process in product.workers().items():
            mib = rss_mib(process.pid)
            if mib is not None:
                self.memory.setdefault(role, []).append(mib)

    def end(self, product: Product, tables: Sequence[TableId]) -> None:
        """Stop the product, and read what it left."""
        product.rig.stop(product.process)
        lake = product.rig.lake
        spark = SparkHost(SparkConfig(settings={"spark.driver.memory": "2g"}), SPARK_NEEDS, cores=os.cpu_count() or 1)
        try:
            session = spark.session()
            for table in tables:
                frame = session.read.format("delta").load(_path(lake, table))
                self.live += len(frame.inputFiles())
            self._read(session, _path(lake, self.table), f"{lake}/optimised")
        finally:
            spark.stop()

    def _read(self, session: SparkSession, path: str, optimised: str) -> None:
        table = session.read.format("delta").load(path)
        say("  a copy is written and optimised, then both are read")
        table.write.format("delta").save(optimised)
        session.sql(f"OPTIMIZE delta.`{optimised}` ZORDER BY (id)")
        self.rows = table.count()
        sides = {"table": path, "optimised": optimised}
        for name, query in _queries(self.rows).items():
            self.reads[name] = {side: [] for side in sides}
            for number in range(_READS + 1):
                for side, folder in sides.items():
                    began = time.perf_counter()
                    query(session.read.format("delta").load(folder)).collect()
                    if number:
                        self.reads[name][side].append(time.perf_counter() - began)


def report(name: str, what: str, load: Load) -> Report:
    """Run a load, and tell what was seen."""
    seen = Seen(table=load.names[0])
    measured = measure(load, "auto", look=seen.look, end=lambda product: seen.end(product, load.names))
    lines = [
        at_most(f"{what}: commit → visible, p50", measured.age(0.5), None, "s"),
        at_most("commit → visible, p99", measured.age(0.99), None, "s"),
        *memory_lines(seen),
        *_written(measured, seen),
        *(_read_line(query, sides, seen.rows) for query, sides in seen.reads.items()),
        at_most("cores that others used before or after", measured.busy_cores, None, "cores"),
        *(at_most(f"cores used by the {role}", share, None, "cores") for role, share in sorted(measured.cores.items())),
    ]
    # Of millions of ages, one in a hundred.
    ages = [measured.age(percent / 100) for percent in range(100)]
    raw = {
        "load": asdict(load),
        "ages": ages,
        "memory": seen.memory,
        "live": seen.live,
        "rows": seen.rows,
        "reads": seen.reads,
    }
    return Report(name=name, lines=lines, raw=raw)


def memory_lines(seen: Seen) -> Sequence[Line]:
    """What each process had resident."""
    return [_memory(role, mib) for role, mib in sorted(seen.memory.items())]


def _memory(role: str, mib: Sequence[float]) -> Line:
    """Whether it grows: the medians of the first and the last tenth."""
    tenth = max(1, len(mib) // 10)
    first, last = statistics.median(mib[:tenth]), statistics.median(mib[-tenth:])
    return Line(
        what=f"memory of the {role}, at the end",
        figure=f"{last:,.0f} MiB, at most {max(mib):,.0f} MiB",
        against=f"at the beginning: {first:,.0f} MiB",
        ratio=last / first,
    )


def _written(measured: Measured, seen: Seen) -> Sequence[Line]:
    return [
        at_most("written to the lake in an hour", measured.bytes_per_s * 3600 / 1e9, None, "GB"),
        at_most("data files of the newest versions", seen.live, None, "files"),
        at_most("data files in all, those not vacuumed yet included", measured.files, None, "files"),
        at_most("time between two versions of a table, p50", measured.gap(), None, "s"),
    ]


def _read_line(query: str, sides: Mapping[str, Sequence[float]], rows: int) -> Line:
    ours, optimised = (statistics.median(sides[side]) for side in ("table", "optimised"))
    return Line(
        what=f"Spark's time for {query}, {rows:,} rows",
        figure=f"{ours:.2f} s",
        against=f"a copy optimised just now: {optimised:.2f} s",
        ratio=ours / optimised,
        goal=f"≤ {GOAL_READ_RATIO}x",
        is_met=ours <= GOAL_READ_RATIO * optimised,
    )


def _queries(rows: int) -> Mapping[str, Query]:
    return {
        "a scan of all columns": lambda frame: frame.selectExpr(
            "count(*)", "sum(id)", "sum(counter)", "max(committed_at)", "max(note)"
        ),
        "a hundred rows by key": lambda frame: frame.where(f"id BETWEEN {rows // 2} AND {rows // 2 + 99}"),
    }


def _path(lake: Path, table: TableId) -> str:
    return f"{lake}/{table.namespace}/{table.name}"

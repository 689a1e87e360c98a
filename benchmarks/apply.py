"""Changes applied to a Delta table that is much larger than the batch, with each engine."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.journal import ITEMS, Changes
from benchmarks.measure import peak_rss_mib, say
from benchmarks.report import Line, Report
from benchmarks.scale import Scale
from benchmarks.steady import ENGINES, Engine
from replicator.config import SparkConfig
from replicator.model.events import DDLEvent, DDLOperation
from replicator.plugins.target import Batch, TargetContext, TargetTable
from replicator.runtime.pumps import return_unused_memory
from replicator.spark.session import SparkHost
from replicator_target_delta.config import DeltaLakeConfig
from replicator_target_delta.spark.settings import SPARK_NEEDS
from replicator_target_delta.target import DeltaLakeTarget
from replicator_testbed.spark.java import jvm_pid

GOAL: Final = 100_000
_LARGE: Final = 100_000
CPU_RATIO_MAX: Final = 0.05
_UUID: Final = "00000000-0000-0000-0000-00000000beac"
_TABLE: Final = TargetTable(table=ITEMS.table, uuid=_UUID, incarnation=1, epoch=1)
_LOAD_ROWS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Merge:
    """One batch: changes, seconds, and processor time of this process and of Spark's JVM."""

    changes: int
    wall_s: float
    cpu_s: float
    way: str


def run(scale: Scale) -> Report:
    """With each engine: build the table, then apply batches of several sizes, each size once for nothing before it counts."""
    sizes = (scale.rows // 1000, scale.rows // 100, scale.rows // 10, scale.rows)
    return_unused_memory()
    taken = {engine: _taken(scale, engine, sizes) for engine in ENGINES}
    lines: list[Line] = []
    for size in sizes:
        spark, auto = (taken[engine][size] for engine in ENGINES)
        cpu, cpu_spark = _median(auto, lambda m: m.cpu_s), _median(spark, lambda m: m.cpu_s)
        wall, wall_spark = _median(auto, lambda m: m.wall_s), _median(spark, lambda m: m.wall_s)
        is_large = size >= _LARGE
        lines.append(
            Line(
                what=f"{size:,} changes (60 % updates, 30 % inserts, 10 % deletes, random keys) into {5 * scale.rows:,} rows",
                figure=f"{size / wall / 1000:,.1f}k/s: {wall:.2f} s a batch, {cpu:.2f} CPU-s ({auto[0].way})",
                against=f"engine: spark: {size / wall_spark / 1000:,.1f}k/s: {wall_spark:.2f} s, {cpu_spark:.2f} CPU-s",
                ratio=wall / wall_spark,
                goal=f"≥ {GOAL // 1000}k/s" if is_large else f"≤ {CPU_RATIO_MAX}x CPU-s",
                is_met=size / wall >= GOAL if is_large else cpu <= CPU_RATIO_MAX * cpu_spark,
            )
        )
    raw: dict[str, Any] = {
        engine: {f"{size:,}": [asdict(m) for m in some] for size, some in of.items()} for engine, of in taken.items()
    }
    return Report(name="apply", lines=lines, raw=raw)


def _taken(scale: Scale, engine: Engine, sizes: Sequence[int]) -> Mapping[int, Sequence[_Merge]]:
    held = 5 * scale.rows
    with _target(engine) as (target, host), tempfile.TemporaryDirectory(prefix="bench-journal-") as folder:
        changes = Changes(Path(folder))
        say(f"apply: engine: {engine}: building a table of {held:,} rows")
        target.claim(_TABLE)
        target.apply_ddl(
            _TABLE, DDLEvent(operation=DDLOperation.CREATE_TABLE, table=ITEMS.table, schema=ITEMS), changes.take(1)
        )
        for first in range(1, held + 1, _LOAD_ROWS):
            target.apply_batch(_TABLE, changes.snapshot(first, min(_LOAD_ROWS, held + 1 - first)))
        taken = {}
        for size in sizes:
            say(f"apply: batches of {size:,}")
            taken[size] = [_timed(target, host, changes.mixed(size)) for _ in range(1 + scale.repetitions)][1:]
        say(f"apply: engine: {engine}: at most {peak_rss_mib(os.getpid()) or 0:,.0f} MiB of Python")
        return taken


def _median(taken: Sequence[_Merge], of: Callable[[_Merge], float]) -> float:
    return statistics.median(of(merge) for merge in taken)


def _timed(target: DeltaLakeTarget, host: SparkHost, batch: Batch) -> _Merge:
    pid = jvm_pid(host)
    assert pid is not None, "Spark runs"
    processes = psutil.Process(), psutil.Process(pid)
    before, start = _cpu_s(processes), time.perf_counter()
    result = target.apply_batch(_TABLE, batch)
    wall, after = time.perf_counter() - start, _cpu_s(processes)
    assert not result.was_skipped, "the batch is new"
    details = dict(result.details or {})
    say(f"  {batch.rows:,} in {wall:.2f} s ({after - before:.2f} s of processor time) {details}")
    return _Merge(changes=batch.rows, wall_s=wall, cpu_s=after - before, way=str(details.get("way")))


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return float(sum(t.user + t.system for t in times))


@contextmanager
def _target(engine: Engine) -> Iterator[tuple[DeltaLakeTarget, SparkHost]]:
    """A lake in a folder of its own, and the Spark that a worker starts by default."""
    with tempfile.TemporaryDirectory(prefix="bench-lake-") as folder:
        host = SparkHost(SparkConfig(), SPARK_NEEDS, cores=os.cpu_count() or 1)
        context = TargetContext(replicator="bench", uuid=_UUID, epoch=1, spark=host.session, max_wait_s=0.0)
        target = DeltaLakeTarget(DeltaLakeConfig(path=folder, engine=engine), context)
        try:
            yield target, host
        finally:
            target.close()
            host.stop()

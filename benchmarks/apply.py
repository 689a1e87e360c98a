"""Changes merged into a Delta table that is much larger than the batch, by local Spark."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.journal import ITEMS, Changes
from benchmarks.measure import say
from benchmarks.report import Line, Report, at_least
from benchmarks.scale import Scale
from replicator.model.events import DDLEvent, DDLOperation
from replicator.plugins.target import Batch, TargetContext, TargetTable
from replicator.spark.session import SparkHost, SparkSettings
from replicator_target_delta.config import DeltaConfig
from replicator_target_delta.spark import SPARK_NEEDS
from replicator_target_delta.target import DeltaLakeTarget

GOAL: Final = 100_000
_UUID: Final = "00000000-0000-0000-0000-00000000beac"
_TABLE: Final = TargetTable(table=ITEMS.table, uuid=_UUID, incarnation=1, epoch=1)
_LOAD_ROWS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Merge:
    """One batch: changes, seconds, and processor time of Spark's JVM."""

    changes: int
    wall_s: float
    jvm_cpu_s: float


def run(scale: Scale) -> Report:
    """Build the table, then merge batches of several sizes, each size once for nothing before it counts."""
    held = 5 * scale.rows
    with _target() as (target, host), tempfile.TemporaryDirectory(prefix="bench-journal-") as folder:
        changes = Changes(Path(folder))
        say(f"apply: building a table of {held:,} rows")
        target.claim(_TABLE)
        target.apply_ddl(
            _TABLE, DDLEvent(operation=DDLOperation.CREATE_TABLE, table=ITEMS.table, schema=ITEMS), changes.take(1)
        )
        for first in range(1, held + 1, _LOAD_ROWS):
            target.apply_batch(_TABLE, changes.snapshot(first, min(_LOAD_ROWS, held + 1 - first)))
        lines: list[Line] = []
        merges: dict[str, list[_Merge]] = {}
        for size in (scale.rows // 100, scale.rows // 10, scale.rows // 2, scale.rows):
            say(f"apply: batches of {size:,}")
            taken = [_timed(target, host, changes.mixed(size)) for _ in range(1 + scale.repetitions)][1:]
            merges[f"{size:,}"] = taken
            lines.append(_line(size, held, taken))
        best = max(statistics.median(m.changes / m.wall_s for m in taken) for taken in merges.values())
    lines.append(at_least("sustained with a backlog, the best of these sizes", best, GOAL, "changes/s"))
    return Report(name="apply", lines=lines, raw={name: [asdict(m) for m in taken] for name, taken in merges.items()})


def _line(size: int, held: int, taken: list[_Merge]) -> Line:
    wall = statistics.median(m.wall_s for m in taken)
    cpu = statistics.median(m.jvm_cpu_s for m in taken)
    return Line(
        what=f"{size:,} changes (60 % updates, 30 % inserts, 10 % deletes, random keys) into {held:,} rows",
        figure=f"{size / wall / 1000:,.0f}k/s",
        against=f"{wall:.2f} s a batch, {cpu:.2f} s of the JVM's processor time",
    )


def _timed(target: DeltaLakeTarget, host: SparkHost, batch: Batch) -> _Merge:
    assert host.jvm_pid is not None, "Spark runs"
    jvm = psutil.Process(host.jvm_pid)
    before, start = jvm.cpu_times(), time.perf_counter()
    result = target.apply_batch(_TABLE, batch)
    wall, after = time.perf_counter() - start, jvm.cpu_times()
    assert not result.was_skipped, "the batch is new"
    cpu = after.user + after.system - before.user - before.system
    say(f"  {batch.rows:,} in {wall:.2f} s ({cpu:.2f} s of the JVM's processor time) {dict(result.details or {})}")
    return _Merge(changes=batch.rows, wall_s=wall, jvm_cpu_s=cpu)


@contextmanager
def _target() -> Iterator[tuple[DeltaLakeTarget, SparkHost]]:
    """A lake in a folder of its own, and the Spark that a worker starts by default."""
    with tempfile.TemporaryDirectory(prefix="bench-lake-") as folder:
        host = SparkHost(SparkSettings(needs=SPARK_NEEDS), cores=os.cpu_count() or 1)
        context: dict[str, Any] = {"replicator": "bench", "uuid": _UUID, "epoch": 1, "spark": host.session}
        target = DeltaLakeTarget(DeltaConfig(path=folder), TargetContext(**context))
        try:
            yield target, host
        finally:
            target.close()
            host.stop()

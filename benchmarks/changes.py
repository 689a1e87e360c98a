"""Changes from the log into sealed Parquet, compared with a client that reads the same log and drops it."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from benchmarks import data
from benchmarks.bare import read_log
from benchmarks.captured import capturing_changes, copied_slot, make_slot
from benchmarks.measure import Clock, Rate, Sample, Side, Work, in_turns, say
from benchmarks.report import Line, Report, at_least, compared
from benchmarks.scale import Scale
from replicator_testbed.postgresql.servers import ScratchDatabase

GOAL_RATIO: Final = 0.9
GOAL_PER_CPU_SECOND: Final = 300_000
_OURS: Final = "captured to sealed Parquet"
_BARE: Final = "bare read"


@dataclass(frozen=True, slots=True)
class _Load:
    """A kind of change: `slot` begins before it, it ends at or before `end_lsn`."""

    name: str
    slot: str
    end_lsn: int
    changes: int


def run(scale: Scale) -> Report:
    """Write each part of the log once; read it from copies of the same slot, in turns."""
    lines: list[Line] = []
    rates: dict[str, Mapping[str, Rate]] = {}
    with data.server() as server, server.database("bench") as database:
        data.create_table(database)
        for load in _write(database, scale):
            say(f"changes: {load.name}")
            taken = in_turns({_OURS: _capturing(database, load), _BARE: _reading(database, load)}, scale.repetitions)
            rates[load.name] = taken
            lines.append(compared(load.name, taken[_OURS], taken[_BARE], _BARE))
    ours, bare = (_all([taken[side] for taken in rates.values()]) for side in (_OURS, _BARE))
    lines.append(compared("all of them", ours, bare, _BARE, goal=GOAL_RATIO))
    lines.append(at_least("all of them", ours.per_cpu_second, GOAL_PER_CPU_SECOND, "changes per CPU-second"))
    return Report(name="changes", lines=lines, raw={"rates": rates})


def _write(database: ScratchDatabase, scale: Scale) -> Iterator[_Load]:
    """Write one kind of change after the other: each is read while it is the end of the log."""
    rows = scale.rows
    small = rows // 40
    loads: list[tuple[str, int, Callable[[], None]]] = [
        (
            f"{rows:,} inserts, 10,000 a transaction",
            rows,
            lambda: data.insert(database, 1, rows, rows_per_transaction=10_000),
        ),
        (
            f"{rows // 2:,} updates, 500 a transaction",
            rows // 2,
            lambda: data.update(database, 1, rows // 2, rows_per_statement=500),
        ),
        (
            f"{rows // 10:,} deletes, 100 a transaction",
            rows // 10,
            lambda: data.delete(database, rows - rows // 10 + 1, rows // 10, rows_per_statement=100),
        ),
        (
            f"{small:,} transactions of an insert and three updates",
            4 * small,
            lambda: data.transact(database, rows + 1, small, old_rows=rows // 2),
        ),
    ]
    for number, (name, changes, write) in enumerate(loads):
        say(f"changes: writing {name}")
        slot = f"start_{number}"
        make_slot(database, slot)
        write()
        ((end_lsn,),) = database.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")
        yield _Load(name, slot, end_lsn, changes)


_NUMBERS: Final = itertools.count()


def _capturing(database: ScratchDatabase, load: _Load) -> Side:
    @contextmanager
    def side() -> Iterator[Work]:
        with (
            copied_slot(database, load.slot, f"copy_{next(_NUMBERS)}") as slot,
            capturing_changes(database, slot, load.changes) as capture,
        ):

            def checked(clock: Clock) -> int:
                count = capture(clock)
                assert count == load.changes, f"{count} changes were captured, {load.changes} were written"
                return count

            yield checked

    return side


def _reading(database: ScratchDatabase, load: _Load) -> Side:
    @contextmanager
    def side() -> Iterator[Work]:
        with copied_slot(database, load.slot, f"copy_{next(_NUMBERS)}") as slot:
            yield lambda clock: read_log(database, slot, load.end_lsn, clock, changes=load.changes)

    return side


def _all(parts: list[Rate]) -> Rate:
    """One rate over all parts: the sum of the medians."""
    sample = Sample(
        amount=sum(part.samples[0].amount for part in parts),
        wall_s=sum(statistics.median(s.wall_s for s in part.samples) for part in parts),
        cpu_s=sum(statistics.median(s.cpu_s for s in part.samples) for part in parts),
    )
    return Rate(samples=[sample])

"""A first snapshot: chunks in key order with a mark behind each, into sealed Parquet, compared with a plain binary COPY."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Final

from benchmarks import data
from benchmarks.bare import copy_binary
from benchmarks.captured import copied_slot, make_slot, snapshot_of_table
from benchmarks.measure import Clock, Work, in_turns, say
from benchmarks.report import Report, compared
from benchmarks.scale import Scale

GOAL: Final = 0.65
CHUNK_ROWS: Final = 50_000
OURS: Final = "chunks to sealed Parquet"
BARE: Final = "binary COPY, dropped"


def run(scale: Scale) -> Report:
    """Measure both sides on one server."""
    with data.server() as server, server.database("bench") as database:
        say(f"snapshot: loading {scale.rows:,} rows")
        data.create_table(database)
        data.insert(database, 1, scale.rows)
        database.execute(f"VACUUM (FREEZE, ANALYZE) {data.TABLE}")
        make_slot(database, "start")
        numbers = itertools.count()

        @contextmanager
        def chunks() -> Iterator[Work]:
            with (
                copied_slot(database, "start", f"copy_{next(numbers)}") as slot,
                snapshot_of_table(database, slot, chunk_rows=CHUNK_ROWS) as work,
            ):
                yield work

        # Once for nothing: the server's cache is warm for both.
        copy_binary(database, Clock())
        rates = in_turns({OURS: chunks, BARE: lambda: nullcontext(partial(copy_binary, database))}, scale.repetitions)
    ours, baseline = rates[OURS], rates[BARE]
    what = f"{scale.rows:,} rows in chunks of {CHUNK_ROWS:,}, marked and resumable, to sealed Parquet"
    return Report(name="snapshot", lines=[compared(what, ours, baseline, BARE, goal=GOAL)], raw={"rates": rates})

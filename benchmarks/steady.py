"""The product under a steady load: how old the target's tables are, from a row's commit in the source to the moment when readers see it.

Nothing is asked of the product while it runs. Each inserted row carries the source's clock, read just before its commit; the target's
rows carry sequence numbers; each version of a Delta table says up to which number it has everything (its ledger), and the file system
says when the version's file got its name, which is when it became visible. So everything is found out afterwards: a row was visible from
the first version on whose ledger reaches the row's number. Source, target and file system share one clock.
"""

from __future__ import annotations

import bisect
import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

import psutil
import psycopg
import pyarrow as pa

from benchmarks import data
from benchmarks.measure import BUSY_CORES_MAX, busy_cores, quantile, say
from benchmarks.product import Product, running
from replicator.config import SparkConfig
from replicator.model.events import SEQUENCE_NUM
from replicator.model.schema import TableId
from replicator.spark.session import SparkHost
from replicator.state.store import StateStore
from replicator_target_delta.ledger import Entry
from replicator_target_delta.spark.settings import SPARK_NEEDS
from replicator_testbed.postgresql.servers import PostgresServer, ScratchDatabase

Engine = Literal["spark", "auto"]
ENGINES: Final[Sequence[Engine]] = ("spark", "auto")
_TIMEOUT_S: Final = 1800.0
_SEGMENTS_MAX: Final = 1_000_000
_LOOK_EVERY_S: Final = 10.0
_READ_MAX: Final = 100

Look = Callable[[Product], None]
"""Looks at a product that runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A load: tables that hold rows, then transactions of one row each, spread over the tables in turn.

    Attributes:
        tables: How many.
        held_rows: Rows of each at the start.
        rate: Transactions a second, of all tables together: inserts and updates take turns.
        warm_s: Seconds of it until Spark is warm.
        measured_s: Seconds of it that count.
    """

    tables: int
    held_rows: int
    rate: int
    warm_s: int
    measured_s: int

    @property
    def names(self) -> Sequence[TableId]:
        """The tables."""
        return [TableId("public", f"events_{number}") for number in range(self.tables)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was found. Ages and gaps are in seconds, ascending; a gap is the time between two versions of one table.

    Attributes:
        first_s: From the start of `run` until the last of the tables is visible.
        ages: From commit to visible.
        sealed: From commit to sealed in the journal.
        gaps: Between versions.
        cores: Those that each process used.
        bytes_per_s: What was written below the tables' folders, by size of the files that are there at the end.
        files: Data files of all tables at the end.
        busy_cores: What others used, before or after: whichever was more.
    """

    first_s: float
    ages: Sequence[float]
    sealed: Sequence[float]
    gaps: Sequence[float]
    cores: Mapping[str, float]
    bytes_per_s: float
    files: int
    busy_cores: float

    @property
    def was_quiet(self) -> bool:
        """The figures say something of themselves."""
        return self.busy_cores <= BUSY_CORES_MAX

    def age(self, share: float) -> float:
        """A quantile of the ages."""
        return quantile(self.ages, share)

    def gap(self) -> float:
        """The median gap; not a number where no table got two versions."""
        return quantile(self.gaps, 0.5) if self.gaps else math.nan

    def cpu_per_1000(self, load: Load) -> float:
        """Processor seconds of apply and Spark's JVM per 1,000 changes."""
        return 1000 * sum(self.cores.get(role, 0.0) for role in ("apply", "jvm")) / load.rate


def measure(load: Load, engine: Engine, *, look: Look = lambda _: None, end: Look = lambda _: None) -> Measured:
    """Write at a steady rate, let the product replicate it, and look at what it left.

    Args:
        load: What to write.
        engine: Delta's engine.
        look: Called every few seconds while rows are written and measured.
        end: Called when all is applied, and the product still runs.
    """
    what = f"{load.tables} tables of {load.held_rows:,} rows, engine: {engine}"
    busy_before = busy_cores()
    with data.server() as server, server.database("bench") as database:
        make_tables(database, load)
        began = time.time()
        with running(database, engine=engine) as product:
            say(f"{what}: the first snapshot")
            _wait(product, load, load.held_rows)
            lake = product.rig.lake
            first_s = max(_versions(lake, table)[-1][1] for table in load.names) - began
            say(f"{what}: {load.rate} transactions a second for {load.warm_s} + {load.measured_s} s")
            cores, written = _write(database, server, product, load, look)
            _wait(product, load, load.held_rows + load.rate * (load.warm_s + load.measured_s) // load.tables)
            store = product.store()
            try:
                seals = _seals(store, product.rig.name)
            finally:
                store.close()
            found = _Found(seals=seals, load=load)
            for table, rows in _target_rows(lake, load).items():
                found.add(rows, _versions(lake, table))
            files = sum(1 for _ in lake.glob("public/*/*.parquet"))
            end(product)
    return Measured(
        first_s=first_s,
        ages=sorted(found.ages),
        sealed=sorted(found.sealed),
        gaps=sorted(found.gaps),
        cores=cores,
        bytes_per_s=written,
        files=files,
        busy_cores=max(busy_before, busy_cores()),
    )


def _wait(product: Product, load: Load, rows: int) -> None:
    product.wait_until_applied(load.names, lambda record: record.rows >= rows, timeout_s=_TIMEOUT_S)


def make_tables(database: ScratchDatabase, load: Load) -> None:
    """Make the tables with the rows that they hold at the start, and the procedure that writes."""
    for table in load.names:
        database.execute(
            f"CREATE TABLE {table.name} (id bigint PRIMARY KEY, counter bigint NOT NULL,"
            " committed_at timestamptz NOT NULL, note text NOT NULL)",
            f"INSERT INTO {table.name} SELECT i, 0, clock_timestamp(), md5(i::text) FROM generate_series(1, {load.held_rows}) AS i",
        )
    database.execute(
        # Paced by the server's own clock: inserts of a row and updates of a row that is there take turns; what is late is made up for.
        f"""
        CREATE PROCEDURE write_events(rate int, seconds int) LANGUAGE plpgsql AS $$
        DECLARE
          began timestamptz := clock_timestamp();
          due double precision;
          target text;
          round bigint;
        BEGIN
          FOR n IN 0 .. rate * seconds - 1 LOOP
            due := n::double precision / rate - extract(epoch FROM clock_timestamp() - began);
            IF due > 0.001 THEN PERFORM pg_sleep(due); END IF;
            target := 'events_' || n % {load.tables};
            round := n / {load.tables};
            IF round % 2 = 0 THEN
              EXECUTE 'INSERT INTO ' || target || ' VALUES ($1, $2, clock_timestamp(), md5($2::text))'
                USING {load.held_rows} + 1 + round, round;
            ELSE
              EXECUTE 'UPDATE ' || target || ' SET counter = $2, committed_at = clock_timestamp() WHERE id = $1'
                USING 1 + (round * 7919) % {load.held_rows}, round;
            END IF;
            COMMIT;
          END LOOP;
        END $$
        """,
    )


def _write(
    database: ScratchDatabase, server: PostgresServer, product: Product, load: Load, look: Look
) -> tuple[Mapping[str, float], float]:
    """Write to the end; return how many cores each process used in the measured part, and the bytes written to the lake per second."""
    writer = _writer(database, load)
    writer.start()
    writer.join(timeout=load.warm_s)
    before, size = _processor_seconds(server, product), _size(product.rig.lake)
    while writer.is_alive():
        look(product)
        writer.join(timeout=_LOOK_EVERY_S)
    after, grown = _processor_seconds(server, product), _size(product.rig.lake) - size
    cores = {name: (after[name] - before[name]) / load.measured_s for name in before.keys() & after.keys()}
    return cores, grown / load.measured_s


def _writer(database: ScratchDatabase, load: Load) -> threading.Thread:
    def write() -> None:
        with contextlib.suppress(psycopg.errors.QueryCanceled):  # the measurement is over, and ends it
            database.execute(f"CALL write_events({load.rate}, {load.warm_s + load.measured_s})")

    return threading.Thread(target=write, name="writer")


@contextmanager
def writing(database: ScratchDatabase, load: Load) -> Iterator[threading.Thread]:
    """Write the load while the block runs; what is left of it then is not written."""
    writer = _writer(database, load)
    writer.start()
    try:
        yield writer
    finally:
        database.execute("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'CALL write_events%'")
        writer.join()


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _processor_seconds(server: PostgresServer, product: Product) -> dict[str, float]:
    assert server.pid is not None, "the server runs"
    postmaster = psutil.Process(server.pid)
    used = {name: _used(process) for name, process in product.workers().items()}
    # Those that have ended are counted by the postmaster: the backend that wrote is one of them in the end.
    ended = postmaster.cpu_times()
    living = 0.0
    for process in postmaster.children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile: counted the next time
            living += _used(process)
    return used | {"server, the writer included": living + ended.children_user + ended.children_system}


def _used(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _target_rows(lake: Path, load: Load) -> Mapping[TableId, pa.Table]:
    """`_sequence_num` and `committed_at` of all rows that were inserted while the product ran: of a hundred tables at most."""
    spark = SparkHost(SparkConfig(settings={"spark.driver.memory": "2g"}), SPARK_NEEDS, cores=os.cpu_count() or 1)
    try:
        found = {}
        for table in load.names[:: max(1, load.tables // _READ_MAX)]:
            frame = spark.session().read.format("delta").load(f"{lake}/{table.namespace}/{table.name}")
            found[table] = frame.where(f"id > {load.held_rows}").select(SEQUENCE_NUM, "committed_at").toArrow()
        return found
    finally:
        spark.stop()


def _versions(lake: Path, table: TableId) -> list[tuple[int, float]]:
    """Of each version that moved the ledger: the sequence number up to which it has everything, and when it became visible. Ascending."""
    found = []
    for file in sorted((lake / table.namespace / table.name / "_delta_log").glob("*.json")):
        if not file.stem.isdigit():
            continue
        for line in file.read_text(encoding="utf-8").splitlines():
            transaction = json.loads(line).get("txn")
            if transaction and transaction["appId"].endswith(f"/{table}/1"):
                entry = Entry.of(transaction["version"])
                assert entry is not None, "a recorded entry"
                # The file is written under another name first; the change time is that of the renaming.
                found.append((entry.last, file.stat().st_ctime))
    return found


def first_version(lake: Path, table: TableId) -> float | None:
    """When the first version with a data file became visible; None if there is none yet."""
    for file in sorted((lake / table.namespace / table.name / "_delta_log").glob("*.json")):
        if file.stem.isdigit() and any("add" in json.loads(line) for line in file.read_text("utf-8").splitlines()):
            return file.stat().st_ctime
    return None


def _seals(store: StateStore, name: str) -> list[tuple[int, float]]:
    """Of each segment: its last sequence number, and when it was sealed. Ascending."""
    return [
        (segment.last, segment.sealed_at.timestamp())
        for segment in store.journal.segments(name, 0, _SEGMENTS_MAX)
        if segment.last >= segment.first
    ]


class _Found:
    """What the tables show, gathered table by table."""

    def __init__(self, *, seals: Sequence[tuple[int, float]], load: Load) -> None:
        self._seals, self._load = seals, load
        self.ages: list[float] = []
        self.sealed: list[float] = []
        self.gaps: list[float] = []

    def add(self, rows: pa.Table, versions: Sequence[tuple[int, float]]) -> None:
        """A table's inserted rows, and its versions."""
        committed = [
            moment.timestamp() for moment in rows.column("committed_at").to_pylist() if isinstance(moment, datetime)
        ]
        to = max(committed)
        since = to - self._load.measured_s
        for number, moment in zip(rows.column(SEQUENCE_NUM).to_pylist(), committed, strict=True):
            if moment >= since:
                self.ages.append(_reached(versions, number) - moment)
                self.sealed.append(_reached(self._seals, number) - moment)
        moments = [moment for _, moment in versions if since <= moment <= to]
        self.gaps += [later - earlier for earlier, later in pairwise(moments)]


def _reached(reached: Sequence[tuple[int, float]], number: int) -> float:
    """When the number was reached first."""
    return reached[bisect.bisect_left(reached, (number, 0.0))][1]

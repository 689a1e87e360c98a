"""How old the copy is: from a row's commit in the source to the moment when readers of the Delta table see it.

Nothing is asked of the product while it runs. Each inserted row carries the source's clock, read just before its commit; the target's
rows carry sequence numbers; each version of the Delta table says up to which number it has everything (its ledger), and the file system
says when the version's file got its name, which is when it became visible. So everything is found out afterwards: a row was visible from
the first version on whose ledger reaches the row's number. Source, target and file system share one clock.
"""

from __future__ import annotations

import bisect
import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Final

import psutil
import pyarrow as pa

from benchmarks import data
from benchmarks.measure import quantile, say
from benchmarks.product import Product, running
from benchmarks.report import Line, Report, at_most
from benchmarks.scale import Scale
from replicator.model.events import SEQUENCE_NUM
from replicator.model.schema import TableId
from replicator.spark.session import SparkHost, SparkSettings
from replicator.state.store import StateStore
from replicator_target_delta.ledger import Entry
from replicator_target_delta.spark import SPARK_NEEDS
from replicator_testbed.servers import PostgresServer, ScratchDatabase

GOAL_P50_S: Final = 3.0
GOAL_P99_S: Final = 6.0
RATE: Final = 1000
EVENTS: Final = TableId("public", "events")
_HELD_ROWS: Final = 100_000
_TIMEOUT_S: Final = 600.0
_SEGMENTS_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Phases:
    """Seconds of writing: until Spark is warm, and measured."""

    warm_s: int
    measured_s: int


def run(scale: Scale) -> Report:
    """Write at a steady rate, let the product follow, and look at what it left."""
    phases = _Phases(warm_s=15, measured_s=15) if scale.is_quick else _Phases(warm_s=90, measured_s=90)
    with data.server() as server, server.database("bench") as database:
        _make(database)
        with running(database) as product:
            say("freshness: the first copy")
            product.wait_until_applied(EVENTS, lambda record: record.rows >= _HELD_ROWS, timeout_s=_TIMEOUT_S)
            say(f"freshness: {RATE} transactions a second for {phases.warm_s} + {phases.measured_s} s")
            usage = _write(database, server, product, phases)
            total = _HELD_ROWS + RATE * (phases.warm_s + phases.measured_s)
            product.wait_until_applied(EVENTS, lambda record: record.rows >= total, timeout_s=_TIMEOUT_S)
            rows = _target_rows(product.rig.lake / "public" / "events")
            versions = _versions(product.rig.lake / "public" / "events")
            seals = _seals(product.store(), product.rig.name)
    return _report(rows, versions, seals, usage, phases)


def _make(database: ScratchDatabase) -> None:
    database.execute(
        "CREATE TABLE events (id bigint PRIMARY KEY, counter bigint NOT NULL, committed_at timestamptz NOT NULL, note text NOT NULL)",
        f"INSERT INTO events SELECT i, 0, clock_timestamp(), md5(i::text) FROM generate_series(1, {_HELD_ROWS}) AS i",
        # Paced by the server's own clock: inserts of a row and updates of a row that is there take turns; what is late is made up for.
        f"""
        CREATE PROCEDURE write_events(rate int, seconds int) LANGUAGE plpgsql AS $$
        DECLARE
          began timestamptz := clock_timestamp();
          due double precision;
        BEGIN
          FOR n IN 1 .. rate * seconds LOOP
            due := n::double precision / rate - extract(epoch FROM clock_timestamp() - began);
            IF due > 0.001 THEN PERFORM pg_sleep(due); END IF;
            IF n % 2 = 0 THEN
              INSERT INTO events VALUES ({_HELD_ROWS} + n, n, clock_timestamp(), md5(n::text));
            ELSE
              UPDATE events SET counter = n, committed_at = clock_timestamp() WHERE id = 1 + (n::bigint * 7919) % {_HELD_ROWS};
            END IF;
            COMMIT;
          END LOOP;
        END $$
        """,
    )


def _write(database: ScratchDatabase, server: PostgresServer, product: Product, phases: _Phases) -> Mapping[str, float]:
    """Write to the end; return how many cores each process used in the measured part."""
    seconds = phases.warm_s + phases.measured_s
    writer = threading.Thread(target=database.execute, args=(f"CALL write_events({RATE}, {seconds})",), name="writer")
    writer.start()
    writer.join(timeout=phases.warm_s)
    before = _processor_seconds(server, product)
    writer.join()
    after = _processor_seconds(server, product)
    return {name: (after[name] - before[name]) / phases.measured_s for name in before.keys() & after.keys()}


def _processor_seconds(server: PostgresServer, product: Product) -> dict[str, float]:
    assert server.pid is not None, "the server runs"
    postmaster = psutil.Process(server.pid)
    used = {name: _used(process) for name, process in product.workers().items()}
    # Those that have ended are counted by the postmaster: the backend that wrote is one of them in the end.
    ended = postmaster.cpu_times()
    living = sum(_used(process) for process in postmaster.children())
    return used | {"server, the writer included": living + ended.children_user + ended.children_system}


def _used(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _target_rows(path: Path) -> pa.Table:
    """`_sequence_num` and `committed_at` of all rows that were inserted while the product ran."""
    spark = SparkHost(SparkSettings(needs=SPARK_NEEDS, memory="1g"), cores=os.cpu_count() or 1)
    try:
        frame = spark.session().read.format("delta").load(str(path))
        rows: pa.Table = frame.where(f"id > {_HELD_ROWS}").select(SEQUENCE_NUM, "committed_at").toArrow()
        return rows
    finally:
        spark.stop()


def _versions(path: Path) -> list[tuple[int, float]]:
    """Of each version that moved the ledger: the sequence number up to which it has everything, and when it became visible. Ascending."""
    found = []
    for file in sorted((path / "_delta_log").glob("*.json")):
        if not file.stem.isdigit():
            continue
        for line in file.read_text(encoding="utf-8").splitlines():
            transaction = json.loads(line).get("txn")
            if transaction and transaction["appId"].endswith(f"/{EVENTS}/1"):
                entry = Entry.of(transaction["version"])
                assert entry is not None, "a recorded entry"
                # The file is written under another name first; the change time is that of the renaming.
                found.append((entry.last, file.stat().st_ctime))
    return found


def _seals(store: StateStore, name: str) -> list[tuple[int, float]]:
    """Of each segment: its last sequence number, and when it was sealed. Ascending."""
    try:
        return [
            (segment.last, segment.sealed_at.timestamp())
            for segment in store.segments(name, 0, _SEGMENTS_MAX)
            if segment.last >= segment.first
        ]
    finally:
        store.close()


def _report(
    rows: pa.Table,
    versions: Sequence[tuple[int, float]],
    seals: Sequence[tuple[int, float]],
    usage: Mapping[str, float],
    phases: _Phases,
) -> Report:
    committed = [
        moment.timestamp() for moment in rows.column("committed_at").to_pylist() if isinstance(moment, datetime)
    ]
    measured_from = max(committed) - phases.measured_s
    ages, sealed_ages = [], []
    for number, moment in zip(rows.column(SEQUENCE_NUM).to_pylist(), committed, strict=True):
        if moment >= measured_from:
            ages.append(_reached(versions, number) - moment)
            sealed_ages.append(_reached(seals, number) - moment)
    moments = [moment for _, moment in versions if measured_from <= moment <= max(committed)]
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    what = f"commit → visible in the Delta table, {RATE} transactions/s, {len(ages):,} inserts in {phases.measured_s} s"
    lines: list[Line] = [
        at_most(f"{what}: p50", quantile(ages, 0.50), GOAL_P50_S, "s"),
        at_most(f"{what}: p95", quantile(ages, 0.95), None, "s"),
        at_most(f"{what}: p99", quantile(ages, 0.99), GOAL_P99_S, "s"),
        at_most("of which commit → sealed in the journal: p50", quantile(sealed_ages, 0.50), None, "s"),
        at_most("of which commit → sealed in the journal: p99", quantile(sealed_ages, 0.99), None, "s"),
        at_most("time between two versions of the Delta table: p50", quantile(gaps, 0.50) if gaps else 0.0, None, "s"),
        at_most("time between two versions of the Delta table: longest", max(gaps, default=0.0), None, "s"),
        *(at_most(f"cores used by the {name}", share, None, "cores") for name, share in sorted(usage.items())),
    ]
    raw = {
        "ages_s": sorted(round(age, 3) for age in ages)[:: max(1, len(ages) // 1000)],
        "gaps_s": gaps,
        "cores": dict(usage),
    }
    return Report(name="freshness", lines=lines, raw=raw)


def _reached(places: Sequence[tuple[int, float]], number: int) -> float:
    """When the first of these places was there that has the number."""
    return places[bisect.bisect_left(places, (number, 0.0))][1]

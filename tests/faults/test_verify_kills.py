"""`replicator verify` again and again while both sides change and processes are killed: what is equal is never called different.

REPLICATOR_SOAK_MINUTES says how long the long ones take (60).
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from typing import Final

import pytest

from replicator_testbed.background import in_background
from replicator_testbed.databases import Database
from replicator_testbed.processes import kill_one
from replicator_testbed.rig import Rig, is_streaming, is_worker
from replicator_testbed.target_tables import TargetTables
from replicator_testing.waiting import wait_until

MINUTES: Final = float(os.environ.get("REPLICATOR_SOAK_MINUTES", "60"))
EVENTS: Final = "CREATE TABLE events (id bigint PRIMARY KEY, n bigint NOT NULL, note varchar(40))"
VIEWS: Final = "CREATE TABLE views (page varchar(40), n bigint)"
ENABLED: Final = tuple(
    f"EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', @source_name = N'{table}', @role_name = NULL, @supports_net_changes = 0"
    for table in ("events", "views")
)
"""SQL Server captures no table by itself."""
_TURNS_PER_S: Final = 10
_log = logging.getLogger(__name__)


def _turn(number: int, changes: int) -> Iterator[str]:
    """A transaction of about so many changes: inserts at the end, updates of rows of all ages, deletes and moves of old ones."""
    new, share = number * changes, changes // 5
    rows = ", ".join(f"({id_}, {id_ % 97}, 'n {id_}')" for id_ in range(new, new + 2 * share))
    yield f"INSERT INTO events VALUES {rows}"
    draw = random.Random(number)
    some = [draw.randrange(max(new, 1)) for _ in range(10 * share)]
    yield f"UPDATE events SET n = n + 1 WHERE id IN ({', '.join(map(str, some))})"
    old = draw.randrange(max(new, 1))
    yield f"DELETE FROM events WHERE id BETWEEN {old} AND {old + 2 * share}"
    yield f"UPDATE events SET id = -id WHERE id BETWEEN {old + 3 * share} AND {old + 3 * share + 3}"
    if number % _TURNS_PER_S == 0:
        yield f"INSERT INTO views VALUES ('page {number % 7}', {number % 3})"
        yield f"DELETE FROM views WHERE page = 'page {draw.randrange(7)}' AND n = 1"


def load(database: Database, changes_per_s: int) -> AbstractContextManager[None]:
    """About so many changes a second in ten transactions, or as many as the server manages."""

    def write(stop: threading.Event) -> None:
        due, number = time.monotonic(), 0
        while not stop.wait(max(0.0, due - time.monotonic())):
            number, due = number + 1, due + 1 / _TURNS_PER_S
            database.execute(*_turn(number, changes_per_s // _TURNS_PER_S))

    return in_background(write)


@pytest.mark.matrix
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("kind", "target", "rate", "minutes"),
    [
        ("postgresql", "duckdb", 50, 0.1),
        pytest.param("postgresql", "bigquery", 50, 0.1, marks=pytest.mark.matrix),
        pytest.param("sqlserver", "delta", 50, 3, marks=pytest.mark.matrix),
        *(pytest.param(kind, "delta", 1000, MINUTES, marks=pytest.mark.soak) for kind in ("postgresql", "mariadb", "mysql")),
        *(pytest.param(kind, "bigquery", 50, MINUTES / 6, marks=pytest.mark.soak) for kind in ("postgresql", "mysql")),
    ],
)  # fmt: skip
def test_nothing_is_called_different_that_is_equal(
    rig: Rig, target_tables: TargetTables, kind: str, rate: int, minutes: float
) -> None:
    rig.database.execute(EVENTS, VIEWS)
    if kind == "sqlserver":
        rig.database.execute(*ENABLED)
    if kind == "postgresql":
        rig.database.execute("ALTER TABLE views REPLICA IDENTITY FULL")
    rig.tables = ("events", "views")
    rig.write_yaml()
    draw, found, began = random.Random(20261127), Counter[tuple[str, str, str]](), time.monotonic()
    worker = rig.start()
    with load(rig.database, rate), ThreadPoolExecutor(1) as pool:
        rig.wait_for_status(is_streaming, worker)
        end = time.monotonic() + minutes * 60
        for number in itertools.count():
            if time.monotonic() > end and _are_proven(rig.tables, found):
                break
            worker = _running(rig, worker)
            verification = pool.submit(rig.command, "verify", rig.name, "--json", check=None, timeout=900)
            if number % 2 == 0:
                with suppress(TimeoutError):
                    verification.exception(draw.uniform(0, 5))
                if worker.poll() is None:
                    kill_one(worker, draw)
                worker = _running(rig, worker)
            found.update(_results(verification.result()))
        lasted = time.monotonic() - began
    worker = _at_work(rig, worker)
    rig.settle(worker)
    applied = sum(rig.table(name).changes_applied for name in rig.tables)
    _log.info("%s: %d changes in %.0f s; %s", kind, applied, lasted, found)
    rig.verify()
    assert rig.stop(worker) == 0, rig.output()
    assert rig.differences(target_tables) == {}


def _are_proven(tables: Sequence[str], found: Counter[tuple[str, str, str]]) -> bool:
    return all(any(table == one[0] and one[1] == "equal" for one in found) for table in tables)


def _running(rig: Rig, worker: subprocess.Popen[str]) -> subprocess.Popen[str]:
    """The same worker, or a new one if it was killed, or refused because `verify` was the worker."""
    if worker.poll() is None:
        return worker
    assert worker.returncode in {-signal.SIGKILL, 2}, rig.output()
    return rig.start()


def _at_work(rig: Rig, worker: subprocess.Popen[str]) -> subprocess.Popen[str]:
    """The same, once it is not refused."""

    def holder() -> subprocess.Popen[str] | None:
        nonlocal worker
        worker = _running(rig, worker)
        return worker if is_worker(rig.status(), worker) else None

    return wait_until(holder, lambda: f"a worker holds the lease\n{rig.output()}")


def _results(done: subprocess.CompletedProcess[str]) -> list[tuple[str, str, str]]:
    """Table, result and reason. Without a document, why there is none: its worker has ended, for example."""
    assert done.returncode in {0, 1, 3}, f"exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    if done.stdout:
        tables = json.loads(done.stdout)["tables"]
        assert all(table["result"] != "different" for table in tables), done.stdout[-3000:]
        return [(table["table"].partition(".")[2], table["result"], table["reason"] or "") for table in tables]
    return [("", "none", done.stderr[-500:])]

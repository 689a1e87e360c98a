"""`kill -9` of anything at any time under load, a worker that wakes up after its lease, and two workers at once."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
from contextlib import closing

import psutil
import pytest

from replicator_testbed.demo.shop import TABLES, ShopWriter
from replicator_testbed.present import present
from replicator_testbed.processes import has_open, kill_one, put_to_sleep, wake
from replicator_testbed.rig import Rig, has_snapshots, is_running, is_worker
from replicator_testbed.target_tables import TargetTables
from replicator_testing.waiting import PATIENCE, wait_until

KILLS = 2
"""Of the walk that every source has in `make test`."""


def _let_write(writer: ShopWriter, transactions: int) -> None:
    wait_until(lambda: writer.transactions >= transactions, "the writer continues", timeout_s=120)


def _kill_at_random(
    rig: Rig, writer: ShopWriter, target_tables: TargetTables, kills: int, seed: int, writes_max: int = 250
) -> None:
    draw = random.Random(seed)
    process = rig.start()
    for _ in range(kills):
        target = writer.transactions + draw.randint(5, writes_max)
        _let_write(writer, target)
        if process.poll() is None:
            kill_one(process, draw)
        if process.poll() is not None:
            assert process.returncode == -signal.SIGKILL, rig.output()
            process = rig.start()
    writer.stop()
    if process.poll() is not None:
        process = rig.start()
    rig.settle(process)
    if kills > KILLS:
        rig.verify()
    assert rig.stop(process) == 0, rig.output()
    assert rig.differences(target_tables) == {}


def _sleeps_between_writes(rig: Rig, worker: list[psutil.Process]) -> bool:
    """Stop a worker's processes, but not amid a write to the state store or to DuckDB: one that sleeps there keeps all others out."""
    put_to_sleep(worker)
    if any(has_open(process, ".duckdb") for process in worker):
        wake(worker)
        return False
    with closing(sqlite3.connect(rig.home / "state.db", timeout=0, isolation_level=None)) as state:
        try:
            state.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            wake(worker)
            return False
        state.execute("ROLLBACK")
    return True


@pytest.mark.parametrize(
    ("kind", "target", "kills"),
    [
        ("postgresql", "duckdb", KILLS),
        ("mariadb", "duckdb", 1),
        ("sqlserver", "duckdb", 1),
        *(
            pytest.param(kind, "delta", 8, marks=pytest.mark.matrix)
            for kind in ("postgresql", "mariadb", "mysql", "sqlserver", "sqlserver_tracking")
        ),
        *(pytest.param(kind, "spark", 8, marks=pytest.mark.matrix) for kind in ("postgresql", "mysql")),
    ],
)
def test_random_kills_under_load_lose_and_double_nothing(
    rig: Rig, writer: ShopWriter, target_tables: TargetTables, kills: int
) -> None:
    _kill_at_random(rig, writer, target_tables, kills=kills, seed=20261121, writes_max=250 if kills > KILLS else 60)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        (kind, seed)
        for kind, seeds in (
            ("postgresql", 20),
            ("mariadb", 5),
            ("mysql", 5),
        )
        for seed in range(seeds)
    ],
)
def test_many_random_kills_under_load_lose_and_double_nothing(
    rig: Rig, writer: ShopWriter, target_tables: TargetTables, seed: int
) -> None:
    """From a SQL Server: `test_sqlserver_load.py`."""
    rig.tables = TABLES
    rig.write_yaml()
    _kill_at_random(rig, writer, target_tables, kills=25, seed=seed)


@pytest.mark.parametrize(
    "target", ["duckdb", *(pytest.param(target, marks=pytest.mark.matrix) for target in ("bigquery", "delta"))]
)
def test_a_worker_that_wakes_up_after_its_lease_changes_nothing(
    rig: Rig, writer: ShopWriter, target_tables: TargetTables
) -> None:
    rig.database.execute(f'ALTER DATABASE "{rig.database.name}" SET wal_sender_timeout = 3000')
    zombie = rig.start()
    rig.wait_for_status(
        lambda s: has_snapshots(s) and all(t.changes_applied > 0 for t in s.tables),
        zombie,
    )
    asleep = psutil.Process(zombie.pid).children(recursive=True)
    wait_until(
        lambda: _sleeps_between_writes(rig, [psutil.Process(zombie.pid), *asleep]),
        "the worker sleeps between two writes",
    )

    def take_over() -> subprocess.Popen[str] | None:
        """Its lease keeps others out as long as it lasts, which may be no longer than a start takes on a busy machine."""
        successor = rig.start()
        wait_until(
            lambda: successor.poll() is not None or is_worker(rig.status(), successor), "the lease is taken or refused"
        )
        if successor.poll() is None:
            return successor
        assert successor.returncode == 2, rig.output()
        assert "already run by" in rig.output()
        # Each start costs seconds of processor time, also one that is refused.
        wait_until(lambda: present(rig.status()).worker is None, "the lease is over")
        return None

    successor = wait_until(take_over, lambda: f"the lease of the sleeping worker is over\n{rig.output()}")
    before = writer.transactions
    _let_write(writer, before + 30)
    rig.wait_for_status(lambda s: is_running(s) and s.freshness_s is not None, successor)
    wake([psutil.Process(zombie.pid), *asleep])
    assert zombie.wait(timeout=200 * PATIENCE) == 1, f"a worker that lost its lease says so\n{rig.output()}"
    writer.stop()
    rig.settle(successor)
    assert rig.stop(successor) == 0, rig.output()
    assert rig.differences(target_tables) == {}


@pytest.mark.matrix  # a worker that sleeps keeps others out, too, as long as its lease lasts
@pytest.mark.parametrize("target", ["duckdb", "bigquery"])
def test_a_second_worker_is_refused(rig: Rig) -> None:
    first = rig.start()
    rig.wait_for_status(lambda s: s.worker is not None, first)
    assert "already run by" in rig.command("run", str(rig.file), check=2).stderr
    assert rig.stop(first) == 0, rig.output()


@pytest.mark.parametrize("target", ["duckdb", pytest.param("delta", marks=pytest.mark.matrix)])
def test_killing_the_supervisor_leaves_no_orphan(rig: Rig) -> None:
    worker = rig.start()
    rig.wait_for_status(is_running, worker)
    family = psutil.Process(worker.pid).children(recursive=True)
    assert len(family) >= 2
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    _, alive = psutil.wait_procs(family, timeout=30 * PATIENCE)
    assert not alive, f"left behind: {alive}"

"""Random transactions on the model of a SQL Server, whose server suffers whatever it can, while processes of the replicator are killed."""

from __future__ import annotations

import logging
import random
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from replicator.model.offset import Offset
from replicator_source_sqlserver.cdc.position import Position
from replicator_source_sqlserver.tracking.versions import VersionPosition
from replicator_testbed.databases import Database
from replicator_testbed.processes import kill_one
from replicator_testbed.rig import Rig, has_snapshots
from replicator_testbed.sqlserver import load as sqlserver_load
from replicator_testbed.sqlserver.databases import SqlServerDatabase
from replicator_testbed.sqlserver.load import KEYED, TABLES, Load
from tests.faults.conftest import QUICK, Reading

_log = logging.getLogger(__name__)

KEYS = 200
TROUBLES = ("capture", "clean up", "connections", "restart", "alter", "alter", "snapshot", "clean up", *["kill"] * 6)
"""In each run all of them, in an order that is drawn."""
SNAPSHOTS = "snapshot: {chunk_rows: 40}"


@pytest.fixture
def loaded(tmp_path: Path, origin: Database) -> Iterator[Rig]:
    """A replicator of the load's tables."""
    assert isinstance(origin, SqlServerDatabase)
    sqlserver_load.create(origin, KEYS)
    extra = QUICK.replace("snapshot: {chunk_rows: 1000}", SNAPSHOTS)
    assert SNAPSHOTS in extra
    rig = Rig(folder=tmp_path, database=origin, tables=KEYED if origin.is_tracked else TABLES, extra=extra)
    yield rig
    rig.kill()


@dataclass
class Trouble:
    """What happens while the load writes: to the server, and to the replicator's processes."""

    rig: Rig
    load: Load
    draw: random.Random
    process: subprocess.Popen[str]

    def step(self, kind: str) -> None:
        """One of `TROUBLES` happens; then the load continues for a while."""
        _log.info("%s after %d transactions", kind, self.load.transactions)
        match kind:
            case "kill":
                self._kill()
            case "capture" if not self.load.database.is_tracked:
                self.load.stop_capture()
                self.load.let_write(self.draw.randint(10, 60))
                self.load.start_capture()
            case "clean up":
                self._clean_up()
            case "connections":
                self.load.kill_connections()
            case "restart":
                self.load.restart_server()
            case "alter":
                self._alter()
            case "snapshot":
                table = self.draw.choice(self.rig.tables)
                # Nobody needs to run it: a worker takes it up when it starts.
                self.rig.command("snapshot", self.rig.name, self.rig.full_name(table))
        self.load.let_write(self.draw.choice((self.draw.randint(5, 50), self.draw.randint(50, 200))))
        if self.process.poll() is not None:
            assert self.process.returncode == -signal.SIGKILL, self.rig.output()
            self.process = self.rig.start()

    def _kill(self) -> None:
        if self.process.poll() is None:
            kill_one(self.process, self.draw)
            self.load.kinds["process killed"] += 1

    def _durable(self) -> Offset | None:
        """Behind which a restart reads."""
        assert self.rig.store is not None
        last = self.rig.store.journal.last_segment(self.rig.name)
        return last.offset if last is not None else None

    def _clean_up(self) -> None:
        offset = self._durable()
        if offset is None:
            return
        if self.load.database.is_tracked:
            self.load.clean_up_tracked(VersionPosition.of(offset).version)
        else:
            self.load.clean_up(Position.of(offset).lsn)

    def _alter(self) -> None:
        """A column comes with a second instance. Before another one comes, the first one goes, once what only it has is durable."""
        if self.load.has_two_instances:
            self.rig.wait_for_status(lambda _: self._is_behind_begin())
            self.load.disable_older()
        self.load.grow()

    def _is_behind_begin(self) -> bool:
        if self.process.poll() is not None:
            self.process = self.rig.start()
        begun, offset = self.load.begun_at(), self._durable()
        return begun is not None and offset is not None and Position.of(offset).lsn >= begun


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        *(pytest.param(k, 100, marks=pytest.mark.matrix) for k in ("sqlserver", "sqlserver_tracking")),
        *(
            pytest.param(kind, seed, marks=pytest.mark.soak)
            for kind, seeds in (("sqlserver", 20), ("sqlserver_tracking", 5))
            for seed in range(seeds)
        ),
    ],
)
def test_random_transactions_under_kills_and_troubles_of_the_server_leave_no_difference(
    loaded: Rig, origin: SqlServerDatabase, reading: Reading, seed: int
) -> None:
    """A slice of it, without a target, is in `tests/integration/capture_sqlserver/test_random_transactions.py`."""
    target_tables = reading(loaded)
    process = loaded.start()
    with Load(origin, keys=KEYS, seed=seed, pause_s=0.1) as load:
        loaded.wait_for_status(has_snapshots, process)
        draw = random.Random(seed)
        trouble = Trouble(loaded, load, draw, process)
        for kind in draw.sample(TROUBLES, len(TROUBLES)):
            trouble.step(kind)
    _log.info("%d transactions: %s", load.transactions, dict(load.kinds))
    process = trouble.process
    loaded.settle(process)
    loaded.verify()
    assert loaded.stop(process) == 0, loaded.output()
    assert loaded.differences(target_tables) == {}

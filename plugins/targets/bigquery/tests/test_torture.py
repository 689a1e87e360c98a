"""Random transactions into the emulator, with crashes, kills, pauses and snapshots in place; every row is compared."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from replicator.model.documents.status import TableState
from replicator_testbed.bigquery.emulator import PROJECT, WITHOUT_RESTS, BigQueryEmulator
from replicator_testbed.mysql.servers import MysqlDatabase, MysqlServer
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testbed.processes import kill_one
from replicator_testbed.rig import Rig, is_worker, with_crashes
from replicator_testing.waiting import wait_until

from .torture import COLUMNS, Database, Writer, differences, prepare

if TYPE_CHECKING:
    from google.cloud.bigquery import Client

CRASH_POINTS = (
    "apply.claimed", "target.claimed", "target.before_ddl", "target.table_made", "target.after_ddl",
    "target.before_merge", "target.uploaded", "target.loaded", "target.merged", "target.after_merge", "apply.after_unit",
)  # fmt: skip

MEANWHILE = 150
"""Transactions at most that come while something is done to the replicator."""


@pytest.fixture
def client(emulator: BigQueryEmulator) -> Iterator[Client]:
    client = emulator.client()
    yield client
    client.close()


class Torture:
    """One replicator of the tables of `torture`, and what is done to it."""

    def __init__(self, folder: Path, database: Database, emulator: BigQueryEmulator, seed: int, flags: str) -> None:
        prepare(database)
        self.database, self.draw = database, random.Random(seed)
        self.namespace = "public" if isinstance(database, ScratchDatabase) else database.name
        points = self.draw.sample(CRASH_POINTS, 4) if "crash" in flags else []
        self.dataset = f"{PROJECT}.t_{database.name}_{self.namespace}"
        extra = f"""{WITHOUT_RESTS}snapshot: {{chunk_rows: {self.draw.choice([3, 10, 1000])}}}
journal: {{seal_every: {self.draw.choice([10, 100])}ms}}
retry: {{backoff_initial: 20ms, backoff_max: 500ms, give_up_after: 5m}}
tables:
  include: ['{self.namespace}.*']
  settings: {{'{self.namespace}.softly': {{deletes: soft, source_timestamp: true}}}}
"""
        target = emulator.block(
            dataset=f"t_{database.name}_{{namespace}}",
            own_dataset=f"_t_{database.name}",
            tables=f"{{'{self.namespace}.visits': {{partition_by: day}}}}",
        )
        self.rig = Rig(folder=folder, database=database, extra=extra, target=target)
        with_crashes(self.rig, [f"{point}:{self.draw.randrange(1, 6)}" for point in points])
        self.writer = Writer(database, seed)

    def run(self, rounds: int, flags: str, client: Client, more: int = 60) -> None:
        self.writer.let_write(MEANWHILE)
        self.writer.start()
        process = self.rig.start()
        try:
            self.rig.wait_for_status(lambda s: bool(s.tables), process)
            for _ in range(rounds):
                target = self.writer.transactions + self.draw.randint(more // 2, more)
                self.writer.let_write(target + MEANWHILE)
                wait_until(partial(self.writer.has_reached, target), "the writer continues", timeout_s=120)
                process = self.disturb(process, flags)
            self.rig.wait_for_status(lambda s: all(t.state is not TableState.PENDING for t in s.tables), process)
            self.writer.stop()
            assert self.rig.stop(process) == 0, self.rig.output()
            self.rig.catch_up_at_its_pace()
        finally:
            self.writer.stop()
            self.rig.kill()
        assert differences(self.database, client, self.dataset) == {}

    def disturb(self, process: Any, flags: str) -> Any:
        what = self.draw.choice(flags.split())
        if what == "copy":
            table = self.draw.choice(list(COLUMNS))
            self.rig.command("snapshot", self.rig.name, f"{self.namespace}.{table}", check=None)
        elif what == "kill":
            kill_one(process, self.draw)
            if process.poll() is not None:
                successor = self.rig.start()
                # Started while the replicator is paused it would refuse to run, and rightly.
                self.rig.wait_for_status(lambda s: is_worker(s, successor), successor)
                return successor
        elif what == "pause":
            self.rig.command("pause", self.rig.name, "--apply")
            self.rig.command("resume", self.rig.name)
        return process


@pytest.mark.matrix
def test_random_transactions_from_mariadb_are_replicated(
    tmp_path: Path, mariadb: MysqlServer, emulator: BigQueryEmulator, client: Client
) -> None:
    with mariadb.database() as database:
        Torture(tmp_path, database, emulator, 1, "copy").run(1, "copy", client)


@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(6))
def test_random_transactions_from_postgresql_survive_everything(
    tmp_path: Path, database: ScratchDatabase, emulator: BigQueryEmulator, client: Client, seed: int
) -> None:
    Torture(tmp_path, database, emulator, seed, "crash").run(12, "copy kill pause", client)


@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(3))
def test_random_transactions_from_mysql_and_mariadb_survive_everything(
    tmp_path: Path, mysql_database: MysqlDatabase, emulator: BigQueryEmulator, client: Client, seed: int
) -> None:
    Torture(tmp_path, mysql_database, emulator, seed, "crash").run(12, "copy kill pause", client)

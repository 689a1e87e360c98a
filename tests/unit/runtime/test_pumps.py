"""How the pumps are put together from a stored configuration: what a later start refuses, and what it leaves out."""

from __future__ import annotations

import platform
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from replicator.capture import CaptureSettings
from replicator.config import ReplicatorConfig
from replicator.model.errors import ConfigError, Problem
from replicator.model.schema import TableId
from replicator.plugins.registry import Registry
from replicator.runtime.home import Home
from replicator.runtime.pumps import run_apply, run_capture
from replicator.state.records import Stage, TableRecord
from replicator.state.store import StateStore
from replicator_target_delta.target import DeltaLakeTarget
from replicator_testbed.journals.captured import CaptureControl
from replicator_testbed.present import present
from replicator_testing.memory import MemoryDatabase, MemorySource, MemoryTarget, MemoryWarehouse, StoredTable
from replicator_testing.target_harness import items_schema
from replicator_testing.waiting import wait_until

CLAIM = "claim.json"
REGISTRY = Registry.of(sources=[MemorySource], targets=[MemoryTarget, DeltaLakeTarget])


@dataclass(slots=True)
class Host:
    """One stored replicator of in-memory plugins."""

    folder: Path
    state: str = "state.db"
    store: StateStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = StateStore(f"sqlite:///{self.folder}/{self.state}")
        if not self.store.replicators():
            self.store.create_replicator("shop", self.document(), str(self.journal))

    @property
    def journal(self) -> Path:
        """The folder, which copies of the state store have in common."""
        return self.folder / "journal" / "shop"

    def files(self) -> set[str]:
        """What is sealed, and what is not yet."""
        return {path.name for path in self.journal.glob("*.parquet")}

    def copied(self) -> Host:
        """Another host, with a copy of the state store."""
        with (
            closing(sqlite3.connect(self.folder / self.state)) as old,
            closing(sqlite3.connect(self.folder / "copy.db")) as new,
        ):
            old.backup(new)
        return Host(self.folder, "copy.db")

    def insert(self, table: TableId, number: int) -> None:
        """A row, and until its file is sealed."""
        before = self.store.journal.last_segment("shop")
        with self.database.begin() as transaction:
            transaction.insert(table, {"id": number, "name": "a", "amount": None, "note": None})

        def is_sealed() -> bool:
            now = self.store.journal.last_segment("shop")
            return before is not None and now is not None and now.last > before.last

        wait_until(is_sealed, "it is sealed", timeout_s=30, every_s=0.02)

    def document(self, more: str = "", target: str = "") -> str:
        memory = f"{{type: memory, database: {self.name}}}"
        return f"name: shop\nsource: {memory}\ntarget: {target or memory}\n{more}"

    @property
    def name(self) -> str:
        return f"host-{self.folder.name}"

    @property
    def database(self) -> MemoryDatabase:
        return MemoryDatabase.open(self.name)

    def call(self, pump: Callable[..., None], control: CaptureControl) -> None:
        """Run a pump under an epoch of its own."""
        lease = self.store.leases.acquire("shop", "host:1:boot", 3600)
        record = self.store.replicator("shop")
        assert lease is not None
        assert record is not None
        home = Home(folder=self.folder, state_url=f"sqlite:///{self.folder}/{self.state}")
        pump(self.store, home, REGISTRY, record, lease.epoch, control)

    @contextmanager
    def running(self, pump: Callable[..., None]) -> Iterator[None]:
        """A pump in a thread, under an epoch of its own."""
        control, errors = CaptureControl(), list[BaseException]()

        def run() -> None:
            try:
                self.call(pump, control)
            except BaseException as error:  # noqa: BLE001 (raised in the test's thread)
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            control.stop()
            thread.join(timeout=60)
        assert not errors

    def record(self, table: TableId) -> TableRecord | None:
        return next((r for r in self.store.tables("shop") if r.table == table), None)

    def wait_for(self, table: TableId, stage: Stage) -> TableRecord:
        def look() -> TableRecord | None:
            record = self.record(table)
            return record if record is not None and record.stage is stage else None

        return wait_until(look, f"{table} is {stage}", timeout_s=30, every_s=0.02)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    host.store.close()


def test_a_later_start_fails_the_tables_that_it_refuses_and_no_other(host: Host) -> None:
    good, bad, clash, foreign = (TableId("shop", name) for name in ("good", "bad", "Good", "foreign"))
    for table in (good, bad):
        host.database.create_table(items_schema(table=table))
    with host.running(run_capture):
        for table in (good, bad):
            host.wait_for(table, Stage.STREAMING)
    for table in (clash, foreign):
        host.database.create_table(items_schema(table=table))
    host.database.problems.append(Problem(code="select_missing", message="the role may not read it", table=str(bad)))
    MemoryWarehouse.open(host.name).tables[foreign] = StoredTable(uuid="somebody's", incarnation=1, epoch=1)
    with host.running(run_capture):
        failed = {table: host.wait_for(table, Stage.FAILED) for table in (bad, clash, foreign)}
        host.wait_for(good, Stage.STREAMING)
    codes = {table: record.error.code for table, record in failed.items() if record.error is not None}
    assert codes == {bad: "select_missing", clash: "table_names_clash", foreign: "not_ours"}
    host.database.problems.clear()
    with host.running(run_capture):
        host.wait_for(bad, Stage.STREAMING)


def test_what_the_configuration_leaves_out_by_now_is_not_applied(host: Host) -> None:
    kept, left_out = TableId("shop", "kept"), TableId("shop", "left_out")
    for table in (kept, left_out):
        host.database.create_table(items_schema(table=table))
    with host.running(run_capture):
        for table in (kept, left_out):
            host.wait_for(table, Stage.STREAMING)
    host.store.set_config("shop", host.document("tables: {exclude: [shop.left_out]}\n"))
    with host.running(run_apply):
        wait_until(lambda: kept in MemoryWarehouse.open(host.name).tables, "the one is applied", timeout_s=30)
    assert left_out not in MemoryWarehouse.open(host.name).tables


@pytest.mark.parametrize("pump", [run_capture, run_apply])
def test_a_copy_of_the_state_store_leaves_the_originals_journal_alone(host: Host, pump: Callable[..., None]) -> None:
    items = TableId("shop", "items")
    host.database.create_table(items_schema(table=items))
    with host.running(run_capture):
        host.wait_for(items, Stage.STREAMING)
        copy, stopped = host.copied(), CaptureControl()
        stopped.stop()
        host.insert(items, 1)
    files = host.files()
    try:
        with pytest.raises(ConfigError) as caught:
            copy.call(pump, stopped)
    finally:
        assert host.files() == files
    assert caught.value.code == "home_copied"
    assert str(host.journal / CLAIM) in str(caught.value)
    with host.running(run_capture):
        host.insert(items, 2)
    copy.store.close()


@pytest.mark.parametrize("target", ["memory", "delta"])
def test_what_the_target_refuses_by_now_fails_its_table_while_it_is_captured(
    host: Host, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another owner of the table, or a file at its path."""
    settings_of = CaptureSettings.of

    def quick(config: ReplicatorConfig, *, spool: Path) -> CaptureSettings:
        return replace(settings_of(config, spool=spool), check_every_s=0.05, check_target_every_s=0.1)

    monkeypatch.setattr(CaptureSettings, "of", quick)
    good, bad = (TableId("shop", name) for name in ("good", "bad"))
    lake = host.folder / "lake"
    if target == "delta":
        host.store.set_config("shop", host.document(target=f"{{type: delta, path: {lake}}}"))
    for table in (good, bad):
        host.database.create_table(items_schema(table=table))
    with host.running(run_capture):
        for table in (good, bad):
            host.wait_for(table, Stage.STREAMING)
        if target == "delta":
            (lake / "shop").mkdir(parents=True)
            (lake / "shop" / "bad").touch()
        else:
            MemoryWarehouse.open(host.name).tables[bad] = StoredTable(uuid="somebody's", incarnation=1, epoch=1)
        failed = host.wait_for(bad, Stage.FAILED)
        host.insert(good, 1)
    assert present(failed.error).code == ("target_occupied" if target == "delta" else "not_ours")
    assert present(host.record(good)).stage is Stage.STREAMING


@pytest.mark.matrix
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
def test_the_memory_of_a_large_batch_goes_back_to_the_system() -> None:
    """In a process of its own: the pool is the process's, and others have used it here."""
    program = """
import psutil, pyarrow as pa, pyarrow.compute as pc
from replicator.runtime.pumps import return_unused_memory
return_unused_memory()
resident = lambda: psutil.Process().memory_info().rss >> 20
texts = pc.cast(pa.array(range(1000)), pa.string())
before = resident()
batch = [pa.concat_arrays([texts] * 100).take(pa.array(range(100_000))) for _ in range(300)]
held = resident()
del batch
print(held - before, resident() - before)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    held, kept = map(int, done.stdout.split())
    assert held > 100
    assert kept < 20

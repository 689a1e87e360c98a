"""The cause goes, the replicator continues, nothing is lost: source, target, Spark, disk and state store, each away for a while.

One replicator to each target lives through all of them, one after another. A test that fails ends it, and the next begins with another.
"""

from __future__ import annotations

import errno
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from replicator.model.documents.status import ReplicatorStatus
from replicator_testbed.databases import Database
from replicator_testbed.demo.shop import ShopWriter
from replicator_testbed.demo.sources import Shop
from replicator_testbed.network.proxy import FaultProxy
from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.processes import name_of
from replicator_testbed.rig import Rig, is_fresh, is_running
from replicator_testbed.target_tables import TargetTables
from replicator_testing.waiting import wait_until

without_spark = pytest.mark.parametrize("target", ["duckdb"])
"""What happens is not about the target."""


@dataclass(slots=True, kw_only=True)
class Replication:
    """A replicator at work on a shop that changes, behind a proxy, its journal and its lake on small disks."""

    target: str
    shop: Shop
    rig: Rig
    target_tables: TargetTables
    proxy: FaultProxy
    mount_error: str
    """Why there are no such disks here; empty: there are."""
    worker: subprocess.Popen[str]
    writer: ShopWriter
    is_sound: bool = True

    def needs_disks(self) -> None:
        """Skip the test where no file system can be mounted."""
        if self.mount_error:
            pytest.skip(f"no file system can be mounted here: {self.mount_error}")

    def let_write(self, transactions: int) -> None:
        """Wait for so many more transactions."""
        until = self.writer.transactions + transactions
        wait_until(lambda: self.writer.transactions >= until, "the writer continues")

    def wait_for_retry(self, role: str) -> None:
        """Wait until this part of the worker is tried again."""
        self.rig.wait_for_status(lambda s: s.retry is not None and s.retry.role == role, self.worker)

    def wait_for_reason(self, code: str) -> str:
        """Wait until apply is tried again for this reason, or tables wait for it; return what the user is told."""

        def told(status: ReplicatorStatus) -> list[str]:
            reasons = [status.retry, *(table.waiting for table in status.tables)]
            return [reason.message or "" for reason in reasons if reason is not None and reason.code == code]

        return told(self.rig.wait_for_status(told, self.worker))[0]

    def close(self) -> None:
        """End the writer that is at work now."""
        self.writer.stop()

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Inside, something goes away and comes back; afterwards it streams, and once nobody writes both sides are equal."""
        self.is_sound = False
        yield
        self.rig.wait_for_status(lambda s: is_running(s) and _streams(s), self.worker)
        self.let_write(10)
        self.writer.stop()
        self.rig.settle(self.worker)
        assert self.rig.differences(self.target_tables) == {}, self.rig.output()
        self.writer = _writing(self.shop)
        self.is_sound = True


@pytest.fixture(scope="module")
def replications() -> Iterator[list[tuple[Replication, ExitStack]]]:
    """The one that is at work, if there is one."""
    at_work: list[tuple[Replication, ExitStack]] = []
    yield at_work
    for _, resources in at_work:
        resources.close()


@pytest.fixture
def replication(
    replications: list[tuple[Replication, ExitStack]],
    postgres: PostgresServer,
    tmp_path_factory: pytest.TempPathFactory,
    target: str,
    opening: Callable[[Path, Database], tuple[Shop, Rig]],
    reading: Callable[[Rig], TargetTables],
) -> Replication:
    """The one that has survived everything so far, or a new one."""
    if replications and not (replications[0][0].is_sound and replications[0][0].target == target):
        replications.pop()[1].close()
    if not replications:
        with ExitStack() as resources:
            folder = tmp_path_factory.mktemp("outages")
            proxy = resources.enter_context(FaultProxy(postgres.host, postgres.port))
            shop, rig = opening(folder, resources.enter_context(postgres.database()))
            mount_error = _prepare(resources, rig, proxy)
            resources.callback(rig.kill)
            made = Replication(
                target=target, shop=shop, rig=rig, target_tables=reading(rig), proxy=proxy, mount_error=mount_error,
                worker=rig.start(), writer=_writing(shop),
            )  # fmt: skip
            resources.callback(made.close)
            rig.wait_for_status(_streams, made.worker)
            replications.append((made, resources.pop_all()))
    return replications[0][0]


def _prepare(resources: ExitStack, rig: Rig, proxy: FaultProxy) -> str:
    """Put home (with Spark's jars in it), journal and lake on small disks, and the proxy before the source; return why there are none."""
    small = rig.folder / "small"
    local = rig.folder / "local"
    disks = {small: "24m", rig.lake: "512m", rig.home: "512m", local: "256m"}
    for folder in disks:
        folder.mkdir()
    errors = [_mount(resources, folder, f"size={size},mode=700") for folder, size in disks.items()]
    mount_error = next(filter(None, errors), "")
    rig.extra += f"journal: {{uri: {small / 'journal'}}}\n"
    rig.extra = rig.extra.replace('{"spark.driver.memory"', f'{{"spark.local.dir": "{local}", "spark.driver.memory"')
    rig.write_yaml(source={"host": proxy.host, "port": proxy.port})
    return mount_error


def _writing(shop: Shop) -> ShopWriter:
    writer = shop.writer()
    writer.start()
    return writer


def _mount(resources: ExitStack, folder: Path, options: str) -> str:
    """Mount a file system in memory, which needs root; return why it could not be done."""
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode == 0:
        resources.callback(subprocess.run, ["umount", "-l", str(folder)], check=True)
    return made.stderr.strip()


def _fill(ballast: Path) -> None:
    """Write until nothing more goes onto the disk, on which others write as well."""
    with ballast.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(b"\0" * 4096)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    return
                raise


def _streams(status: ReplicatorStatus) -> bool:
    return status.retry is None and is_fresh(status)


@without_spark
def test_the_source_goes_away_and_comes_back(replication: Replication) -> None:
    with replication.outage():
        replication.proxy.cut()
        replication.wait_for_retry("capture")
        replication.proxy.restore()


@pytest.mark.matrix
@without_spark
def test_a_worker_that_is_started_while_the_source_is_away_waits_for_it(replication: Replication) -> None:
    with replication.outage():
        replication.worker.kill()
        replication.worker.wait()
        replication.proxy.cut()
        replication.worker = replication.rig.start()
        replication.wait_for_retry("capture")
        replication.proxy.restore()


@without_spark
def test_the_journals_disk_is_full_for_a_while(replication: Replication) -> None:
    replication.needs_disks()
    ballast = replication.rig.folder / "small" / "ballast"
    with replication.outage():
        _fill(ballast)
        replication.wait_for_retry("capture")
        ballast.unlink()


@pytest.mark.matrix
@without_spark
def test_the_disk_of_home_is_full_for_a_while(replication: Replication) -> None:
    """The state store, the spool and the logs are there."""
    replication.needs_disks()
    ballast = replication.rig.home / "ballast"
    with replication.outage():
        _fill(ballast)
        wait_until(lambda: "database or disk is full" in replication.rig.output(), replication.rig.output)
        ballast.unlink()


@without_spark
def test_the_state_store_is_locked_for_a_while(replication: Replication) -> None:
    with replication.outage(), closing(sqlite3.connect(replication.rig.home / "state.db")) as store:
        store.isolation_level = None
        store.execute("BEGIN EXCLUSIVE")
        replication.let_write(250)  # longer than the lease: the writer rests 50 ms after each
        store.execute("ROLLBACK")


@pytest.mark.matrix
def test_the_target_cannot_be_written_for_a_while(replication: Replication) -> None:
    replication.needs_disks()
    lake = str(replication.rig.lake)
    with replication.outage():
        # Not while a file of it is open for writing.
        wait_until(
            lambda: not subprocess.run(["mount", "-o", "remount,ro", lake], check=False).returncode,
            "the lake is read-only",
        )
        replication.wait_for_retry("apply")
        subprocess.run(["mount", "-o", "remount,rw", lake], check=True)


@pytest.mark.matrix
def test_the_disk_of_the_lake_is_full_for_a_while(replication: Replication) -> None:
    replication.needs_disks()
    lake = replication.rig.lake
    with replication.outage():
        _fill(lake / "ballast")
        assert str(lake) in replication.wait_for_reason("target_full")
        (lake / "ballast").unlink()


@pytest.mark.matrix
def test_sparks_own_disk_is_full_for_a_while(replication: Replication) -> None:
    replication.needs_disks()
    local = replication.rig.folder / "local"
    with replication.outage():
        _fill(local / "ballast")
        assert str(local) in replication.wait_for_reason("spark_scratch_unusable")
        (local / "ballast").unlink()


@pytest.mark.matrix
def test_the_jvm_is_killed(replication: Replication) -> None:
    worker = psutil.Process(replication.worker.pid)

    def living_jvms() -> set[int]:
        return {process.pid for process in worker.children(recursive=True) if name_of(process) == "java"}

    with replication.outage():
        (jvm,) = living_jvms()
        psutil.Process(jvm).kill()
        # In the middle of a merge the apply process ends with it; between two, the next merge finds it gone.
        wait_until(lambda: living_jvms() - {jvm}, "another one is started")

"""The whole product as a user starts it, `replicator run`, seen from outside: its processes and what it has recorded."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Final

import psutil

from replicator.model.schema import TableId
from replicator.state.records import AppliedRecord
from replicator.state.store import StateStore
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testbed.rig import Rig
from replicator_testbed.scratch_servers import free_port
from replicator_testing.waiting import wait_until

_WORKER: Final = "replicator.runtime.worker"
_START_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A running replicator."""

    rig: Rig
    process: Popen[str]

    def workers(self) -> Mapping[str, psutil.Process]:
        """Its processes by role: supervisor, capture, apply, and Spark's JVM."""
        supervisor = psutil.Process(self.process.pid)
        found = {"supervisor": supervisor}
        for child in supervisor.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                line = child.cmdline()
                if _WORKER in line:
                    found[line[line.index(_WORKER) + 1]] = child
                elif line and Path(line[0]).name == "java":
                    found["jvm"] = child
        return found

    def store(self) -> StateStore:
        """Its state store; the caller closes it."""
        return StateStore(f"sqlite:///{self.rig.home / 'state.db'}")

    def wait_until_applied(
        self,
        tables: Sequence[TableId],
        is_enough: Callable[[AppliedRecord], bool],
        *,
        timeout_s: float,
        look: Callable[[], None] | None = None,
    ) -> None:
        """Wait until what apply has recorded of each table is enough; `look` is called at every look."""

        def check() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(f"the replicator ended with {self.process.returncode}\n{self.rig.output()}")
            if look is not None:
                look()
            if not (self.rig.home / "state.db").exists():
                return False
            store = self.store()
            try:
                records = store.applied(self.rig.name)
                return all(table in records and is_enough(records[table]) for table in tables)
            finally:
                store.close()

        wait_until(check, f"{len(tables)} tables are applied", timeout_s=timeout_s, every_s=0.5)


@contextmanager
def running(database: ScratchDatabase, *, engine: str | None = None) -> Iterator[Product]:
    """A replicator of the database's public tables into a lake of its own; stopped and removed afterwards.

    All settings have their defaults except `target.engine`, if one is given.
    """
    with _rig(database, engine) as rig:
        process = rig.start()
        try:
            product = Product(rig=rig, process=process)
            _wait_for_workers(product)
            yield product
        finally:
            if process.poll() is None:
                rig.stop(process)


@contextmanager
def serving(database: ScratchDatabase, *, engine: str | None = None) -> Iterator[tuple[Product, int]]:
    """The same run by `replicator serve --listen`, and the port of its API."""
    with _rig(database, engine) as rig:
        port = free_port()
        process = rig.start("serve", "--listen", f"127.0.0.1:{port}")
        try:
            product = Product(rig=rig, process=process)
            rig.command("start", str(rig.file))
            _wait_for_workers(product)
            yield product, port
        finally:
            process.terminate()
            process.wait()


@contextmanager
def _rig(database: ScratchDatabase, engine: str | None) -> Iterator[Rig]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        target = f"  type: delta\n  path: {folder}/lake\n  engine: {engine}" if engine else ""
        yield Rig(folder=Path(folder), database=database, name="bench", target=target)


def _wait_for_workers(product: Product) -> None:
    process = product.process
    wait_until(
        lambda: process.poll() is not None or {"capture", "apply"} <= product.workers().keys(),
        "the workers run",
        timeout_s=_START_TIMEOUT_S,
    )
    assert process.poll() is None, f"the replicator ended with {process.returncode}\n{product.rig.output()}"

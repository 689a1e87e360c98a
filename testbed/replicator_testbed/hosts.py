"""Several hosts in one machine: each has a home and a network to the state store of its own, and they share the rest."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

import psutil

from replicator.state.leases import host_of
from replicator.state.records import Lease
from replicator.state.store import StateStore
from replicator_testbed.network.proxy import FaultProxy
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testbed.present import present
from replicator_testbed.processes import has_open, kill_all, put_to_sleep, wake
from replicator_testbed.rig import Rig, has_snapshots
from replicator_testing.waiting import PATIENCE, wait_until

T = TypeVar("T")

_HEARD_S = 6


class Failure(StrEnum):
    """What happens to a host that runs a replicator."""

    KILLED = "killed"
    STOPPED = "stopped"
    CUT_OFF = "cut off"
    HANGING = "hanging"
    FROZEN = "frozen"


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOver:
    """Seconds from a failure to the next lease, and to the first changes that were applied under it."""

    failure: Failure
    lease_s: float
    applied_s: float


@dataclass(slots=True, kw_only=True)
class Host:
    """One host: its commands, its worker, and what the worker's connections to the state store go through."""

    name: str
    rig: Rig
    network: FaultProxy
    worker: subprocess.Popen[str] | None = None

    def serve(self, *options: str) -> None:
        """Start its worker."""
        self.worker = self.rig.start("serve", *options)

    @property
    def is_serving(self) -> bool:
        """Whether its worker runs."""
        return self.worker is not None and self.worker.poll() is None

    def stop(self) -> None:
        """End its worker as a service manager does, at a clean point."""
        present(self.worker).send_signal(signal.SIGTERM)
        assert present(self.worker).wait(timeout=60 * PATIENCE) == 0, self.rig.output()

    def fail(self, failure: Failure) -> None:
        """Have something happen to it."""
        match failure:
            case Failure.KILLED:
                kill_all(present(self.worker))
            case Failure.STOPPED:
                present(self.worker).send_signal(signal.SIGTERM)
            case Failure.CUT_OFF:
                self.network.cut()
            case Failure.HANGING:
                self.network.blackhole()
            case Failure.FROZEN:
                wait_until(self._freeze, "it is frozen with no DuckDB file open, whose lock would keep the others out")

    def recover(self, failure: Failure) -> None:
        """It is there again, with a worker."""
        self.network.restore()
        if failure is Failure.FROZEN:
            wake(self._processes())
        if failure is Failure.STOPPED:
            assert present(self.worker).wait(timeout=60 * PATIENCE) == 0, self.rig.output()
        if failure in {Failure.STOPPED, Failure.KILLED}:
            self.serve()

    def _freeze(self) -> bool:
        processes = self._processes()
        put_to_sleep(processes)
        if not any(has_open(process, ".duckdb") for process in processes):
            return True
        wake(processes)
        return False

    def _processes(self) -> list[psutil.Process]:
        parent = psutil.Process(present(self.worker).pid)
        return [parent, *parent.children(recursive=True)]


@dataclass(slots=True, kw_only=True)
class Hosts:
    """All of them, with a state store that is asked past their networks. `name` is the replicator's."""

    store: StateStore
    hosts: Sequence[Host]
    name: str

    def begin(self) -> None:
        """Start the replicator on the first host, then a worker on each of the others."""
        first = self.hosts[0]
        first.serve()
        first.rig.command("start", str(first.rig.file))
        first.rig.wait_for_status(has_snapshots, first.worker)
        for host in self.hosts[1:]:
            host.serve()

    def runs(self) -> Host:
        """The host that runs the replicator."""
        return self.wait_for(self._runs, "a worker runs the replicator")

    def take_over(self, failure: Failure) -> TakeOver:
        """Have something happen to the host that runs the replicator, wait until another one has continued, and let the first recover."""
        host = self.runs()
        self.wait_for(lambda: self._standbys(host), "another worker is ready")
        lease = present(self.store.leases.current(self.name))
        began = time.monotonic()
        host.fail(failure)
        self.wait_for(lambda: self._is_taken_over(lease), f"another host has the lease ({failure})")
        taken, before = time.monotonic(), self._applied()
        self.wait_for(lambda: self._applied() > before, f"changes are applied again ({failure})", timeout_s=240)
        applied = time.monotonic()
        host.recover(failure)
        return TakeOver(failure=failure, lease_s=taken - began, applied_s=applied - began)

    def spread(self) -> dict[str, list[str]]:
        """Which replicators each host runs."""
        found: dict[str, list[str]] = {}
        for replicator, holder in sorted(self.store.workers.scene().holders.items()):
            found.setdefault(host_of(holder), []).append(replicator)
        return found

    def wait_for(self, look: Callable[[], T | None], what: str, timeout_s: float = 120) -> T:
        """Wait, with what the workers said in the failure."""
        outputs = [host.rig.output for host in self.hosts]
        return wait_until(
            look,
            lambda: "\n".join([f"{what}; now {self.spread()}", *(output() for output in outputs)]),
            timeout_s=timeout_s,
            every_s=0.05,
        )

    def _runs(self) -> Host | None:
        lease = self.store.leases.current(self.name)
        return next((host for host in self.hosts if lease and host.name == host_of(lease.holder)), None)

    def _standbys(self, host: Host) -> list[str]:
        scene = self.store.workers.scene()
        heard = [host_of(w.holder) for w in scene.workers if not w.is_draining and scene.is_heard(w, _HEARD_S)]
        return [name for name in heard if name != host.name]

    def _is_taken_over(self, old: Lease) -> bool:
        lease = self.store.leases.current(self.name)
        return lease is not None and lease.epoch > old.epoch and host_of(lease.holder) != host_of(old.holder)

    def _applied(self) -> int:
        """Only the holder of the lease can record what it has applied."""
        return max((record.last_applied for record in self.store.applied(self.name).values()), default=-1)


@contextmanager
def hosts_of(rig: Rig, state: ScratchDatabase, names: Sequence[str], journal: str = "") -> Iterator[Hosts]:
    """Hosts that can all run the rig's replicator.

    Args:
        rig: Its folder has the target and the journal. Its own commands are not used.
        state: An empty database for the state store.
        names: Of the hosts.
        journal: Its URI, if it is not in the rig's folder.
    """
    server = state.server
    url = f"postgresql://{server.user}@{server.host}:{{port}}/{state.name}"
    target = rig.target or f"  type: delta\n  path: {rig.lake}"
    extra = f"{rig.extra}journal: {{uri: {journal or rig.folder / 'journal'}}}\n"
    with ExitStack() as opened:
        store = StateStore(url.format(port=server.port))
        opened.callback(store.close)
        found = []
        for name in names:
            network = opened.enter_context(FaultProxy(server.host, server.port))
            (rig.folder / name).mkdir()
            environ = {"REPLICATOR_STATE_URL": url.format(port=network.port), "REPLICATOR_HOST": name}
            mine = replace(
                rig, folder=rig.folder / name, store=store, started=[], target=target, extra=extra,
                environ={**rig.environ, **environ},
            )  # fmt: skip
            found.append(Host(name=name, rig=mine, network=network))
        try:
            yield Hosts(store=store, hosts=found, name=rig.name)
        finally:
            for host in found:
                host.network.restore()
                if host.is_serving:
                    host.recover(Failure.FROZEN)
                host.rig.kill()

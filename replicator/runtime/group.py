"""The processes of one replicator, as a group: started, told, and ended, each at its next clean point."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Final

from replicator.model.errors import ReplicatorError
from replicator.observability import get_logger
from replicator.runtime import messages
from replicator.runtime.logfile import LogFile
from replicator.runtime.process import Message, WorkerProcess
from replicator.state.records import Role

ROLES: Final = (Role.CAPTURE, Role.APPLY, Role.VERIFY)
CLEAN_STOP_S: Final = 120.0
_ABANDON_S = 7.0
"""Time that a batch in flight may take once the whole worker is to end. Then it is abandoned: the ledger says whether it was applied."""
_VERIFY_STOP_S = 5.0
"""A comparison under way is not waited for: it is repeated."""
_TICK_S: Final = 0.5

_log = get_logger(__name__)


class WorkerGroup:
    """At most one process of each role.

    Attributes:
        messages: Messages of the processes, and the news of their ends.
        finished: Roles that have nothing left to do.
        lost: Error with which the lease was lost, on which all were killed; None while it is held.
    """

    def __init__(self, name: str, *, environ: Mapping[str, str], log: LogFile) -> None:
        self.messages: queue.Queue[Message] = queue.Queue()
        self.finished: set[Role] = set()
        self.lost: ReplicatorError | None = None
        self._name, self._environ, self._log = name, environ, log
        self._workers: dict[Role, WorkerProcess] = {}
        self._stop = threading.Event()
        self._abandon_at: float | None = None

    @property
    def running(self) -> frozenset[Role]:
        """Return the roles whose process was started and has not ended, as far as was taken in."""
        return frozenset(self._workers)

    def hurry_when(self, stop: threading.Event) -> None:
        """Wait for clean points only briefly once `stop` is set: the whole worker is to end."""
        self._stop = stop

    def start(self, role: Role, epoch: int) -> None:
        """Start a process. OSError, RuntimeError or MemoryError if the host cannot."""
        self._workers[role] = WorkerProcess(
            role, self._name, epoch, self._environ, deliver=self._deliver, log=self._log.write
        )

    def take_ended(self, role: Role, pid: int) -> WorkerProcess | None:
        """Take a process that has ended out of the group; None if another may have been started before the news of its end came."""
        worker = self._workers.get(role)
        if worker is None or worker.pid != pid:
            return None
        del self._workers[role]
        return worker

    def stop(self, roles: Iterable[Role], within_s: float = CLEAN_STOP_S) -> None:
        """End processes at their next clean points; by force, which loses nothing either, those that do not reach one in time."""
        ending = {role: self._workers[role] for role in roles}
        for worker in ending.values():
            if self.lost is None:
                worker.tell(messages.STOP)
            else:
                worker.kill()
        for role, worker in ending.items():
            del self._workers[role]
            if not self._wait_for(worker, min(within_s, _VERIFY_STOP_S) if role is Role.VERIFY else within_s):
                _log.info("worker_abandoned", replicator=self._name, role=role)
                worker.kill()
                worker.wait(CLEAN_STOP_S)

    def lose(self, error: ReplicatorError) -> None:
        """Kill the processes, because the lease is no longer held. Thread-safe."""
        self.lost = error
        for worker in list(self._workers.values()):
            worker.kill()

    def _deliver(self, message: Message) -> None:
        """Queue a message; called from the reader threads. `sealed` is also sent to apply at once."""
        if message.event == messages.SEALED and (apply := self._workers.get(Role.APPLY)):
            apply.tell(messages.SEALED)
        self.messages.put(message)

    def _wait_for(self, worker: WorkerProcess, within_s: float) -> bool:
        """Return whether a worker ends in time. The time is shorter if the whole worker is to end, now or while this waits."""
        deadline = time.monotonic() + within_s
        while True:
            if self._stop.is_set():
                self._abandon_at = self._abandon_at or time.monotonic() + _ABANDON_S
                deadline = min(deadline, self._abandon_at)
            left = deadline - time.monotonic()
            if worker.wait(max(0.0, min(_TICK_S, left))):
                return True
            if left <= 0:
                return False

"""Holds the lease of one replicator and keeps its workers as the desired state wants them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from replicator.model.errors import (
    FencedError,
    MachineExhaustedError,
    ReplicatorError,
    StateUnavailableError,
    given_up,
)
from replicator.model.isolation import is_exhausted
from replicator.model.processes.reports import RetryReport
from replicator.observability import get_logger
from replicator.runtime import messages
from replicator.runtime.caught_up import CatchUp, CaughtUp
from replicator.runtime.exhausted import machine_exhausted
from replicator.runtime.group import CLEAN_STOP_S, ROLES, WorkerGroup
from replicator.runtime.leases import renewed
from replicator.runtime.logfile import LogFile
from replicator.runtime.policy import Consequence, RetryBudget, RetryLimits, consequence
from replicator.runtime.process import Message
from replicator.runtime.reloading import ConfigurationWatch
from replicator.state.records import Desired, ErrorRecord, Lease, ReplicatorRecord, Role
from replicator.state.store import StateStore
from replicator.verify.barriers import forget_scheduled

_TICK_S = 0.5
_FAILED_STOP_S = 5.0

_log = get_logger(__name__)


class End(StrEnum):
    """Reason for the end of a supervisor."""

    STOPPED = "stopped"
    CAUGHT_UP = "caught_up"
    COMPLETE = "complete"
    FAILED = "failed"
    REFUSED = "refused"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """Outcome of a supervisor.

    `error` is set for FAILED and REFUSED, `failed` names tables that did not reach CAUGHT_UP or COMPLETE,
    `alarmed` those that did and whose target table may differ from the source.
    """

    end: End
    error: ReplicatorError | None = None
    failed: tuple[str, ...] = ()
    alarmed: tuple[str, ...] = ()

    @property
    def is_passing(self) -> bool:
        """Return whether the supervisor ended by a passing error: the state store was unavailable, or the host had run out of something."""
        return self.end is End.FAILED and isinstance(self.error, StateUnavailableError | MachineExhaustedError)


class _Restarts:
    """When each process may be started again after an error."""

    def __init__(self, limits: RetryLimits) -> None:
        self._budgets = {role: RetryBudget(limits=limits) for role in (Role.CAPTURE, Role.APPLY)}
        self._not_before: dict[Role, float] = {}
        self._verify_again_s = limits.longest_s

    def is_due(self, role: Role) -> bool:
        """Return whether it may be started now."""
        return time.monotonic() >= self._not_before.get(role, 0.0)

    def progressed(self, role: Role) -> None:
        """Count from here on: it has done something since the last error."""
        self._budgets[role].progressed()

    def use(self, limits: RetryLimits) -> None:
        """Count by other limits from here on."""
        for budget in self._budgets.values():
            budget.limits = limits

    def postpone(self, role: Role) -> float | None:
        """Return the seconds after which it is started again; None once its budget is used up."""
        now = time.monotonic()
        delay = self._verify_again_s if role is Role.VERIFY else self._budgets[role].delay(now)
        if delay is not None:
            self._not_before[role] = now + delay
        return delay


class Supervisor:
    """Runs capture and apply of one replicator until it is told to stop, or nothing is left to do.

    Steps: lease → (workers up or down as desired, restarted by the retry policy) → workers down → lease released.
        Killed at any point, the workers end by themselves and the next supervisor continues from the last durable position.

    Args:
        refuse_first: Before the first segment is sealed an error of a worker ends the run (`run`) instead of being retried (`serve`).
        delete: Deletes the replicator when the desired state is `deleted`; called with the lease held and the workers down.
        progressed: Called whenever something new was sealed or applied.
        verifies: Returns whether the replicator verifies its tables by a schedule. A process of its own does; if that ends, the
            replicator continues, and it is started again.
        read_limits: Reads the retry limits of a changed configuration with the rest of it, which is not used if that fails. None: the
            configuration does not change.
    """

    def __init__(
        self,
        store: StateStore,
        name: str,
        *,
        log: LogFile,
        limits: RetryLimits,
        delete: Callable[[ReplicatorRecord, Lease], object],
        environ: Mapping[str, str] | None = None,
        until_caught_up: bool = False,
        refuse_first: bool = True,
        progressed: Callable[[], object] = lambda: None,
        verifies: Callable[[ReplicatorRecord], bool] = lambda _: False,
        read_limits: Callable[[ReplicatorRecord], RetryLimits] | None = None,
    ) -> None:
        self._store, self._name, self._delete = store, name, delete
        self._workers = WorkerGroup(name, environ=dict(environ or {}), log=log)
        self._restarts = _Restarts(limits)
        self._configuration = ConfigurationWatch(store, name, read_limits)
        self._catch_up = CatchUp(store=store, name=name, since=store.now())
        self._until_caught_up = until_caught_up
        self._refuse_first = refuse_first
        self._progressed = progressed
        self._verifies = verifies
        self._lease: Lease | None = None

    def run(self, lease: Lease, stop: threading.Event) -> RunOutcome:
        """Supervise under `lease` (just acquired) until `stop` is set or there is a reason to end."""
        self._lease = lease
        self._workers.hurry_when(stop)
        run = self._store.runs.start(lease)
        forget_scheduled(self._store, self._name)
        outcome = RunOutcome(end=End.FAILED)
        with renewed(self._store, lease, self._workers.lose):
            try:
                outcome = self._loop(stop)
            except ReplicatorError as error:
                outcome = RunOutcome(end=End.FAILED, error=error)
            except Exception as error:  # noqa: BLE001 - a bug: it is recorded, so that others do not wait for this run
                _log.exception("supervisor_crashed", replicator=self._name)
                outcome = RunOutcome(end=End.FAILED, error=messages.as_ours(error))
            finally:
                self._workers.stop(self._workers.running, CLEAN_STOP_S if outcome.error is None else _FAILED_STOP_S)
        if not isinstance(self._workers.lost or outcome.error, FencedError) and not outcome.is_passing:
            self._record_end(lease, run, outcome)
        return outcome

    def _record_end(self, lease: Lease, run: int, outcome: RunOutcome) -> None:
        """Record how the run ended, unless another process has taken over, which will record it."""
        if outcome.end is End.DELETED:
            return
        try:
            error = ErrorRecord.of(outcome.error, self._store.now()) if outcome.error else None
            self._store.runs.end(lease, run, outcome.end.value, error)
            self._store.leases.release(lease)
        except (FencedError, StateUnavailableError) as error_of_store:
            _log.warning("end_not_recorded", replicator=self._name, end=outcome.end.value, error=str(error_of_store))

    def _loop(self, stop: threading.Event) -> RunOutcome:
        next_look = 0.0
        while True:
            if self._workers.lost is not None:
                return RunOutcome(end=End.FAILED, error=self._workers.lost)
            if stop.is_set():
                return RunOutcome(end=End.STOPPED)
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + _TICK_S
                if outcome := self._poll():
                    return outcome
            try:
                message = self._workers.messages.get(timeout=_TICK_S)
            except queue.Empty:
                continue
            if outcome := self._handle(message):
                return outcome

    def _poll(self) -> RunOutcome | None:
        """Read the desired state, and check whether there is anything left to do."""
        record = self._store.replicator(self._name)
        if record is None:
            return RunOutcome(end=End.DELETED)
        if record.desired is Desired.DELETED:
            self._workers.stop(self._workers.running)
            assert self._lease is not None
            self._delete(record, self._lease)
            return RunOutcome(end=End.DELETED)
        self._take_configuration(record)
        if outcome := self._reconcile(record):
            return outcome
        if self._until_caught_up and (done := self._catch_up.check()):
            return _reached(End.CAUGHT_UP, done)
        if Role.CAPTURE in self._workers.finished and (done := self._catch_up.check_sealed()):
            return _reached(End.COMPLETE, done)
        return None

    def _reconcile(self, record: ReplicatorRecord) -> RunOutcome | None:
        """Bring the workers in line with the desired state; return an outcome if one can no longer be started."""
        wanted = set()
        if record.desired is Desired.RUNNING:
            wanted = {Role.CAPTURE} if record.apply_paused else {Role.CAPTURE, Role.APPLY}
            if not record.apply_paused and self._verifies(record):
                wanted.add(Role.VERIFY)
        for role in ROLES:
            if role in self._workers.running:
                if role not in wanted:
                    self._stop(role)
            elif (
                role in wanted - self._workers.finished
                and self._restarts.is_due(role)
                and (outcome := self._start(role))
            ):
                return outcome
        return None

    def _take_configuration(self, record: ReplicatorRecord) -> None:
        """Restart the processes that a changed configuration concerns, each from its next clean point."""
        assert self._lease is not None
        reload = self._configuration.look(record, self._lease.epoch)
        if reload is None:
            return
        self._restarts.use(reload.limits)
        running = [role for role in ROLES if role in reload.roles & self._workers.running]
        self._stop(*running)
        self._workers.finished -= reload.roles
        _log.info("configuration_reloaded", replicator=self._name, restarted=sorted(running))

    def _stop(self, *roles: Role) -> None:
        self._workers.stop(roles)
        if Role.VERIFY in roles:
            forget_scheduled(self._store, self._name)

    def _start(self, role: Role) -> RunOutcome | None:
        assert self._lease is not None
        try:
            self._workers.start(role, self._lease.epoch)
        except (OSError, RuntimeError, MemoryError) as error:
            if not is_exhausted(error):
                raise
            if role is not Role.VERIFY:
                return self._retry(role, machine_exhausted(error))
            self._verify_again(machine_exhausted(error))
        return None

    def _verify_again(self, error: ReplicatorError | None) -> None:
        """Restart the process that verifies tables in a while: its errors never end the replicator."""
        forget_scheduled(self._store, self._name)
        delay = self._restarts.postpone(Role.VERIFY)
        if error is not None and delay is not None:
            retry_in_ms = round(delay * 1000)
            _log.warning("worker_ended", role=Role.VERIFY, code=error.code, error=str(error), retry_in_ms=retry_in_ms)

    def _handle(self, message: Message) -> RunOutcome | None:
        if message.event in (messages.SEALED, messages.PROGRESS):
            self._restarts.progressed(message.role)
            self._progressed()
        elif message.event == "exit":
            return self._worker_ended(message.role, message.pid)
        return None

    def _worker_ended(self, role: Role, pid: int) -> RunOutcome | None:
        worker = self._workers.take_ended(role, pid)
        if worker is None:
            return None
        if worker.has_finished and role is not Role.VERIFY:
            self._workers.finished.add(role)
            return None
        error = worker.error
        if role is Role.VERIFY:
            self._verify_again(error)
            return None
        assert error is not None
        decision = consequence(error)
        is_finding = error.code != "worker_killed"
        if (
            is_finding
            and self._refuse_first
            and decision is not Consequence.STOP
            and self._store.journal.last_segment(self._name) is None
        ):
            return RunOutcome(end=End.REFUSED, error=error)
        if decision is Consequence.REFUSE:
            return RunOutcome(end=End.REFUSED, error=error)
        if decision is Consequence.STOP:
            return RunOutcome(end=End.FAILED, error=error)
        return self._retry(role, error)

    def _retry(self, role: Role, error: ReplicatorError) -> RunOutcome | None:
        """Restart the worker in a while; return an outcome once the budget is used up."""
        delay = self._restarts.postpone(role)
        if delay is None:
            return RunOutcome(end=End.FAILED, error=given_up(error))
        assert self._lease is not None
        stamp = messages.stamp(self._lease.epoch)
        report = RetryReport(
            role=role.value, retry_in_s=round(delay, 1), code=error.code, message=str(error), stamp=stamp
        )
        self._store.put_report(self._name, report)
        _log.warning("worker_ended", role=role, code=error.code, error=str(error), retry_in_ms=round(delay * 1000))
        return None


def _reached(end: End, done: CaughtUp) -> RunOutcome:
    failed, alarmed = (tuple(str(t) for t in tables) for tables in (done.failed, done.alarmed))
    return RunOutcome(end=end, failed=failed, alarmed=alarmed)

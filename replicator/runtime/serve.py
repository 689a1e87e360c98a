"""`replicator serve`: a worker that runs its share of the replicators of the state store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Final

from replicator.model.errors import (
    ConfigError,
    FencedError,
    ReplicatorError,
    StateUnavailableError,
    TransientError,
    in_full,
)
from replicator.observability import get_logger
from replicator.runtime import messages
from replicator.runtime.leases import LEASE_S
from replicator.runtime.placement import HEARD_S, Placement
from replicator.runtime.supervisor import RunOutcome
from replicator.state import holder_id
from replicator.state.records import Desired, ErrorRecord, Lease, ReplicatorRecord
from replicator.state.store import StateStore
from replicator.state.workers import Scene, WorkerRefusal

CAPACITY: Final = 100
_ANNOUNCE_S: Final = 2.0
_LOOK_S = 1.0
_PATIENCE_S: Final = 3.0
"""Time that a free replicator is left to the worker that should take it."""
_SETTLE_S: Final = 10.0
"""Time for which another worker must have had less to do before it is given a replicator."""
_GIVEN_S: Final = 300.0
"""Time for which a replicator that came back is not given away again."""
_RECHECK_S: Final = 10.0

_log = get_logger(__name__)

Supervise = Callable[[ReplicatorRecord, Lease, threading.Event], RunOutcome]
Refuses = Callable[[ReplicatorRecord], ReplicatorError | None]


def serve(
    store: StateStore,
    supervise: Supervise,
    stop: threading.Event,
    *,
    capacity: int = CAPACITY,
    refuses: Refuses = lambda _: None,
    beat: Callable[[], None] = lambda: None,
) -> None:
    """Reconcile until `stop`: a thread with a supervisor per replicator that is wanted, free, and for this worker to take.

    A replicator that failed by itself stays down until `start` or `resume` clears its error. While the store is unavailable the
    supervisors continue on their own, and this loop looks again.

    At most `capacity` replicators run here. `refuses` returns the reason why this host cannot run one; it is then left to other workers.
    `beat` notes at every look that this worker is at work, also while the store is unavailable: a restart would not bring it back.
    """
    _Server(store=store, supervise=supervise, capacity=capacity, refuses=refuses, beat=beat).run(stop)


@dataclass(slots=True, kw_only=True)
class _Running:
    """A supervisor's thread, and the event that ends it."""

    thread: threading.Thread
    stop: threading.Event


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checked:
    """Result of checking a configuration."""

    config: str
    at: float
    refusal: WorkerRefusal | None


@dataclass(slots=True, kw_only=True)
class _Server:
    """One worker. Used from one thread.

    Steps of a look: announce this worker → take the free ones that it should take → if another has less to do, give one away.
    """

    store: StateStore
    supervise: Supervise
    capacity: int
    refuses: Refuses
    beat: Callable[[], None] = lambda: None
    holder: str = field(default_factory=holder_id)
    _running: dict[str, _Running] = field(default_factory=dict)
    _checked: dict[str, _Checked] = field(default_factory=dict)
    _free_since: dict[str, float] = field(default_factory=dict)
    _given_at: dict[str, float] = field(default_factory=dict)
    _excess_since: float | None = None
    _announced_at: float = float("-inf")
    _is_full: bool = False

    def run(self, stop: threading.Event) -> None:
        """Look again and again until `stop`, then end what runs."""
        try:
            while not stop.is_set():
                self._beat()
                try:
                    self._look()
                except (StateUnavailableError, ConfigError) as error:
                    # A ConfigError: one was deleted after the list was read.
                    _log.warning("poll_failed", code=error.code, error=str(error))
                stop.wait(_LOOK_S)
        finally:
            self._drain()

    def _beat(self) -> None:
        try:
            self.beat()
        except OSError as error:
            _log.warning("alive_not_written", error=error.strerror)

    def _look(self) -> None:
        self._running = {name: one for name, one in self._running.items() if one.thread.is_alive()}
        records = self.store.replicators()
        self._recheck(records)
        self._announce()
        scene = self.store.workers.scene()
        placement = Placement.of(scene, heard_within_s=HEARD_S)
        free = [record for record in records if self._is_free(record, scene)]
        self._free_since = {record.name: self._free_since.get(record.name, time.monotonic()) for record in free}
        for record in free:
            if self._is_mine(record, placement) and self._can_run(record) and self._take(record):
                placement = placement.after_taking(self.holder)
        self._say_if_full(placement, free)
        if not free:
            self._give(placement)

    def _announce(self) -> None:
        if time.monotonic() - self._announced_at < _ANNOUNCE_S:
            return
        self._say()
        self._announced_at = time.monotonic()

    def _say(self, *, is_draining: bool = False) -> None:
        refusals = {name: one.refusal for name, one in self._checked.items() if one.refusal is not None}
        self.store.workers.announce(
            self.holder,
            capacity=self.capacity,
            is_draining=is_draining,
            version=version("replicator"),
            refusals=refusals,
        )

    def _is_free(self, record: ReplicatorRecord, scene: Scene) -> bool:
        """Return whether it is wanted, and nobody runs it."""
        if record.name in self._running or record.name in scene.holders or record.desired is Desired.PAUSED:
            return False
        return not record.error or record.desired is Desired.DELETED

    def _is_mine(self, record: ReplicatorRecord, placement: Placement) -> bool:
        """Return whether this worker is to take a free replicator: as the best one, or as the best one did not. Deletions have no limit."""
        if record.desired is Desired.DELETED or self.holder in placement.takers(record.name):
            return True
        is_left = time.monotonic() - self._free_since[record.name] >= _PATIENCE_S
        return is_left and placement.can_take(self.holder, record.name)

    def _can_run(self, record: ReplicatorRecord) -> bool:
        """Return whether this host can run it. A refusal is reported once, and checked again after a while."""
        now, known = time.monotonic(), self._checked.get(record.name)
        if known is None or known.config != record.config or now - known.at >= _RECHECK_S:
            error = self.refuses(record)
            refusal = None if error is None else WorkerRefusal(code=error.code, message=in_full(error).message)
            if refusal is not None and (known is None or known.refusal != refusal):
                _log.warning("replicator_refused", replicator=record.name, code=refusal.code, error=str(error))
            if refusal != (known.refusal if known else None):
                self._announced_at = float("-inf")
            self._checked[record.name] = known = _Checked(config=record.config, at=now, refusal=refusal)
        return known.refusal is None

    def _recheck(self, records: Sequence[ReplicatorRecord]) -> None:
        """Check whether this host can run by now the replicators it refused, and forget deleted ones."""
        by_name = {record.name: record for record in records}
        self._checked = {name: one for name, one in self._checked.items() if name in by_name}
        for name, one in list(self._checked.items()):
            if one.refusal is not None:
                self._can_run(by_name[name])

    def _take(self, record: ReplicatorRecord) -> bool:
        lease = self.store.leases.acquire(record.name, self.holder, LEASE_S)
        if lease is None:
            return False
        stop = threading.Event()
        thread = threading.Thread(
            target=_run, args=(self.store, self.supervise, record, lease, stop), name=f"replicator-{record.name}"
        )
        self._running[record.name] = _Running(thread=thread, stop=stop)
        thread.start()
        return True

    def _say_if_full(self, placement: Placement, free: Sequence[ReplicatorRecord]) -> None:
        left = [
            record.name for record in free if record.name not in self._running and not placement.takers(record.name)
        ]
        is_full = bool(left) and len(self._running) >= self.capacity
        if is_full and not self._is_full:
            _log.warning("capacity_reached", capacity=self.capacity, not_run=left)
        self._is_full = is_full

    def _give(self, placement: Placement) -> None:
        """Let another worker have one of ours, if it has had less to do for a while. One at a time, and none amid a snapshot."""
        now = time.monotonic()
        mine = [name for name, one in sorted(self._running.items()) if not one.stop.is_set()]
        names = [
            name
            for name in placement.to_give(self.holder, mine)
            if now - self._given_at.get(name, float("-inf")) >= _GIVEN_S
        ]
        if not names or len(mine) < len(self._running):
            self._excess_since = self._excess_since if names else None
            return
        self._excess_since = self._excess_since or now
        if now - self._excess_since < _SETTLE_S:
            return
        name = next((name for name in names if not _is_amid_a_snapshot(self.store, name)), None)
        if name is not None:
            _log.info("replicator_given", replicator=name)
            self._given_at[name] = now
            self._running[name].stop.set()

    def _drain(self) -> None:
        """End all supervisors, each at its next clean point; their leases are free then. Others give this worker nothing meanwhile."""
        for one in self._running.values():
            one.stop.set()
        self._if_it_answers(lambda: self._say(is_draining=True))
        for one in self._running.values():
            one.thread.join()
        self._if_it_answers(lambda: self.store.workers.remove(self.holder))

    def _if_it_answers(self, tell: Callable[[], None]) -> None:
        """Tell the store something that it would find out by itself later."""
        try:
            tell()
        except ReplicatorError as error:
            _log.info("worker_not_announced", code=error.code, error=str(error))


def _is_amid_a_snapshot(store: StateStore, name: str) -> bool:
    progress = [outline.record.snapshot for outline in store.outlines(name)]
    return any(one is not None and one.started_at is not None and not one.is_complete for one in progress)


def _run(
    store: StateStore, supervise: Supervise, record: ReplicatorRecord, lease: Lease, stop: threading.Event
) -> None:
    try:
        outcome = supervise(record, lease, stop)
    except Exception as error:  # noqa: BLE001 - whatever ends the thread is recorded, so that no caller waits for it
        known = messages.as_ours(error)
        _log.error(
            "replicator_failed", replicator=record.name, code=known.code, error=str(known), exc_info=known is not error
        )
        _record(store, lease, known)
        return
    _log.info(
        "replicator_ended",
        replicator=record.name,
        end=outcome.end.value,
        error=str(outcome.error) if outcome.error else None,
    )


def _record(store: StateStore, lease: Lease, error: ReplicatorError) -> None:
    """Store the error that ended a supervisor, unless it passes or another has taken over."""
    if isinstance(error, FencedError | TransientError):
        return
    try:
        store.set_error(lease.replicator, ErrorRecord.of(error, store.now()), epoch=lease.epoch)
        store.leases.release(lease)
    except ReplicatorError as lost:
        _log.warning("error_not_recorded", replicator=lease.replicator, code=lost.code, error=str(lost))

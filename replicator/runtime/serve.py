"""`replicator serve`: a worker for every replicator of the state store that no other worker runs."""

from __future__ import annotations

import threading
from collections.abc import Callable

from replicator.model.errors import ConfigError, FencedError, ReplicatorError, StateUnavailableError, TransientError
from replicator.observability import get_logger
from replicator.runtime import messages
from replicator.runtime.leases import LEASE_S
from replicator.runtime.supervisor import RunOutcome
from replicator.state import holder_id
from replicator.state.records import Desired, ErrorRecord, Lease, ReplicatorRecord
from replicator.state.store import StateStore

_LOOK_S = 1.0
_log = get_logger(__name__)

Supervise = Callable[[ReplicatorRecord, Lease, threading.Event], RunOutcome]


def serve(store: StateStore, supervise: Supervise, stop: threading.Event) -> None:
    """Reconcile until `stop`: a thread with a supervisor per replicator that is wanted and whose lease is free; a standby for the others.

    A replicator that failed by itself stays down until `start` or `resume` clears its error. While the store is away the
    supervisors know what to do, and this loop looks again.
    """
    threads: dict[str, threading.Thread] = {}
    try:
        while not stop.is_set():
            threads = {name: thread for name, thread in threads.items() if thread.is_alive()}
            try:
                _poll(store, supervise, stop, threads)
            except (StateUnavailableError, ConfigError) as error:
                # A ConfigError: one was deleted behind the list.
                _log.warning("poll_failed", code=error.code, error=str(error))
            stop.wait(_LOOK_S)
    finally:
        stop.set()
        for thread in threads.values():
            thread.join()


def _poll(store: StateStore, supervise: Supervise, stop: threading.Event, threads: dict[str, threading.Thread]) -> None:
    """Begin what is wanted and free; its threads are added to `threads`."""
    for record in store.replicators():
        if (
            record.name in threads
            or record.desired is Desired.PAUSED
            or (record.error and record.desired is not Desired.DELETED)
        ):
            continue
        lease = store.acquire_lease(record.name, holder_id(), LEASE_S)
        if lease is None:
            continue
        thread = threading.Thread(
            target=_run, args=(store, supervise, record, lease, stop), name=f"replicator-{record.name}"
        )
        threads[record.name] = thread
        thread.start()


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
    """Keep what ended a supervisor, unless it passes or another has taken over."""
    if isinstance(error, FencedError | TransientError):
        return
    try:
        store.set_error(lease.replicator, ErrorRecord.of(error, store.now()), epoch=lease.epoch)
        store.release_lease(lease)
    except ReplicatorError as lost:
        _log.warning("error_not_recorded", replicator=lease.replicator, code=lost.code, error=str(lost))

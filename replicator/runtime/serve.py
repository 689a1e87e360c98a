"""`replicator serve`: a worker for every replicator of the state store that nobody else runs."""

from __future__ import annotations

import threading
from collections.abc import Callable

from replicator.model.errors import ReplicatorError
from replicator.observability import get_logger
from replicator.runtime.supervisor import LEASE_S, Outcome
from replicator.state import holder_id
from replicator.state.records import Desired, Lease, ReplicatorRecord
from replicator.state.store import StateStore

_LOOK_S = 1.0
_log = get_logger(__name__)

Supervise = Callable[[ReplicatorRecord, Lease, threading.Event], Outcome]


def serve(store: StateStore, supervise: Supervise, stop: threading.Event) -> None:
    """Reconcile until `stop`: a thread with a supervisor per replicator that is wanted and whose lease is free; a standby for the others.

    A replicator that failed by itself stays down until `start` or `resume` clears its error.
    """
    threads: dict[str, threading.Thread] = {}
    while not stop.is_set():
        threads = {name: thread for name, thread in threads.items() if thread.is_alive()}
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
                target=_run, args=(supervise, record, lease, stop), name=f"replicator-{record.name}"
            )
            threads[record.name] = thread
            thread.start()
        stop.wait(_LOOK_S)
    for thread in threads.values():
        thread.join()


def _run(supervise: Supervise, record: ReplicatorRecord, lease: Lease, stop: threading.Event) -> None:
    try:
        outcome = supervise(record, lease, stop)
    except ReplicatorError as error:
        _log.error("replicator_failed", replicator=record.name, code=error.code, error=str(error))
        return
    _log.info(
        "replicator_ended",
        replicator=record.name,
        end=outcome.end.value,
        error=str(outcome.error) if outcome.error else None,
    )

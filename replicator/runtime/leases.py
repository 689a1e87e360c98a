"""Keeps a lease alive while its holder works."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from replicator.model.errors import ReplicatorError, StateUnavailableError
from replicator.runtime import messages
from replicator.state.records import Lease
from replicator.state.store import StateStore

LEASE_S: Final = 10.0
RENEW_S: Final = 3.0


@contextmanager
def renewed(store: StateStore, lease: Lease, lose: Callable[[ReplicatorError], object]) -> Iterator[None]:
    """Renew a lease in a thread of its own while the block runs.

    `lose` is called once, from that thread, when nothing is renewed any more: another process took the lease, the store was away
    for longer than it lasts, or anything else went wrong.
    """
    done = threading.Event()
    renewer = threading.Thread(target=_renew, args=(store, lease, lose, done), name="lease", daemon=True)
    renewer.start()
    try:
        yield
    finally:
        done.set()
        renewer.join()


def _renew(store: StateStore, lease: Lease, lose: Callable[[ReplicatorError], object], done: threading.Event) -> None:
    valid_until = time.monotonic() + LEASE_S
    while not done.wait(RENEW_S):
        try:
            lease = store.renew_lease(lease, LEASE_S)
            valid_until = time.monotonic() + LEASE_S
        except StateUnavailableError as error:
            if time.monotonic() > valid_until:
                lose(error)
                return
        except BaseException as error:  # noqa: BLE001 - the end of this thread would go unnoticed
            lose(messages.as_ours(error))
            return

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
_JOIN_S: Final = 1.0


@contextmanager
def renewed(
    store: StateStore,
    lease: Lease,
    lose: Callable[[ReplicatorError], object],
    *,
    lease_s: float = LEASE_S,
    renew_s: float | None = None,
) -> Iterator[None]:
    """Renew a lease in a thread of its own while the block runs.

    `lose` is called once, from a thread, when the lease can no longer be relied on: another process took it, the store did not answer for
    as long as it lasts, or anything else went wrong. A second thread watches the time, because a store that hangs gives no error.
    """
    keeper = _Keeper(store, lease, lose, lease_s=lease_s, renew_s=RENEW_S if renew_s is None else renew_s)
    threads = [
        threading.Thread(target=work, name=f"lease-{name}", daemon=True)
        for name, work in (("renewal", keeper.renew), ("deadline", keeper.watch))
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        keeper.done.set()
        for thread in threads:
            thread.join(_JOIN_S)  # a renewal that hangs ends by itself


class _Keeper:
    """State shared by the two threads.

    The lease lasts on the store's clock from the moment at which the store renewed it, which is after the request. Counting from the
    request, on this host's own steady clock, therefore never counts too long, however late the answer came.
    """

    def __init__(
        self,
        store: StateStore,
        lease: Lease,
        lose: Callable[[ReplicatorError], object],
        *,
        lease_s: float,
        renew_s: float,
    ) -> None:
        self._store, self._lease, self._lose = store, lease, lose
        self._lease_s, self._renew_s = lease_s, renew_s
        self._once = threading.Lock()
        self._valid_until = time.monotonic() + lease_s
        self._unavailable: ReplicatorError | None = None
        self.done = threading.Event()

    def renew(self) -> None:
        """Renew the lease periodically."""
        while not self.done.wait(self._renew_s):
            asked = time.monotonic()
            try:
                self._lease = self._store.leases.renew(self._lease, self._lease_s)
            except StateUnavailableError as error:
                self._unavailable = error
            except BaseException as error:  # noqa: BLE001 - the end of this thread would go unnoticed
                self._end(messages.as_ours(error))
            else:
                self._valid_until, self._unavailable = asked + self._lease_s, None

    def watch(self) -> None:
        """Lose the lease when its time is over, whatever the store does."""
        while (left := self._valid_until - time.monotonic()) > 0:
            if self.done.wait(left):
                return
        self._end(self._unavailable or _no_answer(self._lease_s))

    def _end(self, error: ReplicatorError) -> None:
        with self._once:
            if self.done.is_set():
                return
            self.done.set()
        self._lose(error)


def _no_answer(lease_s: float) -> StateUnavailableError:
    return StateUnavailableError(
        f"The state store has not answered for {lease_s:.0f} s.",
        code="state_unavailable",
        action="Check the network and the state store; the worker continues once it holds the lease again.",
    )

"""Resources of every route: the state store, the home, the plugins, and threads in which to wait for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeVar

import anyio
import anyio.to_thread

from replicator.model.errors import RequestError
from replicator.plugins.registry import Registry
from replicator.runtime.home import Home
from replicator.state.store import StateStore
from replicator.web.recent import Recent

T = TypeVar("T")

THREADS_MAX: Final = 8
"""Number of the state store's connections, at most."""
ANSWER_S: Final = 30.0
"""Longer than the state store waits for a lock or a connection."""


class Access:
    """Access to the state store. Opened at the first use, so that the server answers while the store is unavailable."""

    def __init__(self, home: Home, registry: Registry) -> None:
        self.home, self.registry, self.recent = home, registry, Recent()
        self._lock = threading.Lock()
        self._store: StateStore | None = None
        self._threads = anyio.CapacityLimiter(THREADS_MAX)

    @property
    def store(self) -> StateStore:
        """The state store, migrated. Use it only in a thread of `run`: opening it may take a while."""
        with self._lock:
            if self._store is None:
                self.home.ensure()
                self._store = StateStore(self.home.state_url)
            return self._store

    async def run(self, work: Callable[[], T]) -> T:
        """Run work that may have to wait in a thread.

        Raises:
            RequestError: `server_busy`: it takes too long, or no thread became free.
        """
        try:
            with anyio.fail_after(ANSWER_S):
                return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._threads)
        except TimeoutError:
            raise RequestError(
                f"The server had no answer within {ANSWER_S:.0f} seconds.",
                status=503,
                code="server_busy",
                action="Try again later. If it stays so, see what keeps the state store from answering.",
                retry_after_s=5,
            ) from None

    def close(self) -> None:
        """Close the state store."""
        if self._store is not None:
            self._store.close()

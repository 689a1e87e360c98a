"""What a scan of the capture job keeps locked until it ends: reads without row versions wait for it.

PostgreSQL's reads wait for no row that somebody inserts, so the model has these reads wait.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from replicator_testbed.sqlserver.outcomes import SqlError

_POSITIONS: Final = ("lsn_time_mapping", "fn_cdc_get_max_lsn")


class ScanLocks:
    """The locks of at most one scan. Thread-safe."""

    def __init__(self) -> None:
        """Begin without any."""
        self._ended = threading.Event()
        self._ended.set()
        self._names: tuple[str, ...] = ()
        self._has_victims = False

    @contextmanager
    def held(self, instances: Sequence[str], *, has_victims: bool) -> Iterator[None]:
        """A scan has written positions, and rows of these instances, and has not ended; `has_victims`: who reads them loses a deadlock."""
        self._names = (*_POSITIONS, *(f"{name}_ct".lower() for name in instances))
        self._has_victims = has_victims
        self._ended.clear()
        try:
            yield
        finally:
            self._ended.set()

    def wait(self, text: str, lock_timeout_ms: int) -> None:
        """Before a statement that reads with locks.

        Raises:
            SqlError: 1222, it waited for too long; 1205.
        """
        if self._ended.is_set() or not any(name in text.lower() for name in self._names):
            return
        if self._has_victims:
            raise SqlError(1205, "Transaction was deadlocked and has been chosen as the deadlock victim.", state=51)
        if not self._ended.wait(None if lock_timeout_ms < 0 else lock_timeout_ms / 1000):
            raise SqlError(1222, "Lock request time out period exceeded.", state=51)

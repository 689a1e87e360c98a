"""Transactions that a read saw, by the positions of their commits.

What the capture job has written was committed. A read that began later, and that takes shared locks as READ COMMITTED does by default, has
waited for every row that such a transaction held, so it saw it. With row versions (READ_COMMITTED_SNAPSHOT, the default of Azure) a
transaction becomes visible a moment after its commit is in the log. How long that moment is nobody says, so what was committed in the last
minute is unknown then: a read leaves to the log what such transactions touched. So is, always, what was committed later than the last
position that was captured when the read began.

A minute is one of our own clock: the position of the capture job a minute ago was noted then (`NotedHeads`). The times of commits are
those of the server's local clock, which may be set, and jumps by an hour twice a year. They are asked only in the first minute.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyodbc
from typing_extensions import override

from replicator.plugins.source import Seen, Visibility
from replicator_source_sqlserver.cdc import queries
from replicator_source_sqlserver.connecting.connection import Connection
from replicator_source_sqlserver.connecting.errors import is_blocked
from replicator_source_sqlserver.lsn import ZERO, lsn_to_text

UNSETTLED_S: Final = 60.0
"""Time for which a transaction is unknown where rows have versions."""


_NOTED_EVERY_S: Final = 1.0


class NotedHeads:
    """Positions of the capture job, and when it had come there by our own clock. Thread-safe; shared by all users of one source object."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without positions."""
        self._clock = clock
        self._lock = threading.Lock()
        self._noted: deque[tuple[float, bytes]] = deque()
        self._last: bytes | None = None

    def note(self, head: bytes) -> None:
        """Note the present position."""
        with self._lock:
            now, self._last = self._clock(), head
            if not self._noted or now - self._noted[-1][0] >= _NOTED_EVERY_S:
                self._noted.append((now, head))
            self._forget(now)

    def last(self) -> bytes | None:
        """Return the position that was noted last; None if none was."""
        with self._lock:
            return self._last

    def settled(self) -> bytes | None:
        """Return a position that was reached `UNSETTLED_S` ago, at least; None if none was noted then."""
        with self._lock:
            now = self._clock()
            self._forget(now)
            return self._noted[0][1] if self._noted and now - self._noted[0][0] >= UNSETTLED_S else None

    def _forget(self, now: float) -> None:
        """Forget old positions: of those that are old enough only the last is needed."""
        while len(self._noted) > 1 and now - self._noted[1][0] >= UNSETTLED_S:
            self._noted.popleft()


@dataclass(frozen=True, slots=True, kw_only=True)
class LsnVisibility(Visibility):
    """A read that saw every transaction up to `settled`.

    `captured`: the last position that had been captured when the read began; `settled` is at most that.
    """

    settled: bytes
    captured: bytes

    @override
    def classify(self, transaction_ids: pa.StringArray) -> pa.Int8Array:
        """Classify by the text of a position, whose order is that of its bytes."""
        is_seen = pc.less_equal(transaction_ids, pa.scalar(lsn_to_text(self.settled)))
        return pc.if_else(is_seen, pa.scalar(int(Seen.SEEN), pa.int8()), pa.scalar(int(Seen.UNKNOWN), pa.int8()))

    @override
    def is_beyond(self, earlier: Visibility) -> bool:
        """See `Visibility`. A table is captured after a statement that waits for all its writers; those that had ended must be visible."""
        assert isinstance(earlier, LsnVisibility)
        return self.settled >= earlier.captured


def known_head(connection: Connection, heads: NotedHeads) -> bytes:
    """Return the known position of the capture job; while a scan of it locks the highest position, the one that was known last."""
    try:
        return queries.head(connection) or ZERO
    except pyodbc.Error as error:
        if not is_blocked(error) or (known := heads.last()) is None:
            raise
        return known


def read_visibility(connection: Connection, heads: NotedHeads, *, has_versions: bool) -> LsnVisibility:
    """Return what a read that begins now sees. Ask before the read: afterwards the position may have passed what the read did not see.

    Args:
        connection: Any.
        heads: Positions of the capture job; the present one is noted, too.
        has_versions: True if reads take versions of rows, and no locks.
    """
    captured = known_head(connection, heads)
    heads.note(captured)
    if not has_versions:
        return LsnVisibility(settled=captured, captured=captured)
    settled = heads.settled() or queries.settled(connection, UNSETTLED_S) or ZERO
    return LsnVisibility(settled=min(settled, captured), captured=captured)

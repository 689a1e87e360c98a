"""Position and time up to which an idle log is complete, by its keepalives and by the server's own word."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Final

import numpy as np

from replicator_source_postgresql.log import pgoutput as p
from replicator_source_postgresql.log.feed import KEEPALIVE_SIZE
from replicator_source_postgresql.log.messages import EPOCH_2000_US, Part, moment

_ASK_END_EVERY_S: Final = 1.0

LogEnd = Callable[[], tuple[int, datetime]]
"""Returns the end of the server's log, and the server's clock just before."""


class IdleLog:
    """The position and time up to which a log without changes is complete.

    Args:
        start_lsn: Start of the stream: nothing before it is missing.
        log_end: Asked for the end of the log when keepalives do not tell. None where the server cannot say.
        has_early_keepalives: See `PgLogReader`.
        move_s: Seconds without a time after which the server is asked.
    """

    def __init__(
        self,
        start_lsn: int,
        *,
        log_end: LogEnd | None,
        has_early_keepalives: bool,
        move_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lsn = start_lsn
        """The position up to which nothing is missing."""
        self._time: datetime | None = None
        self._log_end = log_end
        self._has_early_keepalives = has_early_keepalives
        self._move_s = move_s
        self._clock = clock
        # A moment, and where the log ended then: once the stream is there, everything before that moment was delivered.
        self._awaited: tuple[int, datetime] | None = None
        self._ask_end_at = clock()
        # When a time was last told, or asked for in vain.
        self._timed_at = clock()

    def see_keepalives(self, part: Part) -> None:
        """Record the last keepalive. Called outside transactions, at the end of what is delivered."""
        keepalives = np.flatnonzero(part.kinds == 0)
        if not len(keepalives) or (np.flatnonzero(part.kinds == p.COMMIT) > keepalives[-1]).any():
            return
        start = int(part.frames.starts[keepalives[-1]])
        end, sent_us = (int(number) for number in part.frames.int64(np.array([start + 1, start + 9])))
        self.lsn = max(self.lsn, end)
        if self._has_early_keepalives:
            if self._log_end is not None:
                self._compare_end(end, self._log_end)
        # The server sends one unasked when it has read its whole log; one that wants an answer may come in the middle of a backlog.
        elif not part.frames.data[start + KEEPALIVE_SIZE - 1]:
            self._time = moment(sent_us + EPOCH_2000_US)

    def ask(self, offered_lsn: int) -> None:
        """Ask once in a while where the log ends: a server whose whole log is confirmed sends no more keepalives that tell the time."""
        if self._log_end is None or self._time is not None or self._clock() - self._timed_at < self._move_s:
            return
        self._timed_at = self._clock()
        end, now = self._log_end()
        if end <= max(self.lsn, offered_lsn):
            self._time = now

    def take_time(self) -> datetime | None:
        """Return the time up to which every commit has been delivered, if it was learned since the last call; None otherwise."""
        taken, self._time = self._time, None
        return taken

    def note_time(self) -> None:
        """Note that a time was told."""
        self._timed_at = self._clock()

    def _compare_end(self, reached: int, log_end: LogEnd) -> None:
        """Compare a past end of the log with the stream: once the stream is there, it has everything that was committed by then."""
        if self._awaited is None and self._clock() >= self._ask_end_at:
            self._awaited, self._ask_end_at = log_end(), self._clock() + _ASK_END_EVERY_S
        if self._awaited is not None and reached >= self._awaited[0]:
            self._time, self._awaited = self._awaited[1], None

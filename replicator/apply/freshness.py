"""Knows up to which source time the journal holds everything, at each of its positions. No I/O."""

from __future__ import annotations

import threading
from bisect import bisect_left
from datetime import datetime

_KEPT = 20_000


class Freshness:
    """The source times of the journal's segments, by their last sequence number. Thread-safe.

    Bounded: when there are too many, every second one is forgotten, except the newest. Answers are then older than
    they could be, never newer.
    """

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._lasts: list[int] = []
        self._times: list[datetime] = []

    def add(self, last: int, source_time: datetime | None) -> None:
        """Take the next segment; one whose time is unknown says nothing new."""
        if source_time is None:
            return
        with self._lock:
            self._add(last, source_time)

    def newest(self) -> datetime | None:
        """Everything committed before it is in the journal; None if unknown."""
        with self._lock:
            return self._times[-1] if self._times else None

    def below(self, number: int) -> datetime | None:
        """Everything committed before it has a sequence number below `number`; None if unknown."""
        with self._lock:
            index = bisect_left(self._lasts, number)
            return self._times[index - 1] if index else None

    def later(self, known: datetime | None, reached: datetime | None) -> datetime | None:
        """The later of two claims, of which `reached` is the newer one; None if both are unknown.

        A known time behind the newest of the journal was told by a clock of the source that has been set back since: it counts no more.
        """
        if known is None or reached is None:
            return reached or known
        newest = self.newest()
        is_set_back = newest is not None and known > newest
        return reached if is_set_back else max(known, reached)

    def _add(self, last: int, source_time: datetime) -> None:
        if self._lasts and self._lasts[-1] == last:
            # A segment without rows: the same position, later.
            self._times[-1] = source_time
            return
        self._lasts.append(last)
        self._times.append(source_time)
        if len(self._lasts) > self._kept:
            newest = len(self._lasts) - 1
            keep = [i for i in range(len(self._lasts)) if i % 2 == newest % 2]
            self._lasts = [self._lasts[i] for i in keep]
            self._times = [self._times[i] for i in keep]

"""Facts about the source for the status, among them the rate at which its log grows."""

from __future__ import annotations

import math
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from replicator.capture.parts import Parts
from replicator.plugins.source import LogStatus, Visibility

_WINDOW_S: Final = 3600.0
_SAMPLES_MAX: Final = 361


class LogGrowth:
    """The mean growth over the last hour, or since the process began: the rate at which what is left of the log is used up.

    Args:
        window_s: How far back it looks.
    """

    def __init__(self, window_s: float = _WINDOW_S) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, int]] = deque(maxlen=_SAMPLES_MAX)

    def add(self, at_s: float, written: int) -> None:
        """Take a measure: bytes that were ever written, at a moment of a monotonic clock.

        Fewer than before are those of another server's log: what was known is of no use.
        """
        if self._samples and written < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((at_s, written))
        while len(self._samples) > 2 and at_s - self._samples[1][0] >= self._window_s:  # noqa: PLR2004 - a beginning and an end
            self._samples.popleft()

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes per second; None before the second measure."""
        if not self._samples:
            return None
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        return None if last_s <= first_s else (last - first) / (last_s - first_s)


@dataclass(frozen=True, slots=True)
class Measures:
    """Facts that the control thread found out for the status."""

    source: LogStatus | None = None
    has_since: bool = False
    """True if the source was asked what a snapshot waits for."""
    clock_ahead_s: float | None = None
    log_bytes_per_s: float | None = None


@dataclass(slots=True)
class Measuring:
    """Asks the source from time to time, in the control thread. `found`: the last measures."""

    parts: Parts
    found: Measures = field(default_factory=Measures)
    _growth: LogGrowth = field(default_factory=LogGrowth)
    _asked: tuple[Future[LogStatus], bool] | None = None
    _asked_at: float = -math.inf

    def run_due(self, now: float, since: Visibility | None) -> None:
        """Ask if it is time, and take in an answer. `since`: as in `DeltaSource.status`; with one it is asked more often."""
        settings = self.parts.settings
        every_s = settings.measure_every_s if since is None else settings.report_every_s
        if now - self._asked_at >= every_s and self._asked is None:
            self._asked_at = now
            self._asked = self.parts.control.submit(self.parts.source.status, since), since is not None
        if self._asked is not None and self._asked[0].done():
            status, has_since = self._asked[0].result(), self._asked[1]
            self._asked = None
            if status.retention.bytes_written is not None:
                self._growth.add(now, status.retention.bytes_written)
            clock_ahead_s = (status.now - self.parts.now()).total_seconds()
            self.found = Measures(status, has_since, clock_ahead_s, self._growth.bytes_per_s)

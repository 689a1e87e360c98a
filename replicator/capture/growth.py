"""The rate at which the source's log grows. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

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

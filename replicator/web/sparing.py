"""Limit on log lines that a stranger can cause: a few a minute, so that they fill no disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

PER_MINUTE: Final = 10
TEXT_MAX: Final = 200
_MINUTE_S: Final = 60.0


class Sparing:
    """Decides which lines are written."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began, self._written, self._left_out = clock(), 0, 0

    def take(self) -> int | None:
        """Return the number of lines left out before this one; None: leave out this one, too."""
        now = self._clock()
        if now - self._began >= _MINUTE_S:
            self._began, self._written = now, 0
        if self._written >= PER_MINUTE:
            self._left_out += 1
            return None
        self._written += 1
        left_out, self._left_out = self._left_out, 0
        return left_out


def short(text: str) -> str:
    """Return a text of a request, shortened for a line of the log."""
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…"

"""Limits how fast tables are read: pauses between reads, so that no more rows are read than a number per second."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

_STEP_S: Final = 0.5


@dataclass(slots=True, kw_only=True)
class Pace:
    """Pauses between reads. A read that takes longer than its rows' time does not make a later one faster.

    Attributes:
        check: Raises NotVerifiedError if no worker runs the replicator any more.
        wait: Waits for this many seconds, or less.
        clock: A monotonic clock in seconds.
    """

    rows_per_second: int
    check: Callable[[], None]
    wait: Callable[[float], object]
    clock: Callable[[], float] = time.monotonic
    _until: float = field(default=0.0)

    def begin(self) -> None:
        """Note that a read begins."""
        self._until = max(self._until, self.clock())

    def took(self, rows: int) -> None:
        """Note that the read returned this many rows."""
        self._until += rows / self.rows_per_second

    @property
    def rest_s(self) -> float:
        """Return the seconds for which nothing is read from now on."""
        return max(0.0, self._until - self.clock())

    def rest(self) -> None:
        """Wait until the next read may begin."""
        while (rest_s := self.rest_s) > 0:
            self.check()
            self.wait(min(rest_s, _STEP_S))

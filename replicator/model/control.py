"""How a pump is told to stop, and tells what it did."""

from __future__ import annotations

from typing import Any, Protocol

from replicator.model.reports import Report


class Control(Protocol):
    """What the host of a pump gives it. All methods are thread-safe and return at once, except `wait`."""

    def should_stop(self) -> bool:
        """Whether to end at the next clean point."""

    def wait(self, timeout_s: float) -> None:
        """Sleep until there may be something new to do (the journal grew, a request came, a stop), at most `timeout_s`."""

    def announce(self, event: str, **fields: Any) -> None:
        """Tell the supervisor: `sealed`, `progress` (both reset the retry budget)."""

    def report(self, report: Report) -> None:
        """Replace what the status shows of this process; kept at most once a second."""

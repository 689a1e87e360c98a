"""Interface that stops a pump and takes its reports."""

from __future__ import annotations

from typing import Any, Protocol

from replicator.model.processes.reports import Report


class Control(Protocol):
    """Methods that a pump's host provides. All are thread-safe and return at once, except `wait`."""

    def should_stop(self) -> bool:
        """Return whether to end at the next clean point."""

    def wait(self, timeout_s: float) -> None:
        """Sleep until there may be something new to do (the journal grew, a request came, a stop), at most `timeout_s`."""

    def announce(self, event: str, **fields: Any) -> None:
        """Send an event to the supervisor: `sealed`, `progress` (both reset the retry budget)."""

    def report(self, report: Report) -> None:
        """Replace the report that the status shows of this process; kept at most once a second."""

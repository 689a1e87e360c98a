"""The worker's end of the pipe to its supervisor."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from typing import IO, Any

from replicator.model.processes.reports import ApplyReport, Report
from replicator.runtime import messages
from replicator.state.store import StateStore

_REPORT_EVERY_S = 1.0


class WorkerControl:
    """Implements `replicator.model.processes.control.Control` over stdin and stdout.

    End-of-file on stdin means that the supervisor has ended: the process ends at once, wherever it is. That is safe at
    any instant, and leaves no orphan.
    """

    def __init__(self, store: StateStore, name: str, epoch: int, *, commands: IO[str], answers: IO[str]) -> None:
        self._store, self._name, self._epoch = store, name, epoch
        self._commands, self._answers = commands, answers
        self._stop = threading.Event()
        self._news = threading.Condition()
        self._has_news = False
        self._write = threading.Lock()
        self._reported_at = float("-inf")
        self._retried: Counter[str] = Counter()

    def listen(self) -> None:
        """Start the thread that reads the supervisor's lines."""
        threading.Thread(target=self._listen, name="supervisor-pipe", daemon=True).start()

    def stop(self) -> None:
        """Ask the worker to end at its next clean point. Safe to call from a signal handler."""
        self._stop.set()
        self.wake()

    def should_stop(self) -> bool:
        """Return whether to end at the next clean point."""
        return self._stop.is_set()

    def wait(self, timeout_s: float) -> None:
        """Sleep until the supervisor said something, at most `timeout_s`."""
        with self._news:
            if not self._has_news:
                self._news.wait(timeout_s)
            self._has_news = False

    def wake(self) -> None:
        """End a `wait`."""
        with self._news:
            self._has_news = True
            self._news.notify_all()

    def announce(self, event: str, **fields: Any) -> None:
        """Send one line to the supervisor."""
        with self._write:
            self._answers.write(messages.encode(event, fields) + "\n")
            self._answers.flush()

    def report(self, report: Report) -> None:
        """Store what the status shows of this process, at most once a second."""
        now = time.monotonic()
        if now - self._reported_at >= _REPORT_EVERY_S:
            self._reported_at = now
            stamped = report.model_copy(update={"stamp": messages.stamp(self._epoch)})
            retried = Counter(report.retried if isinstance(report, ApplyReport) else {})
            self._store.put_report(self._name, stamped, retried=retried - self._retried)
            self._retried = retried

    def _listen(self) -> None:
        for line in self._commands:
            if line.strip() == messages.STOP:
                self._stop.set()
            self.wake()
        sys.stderr.flush()
        os._exit(1)

"""Keeps an open log alive while the loop is elsewhere."""

from __future__ import annotations

import threading

from replicator.plugins.source import LogReader


class KeepAlive:
    """Keeps the open log alive from a thread of its own whenever the loop is not inside a pull.

    `check` raises its errors.
    """

    def __init__(self, reader: LogReader, every_s: float) -> None:
        self._reader = reader
        self._every_s = every_s
        self._in_pull = threading.Event()
        self._closed = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="keep-alive", daemon=True)
        self._thread.start()

    def in_pull(self) -> InPull:
        """A context in which nothing needs to be kept alive."""
        return InPull(self._in_pull)

    def check(self) -> None:
        """Raise what keeping alive raised."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._closed.wait(self._every_s):
            if self._in_pull.is_set():
                continue
            try:
                self._reader.keep_alive()
            except Exception as error:  # noqa: BLE001 (raised by `check` in the loop)
                self._error = error
                return


class InPull:
    """Set while the loop is inside a pull."""

    def __init__(self, flag: threading.Event) -> None:
        self._flag = flag

    def __enter__(self) -> None:
        self._flag.set()

    def __exit__(self, *_: object) -> None:
        self._flag.clear()

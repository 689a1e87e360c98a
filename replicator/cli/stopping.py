"""Signals (Ctrl-C and SIGTERM) that end a worker cleanly."""

from __future__ import annotations

import contextlib
import os
import signal
import threading


def stop_on_signals() -> threading.Event:
    """Return an event that the first of these signals sets, which is also reported on stderr."""
    stop = threading.Event()

    def end(*_: object) -> None:
        if not stop.is_set():
            # Not through Python's buffers: the interrupted code may be writing to them. A full disk must not keep it running.
            with contextlib.suppress(OSError):
                os.write(
                    2,
                    b"Stopping cleanly. A batch in flight has seven seconds; otherwise the next start applies it again.\n",
                )
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    return stop

"""The process that watches replicators separately from the workers: `replicator.service.watching`."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from replicator.observability import get_logger
from replicator.runtime.process import child

STOP: Final = "stop"
LOOK_S: Final = 5.0
LOOK_VARIABLE: Final = "REPLICATOR_WATCH_EVERY_S"
"""Variable for tests: seconds between two looks."""
_WANTED_S: Final = 1.0
_RESTART_S: Final = (1.0, 5.0, 15.0, 60.0)
_STABLE_S: Final = 300.0
"""Time of running after which its next end counts as the first."""
_STOP_S: Final = 3.0
"""Time to stop cleanly. Messages not delivered by then are delivered by the next process."""

_log = get_logger(__name__)


class WatchProcess:
    """Keeps the process running while it is wanted. When it ends, no worker does, and it is started again.

    Its stdin is the leash: when this process dies for any reason, the pipe closes and it ends.

    Args:
        wanted: Returns whether anything is to be watched; asked once a second.
        names: Replicators to watch; none: all of the state store.
        echo: Receives the lines that it logs.
    """

    def __init__(self, wanted: Callable[[], bool], names: tuple[str, ...], echo: Callable[[str], None]) -> None:
        self._wanted, self._names, self._echo = wanted, names, echo
        self._stop = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._failures, self._not_before, self._began = 0, 0.0, 0.0
        self._thread = threading.Thread(target=self._keep, name="watch-process", daemon=True)

    def start(self) -> None:
        """Start the thread that keeps the process running."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and the process."""
        self._stop.set()
        self._thread.join()

    def _keep(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._look()
                except Exception:  # noqa: BLE001 - the end of this thread would go unnoticed
                    _log.exception("watch_crashed")
                self._stop.wait(_WANTED_S)
        finally:
            self._end()

    def _look(self) -> None:
        is_wanted = self._wanted()
        if self._process is not None and (status := self._process.poll()) is not None:
            if time.monotonic() - self._began >= _STABLE_S:
                self._failures = 0
            pause = _RESTART_S[min(self._failures, len(_RESTART_S) - 1)]
            _log.warning("watch_ended", status=status, retry_in_ms=round(pause * 1000))
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process, self._not_before = None, time.monotonic() + pause
            self._failures += 1
        if self._process is not None and not is_wanted:
            self._end()
        elif self._process is None and is_wanted and time.monotonic() >= self._not_before:
            self._spawn()

    def _spawn(self) -> None:
        try:
            self._process = subprocess.Popen(
                [*child("replicator.service.watching"), *self._names],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except (OSError, MemoryError) as error:
            _log.warning("watch_not_started", error=str(error))
            self._not_before = time.monotonic() + _RESTART_S[-1]
            return
        self._began = time.monotonic()
        threading.Thread(target=self._read_log, args=(self._process,), name="watch-log", daemon=True).start()

    def _read_log(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                self._echo(line.rstrip("\n"))

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        try:
            process.stdin.write(STOP + "\n")
            process.stdin.flush()
        except (OSError, ValueError) as error:
            _log.info("watch_not_told", error=str(error))
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdin.close()


@contextmanager
def watched(wanted: Callable[[], bool], names: tuple[str, ...], echo: Callable[[str], None]) -> Iterator[None]:
    """Keep the process running while the block runs."""
    process = WatchProcess(wanted, names, echo)
    process.start()
    try:
        yield
    finally:
        process.stop()

"""The process of the REST API as managed by `serve`: `replicator.web.__main__`."""

from __future__ import annotations

import queue
import subprocess
import threading
from socket import socket
from typing import Final

from replicator.model.errors import ConfigError
from replicator.observability import get_logger
from replicator.runtime.process import child

READY: Final = "ready"
STOP: Final = "stop"
_READY_S: Final = 120.0
_STOP_S: Final = 8.0
_RESTART_S: Final = (1.0, 2.0, 5.0, 15.0, 30.0)

_log = get_logger(__name__)


class WebProcess:
    """Keeps the server's process running until `stop`. However that process ends, no worker does.

    The socket belongs to this process and outlives the other: connections wait while it starts again. Its stdin is the leash: when this
    process dies for any reason, the pipe closes and the server ends.

    Args:
        listener: The socket that listens.
        settings: One line for the server's process.
    """

    def __init__(self, listener: socket, settings: str) -> None:
        self._listener, self._settings = listener, settings
        self._stop = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._keep, name="web-process", daemon=True)

    def start(self) -> None:
        """Start the server and wait until it answers.

        Raises:
            ConfigError: `web_not_started`: it ended instead; its log says why.
        """
        self._process = self._spawn()
        if not _is_ready(self._process):
            self._end(self._process)
            raise ConfigError(
                "The REST API did not start.", code="web_not_started", action="The lines above this one say why."
            )
        self._thread.start()

    def stop(self) -> None:
        """End the server. Requests in progress get a moment to finish."""
        self._stop.set()
        if self._process is not None:
            self._end(self._process)
        if self._thread.is_alive():
            self._thread.join(_STOP_S)
        self._listener.close()

    def _spawn(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*child("replicator.web.__main__"), str(self._listener.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=(self._listener.fileno(),),
            start_new_session=True,
        )
        _tell(process, self._settings)
        return process

    def _keep(self) -> None:
        """Start the server again, after longer and longer pauses, whenever it ends."""
        failures = 0
        while self._process is not None:
            status = self._process.wait()
            if self._stop.is_set():
                return
            pause = _RESTART_S[min(failures, len(_RESTART_S) - 1)]
            _log.warning("web_ended", status=status, retry_in_ms=round(pause * 1000))
            if self._stop.wait(pause):
                return
            try:
                self._process = self._spawn()
            except OSError as error:
                _log.warning("web_not_started", error=str(error))
                failures += 1
                continue
            failures = 0 if _is_ready(self._process) else failures + 1
            if self._stop.is_set():
                self._end(self._process)

    def _end(self, process: subprocess.Popen[str]) -> None:
        _tell(process, STOP)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _tell(process: subprocess.Popen[str], line: str) -> None:
    """Send one line; a process that has ended does not receive it."""
    assert process.stdin is not None
    try:
        process.stdin.write(line + "\n")
        process.stdin.flush()
    except (OSError, ValueError) as error:
        _log.info("web_not_told", line=line if line == STOP else "settings", error=str(error))


def _is_ready(process: subprocess.Popen[str]) -> bool:
    """Wait for the server's first line; False if it ends without one, or takes too long."""
    said: queue.Queue[str] = queue.Queue()
    assert process.stdout is not None
    threading.Thread(target=lambda out: said.put(out.readline()), args=(process.stdout,), daemon=True).start()
    try:
        return said.get(timeout=_READY_S).strip() == READY
    except queue.Empty:
        return False

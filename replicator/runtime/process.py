"""One worker process as its supervisor sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from replicator.model.errors import ReplicatorError, TransientError
from replicator.model.redaction import redact
from replicator.runtime import messages
from replicator.state.records import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message of a worker, or the news that it ended (`event` = `exit`); `pid` distinguishes it from its successor."""

    role: Role
    pid: int
    event: str
    fields: Mapping[str, Any]


def child(module: str) -> list[str]:
    """Return the command of a process whose `main` is in a module; append its arguments. SIGTERM ends it cleanly from its first line on."""
    return [*python("replicator.runtime.child"), module]


def python(module: str) -> list[str]:
    """Return the command of a module of ours. Without `-P` a file of the current folder, which anybody may own, could replace a module."""
    return [sys.executable, "-P", "-m", module]


class WorkerProcess:
    """Starts `replicator.runtime.worker`, passes its messages to `deliver` and its log lines to `log`.

    The child is in a session of its own, so that Ctrl-C in the terminal reaches the supervisor only. Its stdin is
    the leash: when this process dies for any reason, the pipe closes and the child ends.
    """

    def __init__(
        self,
        role: Role,
        name: str,
        epoch: int,
        environ: Mapping[str, str],
        *,
        deliver: Callable[[Message], None],
        log: Callable[[str], None],
    ) -> None:
        self.role = role
        self.error: ReplicatorError | None = None
        self.has_finished = False
        self._deliver, self._log = deliver, log
        self._write = threading.Lock()
        self._process = subprocess.Popen(
            [*child("replicator.runtime.worker"), role.value, name, str(epoch)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            errors="replace",
            env={**os.environ, **environ},
            start_new_session=True,
        )
        log_reader = threading.Thread(target=self._read_log, name=f"{role}-log", daemon=True)
        log_reader.start()
        threading.Thread(target=self._read_answers, args=(log_reader,), name=f"{role}-answers", daemon=True).start()

    @property
    def pid(self) -> int:
        """The operating system's number of the process."""
        return self._process.pid

    def tell(self, line: str) -> None:
        """Send one line, from any thread; a worker that has ended does not receive it."""
        assert self._process.stdin is not None
        try:
            with self._write:
                self._process.stdin.write(line + "\n")
                self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return  # its end arrives as an `exit` message

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; False if it still runs."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _read_answers(self, log_reader: threading.Thread) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                fields = json.loads(line)
                event = fields.pop("event")
            except (ValueError, KeyError, AttributeError):
                self._log(json.dumps({"event": "stray_output", "role": self.role, "line": redact(line.rstrip())[:500]}))
                continue
            if event == messages.ERROR:
                self.error = messages.decode_error(fields)
            if event == messages.FINISHED:
                self.has_finished = True
            self._deliver(Message(role=self.role, pid=self.pid, event=event, fields=fields))
        status = self._process.wait()
        log_reader.join(timeout=2)
        if self.error is None and not self.has_finished:
            how = f"signal {-status}" if status < 0 else f"status {status}"
            self.error = TransientError(
                f"The {self.role} process ended with {how}.",
                code="worker_killed",
                action="It restarts from the last durable position.",
            )
        self._deliver(Message(role=self.role, pid=self.pid, event="exit", fields={"status": status}))

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._log(line.rstrip("\n"))

"""The log file of a replicator: JSON lines, one generation kept in addition to the current one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from replicator.model.redaction import redact

_BYTES_MAX = 20 << 20


class LogFile:
    """Appends lines; at `_BYTES_MAX` the file becomes `<name>.1`. Lines that are not JSON are wrapped. Thread-safe.

    Secrets are masked in what is wrapped; a worker's own lines have none.

    Lines that cannot be written (a full disk, a closed terminal) are left out and counted: the reader of a worker's pipe must continue
    reading it, or the worker would wait without end. Before the next line that can be written, a line says how many are missing.

    Args:
        path: The file, made with mode 0600.
        echo: Receives every line, too (the foreground's stderr); None for no echo.
    """

    def __init__(self, path: Path, echo: Callable[[str], None] | None = None) -> None:
        self._path, self._echo = path, echo
        self._lock = threading.Lock()
        self._missing = 0
        with suppress(OSError):
            path.touch(mode=0o600, exist_ok=True)

    def write(self, line: str) -> None:
        """Add one line."""
        if not line.strip():
            return
        if not line.startswith("{"):
            line = _event("output", text=redact(line))
        with self._lock:
            try:
                self._append(f"{_event('log_lines_missing', count=self._missing)}\n{line}" if self._missing else line)
                self._missing = 0
            except OSError:
                self._missing += 1
        if self._echo:
            with suppress(OSError):
                self._echo(line)

    def _append(self, text: str) -> None:
        if self._path.exists() and self._path.stat().st_size > _BYTES_MAX:
            self._path.rename(self._path.with_suffix(self._path.suffix + ".1"))
            self._path.touch(mode=0o600)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")


def _event(event: str, **fields: object) -> str:
    return json.dumps({"timestamp": datetime.now(UTC).isoformat(), "level": "info", "event": event, **fields})

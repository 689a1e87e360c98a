"""The log file of a replicator: JSON lines, one generation kept beside the current one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

_BYTES_MAX = 20 << 20


class LogFile:
    """Appends lines; at `_BYTES_MAX` the file becomes `<name>.1`. Lines that are not JSON are wrapped. Thread-safe.

    Args:
        path: The file, made with mode 0600.
        echo: Also gets every line (the foreground's stderr); None for no echo.
    """

    def __init__(self, path: Path, echo: Callable[[str], None] | None = None) -> None:
        self._path, self._echo = path, echo
        self._lock = threading.Lock()
        path.touch(mode=0o600, exist_ok=True)

    def write(self, line: str) -> None:
        """Add one line."""
        if not line.strip():
            return
        if not line.startswith("{"):
            line = json.dumps(
                {"timestamp": datetime.now(UTC).isoformat(), "level": "info", "event": "output", "text": line}
            )
        with self._lock:
            if self._path.exists() and self._path.stat().st_size > _BYTES_MAX:
                self._path.rename(self._path.with_suffix(self._path.suffix + ".1"))
                self._path.touch(mode=0o600)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        if self._echo:
            self._echo(line)

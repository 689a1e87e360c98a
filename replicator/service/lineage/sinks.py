"""Sends events, from a thread of its own with a bounded queue."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from replicator.config import LineageConfig
from replicator.observability import get_logger, redact
from replicator.service.alerts.reasons import reason

_LOG_CHARACTERS: Final = 300
_CLOSE_S: Final = 2.0
_log = get_logger(__name__)

Sink = Callable[[Any, str], None]
"""Sends an event, given as it is and as JSON. Raises any error."""


class LineageQueue:
    """Events of one replicator that wait to be sent. Nobody waits for it: when it is full, an event is dropped and counted."""

    def __init__(self, config: LineageConfig, replicator: str) -> None:
        self.config = config
        self._replicator, self._sinks = replicator, sinks(config)
        self._waiting: queue.Queue[tuple[Any, str] | None] = queue.Queue(config.queue_max)
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._send_all, name=f"lineage-{replicator}", daemon=True)
        self._thread.start()

    def put(self, event: Any, line: str) -> None:
        """Queue an event; drop it if too many wait."""
        try:
            self._waiting.put_nowait((event, line))
        except queue.Full:
            self._count("dropped")

    def take_counts(self) -> Counter[str]:
        """Return the numbers of events `sent` and `dropped` since the last call."""
        with self._lock:
            taken, self._counts = self._counts, Counter()
        return taken

    def close(self) -> None:
        """Send what waits, for a moment."""
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(_CLOSE_S)

    def _send_all(self) -> None:
        while (item := self._waiting.get()) is not None:
            errors = [error for sink in self._sinks if (error := _sent(sink, *item)) is not None]
            self._count("dropped" if errors else "sent")
            if errors:
                _log.warning("lineage_not_sent", replicator=self._replicator, error=errors[0])

    def _count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1


def sinks(config: LineageConfig) -> Sequence[Sink]:
    """Return the sinks of a configuration."""
    found: list[Sink] = []
    if config.file is not None:
        found.append(_file(Path(config.file)))
    if config.url is not None:
        found.append(_http(config))
    if config.console:
        found.append(lambda _, line: _log.info("lineage_event", lineage=line))
    return found


def _file(path: Path) -> Sink:
    def send(_: Any, line: str) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    return send


def _http(config: LineageConfig) -> Sink:
    from openlineage.client.transport.http import ApiKeyTokenProvider, HttpConfig, HttpTransport
    from requests import Session

    assert config.url is not None, "asked with an address only"
    session = Session()
    # Events and key go to the configured address only: the first redirect is an error.
    session.max_redirects = 0
    settings: dict[str, Any] = {"url": config.url, "timeout": config.timeout.total_seconds(), "session": session}
    if config.api_key is not None:
        settings["auth"] = ApiKeyTokenProvider({"apiKey": config.api_key.reveal()})
    transport = HttpTransport(HttpConfig(**settings))

    def send(event: Any, _: str) -> None:
        transport.emit(event)

    return send


def _sent(sink: Sink, event: Any, line: str) -> str | None:
    """Send an event; return the reason why it was not sent, or None."""
    try:
        sink(event, line)
    except Exception as error:  # noqa: BLE001 - whatever a server or a disk does, the next event is tried
        # Never in the words of a library: they quote the address.
        if isinstance(error, OSError) and error.filename is not None:
            return redact(f"{error.filename}: {error.strerror}")[:_LOG_CHARACTERS]
        return f"{type(error).__name__}: {reason(error)}"
    return None

"""`logs`: the last lines of a replicator's log file, and those that follow."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, NonNegativeInt

from replicator.model.documents.status import StatusModel
from replicator.model.errors import ConfigError
from replicator.model.redaction import redact_mapping

_LOOK_S = 0.5
LOGS_VERSION: Final = 1
_BLOCK: Final = 64 << 10
_SCANNED_MAX: Final = 4 << 20
"""Bytes of a log that one page looks through."""


class LogsDocument(StatusModel):
    """The newest events of a replicator's log on this host."""

    version: Literal[1] = Field(description="Version of this document.")
    name: str = Field(description="Name of the replicator.")
    events: tuple[dict[str, Any], ...] = Field(
        description="The newest events, oldest first. Each has `timestamp`, `level` and `event`; further fields depend on the event."
    )
    is_complete: bool = Field(
        description="True if the log has no older events that match. False: there are more than `limit`, or the log is longer than what "
        "one request reads."
    )
    scanned_bytes: NonNegativeInt = Field(description="Bytes of the log that were read.")


def log_lines(path: Path, count: int, *, follow: bool) -> Iterator[str]:
    """Yield the last `count` lines of `path`; with `follow` every later one too, across a change of generation, without end.

    Raises:
        ConfigError: There is no log on this host.
    """
    if not path.exists():
        raise _no_log(path)
    with path.open(encoding="utf-8", errors="replace") as file:
        yield from (line.rstrip("\n") for line in deque(file, maxlen=count))
        offset = file.tell()
    while follow:
        if path.exists() and path.stat().st_size < offset:
            offset = 0
        with path.open(encoding="utf-8", errors="replace") as file:
            file.seek(offset)
            yield from (line.rstrip("\n") for line in file)
            offset = file.tell()
        time.sleep(_LOOK_S)


def log_page(
    path: Path, name: str, *, table: str | None, since: datetime | None, limit: int, scanned_max: int = _SCANNED_MAX
) -> LogsDocument:
    """Return the newest events of a log, of one table or of all, from a time on. Reads the file backwards, as far as it must and may.

    Raises:
        ConfigError: There is no log on this host.
    """
    if not path.exists():
        raise _no_log(path)
    budget = _Budget(scanned_max)
    generations = (path, path.with_suffix(path.suffix + ".1"))
    found: list[dict[str, Any]] = []
    is_complete = True
    for line in chain.from_iterable(_backwards(file, budget) for file in generations):
        event = _parsed(line)
        if since is not None and (at := _moment(event)) is not None and at < since:
            break
        if table is not None and event.get("table") != table:
            continue
        if len(found) == limit:
            is_complete = False
            break
        found.append(redact_mapping(event))
    return LogsDocument(
        version=LOGS_VERSION,
        name=name,
        events=tuple(reversed(found)),
        is_complete=is_complete and not budget.is_exhausted,
        scanned_bytes=budget.used,
    )


class _Budget:
    """Number of bytes that may be read, and that were."""

    def __init__(self, most: int) -> None:
        self._most, self.used, self.is_exhausted = most, 0, False

    def take(self, wanted: int) -> int:
        """Return the number of bytes, of those `wanted`, that may be read; they count as read."""
        granted = min(wanted, self._most - self.used)
        self.used += granted
        self.is_exhausted = self.is_exhausted or granted < wanted
        return granted


def _backwards(path: Path, budget: _Budget) -> Iterator[bytes]:
    """Yield the lines of a file, the last one first; a line that the budget cuts off is left out."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        end, rest = file.seek(0, os.SEEK_END), b""
        while end > 0 and (size := budget.take(min(_BLOCK, end))) > 0:
            end = file.seek(end - size)
            *lines, rest = reversed((file.read(size) + rest).split(b"\n"))
            yield from filter(None, lines)
        if end == 0 and rest:
            yield rest


def _parsed(line: bytes) -> dict[str, Any]:
    text = line.decode("utf-8", "replace")
    try:
        event = json.loads(text)
    except ValueError:
        event = None
    return event if isinstance(event, dict) else {"event": "output", "text": text}


def _moment(event: dict[str, Any]) -> datetime | None:
    try:
        moment = datetime.fromisoformat(str(event.get("timestamp")))
    except ValueError:
        return None
    return moment if moment.tzinfo else None


def _no_log(path: Path) -> ConfigError:
    return ConfigError(
        f"There is no log at {path}.", code="no_log", action="Logs stay on the host whose worker wrote them."
    )

"""`logs`: the last lines of a replicator's log file, and those that follow."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from replicator.model.errors import ConfigError

_LOOK_S = 0.5


def log_lines(path: Path, count: int, *, follow: bool) -> Iterator[str]:
    """The last `count` lines of `path`; with `follow` every later one too, across a change of generation, without end.

    Raises:
        ConfigError: There is no log on this host.
    """
    if not path.exists():
        raise ConfigError(
            f"there is no log at {path}", code="no_log", action="Logs stay on the host whose worker wrote them."
        )
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

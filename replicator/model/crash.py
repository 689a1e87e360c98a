"""Named crash points where a test may kill the process, as `kill -9` would."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Final

POINTS: Final = "REPLICATOR_CRASH_AT"
RECORD: Final = "REPLICATOR_CRASH_RECORD"

_hits: Counter[str] = Counter()


def crash_point(name: str) -> None:
    """End the process at once if `REPLICATOR_CRASH_AT` names this crash point.

    The variable holds names separated by commas; `name:3` means the third time that this process passes it. With
    `REPLICATOR_CRASH_RECORD` (a file) each entry kills once only, whichever process gets there first: it is noted in
    the file before the end. Costs one dictionary look-up when the variable is not set. Names are `part.moment`;
    `docs/crash-points.md` lists them.
    """
    wanted = os.environ.get(POINTS)
    if wanted is None:
        return
    _hits[name] += 1
    for entry in wanted.split(","):
        point, _, count = entry.partition(":")
        if point == name and _hits[name] == int(count or 1) and _record(entry):
            os.kill(os.getpid(), signal.SIGKILL)


def _record(entry: str) -> bool:
    """Note that the entry kills; False if it has before."""
    record = os.environ.get(RECORD)
    if record is None:
        return True
    path = Path(record)
    if path.exists() and entry in path.read_text().splitlines():
        return False
    with path.open("a") as file:
        file.write(entry + "\n")
        file.flush()
        os.fsync(file.fileno())
    return True

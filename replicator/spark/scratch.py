"""A folder for the files that only a running process needs. What a killed one left is removed by the next."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from pathlib import Path
from typing import IO, Final

_PREFIX: Final = "spark-"
_LOCK: Final = "lock"


class ScratchFolder:
    """A new folder, held by a lock that ends with the process.

    Args:
        parent: Where; made if missing. Folders in it that no living process holds are removed.
    """

    def __init__(self, parent: Path) -> None:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in parent.glob(f"{_PREFIX}*"):
            _remove_unless_held(left)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._lock: IO[bytes] = (self.path / _LOCK).open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Remove the folder with everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _remove_unless_held(folder: Path) -> None:
    try:
        lock = (folder / _LOCK).open("rb")
    except FileNotFoundError:
        return  # being made, or being removed
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        shutil.rmtree(folder, ignore_errors=True)

"""A folder for files that only a running process needs. The next process removes folders of killed ones."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import IO, Final

_PREFIX: Final = "spark-"
_LOCK: Final = "lock"


class ScratchFolder:
    """A new folder, locked until the process ends.

    Args:
        parent: Parent folder; made if missing. Folders in it that no living process has locked are removed.

    Raises:
        OSError: The folder cannot be made, or is where everybody may make folders, and another user made it.
    """

    def __init__(self, parent: Path) -> None:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if parent.parent.stat().st_mode & stat.S_IWOTH:
            _make_ours(parent)
        for left in parent.glob(f"{_PREFIX}*"):
            _remove_unless_held(left)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._lock: IO[bytes] = (self.path / _LOCK).open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Remove the folder with everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _make_ours(folder: Path) -> None:
    """Keep others out: the owner of the folder could exchange the files in it, and Spark starts what its settings name."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "It belongs to another user", str(folder))
        os.fchmod(descriptor, stat.S_IRWXU)
    finally:
        os.close(descriptor)


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

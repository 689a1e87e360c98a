"""Errors for a host that has run out of disk, memory, open files or processes, naming the resource and the volume."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from replicator.model.errors import MachineExhaustedError
from replicator.runtime.home import Home

_DISK: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


def machine_exhausted(error: BaseException) -> MachineExhaustedError:
    """Convert an exception for which `is_exhausted` is true."""
    if isinstance(error, OSError) and error.errno in _DISK:
        named = f" ({error.filename})" if error.filename else ""
        return MachineExhaustedError(
            f"A file cannot be written: {os.strerror(error.errno or 0)}{named}. Free: {'; '.join(_volumes(error))}.",
            code="disk_full" if error.errno != errno.EROFS else "disk_read_only",
            action="Free some space there, or make it writable. It is retried automatically.",
        )
    fact = os.strerror(error.errno or 0) if isinstance(error, OSError) else str(error) or type(error).__name__
    return MachineExhaustedError(
        f"The host has run out of memory, open files or processes: {fact}.",
        code="machine_exhausted",
        action="Give the host more memory, or raise the limits of this user (`ulimit -n`, `ulimit -u`). It is retried automatically.",
    )


def _volumes(error: OSError) -> list[str]:
    """Return the free bytes of each volume that we write to."""
    folders = {"REPLICATOR_HOME": Home.from_environment().folder}
    with suppress(OSError):  # where no folder for temporary files takes one
        folders["temporary files"] = Path(tempfile.gettempdir())
    if isinstance(error.filename, str):
        folders = {"that file": Path(error.filename).parent, **folders}
    found = []
    for name, folder in folders.items():
        with suppress(OSError):
            found.append(f"{shutil.disk_usage(folder).free} bytes on the volume of {folder} ({name})")
    return found or ["unknown"]

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
from replicator.model.rules.processes import DISK_FULL, DISK_READ_ONLY, MACHINE_EXHAUSTED
from replicator.runtime.home import Home

_DISK: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


def machine_exhausted(error: BaseException) -> MachineExhaustedError:
    """Convert an exception for which `is_exhausted` is true."""
    if isinstance(error, OSError) and error.errno in _DISK:
        named = f" ({error.filename})" if error.filename else ""
        rule = DISK_READ_ONLY if error.errno == errno.EROFS else DISK_FULL
        fact, free = os.strerror(error.errno or 0), "; ".join(_volumes(error))
        return rule.error(MachineExhaustedError, fact=fact, file=named, free=free)
    fact = os.strerror(error.errno or 0) if isinstance(error, OSError) else str(error) or type(error).__name__
    return MACHINE_EXHAUSTED.error(MachineExhaustedError, fact=fact)


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

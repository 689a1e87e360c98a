"""Data directories as a server's programs make them, kept in the virtual environment: a copy costs a tenth of making another.

`make clean` removes them with the environment.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(sys.prefix) / "server-data"


def copy_or_make(folder: Path, facts: Sequence[object], make: Callable[[], None], *, own: Sequence[str]) -> None:
    """Make the data directory of a server that never ran, or copy one that was made under the same facts.

    Args:
        folder: The data directory, which is not there yet.
        facts: All that decides what is in it.
        make: Makes it.
        own: Names of files that no two servers may share, which a server makes by itself where it lacks them.
    """
    # Two servers may need the first one at the same time: each makes one, and the later one's is thrown away.
    kept = _FOLDER / hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    if kept.is_dir():
        shutil.copytree(kept, folder)
        return
    make()
    if not os.access(sys.prefix, os.W_OK):
        return
    unfinished = kept.with_name(f"{kept.name}-{os.getpid()}")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(folder, unfinished, ignore=shutil.ignore_patterns(*own))
    try:
        unfinished.rename(kept)
    except OSError:
        if not kept.is_dir():
            raise
        shutil.rmtree(unfinished)

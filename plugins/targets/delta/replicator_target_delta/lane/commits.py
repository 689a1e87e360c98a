"""Who writes a version of a table's log: put-if-absent, whatever does it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol
from uuid import uuid4


class Commits(Protocol):
    """Writes the JSON file of a version, if nobody has."""

    def put(self, version: int, lines: Sequence[str]) -> bool:
        """Write it; False if the version exists, if anybody wrote it. After an error nobody knows: read the version."""


class LinkedCommits:
    """Versions of a table on a local disk, moved to its name by link(2), which never replaces a file.

    Not for a table that Spark commits to at the same time: on a local disk Delta's LogStore looks first and renames
    then, which replaces a file, and is safe only against writers in the same JVM. So the target commits through that.

    Args:
        folder: The table's `_delta_log`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, version: int, lines: Sequence[str]) -> bool:
        """As `Commits.put`."""
        temporary = self._folder / f".{uuid4().hex}.tmp"
        try:
            with temporary.open("wb") as file:
                file.write("".join(f"{line}\n" for line in lines).encode())
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, self._folder / f"{version:020}.json")
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        return True

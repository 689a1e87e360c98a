"""Who writes a version of a table's log: put-if-absent, whatever does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Commits(Protocol):
    """Writes the JSON file of a version, if nobody has."""

    def put(self, version: int, lines: Sequence[str]) -> bool:
        """Write it; False if the version exists, if anybody wrote it. After an error nobody knows: read the version."""

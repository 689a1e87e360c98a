"""Interface of a writer of versions of a table's log: put-if-absent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Commits(Protocol):
    """Writes the JSON file of a version, if there is none."""

    def put(self, version: int, lines: Sequence[str]) -> bool:
        """Write it; False if the version exists, from any writer. After an error the outcome is unknown: read the version."""

"""Rows of data files that a commit deletes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
from pyroaring import BitMap

from replicator.plugins.kit.folding.needed import EngineNeededError
from replicator.plugins.kit.lake.vectors import bitmap
from replicator_target_delta.lane import actions, vectors
from replicator_target_delta.lane.actions import Action
from replicator_target_delta.lane.log import LiveFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """Deleted rows of a file: all of them, and the vector that has them (None: no row is left)."""

    file: LiveFile
    rows: BitMap
    vector: vectors.Descriptor | None

    def actions(self, now_ms: int) -> Sequence[Action]:
        """Actions that give the file its vector: it is removed and added; one without a row is only removed."""
        removal = actions.removal(self.file, now_ms)
        return [removal] if self.vector is None else [removal, actions.with_vector(self.file, self.vector)]


def hide(file: LiveFile, rows: npt.NDArray[Any], deleted: BitMap, output: vectors.VectorFile) -> Hidden:
    """Hide more rows of a file, of which some are deleted already.

    Raises:
        EngineNeededError: They are not living rows of the file.
    """
    union = deleted | bitmap(rows)
    if len(union) != len(deleted) + len(rows) or len(union) > file.rows or int(union.max()) >= file.rows:
        raise EngineNeededError("a deletion vector does not add up")
    return Hidden(file=file, rows=union, vector=output.add(union) if len(union) < file.rows else None)

"""Rows of data files that a commit takes away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
from pyroaring import BitMap

from replicator.plugins.kit.lake.needed import EngineNeededError
from replicator_target_delta.lane import actions, vectors
from replicator_target_delta.lane.actions import Action
from replicator_target_delta.lane.log import LiveFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """Rows of a file that go: all that are deleted then, and the vector that says so (None: no row is left)."""

    file: LiveFile
    rows: BitMap
    vector: vectors.Descriptor | None

    def actions(self, now_ms: int) -> Sequence[Action]:
        """A file gets another vector by being removed and added; one without a row is only removed."""
        removal = actions.removal(self.file, now_ms)
        return [removal] if self.vector is None else [removal, actions.with_vector(self.file, self.vector)]


def hide(file: LiveFile, rows: npt.NDArray[Any], deleted: BitMap, output: vectors.VectorFile) -> Hidden:
    """Hide more rows of a file, of which some are deleted already.

    Raises:
        EngineNeededError: They are not rows of the file that stand there.
    """
    union = deleted | vectors.bitmap(rows)
    if len(union) != len(deleted) + len(rows) or len(union) > file.rows or int(union.max()) >= file.rows:
        raise EngineNeededError("a deletion vector does not add up")
    return Hidden(file=file, rows=union, vector=output.add(union) if len(union) < file.rows else None)

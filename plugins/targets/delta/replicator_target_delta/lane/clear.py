"""The rows that a TRUNCATE, or the end of a snapshot in place, removes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from replicator.model.events import SEQUENCE_NUM
from replicator.plugins.kit.folding.found import Read
from replicator.plugins.kit.lake.vectors import bitmap
from replicator_target_delta.lane import vectors
from replicator_target_delta.lane.hidden import Hidden
from replicator_target_delta.lane.log import LiveFile

_NUMBER = pa.field(SEQUENCE_NUM, pa.int64(), nullable=False)


def cleared(
    files: Iterable[LiveFile],
    below: int | None,
    name: str,
    read: Read[LiveFile],
    deleted_of: Callable[[LiveFile], BitMap],
    output: vectors.VectorFile,
) -> Iterator[Hidden]:
    """The files that lose rows.

    Args:
        files: Files of the table.
        below: Rows with a lower number are removed; None: all rows.
        name: Name of the column of numbers in data files, and in their statistics.
        read: Reads rows of a file.
        deleted_of: The rows of a file that are deleted already.
        output: Takes the new vectors.

    Raises:
        EngineNeededError: A file or a vector cannot be read.
    """
    for file in files:
        deleted = deleted_of(file)
        rows = BitMap(range(file.rows)) if below is None else deleted | _below(file, below, name, read)
        if len(rows) == len(deleted):
            continue
        vector = output.add(rows) if len(rows) < file.rows else None
        yield Hidden(file=file, rows=rows, vector=vector)


def _below(file: LiveFile, below: int, name: str, read: Read[LiveFile]) -> BitMap:
    bounds = file.bounds(name)
    if bounds is not None and bounds[0] >= below:
        return BitMap()
    if bounds is not None and bounds[1] < below:
        return BitMap(range(file.rows))
    every: npt.NDArray[np.int64] = np.arange(file.rows)
    numbers = read(file, every, [_NUMBER]).column(SEQUENCE_NUM).to_numpy()
    return bitmap(np.flatnonzero(numbers < below))

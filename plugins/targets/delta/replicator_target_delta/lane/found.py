"""What stands in a table at the keys of a batch, and the batch's rows with what only the table has of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from replicator.model.events import IS_DELETED
from replicator_target_delta.lane import actions, vectors
from replicator_target_delta.lane.actions import Action, Counts
from replicator_target_delta.lane.fold import Folded
from replicator_target_delta.lane.known import TargetColumn
from replicator_target_delta.lane.log import LiveFile
from replicator_target_delta.lane.needed import SparkNeededError
from replicator_target_delta.lane.parquet import check_size
from replicator_target_delta.lane.replay import completed, picked

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]
Read = Callable[[LiveFile, Int64s, Mapping[str, pa.Field]], pa.Table]
"""Reads some rows of a data file, by ascending numbers: the columns that the file calls so, under these names."""


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
        SparkNeededError: They are not rows of the file that stand there.
    """
    union = deleted | vectors.bitmap(rows)
    if len(union) != len(deleted) + len(rows) or len(union) > file.rows or int(union.max()) >= file.rows:
        raise SparkNeededError("a deletion vector does not add up")
    return Hidden(file=file, rows=union, vector=output.add(union) if len(union) < file.rows else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What stands in the table at the keys of a batch.

    Attributes:
        counts: What the batch changes.
        hidden: What becomes of the files.
        files: The files that have rows at the keys.
        file: By key: which of `files` has its row; -1: none.
        row: By key: the number of its row there.
        is_deleted: By key: whether that row is marked as deleted.
    """

    counts: Counts
    hidden: Sequence[Hidden]
    files: Sequence[LiveFile]
    file: Int64s
    row: Int64s
    is_deleted: Bools


def marked(files: Sequence[LiveFile], file: Int64s, row: Int64s, name: str, read: Read) -> Bools:
    """By key: whether the row that was found is marked as deleted.

    Args:
        files: The files.
        file: By key: which of them has the row; -1: none.
        row: By key: the number of the row there.
        name: What data files call the column of the mark.
        read: Reads rows of a file.
    """
    is_marked = np.zeros(len(file), bool)
    for number, one in enumerate(files):
        mine = file == number
        wanted, order = np.unique(row[mine], return_inverse=True)
        found = read(one, wanted, {name: pa.field(IS_DELETED, pa.bool_())})
        is_marked[mine] = found.column(IS_DELETED).to_numpy()[order]
    return is_marked


def complete(folded: Folded, found: Found, columns: Sequence[TargetColumn], read: Read) -> tuple[pa.Table, pa.Array]:
    """The rows of a batch with the values that only the target has, those of its rows before the batch; and their keys.

    Raises:
        SparkNeededError: The target's rows cannot be read.
    """
    physical = {column.name: column.physical for column in columns}
    count = folded.rows.num_rows
    lacks = np.logical_or.reduce([np.zeros(count, bool), *folded.lacking.values()])
    # An origin where no row stands has no values to give, nor has one that is marked as deleted, except to itself.
    file = np.where(lacks, found.file[folded.origin], -1)
    file[found.is_deleted[folded.origin] & ~folded.only_marks] = -1
    old: pa.Table | None = None
    at = np.full(count, -1)
    for number in np.unique(file[file >= 0]):
        mine = file == number
        wanted, order = np.unique(found.row[folded.origin[mine]], return_inverse=True)
        names = {physical[name]: folded.rows.schema.field(name) for name in folded.lacking}
        part = read(found.files[number], wanted, names)
        at[mine] = order + (0 if old is None else old.num_rows)
        old = part if old is None else pa.concat_tables([old, part])
        check_size(old)
    rows, keys = folded.rows, folded.keys.filter(pa.array(folded.is_written))
    for name, lacking in folded.lacking.items():
        if old is None:
            continue
        values, stored = _one_array(rows.column(name)), _one_array(old.column(name))
        values = completed(values, picked(stored, at), lacking & (at >= 0))
        rows = rows.set_column(rows.column_names.index(name), name, values)
    is_written = pa.array(~folded.only_marks | (found.file[folded.is_written] >= 0))
    return rows.filter(is_written), keys.filter(is_written)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)

"""Joins small files of a table, and leaves out rows that are deleted: in the background, while batches are applied.

1. **Choose** files of the newest version (`kit.lake.joining.due`).
2. **Write** their living rows into one new file, in any thread: data files never change.
3. **Commit** it in place of the old ones (`Lane.commit_rewrite`). Rows that batches have deleted meanwhile are deleted in
   the new file, too: the new row of each old one is known. If one of the old files is no longer part of the table, because
   another writer has rewritten it, the new file is given up.

A crash before the commit leaves a file that no version names, which VACUUM removes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow.fs import FileType
from pyroaring import BitMap

from replicator.plugins.kit.folding.keys import KeyForm
from replicator.plugins.kit.folding.needed import EngineNeededError
from replicator.plugins.kit.lake import vectors
from replicator_target_delta.lane.actions import Action
from replicator_target_delta.lane.known import TargetColumn
from replicator_target_delta.lane.log import LiveFile
from replicator_target_delta.lane.parquet import DataFile, iterate_rows
from replicator_target_delta.storage import Storage

_BYTES_PER_GROUP: Final = 32 << 20
"""Bytes of rows in memory that are written together."""

_DEAD: Final = -1

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """A plan of a rewrite, for one version of the table.

    Attributes:
        files: The files, as `joining.due` chose them.
        deleted: Deleted rows of each file.
        fields: Columns that the table should have (`known.known_columns`).
        columns: Columns that it has.
        shape: Types of the columns.
        properties: The table's properties.
        key: The key columns.
        form: The form of keys.
    """

    files: Sequence[LiveFile]
    deleted: Sequence[BitMap]
    fields: Sequence[Mapping[str, Any]]
    columns: Sequence[TargetColumn]
    shape: pa.Schema
    properties: Mapping[str, str]
    key: Sequence[str]
    form: KeyForm


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """Files whose living rows are now in a new one as well.

    Attributes:
        plan: The plan with the files.
        new_rows: Numbers of the rows in the new file, by file and old number.
        add: The new file's `add` action; None: no row was alive.
        keys: The keys of its rows, in their order.
    """

    plan: Rewrite
    new_rows: Sequence[Int64s]
    add: Action | None
    keys: pa.Array


def rewrite_files(plan: Rewrite, storage: Storage, table: str) -> Rewritten:
    """Write the living rows of some files into a new one.

    Args:
        plan: The plan with the files.
        storage: File system of the target.
        table: The table's path.

    Raises:
        EngineNeededError: A file differs from the log.
    """
    out, new_rows, keys, count = (
        _Joined(plan),
        list[Int64s](),
        [plan.form.keys(_key_of(plan.shape.empty_table(), plan))],
        0,
    )
    for file, dead in zip(plan.files, plan.deleted, strict=True):
        alive = np.ones(file.rows, bool)
        alive[vectors.numbers(dead)] = False
        numbers = np.full(file.rows, _DEAD, np.int64)
        living = int(alive.sum())
        numbers[alive] = np.arange(count, count + living)
        count, begin = count + living, 0
        for rows in _read(storage, f"{table}/{unquote(file.path)}", plan):
            left = rows.filter(pa.array(alive[begin : begin + rows.num_rows]))
            begin += rows.num_rows
            keys.append(plan.form.keys(_key_of(left, plan)))
            out.add(left)
        if begin != file.rows:
            raise EngineNeededError(f"a data file has {begin} rows, the log says {file.rows}")
        new_rows.append(numbers)
    add = {**out.finish(storage, table), "dataChange": False} if count else None
    return Rewritten(plan=plan, new_rows=new_rows, add=add, keys=pa.concat_arrays(keys))


class _Joined:
    """The new file; rows come in small pieces and are written in larger ones."""

    def __init__(self, plan: Rewrite) -> None:
        floats = {field.name for field in plan.shape if pa.types.is_floating(field.type)}
        self._file = DataFile(plan.columns, plan.shape, plan.properties, without_bounds=floats)
        self._parts: list[pa.Table] = []
        self._bytes = 0

    def add(self, rows: pa.Table) -> None:
        self._parts.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= _BYTES_PER_GROUP:
            self._flush()

    def finish(self, storage: Storage, table: str) -> Action:
        self._flush()
        return self._file.finish(storage, table)

    def _flush(self) -> None:
        if self._parts:
            self._file.write(pa.concat_tables(self._parts))
        self._parts, self._bytes = [], 0


def _key_of(rows: pa.Table, plan: Rewrite) -> Sequence[pa.Array]:
    return [_one_array(rows.column(name)) for name in plan.key]


def still_stands(rewritten: Rewritten, storage: Storage, table: str) -> bool:
    """Return whether the new file still exists. While the table is idle it may wait so long that another user's VACUUM removes it."""
    return rewritten.add is None or storage.kind(f"{table}/{rewritten.add['path']}") is FileType.File


def carried(rewritten: Rewritten, deleted: Sequence[BitMap | None]) -> BitMap:
    """The rows of the new file that were deleted since.

    Args:
        rewritten: The result of the rewrite.
        deleted: Rows of each file that are deleted now; None: all of them.

    Raises:
        EngineNeededError: A row that was deleted is no longer.
    """
    found = BitMap()
    for then, now, numbers in zip(rewritten.plan.deleted, deleted, rewritten.new_rows, strict=True):
        if now is None:
            found |= vectors.bitmap(numbers[numbers != _DEAD])
        elif then <= now:
            found |= vectors.bitmap(numbers[vectors.numbers(now - then)])
        else:
            raise EngineNeededError("a deletion vector has lost rows")
    return found


def _read(storage: Storage, path: str, plan: Rewrite) -> Iterator[pa.Table]:
    """A data file's rows, under the table's names of its columns."""
    physical = {column.name: column.physical for column in plan.columns}
    try:
        with storage.open_input(path) as source:
            yield from iterate_rows(source, {physical[field.name]: field for field in plan.shape})
    except FileNotFoundError as error:
        raise EngineNeededError("a data file is missing") from error


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([pa.array([], column.type), *column.chunks])

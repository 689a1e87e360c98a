"""Finds the target's rows at the keys of a batch, and completes the batch's rows with values that only the target has.

A target looks the keys up in its own way. It returns the rows found as `FileHits`, without deleted rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replicator.model.events import IS_DELETED
from replicator.model.merged import Merged
from replicator.plugins.kit.folding import needed
from replicator.plugins.kit.folding.fold import NetChanges
from replicator.plugins.kit.folding.needed import EngineNeededError, TooLargeError
from replicator.plugins.kit.folding.replay import completed, picked
from replicator.plugins.target import TableOptions

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]
File = TypeVar("File")
"""A data file, as the target knows it."""

Read = Callable[[File, Int64s, Sequence[pa.Field]], pa.Table]
"""Reads some rows of a data file, by ascending numbers: these columns of the table, in these types.

A column that the table got after the file was written is NULL in it; one that is not nullable must exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHits(Generic[File]):
    """Rows of one data file that have keys of the batch.

    Attributes:
        file: The file.
        positions: Indexes of their keys in `NetChanges.keys`.
        rows: The numbers of the rows in the file, one for each of `positions`.
    """

    file: File
    positions: Int64s
    rows: npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRows(Generic[File]):
    """The target's row at each of `NetChanges.keys`.

    Attributes:
        files: The files that have rows at the keys.
        file: By key: index in `files` of the file with its row; -1: none.
        row: By key: the number of its row in that file.
        is_deleted: By key: True if that row is marked as deleted.
    """

    files: Sequence[File]
    file: Int64s
    row: Int64s
    is_deleted: Bools


def found_at(
    net: NetChanges, hits: Sequence[FileHits[File]], options: TableOptions, read: Read[File]
) -> FoundRows[File]:
    """Locate the target's rows at the keys of a batch.

    Args:
        net: The batch.
        hits: Rows found, by file.
        options: Options of the table.
        read: Reads rows of a file: for tables that keep deleted rows, their marks.

    Raises:
        EngineNeededError: The table has a key twice.
    """
    count = np.zeros(len(net.keys), np.int64)
    file, row = np.full(len(count), -1), np.full(len(count), -1)
    for number, one in enumerate(hits):
        np.add.at(count, one.positions, 1)
        file[one.positions], row[one.positions] = number, one.rows
    if bool((count > 1).any()):
        raise EngineNeededError("a key stands in the table twice")
    files, is_deleted = [one.file for one in hits], np.zeros(len(count), bool)
    if options.deletes == "soft":
        is_deleted = _marks(files, file, row, read)
    return FoundRows(files=files, file=file, row=row, is_deleted=is_deleted)


def merged(net: NetChanges, found: FoundRows[File], *, expects_rows: bool) -> Merged:
    """Count the changes of a batch. `expects_rows`: expected rows that do not exist are counted (`Batch.expects_rows`)."""
    if net.is_append:
        return Merged(inserted=net.rows.num_rows)
    is_there, is_kept = found.file >= 0, net.is_written
    # A row that is only marked as deleted is written again where it is, and nowhere else.
    is_new = is_kept.copy()
    is_new[is_new] = ~net.only_marks
    return Merged(
        matched=int((is_there & is_kept).sum()),
        inserted=int((~is_there & is_new).sum()),
        deleted=int((is_there & ~is_kept).sum()),
        not_found=int(((~is_there | found.is_deleted) & net.expects).sum()) if expects_rows else 0,
    )


def needed_columns(net: NetChanges, options: TableOptions) -> Sequence[str]:
    """Return the columns of the target's rows that `replacement` reads."""
    return [*net.lacking, *net.kept, *([IS_DELETED] if options.deletes == "soft" else [])]


def replacement(
    net: NetChanges, positions: Int64s, stored: pa.Table, options: TableOptions, *, expects_rows: bool
) -> tuple[pa.Table, Merged]:
    """Return the rows that replace all of the target's rows at the keys, and the counts.

    For a target that reads its rows at the keys itself, as a database does.

    Args:
        net: The net changes.
        positions: By row found: the index of its key in `NetChanges.keys`.
        stored: The rows found, with `needed_columns`.
        options: Options of the table.
        expects_rows: See `merged`.

    Raises:
        EngineNeededError: See `found_at`.
    """
    hits = [FileHits(file=stored, positions=positions, rows=np.arange(len(positions)))]
    found = found_at(net, hits, options, _read)
    rows = net.rows if net.is_complete else complete(net, found, _read)[0]
    return rows, merged(net, found, expects_rows=expects_rows)


def replacement_of(
    net: NetChanges, found: Sequence[Sequence[Any]], options: TableOptions, *, expects_rows: bool
) -> tuple[pa.Table, Merged]:
    """Return the same, for rows found that are Python objects: each the index of its key, and the values of `needed_columns`."""
    names = needed_columns(net, options)
    columns = list(zip(*found, strict=True)) or [()] * (1 + len(names))
    types = pa.schema([net.rows.schema.field(name) for name in names])
    stored = pa.table(dict(zip(names, columns[1:], strict=True)), schema=types)
    return replacement(net, np.array(columns[0], np.int64), stored, options, expects_rows=expects_rows)


def complete(net: NetChanges, found: FoundRows[File], read: Read[File]) -> tuple[pa.Table, pa.Array]:
    """Return the rows of a batch with the values that only the target has, those of its rows before the batch; and their keys.

    Raises:
        TooLargeError: The target's rows do not fit into memory.
        EngineNeededError: The target's rows cannot be read.
    """
    rows, keys = net.rows, net.row_keys
    own_file, own_row = found.file[net.is_written], found.row[net.is_written]
    if net.lacking:
        lacks = np.logical_or.reduce(list(net.lacking.values()))
        # An origin without a row has no values to give, nor has one that is marked as deleted, except to itself.
        file = np.where(lacks, found.file[net.origin], -1)
        file[found.is_deleted[net.origin] & ~net.only_marks] = -1
        rows = _with_stored(rows, net.lacking, file, found.row[net.origin], found.files, read)
    if net.kept:
        everywhere = np.ones(rows.num_rows, bool)
        rows = _with_stored(rows, dict.fromkeys(net.kept, everywhere), own_file, own_row, found.files, read)
    is_written = pa.array(~net.only_marks | (own_file >= 0))
    return rows.filter(is_written), keys.filter(is_written)


def _with_stored(
    rows: pa.Table,
    lacking: Mapping[str, Bools],
    file: Int64s,
    row: Int64s,
    files: Sequence[File],
    read: Read[File],
) -> pa.Table:
    """Fill values of the target's rows into rows.

    Args:
        rows: The rows.
        lacking: By column of which rows lack values: True for those rows.
        file: By row: index in `files` of the file with its values; -1: none.
        row: By row: the number of that row in the file.
        files: Data files.
        read: Reads rows of them.
    """
    fields = [rows.schema.field(name) for name in lacking]
    old: pa.Table | None = None
    at = np.full(rows.num_rows, -1)
    for number in np.unique(file[file >= 0]):
        mine = file == number
        wanted, order = np.unique(row[mine], return_inverse=True)
        part = read(files[number], wanted, fields)
        at[mine] = order + (0 if old is None else old.num_rows)
        old = part if old is None else pa.concat_tables([old, part])
        if old.nbytes > needed.BYTES_MAX:
            raise TooLargeError("rows of the table are too large")
    if old is None:
        return rows
    for name, lacks in lacking.items():
        values, stored = _one_array(rows.column(name)), _one_array(old.column(name))
        values = completed(values, picked(stored, at), lacks & (at >= 0))
        rows = rows.set_column(rows.column_names.index(name), name, values)
    return rows


def _marks(files: Sequence[File], file: Int64s, row: Int64s, read: Read[File]) -> Bools:
    """Return, by key, whether the row that was found is marked as deleted."""
    is_marked = np.zeros(len(file), bool)
    for number, one in enumerate(files):
        mine = file == number
        wanted, order = np.unique(row[mine], return_inverse=True)
        found = read(one, wanted, [pa.field(IS_DELETED, pa.bool_(), nullable=False)])
        is_marked[mine] = found.column(IS_DELETED).to_numpy()[order]
    return is_marked


def _read(stored: pa.Table, rows: Int64s, fields: Sequence[pa.Field]) -> pa.Table:
    return stored.select([field.name for field in fields]).take(pa.array(rows)).cast(pa.schema(fields))


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)

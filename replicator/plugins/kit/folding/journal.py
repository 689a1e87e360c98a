"""Reads the changes of a batch from the journal's files, whole or piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from replicator.model.events import (
    ABSENT,
    BEFORE,
    IS_SNAPSHOT,
    OPERATION,
    ROW,
    SEQUENCE_NUM,
    SOURCE_TIMESTAMP,
    change_schema,
)
from replicator.model.schema import TableSchema
from replicator.plugins.kit.folding.needed import EngineNeededError, TooLargeError
from replicator.plugins.kit.opening import open_seekable
from replicator.plugins.target import Batch, BatchFile

COLUMNS: Final = (SEQUENCE_NUM, OPERATION, IS_SNAPSHOT, SOURCE_TIMESTAMP, ABSENT, BEFORE, ROW)
_PIECE_BYTES: Final = 16 << 20
"""Bytes of a file, as they are encoded, that are read at once."""


def read_pieces(batch: Batch, columns: Sequence[str] = COLUMNS, *, bytes_max: int | None = None) -> Iterator[pa.Table]:
    """Yield the batch's changes above `skip_to` in pieces of bounded size, in the order of the files.

    Args:
        batch: The batch.
        columns: Columns of the journal's layout, or fields of its structs, as `before.id`.
        bytes_max: Limit of the bytes of the files' columns, encoded and not compressed.

    Raises:
        TooLargeError: There are more bytes than the limit.
        EngineNeededError: They are not readable.
    """
    layout = change_schema(batch.schema)
    wanted = pa.schema([layout.field(name) for name in columns]) if columns == COLUMNS else None
    size = 0
    try:
        for file in batch.files:
            with _opened(file) as parquet:
                size += sum(_row_groups(parquet.metadata))
                if bytes_max is not None and size > bytes_max:
                    raise TooLargeError
                for piece in _pieces(parquet, columns):
                    changes = piece if wanted is None else piece.select(columns).cast(wanted)
                    if file.first <= batch.skip_to:
                        changes = changes.filter(pc.field(SEQUENCE_NUM) > batch.skip_to)
                    yield changes
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise EngineNeededError("the journal's files cannot be read") from error


def in_order(schema: TableSchema, pieces: list[pa.Table]) -> pa.Table:
    """Return pieces as one table, in the order of the numbers, each column in one chunk. Empties the list."""
    layout = change_schema(schema)
    wanted = pa.schema([layout.field(name) for name in COLUMNS])
    changes = pa.concat_tables([wanted.empty_table(), *pieces])
    pieces.clear()  # so that they are in memory twice at most
    columns = dict(zip(changes.column_names, changes.columns, strict=True))
    del changes
    changes = pa.table({name: _combined(columns.pop(name)) for name in COLUMNS}, schema=wanted)
    numbers = changes.column(SEQUENCE_NUM).to_numpy()
    if bool((numbers[1:] <= numbers[:-1]).any()):
        changes = changes.take(pa.array(np.argsort(numbers, kind="stable")))
        if len(np.unique(numbers)) < len(numbers):
            raise EngineNeededError("two changes have one number")
    return changes


def _pieces(parquet: pq.ParquetFile, columns: Sequence[str]) -> Iterator[pa.Table]:
    sizes, rows = _row_groups(parquet.metadata), parquet.metadata.num_rows
    if sum(sizes) <= _PIECE_BYTES:
        yield parquet.read(columns=list(columns))
        return
    at_once = max(1, rows * _PIECE_BYTES // sum(sizes))
    for part in parquet.iter_batches(batch_size=at_once, columns=list(columns)):
        yield pa.Table.from_batches([part])


def _row_groups(file: pq.FileMetaData) -> Sequence[int]:
    return [file.row_group(i).total_byte_size for i in range(file.num_row_groups)]


def _combined(column: pa.ChunkedArray) -> pa.Array:
    """Return a column in one chunk. Fields of a struct are combined one after another, so that only one is in memory twice."""
    type_, chunks = column.type, [chunk for chunk in column.chunks if len(chunk)]
    if len(chunks) == 1:
        return chunks[0]
    if not chunks or not pa.types.is_struct(type_):
        return pa.concat_arrays([pa.array([], type_), *chunks])
    is_null = pa.concat_arrays([chunk.is_null() for chunk in chunks])
    parts = [chunk.flatten() for chunk in chunks]
    del column, chunks
    fields = []
    while parts[0]:
        fields.append(pa.concat_arrays([part.pop(0) for part in parts]))
    return pa.StructArray.from_arrays(fields, fields=list(type_), mask=is_null)


@contextmanager
def _opened(file: BatchFile) -> Iterator[pq.ParquetFile]:
    filesystem, path = pafs.FileSystem.from_uri(file.uri)
    with open_seekable(filesystem, path) as source:
        yield pq.ParquetFile(source)

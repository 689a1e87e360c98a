"""Data files, as Spark would have written them: physical names, field numbers, types."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from replicator.plugins.kit.folding.needed import EngineNeededError, TooLargeError
from replicator_target_delta.lane.known import TargetColumn
from replicator_target_delta.lane.stats import Statistics, columns_with_statistics
from replicator_target_delta.storage import Storage

_ROWS_PER_GROUP: Final = 250_000
_ROWS_PER_READ: Final = 4_096
_COMPRESSION: Final = "zstd"
BYTES_MAX: Final = 256 << 20
"""Limit of the bytes of rows that are read at once."""
_CALENDAR: Final = {"org.apache.spark.version": "4.0.0"}
"""Spark's version in the file. Without one a setting says whether dates before 1582 are those of the Julian calendar (Spark 3
refuses to read them). With a version from 3.0 on they are taken literally."""


class DataFile:
    """A new file of a table, written bit by bit. It is in memory, as it is stored, until `finish`.

    Args:
        columns: The table's columns.
        shape: Their types, by name.
        properties: The table's properties.
        without_bounds: Columns of whose values the file itself is to tell no bounds. To Spark a NaN is the greatest number,
            and bounds of Parquet do not count it.
    """

    def __init__(
        self,
        columns: Sequence[TargetColumn],
        shape: pa.Schema,
        properties: Mapping[str, str],
        without_bounds: Collection[str],
    ) -> None:
        if set(shape.names) != {column.name for column in columns}:
            raise EngineNeededError("the table's columns are not those of the source")
        self._columns = columns
        self._schema = pa.schema(
            [
                pa.field(
                    column.physical,
                    shape.field(column.name).type,
                    column.nullable,
                    {b"PARQUET:field_id": str(column.id).encode()},
                )
                for column in columns
            ]
        )
        self._stats = Statistics(columns_with_statistics(columns, properties))
        self._buffer = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(
            self._buffer,
            self._schema,
            compression=_COMPRESSION,
            compression_level=1,
            store_schema=False,
            store_decimal_as_integer=True,
            coerce_timestamps="us",
            write_statistics=[column.physical for column in columns if column.name not in without_bounds],
        )

    def write(self, rows: pa.Table) -> None:
        """Add rows.

        Raises:
            EngineNeededError: A row lacks a value that the table must have.
        """
        for column in self._columns:
            if not column.nullable and rows.column(column.name).null_count:
                raise EngineNeededError("a row has a null where the table allows none")
        arrays = [rows.column(column.name) for column in self._columns]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema), row_group_size=_ROWS_PER_GROUP)
        self._stats.add(rows)

    def finish(self, storage: Storage, table: str) -> Mapping[str, Any]:
        """Store the file in the table at the path `table`: its `add` action. A file that no version names is removed by VACUUM."""
        self._writer.add_key_value_metadata(_CALENDAR)
        self._writer.close()
        data = self._buffer.getvalue()
        name = f"part-00000-{uuid4()}-c000.{_COMPRESSION}.parquet"
        with storage.open_output(f"{table}/{name}") as file:
            file.write(data)
        return {
            "path": name,
            "partitionValues": {},
            "size": data.size,
            "modificationTime": int(time.time() * 1000),
            "dataChange": True,
            "stats": self._stats.text(),
        }


def write_rows(
    rows: pa.Table, storage: Storage, table: str, columns: Sequence[TargetColumn], properties: Mapping[str, str]
) -> Mapping[str, Any]:
    """Write rows as a new file of a table.

    Args:
        rows: Rows with the table's columns, under their names.
        storage: File system of the target.
        table: The table's path.
        columns: The table's columns.
        properties: The table's properties.

    Returns:
        The `add` action.

    Raises:
        EngineNeededError: A row lacks a value that the table must have.
    """
    nan = {name for name in rows.column_names if _has_nan(rows.column(name))}
    file = DataFile(columns, rows.schema, properties, without_bounds=nan)
    file.write(rows)
    return file.finish(storage, table)


def read_rows(source: Any, rows: npt.NDArray[np.int64], names: Mapping[str, pa.Field]) -> pa.Table:
    """Read some rows of a data file.

    Args:
        source: The open file.
        rows: Their numbers, ascending.
        names: The file's names of the columns → the fields that they become. A nullable one that the file lacks is NULL: it
            was added to the table after the file was written.

    Raises:
        EngineNeededError: The file lacks a column, or has one in another type, or the rows are too large for memory, where a value that a
            file has once may be in every row.
    """
    parts, size = [], 0
    for part in iterate_rows(source, names, rows):
        parts.append(part)
        size += part.nbytes
        _check(size)
    table = pa.concat_tables([pa.schema([pa.field(f.name, f.type) for f in names.values()]).empty_table(), *parts])
    if table.num_rows != len(rows):
        raise EngineNeededError("a data file lacks rows that the log says it has")
    return table


def iterate_rows(
    source: Any, names: Mapping[str, pa.Field], rows: npt.NDArray[np.int64] | None = None
) -> Iterator[pa.Table]:
    """The rows of a data file, a few at a time; only those with these numbers, if any are given. Otherwise like `read_rows`."""
    try:
        # Spark may have written moments as INT96, of nanoseconds: read as such they would overflow.
        file = pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
        there = set(file.schema_arrow.names)
        if lost := [field.name for name, field in names.items() if name not in there and not field.nullable]:
            raise EngineNeededError(f"a data file lacks the column {lost[0]}")
        for begin, piece in _pieces(file, [name for name in names if name in there], rows):
            found = piece
            if rows is not None:
                mine = rows[np.searchsorted(rows, begin) : np.searchsorted(rows, begin + piece.num_rows)]
                found = piece.take(pa.array(mine - begin))
            part = pa.table(
                {
                    field.name: found.column(name).cast(field.type)
                    if name in there
                    else pa.nulls(found.num_rows, field.type)
                    for name, field in names.items()
                }
            )
            check_size(part)
            yield part
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, KeyError) as error:
        raise EngineNeededError("a data file's rows cannot be read") from error


def check_size(rows: pa.Table) -> None:
    """Check that rows of the target that are read for a batch fit into memory.

    Raises:
        TooLargeError: They do not.
    """
    _check(rows.nbytes)


def _check(size: int) -> None:
    if size > BYTES_MAX:
        raise TooLargeError("rows of the table are too large")


def _has_nan(values: pa.ChunkedArray) -> bool:
    return pa.types.is_floating(values.type) and bool(pc.any(pc.is_nan(values)).as_py())


def _pieces(
    file: pq.ParquetFile, columns: Sequence[str], rows: npt.NDArray[np.int64] | None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """A file's rows, a few at a time, each time with the number of the first; row groups without any of `rows` are left out."""
    begin = 0
    for group in range(file.num_row_groups):
        end = begin + file.metadata.row_group(group).num_rows
        if rows is None or np.searchsorted(rows, begin) < np.searchsorted(rows, end):
            first = begin
            for piece in file.iter_batches(_ROWS_PER_READ, row_groups=[group], columns=columns):
                yield first, piece
                first += piece.num_rows
        begin = end

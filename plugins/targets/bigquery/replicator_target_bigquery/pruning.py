"""Select partitions of a target that a batch can touch, where the partition column is part of the key. Pure Parquet.

A MERGE is billed the whole table unless its condition has literals on the partition column. A change touches the keys
that it names, before and after, so the lowest and the highest value of the column in the batch's files bound them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from replicator.model.events import BEFORE, ROW
from replicator_target_bigquery.rewrite import chunks
from replicator_target_bigquery.shape import ColumnShape

_BATCH_ROWS: Final = 50_000
_LITERALS: Final = ("DATE", "DATETIME", "TIMESTAMP")


def bounds(files: Iterable[pq.ParquetFile], column: ColumnShape) -> tuple[int, int] | None:
    """Return the lowest and the highest value of a key column before and after the changes of some files.

    Returns:
        The integers that Parquet keeps; None if there is no value.
    """
    found = [pair for file in files for struct in (BEFORE, ROW) for pair in _bounds(file, f"{struct}.{column.field}")]
    return (min(low for low, _ in found), max(high for _, high in found)) if found else None


def condition(column: ColumnShape, alias: str, found: tuple[int, int]) -> str:
    """Return GoogleSQL that is true of every row of the target that a batch with these bounds can touch."""
    low, high = (_literal(value, column.type) for value in found)
    return f"{column.in_target(alias)} BETWEEN {low} AND {high}"


def _bounds(file: pq.ParquetFile, leaf: str) -> Iterator[tuple[int, int]]:
    for group, chunk in chunks(file, leaf):
        statistics = chunk.statistics
        if statistics is not None and statistics.has_min_max:
            yield statistics.min_raw, statistics.max_raw
        elif statistics is None or not statistics.has_null_count or statistics.null_count != chunk.num_values:
            yield from _scanned(file, group, leaf)


def _scanned(file: pq.ParquetFile, group: int, leaf: str) -> Iterator[tuple[int, int]]:
    for batch in file.iter_batches(batch_size=_BATCH_ROWS, row_groups=[group], columns=[leaf]):
        (values,) = batch.column(0).flatten()
        raw = values.view(pa.int32() if pa.types.is_date32(values.type) else pa.int64())
        extremes = pc.min_max(raw).as_py()
        if extremes["min"] is not None:
            yield extremes["min"], extremes["max"]


def _literal(value: int, type_: str) -> str:
    assert type_ in _LITERALS, type_
    if type_ == "DATE":
        return f"DATE '{(date(1970, 1, 1) + timedelta(days=value)).isoformat()}'"
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value)
    spelled = moment.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
    return f"{type_} '{spelled}{'+00' if type_ == 'TIMESTAMP' else ''}'"

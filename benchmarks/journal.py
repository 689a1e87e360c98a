"""Journal files made without a source: rows of the benchmark's table as arrays, and batches of changes to them."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.data import TABLE
from replicator.model.events import DMLOperation, change_schema
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.target import Batch, BatchFile

_SEED: Final = 20260101
_EPOCH_2024_US: Final = 1_704_067_200_000_000
_FILE_ROWS: Final = 500_000

Longs = npt.NDArray[np.int64]


def _column(name: str, type_: pa.DataType, source_type: str, *, nullable: bool = False) -> Column:
    return Column(name=name, type=type_, source_type=source_type, nullable=nullable)


ITEMS: Final = TableSchema(
    table=TableId("public", TABLE),
    columns=(
        _column("id", pa.int64(), "bigint"),
        _column("customer", pa.int32(), "integer"),
        _column("product", pa.int32(), "integer"),
        _column("quantity", pa.int32(), "integer"),
        _column("amount", pa.decimal128(12, 2), "numeric(12,2)"),
        _column("name", pa.string(), "character varying(64)"),
        _column("changed_at", pa.timestamp("us"), "timestamp without time zone"),
        _column("note", pa.string(), "text", nullable=True),
        _column("document", pa.string(), "json"),
        _column("score", pa.float64(), "double precision"),
        _column("is_active", pa.bool_(), "boolean"),
        _column("status", pa.string(), "character varying(16)"),
    ),
    key=("id",),
)


class Changes:
    """An endless log of the table: numbers and new keys ascend, keys of updates and deletes are drawn from all that there ever were."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._random = np.random.default_rng(_SEED)
        self._next = 0
        self._next_key = 1

    def take(self, count: int) -> int:
        """Give out sequence numbers; returns the first."""
        first, self._next = self._next, self._next + count
        return first

    def snapshot(self, first: int, count: int) -> Batch:
        """Complete rows of new keys."""
        keys = np.arange(first, first + count)
        self._next_key = first + count
        return self._batch(keys, np.zeros(count, np.int8), is_snapshot=True)

    def mixed(self, count: int) -> Batch:
        """60 % updates, 30 % inserts, 10 % deletes, shuffled."""
        operations = self._random.permutation(
            np.repeat(
                np.array([0, 1, 2], np.int8), [count * 3 // 10, count - count * 3 // 10 - count // 10, count // 10]
            )
        )
        keys = self._random.integers(1, self._next_key, count)
        inserts = operations == 0
        keys[inserts] = np.arange(self._next_key, self._next_key + inserts.sum())
        self._next_key += int(inserts.sum())
        return self._batch(keys, operations, is_snapshot=False)

    def _batch(self, keys: Longs, operations: npt.NDArray[np.int8], *, is_snapshot: bool) -> Batch:
        ledger, files = self._next - 1, []
        for start in range(0, len(keys), _FILE_ROWS):
            part = slice(start, start + _FILE_ROWS)
            files.append(self._file(keys[part], operations[part], is_snapshot=is_snapshot))
        return Batch(
            schema=ITEMS,
            files=files,
            last=files[-1].last,
            skip_to=ledger,
            rows=len(keys),
            is_append=is_snapshot,
            has_absent=False,
            has_key_changes=False,
        )

    def _file(self, keys: Longs, operations: npt.NDArray[np.int8], *, is_snapshot: bool) -> BatchFile:
        count, first = len(keys), self.take(len(keys))
        is_delete = pa.array(operations == 2)
        layout = change_schema(ITEMS)
        names = pa.array([DMLOperation.INSERT.value, DMLOperation.UPDATE.value, DMLOperation.DELETE.value])
        before = pa.StructArray.from_arrays([pa.array(keys)], fields=list(ITEMS.before_type), mask=pc.invert(is_delete))
        row = pa.StructArray.from_arrays(_rows(keys, first), fields=list(ITEMS.row_type), mask=is_delete)
        columns: list[Any] = [
            pa.array(np.arange(first, first + count)),
            names.take(pa.array(operations)),
            pa.repeat(pa.scalar(is_snapshot), count),
            pa.repeat(pa.scalar(_EPOCH_2024_US, pa.timestamp("us", tz="UTC")), count),
            pa.repeat("4711", count),
            pa.nulls(count, layout.field("_absent").type),
            before,
            row,
        ]
        path = self._folder / f"{uuid.uuid4().hex}.parquet"
        pq.write_table(
            pa.Table.from_arrays(columns, schema=layout),
            path,
            compression="zstd",
            compression_level=1,
            row_group_size=100_000,
        )
        return BatchFile(uri=path.as_uri(), rows=count, bytes=path.stat().st_size, first=first, last=first + count - 1)


def _rows(keys: Longs, version: int) -> list[pa.Array]:
    """The columns of rows with these keys; other versions have other values."""
    texts = pa.array(keys).cast(pa.string())
    cents = pa.array((keys * 31 + version) % 1_000_000).cast(pa.decimal128(19, 0))
    note = pc.binary_join_element_wise("note ", texts, " of a length that is not worth a word, or perhaps it is", "")
    hundred = pa.scalar(100, pa.decimal128(5, 0))
    return [
        pa.array(keys),
        pa.array((keys * 7919 % 100_003).astype(np.int32)),
        pa.array((keys * 104_729 % 5003).astype(np.int32)),
        pa.array(((keys + version) % 97).astype(np.int32)),
        pc.divide(cents, hundred).cast(pa.decimal128(12, 2), safe=False),
        pc.binary_join_element_wise("the name of number ", texts, ""),
        pa.array(_EPOCH_2024_US + keys * 1_000_001).view(pa.timestamp("us")),
        pc.if_else(pa.array(keys % 10 == 0), pa.scalar(None, pa.string()), note),
        pc.binary_join_element_wise('{"kind": 1, "tag": "tag', texts, '"}', ""),
        pa.array(keys * 0.37),
        pa.array(keys % 3 == 0),
        pa.array(["new", "paid", "sent", "returned"]).take(pa.array((keys + version) % 4)),
    ]

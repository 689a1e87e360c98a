"""A batch that Spark folds, finds in the table and writes, for a commit of the table's lane (`lane.bulk`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documentation has it

from replicator.plugins.target import Batch
from replicator.spark import reduce
from replicator.spark.journal import read_changes
from replicator.spark.reduce import EXPECTS, IS_REMOVED, KEY
from replicator_target_delta import merge
from replicator_target_delta.ddl import quoted
from replicator_target_delta.held import HeldTable
from replicator_target_delta.lane.actions import Action
from replicator_target_delta.lane.bulk import BulkHits
from replicator_target_delta.lane.needed import SparkNeededError
from replicator_target_delta.scala import Scala

_ROWS_MAX: Final = 10_000_000
"""Changes of a batch: for each of the rows at its keys, at most two a change, some 30 bytes pass through this process."""
_METADATA: Final = "_metadata"


class SparkBulk:
    """As `lane.bulk.Bulk`.

    Args:
        held: The table.
        batch: The batch.
        changes: Its changes, as `read_changes` gives them.
        source: They are folded to one per key; None: the rows are appended.
    """

    def __init__(self, held: HeldTable, batch: Batch, changes: DataFrame, source: DataFrame | None) -> None:
        self._held, self._batch, self._changes, self._source = held, batch, changes, source

    def write(self) -> Sequence[Action]:
        """As `Bulk.write`: Delta writes the files, with its statistics and names of columns, and commits nothing."""
        session, schema = self._held.session, self._batch.schema
        rows = self._changes if self._source is None else self._source.where(~F.col(IS_REMOVED))
        frame = merge.append_rows(rows, schema, self._held.table.options)
        types = {field.name: field.dataType for field in self._table().schema}
        frame = frame.select(*[F.col(quoted(name)).cast(types[name]).alias(name) for name in frame.columns])
        scala = Scala(session)
        log = scala.delta.DeltaLog.forTable(session._jsparkSession, self._held.path)  # noqa: SLF001 - as `Transaction`
        written = scala.list(log.startTransaction().writeFiles(frame._jdf))  # noqa: SLF001 - Java's frame has no public name
        return [json.loads(file.json())["add"] for file in written]

    def find(self, version: int, names: Mapping[str, int]) -> BulkHits:
        """As `Bulk.find`: one join on the key alone."""
        session, schema, source = self._held.session, self._batch.schema, self._source
        assert source is not None, "an append looks for nothing"
        at = [F.col(f"{_METADATA}.file_name").alias("name"), F.col(f"{_METADATA}.row_index").alias("row")]
        keys = [F.col(quoted(name)).alias(f"t{i}") for i, name in enumerate(schema.key)]
        table = self._table(version).select(*at, *keys)
        sought = [F.col(f"{KEY}.{quoted(field)}").alias(f"s{i}") for i, field in enumerate(schema.key_fields)]
        touched = source.select(IS_REMOVED, EXPECTS, *sought)
        found = table.join(touched, [F.col(f"t{i}") == F.col(f"s{i}") for i in range(len(keys))])
        numbers = session.createDataFrame(list(names.items()) or [("", 0)], "name string, number long")
        hits = found.join(F.broadcast(numbers), "name", "left").select(
            F.coalesce("number", F.lit(-1)).alias("file"),
            "row",
            IS_REMOVED,
            EXPECTS,
            F.xxhash64(*[f"s{i}" for i in range(len(keys))]).alias("key"),
        )
        held = hits.toArrow()
        return BulkHits(
            file=_numbers(held, "file"),
            row=_numbers(held, "row"),
            is_removed=held.column(IS_REMOVED).to_numpy(),
            expects=held.column(EXPECTS).to_numpy(),
            key=_numbers(held, "key"),
        )

    def expected(self) -> int:
        """As `Bulk.expected`."""
        assert self._source is not None, "an append expects nothing"
        return self._source.where(EXPECTS).count()

    def _table(self, version: int | None = None) -> DataFrame:
        reader = self._held.session.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        frame: DataFrame = reader.load(self._held.path)
        return frame


@contextmanager
def bulk_of(held: HeldTable, batch: Batch, uris: Sequence[str]) -> Iterator[SparkBulk]:
    """Fold a batch; what is folded is kept in memory and on Spark's disks during the block.

    Raises:
        SparkNeededError: It is not one that can be applied so.
    """
    if batch.rows > _ROWS_MAX and not batch.is_append:
        raise SparkNeededError("the batch has too many changes to be found")
    if batch.has_absent and not batch.is_append:
        raise SparkNeededError("a large batch has rows that lack columns")
    if held.table.options.deletes == "soft" and not batch.is_append:
        raise SparkNeededError("a large batch, and deleted rows are kept")
    if any(column.name.lower() == _METADATA for column in batch.schema.columns) and not batch.is_append:
        raise SparkNeededError(f"a large batch, and a column is called {_METADATA}")
    changes = read_changes(held.session, uris, batch.schema, skip_to=batch.skip_to)
    if batch.is_append:
        yield SparkBulk(held, batch, changes, None)
        return
    key = batch.schema.key_fields
    source = reduce.reduce_whole_rows(changes, key, has_key_changes=batch.has_key_changes, keep_removed=False)
    source = source.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield SparkBulk(held, batch, changes, source)
    finally:
        source.unpersist()


def _numbers(held: pa.Table, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    numbers: np.ndarray[Any, np.dtype[np.int64]] = held.column(name).to_numpy()
    return numbers

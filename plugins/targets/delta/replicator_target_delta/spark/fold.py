"""A batch that Spark folds, finds in the table and writes, for a commit of the direct writer (`lane.bulk`)."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documentation has it

from replicator.model.events import IS_DELETED, ROW, SEQUENCE_NUM, SOURCE_TIMESTAMP
from replicator.plugins.kit.folding.needed import EngineNeededError
from replicator.plugins.target import Batch
from replicator.spark import reduce
from replicator.spark.journal import read_changes
from replicator.spark.reduce import EXPECTS, IS_REMOVED, KEY, SENT
from replicator_target_delta.held import HeldTable
from replicator_target_delta.lane.actions import Action
from replicator_target_delta.lane.bulk import BulkHits
from replicator_target_delta.scala import Scala
from replicator_target_delta.shape.tables import quoted
from replicator_target_delta.spark import statements as merge

_ROWS_MAX: Final = 10_000_000
"""Changes of a batch: for each of the rows at its keys, at most two a change, some 30 bytes pass through this process."""
_METADATA: Final = "_metadata"
_INFERENCE: Final = "spark.sql.constraintPropagation.enabled"
_DEAD: Final = "dead"


class SparkBulk:
    """See `lane.bulk.Bulk`.

    Args:
        held: The table.
        batch: The batch.
        changes: Its changes, from `read_changes`.
        source: Its changes, folded to one per key; None: the rows are appended.
    """

    def __init__(self, held: HeldTable, batch: Batch, changes: DataFrame, source: DataFrame | None) -> None:
        self._held, self._batch, self._changes, self._source = held, batch, changes, source
        self._is_soft = held.table.options.deletes == "soft"

    @property
    def is_complete(self) -> bool:
        """See `Bulk.is_complete`. Rows that are marked as deleted, and columns that are kept, have the values of the target."""
        return self._source is None or not (self._batch.has_absent or self._is_soft or self._batch.schema.kept)

    def write(self, version: int) -> Sequence[Action]:
        """See `Bulk.write`. Delta writes the files, with its statistics and names of columns, and commits nothing."""
        session, options = self._held.session, self._held.table.options
        table = self._table(version)
        if self._source is None:
            frame = merge.append_rows(self._changes, self._batch.schema, options)
            frame = frame.select("*", *[F.lit(None).alias(column.name) for column in self._batch.schema.kept])
        elif self.is_complete:
            frame = merge.append_rows(self._source.where(~F.col(IS_REMOVED)), self._batch.schema, options)
        else:
            frame = self._completed(self._source, table)
        types = {field.name: field.dataType for field in table.schema}
        if types.keys() != set(frame.columns):
            raise EngineNeededError("the table's columns are not those of the source")
        frame = frame.select(*[F.col(quoted(name)).cast(types[name]).alias(name) for name in frame.columns])
        scala = Scala(session)
        log = scala.delta.DeltaLog.forTable(session._jsparkSession, self._held.path)  # noqa: SLF001 - as `Transaction`
        written = scala.list(log.startTransaction().writeFiles(frame._jdf))  # noqa: SLF001 - Java's frame has no public name
        return [json.loads(file.json())["add"] for file in written]

    def _completed(self, source: DataFrame, table: DataFrame) -> DataFrame:
        """The rows that the batch leaves, completed by values from the table, as a MERGE would (`merge.merge_statement`)."""
        schema, options, has_absent = self._batch.schema, self._held.table.options, self._batch.has_absent
        if has_absent and self._batch.has_key_changes:
            rows = merge.living_rows(table, schema, options)
            source = reduce.fill_from_origin(source, rows, schema.key_fields, list(schema.fields.values()))
        if not self._is_soft:
            source = source.where(~F.col(IS_REMOVED))
        others = [column.name for column in schema.columns if column.name not in schema.key]
        fields = {name: quoted(schema.fields[name]) for name in others}
        lacks = F.col(ROW).isNull()
        if has_absent:
            lacks = functools.reduce(operator.or_, (~F.col(f"{SENT}.{field}") for field in fields.values()), lacks)
        # What is kept stands in the table alone.
        lacks = F.lit(True) if schema.kept else F.coalesce(lacks, F.lit(True))
        kept = [column.name for column in schema.kept]

        def row(values: Sequence[Column]) -> list[Column]:
            # The key as it is folded: of a row that moved, or was not sent as a whole, `row` has another one or none.
            columns = [F.col(f"{KEY}.{quoted(schema.fields[name])}").alias(name) for name in schema.key]
            columns += [value.alias(name) for name, value in zip([*others, *kept], values, strict=True)]
            columns.append(F.col(SEQUENCE_NUM))
            columns += [F.col(IS_REMOVED).alias(IS_DELETED)] if self._is_soft else []
            return columns + ([F.col(SOURCE_TIMESTAMP)] if options.source_timestamp else [])

        sent = [F.col(f"{ROW}.{field}") for field in fields.values()]
        values = list[Column]()
        for number, (field, new) in enumerate(zip(fields.values(), sent, strict=True)):
            old = F.col(f"v{number}")
            # A row that is marked as deleted is no row to take columns from.
            alive = F.when(~F.coalesce(F.col(_DEAD), F.lit(False)), old)
            written = F.when(F.col(f"{SENT}.{field}"), new).otherwise(alive) if has_absent else new
            values.append(F.when(F.col(ROW).isNull(), old).otherwise(written))
        values += [F.col(f"v{len(others) + i}") for i in range(len(kept))]
        held = self._keys(table, *[F.col(quoted(name)).alias(f"v{i}") for i, name in enumerate([*others, *kept])])
        joined = source.where(lacks).join(held, self._same(f"{KEY}."), "left")
        joined = joined.where(F.col(ROW).isNotNull() | F.col("t0").isNotNull()).select(*row(values))
        return joined if kept else source.where(~lacks).select(*row(sent)).union(joined)

    def find(self, version: int, names: Mapping[str, int]) -> BulkHits:
        """See `Bulk.find`. One join on the key alone."""
        session, schema, source = self._held.session, self._batch.schema, self._source
        assert source is not None, "an append looks for nothing"
        at = [F.col(f"{_METADATA}.file_name").alias("name"), F.col(f"{_METADATA}.row_index").alias("row")]
        sought = [F.col(f"{KEY}.{quoted(field)}").alias(f"f{i}") for i, field in enumerate(schema.key_fields)]
        touched = source.select(IS_REMOVED, EXPECTS, *sought)
        found = self._keys(self._table(version), *at).join(touched, self._same())
        # A frame made of Python's objects would need Python on the executors.
        numbers = session.createDataFrame(
            pa.table({"name": pa.array(list(names), pa.string()), "number": pa.array(list(names.values()), pa.int64())})
        )
        hits = found.join(F.broadcast(numbers), "name", "left").select(
            F.coalesce("number", F.lit(-1)).alias("file"),
            "row",
            # A row that is to be marked is written again, with its mark.
            (F.lit(False) if self._is_soft else F.col(IS_REMOVED)).alias(IS_REMOVED),
            (F.col(EXPECTS) & ~F.col(_DEAD)).alias(EXPECTS),
            F.xxhash64(*[f"f{i}" for i in range(len(sought))]).alias("key"),
        )
        held = hits.toArrow()
        return BulkHits(
            file=_numbers(held, "file"),
            row=_numbers(held, "row"),
            is_removed=held.column(IS_REMOVED).to_numpy(),
            expects=held.column(EXPECTS).to_numpy(),
            key=_numbers(held, "key"),
        )

    def _keys(self, table: DataFrame, *more: Column) -> DataFrame:
        """Key columns as `t0`, `t1` …, the mark of a deleted row, and more."""
        keys = [F.col(quoted(name)).alias(f"t{i}") for i, name in enumerate(self._batch.schema.key)]
        dead = F.col(quoted(IS_DELETED)) if self._is_soft else F.lit(False)
        return table.select(*keys, dead.alias(_DEAD), *more)

    def _same(self, prefix: str = "") -> list[Column]:
        fields = self._batch.schema.key_fields
        names = [f"{prefix}{quoted(field)}" for field in fields] if prefix else [f"f{i}" for i in range(len(fields))]
        return [F.col(f"t{i}") == F.col(name) for i, name in enumerate(names)]

    def expected(self) -> int:
        """See `Bulk.expected`."""
        assert self._source is not None, "an append expects nothing"
        return self._source.where(EXPECTS).count()

    def _table(self, version: int) -> DataFrame:
        reader = self._held.session.read.format("delta").option("versionAsOf", version)
        frame: DataFrame = reader.load(self._held.path)
        return frame


@contextmanager
def bulk_of(held: HeldTable, batch: Batch, uris: Sequence[str]) -> Iterator[SparkBulk]:
    """Fold a batch; the result is kept in memory and on Spark's disks during the block.

    Raises:
        EngineNeededError: It is not one that can be applied so.
    """
    if batch.rows > _ROWS_MAX and not batch.is_append:
        raise EngineNeededError("the batch has too many changes to be found")
    if any(column.name.lower() == _METADATA for column in batch.schema.columns) and not batch.is_append:
        raise EngineNeededError(f"a large batch, and a column is called {_METADATA}")
    changes = read_changes(held.session, uris, batch.schema, skip_to=batch.skip_to)
    if batch.is_append:
        yield SparkBulk(held, batch, changes, None)
        return
    source = reduce.net_changes(changes, batch, held.table.options)
    # For each column that is in a condition Spark would double what it knows of the plan: with 24 of them it does not come to an end.
    before = held.session.conf.get(_INFERENCE)
    try:
        held.session.conf.set(_INFERENCE, "false")
        source = source.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            yield SparkBulk(held, batch, changes, source)
        finally:
            source.unpersist()
    finally:
        held.session.conf.set(_INFERENCE, before)


def _numbers(held: pa.Table, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    numbers: np.ndarray[Any, np.dtype[np.int64]] = held.column(name).to_numpy()
    return numbers

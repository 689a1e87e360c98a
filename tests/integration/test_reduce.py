"""The fold against a plain replay: thousands of random workloads, cut into random batches."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documentation has it

from replicator.spark.journal import read_changes
from replicator.spark.reduce import fill_from_origin, reduce_partial_rows, reduce_whole_rows
from replicator_testbed.spark.session import spark, spark_host  # noqa: F401 - fixtures
from replicator_testbed.workloads.changes import COLUMNS, SCHEMA, Replay, Workloads, change_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY = ("workload", "id")
FIELDS = (*KEY, *COLUMNS)
STATE = "workload bigint, id string, a string, b string, c string, is_deleted boolean"


def merge(target: DataFrame, reduced: DataFrame, *, partial: bool) -> DataFrame:
    """What a target's MERGE does, as a join of two frames. Deleted rows are kept and marked."""
    if not partial:
        reduced = reduced.withColumn("sent", F.struct(*[F.lit(True).alias(f) for f in FIELDS]))
    is_same = (F.col("t.workload") == F.col("s.key.workload")) & (F.col("t.id") == F.col("s.key.id"))
    joined = target.alias("t").join(reduced.alias("s"), is_same, "full")
    touched = F.col("s.key").isNotNull()
    written = F.col("s.row").isNotNull()
    values = [
        F.when(~written | ~touched, F.col(f"t.{f}"))
        .when(F.col(f"s.sent.{f}"), F.col(f"s.row.{f}"))
        .when(~F.col("t.is_deleted"), F.col(f"t.{f}"))
        .alias(f)
        for f in COLUMNS
    ]
    return joined.where(F.col("t.id").isNotNull() | written).select(
        F.coalesce("t.workload", "s.key.workload").alias("workload"),
        F.coalesce("t.id", "s.key.id").alias("id"),
        *values,
        F.when(touched, F.col("s.is_removed")).otherwise(F.col("t.is_deleted")).alias("is_deleted"),
    )


@pytest.mark.parametrize(
    ("partial", "moves", "workloads", "rounds"),
    [
        (True, True, 300, (14,)),
        *(
            pytest.param(*case, 1500, (4, 14, 10), marks=pytest.mark.matrix)
            for case in ((True, True), (True, False), (False, True), (False, False))
        ),
    ],
    ids=str,
)
def test_folded_batches_equal_a_plain_replay(
    spark: SparkSession,  # noqa: F811
    tmp_path: Path,
    partial: bool,
    moves: bool,
    workloads: int,
    rounds: Sequence[int],
) -> None:
    numbers = itertools.count()
    possible_ones = workloads * 3 // 5
    possible = Workloads(7, range(possible_ones), numbers, valid=True, absent=partial, moves=moves)
    arbitrary = Workloads(8, range(possible_ones, workloads), numbers, valid=False, absent=partial, moves=moves)
    replay = Replay()
    state: dict[tuple[int, str], tuple[Any, ...]] = {}
    for most in rounds:
        changes = possible.round(most) + arbitrary.round(most)
        path = tmp_path / f"{most}.parquet"
        pq.write_table(change_table(changes), path)
        frame = read_changes(spark, [path.as_uri()], SCHEMA, skip_to=-1)
        target = spark.createDataFrame([(*k, *v) for k, v in state.items()], STATE)
        if partial:
            reduced = reduce_partial_rows(frame, KEY, FIELDS, has_key_changes=moves)
            reduced = fill_from_origin(reduced, target.where("NOT is_deleted"), KEY, FIELDS) if moves else reduced
        else:
            reduced = reduce_whole_rows(frame, KEY, has_key_changes=moves, keep_removed=True)
        rows = merge(target, reduced, partial=partial).collect()
        state = {(r.workload, r.id): (r.a, r.b, r.c, r.is_deleted) for r in rows}
        assert len(state) == len(rows)
        for change in changes:
            replay.apply(change)
        assert {k: v for k, v in replay.rows.items() if k[0] < possible_ones} == possible.source
        wanted = {k: (*v, False) for k, v in replay.rows.items()} | {k: (*v, True) for k, v in replay.graves.items()}
        wrong = [
            (k, state.get(k), wanted.get(k)) for k in state.keys() | wanted.keys() if state.get(k) != wanted.get(k)
        ]
        assert wrong == []

"""The balance of tables without a key against a plain stack."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from replicator.model.events import change_schema
from replicator.model.schema import Column, TableId, TableSchema
from replicator.spark.journal import read_changes
from replicator.spark.reduce import reduce_multiset
from replicator_testbed.spark.session import spark, spark_host  # noqa: F401 - fixtures

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = TableSchema(
    table=TableId("fuzz", "multiset"),
    columns=(
        Column(name="workload", type=pa.int64(), source_type="bigint"),
        Column(name="number", type=pa.float64(), source_type="double"),
        Column(name="list", type=pa.list_(pa.float32()), source_type="real[]"),
    ),
)
# What Spark's own equality takes for one value, and what it takes for unknown.
Value = tuple[float | None, list[float | None] | None]
VALUES: list[Value] = [
    (0.0, [0.0]),
    (-0.0, [0.0]),
    (0.0, [-0.0]),
    (float("nan"), None),
    (None, [None]),
    (None, None),
    (None, []),
]


def row(workload: int, value: Value) -> dict[str, Any]:
    return {"workload": workload, "number": value[0], "list": value[1]}


def identity(value: dict[str, Any]) -> str:
    return repr((value["workload"], value["number"], value["list"]))


def test_balance_equals_a_stack_of_equal_rows(spark: SparkSession, tmp_path: Path) -> None:  # noqa: F811
    source = random.Random(3)
    changes: list[dict[str, Any]] = []
    stacks: defaultdict[str, list[int]] = defaultdict(list)
    removed: defaultdict[str, int] = defaultdict(int)

    def push(value: dict[str, Any], number: int) -> None:
        stacks[identity(value)].append(number)

    def pop(value: dict[str, Any]) -> None:
        if stacks[identity(value)]:
            stacks[identity(value)].pop()
        else:
            removed[identity(value)] += 1

    for number in range(2000):
        workload = source.randrange(400)
        before, after = (row(workload, source.choice(VALUES)) for _ in range(2))
        old, new = None, None
        match source.choice(["INSERT", "UPDATE", "DELETE"]):
            case "INSERT" as operation:
                new = after
                push(new, number)
            case "DELETE" as operation:
                old = before
                pop(old)
            case operation:
                old, new = before, after
                pop(old)
                push(new, number)
        changes.append(
            {"_sequence_num": number, "_operation": operation, "_is_snapshot": False, "before": old, "row": new}
        )
    path = tmp_path / "changes.parquet"
    pq.write_table(pa.Table.from_pylist(changes, schema=change_schema(SCHEMA)), path)
    fields = [c.name for c in SCHEMA.columns]
    balance = reduce_multiset(read_changes(spark, [path.as_uri()], SCHEMA, skip_to=-1), fields).collect()
    inserted = {r["_sequence_num"]: identity(r["row"].asDict()) for r in balance if r["removes"] == 0}
    assert inserted == {number: value for value, numbers in stacks.items() for number in numbers}
    assert {identity(r["row"].asDict()): r["removes"] for r in balance if r["removes"]} == removed

"""Names and comments of the source that break what is careless with text, through every statement and every rung."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.naming import folded
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.target import TableOptions
from replicator.spark import reduce
from replicator_target_delta import engine
from replicator_target_delta.log.table import TABLE
from replicator_target_delta.shape.comments import column_comment, table_comment
from replicator_target_delta.spark import statements as merge
from replicator_testbed import hostile
from replicator_testbed.delta import read_by_duckdb, read_delta, rows_of
from replicator_testbed.present import present

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from plugins.targets.delta.tests.conftest import Lake

# Every string in these modules that may be the name of a column, so that a new helper column is met by itself.
TABLE_ID = TableId("public", "t")
HELPERS = sorted(
    {
        name
        for module in (reduce, merge)
        for name in re.findall(r"[\"'](_?[A-Za-z]\w*)[\"']", Path(present(module.__file__)).read_text())
    }
    - {"_sequence_num"}
)
# Refused by `validate`.
NAMES = list({folded(n): n for n in [*hostile.names(unfit={"_metadata"}), *HELPERS]}.values())
# What something resolves, that with the canary first, and emoji.
# Hadoop resolves no more behind the first reference that it does not know: what it knows comes first.
RESOLVED = sorted(
    (c for c in hostile.COMMENTS if "${" in c or "😀" in c),
    key=lambda c: (f"${{env.{hostile.CANARY_VARIABLE}}}" not in c[:30], hostile.CANARY_VARIABLE not in c),
)

HADOOP_CANARY = "hadoop-canary-1"
CANARIES = (hostile.CANARY, HADOOP_CANARY)


def schema_of(
    names: Sequence[str],
    key: Sequence[str],
    table: TableId = TABLE_ID,
    comment: str | None = None,
    comments: Sequence[str] = hostile.COMMENTS,
) -> TableSchema:
    """Text columns, each commented with a hostile text; those of the key are whole numbers."""
    columns = [
        Column(
            name=name,
            type=pa.int64() if name in key else pa.string(),
            source_type="text",
            comment=comments[position % len(comments)],
        )
        for position, name in enumerate(names)
    ]
    return TableSchema(table=table, columns=tuple(columns), key=tuple(key), comment=comment)


def row(schema: TableSchema, number: int, word: str = "old", **more: Any) -> Mapping[str, Any]:
    """A row by its fields."""
    return {
        schema.fields[c.name]: number if c.name in schema.key else f"{word} {number} {c.name}" for c in schema.columns
    } | more


def key_of(schema: TableSchema, number: int) -> Mapping[str, Any]:
    return dict.fromkeys(schema.key_fields, number)


def rows_in(lake: Lake) -> set[tuple[Any, ...]]:
    """The rows that are not marked as deleted, as Spark reads them."""
    frame = lake.spark.read.format("delta").load(str(lake.path))
    rows = [tuple(r) for r in frame.collect()]
    positions = {name: i for i, name in enumerate(frame.columns)}
    assert frame.columns[: len(lake.schema.columns)] == [c.name for c in lake.schema.columns]
    width = len(lake.schema.columns)
    return {r[:width] for r in rows if "_is_deleted" not in positions or not r[positions["_is_deleted"]]}


def check_comments(lake: Lake) -> None:
    frame = lake.spark.read.format("delta").load(str(lake.path))
    found = {field.name: field.metadata.get("comment") for field in frame.schema}
    assert {c.name: found[c.name] for c in lake.schema.columns} == {
        c.name: column_comment(c.comment) for c in lake.schema.columns
    }
    detail = present(lake.spark.sql(f"DESCRIBE DETAIL delta.`{lake.path}`").first())
    assert detail["description"] == table_comment(lake.schema.comment)
    assert detail["properties"][TABLE] == str(lake.schema.table)


def check_canaries(lake: Lake) -> None:
    """No file of the lake holds one of them: rows, schemas, the log and a checkpoint of it."""
    engine.SparkCommits(lake.spark, str(lake.path)).checkpoint()
    assert list((lake.path / "_delta_log").glob("*.checkpoint*.parquet"))
    files = [file for file in (lake.folder / "lake").rglob("*") if file.is_file()]
    assert {".parquet", ".json"} <= {file.suffix for file in files}
    assert [(file, s) for file in files for s in CANARIES if s in held(file)] == []


def held(file: Path) -> str:
    """What stands in a file as it is, and in the pages of one of Parquet, which are compressed."""
    text = file.read_bytes().decode(errors="replace")
    return text + (str(pq.read_table(file).to_pylist()) if file.suffix == ".parquet" else "")


def run_keyed(lake: Lake) -> None:
    """Append, merge whole and partial rows with changes of keys, complete a snapshot, clear, drop."""
    schema = lake.schema
    others = [schema.fields[c.name] for c in schema.columns if c.name not in schema.key]
    half = others[::2]
    lake.apply(*[lake.change("INSERT", row=row(schema, i)) for i in range(6)], is_append=True, has_absent=False)
    lake.apply(
        lake.change("UPDATE", before=key_of(schema, 1), row=row(schema, 11, "new"), absent=half),
        lake.change("UPDATE", row=row(schema, 2, "new"), absent=half),
        lake.change("UPDATE", before=key_of(schema, 3), row=row(schema, 13, "new"), absent=half),
        lake.change("UPDATE", before=key_of(schema, 13), row=row(schema, 23, "newer"), absent=half),
        lake.change("DELETE", before=key_of(schema, 4)),
    )

    def mixed(old: int, number: int, word: str) -> tuple[Any, ...]:
        kept = row(schema, old)
        return tuple({**row(schema, number, word), **{field: kept[field] for field in half}}.values())

    def whole(number: int, word: str = "old") -> tuple[Any, ...]:
        return tuple(row(schema, number, word).values())

    wanted = {whole(0), mixed(1, 11, "new"), mixed(2, 2, "new"), mixed(3, 23, "newer"), whole(5)}
    assert rows_in(lake) == wanted
    start = lake.next
    lake.apply(
        lake.change("UPDATE", before=key_of(schema, 0), row=row(schema, 7, "whole")),
        lake.change("UPDATE", row=row(schema, 5, "whole")),
        has_absent=False,
    )
    assert rows_in(lake) == (wanted - {whole(0), whole(5)}) | {whole(7, "whole"), whole(5, "whole")}
    lake.target.complete_snapshot(lake.table, start, lake.number())
    assert rows_in(lake) == {whole(7, "whole"), whole(5, "whole")}


def run_end(lake: Lake) -> None:
    """Clear the table and drop it."""
    lake.event(DDLEvent(operation=DDLOperation.TRUNCATE_TABLE, table=lake.schema.table))
    assert rows_in(lake) == set()
    lake.event(DDLEvent(operation=DDLOperation.DROP_TABLE, table=lake.schema.table))
    lake.target.drop(lake.table)
    assert not lake.path.exists()


@pytest.fixture(autouse=True)
def canary(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> Iterator[None]:
    """A secret where Spark or Hadoop would find it; the other is in the JVM's environment since it began."""
    jvm: Any = spark._jvm
    assert jvm.java.lang.System.getenv(hostile.CANARY_VARIABLE) == hostile.CANARY
    hadoop = spark._jsc.hadoopConfiguration()
    hadoop.set("fs.s3a.secret.key", HADOOP_CANARY)
    yield
    hadoop.unset("fs.s3a.secret.key")


# Spark's statements have the names in their text; the lane has them in the log and in files.
@pytest.mark.parametrize("rung", ["L1", *(pytest.param(rung, marks=pytest.mark.matrix) for rung in ("L0", "L2"))])
def test_hostile_names_and_comments_go_through_every_statement(lake_by: Callable[..., Lake], rung: str) -> None:
    names = [
        "i😀`d.",
        "${user.name}",
        *(f"${text}" for text in (f"{{env:{hostile.CANARY_VARIABLE}}}", f"{{env.{hostile.CANARY_VARIABLE}}}")),
        "a\\'\n",
        "_WANTED",
        "_found",
        "_there",
        "key",
        "s",
        "t",
        "%s",
        "\u202eabc",
        "x" * 255,
        "_Row",
        "--",
    ]
    table = TableId(f"${{env:{hostile.CANARY_VARIABLE}}}", f"${{env.{hostile.CANARY_VARIABLE}}}`.'")
    schema = schema_of(names, [names[0]], table, " ".join(RESOLVED), RESOLVED)
    assert {c.comment for c in schema.columns} >= {c for c in RESOLVED if hostile.CANARY_VARIABLE in c or "😀" in c}
    lake = lake_by(rung, schema, TableOptions(deletes="soft", source_timestamp=True))
    check_comments(lake)
    run_keyed(lake)
    living = [c.name for c in schema.columns]
    for read in (read_delta, read_by_duckdb):
        rows = rows_of(read(lake.path, [*living, "_is_deleted"]))
        assert {values for *values_, is_deleted in rows if not is_deleted for values in [tuple(values_)]} == rows_in(
            lake
        )
    check_canaries(lake)


@pytest.mark.matrix
@pytest.mark.parametrize("deletes", ["hard", "soft"])
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("rung", ["L0", "L1", "L2"])
def test_every_hostile_column_goes_through_every_statement(
    lake_by: Callable[..., Lake], rung: str, deletes: str, part: int
) -> None:
    mine = NAMES[part::4]
    lake = lake_by(rung, schema_of(mine, mine[:3], comment=hostile.COMMENTS[part]), TableOptions(deletes=deletes))
    check_comments(lake)
    run_keyed(lake)
    if deletes == "hard":
        assert set(rows_of(read_delta(lake.path, mine))) == rows_in(lake)
    run_end(lake)

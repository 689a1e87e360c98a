"""ALTER_TABLE: one version of the log, read by every reader and continued by every rung."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from replicator.model.errors import FencedError, SchemaConflictError
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.kit.lake.joining import FILES_PER_TIER
from replicator.plugins.target import TableOptions
from replicator_target_delta.definition import altering
from replicator_target_delta.engine import DirectTable
from replicator_target_delta.ledger import Entry
from replicator_target_delta.log import store as logstore
from replicator_target_delta.log.table import TableLog, read_log
from replicator_target_delta.shape import tables as ddl
from replicator_target_delta.upkeep.due import UpkeepKind
from replicator_testbed.delta import read_delta, rows_of
from replicator_testbed.present import present
from replicator_testing.waiting import wait_until

if TYPE_CHECKING:
    from plugins.targets.delta.tests.conftest import Lake

At = Callable[[str, Callable[[], object]], None]


def schema_of(
    columns: Mapping[str, tuple[int, pa.DataType]], key: Sequence[str] = ("id",), kept: Sequence[Column] = ()
) -> TableSchema:
    """A version of the table: by name, each column's number and type."""
    return TableSchema(
        table=TableId("public", "people"),
        columns=tuple(
            Column(name=name, type=type_, source_type="?", nullable=name not in key, id=number)
            for name, (number, type_) in columns.items()
        ),
        key=tuple(key),
        kept=tuple(kept),
    )


PEOPLE = schema_of({"id": (1, pa.int64()), "name": (2, pa.string()), "note": (3, pa.string())})


def alter(lake: Lake, wanted: TableSchema, fill: Mapping[str, Any] | None = None) -> int:
    return lake.alter(wanted, fill)


def is_rewriting(direct: DirectTable) -> bool:
    """Whether files are being rewritten, or were and wait for a commit."""
    return direct._rewriting is not None


def commits(lake: Lake) -> list[dict[str, Any]]:
    """What each version says of itself."""
    files = sorted((lake.path / "_delta_log").glob("*.json"))
    return [json.loads(file.read_text().splitlines()[0])["commitInfo"] for file in files]


def read(lake: Lake, *names: str, where: str = "true") -> set[tuple[Any, ...]]:
    """The table, as Spark, delta-rs and DuckDB read it alike."""
    names = names or tuple(column.name for column in lake.schema.held)
    quoted = map(ddl.quoted, names)
    frame = lake.spark.read.format("delta").load(str(lake.path)).where(where).select(*quoted)
    by_spark = [tuple(row) for row in frame.collect()]
    listed = ", ".join(f'"{name}"' for name in names)
    query = QueryBuilder().register("copy", DeltaTable(lake.path)).execute(f"SELECT {listed} FROM copy WHERE {where}")
    found = {"delta-rs": list(rows_of(pa.table(query.read_all())))}
    if importlib.util.find_spec("duckdb_extension_delta") is not None:
        import duckdb
        from duckdb_extensions import import_extension

        with duckdb.connect() as connection:
            import_extension("delta", con=connection)
            connection.execute("LOAD delta")
            by_duckdb = connection.execute(f"SELECT {listed} FROM delta_scan('{lake.path}') WHERE {where}")
            found["DuckDB"] = by_duckdb.fetchall()
    for reader, rows in found.items():
        assert (reader, len(rows), set(rows) ^ set(by_spark)) == (reader, len(by_spark), set())
    return set(by_spark)


ADDED = {"id": (1, pa.int64()), "name": (2, pa.string()), "note": (3, pa.string()), "age": (4, pa.int32())}
"""The table with one more column."""


def log_of(lake: Lake) -> TableLog:
    return present(read_log(lake.target._storage, str(lake.path)))


def fields_of(lake: Lake) -> dict[str, dict[str, Any]]:
    """The table's columns, as its log has them."""
    return {field["name"]: field for field in json.loads(log_of(lake).metadata["schemaString"])["fields"]}


def ledger(lake: Lake) -> Entry | None:
    return Entry.of(log_of(lake).transactions.get(lake.table.ledger_name))


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> At:
    """Does something at a crash point, the first time that it is reached."""

    def at(point: str, action: Callable[[], object]) -> None:
        waiting = {point: action}

        def crash_point(name: str) -> None:
            if act := waiting.pop(name, None):
                act()

        for module in (logstore, altering):
            monkeypatch.setattr(module, "crash_point", crash_point)

    return at


# -- what becomes of a table -----------------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_columns_come_go_and_get_other_names(new_lake: Callable[..., Lake], engine: str) -> None:
    lake = new_lake(PEOPLE, engine=engine)
    lake.apply(*[lake.insert(id=i, name=f"n{i}", note="old") for i in range(6)])
    lake.apply(lake.delete(id=0))
    before, version = fields_of(lake), lake.version()
    number = alter(
        lake,
        schema_of(
            {"called": (2, pa.string()), "key": (1, pa.int64()), "age": (4, pa.int32()), "at": (5, pa.timestamp("us"))},
            key=["key"],
        ),
    )
    assert (lake.version(), ledger(lake)) == (version + 1, Entry(1, number))
    after = fields_of(lake)
    assert [*after] == ["called", "key", "age", "at", "_sequence_num"]
    assert (after["called"]["metadata"], after["key"]) == (before["name"]["metadata"], {**before["id"], "name": "key"})
    assert [after[name]["metadata"]["delta.columnMapping.id"] for name in ("age", "at")] == [5, 6]
    assert read(lake) == {(f"n{i}", i, None, None) for i in range(1, 6)}
    if engine == "auto":
        lake.rung = "L1"
    lake.apply(
        lake.update(called="x", key=1, age=7),
        lake.update(called=None, key=2, age=1, absent=["called", "at"]),
        lake.insert(key=9),
    )
    rows = {("x", 1, 7), ("n2", 2, 1), ("n3", 3, None), ("n4", 4, None), ("n5", 5, None), (None, 9, None)}
    assert read(lake, "called", "key", "age") == rows
    # A column of the name of one that was dropped has nothing of its values.
    alter(lake, schema_of({"id": (1, pa.int64()), "note": (6, pa.string())}))
    assert read(lake) == {(i, None) for i in (1, 2, 3, 4, 5, 9)}
    assert lake.target.audit(lake.table, None).changed_by_others == []


@pytest.mark.matrix
@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_rows_that_are_there_get_the_value_of_a_new_column(new_lake: Callable[..., Lake], engine: str) -> None:
    lake = new_lake(PEOPLE, TableOptions(deletes="soft"), engine=engine)
    lake.apply(*[lake.insert(id=i, name=f"n{i}", note="old") for i in range(4)])
    lake.apply(lake.delete(id=0))
    begin = lake.target.audit(lake.table, None).position
    alter(lake, schema_of({**ADDED, "more": (5, pa.string())}), {"age": 5, "more": None})
    assert read(lake, "id", "name", "age", "more", "_is_deleted") == {(i, f"n{i}", 5, None, i == 0) for i in range(4)}
    if engine == "auto":
        lake.rung = "L1"
    lake.apply(lake.update(id=1, name="x", age=None), lake.update(id=2, name="x", absent=["age"]))
    assert read(lake, "id", "age") == {(0, 5), (1, None), (2, 5), (3, 5)}
    found = lake.target.audit(lake.table, begin)
    assert (found.changed_by_others, found.merged.matched, found.merged.inserted) == ([], 2, 0)


def test_a_table_without_rows_is_filled_by_no_file(new_lake: Callable[..., Lake]) -> None:
    lake = new_lake(PEOPLE, engine="auto")
    alter(lake, schema_of(ADDED), {"age": 5})
    commit = max((lake.path / "_delta_log").glob("*.json")).read_text()
    assert {kind for line in commit.splitlines() for kind in json.loads(line)} == {"commitInfo", "metaData", "txn"}
    lake.apply(lake.insert(id=1))
    assert lake.rows("id", "age") == {(1, None)}


FILLS: Mapping[str, tuple[pa.DataType, Any]] = {
    "flag": (pa.bool_(), True),
    "i8": (pa.int8(), -128),
    "i64": (pa.int64(), 2**63 - 1),
    "f32": (pa.float32(), 0.5),
    "f64": (pa.float64(), -0.0),
    "d38": (pa.decimal128(38, 2), Decimal("9" * 36 + ".99")),
    "d76": (pa.decimal256(76, 38), Decimal("-1." + "0" * 37 + "1")),
    "text": (pa.string(), "a\0 ${env:HOME} \U0001f600"),
    "bytes": (pa.binary(), b"\0\xff"),
    "day": (pa.date32(), date(1, 1, 1)),
    "time": (pa.time64("us"), time(23, 59, 59, 999_999)),
    "moment": (pa.timestamp("us"), datetime.fromisoformat("0001-01-01T00:00:00.000001")),
    "instant": (pa.timestamp("us", tz="UTC"), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
    "texts": (pa.list_(pa.string()), ["", None]),
    "times": (pa.list_(pa.time64("us")), [time(1)]),
    "numbers": (pa.list_(pa.decimal128(5, 1)), [Decimal("1.5")]),
}


@pytest.mark.matrix
def test_values_of_every_type_are_filled(new_lake: Callable[..., Lake]) -> None:
    """A batch that writes the same values finds nothing to change in them."""
    lake = new_lake(PEOPLE, engine="auto")
    lake.apply(lake.insert(id=1), lake.insert(id=2))
    columns = {name: (10 + i, type_) for i, (name, (type_, _)) in enumerate(FILLS.items())}
    values = {name: value for name, (_, value) in FILLS.items()}
    alter(lake, schema_of({"id": (1, pa.int64()), **columns}), values)
    # The lane's own values are those that `test_readers` compares.
    lake.apply(lake.update(id=1, **{**values, "d76": values["d76"]}))
    by_reader = [
        read_delta(lake.path, ("id", *FILLS)).to_pylist(),
        lake.spark.read.format("delta").load(str(lake.path)).select("id", *FILLS).toArrow().to_pylist(),
    ]
    for rows in by_reader:
        one, two = ({name: repr(value) for name, value in row.items() if name != "id"} for row in rows)
        assert one == two
        assert None not in rows[0].values()


@pytest.mark.matrix
@pytest.mark.parametrize("columns", [2, 40])
def test_spark_s_own_statements_work_on_an_altered_table(new_lake: Callable[..., Lake], columns: int) -> None:
    """Of more than 32 columns few have statistics, under names that may have changed."""
    more = {f"c{i}": (10 + i, pa.string()) for i in range(columns)}
    lake = new_lake(schema_of({"id": (1, pa.int64()), **more}), engine="auto")
    lake.apply(*[lake.insert(id=i, c0="a") for i in range(20)])
    lake.apply(lake.delete(id=0))
    kept = [Column(name="c1", type=pa.string(), source_type="?", id=11)]
    more = {"c 0": (10, pa.string()), **{name: more[name] for name in list(more)[2:]}, "c1`": (90, pa.string())}
    more |= {"age": (91, pa.int32())} if columns > 2 else {}
    alter(lake, schema_of({**more, "Key, ": (1, pa.int64())}, key=["Key, "], kept=kept))
    rows: set[tuple[Any, ...]] = {(i, "a", None, None) for i in range(1, 20)}
    names = ("Key, ", "c 0", "c1", "c1`")
    lake.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    table = f"delta.`{lake.path}`"
    for statement in (
        f"UPDATE {table} SET c1 = 'kept' WHERE `Key, ` = 3",
        UpkeepKind.PURGE,
        f"OPTIMIZE {table}",
        f"REORG TABLE {table} APPLY (PURGE)",
        f"VACUUM {table} RETAIN 0 HOURS",
    ):
        if isinstance(statement, UpkeepKind):
            turns = lake.target._turns(lake.table.table)
            done = lake.maintain(turns, statement, datetime.now(UTC))
            assert done == "done"
        else:
            lake.spark.sql(statement)
        rows = rows - {(3, "a", None, None)} | {(3, "a", "kept", None)}
        lake.rung = "L1"
        row = {lake.schema.fields[name]: value for name, value in {"Key, ": 4, "c 0": "a"}.items()}
        lake.apply(lake.change("UPDATE", row=row))
        assert read(lake, *names) == rows
    logstore.LogStore(lake.spark, str(lake.path)).checkpoint()
    lake.table = lake.owned(epoch=2)
    lake.target = lake.process()
    lake.target.claim(lake.table)
    alter(lake, replace(lake.schema, kept=()), {})
    assert read(lake, "Key, ", "c 0", "c1`") == {(row[0], row[1], row[3]) for row in rows}
    detail = lake.spark.sql(f"DESCRIBE DETAIL {table}").collect()[0]
    assert [name.strip("`") for name in detail["clusteringColumns"]] == ["Key, "]
    history = lake.spark.sql(f"DESCRIBE HISTORY {table}").collect()
    assert [row["operation"] for row in history].count("REPLACE COLUMNS") == 2
    # A new incarnation begins its numbers of columns again.
    lake.schema, lake.table = schema_of({"id": (1, pa.int64())}), lake.owned(incarnation=1, epoch=2)
    lake.create()
    lake.target.publish(lake.table, lake.number())
    assert read(lake) == set()
    lake.apply(lake.insert(id=1))
    assert read(lake) == {(1,)}


def test_what_is_being_rewritten_is_given_up(new_lake: Callable[..., Lake]) -> None:
    lake = new_lake(PEOPLE, engine="auto")
    for i in range(FILES_PER_TIER):
        lake.apply(lake.insert(id=i, name="a"))
    direct = present(present(lake.target.held(lake.table)).direct)
    assert direct._rewriting is not None
    wait_until(direct._rewriting.done, "the files are rewritten")
    alter(lake, schema_of(ADDED))
    assert not is_rewriting(direct)
    lake.apply(lake.insert(id=99, name="b", age=1))
    wait_until(present(direct._rewriting).done, "they are rewritten in the new shape")
    lake.apply(lake.update(id=0, name="c", age=2))
    assert [info["operation"] for info in commits(lake)[-3:]] == ["MERGE", "OPTIMIZE", "MERGE"]
    others = {(i, "a", None) for i in range(1, FILES_PER_TIER)}
    assert lake.rows("id", "name", "age") == {(0, "c", 2), (99, "b", 1), *others}


@pytest.mark.matrix
def test_no_reader_skips_files_that_lack_a_column(new_lake: Callable[..., Lake]) -> None:
    lake = new_lake(PEOPLE, engine="auto")
    lake.apply(*[lake.insert(id=i, name=f"n{i}", note="old") for i in range(4)])
    lake.apply(lake.delete(id=0))
    alter(lake, schema_of({"id": (1, pa.int64()), "note": (2, pa.string()), "age": (4, pa.int32())}))
    lake.apply(lake.insert(id=8, note="n8", age=8), lake.insert(id=9, note="old", age=None))
    for condition, ids in (
        ("age IS NULL", {1, 2, 3, 9}),
        ("age IS NOT NULL", {8}),
        ("age > 5", {8}),
        ("coalesce(age, 0) < 5", {1, 2, 3, 9}),
        ("note = 'n2'", {2}),
        ("note = 'old'", {9}),
        ("note IS NULL", set()),
    ):
        assert (condition, read(lake, "id", where=condition)) == (condition, {(i,) for i in ids})


@pytest.mark.parametrize(
    "rung", ["L1", pytest.param("L0", marks=pytest.mark.matrix), pytest.param("L2", marks=pytest.mark.matrix)]
)
def test_appended_rows_have_nothing_in_a_column_that_is_kept(lake_by: Callable[..., Lake], rung: str) -> None:
    lake = lake_by(rung, PEOPLE)
    lake.apply(lake.insert(id=1, name="a", note="x"), is_append=True, has_absent=False)
    kept = [Column(name="note", type=pa.string(), source_type="?", id=3)]
    alter(lake, schema_of({"id": (1, pa.int64()), "name": (2, pa.string())}, kept=kept))
    lake.apply(lake.insert(id=2, name="b"), is_append=True, has_absent=False)
    lake.apply(lake.update(id=1, name="c"), lake.insert(id=3, name="d"), has_absent=False)
    assert lake.rows("id", "name", "note") == {(1, "c", "x"), (2, "b", None), (3, "d", None)}


@pytest.mark.matrix
def test_rows_without_a_key_are_compared_without_columns_that_are_kept(new_lake: Callable[..., Lake]) -> None:
    keyless = {"n": (1, pa.int64()), "note": (2, pa.string())}
    lake = new_lake(schema_of(keyless, key=[]), engine="auto")
    lake.apply(lake.insert(n=1, note="x"), lake.insert(n=1, note="y"), lake.insert(n=2, note="z"))
    kept = [Column(name="note", type=pa.string(), source_type="?", id=2)]
    alter(lake, schema_of({"n": (1, pa.int64()), "m": (3, pa.int32())}, key=[], kept=kept), {"m": 5})
    lake.apply(lake.delete(n=1, m=5), lake.insert(n=3, m=6))
    assert lake.rows("n", "m", "note") == {(1, 5, "x"), (2, 5, "z"), (3, 6, None)}


@pytest.mark.matrix
def test_a_user_s_column_and_comments_stay(new_lake: Callable[..., Lake]) -> None:
    lake = new_lake(PEOPLE, engine="auto")
    lake.apply(lake.insert(id=1, name="a"))
    lake.spark.sql(f"ALTER TABLE delta.`{lake.path}` ADD COLUMN theirs INT FIRST")
    lake.spark.sql(f"ALTER TABLE delta.`{lake.path}` ALTER COLUMN name COMMENT 'whose'")
    alter(lake, schema_of(ADDED))
    assert [*fields_of(lake)] == ["id", "name", "note", "age", "_sequence_num", "theirs"]
    assert fields_of(lake)["name"]["metadata"]["comment"] == "whose"
    lake.apply(lake.update(id=1, name="b", age=2))
    assert read(lake, "id", "name", "age", "theirs") == {(1, "b", 2, None)}


# -- who else commits ------------------------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize("fill", [{}, {"age": 5}])
def test_a_commit_in_between_is_read_before_the_table_is_altered(
    new_lake: Callable[..., Lake], at: At, fill: Mapping[str, Any]
) -> None:
    lake = new_lake(PEOPLE, engine="auto")
    lake.apply(*[lake.insert(id=i) for i in range(3)])
    at("target.before_put", lambda: lake.spark.sql(f"DELETE FROM delta.`{lake.path}` WHERE id = 1"))
    version = lake.version()
    files = set(lake.path.glob("**/*.parquet"))
    alter(lake, schema_of(ADDED), fill)
    assert lake.version() == version + 2
    assert lake.rows("id", "age") == {(i, fill.get("age")) for i in (0, 2)}
    written = {path.name for path in set(lake.path.glob("**/*.parquet")) - files if path.parent != lake.path}
    assert len(written) <= bool(fill)  # what was written behind the older version is removed


def test_a_successor_that_claims_in_between_fences(new_lake: Callable[..., Lake], at: At) -> None:
    lake = new_lake(PEOPLE, engine="auto")
    at("target.before_put", lambda: lake.process().claim(lake.owned(epoch=2)))
    with pytest.raises(FencedError):
        alter(lake, schema_of(ADDED))
    assert "age" not in fields_of(lake)
    lake.schema = PEOPLE
    successor, lake.table = lake.process(), lake.owned(epoch=2)
    lake.target = successor
    alter(lake, schema_of(ADDED))
    assert "age" in fields_of(lake)


class Killed(BaseException):
    """As `kill -9`: nothing catches it."""


def kill() -> None:
    raise Killed


@pytest.mark.parametrize(
    ("point", "fill"),
    [("target.before_put", {}), ("target.rows_filled", {"age": 5}), ("target.after_put", {})],
)
def test_a_table_is_altered_once_wherever_the_process_ends(
    new_lake: Callable[..., Lake], at: At, point: str, fill: Mapping[str, Any]
) -> None:
    lake = new_lake(PEOPLE, engine="auto")
    lake.apply(lake.insert(id=1))
    at(point, kill)
    version, number = lake.version(), lake.next
    with pytest.raises(Killed):
        alter(lake, schema_of(ADDED), fill)
    is_done = point == "target.after_put"
    assert (lake.version() - version, "age" in fields_of(lake)) == (is_done, is_done)
    lake.target, lake.next, lake.schema = lake.process(), number, PEOPLE
    assert lake.target.claim(lake.table).last_applied == (number if is_done else number - 1)
    version = lake.version()
    alter(lake, schema_of(ADDED), fill)
    assert lake.version() - version == (not is_done)
    assert lake.rows("id", "age") == {(1, fill.get("age"))}
    lake.apply(lake.update(id=1, age=6))
    assert lake.rows("id", "age") == {(1, 6)}


# -- what is refused -------------------------------------------------------------------------------------------------


def refused(lake: Lake, match: str, wanted: TableSchema, fill: Mapping[str, Any] | None = None) -> None:
    """It changes nothing, and says what helps."""
    version, shape = lake.version(), lake.schema
    with pytest.raises(SchemaConflictError, match=match) as caught:
        alter(lake, wanted, fill)
    assert "--recreate" in present(caught.value.action) or "Rename" in present(caught.value.action)
    assert (lake.version(), lake.schema) == (version, shape)


@pytest.mark.matrix
def test_a_table_that_is_not_known_is_not_altered(new_lake: Callable[..., Lake]) -> None:
    lake = new_lake(PEOPLE, engine="auto")
    lake.apply(lake.insert(id=1))
    table = f"delta.`{lake.path}`"
    refused(lake, "the columns of the key", schema_of({"id": (1, pa.int64()), "name": (2, pa.string())}, key=["name"]))
    refused(lake, "differ only in case", schema_of({**ADDED, "NAME": (5, pa.string())}))
    refused(lake, "the type of name", schema_of({**ADDED, "name": (2, pa.int64())}))
    lake.spark.sql(f"ALTER TABLE {table} ADD COLUMN Theirs INT")
    refused(lake, "theirs", schema_of({**ADDED, "theirs": (5, pa.string())}))
    lake.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES (delta.enableChangeDataFeed = 'true')")
    refused(lake, "changeDataFeed", schema_of(ADDED), {"age": 1})
    alter(lake, schema_of(ADDED))
    assert read(lake, "id", "age", "Theirs") == {(1, None, None)}
    lake.spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT old CHECK (age IS NULL OR age > 0)")
    refused(lake, "constraint old", PEOPLE)
    lake.spark.sql(f"ALTER TABLE {table} DROP CONSTRAINT old")
    lake.spark.sql(f"ALTER TABLE {table} RENAME COLUMN age TO years")
    refused(lake, "Column age was renamed to years", PEOPLE)


@pytest.mark.matrix
def test_a_column_that_a_user_clusters_by_goes(new_lake: Callable[..., Lake]) -> None:
    lake = new_lake(PEOPLE, engine="auto")
    lake.apply(lake.insert(id=1, note="x"))
    lake.spark.sql(f"ALTER TABLE delta.`{lake.path}` CLUSTER BY (note, id)")
    alter(lake, schema_of({"id": (1, pa.int64()), "name": (2, pa.string())}))
    detail = lake.spark.sql(f"DESCRIBE DETAIL delta.`{lake.path}`").collect()[0]
    assert detail["clusteringColumns"] == ["id"]
    lake.apply(lake.insert(id=2, name="b"))
    lake.spark.sql(f"OPTIMIZE delta.`{lake.path}` FULL")
    assert read(lake) == {(1, None), (2, "b")}

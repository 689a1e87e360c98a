"""Columns that get a wider type: data files of both types, read by every rung and by Spark and DuckDB; or all files in the new one."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from replicator.model import alteration
from replicator.model.errors import SchemaConflictError
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.kit.lake.joining import FILES_PER_TIER
from replicator.plugins.target import TableOptions
from replicator_target_delta.definition import altering
from replicator_target_delta.log import store as logstore
from replicator_target_delta.log.table import TableLog, read_log
from replicator_target_delta.shape import tables as ddl
from replicator_target_delta.shape import types
from replicator_testbed.delta import rows_of
from replicator_testbed.present import present
from replicator_testing.waiting import wait_until

if TYPE_CHECKING:
    from plugins.targets.delta.tests.conftest import Lake

PAIRS: Mapping[str, tuple[pa.DataType, pa.DataType, Any, Any]] = {
    "i8_i16": (pa.int8(), pa.int16(), -128, -(2**15)),
    "i8_i32": (pa.int8(), pa.int32(), 127, 2**31 - 1),
    "i8_i64": (pa.int8(), pa.int64(), -128, 2**63 - 1),
    "i8_f64": (pa.int8(), pa.float64(), -128, 0.5),
    "i8_d10": (pa.int8(), pa.decimal128(10, 0), -128, Decimal(9_999_999_999)),
    "i8_d12": (pa.int8(), pa.decimal128(12, 2), 127, Decimal("-9999999999.99")),
    "i16_i32": (pa.int16(), pa.int32(), -(2**15), -(2**31)),
    "i16_i64": (pa.int16(), pa.int64(), 2**15 - 1, -(2**63)),
    "i16_f64": (pa.int16(), pa.float64(), -(2**15), 1e300),
    "i16_d10": (pa.int16(), pa.decimal128(10, 0), 2**15 - 1, Decimal(-9_999_999_999)),
    "i32_i64": (pa.int32(), pa.int64(), -(2**31), 2**63 - 1),
    "i32_f64": (pa.int32(), pa.float64(), 2**31 - 1, -0.25),
    "i32_d12": (pa.int32(), pa.decimal128(12, 2), -(2**31), Decimal("9999999999.99")),
    "i64_d20": (pa.int64(), pa.decimal128(20, 0), -(2**63), Decimal("9" * 20)),
    "i64_d38": (pa.int64(), pa.decimal128(38, 18), 2**63 - 1, Decimal("9" * 20 + "." + "9" * 18)),
    "f32_f64": (pa.float32(), pa.float64(), 0.5, 1e300),
    "d5_d7": (pa.decimal128(5, 2), pa.decimal128(7, 2), Decimal("-999.99"), Decimal("99999.99")),
    "d5_d8": (pa.decimal128(5, 2), pa.decimal128(8, 4), Decimal("999.99"), Decimal("-9999.9999")),
    "d9_d38": (pa.decimal128(9, 4), pa.decimal128(38, 6), Decimal("-99999.9999"), Decimal("9" * 32 + ".999999")),
    "d18_d19": (pa.decimal128(18, 0), pa.decimal128(19, 0), Decimal("9" * 18), Decimal("-" + "9" * 19)),
    "day_ntz": (
        pa.date32(),
        pa.timestamp("us"),
        date(2024, 2, 29),
        datetime.fromisoformat("1969-12-31T23:59:59.999999"),
    ),
}
"""By column: its type and the wider one, a value of each."""
SPARK_TYPES: Mapping[str, str] = {"byte": "TINYINT", "short": "SMALLINT", "integer": "INT", "long": "BIGINT"}


def table_of(columns: Mapping[str, pa.DataType], key: Sequence[str] = ("id",)) -> TableSchema:
    """A version of the table; a column's number is its position."""
    return TableSchema(
        table=TableId("public", "wide"),
        columns=tuple(
            Column(name=name, type=type_, source_type="?", nullable=name not in key, id=number)
            for number, (name, type_) in enumerate(columns.items(), 1)
        ),
        key=tuple(key),
    )


NARROW = table_of({"id": pa.int64(), **{name: pair[0] for name, pair in PAIRS.items()}})
WIDE = table_of({"id": pa.int64(), **{name: pair[1] for name, pair in PAIRS.items()}})


def small(id_: int) -> dict[str, Any]:
    """A row of the narrow types."""
    return {"id": id_, **{name: pair[2] for name, pair in PAIRS.items()}}


def large(id_: int) -> dict[str, Any]:
    """A row of the wide types."""
    return {"id": id_, **{name: pair[3] for name, pair in PAIRS.items()}}


def cast(row: Mapping[str, Any], schema: TableSchema) -> tuple[Any, ...]:
    """A row as the types of a schema have it."""
    values = []
    for column in schema.columns:
        value = row[column.name]
        if pa.types.is_decimal(column.type):
            value = Decimal(value)
        elif pa.types.is_timestamp(column.type) and not isinstance(value, datetime):
            value = datetime.fromisoformat(value.isoformat())
        values.append(value)
    return tuple(values)


def by_spark(lake: Lake, names: Sequence[str], where: str = "true") -> list[tuple[Any, ...]]:
    frame = lake.spark.read.format("delta").load(str(lake.path)).where(where).select(*map(ddl.quoted, names))
    return [tuple(row) for row in frame.collect()]


def by_duckdb(lake: Lake, names: Sequence[str], where: str = "true") -> list[tuple[Any, ...]]:
    import duckdb
    from duckdb_extensions import import_extension

    listed = ", ".join(f'"{name}"' for name in names)
    with duckdb.connect() as connection:
        import_extension("delta", con=connection)
        connection.execute("LOAD delta")
        return connection.execute(f"SELECT {listed} FROM delta_scan('{lake.path}') WHERE {where}").fetchall()


def by_delta_rs(lake: Lake, names: Sequence[str], where: str = "true") -> list[tuple[Any, ...]]:
    listed = ", ".join(f'"{name}"' for name in names)
    query = QueryBuilder().register("copy", DeltaTable(lake.path)).execute(f"SELECT {listed} FROM copy WHERE {where}")
    return list(rows_of(pa.table(query.read_all())))


def read(lake: Lake, names: Sequence[str] | None = None, where: str = "true") -> set[tuple[Any, ...]]:
    """The table, as Spark and DuckDB read it alike."""
    names = names or [column.name for column in lake.schema.columns]
    rows = by_spark(lake, names, where)
    if importlib.util.find_spec("duckdb_extension_delta") is not None:
        found = by_duckdb(lake, names, where)
        assert (len(found), set(found) ^ set(rows)) == (len(rows), set())
    assert len(set(rows)) == len(rows)
    return set(rows)


def log_of(lake: Lake) -> TableLog:
    return present(read_log(lake.target._storage, str(lake.path)))


def fields_in(log: TableLog) -> dict[str, dict[str, Any]]:
    return {field["name"]: field for field in json.loads(log.metadata["schemaString"])["fields"]}


def features_in(log: TableLog) -> tuple[set[str], set[str]]:
    return set(log.protocol["readerFeatures"]), set(log.protocol["writerFeatures"])


# -- what is a wider type --------------------------------------------------------------------------------------------


def test_what_delta_widens_keeps_every_value() -> None:
    for before, after, _, _ in PAIRS.values():
        assert types.widens(before, after)
        assert alteration.widens(before, after)
        assert not types.widens(after, before)
        assert not types.widens(before, before)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (pa.int8(), pa.decimal128(3, 0)),
        (pa.int32(), pa.decimal128(11, 2)),
        (pa.int64(), pa.decimal128(19, 0)),
        (pa.int64(), pa.float64()),
        (pa.int32(), pa.float32()),
        (pa.decimal128(5, 2), pa.decimal128(6, 4)),
        (pa.decimal128(38, 2), pa.decimal256(39, 2)),  # text from here on
        (pa.int64(), pa.decimal256(50, 0)),
        (pa.decimal256(40, 2), pa.decimal256(42, 4)),  # another text
        (pa.date32(), pa.timestamp("us", tz="UTC")),
        (pa.time64("us"), pa.string()),
        (pa.list_(pa.int32()), pa.list_(pa.int64())),
    ],
)
def test_what_delta_does_not_widen(before: pa.DataType, after: pa.DataType) -> None:
    assert not types.widens(before, after)


def test_a_decimal_that_is_text_stays_the_same_text() -> None:
    assert types.widens(pa.decimal256(40, 2), pa.decimal256(42, 2))


# -- what becomes of a table -----------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_the_log_says_what_spark_s_own_statement_says(new_lake: Callable[..., Lake], tmp_path: Path) -> None:
    lake = new_lake(NARROW, engine="auto")
    lake.alter(WIDE)
    theirs = str(tmp_path / f"spark-{uuid4().hex}")
    ddl.new_table(lake.table, NARROW, clustering=True).create(lake.spark, theirs)
    features = {"delta.enableTypeWidening": "true", "delta.feature.timestampNtz": "supported"}
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in features.items())
    lake.spark.sql(f"ALTER TABLE delta.`{theirs}` SET TBLPROPERTIES ({listed})")
    wide = {field["name"]: field["type"] for field in ddl.new_table(lake.table, WIDE, clustering=True).fields}
    for name in PAIRS:
        spelled = SPARK_TYPES.get(wide[name], wide[name])
        lake.spark.sql(f"ALTER TABLE delta.`{theirs}` ALTER COLUMN {name} TYPE {spelled}")
    spark_s = present(read_log(lake.target._storage.__class__(str(tmp_path)), theirs))
    ours, own = log_of(lake), {"delta.columnMapping.physicalName"}
    for name, field in fields_in(spark_s).items():
        found = fields_in(ours)[name]
        assert found["type"] == field["type"]
        assert {n: v for n, v in found["metadata"].items() if n not in own} == {
            n: v for n, v in field["metadata"].items() if n not in own
        }
    assert features_in(ours) == features_in(spark_s)
    assert ours.properties["delta.enableTypeWidening"] == spark_s.properties["delta.enableTypeWidening"]


@pytest.mark.matrix
@pytest.mark.parametrize("engine", ["auto", pytest.param("spark", marks=pytest.mark.matrix)])
def test_rows_of_before_and_behind_are_read_in_the_wider_type(new_lake: Callable[..., Lake], engine: str) -> None:
    lake = new_lake(NARROW, engine=engine)
    lake.apply(*[lake.insert(**small(i)) for i in range(4)], lake.insert(id=9))
    lake.apply(lake.delete(id=0))
    files = set(lake.path.glob("*.parquet"))
    lake.alter(WIDE)
    assert set(lake.path.glob("*.parquet")) == files
    if engine == "auto":
        lake.rung = "L1"
    absent = ["i8_i16", "i32_d12", "day_ntz", "d5_d8", "f32_f64", "i64_d38"]
    lake.apply(
        lake.update(id=1, **{n: v for n, v in large(1).items() if n != "id"}),
        lake.update(id=2, **{n: v for n, v in large(2).items() if n not in {"id", *absent}}, absent=absent),
        lake.insert(**large(5)),
    )
    mixed = {**large(2), **{name: small(2)[name] for name in absent}}
    rows = {cast(row, WIDE) for row in (large(1), mixed, small(3), large(5))} | {(9, *[None] * len(PAIRS))}
    assert read(lake) == rows
    # Bounds of older files are those of the narrow type.
    for condition, ids in (
        ("i32_i64 = -2147483648", {3}),
        ("i32_i64 > 2147483647", {1, 2, 5}),
        ("i64_d20 < 0", {3}),
        ("d5_d7 > 1000", {1, 2, 5}),
        ("day_ntz >= timestamp '2024-02-29 00:00:00' AND day_ntz < timestamp '2024-03-01 00:00:00'", {2, 3}),
        ("day_ntz < timestamp '1970-01-01 00:00:00'", {1, 5}),
    ):
        found = {row[0] for row in by_spark(lake, ["id"], condition)}
        assert (condition, found) == (condition, ids)
    # What the page says of readers.
    with pytest.raises(Exception, match=r"(?i)typewidening"):
        by_delta_rs(lake, ["id"])
    assert lake.target.audit(lake.table, None).changed_by_others == []


@pytest.mark.matrix
@pytest.mark.parametrize("engine", ["auto", pytest.param("spark", marks=pytest.mark.matrix)])
def test_with_rewrite_every_reader_continues(new_lake: Callable[..., Lake], engine: str) -> None:
    lake = new_lake(NARROW, TableOptions(deletes="soft"), engine=engine, type_widening="rewrite")
    lake.apply(*[lake.insert(**small(i)) for i in range(3)])
    lake.apply(lake.delete(id=0))
    lake.alter(WIDE)
    assert "delta.enableTypeWidening" not in log_of(lake).properties
    assert "typeWidening" not in features_in(log_of(lake))[0]
    lake.apply(lake.update(id=1, **{n: v for n, v in large(1).items() if n != "id"}))
    names = [column.name for column in WIDE.columns]
    assert read(lake, names, "NOT _is_deleted") == {cast(large(1), WIDE), cast(small(2), WIDE)}
    assert {row[0] for row in by_delta_rs(lake, names)} == {0, 1, 2}
    version = lake.version()
    lake.alter(table_of({**{c.name: c.type for c in WIDE.columns}, "new": pa.int32()}))
    assert lake.version() == version + 1


@pytest.mark.matrix
def test_values_in_a_new_column_write_all_rows_in_the_wider_type(new_lake: Callable[..., Lake]) -> None:
    lake = new_lake(table_of({"id": pa.int64(), "v": pa.int32()}), engine="auto")
    lake.apply(lake.insert(id=1, v=1))
    lake.alter(table_of({"id": pa.int64(), "v": pa.int64(), "w": pa.int32()}), {"w": 5})
    assert "typeWidening" not in features_in(log_of(lake))[0]
    assert read(lake) == {(1, 1, 5)}


@pytest.mark.matrix
def test_a_column_may_be_widened_again_and_again(new_lake: Callable[..., Lake]) -> None:
    chain = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.decimal128(20, 0), pa.decimal128(24, 3)]
    lake = new_lake(table_of({"id": pa.int64(), "v": chain[0]}), engine="auto")
    for number, type_ in enumerate(chain):
        if number:
            lake.alter(table_of({"id": pa.int64(), "v": type_}))
        lake.apply(lake.insert(id=number, v=number))
    changes = fields_in(log_of(lake))["v"]["metadata"]["delta.typeChanges"]
    assert [change["toType"] for change in changes] == [types.json_type(type_) for type_ in chain[1:]]
    lake.apply(lake.update(id=0, absent=["v"]), lake.delete(id=1))
    assert read(lake) == {(n, Decimal(n)) for n in range(len(chain)) if n != 1}


KEYS: Sequence[tuple[pa.DataType, pa.DataType, Callable[[int], Any]]] = (
    (pa.int32(), pa.int64(), lambda n: n - 2),
    (pa.int32(), pa.decimal128(12, 2), lambda n: n - 2),
    (pa.date32(), pa.timestamp("us"), lambda n: date(2024, 1, 1 + n)),
    (pa.decimal128(5, 1), pa.decimal128(20, 3), lambda n: Decimal(n - 2) / 2),
)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "rung", ["L1", pytest.param("L0", marks=pytest.mark.matrix), pytest.param("L2", marks=pytest.mark.matrix)]
)
@pytest.mark.parametrize("composite", [False, True])
@pytest.mark.parametrize("number", range(len(KEYS)))
def test_rows_are_found_by_a_key_that_was_widened(
    lake_by: Callable[..., Lake], rung: str, number: int, composite: bool
) -> None:
    before, after, make = KEYS[number]
    more = {"part": pa.string()} if composite else {}
    key = ["k", *more]

    def schema(type_: pa.DataType) -> TableSchema:
        return table_of({"k": type_, **more, "v": pa.string(), "w": pa.int16()}, key=key)

    def named(n: int, **row: Any) -> dict[str, Any]:
        return {"k": make(n), **({"part": "p"} if composite else {}), **row}

    def behind(n: int) -> Any:
        value = make(n)
        if pa.types.is_decimal(after):
            return Decimal(value)
        return datetime.fromisoformat(value.isoformat()) if isinstance(value, date) else value

    lake = lake_by(rung, schema(before))
    lake.apply(*[lake.insert(**named(n, v="a", w=n)) for n in range(6)])
    lake.apply(lake.update(**named(1, v="b", w=1)), lake.delete(**named(0)))  # the index of the first file is there
    lake.alter(schema(after))
    rest: dict[str, Any] = {"part": "p"} if composite else {}
    first = behind(2)
    lake.apply(
        lake.update(k=first, **rest, v="c", absent=["w"]),
        lake.delete(k=behind(3), **rest),
        lake.update(before={"k": behind(4), **rest}, k=behind(9), **rest, v="moved", absent=["w"]),
        lake.insert(k=behind(10), **rest, v="new", w=10),
        expects_rows=True,
    )
    lake.apply(lake.update(k=behind(10), **rest, v="newer", absent=["w"]), expects_rows=True)
    wanted = {(1, "b", 1), (2, "c", 2), (9, "moved", 4), (5, "a", 5), (10, "newer", 10)}
    assert read(lake, ["k", "v", "w"]) == {(behind(n), v, w) for n, v, w in wanted}
    assert lake.target.audit(lake.table, None).merged.not_found == 0


def test_a_key_does_not_become_a_float(new_lake: Callable[..., Lake]) -> None:
    lake = new_lake(table_of({"id": pa.int32()}), engine="auto")
    with pytest.raises(SchemaConflictError, match="float"):
        lake.alter(table_of({"id": pa.float64()}))


@pytest.mark.matrix
def test_small_files_of_both_types_are_joined(new_lake: Callable[..., Lake]) -> None:
    lake = new_lake(table_of({"id": pa.int32(), "v": pa.date32()}), engine="auto")
    lake.rung = "L1"
    for i in range(FILES_PER_TIER - 1):
        lake.apply(lake.insert(id=i, v=date(2024, 1, 1)))
    lake.alter(table_of({"id": pa.int64(), "v": pa.timestamp("us")}))
    lake.apply(lake.insert(id=2**40, v=datetime(2024, 1, 1, 12)))  # noqa: DTZ001
    direct = present(present(lake.target.held(lake.table)).direct)
    wait_until(present(direct._rewriting).done, "the files are rewritten")
    lake.apply(lake.delete(id=0))
    operations = lake.spark.sql(f"DESCRIBE HISTORY delta.`{lake.path}`").select("operation").limit(2).collect()
    assert {row[0] for row in operations} == {"OPTIMIZE", "MERGE"}
    midnight, noon = map(datetime.fromisoformat, ("2024-01-01", "2024-01-01T12:00:00"))
    rows = {(i, midnight) for i in range(1, FILES_PER_TIER - 1)} | {(2**40, noon)}
    assert read(lake) == rows


@pytest.mark.matrix
@pytest.mark.parametrize("mode", ["enable", "rewrite"])
def test_spark_s_own_statements_work_on_a_widened_table(new_lake: Callable[..., Lake], mode: str) -> None:
    lake = new_lake(NARROW, engine="auto", type_widening=mode)
    lake.apply(*[lake.insert(**small(i)) for i in range(4)])
    lake.apply(lake.delete(id=0))
    logstore.LogStore(lake.spark, str(lake.path)).checkpoint()
    lake.alter(WIDE)
    lake.rung = "L1"
    lake.apply(lake.insert(**large(8)))
    rows = {cast(row, WIDE) for row in (*map(small, range(1, 4)), large(8))}
    lake.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    table = f"delta.`{lake.path}`"
    for statement in (
        f"DELETE FROM {table} WHERE i32_i64 = 5",
        f"REORG TABLE {table} APPLY (PURGE)",
        f"OPTIMIZE {table} FULL",
        f"VACUUM {table} RETAIN 0 HOURS",
    ):
        lake.spark.sql(statement)
        logstore.LogStore(lake.spark, str(lake.path)).checkpoint()
        assert read(lake) == rows
        lake.target = lake.process()
        lake.target.claim(lake.table)
        lake.apply(lake.update(id=1, absent=list(PAIRS)), expects_rows=True)
        assert read(lake) == rows


class Killed(BaseException):
    """As `kill -9`: nothing catches it."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", ["enable", "rewrite"])
@pytest.mark.parametrize("point", ["target.rows_filled", "target.before_put", "target.after_put"])
def test_a_table_is_widened_once_wherever_the_process_ends(
    new_lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch, mode: str, point: str
) -> None:
    narrow, wide = (table_of({"id": type_, "v": type_}) for type_ in (pa.int32(), pa.int64()))
    lake = new_lake(narrow, engine="auto", type_widening=mode)
    lake.apply(lake.insert(id=1, v=1))
    waiting = {point}

    def crash_point(name: str) -> None:
        if name in waiting:
            waiting.discard(name)
            raise Killed

    number = lake.next
    with monkeypatch.context() as patch:
        for module in (logstore, altering):
            patch.setattr(module, "crash_point", crash_point)
        if point == "target.rows_filled" and mode == "enable":
            lake.alter(wide)
            assert waiting
        else:
            with pytest.raises(Killed):
                lake.alter(wide)
    lake.target, lake.next, lake.schema = lake.process(), number, narrow
    lake.target.claim(lake.table)
    lake.alter(wide)
    lake.apply(lake.update(id=1, v=2**40))
    assert read(lake) == {(1, 2**40)}
    assert len(fields_in(log_of(lake))["v"]["metadata"].get("delta.typeChanges", ())) == (mode == "enable")

"""Spark, delta-rs and DuckDB find tables of every name, and read values at the ends of their types as every rung wrote them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from plugins.targets.delta.tests.test_readers_of_the_log import ODD, PATHS, copied_as, rows_by_others
from replicator.model.events import change_schema
from replicator.model.schema import Column, TableId, TableSchema
from replicator_testbed import hostile
from replicator_testbed.delta import read_by_duckdb, read_delta

if TYPE_CHECKING:
    from pathlib import Path

    from plugins.targets.delta.tests.conftest import Lake

LAST = "\U0010ffff"
DAYS = [0, -1, -719_162, -719_163, -719_529, 2_932_896, 2_932_897, -141_428, 2**31 - 1, -(2**31)]
MOMENTS = [
    *(0, -1, 1, -999, 999),
    *(-62_135_596_800_000_001, 253_402_300_800_000_000, -12_219_292_800_000_000, -210_866_803_200_000_000),
]
FLOATS = [0.0, -0.0, math.inf, -math.inf, math.nan]
DAY_US = 86_400_000_000

# By column: its type, and values, as whole numbers where the type counts days or microseconds.
VALUES: Mapping[str, tuple[pa.DataType, Sequence[Any]]] = {
    "flag": (pa.bool_(), [True, False]),
    "i8": (pa.int8(), [-128, 127]),
    "i16": (pa.int16(), [-(2**15), 2**15 - 1]),
    "i32": (pa.int32(), [-(2**31), 2**31 - 1]),
    "i64": (pa.int64(), [-(2**63), 2**63 - 1, 2**53 + 1]),
    "f32": (pa.float32(), [*FLOATS, 1e-45, 3.4028234663852886e38]),
    "f64": (pa.float64(), [*FLOATS, 5e-324, 1.7976931348623157e308]),
    "d38": (pa.decimal128(38, 0), ["9" * 38, "-" + "9" * 38]),
    "d18": (pa.decimal128(18, 18), ["0." + "9" * 18, "-0." + "0" * 17 + "1"]),
    "d76": (pa.decimal256(76, 38), ["0." + "0" * 37 + "1", "-1" + "0" * 37 + "." + "0" * 38]),
    "text": (pa.string(), ["", " ", "a ", "\0", "a\0b", "x" * 33, "x" * 32 + "\U0001f600", LAST * 33, "e\u0301", "\ud7ff"]),
    "bytes": (pa.binary(), [b"", b"\0", b"\xff" * 40]),
    "day": (pa.date32(), DAYS),
    "time": (pa.time64("us"), [0, DAY_US - 1, DAY_US]),
    "moment": (pa.timestamp("us"), MOMENTS),
    "instant": (pa.timestamp("us", tz="UTC"), MOMENTS),
    "texts": (pa.list_(pa.string()), [[], [None], ["", None, "x"]]),
    "times": (pa.list_(pa.time64("us")), [[], [DAY_US, None]]),
    "instants": (pa.list_(pa.timestamp("us", tz="UTC")), [[-62_135_596_800_000_001, None]]),
    "floats": (pa.list_(pa.float64()), [[math.nan, -0.0, None]]),
}  # fmt: skip
ROWS = 1 + max(len(values) for _, values in VALUES.values())  # the last row has nulls
NAMES = ("id", *VALUES)
SCHEMA = TableSchema(
    table=TableId("public", "ends"),
    columns=(
        Column(name="id", type=pa.int64(), source_type="bigint", nullable=False),
        *(Column(name=name, type=type_, source_type="any") for name, (type_, _) in VALUES.items()),
    ),
    key=("id",),
)
WAYS = ["appended", "merged", "completed", "moved"]


def array_of(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    if pa.types.is_list(type_):
        ends = [0]
        for value in values:
            ends.append(ends[-1] + len(value or ()))
        inner = array_of([one for value in values for one in value or ()], type_.value_type)
        mask = pa.array([value is None for value in values])
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), inner, mask=mask)
    if pa.types.is_date(type_):
        return pa.array(values, pa.int32()).cast(type_)
    if pa.types.is_temporal(type_):
        return pa.array(values, pa.int64()).cast(type_)
    return pa.array(values, pa.string()).cast(type_) if pa.types.is_decimal(type_) else pa.array(values, type_)


def given() -> list[pa.Array]:
    columns = [(type_, [*values, *[None] * (ROWS - len(values))]) for type_, values in VALUES.values()]
    return [pa.array(range(ROWS), pa.int64()), *(array_of(values, type_) for type_, values in columns)]


def changes(lake: Lake, operation: str, columns: Sequence[pa.Array], **more: pa.Array) -> pa.Table:
    """Changes in the journal's layout, one for each row of the columns."""
    shape, count = change_schema(SCHEMA), len(columns[0])
    parts = {
        "_sequence_num": pa.array([lake.number() for _ in range(count)], pa.int64()),
        "_operation": pa.array([operation] * count).cast(shape.field("_operation").type),
        "_is_snapshot": pa.array([False] * count),
        "row": pa.StructArray.from_arrays(columns, fields=list(shape.field("row").type)),
        **more,
    }
    return pa.table([parts.get(field.name, pa.nulls(count, field.type)) for field in shape], schema=shape)


def write(lake: Lake, way: str) -> int:
    """Write the rows; what was added to their keys."""
    columns, shape = given(), change_schema(SCHEMA)
    rows = changes(lake, "INSERT", columns)
    lake.apply_batch(lake.batch_of(rows, is_append=way == "appended", has_absent=False))
    if way in ("appended", "merged"):
        return 0
    moved = 100 if way == "moved" else 0
    lacking = [SCHEMA.fields[name] for name in VALUES if name != "flag"]
    partial = [pc.add(columns[0], moved), columns[1], *(pa.nulls(ROWS, column.type) for column in columns[2:])]
    before = shape.field("before").type
    old = pa.StructArray.from_arrays(
        [columns[0], *(pa.nulls(ROWS, field.type) for field in list(before)[1:])], fields=list(before)
    )
    more = {"_absent": pa.array([lacking] * ROWS, shape.field("_absent").type), **({"before": old} if moved else {})}
    batch = lake.batch_of(changes(lake, "UPDATE", partial, **more), has_absent=True, has_key_changes=bool(moved))
    lake.apply_batch(batch)
    return moved


def plain(array: pa.Array) -> list[Any]:
    """Values that can be compared: no Python dates, every NaN the same, zeros told apart."""
    if pa.types.is_list(array.type):
        inner, ends = plain(array.values), array.offsets.to_pylist()
        spans = zip(array.is_valid().to_pylist(), ends[:-1], ends[1:], strict=True)
        return [inner[begin:end] if is_valid else None for is_valid, begin, end in spans]
    if pa.types.is_time(array.type):
        return [None if one is None else f"{one}.{us:06}" for one, us in _clock(array)]
    if pa.types.is_temporal(array.type):
        array = array if pa.types.is_date(array.type) else array.cast(pa.timestamp("us", tz=array.type.tz))
        return list(array.cast(pa.int32() if pa.types.is_date(array.type) else pa.int64()).to_pylist())
    if pa.types.is_decimal256(array.type):
        return [None if value is None else format(value, "f") for value in array.to_pylist()]
    return [repr(value) if isinstance(value, float) else value for value in array.to_pylist()]


def _clock(array: pa.Array) -> list[tuple[str | None, int]]:
    found: list[tuple[str | None, int]] = []
    for number in array.cast(pa.int64()).to_pylist():
        seconds, us = divmod((number or 0) % DAY_US, 1_000_000)
        text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        found.append((None if number is None else text, us))
    return found


def table_of(read: pa.Table) -> dict[str, list[Any]]:
    """What a reader found, by column, in the order of the key."""
    columns = {name: without_views(read.column(name)) for name in NAMES}
    order = pc.sort_indices(columns["id"])
    return {name: plain(column.take(order)) for name, column in columns.items()}


def without_views(column: pa.ChunkedArray) -> pa.Array:
    """The column in types that all of Arrow's functions take."""
    type_ = _plain_type(column.type)
    return pa.concat_arrays([chunk.cast(type_) for chunk in column.chunks])


def _plain_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return pa.list_(_plain_type(type_.value_type))
    return {
        pa.string_view(): pa.string(),
        pa.binary_view(): pa.binary(),
        pa.large_string(): pa.string(),
        pa.large_binary(): pa.binary(),
    }.get(type_, type_)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "rung", ["L1", pytest.param("L0", marks=pytest.mark.matrix), pytest.param("L2", marks=pytest.mark.matrix)]
)
def test_every_reader_finds_what_every_rung_wrote(lake_by: Callable[..., Lake], rung: str, way: str) -> None:
    lake = lake_by(rung, SCHEMA)
    moved = write(lake, way)
    expected = {name: plain(column) for name, column in zip(NAMES, given(), strict=True)}
    expected["id"] = [number + moved for number in expected["id"]]
    by_spark = lake.spark.read.format("delta").load(str(lake.path)).select(*NAMES).toArrow()
    readers = {"Spark": by_spark, "delta-rs": read_delta(lake.path, NAMES), "DuckDB": read_by_duckdb(lake.path, NAMES)}
    for reader, rows in readers.items():
        found = table_of(rows)
        assert {(reader, name): found[name] for name in NAMES if found[name] != expected[name]} == {}


@pytest.fixture
def odd_lake(lake_by: Callable[..., Lake]) -> Lake:
    """A lake with a table of an odd name that has a row, and one that was deleted."""
    columns = (Column(name="id", type=pa.int64(), source_type="bigint", nullable=False),)
    lake = lake_by("L1", TableSchema(table=ODD, columns=columns, key=("id",)))
    lake.apply(lake.insert(id=1), lake.insert(id=2), is_append=True)
    lake.apply(lake.delete(id=1))
    return lake


@pytest.mark.matrix
def test_every_reader_finds_tables_of_every_hostile_name(odd_lake: Lake) -> None:
    def rows(path: Path) -> list[list[tuple[Any, ...]]]:
        by_spark = odd_lake.spark.read.format("delta").load(str(path)).select("id").collect()
        return [[*map(tuple, by_spark)], *rows_by_others(path, ["id"])]

    assert rows(odd_lake.path) == [[(2,)]] * 3
    names = [*PATHS, *(set(hostile.names(bytes_max=120)) - set(PATHS))]
    found = {name: rows(copied_as(odd_lake.path, odd_lake.folder / "lake", name)) for name in names}
    assert {name: each for name, each in found.items() if each != [[(2,)]] * 3} == {}

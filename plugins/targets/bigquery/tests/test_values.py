"""Types and values: what a load takes, what is rewritten, and what is refused; without and with the emulator."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from replicator.model.errors import UnsupportedTypeError
from replicator.model.events import BEFORE, ROW, change_schema
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.target import TableOptions, TargetTable
from replicator_target_bigquery import pruning, rewrite, statements
from replicator_target_bigquery.config import BigQueryConfig
from replicator_target_bigquery.names import Names
from replicator_target_bigquery.shape import shape_of
from replicator_target_bigquery.types import exact_text, is_json, staged_type, target_type
from replicator_testing.batches import delete, insert, record_batch, update
from replicator_testing.target_harness import UUID, Copy, as_tuples

if TYPE_CHECKING:
    from plugins.targets.bigquery.tests.conftest import Warehouse

UTC_US = pa.timestamp("us", tz="UTC")


def column(name: str, type_: pa.DataType, source_type: str = "x") -> Column:
    return Column(name=name, type=type_, source_type=source_type, nullable=name != "id")


def schema_of(*columns: Column, key: tuple[str, ...] = ("id",)) -> TableSchema:
    return TableSchema(table=TableId("shop", "values"), columns=(column("id", pa.int64(), "bigint"), *columns), key=key)


@pytest.mark.parametrize(
    ("type_", "staged", "target"),
    [
        (pa.bool_(), "BOOL", "BOOL"),
        (pa.int8(), "INT64", "INT64"),
        (pa.int64(), "INT64", "INT64"),
        (pa.float32(), "FLOAT64", "FLOAT64"),
        (pa.string(), "STRING", "STRING"),
        (pa.binary(), "BYTES", "BYTES"),
        (pa.date32(), "DATE", "DATE"),
        (pa.time64("us"), "TIME", "TIME"),
        (pa.timestamp("us"), "DATETIME", "DATETIME"),
        (UTC_US, "TIMESTAMP", "TIMESTAMP"),
        (pa.list_(pa.int32()), "STRING", "STRING"),
        (pa.decimal128(38, 9), "NUMERIC", "NUMERIC"),
        (pa.decimal128(20, 0), "NUMERIC", "NUMERIC"),
        (pa.decimal128(30, 0), "BIGNUMERIC", "BIGNUMERIC"),
        (pa.decimal128(12, 10), "BIGNUMERIC", "BIGNUMERIC"),
        (pa.decimal256(76, 38), "STRING", "BIGNUMERIC"),
        (pa.decimal256(65, 10), "STRING", "STRING"),
        (pa.decimal256(76, 39), "STRING", "STRING"),
    ],
    ids=str,
)
def test_every_canonical_type_has_one_in_staging_and_one_in_the_target(
    type_: pa.DataType, staged: str, target: str
) -> None:
    assert (staged_type(type_), target_type(column("c", type_), "string")) == (staged, target)


def test_types_outside_of_the_canonical_set_are_refused() -> None:
    for type_ in (pa.duration("s"), pa.list_(pa.duration("s"))):
        with pytest.raises(UnsupportedTypeError):
            staged_type(type_)


def test_json_is_json_by_setting_only_and_never_in_a_key() -> None:
    found = column("c", pa.string(), "jsonb")
    assert is_json(found)
    assert not is_json(column("c", pa.string(), "text"))
    assert target_type(found, "string") == "STRING"
    assert target_type(found, "json") == "JSON"
    assert target_type(found, "json", is_key=True) == "STRING"


def test_lists_become_json_text() -> None:
    odd = 'quote " back \\ line\n tab\t bell\x07 größe'
    values = [["a", None, odd], [], None, [""]]
    assert [None if t is None else json.loads(t) for t in rewrite.json_text(pa.array(values)).to_pylist()] == values
    assert rewrite.json_text(pa.array([["a", None]])).to_pylist() == ['["a",null]']
    nested = pa.array([[[1, None], None], [[]]], pa.list_(pa.list_(pa.int64())))
    assert rewrite.json_text(nested).to_pylist() == ["[[1,null],null]", "[[]]"]
    assert rewrite.json_text(pa.array([[1.5, float("nan"), float("-inf")]])).to_pylist() == ['[1.5,"nan","-inf"]']
    assert rewrite.json_text(pa.array([[True, False]])).to_pylist() == ["[true,false]"]
    assert rewrite.json_text(pa.array([[b"\x00\xff"]])).to_pylist() == ['["AP8="]']
    assert rewrite.json_text(pa.array([[date(2024, 2, 29)]])).to_pylist() == ['["2024-02-29"]']
    assert rewrite.json_text(pa.array([[Decimal("1.20")]])).to_pylist() == ["[1.20]"]
    sliced = pa.array([["x"], ["a", "b"], None])[1:]
    assert rewrite.json_text(sliced).to_pylist() == ['["a","b"]', None]


def test_wide_decimals_become_plain_digits() -> None:
    values = [Decimal("1E-38"), Decimal("-12345678901234567890123456789012345678.5"), None, Decimal(0)]
    spelled = rewrite.plain_decimals(pa.array(values, pa.decimal256(76, 38))).to_pylist()
    assert [None if t is None else Decimal(t) for t in spelled] == values
    assert spelled[0] == "0." + "0" * 37 + "1"
    assert all("E" not in text for text in spelled if text)


def written(tmp_path: Path, schema: TableSchema, rows: list[dict[str, Any]], **options: Any) -> pq.ParquetFile:
    """A journal file; dates and times are given as the integers that Arrow keeps."""
    fields = [field if field.name != ROW else field.with_type(schema.row_type) for field in change_schema(schema)]
    numbers = pa.array(range(1, len(rows) + 1), pa.int64())
    row = pa.StructArray.from_arrays(
        [
            pa.array([r.get(f.name) for r in rows], pa.int64() if f.type != pa.date32() else pa.int32()).view(f.type)
            for f in schema.row_type
        ],
        fields=list(schema.row_type),
    )
    columns = {"_sequence_num": numbers, "_operation": pa.array(["INSERT"] * len(rows)), ROW: row}
    arrays = [
        columns.get(f.name, pa.nulls(len(rows), f.type) if f.nullable else pa.array([False] * len(rows)))
        for f in fields
    ]
    path = tmp_path / "file.parquet"
    pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), path, row_group_size=2, **options)
    return pq.ParquetFile(path)


EDGES = [
    (pa.date32(), -719_162, 2_932_896),
    (pa.timestamp("us"), -62_135_596_800_000_000, 253_402_300_799_999_999),
    (UTC_US, -62_135_596_800_000_000, 253_402_300_799_999_999),
    (pa.time64("us"), 0, 86_399_999_999),
]


@pytest.mark.parametrize("has_statistics", [True, False], ids=["statistics", "scan"])
@pytest.mark.parametrize(("type_", "lowest", "highest"), EDGES, ids=str)
def test_a_value_that_the_load_would_refuse_is_found(
    tmp_path: Path, type_: pa.DataType, lowest: int, highest: int, has_statistics: bool
) -> None:
    schema = schema_of(column("c", type_), key=())
    for values, is_within in (
        ([lowest, highest, None], True),
        ([None, None, None], True),
        ([lowest - 1, None, highest], False),
        ([lowest, highest, highest + 1], False),
    ):
        rows = [{"id": 1, "c": value} for value in values]
        file = written(tmp_path, schema, rows, write_statistics=has_statistics)
        assert rewrite.is_loadable(file, schema) is is_within, values


@pytest.mark.parametrize(("type_", "lowest", "highest"), EDGES, ids=str)
def test_a_value_that_does_not_fit_follows_the_policy(
    tmp_path: Path, type_: pa.DataType, lowest: int, highest: int
) -> None:
    schema = schema_of(column("c", type_))
    rows: list[dict[str, Any]] = [
        {"id": 1, "c": highest + 1},
        {"id": 2, "c": highest},
        {"id": 3, "c": None},
        {"id": 4, "c": lowest - 1},
    ]
    sink = pa.BufferOutputStream()
    with pytest.raises(UnsupportedTypeError) as refused:
        rewrite.rewrite([written(tmp_path, schema, rows)], sink, schema, "stop")
    assert refused.value.code == "value_out_of_range"
    sink = pa.BufferOutputStream()
    rewrite.rewrite([written(tmp_path, schema, rows)], sink, schema, "null")
    table = pq.read_table(pa.BufferReader(sink.getvalue()))
    assert table[ROW].combine_chunks().field("c").null_count == 3
    assert table.num_rows == 4
    in_key = replace(schema, key=("id", "c"))
    with pytest.raises(UnsupportedTypeError):
        rewrite.rewrite([written(tmp_path, schema, rows)], pa.BufferOutputStream(), in_key, "null")


def test_a_usual_file_is_loaded_as_it_is(tmp_path: Path) -> None:
    schema = schema_of(column("c", pa.date32()), column("n", pa.decimal128(38, 9)))
    rows = [insert(1, {"id": 1, "c": date(1, 1, 1), "n": Decimal(1)}), delete(2, {"id": 1})]
    pq.write_table(pa.Table.from_batches([record_batch(schema, rows)]), tmp_path / "x")
    assert rewrite.is_loadable(pq.ParquetFile(tmp_path / "x"), schema)


ALL = (
    column("flag", pa.bool_(), "boolean"),
    column("small", pa.int16(), "smallint"),
    column("big", pa.int64(), "bigint"),
    column("single", pa.float32(), "real"),
    column("double", pa.float64(), "double precision"),
    column("text", pa.string(), "text"),
    column("bytes", pa.binary(), "bytea"),
    column("day", pa.date32(), "date"),
    column("hour", pa.time64("us"), "time"),
    column("local", pa.timestamp("us"), "timestamp"),
    column("moment", UTC_US, "timestamptz"),
    column("unsigned", pa.decimal128(20, 0), "numeric"),
    column("money", pa.decimal128(38, 9), "numeric"),
    column("wide", pa.decimal256(65, 10), "numeric"),
    column("doc", pa.string(), "jsonb"),
    column("tags", pa.list_(pa.string()), "text[]"),
)
FULL: dict[str, Any] = {
    "id": 1,
    "flag": True,
    "small": -32768,
    "big": 2**63 - 1,
    "single": 0.5,
    "double": -1.7976931348623157e308,
    "text": "größe \U0001f600 ' \" \\ \n",
    "bytes": b"\x00\xff",
    "day": date(9999, 12, 31),
    "hour": time(23, 59, 59, 999999),
    "local": datetime(1, 1, 1, 0, 0, 0, 1),  # noqa: DTZ001 - without a zone is what is meant
    "moment": datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    "unsigned": Decimal(18446744073709551615),
    "money": Decimal("12345678901234567890123456789.123456789"),
    "wide": Decimal("1234567890123456789012345678901234567890123456789012345.0123456789"),
    "doc": '{"a": 1.10}',
    "tags": ["a", None],
}
EMPTY: dict[str, Any] = dict.fromkeys(FULL, None)


def copy_of(warehouse: Warehouse, tmp_path: Path, schema: TableSchema, options: TableOptions | None = None) -> Copy:
    table = TargetTable(table=schema.table, uuid=UUID, incarnation=1, epoch=1, options=options or TableOptions())
    copy = Copy(harness=warehouse, folder=tmp_path, schema=schema, table=table, target=warehouse.target())
    copy.create()
    return copy


def expected(row: dict[str, Any]) -> dict[str, Any]:
    wide = None if row["wide"] is None else f"{row['wide']:.10f}"
    tags = None if row["tags"] is None else json.dumps(row["tags"], separators=(",", ":"))
    return {**row, "wide": wide, "tags": tags}


@pytest.mark.matrix
def test_every_type_comes_back_as_it_went(warehouse: Warehouse, tmp_path: Path) -> None:
    schema = schema_of(*ALL)
    copy = copy_of(warehouse, tmp_path, schema)
    copy.apply(insert(1, FULL), insert(2, {**EMPTY, "id": 2}), is_append=True)
    rows = [expected(FULL), expected({**EMPTY, "id": 2})]
    assert copy.live() == as_tuples(schema, rows)
    lacking = ["text", "wide", "tags", "moment"]
    copy.apply(update(3, {**EMPTY, "id": 3}, before={"id": 1}, absent=lacking), update(4, {**FULL, "id": 2}))
    kept = {name: FULL[name] for name in lacking}
    assert copy.live() == as_tuples(schema, [expected({**EMPTY, "id": 3, **kept}), expected({**FULL, "id": 2})])


@pytest.mark.matrix
def test_every_type_is_told_apart_in_a_table_without_a_key(warehouse: Warehouse, tmp_path: Path) -> None:
    schema = replace(schema_of(*ALL), key=())
    copy = copy_of(warehouse, tmp_path, schema)
    minus = {**FULL, "double": -0.0, "single": float("inf")}
    plus = {**FULL, "double": 0.0, "single": float("inf")}
    copy.apply(insert(1, FULL), insert(2, minus), insert(3, plus), insert(4, EMPTY), insert(5, EMPTY))
    copy.apply(delete(6, minus), delete(7, EMPTY), update(8, {**FULL, "tags": []}, before=FULL))
    found = copy.live()
    assert found == as_tuples(schema, [expected(plus), expected(EMPTY), expected({**FULL, "tags": []})])


def test_minus_zero_is_told_apart_although_its_text_is_that_of_zero(warehouse: Warehouse) -> None:
    spelled = [exact_text(value, "FLOAT64") for value in ("x", "-x", "1.5")]
    (row,) = warehouse.query(
        f"SELECT {spelled[0]} AS plus, {spelled[1]} AS minus FROM (SELECT CAST(0 AS FLOAT64) AS x)"
    )
    assert (row["plus"] != row["minus"], row["minus"]) == (True, "-0.0")
    assert "IEEE_DIVIDE" in spelled[2], "CAST(-0.0 AS STRING) has no sign in the service"


VISITS = TableSchema(
    table=TableId("shop", "visits"),
    columns=(
        Column(name="day", type=pa.date32(), source_type="date", nullable=False),
        Column(name="id", type=pa.int64(), source_type="bigint", nullable=False),
        Column(name="page", type=pa.string(), source_type="text"),
    ),
    key=("id", "day"),
)


def visit(day: int, id_: int, page: str | None = None) -> dict[str, Any]:
    return {"day": date(2024, 2, day), "id": id_, "page": page}


def test_a_merge_reads_only_partitions_that_its_batch_can_touch(
    new_warehouse: Callable[..., Warehouse], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse = new_warehouse(tables={"shop.visits": {"partition_by": "day"}})
    copy = copy_of(warehouse, tmp_path, VISITS)
    # The join for origin keys may read no more than the merge either.
    merges, batch_statements = [], statements.batch_statements

    def recorded(*arguments: Any) -> Sequence[str]:
        body = batch_statements(*arguments)
        merges.append("\n".join(body))
        return body

    copy.apply(*[insert(n, visit(n, n, "first")) for n in range(1, 10)], is_append=True)
    monkeypatch.setattr(statements, "batch_statements", recorded)
    copy.apply(
        update(11, visit(3, 3, "second")),
        update(12, visit(6, 4), before=visit(4, 4), absent=["page"]),
        delete(13, visit(5, 5)),
        insert(14, visit(7, 70, "new")),
        files=2,
    )
    within = "t.`day` BETWEEN DATE '2024-02-03' AND DATE '2024-02-07'"
    target = f"`{warehouse.names.path(VISITS.table)}` AS t"
    found = [part.count(within) for part in merges[0].split(target)]
    assert found == [0, 1, 1, 1], "the join's for origin keys, the counts', the MERGE's"
    assert f"(SELECT * FROM {target} WHERE {within}) AS t ON last_lives.is_moved" in merges[0]
    copy.apply(delete(15, visit(28, 1)))
    assert "BETWEEN DATE '2024-02-28' AND DATE '2024-02-28'" in merges[1]
    kept = [visit(n, n, "first") for n in (1, 2, 6, 7, 8, 9)]
    moved = [visit(3, 3, "second"), visit(6, 4, "first"), visit(7, 70, "new")]
    assert copy.live() == as_tuples(VISITS, kept + moved)


@pytest.mark.parametrize("has_statistics", [True, False], ids=["statistics", "scan"])
@pytest.mark.parametrize(
    ("type_", "literals"),
    [
        (pa.date32(), ("DATE '0001-01-01'", "DATE '9999-12-31'")),
        (pa.timestamp("us"), ("DATETIME '0001-01-01 00:00:00.000000'", "DATETIME '9999-12-31 23:59:59.999999'")),
        (UTC_US, ("TIMESTAMP '0001-01-01 00:00:00.000000+00'", "TIMESTAMP '9999-12-31 23:59:59.999999+00'")),
    ],
    ids=str,
)
def test_literals_are_the_lowest_and_the_highest_value(
    tmp_path: Path, type_: pa.DataType, literals: tuple[str, ...], has_statistics: bool
) -> None:
    schema = schema_of(column("c", type_), key=("id", "c"))
    settings = {"project": "p", "location": "EU", "staging": {"bucket": "bucket"}}
    names = Names(BigQueryConfig.model_validate(settings))
    shape = shape_of(schema, TableOptions(), names, "string")
    (_, lowest, highest) = next(edge for edge in EDGES if edge[0] == type_)
    for values in ([5, lowest, None, highest, 7], [None, highest, lowest]):
        file = written(tmp_path, schema, [{"id": 1, "c": v} for v in values], write_statistics=has_statistics)
        found = pruning.bounds([file], shape.key[1])
        assert found == (lowest, highest)
        assert pruning.condition(shape.key[1], "t", found) == f"t.`c` BETWEEN {literals[0]} AND {literals[1]}"
    nothing = written(tmp_path, schema, [{"id": 1, "c": None}], write_statistics=has_statistics)
    assert pruning.bounds([nothing], shape.key[1]) is None


@pytest.mark.matrix
def test_the_source_time_is_kept_on_demand(warehouse: Warehouse, tmp_path: Path) -> None:
    schema = schema_of(column("c", pa.string()))
    copy = copy_of(warehouse, tmp_path, schema, TableOptions(source_timestamp=True))
    copy.apply(insert(1, {"id": 1, "c": "a"}))
    copy.apply(insert(2, {"id": 2, "c": "b"}, is_snapshot=True), is_append=True)
    copy.apply(update(3, {"id": 1, "c": "c"}))
    path = warehouse.names.path(schema.table)
    rows = warehouse.query(f"SELECT id, _source_timestamp AS moment FROM `{path}`")
    assert {row["id"]: row["moment"] for row in rows} == {
        1: datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=UTC),
        2: None,
    }


@pytest.mark.matrix
def test_json_is_parsed_on_demand(new_warehouse: Callable[..., Warehouse], tmp_path: Path) -> None:
    warehouse = new_warehouse(json_as="json")
    schema = schema_of(column("doc", pa.string(), "jsonb"), column("n", pa.int64()))
    copy = copy_of(warehouse, tmp_path, schema)
    copy.apply(insert(1, {"id": 1, "doc": '{"a": [1, 2]}', "n": 1}), insert(2, {"id": 2, "doc": None, "n": 1}))
    copy.apply(update(3, {"id": 3, "doc": None, "n": 2}, before={"id": 1}, absent=["doc"]))
    path = warehouse.names.path(schema.table)
    rows = warehouse.query(f"SELECT id, n, JSON_VALUE(doc, '$.a[1]') AS second FROM `{path}` ORDER BY id")
    assert [tuple(row.values()) for row in rows] == [(2, 1, None), (3, 2, "2")]


def test_values_out_of_range_fail_the_table_or_become_null(
    new_warehouse: Callable[..., Warehouse], tmp_path: Path
) -> None:
    schema = schema_of(column("c", pa.time64("us")))
    fields = {"_sequence_num": 1, "_operation": "INSERT", "_is_snapshot": False, BEFORE: None}
    for policy in ("stop", "null"):
        warehouse = new_warehouse(unfit_values=policy)
        copy = copy_of(warehouse, tmp_path, schema)
        batch = pa.RecordBatch.from_pylist([{**fields, ROW: {"id": 1, "c": None}}], schema=change_schema(schema))
        midnight = pa.array([86_400_000_000], pa.int64()).view(pa.time64("us"))
        row = pa.StructArray.from_arrays([pa.array([1]), midnight], fields=list(schema.row_type))
        batch = batch.set_column(batch.schema.get_field_index(ROW), batch.schema.field(ROW), row)
        result = copy.folder / "x.parquet"
        copy.folder.mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_batches([batch]), result)
        handed = _batch(schema, result)
        if policy == "stop":
            with pytest.raises(UnsupportedTypeError):
                copy.target.apply_batch(copy.table, handed)
            assert copy.restart().last_applied == 0
        else:
            copy.target.apply_batch(copy.table, handed)
            assert copy.live() == [(1, None)]
        assert warehouse.leftovers() == []


def _batch(schema: TableSchema, path: Any) -> Any:
    from replicator.plugins.target import Batch, BatchFile

    file = BatchFile(uri=path.as_uri(), rows=1, bytes=path.stat().st_size, first=1, last=1)
    return Batch(schema=schema, files=[file], last=1, skip_to=0, rows=1, has_absent=False, has_key_changes=False)

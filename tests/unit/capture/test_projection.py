"""What the target has where policies ignore changes of columns, and how rows become its rows."""

from __future__ import annotations

from datetime import date, datetime, time
from typing import Any

import pyarrow as pa
import pytest

from replicator.capture.definitions.policies import decide
from replicator.capture.definitions.projection import project
from replicator.config import DDLConfig
from replicator.model.errors import SchemaConflictError
from replicator.model.events import ABSENT, BEFORE, ROW, change_schema, no_fill
from replicator.model.schema import Column, TableId, TableSchema
from replicator.state.ignored import as_in_target
from replicator.state.records import Decision, IgnoredColumn

IGNORE = DDLConfig(add_column="ignore", rename_column="ignore", widen_type="ignore", change_type="ignore")


def shape(*columns: tuple[int, str, pa.DataType], key: tuple[str, ...] = ("id",)) -> TableSchema:
    made = [Column(name=name, type=type_, source_type=str(type_), id=id_) for id_, name, type_ in columns]
    return TableSchema(table=TableId("public", "t"), columns=tuple(made), key=key)


ID = (1, "id", pa.int64())
FIRST = shape(ID, (2, "a", pa.int32()), (3, "b", pa.string()))


def held(schema: TableSchema, ignored: tuple[IgnoredColumn, ...]) -> list[tuple[str, str]]:
    return [(column.name, str(column.type)) for column in as_in_target(schema, ignored).held]


def test_what_is_ignored_leaves_the_target_as_it_is_through_later_changes() -> None:
    second = shape(ID, (2, "a", pa.int64()), (3, "b2", pa.string()), (4, "c", pa.string()))
    found = decide(FIRST, second, IGNORE, before=FIRST, fill=no_fill())
    assert (found.decision, held(found.tracked, found.ignored)) == (
        Decision.IGNORE,
        [("id", "int64"), ("a", "int32"), ("b", "string")],
    )
    assert found.before.fingerprint == found.schema.fingerprint
    third = shape(ID, (4, "c2", pa.string()), (2, "a2", pa.int64()), (5, "d", pa.string()))
    then = decide(found.tracked, third, DDLConfig(), before=second, fill=no_fill(), ignored=found.ignored)
    assert held(then.tracked, then.ignored) == [("id", "int64"), ("a2", "int32"), ("d", "string"), ("b", "string")]
    assert then.before.fingerprint == found.schema.fingerprint
    assert [column.name for column in then.schema.kept] == ["b"]


def test_a_type_that_was_ignored_is_widened_from_what_the_target_has() -> None:
    found = decide(FIRST, shape(ID, (2, "a", pa.int64()), FIRST_B), IGNORE, before=FIRST, fill=no_fill())
    wider = shape(ID, (2, "a", pa.decimal128(20, 0)), FIRST_B)
    then = decide(
        found.tracked, wider, DDLConfig(), before=None, fill=None, ignored=found.ignored, can_widen=lambda _, __: True
    )
    assert (then.decision, then.ignored) == (Decision.SNAPSHOT, ())
    assert (str(then.schema.column("a").type), then.schema.column("a").source_type) == ("decimal128(20, 0)",) * 2
    assert str(then.before.column("a").type) == "int32"


FIRST_B = (3, "b", pa.string())


@pytest.mark.parametrize(
    "other", [(2, "x", pa.int32()), (2, "a", pa.int64()), (2, "a", pa.string()), (2, "x", pa.string())], ids=str
)
def test_nothing_is_ignored_of_a_column_that_has_its_name_and_type_again(other: tuple[int, str, pa.DataType]) -> None:
    then, ignored = FIRST, tuple[IgnoredColumn, ...]()
    for shape_now in (shape(ID, other, FIRST_B), FIRST):
        found = decide(then, shape_now, IGNORE, before=then, fill=no_fill(), ignored=ignored)
        assert held(found.tracked, found.ignored) == held(FIRST, ())
        then, ignored = found.tracked, found.ignored
    assert ignored == ()


def test_keys_are_not_ignored() -> None:
    renamed = shape((1, "key", pa.int64()), (2, "a", pa.int32()), FIRST_B, key=("key",))
    assert decide(FIRST, renamed, IGNORE, before=FIRST, fill=no_fill()).ignored == ()
    retyped = shape((1, "id", pa.string()), (2, "a", pa.int32()), FIRST_B)
    assert decide(FIRST, retyped, IGNORE, before=FIRST, fill=no_fill()).decision is Decision.STOP


def test_a_name_that_the_target_keeps_is_not_given_to_another_column() -> None:
    second = shape(ID, (2, "a", pa.int32()), (3, "b2", pa.string()))
    found = decide(FIRST, second, IGNORE, before=FIRST, fill=no_fill())
    third = shape(ID, (2, "a", pa.int32()), (3, "b2", pa.string()), (4, "b", pa.string()))
    assert decide(found.tracked, third, DDLConfig(), before=second, fill=no_fill(), ignored=found.ignored).error


def changes(schema: TableSchema, *rows: dict[str, Any], absent: list[str] | None = None) -> pa.RecordBatch:
    layout = change_schema(schema)
    plain = {"_operation": "INSERT", "_is_snapshot": False, ABSENT: absent, "before": None}
    return pa.RecordBatch.from_pylist(
        [{**plain, "_sequence_num": number, ROW: row, **row.pop("changed", {})} for number, row in enumerate(rows)],
        schema=layout,
    )


def test_rows_are_as_the_target_has_them() -> None:
    source = shape(ID, (4, "an odd name", pa.string()), (2, "a", pa.int64()), (3, "b2", pa.string()))
    ignored = (
        IgnoredColumn(column="an odd name"),
        IgnoredColumn(column="a", name="a", type="int32", source_type="integer"),
        IgnoredColumn(column="b2", name="b", type="string", source_type="text"),
    )
    rows = changes(
        source,
        {"id": 1, "c2": "x", "a": 5, "b2": "y"},
        {"id": 2, "a": None, "changed": {BEFORE: {"id": 1}}},
        absent=["c2", "b2"],
    )
    rows = pa.concat_batches(
        [rows, changes(source, {"changed": {"_operation": "DELETE", BEFORE: {"id": 2}, ROW: None}})]
    )
    found = project(rows, source, ignored)
    assert found.column(ROW).to_pylist() == [{"id": 1, "a": 5, "b": "y"}, {"id": 2, "a": None, "b": None}, None]
    assert found.column(BEFORE).to_pylist() == [None, {"id": 1}, {"id": 2}]
    assert found.column(ABSENT).to_pylist() == [["b"], ["b"], None]
    assert found.schema.equals(change_schema(as_in_target(source, ignored)))


def test_rows_without_a_key_are_compared_as_the_target_has_them() -> None:
    source = shape(ID, (2, "a", pa.int64()), key=())
    row = {"id": 1, "a": 5, "changed": {BEFORE: {"id": 1, "a": 4}}}
    found = project(changes(source, row), source, (IgnoredColumn(column="a", name="a", type="int32", source_type=""),))
    assert found.column(BEFORE).to_pylist() == [{"id": 1, "a": 4}]


@pytest.mark.parametrize(
    ("source", "target", "value", "fits"),
    [
        (pa.int64(), "int32", 1 << 40, False),
        (pa.string(), "int32", "12", True),
        (pa.string(), "int32", "012", False),
        (pa.string(), "int32", "twelve", False),
        (pa.float64(), "float", 0.5, True),
        (pa.float64(), "float", 0.1, False),
        (pa.float64(), "float", float("nan"), True),
        (pa.string(), "int32", None, True),
        (pa.binary(), "string", b"\xff", False),
        (pa.timestamp("us", tz="UTC"), "bool", None, True),
        (pa.date32(), "int32", date(2024, 2, 29), False),
        (pa.int64(), "timestamp[us]", 0, False),
        (pa.timestamp("us"), "timestamp[us, tz=UTC]", datetime(2024, 2, 29), False),  # noqa: DTZ001 - it has none
        (pa.time64("us"), "int64", time(1), False),
        (pa.list_(pa.date32()), "list<int32>", [date(2024, 2, 29)], False),
        (pa.list_(pa.int32()), "list<int32>", [1], True),
        (pa.list_(pa.int64()), "string", [1], False),
        (pa.date32(), "string", date(2024, 2, 29), True),
        (pa.date32(), "timestamp[us]", date(2024, 2, 29), True),
    ],
)
def test_a_value_that_is_another_in_the_type_that_the_target_keeps_is_refused(
    source: pa.DataType, target: str, value: Any, fits: bool
) -> None:
    schema = shape(ID, (2, "a", source))
    rows = changes(schema, {"id": 1, "a": value}, {"id": 2, "a": None})
    entry = (IgnoredColumn(column="a", name="a", type=target, source_type=""),)
    if fits:
        assert project(rows, schema, entry).num_rows == 2
        return
    with pytest.raises(SchemaConflictError) as refused:
        project(rows, schema, entry)
    assert refused.value.code == "value_does_not_fit"

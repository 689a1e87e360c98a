"""Keys as texts, and back."""

from __future__ import annotations

import random
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.kit.cursors import cursors, keys_of

_CHANCE = random.Random(1)
_DAYS = [*(_CHANCE.randint(-(2**31), 2**31 - 1) for _ in range(300)), *range(-800_000, 800_000, 9_973)]
_MOMENTS = [*(_CHANCE.randint(-(2**63), 2**63 - 1) for _ in range(300)), 0, -1, 1]


def schema_of(*kinds: pa.DataType) -> TableSchema:
    columns = tuple(Column(name=f"c{n}", type=kind, source_type="t") for n, kind in enumerate(kinds))
    return TableSchema(table=TableId("s", "t"), columns=columns, key=tuple(column.name for column in columns))


@pytest.mark.parametrize(
    "values",
    [
        pa.array(_DAYS, pa.int32()).view(pa.date32()),
        pa.array(_MOMENTS, pa.int64()).view(pa.timestamp("us")),
        pa.array(_MOMENTS, pa.int64()).view(pa.timestamp("us", "UTC")),
        pa.array([0, 1, 86_399_999_999, 86_400_000_000], pa.int64()).view(pa.time64("us")),
        pa.array([Decimal("0.0000000001"), Decimal("10.0000000000"), Decimal("-7E+5")], pa.decimal128(38, 10)),
        pa.array([Decimal("1.50")], pa.decimal256(60, 2)),
        pa.array([True, False]),
        pa.array([b"", b"\\x00", b"\0\xff"], pa.binary()),
        pa.array([2**63 - 1, -(2**63)], pa.int64()),
        pa.array(["", "é", "NULL", "\\x00", "2020-01-01"], pa.string()),
    ],
    ids=lambda values: str(values.type),
)
def test_a_key_is_read_back_from_its_texts(values: pa.Array) -> None:
    schema = schema_of(values.type)
    assert keys_of(schema, cursors([values])).column(0).equals(values)


def test_days_are_spelled_as_python_does_as_far_as_it_goes() -> None:
    days = range(-719_162, 2_932_896, 997)
    texts = cursors([pa.array(days, pa.int32()).view(pa.date32())])
    assert texts == [(str(date(1970, 1, 1) + timedelta(day)),) for day in days]


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (-719_529, pa.date32(), "-0001-12-31"),
        (-719_528, pa.date32(), "0000-01-01"),
        (2_932_897, pa.date32(), "10000-01-01"),
        (-1, pa.timestamp("us", "UTC"), "1969-12-31 23:59:59.999999Z"),
    ],
)
def test_years_have_as_many_digits_as_they_need(value: Any, kind: pa.DataType, text: str) -> None:
    width = pa.int32() if kind == pa.date32() else pa.int64()
    assert cursors([pa.array([value], width).view(kind)]) == [(text,)]


def test_a_key_with_a_null_part_has_no_cursor() -> None:
    columns = [pa.array([1, 2], pa.int32()), pa.array([b"a", None], pa.binary())]
    assert cursors(columns) == [("1", "\\x61")]
    assert keys_of(schema_of(pa.int32(), pa.binary()), [("1", "\\x61")]).to_pylist() == [{"c0": 1, "c1": b"a"}]

"""Keys that a person writes in JSON are those of the rows that have them, or are refused."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest

from replicator.model.errors import ConfigError
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.kit.canonical import column_texts, digest_of
from replicator.verify import ids_of
from replicator.verify.verdicts import shown

NTZ, TZ = pa.timestamp("us"), pa.timestamp("us", tz="UTC")
D2 = pa.decimal128(9, 2)


def schema_of(**key: pa.DataType) -> TableSchema:
    """A table with these key columns, in this order, behind another one."""
    columns = [Column(name=name, type=kind, source_type="?", nullable=False) for name, kind in key.items()]
    other = Column(name="other", type=pa.string(), source_type="text")
    return TableSchema(table=TableId("shop", "t"), columns=(other, *reversed(columns)), key=tuple(key))


def id_of(*values: tuple[Any, pa.DataType]) -> str:
    texts = [column_texts(pa.array([value], kind), is_key=True)[0] for value, kind in values]
    return digest_of("".join(f"{text}," for text in texts))


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.bool_(), "true", True),
        (pa.bool_(), "false", False),
        (pa.bool_(), '"1"', True),
        (pa.int8(), "-128", -128),
        (pa.int32(), "7", 7),
        (pa.int32(), '"7"', 7),
        (pa.int64(), str(2**63 - 1), 2**63 - 1),
        (pa.decimal128(38, 0), "9" * 38, Decimal("9" * 38)),
        (pa.decimal256(65, 30), '"-' + "9" * 35 + "." + "9" * 30 + '"', Decimal("-" + "9" * 35 + "." + "9" * 30)),
        # Spellings of one value.
        *((D2, text, Decimal("1.50")) for text in ("1.5", "1.50", '"1.5"', '"1.500"', "15e-1", '"0.15e1"')),
        *((D2, text, Decimal(1)) for text in ("1", "1.0", '"1"', '"1.00"')),
        (D2, '"-0.00"', Decimal(0)),
        (pa.float64(), "1500", 1500.0),
        (pa.float64(), "0.1", 0.1),
        (pa.float64(), "-0.0", 0.0),
        (pa.float32(), "0.1", 0.1),
        (pa.float64(), '"nan"', math.nan),
        (pa.float64(), '"-inf"', -math.inf),
        (pa.string(), '"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"', "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        (pa.string(), '""', ""),
        (pa.string(), '"ab   "', "ab   "),
        (pa.string(), '"Gr\\u00fc\\u00dfe 😀"', "Grüße 😀"),
        (pa.string(), f'"{"x" * 1000}"', "x" * 1000),
        (pa.binary(), '""', b""),
        (pa.binary(), '"00fF"', b"\0\xff"),
        (pa.date32(), '"2024-02-29"', date(2024, 2, 29)),
        (pa.date32(), '"0001-01-01"', date(1, 1, 1)),
        (pa.time64("us"), '"12:30:00"', time(12, 30)),
        (pa.time64("us"), '"23:59:59.999999"', time(23, 59, 59, 999999)),
        (pa.time64("us"), '"00:00:00.5"', time(0, 0, 0, 500_000)),
        (NTZ, '"2024-01-31 12:30:00"', datetime.fromisoformat("2024-01-31T12:30:00")),
        (NTZ, '"0001-01-01T00:00:00.000001"', datetime.fromisoformat("0001-01-01T00:00:00.000001")),
        (TZ, '"2024-01-31T12:30:00Z"', datetime(2024, 1, 31, 12, 30, tzinfo=UTC)),
        (TZ, '"2024-01-31 12:30:00.25+01:00"', datetime(2024, 1, 31, 11, 30, 0, 250_000, tzinfo=UTC)),
        (TZ, '"1969-12-31 23:59:59.999999-05:30"', datetime(1970, 1, 1, 5, 29, 59, 999999, tzinfo=UTC)),
    ],
)
def test_a_key_of_each_type_has_the_id_of_its_row(kind: pa.DataType, text: str, value: Any) -> None:
    wanted = frozenset({id_of((value, kind))})
    assert ids_of([text], schema_of(k=kind)) == wanted
    assert ids_of([f'{{"k": {text}}}'], schema_of(k=kind)) == wanted


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.bool_(), [True, False]),
        (pa.int64(), [-(2**63), 0]),
        (pa.float64(), [1500.0, 0.1, 1e300, -5e-324, math.nan, -math.inf]),
        (pa.float32(), [0.5, 1e10]),
        (D2, [Decimal("-0.01"), Decimal("9999999.99")]),
        (pa.string(), ["", "a:b$c#", "3:abc", "é" * 300]),
        (pa.binary(), [b"", b"\0:$", b"x" * 1000]),
        (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
        (pa.time64("us"), [time(0), time(1, 2, 3, 4)]),
        (NTZ, [datetime.fromisoformat("1969-12-31T23:59:59.000001")]),
        (TZ, [datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=2)))]),
    ],
)
def test_what_a_difference_shows_as_key_can_be_given_back(kind: pa.DataType, values: list[Any]) -> None:
    for value in values:
        (text,) = column_texts(pa.array([value], kind), is_key=True)
        assert ids_of([json.dumps({"k": shown(text, kind)})], schema_of(k=kind)) == {id_of((value, kind))}


@pytest.mark.parametrize(("kind", "number"), [(pa.date32(), -2_000_000), (NTZ, -(2**62)), (TZ, 2**62)])
def test_moments_beyond_the_calendar_can_be_given_back(kind: pa.DataType, number: int) -> None:
    text = shown(str(number), kind)
    assert text is not None
    assert " after 1970-01-01" in text
    assert ids_of([json.dumps(text)], schema_of(k=kind)) == {digest_of(f"{number},")}


def test_a_key_of_several_columns_is_an_object_in_any_order() -> None:
    schema = schema_of(b=pa.string(), a=pa.int32())
    wanted = id_of(("x", pa.string()), (7, pa.int32()))
    assert ids_of(['{"a": 7, "b": "x"}', '{"b": "x", "a": "7"}'], schema) == {wanted}
    assert len(ids_of(['{"a": 7, "b": "x"}', '{"b": "y", "a": "7"}'], schema)) == 2


NO_VALUES: Final = [
    (pa.bool_(), ["2", '"True"', '"2"']),
    (pa.int8(), ["128", "-129", "true", "7.0", "1e1", '"x"', '""', '" 7"', "9" * 5000]),
    (pa.int64(), [str(2**63), '"٣"']),
    (D2, ["1.005", "12345678", '"nan"', '"1,5"', "1e999", "true", '"1_0"']),
    (pa.float64(), ["1e999", '"1,5"', '"infinity"', "true"]),
    (pa.float32(), ["1e39"]),
    (pa.string(), ["7", "1.5", "true", '"\\ud800"', "[]"]),
    (pa.binary(), ['"0"', '"\\\\x00"', '"gg"', "0", '"00 ff"']),
    (pa.date32(), ['"2024-02-30"', '"20240229"', '"2024-W01-1"', '"2024-02-29 00:00:00"', "19782"]),
    (pa.time64("us"), ['"24:00:00"', '"12:30"', '"12:30:00.1234567"', '"12:30:00+01:00"', '"12:60:00"', "0"]),
    (NTZ, ['"2024-01-31 12:30:00Z"', '"2024-01-31 12:30:00+01:00"', '"2024-01-31"', "0", '"9999999999999999999 µs after 1970-01-01"']),
    (TZ, ['"2024-01-31 12:30:00"', '"2024-01-31 12:30:00.1234567Z"', '"2024-01-31 12:30:00+25:00"', '"2024-02-30 12:30:00Z"']),
    (pa.list_(pa.int32()), ["[1]"]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in NO_VALUES for text in texts])
def test_what_is_no_value_of_the_type_is_refused(kind: pa.DataType, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ids_of([text], schema_of(k=kind))
    assert refused.value.code == "unknown_row_key"
    (problem,) = refused.value.problems
    assert problem.code == "unknown_row_key"
    if len(text) < 5000:
        assert problem.location == "--keys, number 1, column k"
    assert problem.action


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("{a: 1}", "is not JSON"),
        ("NaN", "is not JSON"),
        ('{"a": 1, "a": 2, "b": 1}', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("7", "is one value, but the key has several columns"),
        ('{"a": 1}', "lacks b"),
        ('{"a": 1, "b": 2, "other": "x"}', "has other, which is not in the key"),
        ('{"a": 1, "b": null}', "is NULL, which no key has"),
    ],
)
def test_what_is_no_key_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ids_of([text], schema_of(a=pa.int32(), b=pa.int32()))
    assert [problem.message for problem in refused.value.problems] == [message]


def test_everything_that_is_wrong_is_told_without_values() -> None:
    with pytest.raises(ConfigError) as refused:
        ids_of(['"secret"', "7", '{"id": "hidden"}', '{"x": 1}'], schema_of(id=pa.int32()))
    found = [problem.location for problem in refused.value.problems]
    assert found == ["--keys, number 1, column id", "--keys, number 3, column id", "--keys, number 4"]
    text = f"{refused.value} {refused.value.problems}"
    assert not [value for value in ("secret", "hidden") if value in text]
    assert '{"id": "…"}' in text


def test_a_table_without_a_key_has_none() -> None:
    with pytest.raises(ConfigError, match="its rows have no key") as refused:
        ids_of(["7"], schema_of())
    assert refused.value.code == "unknown_row_key"

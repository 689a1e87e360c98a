"""Conditions for a table: columns are found, values get their types, and every fault is told at once."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from replicator.model.schema import Column, TableId, TableSchema
from replicator.projection.condition import ConditionError, parse

TYPES = {
    "flag": pa.bool_(),
    "small": pa.int16(),
    "big": pa.int64(),
    "price": pa.decimal128(5, 2),
    "wide": pa.decimal256(76, 0),
    "x": pa.float64(),
    "r": pa.float32(),
    "Status": pa.string(),
    "raw": pa.binary(),
    "day": pa.date32(),
    "clock": pa.time64("us"),
    "at": pa.timestamp("us"),
    "seen": pa.timestamp("us", tz="UTC"),
    "tags": pa.list_(pa.string()),
    "twin": pa.int32(),
    "TWIN": pa.int32(),
    "a b": pa.int32(),
}
SCHEMA = TableSchema(
    table=TableId("shop", "orders"),
    columns=tuple(Column(name=name, type=type_, source_type=f"{name}'s type") for name, type_ in TYPES.items()),
)


def answers(text: str, **values: list[Any]) -> list[bool | None]:
    """The answers where the named columns have these values and all others are NULL."""
    count = len(next(iter(values.values())))
    arrays = [pa.array(values.get(c.name, [None] * count), c.type) for c in SCHEMA.columns]
    rows = pa.record_batch(arrays, [SCHEMA.fields[c.name] for c in SCHEMA.columns])
    found: list[bool | None] = parse(text).bind(SCHEMA).evaluate(rows).to_pylist()
    return found


FAULTS = {
    "price2 = 1": "Position 1, at 'price2 = 1': shop.orders has no column price2. Did you mean price?",
    "nothing = 1": "shop.orders has no column nothing. Write the name as the source has it.",
    '"PRICE" = 1': "has no column PRICE. In quotes a name is compared with case",
    'Status = "open"': "Position 10, at '\"open\"': shop.orders has no column open. If a text is meant, write 'open'.",
    "Twin = 1": 'Several columns of shop.orders are called Twin. Write "twin" or "TWIN".',
    "status = 5": "no value for the column Status, whose type is string (Status's type). Write a text in single quotes",
    "small = '5'": "no value for the column small, whose type is int16 (small's type). Write a number",
    "small = TRUE": "Write a number",
    "x = 'NaN'": "Write a number",
    "x = 1e309": "Double precision cannot hold this number.",
    "x = 1e-399": "Double precision cannot hold this number.",
    "flag = 2": "Write TRUE or FALSE.",
    "flag = 't'": "Write TRUE or FALSE.",
    "raw = 'a'": "Write bytes in hex digits, such as X'00FF'.",
    "day = '2024-02-30'": "This date does not exist.",
    "day = '0000-01-01'": "This date does not exist.",
    "day = '2024-1-1'": "Write a date",
    "day = '2024-01-01 00:00'": "Write a date",
    "day = 20240101": "Write a date",
    "clock = '24:00'": "This time does not exist.",
    "clock = '12'": "Write a time of day",
    "at = '2024-01-01T00:00Z'": "Write a date and time without offset",
    "at = '2024-01-01 00:00:00.1234567'": "Write a date and time without offset",
    "at = 'now'": "Write a date and time without offset",
    "seen = '2024-01-01 00:00'": "Write a date and time with its offset from UTC",
    "seen = '2024-01-01Z'": "Write a date and time with its offset from UTC",
    "seen = '2024-01-01 00:00+16'": "This offset does not exist.",
    "tags = 'a'": "The column tags is a list. Use IS NULL, or IS NOT NULL.",
    "tags = NULL": "The column tags is a list.",
    "tags IN (NULL)": "The column tags is a list.",
    "tags = tags": "are not compared",
    "price = x": "Columns of type decimal128(5,2) (price's type) and double (x's type) are not compared.",
    "day = at": "are not compared",
    "at = seen": "are not compared",
    "wide = price": "are not compared",
    "small LIKE '1%'": "The type of the column small is int16 (small's type). LIKE takes a column of text.",
    "small": "Compare it with a value.",
}


@pytest.mark.parametrize(("text", "said"), FAULTS.items(), ids=[text[:30] for text in FAULTS])
def test_what_is_impossible_is_told(text: str, said: str) -> None:
    with pytest.raises(ConditionError) as refused:
        parse(text).bind(SCHEMA)
    assert said in str(refused.value)
    assert len(refused.value.faults) == 1


def test_every_fault_is_told_in_the_order_of_the_text() -> None:
    with pytest.raises(ConditionError) as refused:
        parse("NOT (missing = 1 OR status IN ('a', 5)) AND 'x' BETWEEN day AND day AND tags LIKE 'a'").bind(SCHEMA)
    assert [fault.position for fault in refused.value.faults] == [6, 37, 45, 73]


def test_names_are_found_without_case_and_in_quotes_exactly() -> None:
    bound = parse('STATUS = \'a\' AND "Status" <> \'b\' AND "TWIN" = 1 AND "a b" = 2').bind(SCHEMA)
    assert [column.name for column in bound.columns] == ["Status", "TWIN", "a b"]
    assert bound.fields == ("Status", "c16", "c17")
    assert [column.type for column in bound.columns] == [pa.string(), pa.int32(), pa.int32()]


def test_whole_numbers_are_compared_exactly() -> None:
    values = [-(2**63), -1, 2**53, 2**53 + 1, 2**63 - 1, None]
    assert answers("big = 9007199254740993", big=values) == [False, False, False, True, False, None]
    assert answers("big < 9223372036854775807.5", big=values) == [True, True, True, True, True, None]
    assert answers("big >= -0.5", big=values) == [False, False, True, True, True, None]
    assert answers("big = 1e300 OR big > -1e300", big=values) == [True, True, True, True, True, None]
    assert answers("big < 9223372036854775808", big=values) == [True, True, True, True, True, None]
    assert answers("big > -9223372036854775809", big=values) == [True, True, True, True, True, None]
    assert answers("2 BETWEEN small AND big", small=[1, 3, 2], big=[3, 4, None]) == [True, False, None]
    assert answers("big > 1e300", big=values) == [False, False, False, False, False, None]
    assert answers("big <> 1e300", big=values) == [True, True, True, True, True, None]
    assert answers("big IN (-1, 0.5, 1e300, NULL)", big=values) == [None, True, None, None, None, None]
    assert answers("big = 3", big=values) == answers("3 = big", big=values)


def test_decimals_are_compared_exactly() -> None:
    values = [Decimal("-999.99"), Decimal("1.00"), Decimal("1.01"), None]
    assert answers("price = 1.000", price=values) == [False, True, False, None]
    assert answers("price > 1.005", price=values) == [False, False, True, None]
    assert answers("price <= 1.005", price=values) == [True, True, False, None]
    assert answers("price > -1000", price=values) == [True, True, True, None]
    assert answers("price >= small", price=values, small=[0, 1, 2, 3]) == [False, True, False, None]
    assert answers("wide < big", wide=[Decimal(-(10**75)), Decimal(5)], big=[0, 5]) == [True, False]


def test_floats_are_compared_as_doubles_and_nan_is_the_greatest() -> None:
    values = [float("nan"), float("inf"), 0.1, -0.0, None]
    assert answers("x > 5", x=values) == [True, True, False, False, None]
    assert answers("x <= 5", x=values) == [False, False, True, True, None]
    assert answers("x = 0", x=values) == [False, False, False, True, None]
    assert answers("x IN (0, 0.1)", x=values) == [False, False, True, True, None]
    assert answers("x IN (-0.0, 1)", x=[0.0, -0.0]) == answers("x = -0.0", x=[0.0, -0.0]) == [True, True]
    assert answers("x = x", x=values) == [True, True, True, True, None]
    assert answers("r = 0.1", r=values) == [False, False, False, False, None]
    assert answers("big = x", big=[1, 2**53 + 1], x=[1.0, 2.0**53]) == [True, True]


def test_truth_values_may_be_written_as_bits() -> None:
    values = [True, False, None]
    assert answers("flag = 1", flag=values) == answers("flag", flag=values) == [True, False, None]
    assert answers("NOT flag", flag=values) == answers("flag = 0", flag=values) == [False, True, None]


def test_times_have_one_meaning() -> None:
    moment = datetime(2024, 2, 29, 12, 0, 0, 500000)
    assert answers("at = '2024-02-29T12:00:00.5'", at=[moment]) == [True]
    assert answers("at > '2024-02-29'", at=[moment]) == [True]
    for text in ("12:00:00.5Z", "14:00:00.5+02", "11:30:00.500 -00:30", "17:30:00.5+0530"):
        assert answers(f"seen = '2024-02-29 {text}'", seen=[moment.replace(tzinfo=UTC)]) == [True]


@pytest.mark.parametrize(
    ("test", "texts"),
    [
        (
            "LIKE 'a_c'",
            {"abc": True, "a\nc": True, "aéc": True, "a😀c": True, "ac": False, "Abc": False, "abc\n": False},
        ),
        ("LIKE 'a%'", {"a": True, "a\n\n": True, "ba": False}),
        ("LIKE '%'", {"": True, "\n": True}),
        ("LIKE ''", {"": True, "\n": False}),
        ("LIKE '.*[a](\\'", {}),
        ("LIKE '.*[a](?$^|+'", {".*[a](?$^|+": True, "xa": False}),
        ("LIKE '!%!_!!!a' ESCAPE '!'", {"%_!a": True, "xx!a": False}),
        ("LIKE '%%%' ESCAPE '%'", {}),
        ("LIKE '%%_' ESCAPE '%'", {"%x": True, "xx": False}),
        ("LIKE '\\%' ESCAPE '\\'", {"%": True, "a": False}),
        ("= 'a '", {"a ": True, "a": False}),
        ("> '\uffff'", {"😀": True, "\ufffe": False}),
        ("= 'é'", {"é": True, "e\u0301": False}),
    ],
)
def test_texts_are_compared_by_code_points(test: str, texts: dict[str, bool]) -> None:
    if texts:
        assert answers(f"status {test}", Status=[*texts, None]) == [*texts.values(), None]
    else:
        with pytest.raises(ConditionError):
            parse(f"status {test}")


def test_rows_of_another_shape_are_refused() -> None:
    bound = parse("small = 1").bind(SCHEMA)
    for rows in (pa.record_batch({"small": pa.array([1], pa.int32())}), pa.array([{"big": 1}])):
        with pytest.raises(ValueError, match="no field small of type int16"):
            bound.evaluate(rows)
    assert bound.evaluate(pa.record_batch({"small": pa.array([], pa.int16())})).to_pylist() == []


def test_of_a_row_that_is_null_nothing_is_known() -> None:
    rows = pa.array([{"small": None}, None, {"small": 1}], pa.struct([("small", pa.int16())]))
    assert parse("small IS NULL").bind(SCHEMA).evaluate(rows).to_pylist() == [True, None, False]

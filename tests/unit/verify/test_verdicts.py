"""How values are shown to a person, those too that a target has and no source could."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from replicator.plugins.kit.canonical import column_texts
from replicator.verify.verdicts import in_order, shown


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0", "00:00:00"),
        ("37230500000", "10:20:30.500000"),
        ("86399999999", "23:59:59.999999"),
        ("362439000000", "100:40:39"),
        ("?noon", "noon"),
        ("?", ""),
    ],
)
def test_a_time_of_day_and_what_somebody_has_written_for_one(text: str, found: str) -> None:
    assert shown(text, pa.time64("us")) == found


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.bool_(), True, "true"),
        (pa.bool_(), False, "false"),
        (pa.float64(), 1500.0, "1500.0"),
        (pa.float64(), -0.1, "-0.1"),
        (pa.float64(), 1e300, "1e+300"),
        (pa.float64(), math.nan, "nan"),
        (pa.float64(), -math.inf, "-inf"),
        (pa.list_(pa.int32()), [1, None, -3], "[1, NULL, -3]"),
        (pa.list_(pa.bool_()), [True], "[true]"),
        (pa.list_(pa.string()), ["a,b", "", None, 'ß:"'], '["a,b", "", NULL, "ß:\\""]'),
        (pa.list_(pa.float64()), [1500.0], "[1500.0]"),
        (pa.list_(pa.string()), [], "[]"),
    ],
)
def test_a_value_is_shown_as_a_person_writes_it(kind: pa.DataType, value: Any, text: str) -> None:
    assert shown(column_texts(pa.array([value], kind), is_key=False)[0], kind) == text


@pytest.mark.parametrize(
    "kind",
    [
        pa.bool_(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(9, 2), pa.date32(), pa.timestamp("us"), pa.time64("us"),
        pa.string(), pa.binary(),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_value_of_its_type_is_shown_as_it_stands_and_comes_last(kind: pa.DataType) -> None:
    """A target that holds a type as text, or a list as JSON, may hold anything there."""
    assert shown("?nan ", kind) == "nan "
    assert in_order("?nan ", kind) == (2, b"nan ")
    of_kind = pa.list_(kind)
    shown_text = '"nan "' if pa.types.is_string(kind) else "nan "
    assert shown("[?nan ,,]", of_kind) == f"[{shown_text}, NULL]"
    assert shown("?no list", of_kind) == "no list"
    assert in_order("[?nan ,]", of_kind) == (2, f"[{shown_text}]".encode())


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_the_sign_of_a_zero_is_no_difference(kind: pa.DataType) -> None:
    minus, plus, least = column_texts(pa.array([-0.0, 0.0, -1e-40], kind), is_key=False)
    assert minus == plus == "0"
    assert least != plus


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [None, -10, -2, 0, 9, 10]),
        (pa.bool_(), [False, True]),
        (pa.float64(), [-math.inf, -2.0, 0.1, 15.0, 1500.0, math.inf, math.nan]),
        (pa.string(), [None, "", "B", "a", "aa", "ä"]),
        (pa.list_(pa.int32()), [[1], [2], []]),
    ],
)
def test_differences_are_in_the_order_of_their_keys(kind: pa.DataType, values: list[Any]) -> None:
    order = [in_order(text, kind) for text in column_texts(pa.array(values, kind), is_key=True)]
    assert order == sorted(order)
    assert [in_order(text, pa.time64("us")) for text in ("5", "?noon")] == [(1, 5), (2, b"noon")]

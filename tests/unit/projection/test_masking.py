"""Masks as functions of Arrow arrays, judged by plain Python."""

from __future__ import annotations

import hashlib
import hmac
import math
import random
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest

from replicator.config import Mask, MaskFunction, Secret
from replicator.projection.masking import MaskDoesNotFitError, masked, masked_type

KEY: Final = "sixteen bytes or more"
SHA256: Final = Mask(function=MaskFunction.SHA256)
HMAC: Final = Mask(function=MaskFunction.HMAC, key=Secret(KEY))
WITH_ID: Final = Mask(function=MaskFunction.HMAC, key=Secret(KEY), key_id="k2")
REDACT: Final = Mask(function=MaskFunction.REDACT)
NULL: Final = Mask(function=MaskFunction.NULL)


def last(count: int) -> Mask:
    return Mask(function=MaskFunction.LAST, number=count)


def bucket(size: int) -> Mask:
    return Mask(function=MaskFunction.BUCKET, number=size)


def by_date(unit: Any) -> Mask:
    return Mask(function=MaskFunction.DATE, unit=unit)


DAY_US = 86_400_000_000


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def mac(text: str) -> str:
    return hmac.new(KEY.encode(), text.encode(), "sha256").hexdigest()


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.string(), "a@é", "a@é"),
        (pa.string(), "", ""),
        (pa.int64(), -7, "-7"),
        (pa.int8(), 0, "0"),
        (pa.bool_(), True, "1"),
        (pa.decimal128(10, 2), Decimal("-12.5"), "-12.50"),
        (pa.decimal256(60, 3), Decimal(10) ** 50, f"1{'0' * 50}.000"),
        (pa.float64(), 1500.0, "15e3"),
        (pa.binary(), b"\x00\xff", "00ff"),
        (pa.date32(), date(1970, 1, 11), "10"),
        (pa.timestamp("us"), datetime(1970, 1, 1, 0, 0, 1), "1000000"),
        (pa.timestamp("us", tz="UTC"), datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), "-1000000"),
    ],
)
def test_digests_are_of_the_canonical_text(kind: pa.DataType, value: Any, text: str) -> None:
    values = pa.array([None, value, value, None], kind)
    assert masked_type(SHA256, kind) == pa.string()
    assert masked(values, SHA256).to_pylist() == [None, sha(text), sha(text), None]
    assert masked(values.slice(1, 2), HMAC).to_pylist() == [mac(text)] * 2
    assert masked(values.slice(2), WITH_ID).to_pylist() == [f"k2:{mac(text)}", None]


@pytest.mark.parametrize("mask", [SHA256, HMAC, WITH_ID, last(2), REDACT, NULL])
def test_no_rows_and_nothing_but_null(mask: Mask) -> None:
    for values in (pa.array([], pa.string()), pa.nulls(3, pa.string()), pa.array(["x"], pa.string()).slice(1)):
        found = masked(values, mask)
        assert (len(found), found.null_count) == (len(values), len(values))
        assert found.type == masked_type(mask, pa.string())
        found.validate(full=True)


@pytest.mark.parametrize(
    ("text", "count", "wanted"),
    [
        ("4111222233334444", 4, "************4444"),
        ("abc", 3, "***"),
        ("abcd", 3, "*bcd"),
        ("ab", 3, "**"),
        ("", 1, ""),
        ("a\nb\nc", 1, "****c"),
        ("äöü😀é", 2, "***😀é"),
    ],
)
def test_last_characters(text: str, count: int, wanted: str) -> None:
    assert masked(pa.array([text, None]), last(count)).to_pylist() == [wanted, None]


def test_redact_keeps_the_type() -> None:
    assert masked(pa.array(["x", None, ""]), REDACT).to_pylist() == ["***", None, "***"]
    for kind, value in ((pa.int32(), 5), (pa.list_(pa.string()), ["x"]), (pa.date32(), date(2020, 1, 1))):
        found = masked(pa.array([value], kind), REDACT)
        assert (found.type, found.to_pylist()) == (kind, [None])


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")])
def test_first_day(kind: pa.DataType) -> None:
    days = [date(2024, 2, 29), date(1969, 12, 31), date(1, 5, 17), date(9999, 12, 31), date(1970, 1, 1)]
    units: dict[str, Callable[[date], date]] = {
        "year": lambda day: day.replace(month=1, day=1),
        "month": lambda day: day.replace(day=1),
        "day": lambda day: day,
    }
    is_date = pa.types.is_date(kind)
    zone = UTC if kind == pa.timestamp("us", tz="UTC") else None

    def value(day: date, hour: int) -> Any:
        return day if is_date else datetime(day.year, day.month, day.day, hour, tzinfo=zone)

    for unit, first in units.items():
        found = masked(pa.array([None, *(value(day, 23) for day in days)], kind), by_date(unit))
        assert found.type == kind
        assert found.to_pylist() == [None, *(value(first(day), 0) for day in days)]


@pytest.mark.parametrize("unit", ["year", "month"])
@pytest.mark.parametrize("year", [-4712, -1, 0, 10_000, 32_767, 32_768, 99_999, 290_000])
def test_first_day_in_years_that_python_does_not_know(unit: str, year: int) -> None:
    first = np.datetime64(f"{year:05d}-01-01", "D").astype(int)
    days = pa.array([first + 30, None], pa.int32()).cast(pa.date32())
    assert masked(days, by_date(unit)).cast(pa.int32()).to_pylist() == [first, None]
    moments = pa.array([(first + 30) * DAY_US + 1, None], pa.int64()).cast(pa.timestamp("us", "UTC"))
    assert masked(moments, by_date(unit)).cast(pa.int64()).to_pylist() == [first * DAY_US, None]


@pytest.mark.parametrize("unit", ["year", "month", "day"])
def test_a_first_day_before_the_first_moment_is_refused(unit: str) -> None:
    with pytest.raises(MaskDoesNotFitError, match="too early"):
        masked(pa.array([1 - 2**63], pa.int64()).cast(pa.timestamp("us")), by_date(unit))


@pytest.mark.parametrize(
    ("kind", "value", "size", "wanted"),
    [
        (pa.int8(), -128, 100, -200),
        (pa.int32(), 999, 1000, 0),
        (pa.int64(), 2**63 - 1, 10, (2**63 - 1) // 10 * 10),
        (pa.decimal128(5, 2), Decimal("-0.01"), 10, Decimal("-10.00")),
        (pa.decimal128(5, 2), Decimal("999.99"), 100000, Decimal("0.00")),
        (pa.decimal128(38, 0), Decimal(10**38 - 1), 7, Decimal((10**38 - 1) // 7 * 7)),
        (pa.float64(), -0.5, 10, -10.0),
        (pa.float32(), 25.0, 10, 20.0),
    ],
)
def test_buckets_are_rounded_down(kind: pa.DataType, value: Any, size: int, wanted: Any) -> None:
    found = masked(pa.array([value, None], kind), bucket(size))
    assert found.type == masked_type(bucket(size), kind)
    assert found.to_pylist() == [wanted, None]


def test_a_bucket_below_the_smallest_number_is_refused() -> None:
    with pytest.raises(MaskDoesNotFitError, match="too small"):
        masked(pa.array([-(2**63)], pa.int64()), bucket(10))


def test_infinite_numbers_stay() -> None:
    found = masked(pa.array([float("inf"), float("-inf")]), bucket(10)).to_pylist()
    assert found == [float("inf"), float("-inf")]
    (nan,) = masked(pa.array([float("nan")]), bucket(10)).to_pylist()
    assert math.isnan(nan)


@pytest.mark.parametrize(
    ("mask", "kind"),
    [
        (SHA256, pa.list_(pa.string())),
        (HMAC, pa.list_(pa.int32())),
        (last(2), pa.int32()),
        (last(2), pa.binary()),
        (by_date("year"), pa.string()),
        (by_date("year"), pa.time64("us")),
        (bucket(3), pa.string()),
        (bucket(3), pa.bool_()),
        (bucket(3), pa.date32()),
        (bucket(10), pa.decimal256(76, 0)),
    ],
)
def test_functions_that_do_not_fit_are_refused(mask: Mask, kind: pa.DataType) -> None:
    with pytest.raises(MaskDoesNotFitError):
        masked_type(mask, kind)


def test_random_values_agree_with_plain_python() -> None:
    chance = random.Random(39)
    for _ in range(60):
        alphabet = "aä😀\n*0 "
        texts = [chance.choice([None, "".join(chance.choices(alphabet, k=chance.randrange(9)))]) for _ in range(20)]
        numbers = [chance.choice([None, chance.randrange(-(10**12), 10**12)]) for _ in range(20)]
        count, size = chance.randrange(1, 6), chance.randrange(1, 10**6)
        start = chance.randrange(5)
        strings, integers = pa.array(texts, pa.string()).slice(start), pa.array(numbers, pa.int64()).slice(start)
        assert masked(strings, SHA256).to_pylist() == [None if t is None else sha(t) for t in texts[start:]]
        assert masked(integers, HMAC).to_pylist() == [None if n is None else mac(str(n)) for n in numbers[start:]]
        assert masked(strings, last(count)).to_pylist() == [
            None if t is None else "*" * len(t) if len(t) <= count else "*" * (len(t) - count) + t[-count:]
            for t in texts[start:]
        ]
        assert masked(integers, bucket(size)).to_pylist() == [
            None if n is None else n // size * size for n in numbers[start:]
        ]

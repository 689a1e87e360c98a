"""Values of conditions as their columns' types have them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Any, Final

from replicator.model.arrow import pa
from replicator.projection.condition.syntax import Literal, LiteralKind, Operator

_DATE: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME: Final = re.compile(r"([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,6}))?)?")
_OFFSET: Final = re.compile(r"(.*?) ?(?:Z|([+-])([0-9]{2})(?::?([0-9]{2}))?)", re.DOTALL)
_SEPARATOR: Final = re.compile(r"[ T]")
_EPOCH: Final = date(1970, 1, 1).toordinal()
_DAY_US: Final = 86_400_000_000
_MINUTE_US: Final = 60_000_000
_HOURS_OF_OFFSET: Final = 15


class Family(StrEnum):
    """Types whose values can be compared with each other; the values are how a literal of it is written."""

    TRUTH = "TRUE or FALSE"
    EXACT = "a number, such as 12 or -1.5"
    FLOAT = "a number, such as 1.5 or 1e-3"
    TEXT = "a text in single quotes, such as 'new'"
    BINARY = "bytes in hex digits, such as X'00FF'"
    DATE = "a date, such as '2026-01-31'"
    TIME = "a time of day, such as '23:59:59.5'"
    TIMESTAMP = "a date and time without offset, such as '2026-01-31 23:59:59'"
    INSTANT = "a date and time with its offset from UTC, such as '2026-01-31 23:59:59Z' or '2026-01-31 23:59:59+02:00'"
    LIST = "IS NULL"


class Misfit(Exception):  # noqa: N818 an answer
    """A literal is no value of the type; the text says why, and is empty if its form tells."""


def family(type_: pa.DataType) -> Family:
    """Return the family of a canonical type."""
    for is_it, found in _families():
        if is_it(type_):
            return found
    raise ValueError(f"{type_} is not a canonical type")


def fitted(literal: Literal, type_: pa.DataType) -> Any:
    """Return a literal's value for a column of this type: what `scalar` takes, and for exact numbers a fraction.

    Raises:
        Misfit: The type has no such value, or the literal is not written as the type demands.
    """
    found = family(type_)
    if literal.kind is LiteralKind.NUMBER and found is Family.TRUTH and literal.value in {Decimal(0), Decimal(1)}:
        return bool(literal.value)
    kind, read = _READERS.get(found, (None, None))
    if read is None or literal.kind is not kind:
        raise Misfit
    return read(literal.value)


def scalar(value: Any, type_: pa.DataType) -> pa.Scalar:
    """Return a value as the type has it: times count microseconds, dates days, decimals their last digit."""
    if pa.types.is_decimal(type_):
        digits = tuple(map(int, str(abs(value))))
        return pa.scalar(Decimal((int(value < 0), digits, -type_.scale)), type_)
    return pa.scalar(value, pa.float64() if pa.types.is_floating(type_) else type_)


def whole(value: Fraction, type_: pa.DataType) -> int | None:
    """Return an exact number in units of the type's last digit; None if the type cannot hold it."""
    scaled = value * _units(type_)
    low, high = _range(type_)
    return scaled.numerator if scaled.denominator == 1 and low <= scaled <= high else None


def bounded(operator: Operator, value: Fraction, type_: pa.DataType) -> tuple[Operator, int] | bool:
    """Return the comparison with a number that the type can hold which says the same as one with `value`, or its constant answer."""
    scaled = value * _units(type_)
    floor = scaled.numerator // scaled.denominator
    is_whole = scaled.denominator == 1
    low, high = _range(type_)
    match operator:
        case Operator.EQUAL | Operator.UNEQUAL:
            return (operator, floor) if is_whole and low <= floor <= high else operator is Operator.UNEQUAL
        case Operator.LESS if not is_whole:
            operator = Operator.LESS_EQUAL
        case Operator.GREATER_EQUAL if not is_whole:
            operator = Operator.GREATER
        case _:
            pass
    if low <= floor <= high:
        return operator, floor
    return (floor > high) is (operator in {Operator.LESS, Operator.LESS_EQUAL})


def common(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the type in which values of two columns are compared; None if they cannot be."""
    families = {family(left), family(right)}
    if len(families) == 1 and Family.LIST not in families:
        if families == {Family.FLOAT}:
            return pa.float64()
        return _common_exact(left, right) if families == {Family.EXACT} and left != right else left
    if families == {Family.EXACT, Family.FLOAT} and not any(map(pa.types.is_decimal, (left, right))):
        return pa.float64()
    return None


def _common_exact(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if pa.types.is_integer(left) and pa.types.is_integer(right):
        return pa.int64()
    scale = max(_scale(left), _scale(right), 0)
    precision = max(_digits(left), _digits(right)) + scale
    return pa.decimal256(precision, scale) if precision <= 76 else None  # noqa: PLR2004 the widest decimal


def _families() -> tuple[tuple[Callable[[pa.DataType], bool], Family], ...]:
    types = pa.types
    return (
        (types.is_boolean, Family.TRUTH),
        (lambda t: types.is_integer(t) or types.is_decimal(t), Family.EXACT),
        (types.is_floating, Family.FLOAT),
        (types.is_string, Family.TEXT),
        (types.is_binary, Family.BINARY),
        (types.is_date32, Family.DATE),
        (types.is_time64, Family.TIME),
        (lambda t: types.is_timestamp(t) and t.tz is None, Family.TIMESTAMP),
        (types.is_timestamp, Family.INSTANT),
        (types.is_list, Family.LIST),
    )


def _scale(type_: pa.DataType) -> int:
    return type_.scale if pa.types.is_decimal(type_) else 0


def _digits(type_: pa.DataType) -> int:
    """Return the digits before the point."""
    return type_.precision - type_.scale if pa.types.is_decimal(type_) else len(str(1 << type_.bit_width - 1))


def _units(type_: pa.DataType) -> Fraction:
    return Fraction(10) ** _scale(type_)


def _range(type_: pa.DataType) -> tuple[int, int]:
    """Return the smallest and the largest value, in units."""
    if pa.types.is_decimal(type_):
        return 1 - 10**type_.precision, 10**type_.precision - 1
    half = 1 << type_.bit_width - 1
    return -half, half - 1


def _float(value: Decimal) -> float:
    """Return the nearest double; of both zeros the positive one, as values are found by their bits."""
    found = float(value)
    if found in {float("inf"), float("-inf")} or (value and not found):
        raise Misfit("Double precision cannot hold this number.")
    return found + 0.0


def _date(text: str) -> int:
    found = _DATE.fullmatch(text)
    if found is None:
        raise Misfit
    try:
        return date(*map(int, found.groups())).toordinal() - _EPOCH
    except ValueError:
        raise Misfit("This date does not exist.") from None


def _time(text: str) -> int:
    found = _TIME.fullmatch(text)
    if found is None:
        raise Misfit
    hours, minutes, seconds = (int(part or 0) for part in found.groups()[:3])
    if hours > 23 or minutes > 59 or seconds > 59:  # noqa: PLR2004 a clock
        raise Misfit("This time does not exist.")
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + int((found[4] or "").ljust(6, "0"))


def _timestamp(text: str) -> int:
    day, *clock = _SEPARATOR.split(text, maxsplit=1)
    return _date(day) * _DAY_US + (_time(clock[0]) if clock else 0)


def _instant(text: str) -> int:
    found = _OFFSET.fullmatch(text)
    if found is None or _SEPARATOR.search(found[1]) is None:
        raise Misfit
    hours, minutes = int(found[3] or 0), int(found[4] or 0)
    if hours > _HOURS_OF_OFFSET or minutes > 59:  # noqa: PLR2004 a clock
        raise Misfit("This offset does not exist.")
    offset = (hours * 60 + minutes) * _MINUTE_US
    return _timestamp(found[1]) - (-offset if found[2] == "-" else offset)


_READERS: Final[Mapping[Family, tuple[LiteralKind, Callable[[Any], Any]]]] = {
    Family.TRUTH: (LiteralKind.TRUTH, bool),
    Family.EXACT: (LiteralKind.NUMBER, Fraction),
    Family.FLOAT: (LiteralKind.NUMBER, _float),
    Family.TEXT: (LiteralKind.TEXT, str),
    Family.BINARY: (LiteralKind.BINARY, bytes),
    Family.DATE: (LiteralKind.TEXT, _date),
    Family.TIME: (LiteralKind.TEXT, _time),
    Family.TIMESTAMP: (LiteralKind.TEXT, _timestamp),
    Family.INSTANT: (LiteralKind.TEXT, _instant),
}

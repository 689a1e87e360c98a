"""What can be wrong in a target: the corruptions that `replicator verify` has to find, and the families of types that carry each. Pure.

A value is here what Arrow's `to_pylist` gives of a column whose days and times are the whole numbers that they are stored as.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from enum import StrEnum
from typing import Any, Final

import numpy as np
import pyarrow as pa

_EXACT: Final = Context(prec=100)
_LAST_DIGIT: Final = re.compile(r"[0-9](?=[^0-9]*\Z)")
_HOUR_US: Final = 3_600_000_000
_TIMES: Final = ("time", "time(")
_JSONS: Final = frozenset({"json", "jsonb"})


class Family(StrEnum):
    """Types whose values can go wrong in the same ways, as a target holds them."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    DECIMAL = "decimal"
    FLOAT = "float"
    DATE = "date"
    TIME = "time"
    MOMENT = "timestamp"
    INSTANT = "timestamp with time zone"
    TEXT = "text"
    JSON = "JSON"
    BINARY = "binary"
    LIST = "list"


class Corruption(StrEnum):
    """What is wrong with a row or with a value."""

    LOST = "lost row"
    DOUBLED = "doubled row"
    TWO_EQUAL = "two equal errors"
    STALE = "stale row"
    RESURRECTED = "resurrected row"
    SWAPPED = "swapped pair"
    NULL_FOR_VALUE = "NULL for a value"
    EMPTY_FOR_NULL = "empty or 0 for NULL"
    ULP_UP = "1 ulp up"
    ULP_DOWN = "1 ulp down"
    LAST_DIGIT = "last digit"
    SMALLEST_UNIT = "smallest unit of time"
    TIME_ZONE = "an hour off"
    TRAILING_SPACE = "trailing space"
    NUL = "NUL character"
    LETTER_CASE = "letter case"
    TRUNCATED = "last byte or element cut off"
    ONE_BIT = "one bit"
    ELEMENT_ORDER = "order of elements"
    ELEMENT = "one element"
    NULL_ELEMENT = "NULL for an element"
    WHITE_SPACE = "white space"


OF_ROWS: Final = (
    Corruption.LOST,
    Corruption.DOUBLED,
    Corruption.TWO_EQUAL,
    Corruption.STALE,
    Corruption.RESURRECTED,
    Corruption.SWAPPED,
)
"""They do not depend on the type. All the others change one value of one row."""
OF_VALUES: Final = tuple(one for one in Corruption if one not in OF_ROWS)


@dataclass(frozen=True, slots=True)
class Held:
    """How a target holds a column: its family, and its Arrow type there with whole numbers for days and times.

    A list in JSON text is one of nulls: its elements are what JSON says.
    """

    family: Family
    type: pa.DataType


Change = Callable[[Any, Held], Any]
"""Another value than the one that is given, which is not NULL; the same one or None if this value cannot go wrong in that way."""


def held(source_type: str, kind: pa.DataType, *, is_list: bool = False) -> Held:
    """How a column is held.

    Args:
        source_type: Its type in the source, as it was declared: some targets keep times, JSON and lists as text.
        kind: Its Arrow type in the target.
        is_list: It is a list, which the target keeps as JSON text.
    """
    width = whole_numbers(kind)
    if is_list:
        return Held(Family.LIST, pa.list_(pa.null()))
    found = next((family for is_of, family in _BY_ARROW if is_of(kind)), None)
    if found is None:
        raise ValueError(f"no family has the type {kind}")
    if found is Family.MOMENT and kind.tz:
        found = Family.INSTANT
    if found is Family.TEXT and source_type in _JSONS:
        found = Family.JSON
    if found is Family.TEXT and (source_type == _TIMES[0] or source_type.startswith(_TIMES[1])):
        found = Family.TIME
    return Held(found, width)


def whole_numbers(kind: pa.DataType) -> pa.DataType:
    """The type with the whole numbers as which days and times are stored."""
    if pa.types.is_list(kind):
        return pa.list_(whole_numbers(kind.value_type))
    if pa.types.is_date32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) or pa.types.is_time64(kind) else kind


_BY_ARROW: Final[tuple[tuple[Callable[[pa.DataType], bool], Family], ...]] = (
    (pa.types.is_boolean, Family.BOOLEAN),
    (pa.types.is_integer, Family.INTEGER),
    (pa.types.is_decimal, Family.DECIMAL),
    (pa.types.is_floating, Family.FLOAT),
    (pa.types.is_date, Family.DATE),
    (pa.types.is_time, Family.TIME),
    (pa.types.is_timestamp, Family.MOMENT),
    (pa.types.is_string, Family.TEXT),
    (pa.types.is_binary, Family.BINARY),
    (pa.types.is_list, Family.LIST),
    (pa.types.is_null, Family.BOOLEAN),
)


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are the same one: every NaN is one, and both zeros are."""
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other):
        return True
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    return (one is None) == (other is None) and bool(one == other)


def changed(corruption: Corruption, value: Any, how: Held) -> Any:
    """The value with the corruption.

    Raises:
        CannotCarryError: This value cannot have it.
    """
    change = MATRIX[corruption].get(how.family)
    if change is None:
        raise CannotCarryError(WHY_NOT[corruption])
    if (value is None) != (corruption is Corruption.EMPTY_FOR_NULL):
        raise CannotCarryError("NULL is no value of a type")
    is_in_text = how.family is Family.LIST and isinstance(value, str) and corruption is not Corruption.NULL_FOR_VALUE
    found = _decoded(change)(value, how) if is_in_text else change(value, how)
    if (found is None and corruption is not Corruption.NULL_FOR_VALUE) or is_same(found, value):
        raise CannotCarryError("not this value of the type")
    return found


def _decoded(change: Change) -> Change:
    """The change of a list that is JSON text."""

    def of_text(value: Any, how: Held) -> Any:
        elements = json.loads(value)
        found = change(elements, how)
        if found is None or is_same(found, elements):
            return value
        return json.dumps(found, ensure_ascii=False, separators=(",", ":"))

    return of_text


class CannotCarryError(Exception):
    """A value, or all values of a type, cannot have a corruption."""


# -- the changes -----------------------------------------------------------------------------------------------------------


def _ulp(direction: float) -> Change:
    def change(value: Any, how: Held) -> Any:
        single = np.float32 if pa.types.is_float32(how.type) else np.float64
        with np.errstate(all="ignore"):
            return float(np.nextafter(single(value), single(direction)))

    return change


def _towards_zero(value: Any, _: Held) -> Any:
    """The value's neighbour that every range has."""
    return value - 1 if value > 0 else value + 1


def _last_decimal_digit(value: Any, how: Held) -> Any:
    unit = Decimal(1).scaleb(-how.type.scale)
    return _EXACT.subtract(value, unit) if value > 0 else _EXACT.add(value, unit)


def _last_digit_of_text(value: Any, _: Held) -> Any:
    return _LAST_DIGIT.sub(lambda digit: str((int(digit[0]) + 1) % 10), value)


def _unit_of_time(value: Any, how: Held) -> Any:
    """Of a time of day, which a target may keep as text."""
    return _last_digit_of_text(value, how) if isinstance(value, str) else _towards_zero(value, how)


def _hour_of_day(value: Any, how: Held) -> Any:
    del how
    if isinstance(value, str):
        hour, _, rest = value.partition(":")
        return f"{(int(hour) + 1) % 24:02}:{rest}" if hour.isdecimal() and int(hour) < 24 else value
    return (value + _HOUR_US) % (24 * _HOUR_US)


def _an_hour_off(value: Any, _: Held) -> Any:
    return value - _HOUR_US if value > 0 else value + _HOUR_US


def _with_nul(value: Any, _: Held) -> Any:
    middle = len(value) // 2
    return f"{value[:middle]}\0{value[middle:]}"


def _one_bit(value: Any, _: Held) -> Any:
    if not value:
        return value
    middle = len(value) // 2
    return value[:middle] + bytes([value[middle] ^ 1]) + value[middle + 1 :]


def _element(value: Any, how: Held) -> Any:
    """Whatever its first element can have that is not NULL."""
    for number, one in enumerate(value):
        kind = how.type.value_type
        inner = held("", pa.scalar(one).type if pa.types.is_null(kind) and one is not None else kind)
        for corruption in (Corruption.ULP_UP, Corruption.LAST_DIGIT, Corruption.ONE_BIT, Corruption.TRAILING_SPACE):
            try:
                return [*value[:number], changed(corruption, one, inner), *value[number + 1 :]]
            except CannotCarryError:
                continue
    return value


def _null_element(value: Any, _: Held) -> Any:
    found = next((number for number, one in enumerate(value) if one is not None), None)
    return value if found is None else [*value[:found], None, *value[found + 1 :]]


def _empty_or_zero(_: Any, how: Held) -> Any:
    if how.type == pa.list_(pa.null()):
        return "[]"
    if how.family is Family.TIME:
        return "00:00:00.000000" if pa.types.is_string(how.type) else 0
    return _EMPTY[how.family]


_EMPTY: Final[Mapping[Family, Any]] = {
    Family.BOOLEAN: False, Family.INTEGER: 0, Family.DECIMAL: Decimal(0), Family.FLOAT: 0.0, Family.DATE: 0, Family.MOMENT: 0,
    Family.INSTANT: 0, Family.TEXT: "", Family.JSON: "", Family.BINARY: b"", Family.LIST: [],
}  # fmt: skip


def _of_each(change: Change, *families: Family) -> Mapping[Family, Change]:
    return dict.fromkeys(families, change)


_TEXTS: Final = (Family.TEXT, Family.JSON)

MATRIX: Final[Mapping[Corruption, Mapping[Family, Change]]] = {
    Corruption.NULL_FOR_VALUE: _of_each(lambda _value, _how: None, *Family),
    Corruption.EMPTY_FOR_NULL: _of_each(_empty_or_zero, *Family),
    Corruption.ULP_UP: {Family.FLOAT: _ulp(math.inf)},
    Corruption.ULP_DOWN: {Family.FLOAT: _ulp(-math.inf)},
    Corruption.LAST_DIGIT: {
        Family.INTEGER: _towards_zero,
        Family.DECIMAL: _last_decimal_digit,
        **_of_each(_last_digit_of_text, *_TEXTS),
    },
    Corruption.SMALLEST_UNIT: {
        Family.TIME: _unit_of_time,
        **_of_each(_towards_zero, Family.DATE, Family.MOMENT, Family.INSTANT),
    },
    Corruption.TIME_ZONE: {Family.TIME: _hour_of_day, **_of_each(_an_hour_off, Family.MOMENT, Family.INSTANT)},
    Corruption.TRAILING_SPACE: _of_each(lambda value, _: value + " ", *_TEXTS),
    Corruption.NUL: _of_each(_with_nul, *_TEXTS),
    Corruption.LETTER_CASE: _of_each(lambda value, _: value.swapcase(), *_TEXTS),
    Corruption.TRUNCATED: _of_each(lambda value, _: value[:-1], *_TEXTS, Family.BINARY, Family.LIST),
    Corruption.ONE_BIT: {Family.BOOLEAN: lambda value, _: not value, Family.BINARY: _one_bit},
    Corruption.ELEMENT_ORDER: {Family.LIST: lambda value, _: value[::-1]},
    Corruption.ELEMENT: {Family.LIST: _element},
    Corruption.NULL_ELEMENT: {Family.LIST: _null_element},
    Corruption.WHITE_SPACE: {Family.JSON: lambda value, _: " " + value},
}
"""By corruption of a value: the families that carry it, and how. Why the others do not: `WHY_NOT`."""

WHY_NOT: Final[Mapping[Corruption, str]] = {
    Corruption.ULP_UP: "only floats have neighbours at no fixed distance",
    Corruption.ULP_DOWN: "only floats have neighbours at no fixed distance",
    Corruption.LAST_DIGIT: "the others have a smallest unit of time, one bit or one ulp instead, or no digits",
    Corruption.SMALLEST_UNIT: "only days and times have one",
    Corruption.TIME_ZONE: "only times have hours",
    Corruption.TRAILING_SPACE: "only texts have spaces",
    Corruption.NUL: "only texts have characters",
    Corruption.LETTER_CASE: "only texts have letters",
    Corruption.TRUNCATED: "the others have values of a fixed size",
    Corruption.ONE_BIT: "of the others, a bit is a digit or a character",
    Corruption.ELEMENT_ORDER: "only lists have elements",
    Corruption.ELEMENT: "only lists have elements",
    Corruption.NULL_ELEMENT: "only lists have elements",
    Corruption.WHITE_SPACE: "only in JSON it is not part of the value",
}

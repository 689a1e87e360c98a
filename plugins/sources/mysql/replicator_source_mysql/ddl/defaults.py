"""Values of a new column in the rows that were there before it. Pure.

Only literals whose value does not depend on a session or on a character set: of texts, those in plain ASCII. Everything else is
unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, TypeVar

import numpy as np

from replicator_source_mysql.binlog import ColumnSpec, TypeKind
from replicator_source_mysql.flavors import Flavor
from replicator_source_mysql.sql.definitions import ColumnDefinition, Default, Form

MomentT = TypeVar("MomentT", date, datetime)

EMPTY_STRING_IS_NULL: Final = 1 << 32

_INTEGER: Final = re.compile(r"[-+]?\d{1,20}")
_PLAIN_INTEGER: Final = re.compile(r"0|-?[1-9]\d{0,18}")
_DECIMAL: Final = re.compile(r"[-+]?(\d{1,65})(?:\.(\d{1,38}))?")
_REAL_DIGITS: Final = 15
_BITS: Final = re.compile(r"0b[01]+|[bB]'[01]+'|0x[0-9a-fA-F]+|[xX]'[0-9a-fA-F]+'")
_BINARY: Final = re.compile(r"0b[01]{1,63}|[bB]'[01]{1,63}'")
_BYTES: Final = re.compile(r"0x((?:[0-9a-fA-F]{2})+)|[xX]'((?:[0-9a-fA-F]{2})*)'")
_DATE: Final = re.compile(r"[1-9]\d{3}-\d\d-\d\d")
_DATETIME: Final = re.compile(r"([1-9]\d{3}-\d\d-\d\d)(?: (\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?)?")
_TIME: Final = re.compile(r"(-?)(\d\d|[1-8]\d\d):([0-5]\d):([0-5]\d)(?:\.(\d{1,6}))?")
_HOURS_MAX: Final = 838
_YEAR: Final = re.compile(r"(?:19|20|21)\d\d")
_YEARS: Final = range(1901, 2156)
# Letters that every character set has, in whatever form.
_PLAIN_TEXT: Final = re.compile(r"[A-Za-z0-9 !\"%&'()*+,./:;<=>?_-]*")


class UnknownValueError(Exception):
    """The value cannot be told from the statement alone."""


def value_before(definition: ColumnDefinition, spec: ColumnSpec, *, sql_mode: int, flavor: Flavor) -> Any:
    """The canonical value of a new column in rows that are there already; None is NULL.

    Raises:
        UnknownValueError: See there.
    """
    if definition.is_computed:
        raise UnknownValueError
    default = definition.default
    if default is None:
        return _without_default(definition, spec)
    if default.form is Form.NULL:
        return None
    if default.form is Form.COMPUTED:
        raise UnknownValueError
    if default == Default(Form.STRING) and flavor.empty_string_may_be_null and sql_mode & EMPTY_STRING_IS_NULL:
        raise UnknownValueError
    read = _READERS.get(spec.kind)
    if read is None:
        raise UnknownValueError
    return read(default, spec, definition)


def _without_default(definition: ColumnDefinition, spec: ColumnSpec) -> Any:
    if spec.kind is TypeKind.TIMESTAMP and definition.is_nullable is None:
        # explicit_defaults_for_timestamp.
        raise UnknownValueError
    if definition.is_nullable is not False:
        return None
    if spec.kind not in _IMPLICIT:
        raise UnknownValueError
    return _IMPLICIT[spec.kind](spec)


_IMPLICIT: Final[Mapping[TypeKind, Callable[[ColumnSpec], Any]]] = {
    TypeKind.INTEGER: lambda _: 0,
    TypeKind.DECIMAL: lambda s: Decimal(0).scaleb(-s.scale),
    TypeKind.FLOAT: lambda _: 0.0,
    TypeKind.DOUBLE: lambda _: 0.0,
    TypeKind.BIT: lambda s: _bits(0, s),
    TypeKind.YEAR: lambda _: 0,
    TypeKind.TIME: lambda s: "00:00:00" + _padded("", s.scale),
    TypeKind.TEXT: lambda _: "",
    TypeKind.BYTES: lambda s: bytes(s.width if s.is_fixed else 0),
    TypeKind.ENUM: lambda s: _enum(Default(Form.STRING, s.labels[0]), s, None),
    TypeKind.SET: lambda _: "",
}


# ---- literals ----


def _need(*, holds: bool) -> None:
    if not holds:
        raise UnknownValueError


def _integer(default: Default, spec: ColumnSpec, _: ColumnDefinition) -> int:
    if default.form is Form.NUMBER and _BINARY.fullmatch(default.text):
        number = int(default.text[2:].rstrip("'"), 2)
    else:
        _need(holds=_INTEGER.fullmatch(default.text) is not None)
        number = int(default.text)
    bits = 8 * spec.width
    low, high = (0, 1 << bits) if spec.is_unsigned else (-(1 << bits - 1), 1 << bits - 1)
    _need(holds=low <= number < high)
    return number


def _decimal(default: Default, spec: ColumnSpec, definition: ColumnDefinition) -> Decimal:
    found = _DECIMAL.fullmatch(default.text)
    _need(holds=found is not None)
    assert found is not None
    number = Decimal(default.text)
    _need(holds=len(found[1].lstrip("0")) <= spec.precision - spec.scale and len(found[2] or "") <= spec.scale)
    _need(holds=number >= 0 or "unsigned" not in definition.type)
    # As text: a context would round what is longer than it.
    sign = "-" if number < 0 else ""
    return Decimal(f"{sign}{found[1]}.{(found[2] or '').ljust(spec.scale, '0')}" if spec.scale else f"{sign}{found[1]}")


def _real(default: Default, spec: ColumnSpec, definition: ColumnDefinition) -> float:
    found = _DECIMAL.fullmatch(default.text)
    # A type with digits rounds.
    _need(holds=found is not None and "(" not in definition.type)
    number = float(default.text)
    digits = sum(char.isdigit() for char in default.text)
    is_signed = default.text.startswith("-")
    _need(holds=digits <= _REAL_DIGITS and not (is_signed and (number == 0 or "unsigned" in definition.type)))
    return float(np.float32(number)) if spec.kind is TypeKind.FLOAT else number


def _bit(default: Default, spec: ColumnSpec, _: ColumnDefinition) -> Any:
    text = default.text
    _need(holds=default.form is Form.NUMBER)
    if _BITS.fullmatch(text):
        digits = text[2:].rstrip("'")
        number = int(digits, 2 if text[0] in "bB" or text[1] == "b" else 16)
    else:
        _need(holds=_PLAIN_INTEGER.fullmatch(text) is not None)
        number = int(text)
    _need(holds=0 <= number < 1 << spec.width)
    return _bits(number, spec)


def _bits(number: int, spec: ColumnSpec) -> Any:
    return bool(number) if spec.width == 1 else Decimal(number) if spec.width == 64 else number  # noqa: PLR2004 - the widest


def _year(default: Default, _: ColumnSpec, __: ColumnDefinition) -> int:
    _need(holds=_YEAR.fullmatch(default.text) is not None and int(default.text) in _YEARS)
    return int(default.text)


def _date(default: Default, _: ColumnSpec, __: ColumnDefinition) -> date:
    _need(holds=default.form is Form.STRING and _DATE.fullmatch(default.text) is not None)
    return _checked(lambda: date.fromisoformat(default.text))


def _datetime(default: Default, spec: ColumnSpec, _: ColumnDefinition) -> datetime:
    found = _DATETIME.fullmatch(default.text)
    _need(holds=default.form is Form.STRING and found is not None and len(found[3] or "") <= spec.scale)
    assert found is not None
    return _checked(
        lambda: datetime.fromisoformat(f"{found[1]} {found[2] or '00:00:00'}.{(found[3] or '').ljust(6, '0')}")
    )


def _checked(make: Callable[[], MomentT]) -> MomentT:
    try:
        return make()
    except ValueError as error:
        raise UnknownValueError from error


def _time(default: Default, spec: ColumnSpec, _: ColumnDefinition) -> str:
    found = _TIME.fullmatch(default.text)
    _need(holds=default.form is Form.STRING and found is not None and len(found[5] or "") <= spec.scale)
    assert found is not None
    sign, hours, minutes, seconds, fraction = found.groups()
    number = int(hours) * 3600 + int(minutes) * 60 + int(seconds)
    _need(holds=number < (_HOURS_MAX + 1) * 3600 - 1 and (not sign or number > 0))
    return f"{sign}{hours}:{minutes}:{seconds}{_padded(fraction or '', spec.scale)}"


def _padded(fraction: str, scale: int) -> str:
    return "." + fraction.ljust(scale, "0") if scale else ""


def _text(default: Default, _: ColumnSpec, definition: ColumnDefinition) -> str:
    text = default.text
    if default.form is Form.NUMBER:
        _need(holds=_PLAIN_INTEGER.fullmatch(text) is not None)
    _need(holds=_PLAIN_TEXT.fullmatch(text) is not None)
    return text.rstrip(" ") if definition.type.startswith("char") else text


def _bytes(default: Default, spec: ColumnSpec, _: ColumnDefinition) -> bytes:
    # Of a string, it is the session's character set that makes bytes.
    raw = b""
    if default != Default(Form.STRING):
        found = _BYTES.fullmatch(default.text)
        _need(holds=default.form is Form.NUMBER and found is not None)
        assert found is not None
        raw = bytes.fromhex(found[1] or found[2] or "")
    return raw.ljust(spec.width, b"\0") if spec.is_fixed else raw


def _enum(default: Default, spec: ColumnSpec, _: ColumnDefinition | None) -> str:
    _need(holds=default.form is Form.STRING and default.text in spec.labels)
    _need(holds=_PLAIN_TEXT.fullmatch(default.text) is not None)
    return default.text


def _set(default: Default, spec: ColumnSpec, _: ColumnDefinition) -> str:
    _need(holds=default.form is Form.STRING and _PLAIN_TEXT.fullmatch(default.text) is not None)
    parts = default.text.split(",") if default.text else []
    numbers = [spec.labels.index(part) if part in spec.labels else -1 for part in parts]
    _need(holds=-1 not in numbers and numbers == sorted(set(numbers)))
    return default.text


_READERS: Final[Mapping[TypeKind, Callable[[Default, ColumnSpec, ColumnDefinition], Any]]] = {
    TypeKind.INTEGER: _integer,
    TypeKind.DECIMAL: _decimal,
    TypeKind.FLOAT: _real,
    TypeKind.DOUBLE: _real,
    TypeKind.BIT: _bit,
    TypeKind.YEAR: _year,
    TypeKind.DATE: _date,
    TypeKind.DATETIME: _datetime,
    TypeKind.TIME: _time,
    TypeKind.TEXT: _text,
    TypeKind.BYTES: _bytes,
    TypeKind.ENUM: _enum,
    TypeKind.SET: _set,
}

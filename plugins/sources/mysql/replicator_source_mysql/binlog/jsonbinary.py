"""MySQL's binary JSON to the text that SELECT gives.

Format: MySQL `sql-common/json_binary.h`; text: `Json_wrapper::to_string` in `sql-common/json_dom.cc`.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Mapping
from typing import Final

_SMALL_OBJECT: Final = 0x00
_LARGE_OBJECT: Final = 0x01
_LARGE_ARRAY: Final = 0x03
_LITERAL: Final = 0x04
_INT16: Final = 0x05
_UINT16: Final = 0x06
_INT32: Final = 0x07
_UINT32: Final = 0x08
_INT64: Final = 0x09
_UINT64: Final = 0x0A
_DOUBLE: Final = 0x0B
_STRING: Final = 0x0C
_OPAQUE: Final = 0x0F

_LITERALS: Final = {0: "null", 1: "true", 2: "false"}
_SCALARS: Final[Mapping[int, struct.Struct]] = {
    _INT16: struct.Struct("<h"),
    _UINT16: struct.Struct("<H"),
    _INT32: struct.Struct("<i"),
    _UINT32: struct.Struct("<I"),
    _INT64: struct.Struct("<q"),
    _UINT64: struct.Struct("<Q"),
}
_DOUBLE_FORM: Final = struct.Struct("<d")
_INLINE_SMALL: Final = frozenset({_LITERAL, _INT16, _UINT16})
_INLINE_LARGE: Final = frozenset({_LITERAL, _INT16, _UINT16, _INT32, _UINT32})

_DEPTH_MAX: Final = 100
_DECIMAL: Final = 246
_DATE: Final = 10
_TIME: Final = 11
_DATETIME: Final = 12
_TIMESTAMP: Final = 7
_SECOND_US: Final = 24
_MOMENT_SIZE: Final = 8
_VARIABLE_LENGTH_BYTES: Final = 5
_BASE64_LINE: Final = 76

_ESCAPES: Final = {
    **{code: f"\\u{code:04x}" for code in range(32)},
    ord("\b"): "\\b",
    ord("\f"): "\\f",
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
    ord('"'): '\\"',
    ord("\\"): "\\\\",
}


def json_text(raw: bytes) -> str:
    """The text of a document. ValueError if it is none; a document of no bytes is `null`, as on the server."""
    if not raw:
        return "null"
    reader = _Document(raw)
    try:
        return reader.value(raw[0], 1, len(raw), 0)
    except (IndexError, struct.error):
        raise ValueError("a JSON document ends before its values do") from None


class _Document:
    """Writes values as text. `_budget` bounds the work on documents whose offsets lead to the same bytes over and over."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._budget = 4 * len(raw) + 64

    def value(self, kind: int, offset: int, end: int, depth: int) -> str:
        """The text of the value at `offset`; nothing of it lies after `end`."""
        self._budget -= 1
        if depth > _DEPTH_MAX or self._budget < 0:
            raise ValueError("a JSON document is nested too deeply")
        if kind <= _LARGE_ARRAY:
            return self._container(kind, offset, end, depth)
        if kind == _LITERAL:
            return self._literal(self._raw[offset])
        if (scalar := _SCALARS.get(kind)) is not None:
            return str(scalar.unpack_from(self._raw, offset)[0])
        if kind == _DOUBLE:
            return double_text(_DOUBLE_FORM.unpack_from(self._raw, offset)[0])
        if kind == _STRING:
            return _quoted(self._string(offset, end))
        if kind == _OPAQUE:
            return _opaque(self._raw[offset], self._string(offset + 1, end))
        raise ValueError("a JSON value is of an unknown kind")

    def _literal(self, number: int) -> str:
        if number not in _LITERALS:
            raise ValueError("a JSON literal is invalid")
        return _LITERALS[number]

    def _string(self, offset: int, end: int) -> bytes:
        length = shift = 0
        for index in range(_VARIABLE_LENGTH_BYTES):
            byte = self._raw[offset + index]
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:  # noqa: PLR2004  (the last byte of a length)
                begin = offset + index + 1
                return self._part(begin, begin + length, end)
        raise ValueError("a JSON length does not end")

    def _part(self, begin: int, stop: int, end: int) -> bytes:
        if not 0 <= begin <= stop <= end:
            raise ValueError("a JSON value runs over the end of its container")
        self._budget -= (stop - begin) >> 3
        return self._raw[begin:stop]

    def _container(self, kind: int, offset: int, end: int, depth: int) -> str:
        is_large = kind in {_LARGE_OBJECT, _LARGE_ARRAY}
        size = 4 if is_large else 2
        count = self._integer(offset, size)
        stop = offset + self._integer(offset + size, size)
        is_object = kind in {_SMALL_OBJECT, _LARGE_OBJECT}
        entries = offset + 2 * size
        values = entries + (count * (size + 2) if is_object else 0)
        if stop > end or values + count * (size + 1) > stop:
            raise ValueError("a JSON container runs over its end")
        items = []
        for index in range(count):
            text = self._element(offset, values + index * (size + 1), stop, depth, size)
            if is_object:
                text = f"{_quoted(self._key(offset, entries + index * (size + 2), stop, size))}: {text}"
            items.append(text)
        inner = ", ".join(items)
        return f"{{{inner}}}" if is_object else f"[{inner}]"

    def _key(self, offset: int, entry: int, stop: int, size: int) -> bytes:
        begin = offset + self._integer(entry, size)
        return self._part(begin, begin + self._integer(entry + size, 2), stop)

    def _element(self, offset: int, entry: int, stop: int, depth: int, size: int) -> str:
        kind = self._raw[entry]
        if kind in (_INLINE_LARGE if size == 4 else _INLINE_SMALL):  # noqa: PLR2004  (bytes of an offset)
            return self.value(kind, entry + 1, stop, depth + 1)
        return self.value(kind, offset + self._integer(entry + 1, size), stop, depth + 1)

    def _integer(self, offset: int, size: int) -> int:
        if offset + size > len(self._raw):
            raise ValueError("a JSON document ends before its values do")
        return int.from_bytes(self._raw[offset : offset + size], "little")


def _quoted(raw: bytes) -> str:
    return f'"{raw.decode().translate(_ESCAPES)}"'


def double_text(number: float) -> str:
    """A double as the server writes it (`my_gcvt`): the shortest digits that read back, in exponent form where that is needed."""
    if number != number or number in (float("inf"), float("-inf")):  # noqa: PLR0124  (not a number)
        raise ValueError("a JSON number is not finite")
    sign = "-" if repr(number).startswith("-") else ""
    if number == 0:
        return f"{sign}0.0"
    mantissa, _, exponent = f"{abs(number)!r}".partition("e")
    before, _, behind = mantissa.partition(".")
    digits = (before + behind).lstrip("0")
    leading = len(before) + len(behind) - len(digits)
    return sign + _shaped(digits.rstrip("0"), len(before) - leading + int(exponent or 0))


# The point's position after the first digit beyond which the exponent form is written (measured for every length of digits).
_PLAIN_POINT_MAX: Final = 15
_PLAIN_POINT_MIN: Final = -14
_DIGITS_MAX: Final = 17


def _shaped(digits: str, point: int) -> str:
    is_full = len(digits) == _DIGITS_MAX and point == _DIGITS_MAX - 1
    if not (_PLAIN_POINT_MIN <= point <= _PLAIN_POINT_MAX or is_full):
        exponent = point - 1
        fraction = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{digits[0]}{fraction}e{exponent}"
    if point <= 0:
        return f"0.{'0' * -point}{digits}"
    if len(digits) <= point:
        return f"{digits.ljust(point, '0')}.0"
    return f"{digits[:point]}.{digits[point:]}"


# ---- opaque values: MySQL types inside JSON ----


def _opaque(code: int, raw: bytes) -> str:
    write = _OPAQUES.get(code)
    if write is not None:
        return write(raw)
    text = base64.b64encode(raw).decode()
    lines = (text[offset : offset + _BASE64_LINE] for offset in range(0, len(text), _BASE64_LINE))
    # The server breaks the lines, and escapes the break.
    return f'"base64:type{code}:' + "\\n".join(lines) + '"'


def _decimal(raw: bytes) -> str:
    if len(raw) < 2 or raw[1] > raw[0]:  # noqa: PLR2004  (precision and scale in front)
        raise ValueError("a JSON decimal is invalid")
    precision, scale, packed = raw[0], raw[1], raw[2:]
    sizes = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
    before = precision - scale
    groups = [before % 9] if before % 9 else []
    groups += [9] * (before // 9 + scale // 9)
    groups += [scale % 9] if scale % 9 else []
    if sum(sizes[d] for d in groups) != len(packed) or not packed:
        raise ValueError("a JSON decimal is not of its size")
    is_negative = packed[0] < 0x80  # noqa: PLR2004  (the sign's bit, inverted)
    first = packed[0] ^ 0x80
    plain = bytes([first]) + packed[1:]
    if is_negative:
        plain = bytes(b ^ 0xFF for b in plain)
    digits, offset = "", 0
    for count in groups:
        number = int.from_bytes(plain[offset : offset + sizes[count]], "big")
        if number >= 10**count:
            raise ValueError("a JSON decimal has more digits than a group has")
        digits += str(number).rjust(count, "0")
        offset += sizes[count]
    whole = digits[:before].lstrip("0") or "0"
    return ("-" if is_negative else "") + whole + (f".{digits[before:]}" if scale else "")


def _moment(raw: bytes) -> tuple[bool, int, int]:
    if len(raw) != _MOMENT_SIZE:
        raise ValueError("a JSON time is not of its size")
    packed = int.from_bytes(raw, "little", signed=True)
    amount = abs(packed)
    return packed < 0, amount >> _SECOND_US, amount & ((1 << _SECOND_US) - 1)


def _date(raw: bytes) -> str:
    _, whole, _ = _moment(raw)
    return f'"{_day(whole >> 17)}"'


def _datetime(raw: bytes) -> str:
    _, whole, fraction = _moment(raw)
    return f'"{_day(whole >> 17)} {whole >> 12 & 31:02}:{whole >> 6 & 63:02}:{whole & 63:02}.{fraction:06}"'


def _time(raw: bytes) -> str:
    is_negative, whole, fraction = _moment(raw)
    sign = "-" if is_negative else ""
    return f'"{sign}{whole >> 12 & 1023:02}:{whole >> 6 & 63:02}:{whole & 63:02}.{fraction:06}"'


def _day(packed: int) -> str:
    months = packed >> 5
    return f"{months // 13:04}-{months % 13:02}-{packed & 31:02}"


_OPAQUES: Final[Mapping[int, Callable[[bytes], str]]] = {
    _DECIMAL: _decimal,
    _DATE: _date,
    _TIME: _time,
    _DATETIME: _datetime,
    _TIMESTAMP: _datetime,
}

"""The canonical form of values (`replicator.plugins.verification`), from Arrow columns.

Plugins compute it by SQL. This is for single keys, and for tests that compare the two.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from decimal import Context, Decimal
from typing import Any, Final

import pyarrow as pa

TEXT_BYTES_MAX: Final = 256
"""Longer strings are in a row text as their digest."""
DIGEST_DIGITS: Final = 32
"""Hex digits of SHA-256 in a digest."""

# Decimals have up to 76 digits.
_EXACT: Final = Context(prec=100)


def row_texts(rows: pa.RecordBatch) -> Sequence[str]:
    """Return the row text of each row; `rows` has the compared columns in their order."""
    return _joined(rows, is_key=False)


def key_texts(keys: pa.RecordBatch) -> Sequence[str]:
    """Return the key text of each row; `keys` has the key columns in key order."""
    return _joined(keys, is_key=True)


def digest_of(text: str) -> str:
    """Return the id or the hash that belongs to a text."""
    return _digest(text.encode())


def value_text(value: Any, kind: pa.DataType, *, is_key: bool) -> str | None:
    """Return the canonical form of one value of `pa.Scalar.value` or `as_py`: temporal ones as integers. None for NULL."""
    match value:
        case None:
            return None
        case bool():
            return str(int(value))
        case str():
            return _string(value, is_key=is_key)
        case bytes():
            return f"{len(value)}${value.hex()}" if is_key else f"{len(value)}#{_digest(value)}"
        case Decimal():
            text = format(value.quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT), "f")
            return text.removeprefix("-") if not value else text
        case float():
            return _float(value)
    return str(value)


def values(texts: Sequence[str | None], kind: pa.DataType) -> pa.Array:
    """Return the values of a type that have these canonical forms in a key text; None: NULL."""
    return pa.array([None if text is None else _value(text, kind) for text in texts], _width(kind)).view(kind)


def _width(kind: pa.DataType) -> pa.DataType:
    """Return the integer type of temporal values in a text; any other type itself."""
    if pa.types.is_date(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_time(kind) or pa.types.is_timestamp(kind) else kind


def _value(text: str, kind: pa.DataType) -> Any:
    if pa.types.is_string(kind):
        return text.partition(":")[2]
    if pa.types.is_binary(kind):
        return bytes.fromhex(text.partition("$")[2])
    if pa.types.is_boolean(kind):
        return text == "1"
    if pa.types.is_decimal(kind):
        return Decimal(text)
    if pa.types.is_floating(kind):
        digits, mark, exponent = text.partition("e")
        first = 2 if digits.startswith("-") else 1
        return float(f"{digits[:first]}.{digits[first:] or 0}e{exponent}") if mark else float(text)
    return int(text)


def _string(value: str, *, is_key: bool) -> str:
    data = value.encode()
    if is_key or len(data) <= TEXT_BYTES_MAX:
        return f"{len(data)}:{value}"
    return f"{len(data)}#{_digest(data)}"


def _float(value: float) -> str:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if not value:
        return "0"
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    exponent += len(text) - 1
    return f"{'-' if sign else ''}{text.rstrip('0')}e{exponent}"


def _joined(rows: pa.RecordBatch, *, is_key: bool) -> Sequence[str]:
    columns = [column_texts(column, is_key=is_key) for column in rows.columns]
    return [_with_commas(row) for row in zip(*columns, strict=True)]


def _with_commas(texts: Iterable[str | None]) -> str:
    return "".join(f"{text or ''}," for text in texts)


def column_texts(column: pa.Array, *, is_key: bool) -> Sequence[str | None]:
    """Return the canonical form of each value; None for NULL."""
    kind = column.type
    if pa.types.is_list(kind):
        lists = [None if value is None else column_texts(value, is_key=is_key) for value in (e.values for e in column)]
        return [None if elements is None else f"[{_with_commas(elements)}]" for elements in lists]
    if pa.types.is_date(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_time(kind) or pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    elif pa.types.is_float32(kind):
        column = column.cast(pa.float64())
    return [value_text(value, kind, is_key=is_key) for value in column.to_pylist()]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGEST_DIGITS]

"""Types, values and statements: one text form of each value, which triggers write and chunks read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from replicator.model.errors import UnsupportedTypeError

_DECIMAL: Final = re.compile(r"(?:DECIMAL|NUMERIC)\((\d+), *(\d+)\)")
_DIGITS_MAX: Final = 15
"""SQLite keeps decimals as floating-point numbers, which hold so many digits exactly."""


def type_of(declared: str) -> pa.DataType:
    """The type of a column by its declaration, as SQLite reads it. What a value really is, each value tells."""
    text = declared.upper()
    if (match := _DECIMAL.fullmatch(text)) and int(match[1]) <= _DIGITS_MAX:
        return pa.decimal128(int(match[1]), int(match[2]))
    for part, type_ in (("INT", pa.int64()), ("CHAR", pa.string()), ("TEXT", pa.string()), ("BLOB", pa.binary())):
        if part in text:
            return type_
    if any(part in text for part in ("REAL", "FLOA", "DOUB")):
        return pa.float64()
    raise UnsupportedTypeError(f"The type {declared or '(none)'} is not supported.", code="unsupported_type")


def quoted(name: str) -> str:
    """An identifier."""
    return '"' + name.replace('"', '""') + '"'


def text_of(columns: Iterable[str]) -> str:
    """An expression that writes columns as text: `integer:1,text:61,null:NULL`. Text is in hex, too: it may hold any character."""
    return " || ',' || ".join(
        f"typeof({c}) || ':' || CASE WHEN typeof({c}) IN ('text', 'blob') THEN hex({c}) ELSE quote({c}) END"
        for c in columns
    )


def value_of(text: str, type_: pa.DataType | None = None) -> Any:
    """A value, for a column of a type; without one as SQLite has it. pyarrow refuses one that is not of the column's type."""
    kind, _, value = text.partition(":")
    if kind == "null":
        return None
    if kind in {"text", "blob"}:
        data = bytes.fromhex(value)
        return data.decode() if kind == "text" else data
    if type_ is not None and pa.types.is_decimal(type_):
        return Decimal(value)
    return int(value) if kind == "integer" else float(value)

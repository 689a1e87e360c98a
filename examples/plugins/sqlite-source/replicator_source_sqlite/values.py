"""Types, values and statements: one text form of each value, which triggers write and chunks read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from replicator.model.errors import UnsupportedTypeError
from replicator.model.schema import TableSchema

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
    raise UnsupportedTypeError(f"The type {declared or '(none)'} is not supported.", code="type_unsupported")


def quoted(name: str) -> str:
    """An identifier."""
    return '"' + name.replace('"', '""') + '"'


def text_of(columns: Iterable[str]) -> str:
    """An expression that writes columns as text: `integer:1,text:61,null:NULL`. Text is in hex, too: it may hold any character."""
    return " || ',' || ".join(
        f"typeof({c}) || ':' || CASE WHEN typeof({c}) IN ('text', 'blob') THEN hex({c}) ELSE quote({c}) END"
        for c in columns
    )


def row_of(schema: TableSchema, text: str) -> Mapping[str, Any]:
    """What `text_of` all columns wrote, by field name.

    Raises:
        ValueError: A value is not of its column's type; pyarrow raises it, too, when the row becomes Arrow.
    """
    parts = zip(schema.columns, text.split(","), strict=True)
    return {schema.fields[column.name]: _value(part, column.type) for column, part in parts}


def literal(text: str) -> Any:
    """A value as SQLite has it, for a condition."""
    kind, _, value = text.partition(":")
    if kind == "null":
        return None
    if kind in {"text", "blob"}:
        data = bytes.fromhex(value)
        return data.decode() if kind == "text" else data
    return int(value) if kind == "integer" else float(value)


def _value(text: str, type_: pa.DataType) -> Any:
    is_number = text.startswith(("integer:", "real:"))
    return Decimal(text.partition(":")[2]) if is_number and pa.types.is_decimal(type_) else literal(text)

"""How DuckDB holds values of the canonical types. Everything is held as it is, but decimals of more than 38 digits: they become text."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from replicator.model.errors import UnsupportedTypeError
from replicator.model.schema import Column, type_to_text
from replicator.plugins.kit.lake.layout import Layout

_DIGITS_MAX: Final = 38
_NAMES: Final = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
    pa.time64("us"): "TIME",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("us", tz="UTC"): "TIMESTAMPTZ",
}


def type_name(type_: pa.DataType) -> str:
    """Return DuckDB's type for a canonical type.

    Raises:
        UnsupportedTypeError: There is none.
    """
    stored = stored_type(type_)
    if pa.types.is_list(stored):
        return f"{type_name(stored.value_type)}[]"
    if pa.types.is_decimal(stored):
        return f"DECIMAL({stored.precision}, {stored.scale})"
    return _NAMES[stored]


def stored_type(type_: pa.DataType) -> pa.DataType:
    """Return the Arrow type in which values of a canonical type are handed to DuckDB.

    Raises:
        UnsupportedTypeError: There is none.
    """
    if pa.types.is_list(type_):
        return pa.list_(stored_type(type_.value_type))
    if pa.types.is_decimal(type_):
        return pa.decimal128(type_.precision, type_.scale) if _is_short(type_) else pa.string()
    if type_ not in _NAMES:
        raise UnsupportedTypeError(f"DuckDB has no type for {type_to_text(type_)}.", code="unsupported_type")
    return type_


def as_stored(array: pa.Array) -> pa.Array:
    """Return values of a canonical type as they are handed to DuckDB."""
    wanted = stored_type(array.type)
    if array.type == wanted:
        return array
    if pa.types.is_list(array.type):
        # Lists of such numbers are too rare to deserve better than one at a time.
        values = [
            None if item is None else as_stored(pa.array(item, array.type.value_type)).to_pylist()
            for item in array.to_pylist()
        ]
        return pa.array(values, wanted)
    if wanted == pa.string():
        spelled = [None if value is None else format(value, f".{array.type.scale}f") for value in array.to_pylist()]
        return pa.array(spelled, wanted)
    return pc.cast(array, wanted)


def changes_of(column: Column) -> Sequence[str]:
    """Return how values of a column are held otherwise than in the source, a sentence each.

    Raises:
        UnsupportedTypeError: They cannot be held.
    """
    stored = stored_type(column.type)
    type_, kept = column.type, stored
    while pa.types.is_list(type_):
        type_, kept = type_.value_type, kept.value_type
    if pa.types.is_decimal(type_) and kept == pa.string():
        return [f"{column.source_type} becomes text: DuckDB's decimals have at most {_DIGITS_MAX} digits."]
    return []


def _is_short(type_: pa.DataType) -> bool:
    return bool(type_.precision <= _DIGITS_MAX and 0 <= type_.scale <= type_.precision)


def literal(value: object, type_: pa.DataType) -> str:
    """Return a value of a canonical type, as Python has it, in DuckDB's SQL."""
    name = type_name(type_)
    if value is None:
        return f"NULL::{name}"
    if isinstance(value, list):
        return f"[{', '.join(literal(item, type_.value_type) for item in value)}]::{name}"
    if isinstance(value, bytes):
        return f"unhex('{value.hex()}')"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Decimal):
        text = format(value, f".{type_.scale}f")
    else:
        text = value.isoformat() if hasattr(value, "isoformat") else str(value)
    quoted = text.replace("'", "''")
    return f"'{quoted}'::{name}"


LAYOUT: Final = Layout(type_of=stored_type, stored=as_stored)

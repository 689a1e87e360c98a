"""How DuckDB holds values of the canonical types. Everything is held as it is, but decimals of more than 38 digits: they become text."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from replicator.model.errors import UnsupportedTypeError
from replicator.model.schema import Column, type_to_text
from replicator.plugins.kit.duckdb import canonical
from replicator.plugins.kit.folding.layout import Layout
from replicator.plugins.kit.folding.needed import EngineNeededError

_DIGITS_MAX: Final = 38


def type_name(type_: pa.DataType) -> str:
    """Return DuckDB's type for a canonical type.

    Raises:
        UnsupportedTypeError: There is none.
    """
    if pa.types.is_list(type_):
        return f"{type_name(type_.value_type)}[]"
    return "TIME" if pa.types.is_time64(type_) else canonical.type_name(stored_type(type_))


def stored_type(type_: pa.DataType) -> pa.DataType:
    """Return the Arrow type in which values of a canonical type are handed to DuckDB.

    Raises:
        UnsupportedTypeError: There is none.
    """
    if pa.types.is_list(type_):
        return pa.list_(stored_type(type_.value_type))
    try:
        return type_ if pa.types.is_time64(type_) else canonical.stored_type(type_)
    except EngineNeededError as error:
        raise UnsupportedTypeError(f"DuckDB has no type for {type_to_text(type_)}.", code="unsupported_type") from error


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

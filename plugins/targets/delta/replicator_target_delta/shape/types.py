"""The one table of types: canonical Arrow type → Delta type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from replicator.model import alteration
from replicator.model.errors import Problem, UnsupportedTypeError
from replicator.model.schema import Column, TableSchema
from replicator.plugins.kit.findings import type_findings

_DECIMAL_MAX: Final = 38
_CLUSTERING_COLUMNS_MAX: Final = 4
_DIGITS: Final = {pa.int8(): 10, pa.int16(): 10, pa.int32(): 10, pa.int64(): 20}
"""Digits before the point of a decimal that Delta makes of an integer, at least."""
_SIMPLE: Final[dict[pa.DataType, str]] = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.time64("us"): "string",
    pa.timestamp("us"): "timestamp_ntz",
    pa.timestamp("us", tz="UTC"): "timestamp",
}


def json_type(type_: pa.DataType) -> str | Mapping[str, Any]:
    """The Delta type of a canonical Arrow type, as Spark's JSON of types has it.

    Raises:
        UnsupportedTypeError: The type is outside the canonical set.
    """
    if pa.types.is_list(type_):
        return {"type": "array", "elementType": json_type(type_.value_type), "containsNull": True}
    if pa.types.is_decimal(type_):
        # Delta's decimals end at 38 digits; more of them are kept as text, every digit.
        return f"decimal({type_.precision},{type_.scale})" if _fits(type_) else "string"
    if type_ not in _SIMPLE:
        raise UnsupportedTypeError(f"The type {type_} does not exist in Delta.", code="unsupported_type")
    return _SIMPLE[type_]


def widens(before: pa.DataType, after: pa.DataType) -> bool:
    """Return whether Delta reads data files that have a column in the type `before` as if they had it in `after`.

    Source: Delta's PROTOCOL.md, "Supported Type Changes". Decimals that are text in Delta stay the same text if their scale does.
    """
    if not alteration.widens(before, after):
        return False
    if not pa.types.is_decimal(after):
        return True
    if before in _DIGITS:
        return _fits(after) and bool(after.precision - after.scale >= _DIGITS[before])
    return _fits(before) == _fits(after) and (_fits(after) or bool(before.scale == after.scale))


def clustering_columns(schema: TableSchema) -> tuple[str, ...]:
    """Columns to cluster by: the first of the key that Delta keeps statistics for, at most four."""
    able = [name for name in schema.key if _is_clusterable(schema.column(name).type)]
    return tuple(able[:_CLUSTERING_COLUMNS_MAX])


def type_problems(schema: TableSchema) -> Sequence[Problem]:
    """Problems of types: those that change on the way, and those that Delta cannot hold."""

    def changes_of(column: Column) -> Sequence[str]:
        json_type(column.type)
        return _changes(column)

    return type_findings(schema, changes_of)


def _changes(column: Column) -> Sequence[str]:
    inner = column.type
    while pa.types.is_list(inner):
        inner = inner.value_type
    if pa.types.is_time(inner):
        return [f"Delta has no time of day: {column.source_type} is stored as text, HH:MM:SS.ffffff."]
    if pa.types.is_decimal(inner) and not _fits(inner):
        return [
            f"Delta's decimals have at most {_DECIMAL_MAX} digits: {column.source_type} is stored as text, with every digit."
        ]
    return []


def _fits(type_: pa.DataType) -> bool:
    return bool(type_.precision <= _DECIMAL_MAX)


def _is_clusterable(type_: pa.DataType) -> bool:
    return not (pa.types.is_boolean(type_) or pa.types.is_binary(type_) or pa.types.is_list(type_))

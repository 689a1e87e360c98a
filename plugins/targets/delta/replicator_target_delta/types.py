"""The one table of types: canonical Arrow type → Delta type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from replicator.model.errors import Problem, Severity, UnsupportedTypeError
from replicator.model.schema import Column, TableSchema

_DECIMAL_MAX: Final = 38
_CLUSTERING_COLUMNS_MAX: Final = 4
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


def clustering_columns(schema: TableSchema) -> tuple[str, ...]:
    """Columns to cluster by: the first of the key that Delta keeps statistics for, at most four."""
    able = [name for name in schema.key if _is_clusterable(schema.column(name).type)]
    return tuple(able[:_CLUSTERING_COLUMNS_MAX])


def type_problems(schema: TableSchema) -> Sequence[Problem]:
    """What is changed on the way, and what cannot be held."""
    problems: list[Problem] = []
    for column in schema.columns:
        place = f"{schema.table}.{column.name}"
        try:
            json_type(column.type)
        except UnsupportedTypeError as error:
            problems.append(Problem(code=error.code, message=error.message, place=place, action="Exclude the table."))
            continue
        problems += [
            Problem(code="type_changed", message=text, place=place, severity=Severity.NOTICE)
            for text in _changes(column)
        ]
        if column.name in schema.key and _is_float(column.type):
            problems.append(
                Problem(
                    code="key_type_unsupported",
                    message=f"The key has a floating-point column ({column.source_type}): NaN and -0.0 cannot identify a row.",
                    place=place,
                    action="Give the table a key of another type, or replicate it without a key.",
                )
            )
    return problems


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


def _is_float(type_: pa.DataType) -> bool:
    return bool(pa.types.is_floating(type_))


def _is_clusterable(type_: pa.DataType) -> bool:
    return not (pa.types.is_boolean(type_) or pa.types.is_binary(type_) or pa.types.is_list(type_))

"""The one table of types: canonical Arrow type → type in staging → type in the target."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import pyarrow as pa

from replicator.model import alteration
from replicator.model.errors import Problem, UnsupportedTypeError
from replicator.model.schema import Column, TableSchema
from replicator.plugins.kit.findings import type_findings
from replicator_target_bigquery.names import text

JsonAs = Literal["string", "json"]

_PARQUET_DIGITS_MAX: Final = 38
_NUMERIC_DIGITS: Final = (29, 9)
_BIGNUMERIC_DIGITS: Final = (38, 38)
_CLUSTERING_COLUMNS_MAX: Final = 4
_SIMPLE: Final[dict[pa.DataType, str]] = {
    pa.bool_(): "BOOL",
    pa.int8(): "INT64",
    pa.int16(): "INT64",
    pa.int32(): "INT64",
    pa.int64(): "INT64",
    pa.float32(): "FLOAT64",
    pa.float64(): "FLOAT64",
    pa.string(): "STRING",
    pa.binary(): "BYTES",
    pa.date32(): "DATE",
    pa.time64("us"): "TIME",
    pa.timestamp("us"): "DATETIME",
    pa.timestamp("us", tz="UTC"): "TIMESTAMP",
}
_JSON_TYPES: Final = frozenset({"json", "jsonb"})
_CLUSTERABLE: Final = frozenset({"BIGNUMERIC", "BOOL", "DATE", "DATETIME", "INT64", "NUMERIC", "STRING", "TIMESTAMP"})
_PARTITIONABLE: Final = frozenset({"DATE", "DATETIME", "TIMESTAMP"})
# Documented for ALTER COLUMN … SET DATA TYPE, and every value stays the same. DATE to DATETIME is not among them.
_SETTABLE: Final = {"INT64": frozenset({"NUMERIC", "BIGNUMERIC", "FLOAT64"}), "NUMERIC": frozenset({"BIGNUMERIC"})}


def staged_type(type_: pa.DataType) -> str:
    """Return the type of a column in a staging table.

    Raises:
        UnsupportedTypeError: The type is outside the canonical set.
    """
    if pa.types.is_list(type_):
        staged_type(type_.value_type)
        return "STRING"
    if pa.types.is_decimal(type_):
        # The file is rewritten with text where there are more digits than one of Parquet's usual decimals has.
        return "STRING" if is_wide(type_) else _decimal(type_)
    if type_ not in _SIMPLE:
        raise UnsupportedTypeError(f"The type {type_} does not exist in BigQuery.", code="unsupported_type")
    return _SIMPLE[type_]


def target_type(column: Column, json_as: JsonAs, *, is_key: bool = False) -> str:
    """Return the type of a column in the target. JSON in a key stays text: BigQuery cannot compare JSON.

    Raises:
        UnsupportedTypeError: The type is outside the canonical set.
    """
    if json_as == "json" and is_json(column) and not is_key:
        return "JSON"
    return _plain_type(column.type)


def widens(before: pa.DataType, after: pa.DataType) -> bool:
    """Return whether BigQuery gives a column the type for `after` in place, or it has that type already, with every value the same."""
    if not alteration.widens(before, after):
        return False
    old, new = _plain_type(before), _plain_type(after)
    if old == new == "STRING":
        # Decimals as text have as many digits after the point as their scale.
        return bool(before.scale == after.scale)
    return old == new or is_settable(old, new)


def is_settable(before: str, after: str) -> bool:
    """Return whether BigQuery changes a column's type into the other in place."""
    return after in _SETTABLE.get(before, ())


def converted(expression: str, column: Column, target: str) -> str:
    """Return GoogleSQL that makes the target's value of a staged one."""
    staged = staged_type(column.type)
    if target == staged:
        return expression
    if target == "JSON":
        return f"PARSE_JSON({expression}, wide_number_mode=>'round')"
    return f"CAST({expression} AS {target})"


def literal(value: Any, column: Column, target: str) -> str:
    """Return GoogleSQL that makes the target's value of a staged one in Python."""
    return converted(_literal(value, staged_type(column.type)), column, target)


def exact_text(expression: str, target: str) -> str:
    """Return GoogleSQL text that is the same exactly for values with the same bits."""
    if target == "STRING":
        return expression
    if target == "BYTES":
        return f"TO_HEX({expression})"
    if target == "JSON":
        return f"TO_JSON_STRING({expression})"
    if target == "FLOAT64":
        # As text NaN is equal to itself; 0.0 and -0.0, which are two values to the source, have one text and two quotients.
        return f"IF({expression} = 0 AND IEEE_DIVIDE(1, {expression}) < 0, '-0.0', CAST({expression} AS STRING))"
    return f"CAST({expression} AS STRING)"


def is_json(column: Column) -> bool:
    """Return whether the source calls the column JSON."""
    return column.type == pa.string() and column.source_type.lower() in _JSON_TYPES


def is_wide(type_: pa.DataType) -> bool:
    """Return whether a decimal has more digits than a load takes without trouble, or a negative scale."""
    return bool(pa.types.is_decimal(type_) and (type_.precision > _PARQUET_DIGITS_MAX or type_.scale < 0))


def clustering_columns(schema: TableSchema, wanted: Sequence[str] | None, json_as: JsonAs) -> tuple[str, ...]:
    """Return columns of the source to cluster by: those that are wanted, or as much of the key as BigQuery can."""
    if wanted is not None:
        return tuple(wanted)
    able = [name for name in schema.key if target_type(schema.column(name), json_as, is_key=True) in _CLUSTERABLE]
    return tuple(able[:_CLUSTERING_COLUMNS_MAX])


def layout_problems(
    schema: TableSchema, partition_by: str | None, unit: str, cluster_by: Sequence[str] | None, json_as: JsonAs
) -> list[Problem]:
    """Find columns that a table cannot be partitioned or clustered by."""
    problems = []
    columns = {column.name: column for column in schema.columns}
    able = {"partition_by": _PARTITIONABLE, "cluster_by": _CLUSTERABLE}
    wanted = [("partition_by", partition_by)] if partition_by is not None else []
    wanted += [("cluster_by", name) for name in cluster_by or ()]
    for setting, name in wanted:
        if name not in columns:
            found = f"target.tables names {name} in {setting}, but the table has no such column."
        else:
            type_ = target_type(columns[name], json_as, is_key=name in schema.key)
            if type_ in able[setting] and not (setting == "partition_by" and (type_, unit) == ("DATE", "hour")):
                continue
            found = f"BigQuery cannot use a column of type {type_} for {setting} ({unit})."
        problems.append(
            Problem(
                code="layout_impossible",
                message=found,
                table=str(schema.table),
                location=f"{schema.table}.{name}",
                action=f"Choose another column for {setting}.",
            )
        )
    return problems


def type_problems(schema: TableSchema, json_as: JsonAs, unfit_values: str) -> list[Problem]:
    """Find values that are changed on the way, and values that cannot be held."""

    def changes_of(column: Column) -> Sequence[str]:
        target_type(column, json_as)
        return _changes(column, json_as, unfit_values, is_key=column.name in schema.key)

    return type_findings(schema, changes_of)


def _changes(column: Column, json_as: JsonAs, unfit_values: str, *, is_key: bool) -> list[str]:
    type_, found = column.type, []
    if pa.types.is_list(type_):
        found.append(
            f"BigQuery's arrays hold no NULL and are never NULL: {column.source_type} is stored as JSON text, [1,null]."
        )
    elif pa.types.is_decimal(type_) and _decimal(type_) == "STRING":
        found.append(f"{column.source_type} has more digits than BIGNUMERIC: it is stored as text, with every digit.")
    elif target_type(column, json_as, is_key=is_key) == "JSON":
        found.append("BigQuery's JSON rounds numbers that 64 bits do not hold exactly.")
    if unfit_values == "null" and not is_key and (pa.types.is_temporal(type_)):
        found.append("Values outside of BigQuery's range (years 0001 to 9999, 00:00 to 23:59:59.999999) become NULL.")
    return found


def _literal(value: Any, staged: str) -> str:
    if staged == "STRING" and not value.isprintable():
        return f"SAFE_CONVERT_BYTES_TO_STRING({_literal(value.encode(), 'BYTES')})"
    if staged == "BYTES":
        return f"FROM_BASE64('{base64.b64encode(value).decode()}')"
    spellings: Mapping[str, Callable[[Any], str]] = {
        "STRING": str,
        "NUMERIC": lambda number: f"{number:f}",
        "BIGNUMERIC": lambda number: f"{number:f}",
        "DATE": lambda day: day.isoformat(),
        "TIME": lambda time: time.isoformat(timespec="microseconds"),
        "DATETIME": lambda moment: moment.isoformat(sep=" ", timespec="microseconds"),
        "TIMESTAMP": lambda moment: f"{moment.replace(tzinfo=None).isoformat(sep=' ', timespec='microseconds')}+00",
    }
    spelled = spellings.get(staged, str)(value)
    if staged == "STRING":
        return text(spelled)
    return f"CAST('{spelled}' AS {staged})" if staged in {"BOOL", "INT64", "FLOAT64"} else f"{staged} '{spelled}'"


def _plain_type(type_: pa.DataType) -> str:
    return _decimal(type_) if pa.types.is_decimal(type_) else staged_type(type_)


def _decimal(type_: pa.DataType) -> str:
    whole = type_.precision - type_.scale
    for name, (digits, scale) in (("NUMERIC", _NUMERIC_DIGITS), ("BIGNUMERIC", _BIGNUMERIC_DIGITS)):
        if whole <= digits and type_.scale <= scale:
            return name
    return "STRING"

"""Statements. Names of the source are quoted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from replicator.model.alteration import steps
from replicator.model.events import IS_DELETED, SEQUENCE_NUM, SOURCE_TIMESTAMP
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.kit.columns import own_columns, stored_columns
from replicator.plugins.target import TableOptions, TargetTable
from replicator_target_duckdb.database import CATALOG
from replicator_target_duckdb.types import literal, type_name

LEDGER: Final = f'{CATALOG}."_replicator"."ledger"'
CREATE_LEDGER: Final = (
    f'CREATE SCHEMA IF NOT EXISTS {CATALOG}."_replicator"; '
    f"CREATE TABLE IF NOT EXISTS {LEDGER} (table_name VARCHAR NOT NULL, entry VARCHAR NOT NULL)"
)
OWN: Final = {SEQUENCE_NUM: "BIGINT NOT NULL", IS_DELETED: "BOOLEAN NOT NULL", SOURCE_TIMESTAMP: "TIMESTAMPTZ"}


def quoted(name: str) -> str:
    """Return an identifier."""
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    """Return a string."""
    return "'" + value.replace("'", "''") + "'"


def path_of(table: TableId) -> str:
    """Return a table with its schema and the file's catalogue."""
    return f"{CATALOG}.{quoted(table.namespace)}.{quoted(table.name)}"


def create_table(schema: TableSchema, options: TableOptions) -> Sequence[str]:
    """Return CREATE SCHEMA and CREATE TABLE.

    Only the key is NOT NULL: the source may drop such a constraint at any time. DuckDB is told no primary key: it would check one against
    rows that the same transaction has deleted.
    """
    lines = [
        f"{quoted(column.name)} {type_name(column.type)}{' NOT NULL' if column.name in schema.key else ''}"
        for column in schema.held
    ]
    lines += [f"{name} {OWN[name]}" for name in own_columns(options)]
    return [
        f"CREATE SCHEMA IF NOT EXISTS {CATALOG}.{quoted(schema.table.namespace)}",
        f"CREATE TABLE {path_of(schema.table)} ({', '.join(lines)})",
    ]


def rebuild(table: TargetTable, actual: TableSchema, wanted: TableSchema, fill: Mapping[str, Any]) -> Sequence[str]:
    """Return the statements that write the table again in another shape.

    DuckDB can alter a table, but fails at the commit of some transactions that do it more than once.

    Args:
        table: The table.
        actual: Its shape.
        wanted: The other one.
        fill: By column that is added: its value in all rows; without one NULL.
    """
    old, options = wanted.table, table.options
    new = TableId(old.namespace, f"{old.name} (replicator)")
    origin = steps(actual, wanted).origin
    values = [
        literal(fill.get(column.name), column.type) if origin[column.name] is None else quoted(str(origin[column.name]))
        for column in wanted.held
    ]
    names = ", ".join(map(quoted, stored_columns(wanted, options)))
    return [
        f"DROP TABLE IF EXISTS {path_of(new)}",
        *create_table(replace(wanted, table=new), options),
        f"INSERT INTO {path_of(new)} ({names}) SELECT {', '.join([*values, *own_columns(options)])} FROM {path_of(old)}",
        f"DROP TABLE {path_of(old)}",
        f"ALTER TABLE {path_of(new)} RENAME TO {quoted(old.name)}",
    ]


def is_same(left: str, right: str, columns: Sequence[Column]) -> str:
    """Return the condition that two rows have the same values: NULL equals NULL, NaN equals NaN, and -0.0 is not 0.0.

    Args:
        left: Alias of one side, whose columns have the table's names.
        right: Alias of the other.
        columns: The columns that are compared.
    """
    pairs = []
    for column in columns:
        name = quoted(column.name)
        pairs += [(f"{left}.{name}", f"{right}.{name}")]
        if (left_sign := sign(f"{left}.{name}", column.type)) is not None:
            pairs += [(left_sign, str(sign(f"{right}.{name}", column.type)))]
    return " AND ".join(f"{one} IS NOT DISTINCT FROM {other}" for one, other in pairs)


def sign(expression: str, type_: pa.DataType) -> str | None:
    """Return what tells the zeros of a floating-point value, or of a list of these, apart; None for other types."""
    if pa.types.is_floating(type_):
        return f"signbit({expression})"
    if pa.types.is_list(type_) and sign("e", type_.value_type) is not None:
        return f"list_transform({expression}, lambda e: {sign('e', type_.value_type)})"
    return None

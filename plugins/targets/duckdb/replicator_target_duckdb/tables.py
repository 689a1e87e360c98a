"""Contents of the file: the ledger's entries, and tables, which others may have changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import duckdb

from replicator.model.errors import TableError
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.columns import REQUIRED, Made, conflict, own_columns
from replicator.plugins.target import TableOptions
from replicator_target_duckdb import sql
from replicator_target_duckdb.database import CATALOG
from replicator_target_duckdb.types import type_name

LEDGER_ID: Final = TableId("_replicator", "ledger")
_NULLABLE: Final = "NULLABLE"


def kind_of(transaction: duckdb.DuckDBPyConnection, table: TableId) -> str | None:
    """Return `table` or `view`; None: there is nothing of this name. DuckDB compares names without case."""
    found = transaction.execute(
        "SELECT kind FROM (SELECT database_name, schema_name, table_name AS name, 'table' AS kind FROM duckdb_tables() UNION ALL"
        " SELECT database_name, schema_name, view_name, 'view' FROM duckdb_views())"
        " WHERE database_name = ? AND lower(schema_name) = lower(?) AND lower(name) = lower(?)",
        [CATALOG, table.namespace, table.name],
    ).fetchone()
    return None if found is None else str(found[0])


def read_entry(transaction: duckdb.DuckDBPyConnection, table: TableId) -> str | None:
    """Return the table's entry in the ledger.

    Raises:
        duckdb.Error: The ledger has another shape.
    """
    if kind_of(transaction, LEDGER_ID) is None:
        return None
    found = transaction.execute(f"SELECT entry FROM {sql.LEDGER} WHERE table_name = ?", [str(table)]).fetchone()
    return None if found is None else str(found[0])


def refuse_others(transaction: duckdb.DuckDBPyConnection, table: TableId) -> None:
    """Refuse a view of the table's name.

    Raises:
        TableError: `target_occupied`.
    """
    if kind_of(transaction, table) == "view":
        raise TableError(
            "A view has the table's name in the target.",
            code="target_occupied",
            table=str(table),
            action="Drop the view, then recreate the table: replicator snapshot NAME TABLE --recreate.",
        )


def columns(transaction: duckdb.DuckDBPyConnection, table: TableId) -> Made:
    """Return the columns of a table, in their order; none if it is not there."""
    found = transaction.execute(
        "SELECT column_name, data_type, is_nullable FROM duckdb_columns()"
        " WHERE database_name = ? AND lower(schema_name) = lower(?) AND lower(table_name) = lower(?) ORDER BY column_index",
        [CATALOG, table.namespace, table.name],
    ).fetchall()
    return [(name, type_, _NULLABLE if is_nullable else REQUIRED) for name, type_, is_nullable in found]


def changed(transaction: duckdb.DuckDBPyConnection, schema: TableSchema, options: TableOptions) -> str | None:
    """Return what others did to the columns of a table of ours, as a sentence; None: nothing that matters."""
    found = columns(transaction, schema.table)
    return conflict(_made(schema, options), found) if found else "It was dropped or renamed."


def described(type_: str) -> str:
    """Return a type as DuckDB tells it."""
    return type_.replace("TIMESTAMPTZ", "TIMESTAMP WITH TIME ZONE").replace(", ", ",")


def _made(schema: TableSchema, options: TableOptions) -> Made:
    """The columns with which `sql.create_table` makes the table."""
    made: Sequence[Sequence[str]] = [(column.name, described(type_name(column.type)), "") for column in schema.held]
    own = [(name, sql.OWN[name].partition(" NOT NULL")) for name in own_columns(options)]
    return [
        *made,
        *((name, described(type_), REQUIRED if not_null else _NULLABLE) for name, (type_, not_null, _) in own),
    ]

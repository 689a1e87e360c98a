"""The statement that makes a table: pure text."""

from __future__ import annotations

from typing import Final

from replicator.model.errors import SchemaConflictError
from replicator.model.events import IS_DELETED, SEQUENCE_NUM, SOURCE_TIMESTAMP
from replicator.model.schema import TableSchema
from replicator.plugins.target import TableOptions, TargetTable
from replicator_target_delta.tablelog import INCARNATION, LIVE, SCHEMA, STATE, TABLE, UUID
from replicator_target_delta.types import clustering_columns, delta_type

# Delta keeps statistics of the first 32 columns, and clusters only by columns that have them.
_STATISTICS_COLUMNS: Final = 32


def quoted(name: str) -> str:
    """An identifier in Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def text(value: str) -> str:
    """A string literal in Spark SQL."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def path_of(path: str) -> str:
    """A table by its path."""
    return f"delta.{quoted(path)}"


def create_statement(path: str, table: TargetTable, schema: TableSchema, *, clustering: bool) -> str:
    """`CREATE TABLE` of an empty table in the shape that `table` is to have.

    Columns bear the source's names (column mapping allows every character). Only key columns are NOT NULL: a column
    of the source may lose that constraint at any time, and Delta could not follow.
    """
    columns = [_column(schema, column.name) for column in schema.columns]
    columns.append(f"{quoted(SEQUENCE_NUM)} BIGINT NOT NULL COMMENT 'Number of the last change of the row'")
    if table.options.deletes == "soft":
        columns.append(f"{quoted(IS_DELETED)} BOOLEAN NOT NULL COMMENT 'Whether the row is gone from the source'")
    if table.options.source_timestamp:
        columns.append(f"{quoted(SOURCE_TIMESTAMP)} TIMESTAMP COMMENT 'Commit time of the last change in the source'")
    by = clustering_columns(schema) if clustering else ()
    properties = {
        UUID: table.uuid,
        TABLE: str(table.table),
        INCARNATION: str(table.incarnation),
        SCHEMA: schema_mark(schema, table.options),
        STATE: LIVE,
        "delta.columnMapping.mode": "name",
        "delta.enableDeletionVectors": "true",
    }
    if len(columns) > _STATISTICS_COLUMNS:
        # Of so many columns only these help to skip files.
        properties["delta.dataSkippingStatsColumns"] = ",".join(quoted(name) for name in (*by, SEQUENCE_NUM))
    parts = [f"CREATE TABLE {path_of(path)} (", ", ".join(columns), ") USING delta"]
    if by:
        parts.append(f"CLUSTER BY ({', '.join(quoted(name) for name in by)})")
    if schema.comment:
        parts.append(f"COMMENT {text(schema.comment)}")
    parts.append("TBLPROPERTIES (" + ", ".join(f"{text(k)} = {text(v)}" for k, v in properties.items()) + ")")
    return " ".join(parts)


def schema_mark(schema: TableSchema, options: TableOptions) -> str:
    """A text that changes whenever the table would have to look different."""
    return f"{schema.fingerprint} {options.deletes}{' time' if options.source_timestamp else ''}"


def schema_conflict(table: TargetTable, replicator: str) -> SchemaConflictError:
    """The error when the target's table has another shape than the changes."""
    return SchemaConflictError(
        "The table in the target was made for another shape or other settings: columns, types, key, deletes or source_timestamp differ.",
        code="schema_conflict",
        table=str(table.table),
        action=f"Set them back, or make the table anew: replicator snapshot {replicator} {table.table} --recreate.",
    )


def table_missing(table: TargetTable, replicator: str) -> SchemaConflictError:
    """The error when the target has no table for the changes: it was dropped, and not made anew."""
    return SchemaConflictError(
        "The table was dropped in the target.",
        code="schema_conflict",
        table=str(table.table),
        action=f"Make it anew: replicator snapshot {replicator} {table.table} --recreate.",
    )


def _column(schema: TableSchema, name: str) -> str:
    column = schema.column(name)
    constraint = " NOT NULL" if name in schema.key else ""
    comment = f" COMMENT {text(column.comment)}" if column.comment else ""
    return f"{quoted(name)} {delta_type(column.type)}{constraint}{comment}"

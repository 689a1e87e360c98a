"""Statements. Names of the source are quoted; statements with names take no parameters, because a name may contain a percent sign."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg.sql import Literal

from replicator.model.errors import UnsupportedTypeError
from replicator.model.events import IS_DELETED, SEQUENCE_NUM, SOURCE_TIMESTAMP
from replicator.model.merged import Merged
from replicator.model.schema import Column, TableId, TableSchema, type_to_text
from replicator.plugins import Batch, TableOptions
from replicator.plugins.kit import folding

PgCursor = psycopg.Cursor[tuple[Any, ...]]

_TYPES: Final = {
    "bool": "boolean", "int8": "smallint", "int16": "smallint", "int32": "integer", "int64": "bigint", "float": "real",
    "double": "double precision", "string": "text", "binary": "bytea", "date32[day]": "date", "time64[us]": "time",
    "timestamp[us]": "timestamp", "timestamp[us, tz=UTC]": "timestamptz",
}  # fmt: skip
_OWN: Final = {SEQUENCE_NUM: "bigint NOT NULL", IS_DELETED: "boolean NOT NULL", SOURCE_TIMESTAMP: "timestamptz"}


def type_of(type_: pa.DataType) -> str:
    """The PostgreSQL type that holds every value of a canonical type."""
    if pa.types.is_decimal(type_):
        return f"numeric({type_.precision}, {type_.scale})"
    if pa.types.is_list(type_):
        return f"{type_of(type_.value_type)}[]"
    if (text := type_to_text(type_)) not in _TYPES:
        raise UnsupportedTypeError(f"PostgreSQL has no type for {text}.", code="unsupported_type")
    return _TYPES[text]


def quoted(name: str) -> str:
    """An identifier."""
    return '"' + name.replace('"', '""') + '"'


def path_of(table: TableId) -> str:
    """A table with its schema."""
    return f"{quoted(table.namespace)}.{quoted(table.name)}"


def run(cursor: PgCursor, statement: str) -> None:
    """Run a statement without parameters."""
    cursor.execute(statement.encode())


def create_statement(schema: TableSchema, options: TableOptions) -> str:
    """CREATE TABLE. Only the key is NOT NULL: the source may drop such a constraint at any time."""
    lines = [f"{quoted(column.name)} {type_of(column.type)}" for column in schema.held]
    lines += [f"{name} {_OWN[name]}" for name in folding.own_columns(options)]
    if schema.key:
        lines.append(f"PRIMARY KEY ({', '.join(map(quoted, schema.key))})")
    return f"CREATE TABLE {path_of(schema.table)} ({', '.join(lines)})"


def alter_statement(table: TableId, old: str | None, new: Column | None, value: Any) -> str:
    """ALTER TABLE. With a default the rows that are there have its value, and PostgreSQL rewrites none of them."""
    alter = f"ALTER TABLE {path_of(table)}"
    if new is None:
        return f"{alter} DROP {quoted(str(old))}"
    if old is not None:
        return f"{alter} RENAME {quoted(old)} TO {quoted(new.name)}"
    added = f"{alter} ADD {quoted(new.name)} {type_of(new.type)} DEFAULT {Literal(value).as_string()}"
    return f"{added}; {alter} ALTER {quoted(new.name)} DROP DEFAULT"


def merge(cursor: PgCursor, batch: Batch, options: TableOptions) -> Merged:
    """Fold the batch to one row per key, and replace these rows in the table."""
    schema, target = batch.schema, path_of(batch.schema.table)
    folded = folding.fold(schema, folding.read_changes(batch))
    _stage(cursor, [schema.column(name) for name in schema.key], (row.key for row in folded))
    columns = ", ".join(f"t.{quoted(name)}" for name in folding.stored_columns(schema, options))
    at_key = " AND ".join(f"t.{quoted(name)} = s.v{i}" for i, name in enumerate(schema.key))
    run(cursor, f"SELECT {columns} FROM {target} t JOIN staged s ON {at_key}")
    stored = {row.key(schema): row for row in (folding.StoredRow.of(schema, options, found) for found in cursor)}
    plan = folding.merge_rows(batch, folded, stored, options)
    run(cursor, f"DELETE FROM {target} t USING staged s WHERE {at_key}")
    _add(cursor, schema, options, plan.rows)
    return plan.merged


def merge_multiset(cursor: PgCursor, batch: Batch, options: TableOptions) -> Merged:
    """Of a table without a key: remove as many equal rows as were deleted, the newest first, and add the new ones.

    Rows are compared as text, in which NULL equals NULL.
    """
    schema, target = batch.schema, path_of(batch.schema.table)
    added, removed = folding.fold_multiset(schema, folding.read_changes(batch))
    _stage(cursor, schema.columns, ((*row.values(), wanted) for row, wanted in removed), more="wanted int")
    theirs = ", ".join(f"t.{quoted(name)}" for name in schema.fields)
    ours = ", ".join(f"s.v{i}" for i in range(len(schema.columns)))
    run(
        cursor,
        f"DELETE FROM {target} WHERE ctid IN (SELECT ctid FROM (SELECT t.ctid, s.wanted, row_number()"
        f" OVER (PARTITION BY s.ctid ORDER BY t.{SEQUENCE_NUM} DESC) AS nth"
        f" FROM {target} t JOIN staged s ON ROW({theirs})::text = ROW({ours})::text) AS found WHERE nth <= wanted)",
    )
    deleted = cursor.rowcount
    _add(cursor, schema, options, added)
    missing = sum(wanted for _, wanted in removed) - deleted
    return Merged(inserted=len(added), deleted=deleted, not_found=missing if batch.expects_rows else 0)


def _stage(cursor: PgCursor, columns: Sequence[Column], rows: Iterable[Any], more: str | None = None) -> None:
    """Write rows into a temporary table, whose columns are called by number."""
    names = [f"v{i} {type_of(column.type)}" for i, column in enumerate(columns)]
    run(cursor, f"CREATE TEMP TABLE staged ({', '.join([*names, *([more] if more else [])])}) ON COMMIT DROP")
    with cursor.copy("COPY staged FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)
    run(cursor, "ANALYZE staged")


def _add(cursor: PgCursor, schema: TableSchema, options: TableOptions, rows: Iterable[folding.StoredRow]) -> None:
    columns = ", ".join(map(quoted, folding.stored_columns(schema, options)))
    with cursor.copy(f"COPY {path_of(schema.table)} ({columns}) FROM STDIN".encode()) as copy:
        for row in rows:
            copy.write_row(row.in_order(schema, options))

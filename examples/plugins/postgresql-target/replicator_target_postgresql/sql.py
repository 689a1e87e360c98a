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
from replicator.plugins.kit.columns import own_columns, stored_columns
from replicator.plugins.kit.folding.arrow import net_changes, net_rows
from replicator.plugins.kit.folding.found import needed_columns, replacement_of
from replicator.plugins.kit.folding.layout import PLAIN

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
    lines += [f"{name} {_OWN[name]}" for name in own_columns(options)]
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
    """Fold the batch to one row per key, and replace these rows in the table. What does not fit into memory comes in parts."""
    schema, target, merged = batch.schema, path_of(batch.schema.table), Merged()
    at_key = " AND ".join(f"t.{quoted(name)} = s.v{i}" for i, name in enumerate(schema.key))
    for net in net_changes(batch, options, PLAIN, with_key_columns=True):
        _stage(cursor, [schema.column(name) for name in schema.key], net.numbered_keys())
        columns = ", ".join(["s.n", *(f"t.{quoted(name)}" for name in needed_columns(net, options))])
        run(cursor, f"SELECT {columns} FROM {target} t JOIN staged s ON {at_key}")
        rows, counts = replacement_of(net, cursor.fetchall(), options, expects_rows=batch.expects_rows)
        run(cursor, f"DELETE FROM {target} t USING staged s WHERE {at_key}")
        _add(cursor, schema, options, rows)
        merged += counts
    return merged


def merge_multiset(cursor: PgCursor, batch: Batch, options: TableOptions) -> Merged:
    """Of a table without a key: remove as many equal rows as were deleted, the newest first. In text, NULL equals NULL."""
    schema, target, merged = batch.schema, path_of(batch.schema.table), Merged()
    theirs = ", ".join(f"t.{quoted(name)}" for name in schema.fields)
    ours = ", ".join(f"s.v{i}" for i in range(len(schema.columns)))
    for net in net_rows(batch, options, PLAIN):
        _stage(cursor, schema.columns, net.numbered_rows())
        run(
            cursor,
            f"DELETE FROM {target} WHERE ctid IN (SELECT ctid FROM (SELECT t.ctid, s.n, row_number()"
            f" OVER (PARTITION BY s.ctid ORDER BY t.{SEQUENCE_NUM} DESC) AS nth"
            f" FROM {target} t JOIN staged s ON ROW({theirs})::text = ROW({ours})::text) AS found WHERE nth <= n)",
        )
        missing = int(net.times.sum()) - cursor.rowcount if batch.expects_rows else 0
        merged += Merged(inserted=net.added.num_rows, deleted=cursor.rowcount, not_found=missing)
        _add(cursor, schema, options, net.added)
    return merged


def _stage(cursor: PgCursor, columns: Sequence[Column], rows: Iterable[Any]) -> None:
    """Write rows, each with a number `n`, into a temporary table, whose columns are called by number."""
    names = ", ".join([f"v{i} {type_of(column.type)}" for i, column in enumerate(columns)] + ["n bigint"])
    run(cursor, f"DROP TABLE IF EXISTS staged; CREATE TEMP TABLE staged ({names}) ON COMMIT DROP")
    with cursor.copy("COPY staged FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)
    run(cursor, "ANALYZE staged")


def _add(cursor: PgCursor, schema: TableSchema, options: TableOptions, rows: pa.Table) -> None:
    names = stored_columns(schema, options)
    with cursor.copy(f"COPY {path_of(schema.table)} ({', '.join(map(quoted, names))}) FROM STDIN".encode()) as copy:
        for row in zip(*(rows.column(name).to_pylist() for name in names), strict=True):
            copy.write_row(row)

"""Statements. Names of the source are quoted; statements with names take no parameters, because a name may contain a percent sign."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg.sql import Literal

from replicator.model.alteration import Steps
from replicator.model.errors import UnsupportedTypeError
from replicator.model.events import IS_DELETED, SEQUENCE_NUM, SOURCE_TIMESTAMP
from replicator.model.merged import Merged
from replicator.model.schema import Column, TableId, TableSchema, type_to_text
from replicator.plugins import Batch, TableOptions
from replicator.plugins.kit.folding import StoredRow, fold, fold_multiset, merge_rows, read_changes

PgCursor = psycopg.Cursor[tuple[Any, ...]]

_TYPES: Final = {
    "bool": "boolean", "int8": "smallint", "int16": "smallint", "int32": "integer", "int64": "bigint", "float": "real",
    "double": "double precision", "string": "text", "binary": "bytea", "date32[day]": "date", "time64[us]": "time",
    "timestamp[us]": "timestamp", "timestamp[us, tz=UTC]": "timestamptz",
}  # fmt: skip
# The columns that are added to the source's, and the part of a row that each holds.
_OWN: Final = {
    SEQUENCE_NUM: ("bigint NOT NULL", "sequence_num"),
    IS_DELETED: ("boolean NOT NULL", "is_deleted"),
    SOURCE_TIMESTAMP: ("timestamptz", "source_timestamp"),
}


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
    lines = [_defined(column) for column in schema.held]
    lines += [f"{name} {_OWN[name][0]}" for name in _own_columns(options)]
    if schema.key:
        lines.append(f"PRIMARY KEY ({', '.join(map(quoted, schema.key))})")
    return f"CREATE TABLE {path_of(schema.table)} ({', '.join(lines)})"


def alter_statements(schema: TableSchema, todo: Steps, fill: Mapping[str, Any]) -> Iterator[str]:
    """ALTER TABLE. Names may change hands, so columns that get another one have a temporary one in between."""
    table = f"ALTER TABLE {path_of(schema.table)}"
    between = {name: f"_replicator_tmp_{n}" for n, name in enumerate(todo.renamed)}
    yield from (f"{table} RENAME {quoted(name)} TO {temporary}" for name, temporary in between.items())
    yield from (f"{table} DROP {quoted(name)}" for name in todo.dropped)
    yield from (f"{table} RENAME {between[old]} TO {quoted(new)}" for old, new in todo.renamed.items())
    for column in schema.held:
        if column.name in todo.added:
            # With a default the rows that are there have its value, and PostgreSQL rewrites none of them.
            value = Literal(fill.get(column.name)).as_string()
            yield f"{table} ADD {_defined(column)} DEFAULT {value}"
            yield f"{table} ALTER {quoted(column.name)} DROP DEFAULT"


def merge(cursor: PgCursor, batch: Batch, options: TableOptions) -> Merged:
    """Fold the batch to one row per key, and replace these rows in the table."""
    schema, target = batch.schema, path_of(batch.schema.table)
    folded = fold(schema, read_changes(batch))
    _stage(cursor, [schema.column(name) for name in schema.key], (row.key for row in folded))
    names, own = [column.name for column in schema.held], _own_columns(options)
    columns = ", ".join(f"t.{quoted(name)}" for name in [*names, *own])
    at_key = " AND ".join(f"t.{quoted(name)} = s.v{i}" for i, name in enumerate(schema.key))
    run(cursor, f"SELECT {columns} FROM {target} t JOIN staged s ON {at_key}")
    stored = {}
    for found in cursor:
        values = dict(zip(names, found, strict=False))
        parts = {_OWN[name][1]: value for name, value in zip(own, found[len(values) :], strict=True)}
        stored[tuple(values[name] for name in schema.key)] = StoredRow(values=values, **parts)
    plan = merge_rows(batch, folded, stored, options)
    run(cursor, f"DELETE FROM {target} t USING staged s WHERE {at_key}")
    _add(cursor, schema, options, plan.rows)
    return plan.merged


def merge_multiset(cursor: PgCursor, batch: Batch, options: TableOptions) -> Merged:
    """Of a table without a key: remove as many equal rows as were deleted, the newest first, and add the new ones.

    Rows are compared as text, in which NULL equals NULL.
    """
    schema, target = batch.schema, path_of(batch.schema.table)
    added, removed = fold_multiset(schema, read_changes(batch))
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


def _defined(column: Column) -> str:
    return f"{quoted(column.name)} {type_of(column.type)}"


def _own_columns(options: TableOptions) -> list[str]:
    is_wanted = {IS_DELETED: options.deletes == "soft", SOURCE_TIMESTAMP: options.source_timestamp}
    return [name for name in _OWN if is_wanted.get(name, True)]


def _stage(cursor: PgCursor, columns: Sequence[Column], rows: Iterable[Any], more: str | None = None) -> None:
    """Write rows into a temporary table, whose columns are called by number."""
    names = [f"v{i} {type_of(column.type)}" for i, column in enumerate(columns)]
    run(cursor, f"CREATE TEMP TABLE staged ({', '.join([*names, *([more] if more else [])])}) ON COMMIT DROP")
    with cursor.copy("COPY staged FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)
    run(cursor, "ANALYZE staged")


def _add(cursor: PgCursor, schema: TableSchema, options: TableOptions, rows: Iterable[StoredRow]) -> None:
    names, own = [column.name for column in schema.held], _own_columns(options)
    columns = ", ".join(map(quoted, [*names, *own]))
    with cursor.copy(f"COPY {path_of(schema.table)} ({columns}) FROM STDIN".encode()) as copy:
        for row in rows:
            copy.write_row([*map(row.values.get, names), *(getattr(row, _OWN[n][1]) for n in own)])

"""The few statements that the in-memory source can rehearse."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from replicator.model.errors import ConfigError
from replicator.model.events import DDLEvent, DDLOperation, no_fill
from replicator.model.schema import Column, TableId, TableSchema

_STATEMENT: Final = re.compile(r"(ALTER|TRUNCATE|DROP|CREATE) TABLE (\w+\.\w+) ?(.*)", re.IGNORECASE)
_RENAME: Final = re.compile(r"RENAME TO (\w+\.\w+)", re.IGNORECASE)
_CLAUSES: Final = {
    "add": re.compile(r"ADD COLUMN (\w+) (\w+)(?: DEFAULT (\w+|random\(\)))?", re.IGNORECASE),
    "drop": re.compile(r"DROP COLUMN (\w+)", re.IGNORECASE),
    "rename": re.compile(r"RENAME COLUMN (\w+) TO (\w+)", re.IGNORECASE),
    "type": re.compile(r"ALTER COLUMN (\w+) TYPE (\w+)", re.IGNORECASE),
}
_TYPES: Final[Mapping[str, pa.DataType]] = {"text": pa.string(), "int": pa.int32(), "bigint": pa.int64()}
_VOLATILE: Final = "random()"


def rehearse(statement: str, tables: Mapping[TableId, TableSchema]) -> Sequence[DDLEvent]:
    """Return the events that the log would bring for a statement. See `SupportsRehearsal.rehearse`.

    `ALTER TABLE a.b` with `ADD COLUMN`, `DROP COLUMN`, `RENAME COLUMN … TO`, `ALTER COLUMN … TYPE` clauses or `RENAME TO c.d`, and
    `TRUNCATE`, `DROP` and `CREATE TABLE a.b`.
    """
    match = _STATEMENT.fullmatch(" ".join(statement.split()).rstrip("; "))
    if match is None:
        raise not_understood(statement)
    verb, table = match[1].upper(), TableId.parse(match[2])
    schema = tables.get(table)
    if verb == "CREATE":
        return [DDLEvent(operation=DDLOperation.CREATE_TABLE, table=table, statement=statement)]
    if schema is None:
        raise not_understood(statement)
    if verb != "ALTER":
        operation = DDLOperation(f"{verb}_TABLE")
        after = schema if operation is DDLOperation.TRUNCATE_TABLE else None
        return [DDLEvent(operation=operation, table=table, schema=after, statement=statement)]
    if renamed := _RENAME.fullmatch(match[3]):
        new = TableId.parse(renamed[1])
        return [DDLEvent(operation=DDLOperation.RENAME_TABLE, table=table, new_table=new, statement=statement)]
    return [_altered(statement, schema, match[3].split(", "))]


def _altered(statement: str, schema: TableSchema, clauses: Sequence[str]) -> DDLEvent:
    columns = [replace(column, id=id_) for id_, column in enumerate(schema.columns, start=1)]
    before = replace(schema, columns=tuple(columns))
    fill: dict[str, pa.Array[Any]] = {}
    is_known = True
    for clause in clauses:
        kind, words = _clause(statement, clause)
        column = next((column for column in columns if column.name == words[0]), None)
        if (column is None) is not (kind == "add"):
            raise not_understood(statement)
        if kind == "add":
            made = _typed(
                statement, Column(name=words[0], type=pa.string(), source_type="", id=len(columns) + 1), words[1]
            )
            columns.append(made)
            is_known = is_known and words[2] != _VOLATILE
            if words[2] is not None and words[2] != _VOLATILE:
                fill[made.name] = pa.array([words[2]]).cast(made.type)
            continue
        assert column is not None, "as was checked"
        position = columns.index(column)
        if kind == "drop":
            del columns[position]
        else:
            columns[position] = (
                replace(column, name=words[1]) if kind == "rename" else _typed(statement, column, words[1])
            )
    row = pa.RecordBatch.from_arrays(list(fill.values()), names=list(fill)) if fill else no_fill()
    return DDLEvent(
        operation=DDLOperation.ALTER_TABLE,
        table=schema.table,
        before=before,
        schema=replace(schema, columns=tuple(columns)),
        fill=row if is_known else None,
        statement=statement,
    )


def _clause(statement: str, clause: str) -> tuple[str, Sequence[Any]]:
    for kind, pattern in _CLAUSES.items():
        if match := pattern.fullmatch(clause):
            return kind, match.groups()
    raise not_understood(statement)


def _typed(statement: str, column: Column, name: str) -> Column:
    if name.lower() not in _TYPES:
        raise not_understood(statement)
    return replace(column, type=_TYPES[name.lower()], source_type=name.lower())


def not_understood(statement: str) -> ConfigError:
    """Return the error for a statement that this source cannot rehearse."""
    return ConfigError(f"The statement was not understood: {statement}", code="ddl_not_understood")

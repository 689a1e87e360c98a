"""What tables and columns a statement may name, and how they are spelled: SQL Server compares names without case, PostgreSQL with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg

from replicator_testbed.sqlserver import sqltypes
from replicator_testbed.sqlserver.engine.types import NATIVE, from_domain
from replicator_testbed.sqlserver.outcomes import SqlError
from replicator_testbed.sqlserver.sqltypes import SqlType

DEFAULT_SCHEMA: Final = "dbo"
_BY_NATIVE: Final = {native: sqltypes.of(name) for name, native in NATIVE.items()}
_QUERY: Final = """
SELECT n.nspname, c.relname, c.oid::bigint, c.relkind::text, coalesce(s.schema_id, 0),
  coalesce(json_agg(json_build_array(a.attnum, a.attname, t.typname, co.collname,
    a.attidentity <> '' OR sqlserver.is_said(c.oid, a.attname, 'identity') = 1, a.attgenerated, a.attnotnull)
    ORDER BY a.attnum) FILTER (WHERE a.attnum > 0 AND NOT a.attisdropped), '[]')
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN sqlserver.schemas s ON s.name = n.nspname
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid
LEFT JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_catalog.pg_collation co ON co.oid = a.attcollation AND co.oid <> 100
WHERE c.relkind IN ('r', 'v') AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'sqlserver')
GROUP BY 1, 2, 3, 4, 5
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnFacts:
    """A column as the catalogue has it; `type` is None for what is no type of SQL Server."""

    id: int
    name: str
    type: SqlType | None
    is_identity: bool = False
    is_computed: bool = False
    is_nullable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """A table or view as the catalogue has it."""

    schema: str
    name: str
    oid: int
    schema_id: int
    is_table: bool
    columns: Mapping[str, ColumnFacts] = field(default_factory=dict)
    """By name in small letters, in order."""

    @property
    def reference(self) -> str:
        """The table in PostgreSQL's SQL."""
        return f"{quoted(self.schema)}.{quoted(self.name)}"


class Names:
    """The tables and views of a database at one time."""

    def __init__(self, tables: Mapping[tuple[str, str], TableFacts], database: str) -> None:
        """Take the tables by schema and name in small letters."""
        self._tables = tables
        self.database = database

    @classmethod
    def load(cls, connection: psycopg.Connection[Any], database: str) -> Names:
        """Read them."""
        tables: dict[tuple[str, str], TableFacts] = {}
        for schema, name, oid, kind, schema_id, columns in connection.execute(_QUERY):
            facts = [_column(*column) for column in columns]
            tables[schema.lower(), name.lower()] = TableFacts(
                schema=schema,
                name=name,
                oid=oid,
                schema_id=schema_id,
                is_table=kind == "r",
                columns={f.name.lower(): f for f in facts},
            )
        return cls(tables, database)

    def schema(self, catalog: str, schema: str) -> str:
        """The schema of PostgreSQL that a qualified name is in.

        Raises:
            SqlError: 208, it is in a database that the model does not have.
        """
        schema = schema or DEFAULT_SCHEMA
        if not catalog or catalog.lower() == self.database.lower() or schema.lower() == "sys":
            return schema
        if catalog.lower() == "msdb":
            return "msdb"
        raise SqlError(208, f"Invalid object name '{catalog}.{schema}': the model has one database, {self.database}.")

    def table(self, schema: str, name: str) -> TableFacts:
        """A table or view.

        Raises:
            SqlError: 208, there is none.
        """
        found = self.find(schema, name)
        if found is None:
            raise SqlError(208, f"Invalid object name '{schema}.{name}'.")
        return found

    def find(self, schema: str, name: str) -> TableFacts | None:
        """A table or view, or None."""
        return self._tables.get((schema.lower(), name.lower()))

    def by_oid(self, oid: int) -> TableFacts | None:
        """A table by its object_id, or None."""
        return next((table for table in self._tables.values() if table.oid == oid), None)


def quoted(name: str) -> str:
    """A name in PostgreSQL's SQL."""
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    """A text in PostgreSQL's SQL."""
    return "'" + value.replace("'", "''") + "'"


def unbracketed(name: str) -> str:
    """A name without the brackets or quotation marks of T-SQL."""
    name = name.strip()
    if name.startswith("[") and name.endswith("]"):
        return name[1:-1].replace("]]", "]")
    if name.startswith('"') and name.endswith('"') and len(name) > 1:
        return name[1:-1].replace('""', '"')
    return name


def _column(
    number: int, name: str, pg_type: str, collation: str | None, identity: bool, generated: str, not_null: bool
) -> ColumnFacts:
    try:
        kind = _BY_NATIVE.get(pg_type) or from_domain(pg_type, collation)
    except sqltypes.UnknownTypeError:
        kind = None
    return ColumnFacts(
        id=number,
        name=name,
        type=kind,
        is_identity=identity,
        is_computed=bool(generated),
        is_nullable=not not_null,
    )

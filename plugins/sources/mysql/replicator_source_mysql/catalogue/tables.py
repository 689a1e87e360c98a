"""Tables in the server's catalogue: facts, and conclusions from them. The queries are in `discovery`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import pyarrow as pa

from replicator.model.errors import TableError
from replicator.model.identity import TableIdentity
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.source import TableDescription
from replicator_source_mysql.binlog import ColumnSpec
from replicator_source_mysql.catalogue.virtual import is_same_for_all
from replicator_source_mysql.connecting.connection import quoted, quoted_table
from replicator_source_mysql.flavors import Flavor
from replicator_source_mysql.rows.values import KEY_KINDS


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogColumn:
    """A column.

    Attributes:
        spec: None where the type is not known.
        expression: Expression of a VIRTUAL column, as the server writes it; None for others.
        is_readable: Our account may SELECT it.
    """

    name: str
    column_type: str
    spec: ColumnSpec | None
    is_nullable: bool
    expression: str | None = None
    is_readable: bool = True
    comment: str | None = None

    @property
    def is_virtual(self) -> bool:
        """Return whether its values are computed when they are read."""
        return self.expression is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class UniqueKey:
    """A unique key: its columns in order; `is_whole` unless a part is a prefix or an expression, or all of it a hash."""

    name: str
    columns: tuple[str, ...]
    is_whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKey:
    """A foreign key of a table whose actions change it: `rules` such as `ON DELETE CASCADE`."""

    name: str
    parent: TableId
    rules: str


@dataclass(frozen=True, kw_only=True)
class CatalogTable:
    """A table as it is now.

    Attributes:
        kind: `table_type` of the catalogue.
        storage: InnoDB's numbers of the table or of its partitions, which a TRUNCATE or a rebuild changes; on MySQL with how
            often columns were added or dropped without a rebuild.
        unique_keys: Unique keys, in the order of the server where it matters.
        created: Time at which it was made or altered, as text; a TRUNCATE leaves it (seen on MySQL 9.7 and MariaDB 10.11).
            None if the server does not say.
    """

    table: TableId
    kind: str
    engine: str
    created: str | None
    storage: tuple[int | str, ...]
    columns: tuple[CatalogColumn, ...]
    unique_keys: tuple[UniqueKey, ...]
    cascades: tuple[ForeignKey, ...] = ()
    estimated_rows: int | None = None
    comment: str | None = None

    @property
    def is_system_versioned(self) -> bool:
        """Return whether it keeps its history (MariaDB)."""
        return self.kind == "SYSTEM VERSIONED"

    def session_dependent(self, flavor: Flavor) -> tuple[CatalogColumn, ...]:
        """The virtual columns that may have another value in the log than a SELECT of ours gives (`virtual`)."""
        columns = {c.name: (c.column_type, c.spec) for c in self.columns}
        return tuple(
            c
            for c in self.columns
            if c.expression is not None and not is_same_for_all(c.expression, c.name, columns, flavor)
        )

    @cached_property
    def replicable(self) -> tuple[CatalogColumn, ...]:
        """The columns whose type is known."""
        return tuple(c for c in self.columns if c.spec is not None)

    @property
    def key(self) -> tuple[str, ...]:
        """The columns by which InnoDB clusters rows, and which the log names; empty if there are none, or if they cannot serve.

        The primary key, else the first unique key whose columns are whole, NOT NULL and stored.
        """
        return self.key_index.columns if self.key_index is not None else ()

    @cached_property
    def key_index(self) -> UniqueKey | None:
        """The key of `key`, with its name."""
        by_name = {c.name: c for c in self.columns}
        for unique in sorted(self.unique_keys, key=lambda k: k.name != "PRIMARY"):
            parts = [by_name.get(name) for name in unique.columns]
            columns = [p for p in parts if p is not None and not p.is_nullable and not p.is_virtual]
            if unique.is_whole and len(columns) == len(parts):
                can_serve = all(c.spec is not None and c.spec.kind in KEY_KINDS for c in columns)
                return unique if can_serve else None
            if unique.name == "PRIMARY":
                return None
        return None

    @cached_property
    def schema(self) -> TableSchema:
        """The shape that is replicated."""
        return TableSchema(
            table=self.table,
            columns=tuple(
                Column(
                    name=c.name, type=_arrow(c), source_type=c.column_type, nullable=c.is_nullable, comment=c.comment
                )
                for c in self.replicable
            ),
            key=self.key,
            comment=self.comment,
        )

    @cached_property
    def specs(self) -> Mapping[str, ColumnSpec]:
        """The spec by which each column's values are read."""
        return {c.name: c.spec for c in self.columns if c.spec is not None}

    @cached_property
    def identity(self) -> TableIdentity:
        """The table's identity. No number of the server survives a rebuild: another storage may be another object."""
        storage = ":".join(map(str, self.storage)) or str(self.created)
        # An expression changes what a virtual column has, and no storage.
        expressions = {c.name: c.expression for c in self.columns if c.is_virtual}
        return TableIdentity(storage=storage, parts={"engine": self.engine}, columns=expressions, altered=self.created)

    @property
    def description(self) -> TableDescription:
        """The table's description for the host."""
        return TableDescription(schema=self.schema, identity=self.identity, estimated_rows=self.estimated_rows)


def system_versioned(table: TableId) -> TableError:
    """The error for a table that is system-versioned (MariaDB)."""
    return TableError(
        "it is system-versioned: its log mixes past and current rows.",
        code="system_versioned",
        table=str(table),
        action=f"ALTER TABLE {quoted_table(table)} DROP SYSTEM VERSIONING; then run `replicator snapshot NAME TABLE`; or exclude it.",
    )


def virtual_column(table: TableId, column: CatalogColumn) -> TableError:
    """The error for a virtual column whose value may depend on the session."""
    name, type_ = quoted(column.name), column.column_type
    return TableError(
        f"its virtual column {column.name} may depend on the session that reads it: AS ({column.expression}). The log may have"
        " another value than a SELECT.",
        code="virtual_column",
        table=str(table),
        action=f"Make it STORED: ALTER TABLE {quoted_table(table)} DROP COLUMN {name}, ADD COLUMN {name} {type_} AS (…) STORED;"
        " or exclude the table.",
    )


def _arrow(column: CatalogColumn) -> pa.DataType:
    assert column.spec is not None
    return column.spec.arrow


SHADOW_SUFFIXES: Final = ("_gho", "_ghc", "_del", "_new", "_old")


def shadow_of(name: str, names: Sequence[str] | frozenset[str]) -> str | None:
    """The table that a schema-change tool works on with a helper of this name; None if it is none."""
    if not name.startswith("_"):
        return None
    for suffix in SHADOW_SUFFIXES:
        base = name.removesuffix(suffix)[1:]
        if name.endswith(suffix) and base in names:
            return base
    return None

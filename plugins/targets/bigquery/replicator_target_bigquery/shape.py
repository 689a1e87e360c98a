"""A table as the statements see it: columns, key, names and types in staging and target."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from replicator.model.schema import Column, TableSchema
from replicator.plugins.target import TableOptions
from replicator_target_bigquery.names import Names, quoted, staged_fields
from replicator_target_bigquery.types import JsonAs, converted, exact_text, target_type


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnShape:
    """One column.

    Attributes:
        index: The column's index among the columns, from 0; inside statements values are called `f<index>`.
        field: The column's name in `row` and `before` of the journal's files.
        staged: The same in the staging table.
        name: The column's name in the target.
        type: The column's type in the target.
        key_index: The column's index in the key, from 0; None outside of it.
    """

    column: Column
    index: int
    field: str
    staged: str
    name: str
    type: str
    key_index: int | None

    def of(self, struct: str) -> str:
        """Return the value in the target's type, taken from a staged record."""
        return converted(f"{struct}.{quoted(self.staged)}", self.column, self.type)

    def in_target(self, alias: str) -> str:
        """Return the column of the target's table."""
        return f"{alias}.{quoted(self.name)}"

    def identity(self, expression: str) -> str:
        """Return a text that is the same exactly for the same value."""
        return exact_text(expression, self.type)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A table's columns in order, with the options that its statements depend on.

    `kept` are columns that stand in the target only: statements do not name them, so a row that is matched keeps what it
    has there, and one that is inserted has NULL.
    """

    columns: Sequence[ColumnShape]
    options: TableOptions
    kept: Sequence[ColumnShape] = ()

    @property
    def held(self) -> Sequence[ColumnShape]:
        """All columns of the target that are the source's, or were."""
        return [*self.columns, *self.kept]

    @property
    def key(self) -> Sequence[ColumnShape]:
        """The key's columns in key order."""
        return sorted((c for c in self.columns if c.key_index is not None), key=lambda c: c.key_index or 0)

    @property
    def others(self) -> Sequence[ColumnShape]:
        """Columns outside of the key."""
        return [c for c in self.columns if c.key_index is None]

    @property
    def is_soft(self) -> bool:
        """Return whether deleted rows are marked instead of removed."""
        return self.options.deletes == "soft"

    @property
    def mark(self) -> str:
        """A text, fit for a label, that changes whenever the table would have to look different."""
        columns = [[c.name, c.type, c.key_index] for c in self.columns]
        flags = [self.options.deletes, self.options.source_timestamp]
        kept = [[[c.name, c.type] for c in self.kept]] if self.kept else []
        return hashlib.sha256(json.dumps([columns, flags, *kept]).encode()).hexdigest()[:24]


def shape_of(schema: TableSchema, options: TableOptions, names: Names, json_as: JsonAs) -> Shape:
    """Return the shape of a table version.

    Raises:
        UnsupportedTypeError: A column's type is outside the canonical set.
    """
    staged = staged_fields(schema)
    return Shape(
        columns=[
            ColumnShape(
                column=column,
                index=index,
                field=schema.fields[column.name],
                staged=staged[column.name],
                name=names.column(column.name),
                type=target_type(column, json_as, is_key=column.name in schema.key),
                key_index=schema.key.index(column.name) if column.name in schema.key else None,
            )
            for index, column in enumerate(schema.columns)
        ],
        options=options,
        kept=[
            ColumnShape(
                column=column,
                index=index,
                field=column.name,
                staged=column.name,
                name=names.column(column.name),
                type=target_type(column, json_as),
                key_index=None,
            )
            for index, column in enumerate(schema.kept, start=len(schema.columns))
        ],
    )

"""Columns whose changes a policy ignores (`IgnoredColumn`), as the target has them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from replicator.model.schema import Column, TableSchema, type_from_text
from replicator.state.records import IgnoredColumn

Ignored = Sequence[IgnoredColumn]


def pairs(schema: TableSchema, ignored: Ignored) -> Sequence[tuple[Column, Column]]:
    """Return the columns that the target has from the source: in pairs, as the source and as the target has them."""
    entries = {entry.column: entry for entry in ignored}
    found: list[tuple[Column, Column]] = []
    for column in schema.columns:
        entry = entries.get(column.name)
        if entry is None:
            found.append((column, column))
        elif entry.name is not None:
            held = replace(
                column, name=entry.name, type=type_from_text(entry.type or ""), source_type=entry.source_type or ""
            )
            found.append((column, held))
    return found


def as_in_target(schema: TableSchema, ignored: Ignored) -> TableSchema:
    """Return the target's schema of a table whose source has this one. Kept columns are as the target has them already."""
    if not ignored:
        return schema
    return replace(schema, columns=tuple(held for _, held in pairs(schema, ignored)))


def still_ignored(entries: Iterable[IgnoredColumn], schema: TableSchema) -> tuple[IgnoredColumn, ...]:
    """Return the entries that still differ from the source's schema: not those of columns with their former name and type."""
    types = {column.name: column.type for column in schema.columns}
    return tuple(
        entry
        for entry in entries
        if entry.name != entry.column or type_from_text(entry.type or "") != types[entry.column]
    )

"""What a target has of columns of which policies ignore changes (`IgnoredColumn`). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from replicator.model.schema import Column, TableSchema, type_from_text
from replicator.state.records import IgnoredColumn

Ignored = Sequence[IgnoredColumn]


def pairs(schema: TableSchema, ignored: Ignored) -> Sequence[tuple[Column, Column]]:
    """The columns that the target has from the source: as they are in the source, and there."""
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
    """The shape that the target has of a table whose source has this one. Kept columns are as the target has them already."""
    if not ignored:
        return schema
    return replace(schema, columns=tuple(held for _, held in pairs(schema, ignored)))


def still_ignored(entries: Iterable[IgnoredColumn], schema: TableSchema) -> tuple[IgnoredColumn, ...]:
    """Those by which the target differs from the source's shape: not those of columns that have their former name and type again."""
    types = {column.name: column.type for column in schema.columns}
    return tuple(
        entry
        for entry in entries
        if entry.name != entry.column or type_from_text(entry.type or "") != types[entry.column]
    )

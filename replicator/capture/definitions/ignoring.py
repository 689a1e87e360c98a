"""Changes of a table's columns that policies ignore. Pure."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from replicator.config.model import DDLConfig
from replicator.model.alteration import Alteration, Change, widens
from replicator.model.schema import Column, TableSchema, type_to_text
from replicator.projection.columns import Ignored, IgnoredColumn, still_ignored


def ignored_after(
    ignored: Ignored, change: Alteration, policies: DDLConfig, schema: TableSchema
) -> tuple[IgnoredColumn, ...]:
    """Return the changes that are ignored after an alteration that does not stop the table.

    Args:
        ignored: What is ignored before it.
        change: As the source has it.
        policies: Of the table.
        schema: Of the table in the source after it. Columns of the key are as the source has them.
    """
    dropped = {column.name for column in change.dropped}
    names = {old.name: new.name for old, new in change.renamed}
    found = {
        name: replace(entry, column=name, name=_renamed(entry, name, policies))
        for entry in ignored
        if entry.column not in dropped
        for name in (names.get(entry.column, entry.column),)
    }
    if policies.rename_column == "ignore":
        for old, new in change.renamed:
            if new.name not in found:
                found[new.name] = _entry(new, old)
    for old, new in change.retyped:
        entry = found.get(new.name)
        if getattr(policies, type_kind(old, new, is_key=new.name in schema.key).value) == "ignore":
            found.setdefault(new.name, _entry(new, replace(old, name=new.name)))
        elif entry is not None and entry.name is not None:
            found[new.name] = _entry(new, replace(new, name=entry.name))
    if policies.add_column == "ignore":
        found |= {column.name: IgnoredColumn(column=column.name) for column in change.added}
    return still_ignored((entry for name, entry in found.items() if name not in schema.key), schema)


def type_kind(old: Column, new: Column, *, is_key: bool) -> Change:
    """Return the kind of a column's other type."""
    # Rows are not found by numbers that are not exact.
    is_inexact = is_key and pa.types.is_floating(new.type)
    return Change.WIDEN_TYPE if widens(old.type, new.type) and not is_inexact else Change.CHANGE_TYPE


def _renamed(entry: IgnoredColumn, name: str, policies: DDLConfig) -> str | None:
    if entry.name is None or entry.column == name or policies.rename_column == "ignore":
        return entry.name
    return name


def _entry(column: Column, held: Column) -> IgnoredColumn:
    return IgnoredColumn(column=column.name, name=held.name, type=type_to_text(held.type), source_type=held.source_type)

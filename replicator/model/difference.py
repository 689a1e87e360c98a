"""The difference between two versions of a table, in lines for people. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from replicator.model.alteration import alteration
from replicator.model.schema import Column, TableSchema


def difference(before: TableSchema | None, after: TableSchema | None) -> Sequence[str]:
    """Return a table's changes, one line per fact: `+ email varchar(20)`, `- x`, `a → b`, `n int → bigint`; none if nothing is known of it.

    Types are the source's. Without a schema before, one line lists the columns afterwards.
    """
    if after is None:
        return []
    if before is None:
        return [f"columns: {', '.join(_spelled(column) for column in after.columns)}"]
    change = alteration(before, after)
    added = {column.name for column in change.added}
    dropped = {column.name for column in change.dropped}
    origin = {new.name: old for old, new in change.renamed}
    same = {column.name: column for column in before.columns if column.name not in dropped}
    lines = [f"+ {_spelled(column)}" for column in change.added]
    lines += [f"- {column.name}" for column in change.dropped]
    for column in after.columns:
        if column.name not in added:
            lines += _changed(origin.get(column.name) or same[column.name], column)
    if change.is_reordered:
        lines.append(f"order: {', '.join(column.name for column in after.columns)}")
    if change.has_other_key:
        lines.append(f"key: {_key(before)} → {_key(after)}")
    kept = [column.name for column in after.kept]
    # Not every source of schemas knows which columns the target keeps.
    if kept and kept != [column.name for column in before.kept]:
        lines.append(f"kept in the target: {', '.join(kept)}")
    return lines


def _changed(old: Column, new: Column) -> Sequence[str]:
    """Describe the change of one column; nothing if it did not change."""
    if _type(old) == _type(new):
        return [f"{old.name} → {new.name}"] if old.name != new.name else []
    name = "" if old.name == new.name else f"{new.name} "
    return [f"{old.name} {_type(old)} → {name}{_type(new)}"]


def _spelled(column: Column) -> str:
    return f"{column.name} {_type(column)}"


def _type(column: Column) -> str:
    return f"{column.source_type}{'' if column.nullable else ' NOT NULL'}"


def _key(schema: TableSchema) -> str:
    return f"({', '.join(schema.key)})" if schema.key else "none"

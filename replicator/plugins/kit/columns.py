"""Columns of a target's table: those that it has, and a comparison with those that it had when Replicator made it. Pure.

The comparison is for targets that tell no identity of a column.
A database that never moves a column shows it in their order: one that is renamed stays where it is, and one that is added comes last.
So names that were exchanged, and a column that was dropped and added again, show in the order of the names. What it cannot show: that the
last column was dropped and added again. Of `_sequence_num` and `_is_deleted` their mode shows that, where no column can be added that has
to have a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from replicator.model.events import IS_DELETED, SEQUENCE_NUM, SOURCE_TIMESTAMP
from replicator.model.naming import folded
from replicator.model.schema import TableSchema
from replicator.plugins.target import TableOptions

REQUIRED: Final = "REQUIRED"
"""Mode of a column that has to have a value."""
OWN: Final = (SEQUENCE_NUM, IS_DELETED, SOURCE_TIMESTAMP)

Made = Sequence[Sequence[str]]
"""Of each column its name, its type, and its mode; empty: not known."""


def own_columns(options: TableOptions) -> Sequence[str]:
    """Return the columns that are added to the source's."""
    is_wanted = {IS_DELETED: options.deletes == "soft", SOURCE_TIMESTAMP: options.source_timestamp}
    return [name for name in OWN if is_wanted.get(name, True)]


def stored_columns(schema: TableSchema, options: TableOptions) -> Sequence[str]:
    """Return all columns of a target's table."""
    return [*(column.name for column in schema.held), *own_columns(options)]


def conflict(made: Made, found: Made) -> str | None:
    """Return the changes of our columns by others, as a sentence; None if none matters.

    Columns that others added do not matter, nor does a key column that is no longer REQUIRED.
    """
    there = {folded(name): (type_, mode) for name, type_, mode in found}
    if lacking := [name for name, *_ in made if folded(name) not in there]:
        return f"It lacks {', '.join(lacking)}."
    names = {folded(name) for name, *_ in made}
    order = [name for name, *_ in found if folded(name) in names]
    moved = [name for (name, *_), other in zip(made, order, strict=True) if folded(name) != folded(other)]
    reset = [
        name for name, _, mode in made if name in OWN and mode == REQUIRED and there[folded(name)][1] not in {"", mode}
    ]
    if moved or reset:
        return f"Columns were renamed, or dropped and added again: {', '.join(moved or reset)}."
    retyped = [name for name, type_, _ in made if there[folded(name)][0] != type_]
    return f"Columns got another type: {', '.join(retyped)}." if retyped else None

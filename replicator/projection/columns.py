"""The columns of a target's table, by those of the source: what settings leave out, mask and rename, and what policies ignore. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from replicator.model.schema import Column, TableSchema, type_from_text


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoredColumn:
    """A column of the target for which a policy ignores a change.

    Attributes:
        column: Its name in the source.
        name: Its name in the target; None: the target does not have it.
        type: Its type there, as `model.schema.type_to_text` writes it.
        source_type: The source's spelling of that type.
    """

    column: str
    name: str | None = None
    type: str | None = None
    source_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectedColumn:
    """A column of the source that settings leave out, mask or rename.

    Attributes:
        column: Its name in the source.
        is_left_out: It does not leave the source.
        is_new: It is left out because it was added after the table was first replicated (`new_columns: exclude`).
        mask: The function of its values, as people may see it; None: they stay as they are.
        key: Tells whether the function's key is another one; None: it has none.
        type: The type of masked values, as `model.schema.type_to_text` writes it; None: that of the column.
        name: Its name in the target; None: the source's.
    """

    column: str
    is_left_out: bool = False
    is_new: bool = False
    mask: str | None = None
    key: str | None = None
    type: str | None = None
    name: str | None = None

    @property
    def is_protected(self) -> bool:
        """Return whether its values must not leave the source as they are."""
        return self.is_left_out or self.mask is not None


Ignored = Sequence[IgnoredColumn]


@dataclass(frozen=True, slots=True)
class Projection:
    """All that lies between a table of the source and that of the target.

    Attributes:
        ignored: By policies.
        columns: By settings.
    """

    ignored: tuple[IgnoredColumn, ...] = ()
    columns: tuple[ProjectedColumn, ...] = field(default=())

    def __bool__(self) -> bool:
        """Return whether anything does."""
        return bool(self.ignored or self.columns)

    def of(self, column: str) -> ProjectedColumn | None:
        """Return what settings say about a column of the source; None: nothing."""
        return next((entry for entry in self.columns if entry.column == column), None)

    @property
    def protected(self) -> frozenset[str]:
        """Return the names of the source's columns whose values must not be written or shown as they are."""
        return frozenset(entry.column for entry in self.columns if entry.is_protected)

    @property
    def left_out(self) -> frozenset[str]:
        """Return the names of the source's columns that settings leave out."""
        return frozenset(entry.column for entry in self.columns if entry.is_left_out)

    @property
    def masked(self) -> frozenset[str]:
        """Return the names of the source's columns whose values reach the target through a function."""
        return frozenset(entry.column for entry in self.columns if entry.mask is not None and not entry.is_left_out)

    def pairs(self, schema: TableSchema) -> Sequence[tuple[Column, Column]]:
        """Return the columns that the target has from the source: in pairs, as the source and as the target has them."""
        settings = {entry.column: entry for entry in self.columns}
        return [
            (column, _projected(held, settings.get(column.name)))
            for column, held in _held(schema, self.ignored)
            if column.name not in settings or not settings[column.name].is_left_out
        ]

    def in_target(self, schema: TableSchema) -> TableSchema:
        """Return the target's schema of a table whose source has this one. Kept columns are as the target has them already."""
        if not self:
            return schema
        names = {column.name: held.name for column, held in self.pairs(schema)}
        columns = tuple(held for _, held in self.pairs(schema))
        return replace(schema, columns=columns, key=tuple(names[name] for name in schema.key))


NO_PROJECTION: Final = Projection()


def still_ignored(entries: Iterable[IgnoredColumn], schema: TableSchema) -> tuple[IgnoredColumn, ...]:
    """Return the entries that still differ from the source's schema: not those of columns with their former name and type."""
    types = {column.name: column.type for column in schema.columns}
    return tuple(
        entry
        for entry in entries
        if entry.name != entry.column or type_from_text(entry.type or "") != types[entry.column]
    )


def _held(schema: TableSchema, ignored: Ignored) -> Sequence[tuple[Column, Column]]:
    """The columns that policies leave, in pairs."""
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


def _projected(held: Column, entry: ProjectedColumn | None) -> Column:
    if entry is None:
        return held
    if entry.mask is not None:
        kind = held.type if entry.type is None else type_from_text(entry.type)
        # A masked value may be NULL where the source's is not. The source's comment may quote values.
        held = replace(held, type=kind, nullable=True, comment=None)
    return held if entry.name is None else replace(held, name=entry.name)

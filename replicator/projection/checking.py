"""What settings make of tables before they are replicated: the target's shapes, and what is wrong with the settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from replicator.config import ColumnPattern, TableOptions, TablePattern, nearest
from replicator.model.errors import Problem, SchemaConflictError
from replicator.model.naming import check_columns, folded
from replicator.model.rules import columns
from replicator.model.schema import TableId, TableSchema, type_to_text
from replicator.projection.columns import NO_PROJECTION, Projection
from replicator.projection.rules import ColumnRules

Settings = Mapping[TablePattern, TableOptions]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivingColumn:
    """A column of the source, and what arrives of it in the target.

    Attributes:
        column: Its name in the source.
        name: Its name in the target; None: it is left out.
        type: Its type there, as `model.schema.type_to_text` writes it; of one that is left out that of the source.
        mask: The function of its values; None: they arrive as they are.
    """

    column: str
    name: str | None
    type: str
    mask: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectedTables:
    """Tables as the settings of their columns make them.

    Attributes:
        shapes: The target's shapes of those that can be replicated so.
        projections: What lies between, for those that have such settings.
        problems: Tables that cannot.
    """

    shapes: Sequence[TableSchema]
    projections: Mapping[TableId, Projection]
    problems: Sequence[Problem]


NOTHING_PROJECTED: Final = ProjectedTables(shapes=(), projections={}, problems=())


def project_tables(schemas: Sequence[TableSchema], rules: Callable[[TableId], ColumnRules]) -> ProjectedTables:
    """Return what the settings make of these tables of the source."""
    shapes: list[TableSchema] = []
    projections: dict[TableId, Projection] = {}
    problems: list[Problem] = []
    for schema in schemas:
        try:
            projection = Projection(columns=rules(schema.table).project(schema))
        except SchemaConflictError as error:
            problems.append(Problem.of(error))
            continue
        shape = projection.in_target(schema)
        if not shape.columns:
            problems.append(columns.ALL_COLUMNS_EXCLUDED.finding(table=str(schema.table)))
            continue
        problems += check_columns(shape)
        shapes.append(shape)
        if projection:
            projections[schema.table] = projection
    return ProjectedTables(shapes=shapes, projections=projections, problems=problems)


def arriving(schema: TableSchema, projection: Projection = NO_PROJECTION) -> Sequence[ArrivingColumn]:
    """Return what arrives of each column of a source's table, in the order of the source."""
    held = {column.name: there for column, there in projection.pairs(schema)}
    masks = {entry.column: entry.mask for entry in projection.columns}
    return [
        ArrivingColumn(
            column=column.name,
            name=held[column.name].name if column.name in held else None,
            type=type_to_text(held.get(column.name, column).type),
            mask=masks.get(column.name) if column.name in held else None,
        )
        for column in schema.columns
    ]


def unmatched_columns(schemas: Sequence[TableSchema], settings: Settings) -> Iterator[Problem]:
    """Yield warnings about names that stand in the settings of tables and that none of these tables has."""
    for pattern, options in settings.items():
        names = [column.name for schema in schemas if pattern.matches(schema.table) for column in schema.columns]
        if not names:
            continue
        known = {folded(name) for name in names}
        for setting, name in _names(options):
            if folded(name) not in known:
                near = nearest(name, names)
                hint = f"Did you mean {near}?" if near else "Check the name."
                yield columns.COLUMN_WITHOUT_MATCH.finding(pattern=pattern, column=name, setting=setting, action=hint)


def _names(options: TableOptions) -> Iterator[tuple[str, str]]:
    """Yield the names without a star in the settings of columns, each with its setting."""
    patterns: list[tuple[str, ColumnPattern]] = [("mask", pattern) for pattern in options.mask]
    if options.columns is not None:
        patterns += [("columns.include", one) for one in options.columns.include or ()]
        patterns += [("columns.exclude", one) for one in options.columns.exclude or ()]
    yield from ((setting, pattern.name) for setting, pattern in patterns if pattern.is_name)
    yield from (("rename", name) for name in options.rename)

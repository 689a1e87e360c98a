"""Shapes of tables as Relation messages declare them, compared with the known ones."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from replicator.model.errors import UnsupportedTypeError
from replicator.model.schema import Column, TableId, TableSchema
from replicator_source_postgresql.connecting.errors import corrupt_rows
from replicator_source_postgresql.log.pgoutput import Relation, RelationColumn, Shape
from replicator_source_postgresql.types import PgType, TypeInfo, column_type

_MODIFIED: Final = re.compile(r"(numeric|varchar|char|time|timestamp|timestamptz)(?:\([-\d,]+\))?((?:\[\])?)")


FULL: Final = "f"
"""The replica identity of a table whose whole rows are logged, in a Relation message."""


def type_oids(relation: Relation) -> Collection[int]:
    """Return the types that must be resolved before `types_of`."""
    return {column.type_oid for column in relation.columns}


def types_of(relation: Relation, table: TableId, infos: Mapping[int, TypeInfo]) -> tuple[PgType, ...]:
    """Return the types of the columns that a Relation message declares.

    Raises:
        UnsupportedTypeError: A column has no mapping.
        TableError: `corrupt_rows`: a column's name is not UTF-8.
    """
    if not relation.has_names:
        raise corrupt_rows(table, "a column has a name that is not UTF-8")
    return tuple(_column_mapping(column, infos, table) for column in relation.columns)


def has_same_columns(relation: Relation, types: Sequence[PgType], known: TableSchema) -> bool:
    """Return whether a Relation message has columns of the known names and types, in their order."""
    shape = [(c.name, t.arrow, t.source_type) for c, t in zip(relation.columns, types, strict=True)]
    return shape == [(c.name, c.type, c.source_type) for c in known.columns]


def retyped(before: TableSchema, after: TableSchema) -> Sequence[tuple[Column, Column]]:
    """Return the columns with another type, before and after; the source's type may differ while the canonical one does not."""
    known = {column.id: column for column in before.columns}
    pairs = [(known[column.id], column) for column in after.columns if column.id in known]
    return [(old, new) for old, new in pairs if (old.type, old.source_type) != (new.type, new.source_type)]


def differ_in_modifier(before: str, after: str) -> bool:
    """Return whether two spellings of types differ in the modifier alone: `varchar(10)` and `varchar(20)`, `numeric(6,2)` and `numeric`."""
    old, new = _MODIFIED.fullmatch(before), _MODIFIED.fullmatch(after)
    return old is not None and new is not None and old.groups() == new.groups()


def ids_of(schema: TableSchema) -> tuple[int, ...] | None:
    """Return the numbers of a table's columns; None if not all have one."""
    ids = tuple(c.id for c in schema.columns if c.id is not None)
    return ids if len(ids) == len(schema.columns) else None


def shape_of(
    relation: Relation,
    known: TableSchema,
    types: Sequence[PgType],
    ids: Sequence[int] | None,
    *,
    by_id: bool,
    key_ids: Sequence[int] | None = None,
    nullable: Mapping[int, bool] = MappingProxyType({}),
) -> Shape:
    """Return the shape that a Relation message declares; its `schema` is `known` itself if that is still right.

    The key is compared with the replica identity's columns unless that is FULL, which names them all. A Relation message tells neither
    nullability nor comments: known columns keep theirs.

    Args:
        relation: The message.
        known: The shape until now.
        types: `types_of` the message.
        ids: The numbers of its columns; None if they are not known.
        by_id: True if known columns are told by their numbers, false if by their names.
        key_ids: The numbers of the key's columns in the catalogue, in order; None if they are not known. A message names the columns of the
            key without their order, and of a table whose whole rows are logged not even those.
        nullable: By number, true if a column may be NULL in the catalogue; used for those that are new.
    """
    before: Mapping[int | str | None, Column] = {c.id if by_id else c.name: c for c in known.columns}
    columns, names = [], {}
    for position, (column, type_) in enumerate(zip(relation.columns, types, strict=True)):
        number = ids[position] if ids is not None else None
        old = before.get(number if by_id else column.name)
        if old is not None:
            names[old.name] = column.name
        columns.append(
            Column(
                name=column.name,
                type=type_.arrow,
                source_type=type_.source_type,
                nullable=old.nullable if old is not None else number is None or nullable.get(number, True),
                comment=old.comment if old is not None else None,
                id=number,
            )
        )
    key = _key(relation, known.key, names)
    if key_ids is not None:
        called = {column.id: column.name for column in columns}
        found = tuple(called[number] for number in key_ids) if called.keys() >= set(key_ids) else ()
        if relation.identity == FULL or set(found) == set(key):
            key = found
    shape = [(c.name, c.type, c.source_type, c.id) for c in columns]
    if shape == [(c.name, c.type, c.source_type, c.id) for c in known.columns] and key == known.key:
        return Shape(known, tuple(types))
    return Shape(replace(known, columns=tuple(columns), key=key), tuple(types))


def has_room_for(before: str, after: str) -> bool:
    """Return whether a column gets a type, both as we spell them, without a rewrite and with its values unchanged."""
    old, new = _MODIFIED.fullmatch(before), _MODIFIED.fullmatch(after)
    if before == after or old is None or new is None:
        return before == after
    if old.groups() != new.groups() or old.group(2) or old.group(1) == "char":
        return False
    was, now = ([int(n) for n in re.findall(r"-?\d+", text)] for text in (before, after))
    return not now or (bool(was) and now[0] >= was[0] and now[1:] == was[1:])


def _key(relation: Relation, known: Sequence[str], names: Mapping[str, str]) -> tuple[str, ...]:
    """Return the key's columns; `names`: the present names of known columns, if they are there."""
    key = tuple(names[name] for name in known if name in names)
    if relation.identity == FULL:
        return key if len(key) == len(known) else ()
    identity = [c.name for c in relation.columns if c.is_identity]
    return key if len(key) == len(known) and set(identity) == set(key) else tuple(identity)


def _column_mapping(column: RelationColumn, infos: Mapping[int, TypeInfo], table: TableId) -> PgType:
    info = infos.get(column.type_oid)
    mapping = column_type(column.type_oid, column.typmod, info) if info is not None else None
    if mapping is None:
        raise UnsupportedTypeError(
            f"Column {column.name} has a type (oid {column.type_oid}) that is no longer in the catalogue, or that cannot be stored.",
            code="unsupported_type",
            table=str(table),
            action="Run `replicator snapshot NAME TABLE`.",
        )
    return mapping

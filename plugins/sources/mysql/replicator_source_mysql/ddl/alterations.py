"""ALTER TABLE, applied to the shape of a table. Pure.

The statement alone decides, so reading the log again gives the same, and no catalogue that has moved on is asked: the log gives
the character sets for decoding, and canonical types do not depend on them. A table whose default character set is `binary` is
the exception: the next TABLE_MAP contradicts, and the table fails as changed.

Servers apply the clauses of one statement like this (measured on MySQL 9.7 and MariaDB 10.11; `test_alterations_random.py`): names
of DROP, CHANGE, MODIFY and RENAME are those of the table before. The columns that stay keep their order, under their new names. Then
columns that are added, or have a new position, go to their position one by one, in the order of the statement; until then, a column
that moves stays at its old position. A statement with two possible readings is not applied.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from replicator.model.events import no_fill
from replicator.model.schema import Column, TableSchema
from replicator_source_mysql.binlog import ColumnSpec, declared_spec
from replicator_source_mysql.ddl.conversions import keeps_values
from replicator_source_mysql.ddl.defaults import UnknownValueError, value_before
from replicator_source_mysql.flavors import Flavor
from replicator_source_mysql.rows.values import KEY_KINDS
from replicator_source_mysql.sql.clauses import (
    Add,
    AddKey,
    Change,
    ColumnChanges,
    ColumnPosition,
    Convert,
    Drop,
    DropKey,
    Rename,
)
from replicator_source_mysql.sql.definitions import STRICT, ColumnDefinition
from replicator_source_mysql.sql.keys import KeyPart

_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]+")
_GENERATED_KEY: Final = "my_row_id"
_SIZED: Final = re.compile(r"(?:var)?(?:char|binary)\((\d+)\)")
_LONGER: Final = {"tinytext": "text", "text": "mediumtext", "mediumtext": "longtext"}
# Whatever a text is made of, this one has it.
_HAS_ALL: Final = "utf8mb4"


@dataclass(frozen=True, kw_only=True)
class Alteration:
    """Shapes before and after a statement, and the fill of new columns, as in `DDLEvent`."""

    before: TableSchema
    schema: TableSchema
    fill: pa.RecordBatch | None


class _UnclearError(Exception):
    """The statement's effect on the shape cannot be told."""


def alteration(schema: TableSchema, changes: ColumnChanges, *, after: int, flavor: Flavor) -> Alteration | None:
    """The alteration of a table by a statement; None if that cannot be told.

    Args:
        schema: The table before it.
        changes: The statement.
        after: The highest number that a column of the table ever had; columns without a number get theirs first.
        flavor: The server's flavor.
    """
    before = numbered(schema)
    building = _Building(before, changes, max(after, *_ids(before)), flavor)
    try:
        return building.whole()
    except _UnclearError:
        return None


def numbered(schema: TableSchema) -> TableSchema:
    """The same schema, with a number for each column that has none."""
    taken = set(_ids(schema))
    columns = []
    for column in schema.columns:
        number = column.id
        if number is None:
            number = next(n for n in range(1, len(taken) + 2) if n not in taken)
            taken.add(number)
        columns.append(replace(column, id=number))
    return replace(schema, columns=tuple(columns))


def _ids(schema: TableSchema) -> list[int]:
    return [0, *(column.id for column in schema.held if column.id is not None)]


@dataclass
class _Building:
    """The table that is being built.

    Attributes:
        columns: Columns in their order so far.
        names: Name before → name now, of the columns that stay.
        fill: Values in rows that are there already.
        is_filled: All of these values are known, and no other row changes.
    """

    before: TableSchema
    changes: ColumnChanges
    last_id: int
    flavor: Flavor
    columns: list[Column] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    fill: dict[str, pa.Array] = field(default_factory=dict)
    is_filled: bool = True

    def whole(self) -> Alteration:
        clauses = self.changes.clauses
        self.is_filled = not self.changes.changes_rows
        left = self._named(c for c in clauses if isinstance(c, Drop | Change | Rename))
        for column in self.before.columns:
            self._keep(column, left.get(column.name))
        for clause in clauses:
            if isinstance(clause, Add):
                self._add(clause, left)
            elif isinstance(clause, Change):
                self._move(clause)
            elif isinstance(clause, Convert):
                self._convert(clause)
        self._refuse_twins()
        if not self.columns:
            raise _UnclearError
        key = self._key()
        fill = None
        if self.is_filled:
            fill = pa.RecordBatch.from_pydict(self.fill) if self.fill else no_fill()
        schema = replace(self.before, columns=tuple(self.columns), key=key)
        return Alteration(before=self.before, schema=schema, fill=fill)

    @property
    def _is_strict(self) -> bool:
        return bool(self.changes.sql_mode & STRICT)

    @cached_property
    def _has_key_clause(self) -> bool:
        """Return whether the statement says which primary key there is: a column's NULL or NOT NULL is then its own."""
        return any(
            isinstance(clause, AddKey | DropKey) or (isinstance(clause, Add | Change) and clause.definition.is_primary)
            for clause in self.changes.clauses
        )

    def _key(self) -> tuple[str, ...]:
        """The key afterwards. Without a primary key it may be a unique one: the next rows in the log tell."""
        added: list[tuple[KeyPart, ...]] = []
        is_dropped = False
        for clause in self.changes.clauses:
            if isinstance(clause, AddKey):
                added.append(clause.parts)
            elif isinstance(clause, Add | Change) and clause.definition.is_primary:
                added.append((KeyPart(clause.name),))
            elif isinstance(clause, DropKey):
                if clause.if_exists and self.before.key:
                    raise _UnclearError
                is_dropped = True
        if len(added) > 1:
            raise _UnclearError
        if added:
            return self._primary(added[0])
        if is_dropped:
            return ()
        # MySQL leaves a dropped column out of its keys.
        return tuple(self.names[name] for name in self.before.key if name in self.names)

    def _primary(self, parts: Iterable[KeyPart]) -> tuple[str, ...]:
        names = []
        can_serve = True
        for part in parts:
            column = _find(self.columns, part.name)
            if column is None:
                raise _UnclearError
            spec = declared_spec(column.source_type, None, self.flavor)
            sized = _SIZED.fullmatch(column.source_type)
            is_whole = part.prefix is None or (sized is not None and int(sized[1]) == part.prefix)
            can_serve = can_serve and is_whole and spec is not None and spec.kind in KEY_KINDS
            if column.nullable:
                # NULL becomes another value, where the statement does not fail.
                self.is_filled = self.is_filled and self._is_strict
                self.columns[self.columns.index(column)] = replace(column, nullable=False)
            names.append(column.name)
        return tuple(names) if can_serve else ()

    def _named(self, clauses: Iterable[Drop | Change | Rename]) -> dict[str, Drop | Change | Rename]:
        """Name of a column before the statement → the clause that is about it."""
        found: dict[str, Drop | Change | Rename] = {}
        for clause in clauses:
            name = clause.name if isinstance(clause, Drop) else clause.old
            column = _find(self.before.columns, name)
            if column is None:
                if not clause.if_exists:
                    raise _UnclearError
            elif column.name in found:
                raise _UnclearError
            else:
                found[column.name] = clause
        return found

    def _keep(self, column: Column, clause: Drop | Change | Rename | None) -> None:
        if isinstance(clause, Drop):
            return
        now = column
        if isinstance(clause, Rename):
            now = replace(column, name=clause.name)
        elif isinstance(clause, Change):
            now = self._changed(column, clause)
        self.names[column.name] = now.name
        self.columns.append(now)

    def _changed(self, column: Column, clause: Change) -> Column:
        definition, spec = clause.definition, _spec(clause.definition, self.flavor)
        is_nullable = definition.is_nullable is not False and not definition.is_counted
        if column.name in self.before.key and is_nullable and not self._has_key_clause:
            # A primary key stays NOT NULL; of a unique one, the table would have another key.
            is_nullable = self.is_filled = False
        if definition.has_cascade or not keeps_values(
            column, definition, sql_mode=self.changes.sql_mode, flavor=self.flavor
        ):
            self.is_filled = False
        self._mind_unique(definition)
        return replace(
            column,
            name=clause.name,
            type=spec.arrow,
            source_type=definition.type,
            nullable=is_nullable,
            comment=definition.comment,
        )

    def _add(self, clause: Add, left: dict[str, Any]) -> None:
        if clause.if_not_exists and (found := _find(self.before.columns, clause.name)) is not None:
            if found.name in left:
                raise _UnclearError
            return
        definition, spec = clause.definition, _spec(clause.definition, self.flavor)
        self.last_id += 1
        column = Column(
            name=clause.name,
            type=spec.arrow,
            source_type=definition.type,
            nullable=definition.is_nullable is not False and not definition.is_counted,
            comment=definition.comment,
            id=self.last_id,
        )
        self._put(column, clause.position)
        self._mind_unique(definition)
        if definition.has_cascade or definition.is_primary:
            self.is_filled = False
        try:
            value = value_before(definition, spec, sql_mode=self.changes.sql_mode, flavor=self.flavor)
        except UnknownValueError:
            self.is_filled = False
        else:
            if value is not None:
                self.fill[column.name] = pa.array([value], column.type)

    def _move(self, clause: Change) -> None:
        if clause.position is None:
            return
        old = _find(self.before.columns, clause.old)
        if old is None:
            return  # IF EXISTS
        index = next(i for i, column in enumerate(self.columns) if column.id == old.id)
        self._put(self.columns.pop(index), clause.position)

    def _convert(self, clause: Convert) -> None:
        # What a character set lacks becomes another letter.
        self.is_filled = self.is_filled and self._is_strict and clause.charset == _HAS_ALL
        # One that needs more bytes gets more, if the server did not do so before.
        self.columns = [replace(c, source_type=_LONGER.get(c.source_type, c.source_type)) for c in self.columns]

    def _put(self, column: Column, position: ColumnPosition | None) -> None:
        if position is None:
            self.columns.append(column)
        elif position.after is None:
            # A key that MySQL made by itself stays the first column.
            if self.columns and self.columns[0].name.lower() == _GENERATED_KEY:
                raise _UnclearError
            self.columns.insert(0, column)
        else:
            found = _find(self.columns, position.after)
            if found is None:
                raise _UnclearError
            self.columns.insert(self.columns.index(found) + 1, column)

    def _mind_unique(self, definition: ColumnDefinition) -> None:
        # Of a table that has none it may be the key.
        if definition.is_unique and not self.before.key:
            self.is_filled = False

    def _refuse_twins(self) -> None:
        for index, column in enumerate(self.columns):
            if _find(self.columns[:index], column.name) is not None:
                raise _UnclearError


def _find(columns: Sequence[Column], name: str) -> Column | None:
    """The column that the server finds by this name: it does not mind capitals, whose rule is its own where they are not ASCII."""
    if "\ufffd" in name:
        raise _UnclearError
    found: Column | None = None
    for column in columns:
        if column.name == name or (name.isascii() and column.name.isascii() and column.name.lower() == name.lower()):
            found = found or column
        elif _skeleton(column.name) == _skeleton(name):
            raise _UnclearError
    return found


def _skeleton(name: str) -> str:
    return _NOT_ASCII.sub("?", name.lower())


def _spec(definition: ColumnDefinition, flavor: Flavor) -> ColumnSpec:
    spec = declared_spec(definition.type, definition.charset, flavor)
    if spec is None:
        raise _UnclearError
    return spec

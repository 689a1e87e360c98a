"""Differences between two versions of a table, and the steps that turn one into the other. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from replicator.model.arrow import pa
from replicator.model.schema import Column, TableSchema

_DIGITS: Final = {"int8": 3, "int16": 5, "int32": 10, "int64": 19}
"""Digits of the largest value of each type of integers, from the smallest type to the largest."""


class Change(StrEnum):
    """A kind of change of a table's definition: the keys under `ddl:`."""

    ADD_COLUMN = "add_column"
    DROP_COLUMN = "drop_column"
    RENAME_COLUMN = "rename_column"
    WIDEN_TYPE = "widen_type"
    CHANGE_TYPE = "change_type"
    CHANGE_NULLABILITY = "change_nullability"
    CHANGE_DEFAULT = "change_default"
    CHANGE_KEY = "change_key"
    CREATE_TABLE = "create_table"
    DROP_TABLE = "drop_table"
    TRUNCATE_TABLE = "truncate_table"
    RENAME_TABLE = "rename_table"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alteration:
    """Change of a table's columns, as its source reports it.

    Attributes:
        added: Columns that are new, as they are now.
        dropped: Columns that no longer exist, as they were before.
        renamed: Columns with another name: before and after.
        retyped: Columns of another type: before and after.
        has_other_key: True if other columns make the key, or in another order.
        is_reordered: True if the remaining columns have another order.
    """

    added: tuple[Column, ...] = ()
    dropped: tuple[Column, ...] = ()
    renamed: tuple[tuple[Column, Column], ...] = ()
    retyped: tuple[tuple[Column, Column], ...] = ()
    has_other_key: bool = False
    is_reordered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Steps that turn a target's table into the wanted one.

    Attributes:
        origin: For each wanted column (`TableSchema.held`), the name of the column that becomes it; None: it is new.
        dropped: Columns to remove.
    """

    origin: Mapping[str, str | None]
    dropped: tuple[str, ...]

    @property
    def added(self) -> tuple[str, ...]:
        """Return the columns that are new."""
        return tuple(name for name, old in self.origin.items() if old is None)

    @property
    def renamed(self) -> Mapping[str, str]:
        """Return the columns that get another name: old → new."""
        return {old: new for new, old in self.origin.items() if old is not None and old != new}


def alteration(before: TableSchema, after: TableSchema) -> Alteration:
    """Compare a source's definitions of a table at two moments.

    Columns are the same if they have the same number (`Column.id`); if not every column has one, if they have the same name.
    """
    pairs = _pairs(before.columns, after.columns)
    stays = [old for old in before.columns if old.name in pairs.values()]
    stays_as = [pairs[column.name] for column in after.columns if column.name in pairs]
    by_name = {column.name: column for column in before.columns}
    same = [(by_name[pairs[column.name]], column) for column in after.columns if column.name in pairs]
    return Alteration(
        added=tuple(column for column in after.columns if column.name not in pairs),
        dropped=tuple(column for column in before.columns if column not in stays),
        renamed=tuple((old, new) for old, new in same if old.name != new.name),
        retyped=tuple((old, new) for old, new in same if old.type != new.type),
        has_other_key=[pairs.get(name) for name in after.key] != list(before.key),
        is_reordered=stays_as != [old.name for old in stays],
    )


def steps(actual: TableSchema, wanted: TableSchema) -> Steps:
    """Return the steps that turn the target's table for `actual` into the one for `wanted`, kept columns included."""
    pairs = _pairs(actual.held, wanted.held)
    return Steps(
        origin={column.name: pairs.get(column.name) for column in wanted.held},
        dropped=tuple(column.name for column in actual.held if column.name not in pairs.values()),
    )


def widens(before: pa.DataType, after: pa.DataType) -> bool:
    """Return whether a column that gets the type `after` keeps every value that it can have: the same number, text or moment.

    Integers to larger ones, to doubles that hold them, and to decimals with room for all their digits; floats to doubles; decimals with
    as much room on both sides of the point; dates to timestamps without a zone.
    """
    if before == after:
        return False
    if digits := _DIGITS.get(str(before)):
        if str(after) in _DIGITS:
            return _DIGITS[str(after)] > digits
        if pa.types.is_decimal(after):
            return bool(after.precision - after.scale >= digits and after.scale >= 0)
        return bool(after == pa.float64() and before != pa.int64())
    if before == pa.float32():
        return bool(after == pa.float64())
    if before == pa.date32():
        return bool(after == pa.timestamp("us"))
    if pa.types.is_decimal(before) and pa.types.is_decimal(after):
        has_room = after.precision - after.scale >= before.precision - before.scale
        return bool(has_room and after.scale >= before.scale)
    return False


def _pairs(before: tuple[Column, ...], after: tuple[Column, ...]) -> dict[str, str]:
    """Map the names after to the names before, of the columns that both versions have."""
    if all(column.id is not None for column in (*before, *after)):
        names = {column.id: column.name for column in before}
        return {column.name: names[column.id] for column in after if column.id in names}
    known = {column.name for column in before}
    return {column.name: column.name for column in after if column.name in known}

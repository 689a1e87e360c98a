"""Comparison of column definitions: does every row keep its value after a change? Pure.

A session with a strict SQL mode fails where it would have to change a value, with exceptions: trailing spaces are cut, and bytes are
padded, without an error. Measured on MySQL 9.7 and MariaDB 10.11, by rows before and afterwards (`test_conversions.py`,
`test_alterations_random.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from replicator.model.schema import Column
from replicator_source_mysql.binlog import ColumnSpec, TypeKind, declared_spec
from replicator_source_mysql.flavors import Flavor
from replicator_source_mysql.sql.definitions import STRICT, ColumnDefinition

PAD_CHAR_TO_FULL_LENGTH: Final = 1 << 31

_TEXTS: Final = frozenset({TypeKind.TEXT, TypeKind.ENUM, TypeKind.SET})
# Character sets, if one is named, in which a letter that is there is no other one afterwards.
_ONE_TO_ONE: Final = frozenset(
    {None, "ascii", "latin1", "utf8", "utf8mb3", "utf8mb4", "ucs2", "utf16", "utf16le", "utf32"}
)
_YEAR_BYTES: Final = 2
_DOUBLE_BYTES: Final = 4
_TYPE: Final = re.compile(r"(\w+)(?:\((\d+)\))?")
_LONG: Final = {"tiny": (1 << 8) - 1, "": (1 << 16) - 1, "medium": (1 << 24) - 1, "long": (1 << 32) - 1}
_CAPACITY: Final = {size + kind: capacity for size, capacity in _LONG.items() for kind in ("text", "blob")}
# Bytes that a character has at most, in any character set.
_CHARACTER: Final = 4


def keeps_values(column: Column, definition: ColumnDefinition, *, sql_mode: int, flavor: Flavor) -> bool:
    """Return whether every row keeps its value in a column after it got a new definition: the same number, text or moment."""
    old = declared_spec(column.source_type, None, flavor)
    new = declared_spec(definition.type, None, flavor)
    if old is None or new is None or definition.is_computed or _may_convert(column, definition, new, sql_mode):
        return False
    if old.kind in _TEXTS or old.kind is TypeKind.JSON:
        return _keeps_text(column.source_type, old, definition, new, sql_mode=sql_mode)
    if old.kind is TypeKind.BYTES:
        return new.kind is TypeKind.BYTES and _keeps_bytes(column.source_type, definition.type)
    loses_sign = (
        "unsigned" in definition.type and "unsigned" not in column.source_type and old.kind is not TypeKind.YEAR
    )
    keeps = _KEEPS.get(old.kind, _keeps_other)
    return not loses_sign and keeps(old, new, column.source_type, definition.type)


def _may_convert(column: Column, definition: ColumnDefinition, new: ColumnSpec, sql_mode: int) -> bool:
    """Return whether values may become others, regardless of their types."""
    if new.kind is TypeKind.TIMESTAMP:
        # Without explicit_defaults_for_timestamp nothing is NOT NULL, and NULL becomes the time.
        may_tighten = column.nullable and definition.is_nullable is not True
        if may_tighten or definition.is_nullable is None:
            return True
    # A strict statement fails where it would have to change a value: another character set may lack letters.
    if new.kind in _TEXTS and definition.charset not in _ONE_TO_ONE:
        return True
    is_tightened = column.nullable and definition.is_nullable is False
    return not sql_mode & STRICT and (new.kind in _TEXTS or is_tightened)


# ---- numbers and moments ----


def _keeps_integer(old: ColumnSpec, new: ColumnSpec, _: str, type_: str) -> bool:
    if new.kind is old.kind is TypeKind.YEAR:
        return True
    # A year is a number of two bytes here.
    width = old.width or _YEAR_BYTES
    bits = 8 * width - (not old.is_unsigned)
    if new.kind is TypeKind.INTEGER:
        return 8 * new.width - (not new.is_unsigned) >= bits
    if new.kind is TypeKind.DECIMAL:
        return new.precision - new.scale >= len(str(1 << bits))
    return new.kind is TypeKind.DOUBLE and "(" not in type_ and width <= _DOUBLE_BYTES


def _keeps_real(old: ColumnSpec, new: ColumnSpec, old_type: str, new_type: str) -> bool:
    """Return whether FLOAT and DOUBLE values stay. A type with digits rounds them; a float is the same number as a double."""
    if new.kind is old.kind and old_type.partition(" ")[0] == new_type.partition(" ")[0]:
        return True
    return "(" not in new_type and (new.kind is TypeKind.DOUBLE or new.kind is old.kind)


def _keeps_decimal(old: ColumnSpec, new: ColumnSpec, _: str, __: str) -> bool:
    has_room = new.precision - new.scale >= old.precision - old.scale and new.scale >= old.scale
    return new.kind is TypeKind.DECIMAL and has_room


def _keeps_moment(old: ColumnSpec, new: ColumnSpec, _: str, __: str) -> bool:
    is_same = new.kind is old.kind or (old.kind, new.kind) == (TypeKind.DATE, TypeKind.DATETIME)
    return is_same and new.scale >= old.scale


def _keeps_bits(old: ColumnSpec, new: ColumnSpec, _: str, __: str) -> bool:
    return new.kind is TypeKind.BIT and new.arrow == old.arrow and new.width >= old.width


def _keeps_other(old: ColumnSpec, new: ColumnSpec, old_type: str, new_type: str) -> bool:
    return new.kind is old.kind and new.scale == old.scale and (old.kind is TypeKind.GEOMETRY or old_type == new_type)


_KEEPS: Final[Mapping[TypeKind, Callable[[ColumnSpec, ColumnSpec, str, str], bool]]] = {
    **dict.fromkeys((TypeKind.INTEGER, TypeKind.YEAR), _keeps_integer),
    **dict.fromkeys((TypeKind.FLOAT, TypeKind.DOUBLE), _keeps_real),
    **dict.fromkeys((TypeKind.DATE, TypeKind.DATETIME, TypeKind.TIMESTAMP), _keeps_moment),
    TypeKind.DECIMAL: _keeps_decimal,
    TypeKind.BIT: _keeps_bits,
}


# ---- texts and bytes ----


def _keeps_text(
    old_type: str, old: ColumnSpec, definition: ColumnDefinition, new: ColumnSpec, *, sql_mode: int
) -> bool:
    if old.kind is TypeKind.ENUM and new.kind is TypeKind.ENUM:
        # By their text. Two labels that are one in the column's collation are refused.
        return set(old.labels) <= set(new.labels)
    if old.kind is TypeKind.SET and new.kind is TypeKind.SET:
        return [label for label in new.labels if label in old.labels] == list(old.labels)
    if old.kind is TypeKind.JSON or new.kind is not TypeKind.TEXT:
        return new.kind is old.kind is TypeKind.JSON or (new.kind is TypeKind.TEXT and definition.type == "longtext")
    if old.kind is TypeKind.TEXT:
        return _keeps_plain_text(old_type, definition, sql_mode=sql_mode)
    most = max(map(len, old.labels)) if old.kind is TypeKind.ENUM else len(",".join(old.labels))
    name, size = _sized(definition.type)
    # CHAR would cut the spaces of labels, which there are none of; a mode reads it with others.
    return most <= size if name == "varchar" else name in _CAPACITY and most * _CHARACTER <= _CAPACITY[name]


def _keeps_plain_text(old_type: str, definition: ColumnDefinition, *, sql_mode: int) -> bool:
    (old, old_size), (new, new_size) = _sized(old_type), _sized(definition.type)
    if old in _CAPACITY:
        # Of the same size, a longer character set may need more room, for which spaces at the end are cut.
        is_safe = old == new and old != "tinytext" and definition.charset is None
        return new in _CAPACITY and (is_safe or _CAPACITY[new] > _CAPACITY[old])
    if old not in {"char", "varchar"} or (old == "char" and new != "char" and sql_mode & PAD_CHAR_TO_FULL_LENGTH):
        return False
    if new in _CAPACITY:
        return old_size * _CHARACTER <= _CAPACITY[new]
    return old_size <= new_size and new in {old, "varchar"}


def _keeps_bytes(old_type: str, new_type: str) -> bool:
    (old, old_size), (new, new_size) = _sized(old_type), _sized(new_type)
    if new == "binary":
        # A longer one is padded.
        return old_type == new_type
    return _CAPACITY.get(old, old_size) <= _CAPACITY.get(new, new_size)


def _sized(type_: str) -> tuple[str, int]:
    """The name of a type of texts or bytes, and its size where it has one."""
    found = _TYPE.match(type_)
    assert found is not None
    return found[1], int(found[2] or 0)

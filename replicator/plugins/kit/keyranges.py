"""Ranges of keys: the order of their bounds, and their forms in databases. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from replicator.model.schema import TableSchema
from replicator.plugins.kit.canonical import values
from replicator.plugins.kit.cursors import cursors
from replicator.plugins.source import Cursor
from replicator.plugins.verification import Bound, KeyRange

_STRING: Final = ":"
_BINARY: Final = "$"


def is_ordered(kind: pa.DataType) -> bool:
    """Return whether all databases order the values of a column of this type alike, under any name of the type.

    Not floats: NaN is ordered differently in each. Not lists or times, which targets store as text. Text only where the source says so.
    """
    return bool(
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_binary(kind)
    )


def sort_key(bound: Bound) -> tuple[Any, ...]:
    """Return the sort key of bounds of the same columns. The canonical form tells the type."""
    return tuple(map(_part_key, bound))


def _part_key(text: str) -> Any:
    size, mark, rest = text.partition(_STRING)
    if mark and size.isdecimal():
        return rest.encode()
    _, mark, rest = text.partition(_BINARY)
    return bytes.fromhex(rest) if mark else Decimal(text)


def cursor_of(bound: Bound, columns: Sequence[str], schema: TableSchema) -> Cursor:
    """Return the bound as `kit.cursors.cursors` spells it."""
    [cursor] = cursors([values([text], schema.column(name).type) for name, text in zip(columns, bound, strict=True)])
    return cursor


def holds(within: KeyRange, key: Sequence[str | None]) -> bool:
    """Return whether a row is in the range, by the canonical forms of its key's columns, in key order."""
    first = key[: len(within.columns)]

    def is_behind(bound: Bound) -> bool:
        for ours, theirs in zip(first, bound, strict=True):
            if ours is None or ours != theirs:
                return ours is not None and _part_key(ours) > _part_key(theirs)
        return False

    return (within.after is None or is_behind(within.after)) and (within.upto is None or not is_behind(within.upto))

"""Identify the columns that a Relation message means. Pure.

The message has the live, published columns in the order of their numbers (attnum), but not the numbers. These follow from the columns
that were known before the message and from those that the catalogue shows some time after it: what lived at both times lived at the
message; a number is given once, in ascending order, and never to another column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Final, NamedTuple

import pyarrow as pa

READINGS_MAX: Final = 10_000
"""Upper bound of the readings of one message that are compared; beyond it there is no result."""


class Shown(NamedTuple):
    """A column as a message or the catalogue shows it. `kind`: see `kind_of`."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The columns before the message.

    Attributes:
        columns: The published ones, by number, in its order.
        highest: The highest number that any column of the table is known to have had by then.
        hidden: Numbers of columns that were not published: generated, or not in the publication's list.
    """

    columns: Mapping[int, Shown]
    highest: int
    hidden: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The columns of the catalogue, after the message: those that are published by number, and the numbers of the dropped ones."""

    published: Mapping[int, Shown]
    dropped: frozenset[int]


def read(message: Sequence[Shown], known: Known, found: Found, *, is_same_storage: bool) -> tuple[int, ...] | None:
    """Find the number of each column of a message.

    Names prove nothing, because columns can swap them.

    Args:
        message: Its columns in order.
        known: The columns before it.
        found: The columns of the catalogue after it.
        is_same_storage: True if the table was not rewritten between the two. No column has become one of another kind, then.

    Returns:
        The numbers, in the order of the message. None if several readings are possible, or none is: `known` is wrong then.
    """
    stays = [number for number in known.columns if number in found.published]
    wanted = len(message) - len(stays)
    fresh = sorted(number for number in found.published if number > known.highest)
    doubtful = sorted(_doubtful(known, found))
    if not 0 <= wanted <= len(fresh) + len(doubtful):
        return None
    if sum(comb(len(doubtful), wanted - count) for count in range(min(wanted, len(fresh)) + 1)) > READINGS_MAX:
        return None
    readings = list(_readings(stays, fresh, doubtful, wanted))
    if len(readings) > 1 and is_same_storage:
        readings = [ids for ids in readings if _agrees(ids, message, known, found)]
    return readings[0] if len(readings) == 1 else None


def kind_of(type_: pa.DataType) -> str:
    """Return the kind of a type. Only a rewrite of the table gives a column another kind: `int` → `text`, but not `oid` → `int`."""
    if pa.types.is_integer(type_):
        return "integer"
    if pa.types.is_floating(type_):
        return "float"
    if pa.types.is_timestamp(type_):
        return "timestamp"
    if pa.types.is_list(type_):
        return "list"
    # `numeric(6,2)` becomes `numeric`, which is a string here, without a rewrite.
    return "text" if pa.types.is_string(type_) or pa.types.is_decimal(type_) else str(type_)


def _doubtful(known: Known, found: Found) -> Iterator[int]:
    """Numbers of columns that may have been published at the message, or not."""
    yield from (number for number in known.columns if number not in found.published)
    yield from (number for number in found.dropped if number > known.highest)
    yield from (number for number in known.hidden if number in found.dropped or number in found.published)


def _readings(
    stays: Sequence[int], fresh: Sequence[int], doubtful: Sequence[int], wanted: int
) -> Iterator[tuple[int, ...]]:
    """Generate every possible reading: of the new columns that still live, the older ones were there before the newer ones."""
    for count in range(min(wanted, len(fresh)) + 1):
        for chosen in combinations(doubtful, wanted - count):
            if count < len(fresh) and any(number > fresh[count] for number in chosen):
                # It was added after one that lives still, and that is not in the message.
                continue
            yield tuple(sorted([*stays, *fresh[:count], *chosen]))


def _agrees(ids: Sequence[int], message: Sequence[Shown], known: Known, found: Found) -> bool:
    """Return whether every column is of the kind that it had before, and has after."""
    return all(
        column.kind == side[number].kind
        for number, column in zip(ids, message, strict=True)
        for side in (known.columns, found.published)
        if number in side
    )

"""Which columns a Relation message means. Pure.

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
"""More readings of one message than this are not looked at."""


class Shown(NamedTuple):
    """A column as somebody shows it. `kind`: see `kind_of`."""

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


@dataclass(frozen=True, slots=True)
class Reading:
    """The numbers of a message's columns. `is_proven`: no other reading is possible."""

    ids: tuple[int, ...]
    is_proven: bool


def read(message: Sequence[Shown], known: Known, found: Found, *, is_same_storage: bool) -> Reading | None:
    """Number a message's columns.

    Names prove nothing, because columns can swap them; they only choose among several readings. If the known columns say the same as the
    message, and other columns may be meant as well, these are chosen: who follows the reading then sees that something happened.

    Args:
        message: Its columns in order.
        known: What was known before it.
        found: What the catalogue says after it.
        is_same_storage: The table was not rewritten between the two. No column has become one of another kind, then.

    Returns:
        None if no reading is possible: what is known is wrong.
    """
    stays = [number for number in known.columns if number in found.published]
    wanted = len(message) - len(stays)
    fresh = sorted(number for number in found.published if number > known.highest)
    doubtful = sorted(_doubtful(known, found))
    if not 0 <= wanted <= len(fresh) + len(doubtful):
        return None
    if sum(comb(len(doubtful), wanted - count) for count in range(min(wanted, len(fresh)) + 1)) > READINGS_MAX:
        newest = sorted([*fresh, *doubtful])[len(fresh) + len(doubtful) - wanted :]
        return Reading(tuple(sorted([*stays, *newest])), is_proven=False)
    readings = list(_readings(stays, fresh, doubtful, wanted))
    if len(readings) == 1:
        return Reading(readings[0], is_proven=True)
    likely = [ids for ids in readings if _agrees(ids, message, known, found)]
    if is_same_storage and len(likely) == 1:
        return Reading(likely[0], is_proven=True)
    if [column.name for column in message] == [column.name for column in known.columns.values()]:
        readings.remove(tuple(known.columns))
        likely = [ids for ids in likely if ids in readings]
    best = max(likely or readings, key=lambda ids: _names(ids, message, known, found))
    return Reading(best, is_proven=False)


def kind_of(type_: pa.DataType) -> str:
    """What a column can become another kind of only if the server rewrites the table: `int` → `text`, but not `oid` → `int`."""
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
    """Every possible reading: of the columns that are new and live still, the older ones were there before the newer ones."""
    for count in range(min(wanted, len(fresh)) + 1):
        for chosen in combinations(doubtful, wanted - count):
            if count < len(fresh) and any(number > fresh[count] for number in chosen):
                # It was added after one that lives still, and that is not in the message.
                continue
            yield tuple(sorted([*stays, *fresh[:count], *chosen]))


def _agrees(ids: Sequence[int], message: Sequence[Shown], known: Known, found: Found) -> bool:
    """Whether every column is of the kind that it had before, and has after."""
    return all(
        column.kind == side[number].kind
        for number, column in zip(ids, message, strict=True)
        for side in (known.columns, found.published)
        if number in side
    )


def _names(ids: Sequence[int], message: Sequence[Shown], known: Known, found: Found) -> tuple[int, int]:
    """How many names are those of the catalogue, and how many are those known before."""
    now, before = (
        sum(number in side and side[number].name == column.name for number, column in zip(ids, message, strict=True))
        for side in (found.published, known.columns)
    )
    return now, before

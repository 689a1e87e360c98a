"""Compared ranges of a table's keys: a list in key order, without overlaps. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from replicator.state.verification.records import RangeRecord

if TYPE_CHECKING:
    from replicator.plugins.verification import Bound

RANGES_MAX: Final = 1_000
"""Ranges of one table at most. If there are more, neighbours become one range, which is as old as the older of them."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Keys after `after`, up to `upto`, that are to be compared. `rows`: of the ranges before them, as far as known."""

    after: Bound | None
    upto: Bound | None
    rows: int = 0


def in_order(known: Iterable[RangeRecord]) -> Sequence[RangeRecord]:
    """Sort ranges by their keys."""
    return sorted(known, key=_start)


def with_range(known: Sequence[RangeRecord], new: RangeRecord) -> Sequence[RangeRecord]:
    """Return the ranges after a comparison of one: it replaces the part of the others that it covers; they keep the rest.

    A range at an earlier position than the recorded ones there changes nothing; one of another definition replaces all.
    """
    if any(one.definition != new.definition for one in known):
        if any(one.position > new.position for one in known):
            return known
        known = ()
    covered = [one for one in known if _overlap(one, new)]
    if any(one.position > new.position for one in covered):
        return known
    kept = [one for one in known if one not in covered]
    ranges = in_order([*kept, new, *(rest for one in covered for rest in _outside(one, new))])
    while len(ranges) > RANGES_MAX:
        ranges = _merged(ranges)
    return ranges


def repaired(known: Sequence[RangeRecord], position: int, proven_at: datetime) -> Sequence[RangeRecord]:
    """Return the ranges after all that differed was repaired and found equal at a position. `proven_at`: time of the first comparison."""
    return [
        replace(one, proven_at=proven_at, disproves=()) if one.proven_at is None and one.position <= position else one
        for one in known
    ]


def is_tiled(known: Sequence[RangeRecord]) -> bool:
    """Return whether the ranges have every key."""
    return bool(
        known
        and known[0].after is None
        and known[-1].upto is None
        and all(one.upto == other.after for one, other in pairwise(known))
    )


def is_proven(known: Sequence[RangeRecord]) -> bool:
    """Return whether all of the table is equal, as far as is known."""
    return is_tiled(known) and all(one.proven_at is not None for one in known)


def gaps(known: Sequence[RangeRecord], keeps: Callable[[RangeRecord], bool]) -> Sequence[Gap]:
    """Return the gaps to compare if some of the ranges are kept, in key order."""
    found, rows = list[Gap](), 0
    after: Bound | None = None
    for one in known:
        if keeps(one):
            if one.after != after:
                found.append(Gap(after, one.after, rows))
            if one.upto is None:
                return found
            after = one.upto
        rows += one.rows
    return [*found, Gap(after, None, rows)]


def _overlap(one: RangeRecord, other: RangeRecord) -> bool:
    return _start(one) < _end(other) and _start(other) < _end(one)


def _outside(one: RangeRecord, new: RangeRecord) -> Iterator[RangeRecord]:
    """Yield the parts of a range that another one does not cover."""
    rows = max(0, one.rows - new.rows)
    if _start(one) < _start(new):
        yield replace(one, upto=new.after, rows=rows)
        rows = 0
    if _end(new) < _end(one):
        yield replace(one, after=new.upto, rows=rows)


def _merged(ranges: Sequence[RangeRecord]) -> list[RangeRecord]:
    """Merge two neighbours into one range, those of which most is still known afterwards. Differences are dropped before proofs."""
    pairs = [number for number, (one, other) in enumerate(pairwise(ranges)) if _can_merge(one, other)]
    if not pairs:
        return list(ranges[:-1])
    best = min(pairs, key=lambda number: _loss(ranges[number], ranges[number + 1]))
    one, other = ranges[best], ranges[best + 1]
    times = [moment for moment in (one.proven_at, other.proven_at) if moment is not None]
    both = replace(
        one,
        upto=other.upto,
        rows=one.rows + other.rows,
        position=max(one.position, other.position) if not times else min(one.position, other.position),
        proven_at=min(times, default=None),
        disproves=tuple(alarm for alarm in one.disproves if alarm in other.disproves),
    )
    return [*ranges[:best], both, *ranges[best + 2 :]]


def _can_merge(one: RangeRecord, other: RangeRecord) -> bool:
    return one.upto == other.after and (one.proven_at is None) is (other.proven_at is None)


def _loss(one: RangeRecord, other: RangeRecord) -> tuple[float, int]:
    if one.proven_at is None or other.proven_at is None:
        return 0.0, one.rows + other.rows
    return abs((one.proven_at - other.proven_at).total_seconds()), one.rows + other.rows


def _start(one: RangeRecord) -> tuple[int, tuple[Any, ...]]:
    return (0, ()) if one.after is None else (1, _key(one.after))


def _end(one: RangeRecord) -> tuple[int, tuple[Any, ...]]:
    return (2, ()) if one.upto is None else (1, _key(one.upto))


def _key(bound: Bound) -> tuple[Any, ...]:
    from replicator.plugins.kit.keyranges import sort_key  # with PyArrow, which `status` starts without

    return sort_key(bound)

"""Figures that say how they are known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum


class Basis(StrEnum):
    """How a figure is known; what comes later is less certain."""

    CONFIGURED = "configured"
    """By a setting, of ours or of the server."""
    MEASURED = "measured"
    """Of rows that were read, or between two readings of a counter."""
    COUNTED = "counted"
    """By the server's counters since they began."""
    ESTIMATED = "estimated"
    """By the catalogue's statistics, or computed from figures of which one is."""
    UNKNOWN = "unknown"


_ORDER = tuple(Basis)


@dataclass(frozen=True, slots=True)
class Figure:
    """A number, how it is known, and from what.

    Attributes:
        value: None: unknown.
        basis: How it is known.
        how: From what, or why it is unknown; a part of a sentence.
    """

    value: float | None
    basis: Basis
    how: str

    def times(self, factor: float) -> Figure:
        """So many of it; known in the same way."""
        return replace(self, value=None if self.value is None else self.value * factor)


def unknown(why: str) -> Figure:
    """A figure that is not known."""
    return Figure(None, Basis.UNKNOWN, why)


def derived(value: float, how: str, *of: Figure) -> Figure:
    """A figure that was computed from others: as uncertain as the most uncertain of them."""
    return Figure(value, max((one.basis for one in of), key=_ORDER.index), how)


def product(how: str, *of: Figure) -> Figure:
    """The figures, multiplied; unknown if one of them is."""
    value = 1.0
    for one in of:
        if one.value is None:
            return unknown(one.how)
        value *= one.value
    return derived(value, how, *of)


def total(figures: Iterable[Figure], how: str) -> Figure:
    """The sum; unknown if one of them is, or if there are none."""
    found = list(figures)
    missing = [one for one in found if one.value is None]
    if missing or not found:
        return unknown(missing[0].how if missing else "there are no tables")
    return derived(sum(one.value or 0.0 for one in found), how, *found)

"""Figures, each with its basis: measured, counted, estimated or unknown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field, NonNegativeFloat


class Basis(StrEnum):
    """Basis of a figure; later ones are less certain."""

    CONFIGURED = "configured"
    """From a setting, of ours or of the server."""
    MEASURED = "measured"
    """From rows that were read, or between two readings of a counter."""
    COUNTED = "counted"
    """From the server's counters since they began."""
    ESTIMATED = "estimated"
    """From the catalogue's statistics, or computed from figures of which one is."""
    UNKNOWN = "unknown"


_ORDER = tuple(Basis)


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its basis."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(title="FigureDocument")

    value: Annotated[NonNegativeFloat | None, Field(description="Null: unknown.")]
    basis: Annotated[
        Basis,
        Field(
            description="Basis of the figure: a setting (configured), measured now, counted by the server since its counters began, "
            "estimated from statistics or from other figures, or not at all (unknown)."
        ),
    ]
    how: Annotated[str, Field(description="Origin of the figure, or the reason why it is unknown.")]

    def times(self, factor: float) -> Figure:
        """Multiply; the basis stays the same, and unknown times a factor is unknown."""
        return replace(self, value=None if self.value is None else self.value * factor)


def unknown(why: str) -> Figure:
    """Return a figure that is not known."""
    return Figure(None, Basis.UNKNOWN, why)


def derived(value: float, how: str, *of: Figure) -> Figure:
    """Return a figure that was computed from others: as uncertain as the most uncertain of them."""
    return Figure(value, max((one.basis for one in of), key=_ORDER.index), how)


def product(how: str, *of: Figure) -> Figure:
    """Multiply the figures; unknown if one of them is."""
    value = 1.0
    for one in of:
        if one.value is None:
            return unknown(one.how)
        value *= one.value
    return derived(value, how, *of)


def total(figures: Iterable[Figure], how: str) -> Figure:
    """Add the figures; unknown if one of them is, or if there are none."""
    found = list(figures)
    missing = [one for one in found if one.value is None]
    if missing or not found:
        return unknown(missing[0].how if missing else "there are no tables")
    return derived(sum(one.value or 0.0 for one in found), how, *found)

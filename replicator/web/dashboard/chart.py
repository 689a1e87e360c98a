"""Chart of a replicator's freshness: turns points of the state store into lines, and into words. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from replicator.state.points import Point
from replicator.web.dashboard import words

SHOWN: Final = timedelta(hours=6)
WIDTH: Final = 960
HEIGHT: Final = 200
_LEFT: Final = 64
_BOTTOM: Final = 24
_LEAST_S: Final = 0.1
_GAP: Final = timedelta(seconds=150)
"""Points that are further apart are not joined: nothing was recorded in between."""
_DECADES_S: Final = (0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 36_000.0, 86_400.0, 864_000.0, 8_640_000.0, 86_400_000.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A mark of an axis. `at`: its position, in units of the drawing."""

    at: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Elements of the drawing, in its units, from its upper left corner.

    Attributes:
        lines: Each as the points of a polyline.
        late: Start of each minute in which a table missed its objective.
        minute: Width of a minute.
        objective: Height of the strictest objective; None if no table has one.
        said: The same in words.
    """

    lines: Sequence[str]
    late: Sequence[float]
    minute: float
    objective: Tick | None
    levels: Sequence[Tick]
    hours: Sequence[Tick]
    said: str
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    base: int = HEIGHT - _BOTTOM


def chart(points: Sequence[Point], objective_s: float | None, now: datetime) -> Chart | None:
    """Return the chart of the last hours; None if nothing was recorded in them.

    Args:
        points: The oldest first.
        objective_s: The strictest objective of its tables.
        now: The clock by which the points were recorded.
    """
    begin = now - SHOWN
    points = [point for point in points if begin <= point.at <= now]
    if not points:
        return None
    top = _top(points, objective_s)
    scale = _Scale(begin=begin, top=top)
    return Chart(
        lines=[" ".join(scale.point(at, worst) for at, worst in line) for line in _lines(points)],
        late=[scale.x(point.at) for point in points if point.freshness.late],
        minute=round((WIDTH - _LEFT) / (SHOWN / timedelta(minutes=1)), 2),
        objective=None if objective_s is None else Tick(at=scale.y(objective_s), label=words.age(objective_s)),
        levels=[Tick(at=scale.y(level), label=words.age(level)) for level in _DECADES_S if level <= top],
        hours=list(_hours(scale, now)),
        said=_said(points, objective_s),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    begin: datetime
    top: float

    def x(self, at: datetime) -> float:
        return round(_LEFT + (at - self.begin) / SHOWN * (WIDTH - _LEFT), 1)

    def y(self, seconds: float) -> float:
        """Return the height on a logarithmic scale, on which seconds and hours are both visible."""
        part = math.log(max(seconds, _LEAST_S) / _LEAST_S) / math.log(self.top / _LEAST_S)
        return round((HEIGHT - _BOTTOM) * (1 - part), 1)

    def point(self, at: datetime, seconds: float) -> str:
        return f"{self.x(at)},{self.y(seconds)}"


def _top(points: Sequence[Point], objective_s: float | None) -> float:
    largest = max([objective_s or 0.0, *(point.freshness.worst_s or 0.0 for point in points)])
    return next((level for level in _DECADES_S[2:] if level >= largest), largest)


def _lines(points: Sequence[Point]) -> Iterator[list[tuple[datetime, float]]]:
    """Yield runs of points that have a figure and follow each other."""
    line: list[tuple[datetime, float]] = []
    for point in points:
        worst = point.freshness.worst_s
        if line and (worst is None or point.at - line[-1][0] > _GAP):
            yield line
            line = []
        if worst is not None:
            line.append((point.at, worst))
    if line:
        yield line


def _hours(scale: _Scale, now: datetime) -> Iterator[Tick]:
    hour = now.replace(minute=0, second=0, microsecond=0)
    while hour >= scale.begin:
        yield Tick(at=scale.x(hour), label=hour.strftime("%H:%M"))
        hour -= timedelta(hours=1)


def _said(points: Sequence[Point], objective_s: float | None) -> str:
    known = [worst for point in points if (worst := point.freshness.worst_s) is not None]
    late = sum(point.freshness.late > 0 for point in points)
    unknown = len(points) - len(known)
    parts = [f"At worst {words.age(max(known))}" if known else "Unknown"]
    if objective_s is not None:
        parts.append(f"over the objective ({words.age(objective_s)}) in {late} of {len(points)} minutes")
    if known and unknown:
        parts.append(f"unknown in {unknown}")
    return ", ".join(parts) + "."

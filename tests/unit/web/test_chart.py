"""The chart of freshness: what is drawn, and the same in words."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from replicator.state.points import Freshness, Point
from replicator.web.dashboard.chart import SHOWN, WIDTH, Chart, chart

NOW = datetime(2026, 5, 1, 12, 30, tzinfo=UTC)


def drawn(figures: Sequence[float | None], objective_s: float | None = None, late: Sequence[int] = ()) -> Chart | None:
    """One figure per minute, the last one of now; `late`: which of them, from 0."""
    count = len(figures)
    points = [
        Point(at=NOW - timedelta(minutes=count - 1 - n), freshness=Freshness(worst_s=worst, late=n in late))
        for n, worst in enumerate(figures)
    ]
    return chart(points, objective_s, NOW)


def heights(line: str) -> list[float]:
    return [float(point.split(",")[1]) for point in line.split()]


def test_without_points_there_is_no_chart() -> None:
    assert drawn([]) is None
    old = Point(at=NOW - SHOWN - timedelta(minutes=1), freshness=Freshness(worst_s=1, late=0))
    assert chart([old], None, NOW) is None


def test_what_is_less_fresh_stands_higher_and_now_is_at_the_right() -> None:
    found = drawn([0.1, 1.0, 10.0])
    assert found is not None
    (line,) = found.lines
    low, middle, high = heights(line)
    assert low == found.base
    assert high == 0
    assert middle == pytest.approx((low + high) / 2, abs=0.1)
    assert line.endswith(f"{float(WIDTH)},0.0")


def test_where_nothing_is_known_nothing_is_drawn() -> None:
    found = drawn([1.0, None, 2.0, 3.0])
    assert found is not None
    assert [len(heights(line)) for line in found.lines] == [1, 2]
    assert found.said == "At worst 3.0 s, unknown in 1."


def test_a_gap_in_time_is_one_in_the_line() -> None:
    points = [Point(at=NOW - timedelta(minutes=m), freshness=Freshness(worst_s=1, late=0)) for m in (9, 8, 3, 2)]
    found = chart(points, None, NOW)
    assert found is not None
    assert len(found.lines) == 2


def test_the_objective_and_who_missed_one_are_shown() -> None:
    found = drawn([1.0, 120.0, 120.0, 1.0], objective_s=60.0, late=[1, 2])
    assert found is not None
    assert found.objective is not None
    assert 0 < found.objective.at < found.base
    assert len(found.late) == 2
    assert found.said == "At worst 2 min, over the objective (1 min) in 2 of 4 minutes."


@pytest.mark.parametrize("worst", [0.0, 1e9])
def test_no_figure_leaves_the_drawing(worst: float) -> None:
    found = drawn([worst, worst])
    assert found is not None
    assert all(0 <= height <= found.base for line in found.lines for height in heights(line))


def test_all_unknown_is_said() -> None:
    found = drawn([None, None])
    assert found is not None
    assert (found.said, list(found.lines)) == ("Unknown.", [])

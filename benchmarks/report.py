"""What a benchmark found: lines of a table, as Markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One figure with what it is to be compared with. `is_met` is None where there is no goal."""

    what: str
    figure: str
    against: str = ""
    ratio: float | None = None
    goal: str = ""
    is_met: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome of one benchmark; `raw` holds every sample."""

    name: str
    lines: Sequence[Line]
    raw: Mapping[str, Any] = field(default_factory=dict)


def compared(what: str, ours: Rate, baseline: Rate, against: str, *, goal: float | None = None) -> Line:
    """A rate next to the baseline's of the same run; the goal is a ratio of wall rates."""
    ratio = ours.per_second / baseline.per_second
    return Line(
        what=what,
        figure=spell(ours),
        against=f"{against}: {spell(baseline)}",
        ratio=ratio,
        goal=f"≥ {goal:.2f}x" if goal is not None else "",
        is_met=ratio >= goal if goal is not None else None,
    )


def at_least(what: str, figure: float, goal: float, unit: str) -> Line:
    """A figure with its own goal."""
    return Line(what=what, figure=f"{figure:,.0f} {unit}", goal=f"≥ {goal:,.0f}", is_met=figure >= goal)


def at_most(what: str, figure: float, goal: float | None, unit: str) -> Line:
    """A figure that should be small."""
    digits = 2 if figure < 100 else 0
    if goal is None:
        return Line(what=what, figure=f"{figure:,.{digits}f} {unit}")
    return Line(what=what, figure=f"{figure:,.{digits}f} {unit}", goal=f"≤ {goal:,.0f}", is_met=figure <= goal)


def spell(rate: Rate) -> str:
    """`412k/s, 903k per CPU-second`."""
    return f"{rate.per_second / 1000:,.0f}k/s, {rate.per_cpu_second / 1000:,.0f}k per CPU-second"


def markdown(reports: Sequence[Report], machine: Mapping[str, str]) -> str:
    """All tables."""
    parts = [", ".join(f"{name}: {value}" for name, value in machine.items()), ""]
    for report in reports:
        parts += [
            f"## {report.name}",
            "",
            "| what | figure | baseline | ratio | goal | |",
            "|---|---|---|---|---|---|",
        ]
        for line in report.lines:
            ratio = f"{line.ratio:.2f}x" if line.ratio is not None else ""
            met = {None: "", True: "met", False: "**missed**"}[line.is_met]
            parts.append(f"| {line.what} | {line.figure} | {line.against} | {ratio} | {line.goal} | {met} |")
        parts.append("")
    return "\n".join(parts)


def write(reports: Sequence[Report], machine: Mapping[str, str], folder: Path) -> None:
    """Write `figures.json` and `figures.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {"machine": dict(machine), "benchmarks": [asdict(report) for report in reports]}
    (folder / "figures.json").write_text(
        json.dumps(document, indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8"
    )
    (folder / "figures.md").write_text(markdown(reports, machine), encoding="utf-8")

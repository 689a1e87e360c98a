"""Progress of running snapshots: share in the target, rate, and time left. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from replicator.model.documents.status import ReplicatorStatus, SnapshotStatus, TableState, TableStatus
from replicator.model.processes.reports import RunningStep

WINDOW_S: Final = 60.0
"""Time over which a rate is measured: batches reach the target seconds apart."""
NEWS_S: Final = 10.0
"""Least time between two lines about a table if the output is no terminal."""

_POINTS_MIN: Final = 2

_RUNNING: Final[Mapping[RunningStep, str]] = {
    RunningStep.DUE: "waiting for its turn to be read",
    RunningStep.WAITING: "waiting to read again",
    RunningStep.MARKING: "waiting for the log",
    RunningStep.WRITING: "writing its rows",
}
"""Step of a running snapshot → what it waits for. The others need no words: it is read, or the state of the table tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPace:
    """Pace of a snapshot. `rows_per_s` reach the target, or are read before the first ones do. `left_s` None: unknown."""

    rows_per_s: float
    left_s: float | None


def share(progress: SnapshotStatus) -> float | None:
    """Return the share of a snapshot's rows that the target has, from 0 to 1; None if the number of rows is unknown."""
    if progress.is_changed_only and not progress.is_complete:
        return None
    if progress.is_complete:
        return progress.rows_in_target / progress.rows if progress.rows else 1.0
    expected = _expected(progress)
    # An estimate that is too low must not say that the snapshot is complete.
    return None if expected is None else min(progress.rows_in_target / max(expected, 1), 0.99)


def text(row: TableStatus) -> str:
    """Return a table's snapshot in a line, empty if there was none: the rows in the target, and separately the captured ones."""
    progress = row.snapshot
    if progress is None:
        return ""
    if progress.is_changed_only:
        again = f"{counted(progress.rows, 'row')} read again"
        return again if progress.is_complete else f"comparing both sides, {again}"
    if progress.is_complete and row.state is not TableState.SNAPSHOT and progress.rows_in_target == progress.rows:
        return counted(progress.rows, "row")
    part = share(progress)
    held = f"{progress.rows_in_target:,} rows" if part is None else f"{int(part * 100)} %"
    return f"in the target: {held}, captured: {_captured(progress)}"


def pace_in_words(pace: SnapshotPace) -> str:
    """Return a phrase such as `12,300 rows/s, 2 min left`."""
    left = "" if pace.left_s is None else f", {duration(pace.left_s)} left"
    return f"{pace.rows_per_s:,.0f} rows/s{left}"


def duration(seconds: float) -> str:
    """Return a time for people, in its largest unit or two."""
    minutes, hours = seconds / 60, seconds / 3600
    if hours >= 1:
        return f"{int(hours)} h {int(minutes) % 60} min"
    return f"{minutes:.0f} min" if minutes >= 1 else f"{seconds:.0f} s"


def counted(number: int, noun: str) -> str:
    """Return a number of things in words."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@dataclass(slots=True)
class Meter:
    """Measures the pace of the snapshots of a replicator from one status to the next."""

    _seen: dict[str, deque[tuple[float, int, int]]] = field(default_factory=dict)

    def observe(self, document: ReplicatorStatus, at: float) -> Mapping[str, SnapshotPace]:
        """Return the pace of each table whose snapshot runs, by name; `at` in seconds."""
        running = {
            row.table: row.snapshot for row in document.tables if row.snapshot and row.state is TableState.SNAPSHOT
        }
        self._seen = {table: self._seen.get(table, deque()) for table in running}
        found = {table: self._of_table(self._seen[table], progress, at) for table, progress in running.items()}
        return {table: pace for table, pace in found.items() if pace is not None}

    def _of_table(
        self, seen: deque[tuple[float, int, int]], progress: SnapshotStatus, at: float
    ) -> SnapshotPace | None:
        if seen and (progress.rows < seen[-1][1] or progress.rows_in_target < seen[-1][2]):
            seen.clear()  # another snapshot has begun
        seen.append((at, progress.rows, progress.rows_in_target))
        while len(seen) > _POINTS_MIN and at - seen[1][0] >= WINDOW_S:
            seen.popleft()
        begun, rows, in_target = seen[0]
        if at <= begun:
            return None
        read, applied = (progress.rows - rows) / (at - begun), (progress.rows_in_target - in_target) / (at - begun)
        expected = _expected(progress)
        left = None if expected is None or not applied else (expected - progress.rows_in_target) / applied
        if not progress.is_complete and not read:
            left = None  # an estimate that does not move promises nothing
        return SnapshotPace(rows_per_s=applied or read, left_s=None if left is None else max(0.0, left))


@dataclass(slots=True)
class News:
    """Chooses the lines that report snapshots if the output is no terminal."""

    _told: dict[str, float] = field(default_factory=dict)

    def lines(self, document: ReplicatorStatus, paces: Mapping[str, SnapshotPace], at: float) -> Iterator[str]:
        """Yield a line for each table whose snapshot has progressed, or is in the target as a whole."""
        for row in document.tables:
            if row.snapshot is not None and row.state is TableState.SNAPSHOT:
                told = self._told.setdefault(row.table, at)
                if at - told >= NEWS_S:
                    self._told[row.table] = at
                    pace = f", {pace_in_words(paces[row.table])}" if row.table in paces else ""
                    yield f"{row.table}: snapshot {text(row)}{pace}."
            elif row.table in self._told and row.state is TableState.STREAMING:
                del self._told[row.table]
                rows = counted(row.snapshot.rows, "row") if row.snapshot else ""
                yield f"{row.table}: its snapshot is in the target: {rows}. Changes are applied as they arrive."


def _expected(progress: SnapshotStatus) -> int | None:
    """Return the number of rows that the snapshot will have, as far as it is known."""
    if progress.is_complete:
        return progress.rows
    return None if progress.estimated_rows is None else max(progress.estimated_rows, progress.rows)


def _captured(progress: SnapshotStatus) -> str:
    if progress.is_complete:
        return counted(progress.rows, "row")
    total = progress.estimated_rows
    rows = f"{progress.rows:,} of about {total:,}" if total else f"{counted(progress.rows, 'row')} so far"
    step = _RUNNING.get(progress.step) if progress.step else None
    return f"{rows}, {step}" if step else rows

"""Counters that only grow, for as long as a replicator exists."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

BEYOND: Final = "+Inf"
BATCH_ROWS_BOUNDS: Final = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)
BATCH_SECONDS_BOUNDS: Final = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 300, 1_800)


class CounterName(StrEnum):
    """Names of the counters, each with the labels that distinguish its parts."""

    CHANGES_CAPTURED = "changes_captured"
    """By operation."""
    ROWS_SNAPSHOTTED = "rows_snapshotted"
    BATCH_ROWS = "batch_rows"
    """Batches, by the bound that their rows do not exceed."""
    BATCH_ROWS_SUM = "batch_rows_sum"
    BATCH_SECONDS = "batch_seconds"
    """Batches, by the bound that their duration does not exceed."""
    BATCH_MICROSECONDS_SUM = "batch_microseconds_sum"
    RETRIES = "retries"
    """Retries, by reason."""
    ERRORS = "errors"
    """By code."""
    SCHEMA_CHANGES = "schema_changes"
    """By kind and decision."""
    VERIFY_ROWS = "verify_rows"
    VERIFICATIONS = "verifications"
    """By result."""
    ALERTS_SENT = "alerts_sent"
    """Messages, by channel."""
    ALERT_FAILURES = "alert_failures"
    """Attempts, by channel."""
    ALERTS_GIVEN_UP = "alerts_given_up"
    """Messages, by channel."""
    LINEAGE_EVENTS = "lineage_events"
    """Events, by result: sent or dropped."""


Counts = Counter[tuple[CounterName, tuple[str, ...]]]
"""Amounts to add to each part of each counter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCount:
    """A batch that the target took: its rows, and the time that the target needed."""

    rows: int
    seconds: float

    def counts(self) -> Counts:
        """Return the batch's contribution to the counters."""
        counts: Counts = Counter()
        counts[CounterName.BATCH_ROWS, (_bound(self.rows, BATCH_ROWS_BOUNDS),)] = 1
        counts[CounterName.BATCH_ROWS_SUM, ()] = self.rows
        counts[CounterName.BATCH_SECONDS, (_bound(self.seconds, BATCH_SECONDS_BOUNDS),)] = 1
        counts[CounterName.BATCH_MICROSECONDS_SUM, ()] = round(self.seconds * 1_000_000)
        return counts


def _bound(value: float, bounds: tuple[float, ...]) -> str:
    """Return the lowest bound that the value does not exceed, as text."""
    index = bisect_left(bounds, value)
    return f"{bounds[index]:g}" if index < len(bounds) else BEYOND

"""What is counted for as long as a replicator exists: counters that only grow."""

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
    """The counters, each with the labels that tell its parts apart."""

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
    """By what was retried."""
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
    """By whether they were sent or dropped."""


Counts = Counter[tuple[CounterName, tuple[str, ...]]]
"""How much is to be added to each part of each counter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCount:
    """A batch that the target took: the rows that it was made of, and how long the target needed."""

    rows: int
    seconds: float

    def counts(self) -> Counts:
        """What it adds to the counters."""
        counts: Counts = Counter()
        counts[CounterName.BATCH_ROWS, (_bound(self.rows, BATCH_ROWS_BOUNDS),)] = 1
        counts[CounterName.BATCH_ROWS_SUM, ()] = self.rows
        counts[CounterName.BATCH_SECONDS, (_bound(self.seconds, BATCH_SECONDS_BOUNDS),)] = 1
        counts[CounterName.BATCH_MICROSECONDS_SUM, ()] = round(self.seconds * 1_000_000)
        return counts


def _bound(value: float, bounds: tuple[float, ...]) -> str:
    """The lowest bound that the value does not exceed, as it is written."""
    index = bisect_left(bounds, value)
    return f"{bounds[index]:g}" if index < len(bounds) else BEYOND

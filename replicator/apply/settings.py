"""Bounds and choices of apply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from replicator.apply.plan import BatchLimits
from replicator.config import ReplicatorConfig, TableOptions
from replicator.model.schema import TableId


class Patience(Protocol):
    """Policy of `runtime` for how long to retry a table that the target cannot take; one for each table."""

    def delay(self, now: float) -> float | None:
        """Return the seconds until the next attempt; None once the table is given up."""

    def delay_at_limit(self) -> float:
        """Return the seconds until the next attempt, where waiting is no failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplySettings:
    """Bounds and choices of apply.

    Attributes:
        tables_parallel: Tables written at the same time.
        max_wait_s: The longest that a table waits so that batches of busier tables go first, its rests included; a free thread never waits.
        batch: Limits at which a batch is large enough.
        maintain_every: Commits of a table after which its upkeep runs even if it has more to apply.
        maintain_idle: Commits after which its upkeep runs when it has nothing to apply; the first time in a process: one.
        audit_every_s: Seconds between two audits that ask the target what others changed in a table that has nothing to apply.
        feed_items: Items of a table's feed read at a time.
        wake_s: The longest between two reads of the journal without an announcement that it grew.
        options: The options of each target table.
        upkeep_pause_s, upkeep_pause_max_s: Delay of upkeep that failed, the first time and at most.
        selects: Returns whether the configuration replicates a table. Called often.
        patience: Makes the retry policy of a table that the target cannot take.
    """

    tables_parallel: int
    max_wait_s: float
    batch: BatchLimits
    maintain_every: int
    maintain_idle: int
    audit_every_s: float
    feed_items: int
    wake_s: float
    options: Callable[[TableId], TableOptions]
    upkeep_pause_s: float
    upkeep_pause_max_s: float
    selects: Callable[[TableId], bool]
    patience: Callable[[], Patience]

    @classmethod
    def of(cls, config: ReplicatorConfig, *, max_wait_s: float, patience: Callable[[], Patience]) -> ApplySettings:
        """Return the settings of a configuration; what users cannot set has its one value here."""
        return cls(
            tables_parallel=config.apply.tables_parallel,
            max_wait_s=max_wait_s,
            batch=BatchLimits(rows=config.apply.batch_rows_max, bytes=config.apply.batch_bytes_max),
            maintain_every=50,
            maintain_idle=10,
            audit_every_s=600.0,
            feed_items=1000,
            wake_s=1.0,
            options=config.tables.options_for,
            upkeep_pause_s=60.0,
            upkeep_pause_max_s=3600.0,
            selects=cache(lambda table: bool(config.tables.select([table]).tables)),
            patience=patience,
        )

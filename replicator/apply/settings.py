"""Bounds and choices of apply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from replicator.apply.plan import BatchLimits
from replicator.model.schema import TableId
from replicator.plugins.target import TableOptions


class Patience(Protocol):
    """How long a table that the target cannot take is tried: the policy of `runtime`, one for each table."""

    def delay(self, now: float) -> float | None:
        """Seconds until the next attempt; None once it is given up."""

    def delay_at_limit(self) -> float:
        """Seconds until the next attempt, where waiting is no failure."""


class NoPatience:
    """Gives up at once."""

    def delay(self, now: float) -> float | None:  # noqa: ARG002 - there is no time in which it would be tried
        """None."""
        return None

    def delay_at_limit(self) -> float:
        """None of our own: as long as the target asks."""
        return 0.0


def default_options(_: TableId) -> TableOptions:
    """Every table as the target keeps it by default."""
    return TableOptions()


def every_table(_: TableId) -> bool:
    """No table is left out."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplySettings:
    """Bounds and choices of apply.

    Attributes:
        tables_parallel: Tables written at the same time.
        max_wait_s: The longest that a table waits so that batches of busier tables go first, its rests included; a free thread never waits.
        batch: When a batch is large enough.
        maintain_every: Commits of a table after which it is looked after even if it has more to apply.
        maintain_idle: Commits after which it is looked after when it has nothing to apply; the first time in a process: one.
        audit_every_s: How often the target is asked what others changed in a table that has nothing to apply.
        feed_items: Items of a table's feed read at a time.
        wake_s: The longest between two looks at the journal without an announcement that it grew.
        options: The options of each target table.
        upkeep_pause_s, upkeep_pause_max_s: How long upkeep that failed is put off, the first time and at most.
        selects: Whether the configuration replicates a table. Called often.
        patience: Makes what says how long a table is tried that the target cannot take.
    """

    tables_parallel: int = 4
    max_wait_s: float = 5.0
    batch: BatchLimits = field(default_factory=lambda: BatchLimits(rows=5_000_000, bytes=1 << 30))
    maintain_every: int = 50
    maintain_idle: int = 10
    audit_every_s: float = 600.0
    feed_items: int = 1000
    wake_s: float = 1.0
    options: Callable[[TableId], TableOptions] = default_options
    upkeep_pause_s: float = 60.0
    upkeep_pause_max_s: float = 3600.0
    selects: Callable[[TableId], bool] = every_table
    patience: Callable[[], Patience] = NoPatience

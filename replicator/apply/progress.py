"""Progress of a table in the target."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TableProgress:
    """Progress of a table.

    Attributes:
        last_applied: The ledger, as this process knows it.
        highest: The table's highest number in the journal at the last look.
        is_complete: The target holds the whole table: no snapshot has begun in it and not ended.
    """

    incarnation: int
    last_applied: int
    highest: int
    is_complete: bool
    has_failed: bool

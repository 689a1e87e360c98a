"""Guarantees of a source for the changes that it delivers."""

from __future__ import annotations

from enum import StrEnum


class Guarantee(StrEnum):
    """Guarantee for committed changes, and its condition."""

    FULL = "full"
    """Every committed change, in its order. The source itself tells what a snapshot saw."""
    BOUNDED_WAIT = "bounded_wait"
    """Every committed change, in its order. That nothing is missing between a snapshot and the log rests on a wait that is long enough."""
    NET_CHANGES = "net_changes"
    """The last state of each row that changed, without the states between."""

"""What a source promises about the changes that it delivers."""

from __future__ import annotations

from enum import StrEnum


class Guarantee(StrEnum):
    """How much of what was committed arrives, and on what that rests."""

    FULL = "full"
    """Every committed change, in its order. What a snapshot saw is known from the source itself."""
    BOUNDED_WAIT = "bounded_wait"
    """Every committed change, in its order. That nothing is missing between a snapshot and the log rests on a wait that is long enough."""
    NET_CHANGES = "net_changes"
    """The last state of each row that changed, without the states between."""

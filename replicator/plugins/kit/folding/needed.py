"""Bounds of what is folded in this process, and reasons why a batch cannot be applied in this process."""

from __future__ import annotations

from typing import Final

BYTES_MAX: Final = 256 << 20
"""Bytes of changes, and of the target's rows, that are in memory at once."""
BATCH_TOO_LARGE: Final = "the batch is too large"


class EngineNeededError(Exception):
    """The target's own engine (Spark, for example) must apply the batch: this process does not, and has changed nothing.

    The message has the reason, in a few words. Never an error for the user: the engine takes what is unsure.
    """

    is_of_table = True
    """True if the reason is the table, for batches of any size."""


class TooLargeError(EngineNeededError):
    """Only the batch's size keeps this process from applying it.

    Args:
        reason: The part that is too large.
        is_of_table: True if smaller batches of the table would be too large, too.
    """

    def __init__(self, reason: str = BATCH_TOO_LARGE, *, is_of_table: bool = False) -> None:
        super().__init__(reason)
        self.is_of_table = is_of_table

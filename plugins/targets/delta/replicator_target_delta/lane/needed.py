"""Why a batch cannot be applied by the lane."""

from __future__ import annotations

from typing import Final

BATCH_TOO_LARGE: Final = "the batch is too large"
KEYS_TOO_LARGE: Final = "the table's keys do not fit into target.index_memory"


class SparkNeededError(Exception):
    """The lane does not apply this batch, and has changed nothing: Spark must do it. The message says why, in a few words.

    Never an error for the user: Spark takes what is unsure.
    """

    is_of_table = True
    """The reason is the table's, whatever the size of a batch."""


class TooLargeError(SparkNeededError):
    """Spark can find and write the rows for the lane (`lane.bulk`).

    Args:
        reason: Why the lane does not do so itself.
        is_of_table: Smaller batches of the table would be too large, too.
    """

    def __init__(self, reason: str = BATCH_TOO_LARGE, *, is_of_table: bool = False) -> None:
        super().__init__(reason)
        self.is_of_table = is_of_table

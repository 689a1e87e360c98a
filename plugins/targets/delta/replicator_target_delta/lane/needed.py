"""Why a batch cannot be applied by the lane."""

from __future__ import annotations

from typing import Final

BATCH_TOO_LARGE: Final = "the batch is too large"


class SparkNeededError(Exception):
    """The lane does not apply this batch, and has changed nothing: Spark must merge it. The message says why, in a few words.

    Never an error for the user: Spark takes what is unsure.
    """


class TooLargeError(SparkNeededError):
    """As `SparkNeededError`, of a batch that the lane would apply if it were smaller."""

    def __init__(self, reason: str = BATCH_TOO_LARGE) -> None:
        super().__init__(reason)

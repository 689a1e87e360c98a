"""How a table compares, as verification says it."""

from __future__ import annotations

from enum import StrEnum


class Result(StrEnum):
    """How a table compares."""

    EQUAL = "equal"
    """In every column that the target has from the source."""
    EQUAL_IN_PART = "equal_in_part"
    """In the columns that can be compared. The target has others, so it proves nothing of whole rows."""
    DIFFERENT = "different"
    NOTHING_COMPARED = "nothing_compared"
    """None of the rows that were asked for exist: none were changed. Never of a whole table."""
    NOT_VERIFIED = "not_verified"

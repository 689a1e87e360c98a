"""Result of a table's comparison, as verification reports it."""

from __future__ import annotations

from enum import StrEnum


class Result(StrEnum):
    """Result of a table's comparison."""

    EQUAL = "equal"
    """Equal in every column that the target has from the source."""
    EQUAL_IN_PART = "equal_in_part"
    """Equal in the columns that can be compared. The target has others, so it proves nothing about whole rows."""
    DIFFERENT = "different"
    NOTHING_COMPARED = "nothing_compared"
    """None of the requested rows exist: none were changed. Never of a whole table."""
    NOT_VERIFIED = "not_verified"

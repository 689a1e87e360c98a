"""How a table compares, as verification says it."""

from __future__ import annotations

from enum import StrEnum


class Result(StrEnum):
    """How a table compares."""

    EQUAL = "equal"
    DIFFERENT = "different"
    NOT_VERIFIED = "not_verified"

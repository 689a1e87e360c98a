"""A value that may be missing, where a test knows that it is there."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    """The value; fails the test if it is None."""
    assert value is not None
    return value

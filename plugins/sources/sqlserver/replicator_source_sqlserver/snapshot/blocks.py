"""How many rows of a statement to fetch at once, so that what is kept of them has a bounded size however wide they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from replicator_source_sqlserver.types import ColumnSpec

FIRST_ROWS: Final = 1000
FIRST_LOB_ROWS: Final = 16
_GROWTH: Final = 4


def first_rows(specs: Iterable[ColumnSpec]) -> int:
    """How many to fetch of rows with such columns before anything is known of their size."""
    return FIRST_LOB_ROWS if any(spec.is_lob for spec in specs) else FIRST_ROWS


def next_rows(fetched: int, *, rows: int, size: int, left: int) -> int:
    """As many as fit into what is left, if they are like those before.

    Args:
        fetched: How many were fetched at once so far.
        rows: How many are known.
        size: Their bytes.
        left: Bytes.
    """
    return max(1, min(rows * left // max(1, size), _GROWTH * fetched))

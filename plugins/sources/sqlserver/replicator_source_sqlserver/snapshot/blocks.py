"""The number of rows of a statement to fetch at once, so that memory use has a bound however wide they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from replicator_source_sqlserver.types import ColumnSpec

FIRST_ROWS: Final = 1000
FIRST_LOB_ROWS: Final = 16
_GROWTH: Final = 4


def first_rows(specs: Iterable[ColumnSpec]) -> int:
    """Return the number of rows with such columns to fetch before anything is known of their size."""
    return FIRST_LOB_ROWS if any(spec.is_lob for spec in specs) else FIRST_ROWS


def next_rows(fetched: int, *, rows: int, size: int, left: int) -> int:
    """Return the number of rows to fetch next: as many as fit into `left`, if they are like those before.

    Args:
        fetched: The most rows that were fetched at once so far.
        rows: The number of known rows.
        size: Their size in bytes.
        left: Bytes that are left.
    """
    return max(1, min(rows * left // max(1, size), _GROWTH * fetched))

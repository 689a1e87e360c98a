"""Chooses the data files of a table that are joined, or rewritten without their deleted rows. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Final, Protocol, TypeVar


class SizedFile(Protocol):
    """A data file of a table."""

    @property
    def size(self) -> int:
        """Return its stored bytes."""

    @property
    def rows(self) -> int:
        """Return its rows, deleted ones among them."""

    @property
    def deleted(self) -> int:
        """Return the number of rows that are deleted."""


T = TypeVar("T", bound=SizedFile)

FILES_PER_TIER: Final = 12
"""Number of files of a tier that are joined to one of the next: each row is rewritten once per tier."""

_BYTES_MAX: Final = 64 << 20
"""Limit of the stored bytes of files that are rewritten at once: the new one is in memory. Larger ones are Spark's."""


def due(files: Collection[T], *, small_file_size: int, deleted_share_max: float) -> Sequence[T]:
    """The files to rewrite next; none if there is nothing to do.

    Args:
        files: All files of the newest version.
        small_file_size: Larger files are not joined.
        deleted_share_max: The share of all rows that may be deleted and still be in files.
    """
    hidden = sum(file.deleted for file in files)
    if hidden > deleted_share_max * max(1, sum(file.rows for file in files)):
        chosen = sorted(
            (f for f in files if f.deleted), key=lambda file: file.deleted / max(1, file.rows), reverse=True
        )
        if portion := _portion(chosen):
            return portion
    tiers: dict[int, list[T]] = {}
    for file in files:
        if file.size < small_file_size:
            tiers.setdefault(_tier(file.size), []).append(file)
    for _, tier in sorted(tiers.items()):
        if len(tier) >= FILES_PER_TIER:
            portion = _portion(sorted(tier, key=lambda file: file.size))
            return portion if len(portion) > 1 else ()
    return ()


def _portion(files: Sequence[T]) -> Sequence[T]:
    """The files to rewrite at once, as many as the limit allows; a larger one among them is left out."""
    taken, left = list[T](), _BYTES_MAX
    for file in files:
        if file.size <= left:
            taken.append(file)
            left -= file.size
    return taken


def _tier(size: int) -> int:
    return int(math.log(max(1, size), FILES_PER_TIER))

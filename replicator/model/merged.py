"""Counts of rows that merges found in the target."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Rows that the merges of one incarnation found and changed, summed up.

    Attributes:
        matched: Rows that existed and were written again; with soft deletes also rows that were marked as deleted.
        inserted: Rows that were added.
        deleted: Rows that were removed.
        not_found: Rows that an UPDATE or DELETE expected (`Batch.expects_rows`) and that did not exist.
    """

    matched: int = 0
    inserted: int = 0
    deleted: int = 0
    not_found: int = 0

    def __add__(self, other: Merged) -> Merged:
        return Merged(
            matched=self.matched + other.matched,
            inserted=self.inserted + other.inserted,
            deleted=self.deleted + other.deleted,
            not_found=self.not_found + other.not_found,
        )

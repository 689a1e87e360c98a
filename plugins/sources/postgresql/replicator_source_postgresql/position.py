"""Position of a replicator in the log, with the timeline it is on and the server it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from replicator.model.errors import CorruptStreamError
from replicator.model.offset import Offset
from replicator_source_postgresql.lsn import lsn_from_text, lsn_to_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A position in the write-ahead log up to which everything is known.

    Attributes:
        lsn: End of a commit, or a position without open transactions.
        timeline: The history of the server that `lsn` belongs to; a promotion begins a new one.
        system: The cluster's system identifier.
    """

    lsn: int
    timeline: int
    system: str

    @property
    def offset(self) -> Offset:
        """The position as the host keeps it."""
        return Offset.of({"lsn": lsn_to_text(self.lsn), **self.fields})

    @property
    def fields(self) -> dict[str, str | int]:
        """The fields that every offset of one open log has in common."""
        return {"timeline": self.timeline, "system": self.system}

    @classmethod
    def of(cls, offset: Offset) -> Self:
        """Read an offset.

        Raises:
            CorruptStreamError: The offset is not one of ours.
        """
        try:
            value = offset.value
            return cls(lsn=lsn_from_text(value["lsn"]), timeline=int(value["timeline"]), system=str(value["system"]))
        except (ValueError, KeyError, TypeError, AssertionError) as error:
            raise CorruptStreamError(
                f"The recorded offset {offset.text!r} is not a position in a PostgreSQL log.", code="corrupt_offset"
            ) from error

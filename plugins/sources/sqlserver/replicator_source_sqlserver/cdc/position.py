"""Offsets: the commit up to which everything is durable, and the capture instances that had begun by then."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self

from replicator.model.errors import CorruptStreamError
from replicator.model.offset import Offset
from replicator_source_sqlserver.lsn import lsn_from_text, lsn_to_text
from replicator_source_sqlserver.moments import in_milliseconds

NEVER: Final = datetime.fromisoformat("0001-01-01T00:00:00")
"""A time before every other: no instance had begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A position: all commits up to and including `lsn` are durable. A transaction is durable as a whole, so nothing else is needed.

    Attributes:
        lsn: The position of a commit, or of an entry without a transaction.
        instances_until: The creation time of the newest capture instance that had begun by then, on the server's own clock, without a
            zone. One that was made later has lost nothing of the commits before it.
    """

    lsn: bytes
    instances_until: datetime

    @classmethod
    def of(cls, offset: Offset) -> Self:
        """Read an offset of ours.

        Raises:
            CorruptStreamError: It is not one of ours.
        """
        try:
            lsn, until = lsn_from_text(offset.value["lsn"]), datetime.fromisoformat(offset.value["instances_until"])
            return cls(lsn=lsn, instances_until=in_milliseconds(until))
        except (KeyError, ValueError, TypeError) as error:
            raise CorruptStreamError(
                f"{offset} is not an offset of a SQL Server source.", code="corrupt_offset"
            ) from error

    @property
    def offset(self) -> Offset:
        """The position as an offset."""
        return Offset.of({"lsn": lsn_to_text(self.lsn), "instances_until": self.instances_until.isoformat()})

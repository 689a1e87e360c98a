"""Offsets: up to which commit everything is durable, and which capture instances had begun by then."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self

from replicator.model.errors import CorruptStreamError
from replicator.model.offset import Offset
from replicator_source_sqlserver.lsn import lsn_from_text, lsn_to_text
from replicator_source_sqlserver.moments import in_milliseconds

NEVER: Final = datetime.fromisoformat("0001-01-01T00:00:00")
"""In front of every time: no instance had begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Everything that was committed up to and including `lsn` is durable. A transaction is durable as a whole, so nothing else is needed.

    Attributes:
        lsn: Of a commit, or of an entry without a transaction.
        instances_until: When the newest capture instance was made that had begun by then, on the server's own clock, without a zone. One
            that was made later has lost nothing of what lies in front of it.
    """

    lsn: bytes
    instances_until: datetime

    @classmethod
    def of(cls, offset: Offset) -> Self:
        """Read an offset of ours.

        Raises:
            CorruptStreamError: It is none.
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
        """As an offset."""
        return Offset.of({"lsn": lsn_to_text(self.lsn), "instances_until": self.instances_until.isoformat()})

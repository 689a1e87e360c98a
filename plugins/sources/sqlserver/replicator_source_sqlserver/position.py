"""Offsets: up to which commit everything is durable, and when that was."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Self

from replicator.model.errors import CorruptStreamError
from replicator.model.offset import Offset
from replicator_source_sqlserver.lsn import lsn_from_text, lsn_to_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Everything that was committed up to and including `lsn` is durable. A transaction is durable as a whole, so nothing else is needed.

    Attributes:
        lsn: Of a commit, or of an entry without a transaction.
        moment: Its time on the server's own clock, without a zone, as the tables of change data capture have it. An instance that was made
            later has lost nothing of what lies in front of it.
    """

    lsn: bytes
    moment: datetime

    @classmethod
    def of(cls, offset: Offset) -> Self:
        """Read an offset of ours.

        Raises:
            CorruptStreamError: It is none.
        """
        try:
            return cls(lsn=lsn_from_text(offset.value["lsn"]), moment=datetime.fromisoformat(offset.value["time"]))
        except (KeyError, ValueError, TypeError) as error:
            raise CorruptStreamError(
                f"{offset} is not an offset of a SQL Server source.", code="corrupt_offset"
            ) from error

    @property
    def offset(self) -> Offset:
        """As an offset."""
        return Offset.of({"lsn": lsn_to_text(self.lsn), "time": self.moment.isoformat()})

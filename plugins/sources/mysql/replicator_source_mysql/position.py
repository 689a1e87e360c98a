"""Offsets: where in the log everything is durable here, and in which server's files that was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from replicator.model.errors import CorruptStreamError
from replicator.model.offset import Offset
from replicator_source_mysql.binlog import Flavor
from replicator_source_mysql.gtid import GtidPosition, GtidSet

Executed = GtidSet | GtidPosition
Place = tuple[int, int]
"""A place in a server's binary log: the number of the file, and the byte behind the event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """What an offset says.

    Attributes:
        executed: Everything up to and including these transactions is durable.
        server: Whose files `file` and `pos` are in: MySQL's server_uuid, MariaDB's server_id.
        file: The binary log file that was being read; a hint, never what decides.
        pos: The place in it.
        prepared: GTIDs of XA transactions that are prepared and not decided: their changes are not durable here.
        restart: Where reading must begin so that those are read again; what lies behind it and in `executed` is skipped.
    """

    flavor: Flavor
    executed: Executed
    server: str
    file: str = ""
    pos: int = 0
    prepared: tuple[str, ...] = ()
    restart: Executed | None = None

    @classmethod
    def of(cls, offset: Offset) -> Self:
        """Read an offset of ours.

        Raises:
            CorruptStreamError: It is none.
        """
        value = offset.value
        try:
            flavor: Flavor = value["flavor"]
            executed = executed_of(flavor, value["gtids"])
            restart = value.get("restart")
            return cls(
                flavor=flavor,
                executed=executed,
                server=value["server"],
                file=value["file"],
                pos=int(value["pos"]),
                prepared=tuple(value.get("prepared", ())),
                restart=executed_of(flavor, restart) if restart is not None else None,
            )
        except (KeyError, ValueError, TypeError) as error:
            raise CorruptStreamError(f"{offset} is no offset of a MySQL source.", code="corrupt_offset") from error

    @property
    def offset(self) -> Offset:
        """As an offset."""
        value: dict[str, Any] = {
            "flavor": self.flavor,
            "gtids": str(self.executed),
            "server": self.server,
            "file": self.file,
            "pos": self.pos,
        }
        if self.restart is not None:
            value |= {"prepared": list(self.prepared), "restart": str(self.restart)}
        return Offset.of(value)

    @property
    def place(self) -> Place:
        """The place in the server's files."""
        return file_number(self.file), self.pos

    def covers(self, other: Position) -> bool:
        """Whether everything up to the other is also up to this one. Never across flavors."""
        return executed_covers(self.executed, other.executed)


def executed_of(flavor: Flavor, text: str) -> Executed:
    """Read a GTID set or position; ValueError if it is none."""
    return GtidPosition.of(text) if flavor == "mariadb" else GtidSet.of(text)


def executed_covers(a: Executed, b: Executed) -> bool:
    """Whether everything in `b` is in `a`. Never across flavors."""
    if isinstance(a, GtidSet) and isinstance(b, GtidSet):
        return a.covers(b)
    return isinstance(a, GtidPosition) and isinstance(b, GtidPosition) and a.covers(b)


def executed_union(a: Executed, b: Executed) -> Executed:
    """What is in either. Never across flavors."""
    if isinstance(a, GtidSet) and isinstance(b, GtidSet):
        return a.union(b)
    assert isinstance(a, GtidPosition)
    assert isinstance(b, GtidPosition)
    return a.union(b)


def file_number(file: str) -> int:
    """The number that a binary log file's name ends with; 0 for none."""
    _, _, digits = file.rpartition(".")
    return int(digits) if digits.isdigit() else 0

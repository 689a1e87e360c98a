"""Offsets: where in the log everything is durable here, and in which server's files that was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from replicator.model.errors import CorruptStreamError
from replicator.model.offset import Offset
from replicator_source_mysql.binlog import Flavor
from replicator_source_mysql.filepos import FIRST_BYTE, FilePosition, Place, file_number
from replicator_source_mysql.gtid import GtidPosition, GtidSet

Executed = GtidSet | GtidPosition | FilePosition

_BY_FILE: Final = 2
"""Version of the JSON form of a place without GTIDs. The form with GTIDs, version 1, does not say its version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """What an offset says.

    Attributes:
        executed: Everything up to and including these transactions is durable.
        server: Whose files `file` and `pos` are in: MySQL's server_uuid, MariaDB's server_id.
        file: The binary log file that was being read; with GTIDs a hint, never what decides.
        pos: The place in it.
        prepared: Ids of XA transactions that are prepared and not decided: their changes are not durable here.
        restart: Where reading must begin so that those are read again, or because `executed` cannot be asked for; what lies
            behind it and in `executed` is skipped.
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
            if "version" in value:
                return cls._by_file(value)
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
            raise CorruptStreamError(f"{offset} is not an offset of a MySQL source.", code="corrupt_offset") from error

    @classmethod
    def _by_file(cls, value: Mapping[str, Any]) -> Self:
        if value["version"] != _BY_FILE:
            raise ValueError("its version is not known")
        restart = value.get("restart")
        executed = FilePosition.of(value["at"])
        return cls(
            flavor="mysql",
            executed=executed,
            server=value["server"],
            file=executed.file,
            pos=executed.pos,
            prepared=tuple(value.get("prepared", ())),
            restart=FilePosition.of(restart) if restart is not None else None,
        )

    @classmethod
    def at_file(cls, executed: FilePosition, server: str) -> Self:
        """Where nothing is prepared that was read."""
        # What 32 bits are not enough for is read again from its file's beginning.
        restart = None if executed.can_be_asked_for else FilePosition(executed.file, FIRST_BYTE)
        return cls(
            flavor="mysql", executed=executed, server=server, file=executed.file, pos=executed.pos, restart=restart
        )

    @property
    def offset(self) -> Offset:
        """As an offset."""
        value: dict[str, Any] = (
            {
                "version": _BY_FILE,
                "at": str(self.executed),
                "server": self.server,
            }
            if self.is_by_file
            else {
                "flavor": self.flavor,
                "gtids": str(self.executed),
                "server": self.server,
                "file": self.file,
                "pos": self.pos,
            }
        )
        if self.restart is not None:
            value |= {"prepared": list(self.prepared), "restart": str(self.restart)}
        return Offset.of(value)

    @property
    def is_by_file(self) -> bool:
        """Whether it is a file and a byte, without GTIDs."""
        return isinstance(self.executed, FilePosition)

    @property
    def begin(self) -> Executed:
        """Behind what the log must be asked for."""
        return self.executed if self.restart is None else self.restart

    @property
    def place(self) -> Place:
        """The place in the server's files."""
        return file_number(self.file), self.pos

    def covers(self, other: Position) -> bool:
        """Whether everything up to the other is also up to this one. Never across flavors, nor, by files, across servers."""
        is_comparable = not self.is_by_file or self.server == other.server
        return is_comparable and executed_covers(self.executed, other.executed)


def executed_of(flavor: Flavor, text: str) -> Executed:
    """Read a GTID set or position; ValueError if it is none."""
    return GtidPosition.of(text) if flavor == "mariadb" else GtidSet.of(text)


def executed_covers(a: Executed, b: Executed) -> bool:
    """Whether everything in `b` is in `a`. Never across flavors."""
    if isinstance(a, GtidSet) and isinstance(b, GtidSet):
        return a.covers(b)
    if isinstance(a, FilePosition) and isinstance(b, FilePosition):
        return a.covers(b)
    return isinstance(a, GtidPosition) and isinstance(b, GtidPosition) and a.covers(b)


def executed_union(a: Executed, b: Executed) -> Executed:
    """What is in either. Never across flavors."""
    if isinstance(a, GtidSet) and isinstance(b, GtidSet):
        return a.union(b)
    assert isinstance(a, GtidPosition)
    assert isinstance(b, GtidPosition)
    return a.union(b)

"""Offsets: the position in the log up to which everything is durable here, and the server whose files that was in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias

from replicator.model.errors import CorruptStreamError
from replicator.model.offset import Offset
from replicator_source_mysql.flavors import Flavor
from replicator_source_mysql.positions.file_position import FIRST_BYTE, FilePosition
from replicator_source_mysql.positions.gtid_sets import GtidPosition, GtidSet

Executed: TypeAlias = GtidSet | GtidPosition | FilePosition
"""Everything of a log up to here: one type for each coordinate system."""

_BY_FILE: Final = 2
"""Version of the JSON form of a position without GTIDs. The form with GTIDs, version 1, does not say its version."""
_GTIDS: Final[Mapping[str, type[GtidSet | GtidPosition]]] = {t.flavor.name: t for t in (GtidSet, GtidPosition)}
"""Type of the GTIDs in an offset, by the flavor that it names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The content of an offset.

    Attributes:
        executed: Everything up to and including these transactions is durable.
        server: The server that has `file`: MySQL's server_uuid, MariaDB's server_id.
        file: The binary log file that was being read; with GTIDs a hint, never what decides.
        pos: Byte in that file.
        prepared: Ids of XA transactions that are prepared and not decided: their changes are not durable here.
        restart: Position at which reading must begin so that those are read again, or because `executed` cannot be asked for;
            transactions after it that are in `executed` are skipped.
    """

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
            gtids = _GTIDS[value["flavor"]]
            restart = value.get("restart")
            return cls(
                executed=gtids.of(value["gtids"]),
                server=value["server"],
                file=value["file"],
                pos=int(value["pos"]),
                prepared=tuple(value.get("prepared", ())),
                restart=gtids.of(restart) if restart is not None else None,
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
            executed=executed,
            server=value["server"],
            file=executed.file,
            pos=executed.pos,
            prepared=tuple(value.get("prepared", ())),
            restart=FilePosition.of(restart) if restart is not None else None,
        )

    @classmethod
    def at_file(cls, executed: FilePosition, server: str) -> Self:
        """A position at which nothing that was read is prepared."""
        # What 32 bits are not enough for is read again from its file's beginning.
        restart = None if executed.can_be_asked_for else FilePosition(executed.file, FIRST_BYTE)
        return cls(executed=executed, server=server, file=executed.file, pos=executed.pos, restart=restart)

    @property
    def offset(self) -> Offset:
        """The position as an offset."""
        value: dict[str, Any] = (
            {
                "version": _BY_FILE,
                "at": str(self.executed),
                "server": self.server,
            }
            if self.is_by_file
            else {
                "flavor": self.flavor.name,
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
        """Return whether it is a file and a byte, without GTIDs."""
        return isinstance(self.executed, FilePosition)

    @property
    def begin(self) -> Executed:
        """The transactions after which the log must be asked for."""
        return self.executed if self.restart is None else self.restart

    @property
    def flavor(self) -> Flavor:
        """The kind of server that it belongs to."""
        return self.executed.flavor

    def covers(self, other: Position) -> bool:
        """Return whether everything up to the other is up to this one. Never across coordinate systems, nor by files across servers."""
        is_comparable = self.executed.is_of_lineage or self.server == other.server
        return is_comparable and self.executed.covers(other.executed)

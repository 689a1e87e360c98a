"""A position in one server's binary log, which stands for everything before it where GTIDs do not say."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field
from typing import ClassVar, Final, Self

from replicator_source_mysql.flavors import MYSQL, Flavor, System

LogPosition = tuple[int, int]
"""Position in the log of one server, comparable: the number of the file, and the byte after the event."""

FIRST_BYTE: Final = 4
"""Byte at which the first event of a file begins."""
WRAP: Final = 1 << 32
"""Limit of the 32 bits that events, and the command that asks for the log, have for a byte of a file."""

_TEXT: Final = re.compile(r"(.+\.\d{1,10}):(\d{1,19})(?:@(\d{1,19})#([0-9a-f]{8}))?", re.DOTALL)
_FORMAT_DESCRIPTION: Final = 15
_FLAGS: Final = slice(17, 19)


@dataclass(frozen=True, slots=True)
class FilePosition:
    """Everything of a server's log up to a byte of a file, which means nothing to another server. Immutable.

    Attributes:
        file: The file's name.
        pos: The byte after the last event of a transaction, counted beyond 32 bits.
        event: First byte of an event that was read: the one that ends at `pos`, or at a file's beginning its first. None: none was read.
        crc: `fingerprint` of that event: another history has another event there.
    """

    flavor: ClassVar[Flavor] = MYSQL
    system: ClassVar[System] = System.FILE
    is_of_lineage: ClassVar[bool] = False

    file: str
    pos: int
    event: int | None = field(default=None, compare=False)
    crc: int | None = field(default=None, compare=False)

    @classmethod
    def of(cls, text: str) -> Self:
        """Read `binlog.000003:1234`, perhaps followed by `@1203#0a1b2c3d` (event and CRC-32).

        Raises:
            ValueError: It is none.
        """
        match = _TEXT.fullmatch(text)
        if match is None or int(match[2]) < FIRST_BYTE:
            raise ValueError(f"{text!r} is not a log position such as binlog.000003:1234")
        event, crc = (int(match[3]), int(match[4], 16)) if match[3] else (None, None)
        return cls(match[1], int(match[2]), event, crc)

    def __str__(self) -> str:
        """The text that `of` reads."""
        proof = f"@{self.event}#{self.crc:08x}" if self.event is not None and self.crc is not None else ""
        return f"{self.file}:{self.pos}{proof}"

    @property
    def position(self) -> LogPosition:
        """The position, comparable with others in the log of the same server."""
        return file_number(self.file), self.pos

    @property
    def begin(self) -> int:
        """Byte at which reading must begin: at the event that proves the history, if there is one."""
        return self.pos if self.event is None else self.event

    @property
    def can_be_asked_for(self) -> bool:
        """Return whether 32 bits are enough for it."""
        return self.begin < WRAP

    def covers(self, other: object) -> bool:
        """Return whether the other is one, too, and not after this one in the log of the same server."""
        return isinstance(other, FilePosition) and self.position >= other.position


def file_number(file: str) -> int:
    """The number that a binary log file's name ends with; 0 for none."""
    _, _, digits = file.rpartition(".")
    return int(digits) if digits.isdigit() else 0


def fingerprint(event: bytes) -> int:
    """CRC-32 of an event without its checksum and its flags: one of them says that the file is in use.

    Of a file's first event the header only, which has the moment at which the file was made: the rest is sent differently at times.
    """
    crc = zlib.crc32(event[: _FLAGS.start])
    return crc if event[4] == _FORMAT_DESCRIPTION else zlib.crc32(memoryview(event)[_FLAGS.stop :], crc)

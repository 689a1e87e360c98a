"""The reader's position in a server's files."""

from __future__ import annotations

from replicator_source_mysql.coordinates.lineage import other_history
from replicator_source_mysql.events import FLAG_ARTIFICIAL, EventKind
from replicator_source_mysql.positions.file_position import WRAP, LogPosition, file_number
from replicator_source_mysql.positions.marks import LogEnd


class ReadPosition:
    """A position that moves with every event.

    Args:
        file: Name of the file to begin in; empty if unknown.
        pos: The byte to begin at; 0 if unknown.

    Attributes:
        file: The file that is being read.
        pos: The byte after the last event, counted beyond 32 bits.
        boundary: File and byte after the last transaction.
    """

    __slots__ = ("_furthest", "_numbered", "boundary", "file", "pos")

    def __init__(self, file: str, pos: int) -> None:
        self.file, self.pos = file, pos
        self.boundary = (file, pos)
        self._furthest: LogPosition = (0, 0)
        self._numbered = ("", 0)

    @property
    def position(self) -> LogPosition:
        """The position, comparable with others in the log of the same server."""
        if self._numbered[0] != self.file:
            self._numbered = (self.file, file_number(self.file))
        return self._numbered[1], self.pos

    def move(self, kind: int, size: int, end: int, flags: int, *, in_transaction: bool) -> None:
        """Count an event: its header has 32 bits for the byte, and MariaDB leaves it 0 within transactions."""
        if flags & FLAG_ARTIFICIAL or kind in (EventKind.ROTATE, EventKind.HEARTBEAT_V2):
            return
        if kind == EventKind.HEARTBEAT or end:
            pos = (self.pos & ~(WRAP - 1)) | end
            if pos < self.pos and self.pos - pos > WRAP // 2:
                pos += WRAP
            self.pos = max(pos, self.pos)
        elif in_transaction:
            self.pos += size

    def enter(self, file: str, pos: int) -> bool:
        """Continue in this file at this byte; return whether it is another one."""
        is_other = file != self.file
        if is_other or pos > self.pos:
            self.file, self.pos = file, pos
        return is_other

    def heartbeat(self, file: str, pos: int | None) -> None:
        """Take the position at which the server waits for changes."""
        if file and file != self.file:
            self.file, self.pos = file, 0
        if pos is not None:
            self.pos = max(self.pos, pos)

    def end_transaction(self) -> None:
        """Record that a transaction ends here."""
        self.boundary = (self.file, self.pos)

    def refuse_shrunk(self, end: LogEnd) -> None:
        """Refuse a log that ends before what was read, or before an earlier end: it was recreated under the open dump.

        The server says nothing then while the file of the same name is the shorter one: its dump waits in the file that was
        removed (measured: RESET MASTER with the dump in the log's first file; MySQL 9.7.4 and MariaDB 10.11.19). Once the new
        file is the longer one the dump ends with an error of reading.

        Raises:
            LogGapError: `other_history`.
        """
        self._furthest = max(self._furthest, self.position)
        if end.position < self._furthest:
            raise other_history(
                f"its log ends at byte {end.position[1]} of {end.file}, but was read, or ended, at byte {self._furthest[1]} of the "
                f"file number {self._furthest[0]}"
            )
        self._furthest = end.position

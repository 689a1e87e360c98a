"""Where in a server's files the reader is, and whether they still are the files that were read."""

from __future__ import annotations

from typing import Final

from replicator_source_mysql.events import FLAG_ARTIFICIAL, Kind
from replicator_source_mysql.filepos import FIRST_BYTE, WRAP, FilePosition, Place, file_number, fingerprint
from replicator_source_mysql.lineage import other_history
from replicator_source_mysql.marks import LogEnd

# What says no place of its own, or is no event of the file.
_PLACELESS: Final = frozenset({Kind.ROTATE, Kind.HEARTBEAT, Kind.HEARTBEAT_V2})


class Cursor:
    """A place that moves with every event.

    Args:
        file: Name of the file to begin in; empty where only GTIDs say where to begin.
        pos: The byte to begin at; 0 if unknown.
        begin: The same for a log that is read by file: what is executed is then everything before a place.

    Attributes:
        file: The file that is being read.
        pos: The byte behind the last event, counted beyond 32 bits.
        boundary: File and byte behind the last transaction.
        proof: By file: the event that must come first, until it came.
    """

    __slots__ = ("_furthest", "_last_event", "_low", "_numbered", "boundary", "file", "pos", "proof")

    def __init__(self, file: str, pos: int, begin: FilePosition | None = None) -> None:
        self.file, self.pos = (file, pos) if begin is None else (begin.file, begin.begin)
        self.boundary = (self.file, self.pos)
        self.proof = begin if begin is not None and begin.crc is not None else None
        # The last place that can be asked for.
        self._low = begin
        self._last_event = (0, b"")
        self._furthest: Place = (0, 0)
        self._numbered = ("", 0)

    @property
    def is_by_file(self) -> bool:
        """Whether places in files say what is executed, not GTIDs."""
        return self._low is not None

    @property
    def place(self) -> Place:
        """Comparable with other places in the log of the same server."""
        if self._numbered[0] != self.file:
            self._numbered = (self.file, file_number(self.file))
        return self._numbered[1], self.pos

    def move(self, kind: int, size: int, end: int, flags: int, *, in_transaction: bool) -> None:
        """Count an event: its header has 32 bits for the place, and MariaDB leaves it 0 within transactions."""
        if flags & FLAG_ARTIFICIAL or kind in (Kind.ROTATE, Kind.HEARTBEAT_V2):
            return
        if kind == Kind.HEARTBEAT or end:
            pos = (self.pos & ~(WRAP - 1)) | end
            if pos < self.pos and self.pos - pos > WRAP // 2:
                pos += WRAP
            self.pos = max(pos, self.pos)
        elif in_transaction:
            self.pos += size

    def was_read(self, raw: bytes, kind: int, size: int, end: int, flags: int, *, in_transaction: bool) -> bool:
        """By file: remember the event, and compare it if it is the one that was read last; then it is not read again.

        Raises:
            LogGapError: `other_history`: another event stands there.
        """
        if kind in _PLACELESS or flags & FLAG_ARTIFICIAL or (not end and not in_transaction):
            return False
        self._last_event = (self.pos - size, raw)
        proof, self.proof = self.proof, None
        if proof is None:
            return False
        if self._last_event[0] != proof.begin or fingerprint(raw) != proof.crc:
            raise other_history(
                f"another event than the one that was read begins at byte {proof.begin} of {proof.file}"
            )
        return proof.begin < proof.pos

    def enter(self, file: str, pos: int) -> bool:
        """Go on in this file from this byte; return whether it is another one. Errors as `refuse_unproved`."""
        is_other = file != self.file
        if is_other:
            self._refuse_unproved()
        if is_other or pos > self.pos:
            self.file, self.pos = file, pos
        return is_other

    def heartbeat(self, file: str, pos: int | None) -> None:
        """The server waits, and says where.

        Raises:
            LogGapError: `other_history`: the file ends before the event that must come first.
        """
        self._refuse_unproved()
        if file and file != self.file:
            self.file, self.pos = file, 0
        if pos is not None:
            self.pos = max(self.pos, pos)

    def begin_file(self) -> FilePosition | None:
        """By file, at a file's first event: the place before it; what came before is read, and may be purged."""
        event, raw = self._last_event
        if self._low is None or event != FIRST_BYTE:
            return None
        self._low = FilePosition(self.file, FIRST_BYTE, FIRST_BYTE, fingerprint(raw))
        self.boundary = (self.file, FIRST_BYTE)
        return self._low

    def commit(self) -> FilePosition | None:
        """A transaction ends here; by file, return the place."""
        self.boundary = (self.file, self.pos)
        if self._low is None:
            return None
        event, raw = self._last_event
        here = FilePosition(self.file, self.pos, event, fingerprint(raw))
        self._low = here if here.can_be_asked_for else self._low
        return here

    def restart(self, executed: object) -> FilePosition | None:
        """Where reading must begin again if it cannot where the last transaction ended: 32 bits are not enough for it."""
        is_too_far = isinstance(executed, FilePosition) and not executed.can_be_asked_for
        return self._low if is_too_far else None

    def refuse_shrunk(self, end: LogEnd) -> None:
        """A log that ends before what was read, or before where it once ended, was begun anew under the open dump.

        The server says nothing then while the file of the same name is the shorter one: its dump waits in the file that is
        gone (measured: RESET MASTER with the dump in the log's first file; MySQL 9.7.4 and MariaDB 10.11.19). Once the new
        file is the longer one the dump ends with an error of reading.

        Raises:
            LogGapError: `other_history`.
        """
        self._furthest = max(self._furthest, self.place)
        if end.place < self._furthest:
            raise other_history(
                f"its log ends at byte {end.place[1]} of {end.file}, but was read, or ended, at byte {self._furthest[1]} of the "
                f"file number {self._furthest[0]}"
            )
        self._furthest = end.place

    def _refuse_unproved(self) -> None:
        if self.proof is not None:
            raise other_history(f"{self.proof.file} ends before what was read of it")

"""A reader over the bytes of one event whose every step is checked against the event's end."""

from __future__ import annotations

from typing import Final

from replicator_source_mysql.binlog.events import corrupt

_PACKED_SIZES: Final = {252: 2, 253: 3, 254: 8}
_PACKED_NULL: Final = 251


class EventReader:
    """Reads one event's fields one after another; CorruptStreamError where they run over its end. `what` names the event in messages."""

    def __init__(self, data: bytes | memoryview, what: str) -> None:
        self._data = bytes(data)
        self._what = what
        self.offset = 0

    @property
    def left(self) -> int:
        """Bytes not yet read."""
        return len(self._data) - self.offset

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        end = self.offset + size
        if end > len(self._data):
            raise corrupt(f"{self._what} ends before its fields do.")
        part = self._data[self.offset : end]
        self.offset = end
        return part

    def integer(self, size: int) -> int:
        """A little-endian unsigned integer."""
        return int.from_bytes(self.take(size), "little")

    def packed(self) -> int:
        """A length-encoded integer."""
        first = self.integer(1)
        if first < _PACKED_NULL:
            return first
        if first not in _PACKED_SIZES:
            raise corrupt(f"{self._what} has an invalid length.")
        return self.integer(_PACKED_SIZES[first])

    def string(self) -> bytes:
        """Bytes that follow their length-encoded length."""
        return self.take(self.packed())

    def rest(self) -> bytes:
        """All bytes that are left."""
        return self.take(self.left)

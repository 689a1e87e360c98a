"""The rows of a query as the server writes them, text by text, into columns: no Python object per value, and one step per row.

A row is one packet of the client protocol: after its length and number, each value with its length in front (or the mark of
NULL). Bytes are read from the socket into one buffer, block by block; the only loop over rows goes from packet to packet.
"""

from __future__ import annotations

import select
import ssl
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pymysql
from pymysql.constants import COMMAND

from replicator.plugins.kit.arrow import Bools, Longs, gathered
from replicator_source_mysql.connecting.connection import Connection
from replicator_source_mysql.connecting.wire import EOF, ERROR, LostError, endless, error_of, farewell, misnumbered

Words = npt.NDArray[np.uint64]

_HEADER: Final = 4
_HEAD: Final = struct.Struct("<I")
_SIZE_MAX: Final = (1 << 24) - 1
_EOF_SIZE_MAX: Final = 8
_ROW_MAX: Final = 2 << 30
"""Limit of a row's bytes: more than Arrow's arrays hold of one column."""
_RECEIVE_BYTES: Final = 1 << 18
_FIRST_BYTES: Final = 1 << 20
_KEPT_BYTES: Final = 64 << 20
_WORD: Final = 8
_NULL: Final = 0xFB
_WIDEST: Final = 0xFE
_LOOK_S: Final = 1.0


def text_rows(connection: Connection, query: str, *, rows_max: int, bytes_max: int, silence_s: float) -> Iterator[Rows]:
    """Run a query and give its rows as they arrive, in blocks.

    Args:
        connection: Idle connection; it is idle again after the last block, and only then.
        query: One statement.
        rows_max: Rows of a block, at least; a block takes whole reads of the socket.
        bytes_max: Bytes of a block, likewise.
        silence_s: Seconds for which the server may send nothing.

    Raises:
        pymysql.MySQLError, OSError: The statement failed, or the connection was lost.
    """
    connection._execute_command(COMMAND.COM_QUERY, query)  # noqa: SLF001 - the public call would also read the answer
    answer = _Answer(connection, silence_s=silence_s)
    while not answer.has_ended:
        answer.receive()
        # While a row that is larger than a block arrives, nothing is taken: each time would copy all that is here of it.
        is_full = len(answer.starts) >= rows_max or answer.size >= bytes_max
        if answer.starts and (is_full or answer.has_ended):
            yield answer.take()


class _Answer:
    """The part of a query's answer that has arrived.

    `starts`: offsets of the packets of rows that are here and were not taken; `has_ended`: no more will come.
    """

    def __init__(self, connection: Connection, *, silence_s: float) -> None:
        self._socket = connection._sock  # noqa: SLF001 - PyMySQL has no name for it
        self._silence_s = silence_s
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._buffer = bytearray(_FIRST_BYTES)
        # After the last whole packet, and after all that came.
        self._offset = self._end = 0
        # How many of `starts` had the right number, and what the next one must have.
        self._proved = 0
        self._number = 1
        # Packets in front of the rows: how many columns, each of them, an end. Unknown until the first of them is here.
        self._skipped: int | None = None
        self.starts: list[int] = []
        self.has_ended = False

    @property
    def size(self) -> int:
        """Bytes that are here."""
        return self._end

    def receive(self) -> None:
        """Wait for more, and find the packets in it."""
        self._await()
        if len(self._buffer) - self._end < _RECEIVE_BYTES + _WORD:
            self._buffer.extend(bytes(len(self._buffer)))
        with memoryview(self._buffer)[self._end : self._end + _RECEIVE_BYTES] as free:
            count = self._socket.recv_into(free)
        if not count:
            raise LostError("the server closed the connection")
        self._end += count
        found = len(self.starts)
        self._find_packets()
        if len(self.starts) > found:
            self._prove()
            self._look_at_last()

    def take(self) -> Rows:
        """Take the rows that are here. The part of the next one that is here stays."""
        buffer, begun, offset = self._buffer, self.starts, self._offset
        rest = bytes(memoryview(buffer)[offset : self._end])
        size = max(_FIRST_BYTES, min(len(buffer), _KEPT_BYTES), 2 * len(rest))
        self._buffer, self.starts, self._proved = bytearray(size), [], 0
        self._buffer[: len(rest)] = rest
        self._offset, self._end = 0, len(rest)
        starts = np.array([*begun, offset], np.int64)
        return Rows(buffer, starts[:-1] + _HEADER, starts[1:])

    def _await(self) -> None:
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return
        began = time.monotonic()
        while not self._poll.poll(round(_LOOK_S * 1000)):
            if time.monotonic() - began > self._silence_s:
                raise LostError(f"the server has sent nothing for {self._silence_s:.0f} s")

    def _find_packets(self) -> None:
        """Go from packet to packet, as far as they are whole."""
        buffer, offset = self._buffer, self._offset
        found, head_at = self.starts.append, _HEAD.unpack_from
        last = self._end - _HEADER
        while offset <= last:
            size = head_at(buffer, offset)[0] & _SIZE_MAX
            behind = offset + _HEADER + size
            if behind > self._end or size == _SIZE_MAX:
                if size != _SIZE_MAX or (joined := self._join(offset)) is None:
                    break
                behind, last = joined, self._end - _HEADER
            found(offset)
            offset = behind
        self._offset = offset

    def _join(self, offset: int) -> int | None:
        """Make one packet of those that a long row was cut into; return its end. None while they are not all here."""
        heads, behind, size = [], offset, _SIZE_MAX
        while size == _SIZE_MAX:
            if behind + _HEADER > self._end:
                return None
            size = _HEAD.unpack_from(self._buffer, behind)[0] & _SIZE_MAX
            heads.append(behind)
            behind += _HEADER + size
            if behind - offset > _ROW_MAX:
                raise endless(_ROW_MAX)
        if behind > self._end:
            return None
        self._prove()
        for at in heads:
            if self._buffer[at + 3] != self._number:
                raise misnumbered(self._buffer[at + 3], self._number)
            self._number = (self._number + 1) & 0xFF
        self._proved += 1
        for at in reversed(heads[1:]):
            del self._buffer[at : at + _HEADER]
        removed = _HEADER * (len(heads) - 1)
        self._end -= removed
        return behind - removed

    def _prove(self) -> None:
        """Verify that packets have ascending numbers; a server that shuts down, or kills the connection, sends a number of its own."""
        starts = np.array(self.starts[self._proved :], np.int64)
        found = np.frombuffer(self._buffer, np.uint8)[starts + 3]
        wrong = np.flatnonzero(found != ((self._number + np.arange(len(starts))) & 0xFF))
        if len(wrong):
            at = self.starts[self._proved + int(wrong[0])]
            if self._buffer[at + _HEADER] == ERROR:
                raise farewell(self._packet(at))
            raise misnumbered(self._buffer[at + 3], (self._number + int(wrong[0])) & 0xFF)
        self._number = (self._number + len(starts)) & 0xFF
        self._proved = len(self.starts)

    def _look_at_last(self) -> None:
        """Check whether the last packet is an error, or the end: only that one can be."""
        last = self.starts[-1]
        kind = self._buffer[last + _HEADER]
        if kind == ERROR:
            raise pymysql.err.OperationalError(*error_of(self._packet(last)))
        if self._skipped is None:
            first = self._packet(self.starts[0])
            # The number of columns, a packet for each of them, and an end.
            self._skipped = (first[0] if first[0] < _NULL else int.from_bytes(first[1:3], "little")) + 2
        if self._skipped:
            count = min(self._skipped, len(self.starts))
            del self.starts[:count]
            self._skipped -= count
            self._proved = len(self.starts)
        if self.starts and kind == EOF and self._offset - last - _HEADER <= _EOF_SIZE_MAX:
            self.has_ended = True
            self._offset = self.starts.pop()

    def _packet(self, offset: int) -> bytes:
        size = _HEAD.unpack_from(self._buffer, offset)[0] & _SIZE_MAX
        return bytes(self._buffer[offset + _HEADER : offset + _HEADER + size])


class Rows:
    """Text rows in one buffer, read column by column.

    Args:
        data: The buffer; after the last row it has eight bytes more, whose content does not matter.
        starts: Offset of each row's first byte.
        ends: Offset after each row's last byte.
    """

    def __init__(self, data: bytearray, starts: Longs, ends: Longs) -> None:
        self.count = len(starts)
        self._data = data
        self._ends = ends
        self._bytes: npt.NDArray[np.uint8] = np.frombuffer(data, np.uint8)
        self._words: Words = np.ndarray((len(data) - _WORD + 1,), "<u8", buffer=data, strides=(1,))
        self._starts = starts

    @property
    def size(self) -> int:
        """Size in bytes."""
        return int(self._ends[-1]) if self.count else 0

    def next_column(self) -> pa.Array:
        """The next column's values as a binary array.

        Raises:
            ValueError: A row ends before it has this column.
        """
        return self.binary(self.next_values())

    def next_values(self) -> Values:
        """The slices of the next column's values.

        Raises:
            ValueError: A row ends before it has this column.
        """
        first = self._bytes[self._starts]
        starts = self._starts + 1
        valid: Bools | None = None
        if self.count and first.max() >= _NULL:
            lengths, valid = self._long_lengths(first, starts)
        else:
            lengths = first.astype(np.int64)
        ends = starts + lengths
        if (ends > self._ends).any():
            raise ValueError("a row is shorter than its columns")
        self._starts = ends
        return Values(starts, ends, valid)

    def _long_lengths(self, first: npt.NDArray[np.uint8], starts: Longs) -> tuple[Longs, Bools]:
        """Lengths where some are NULL, or take more than a byte; moves such values' starts. The mask says what is not NULL."""
        lengths, valid = first.astype(np.int64), first != _NULL
        lengths[~valid] = 0
        for mark, width in ((0xFC, 2), (0xFD, 3), (_WIDEST, _WORD)):
            wide = first == mark
            if wide.any():
                found = self._words[starts[wide]]
                if width < _WORD:
                    found &= np.uint64((1 << 8 * width) - 1)
                lengths[wide] = found.astype(np.int64)
                starts[wide] += width
        if (lengths < 0).any():
            raise ValueError("a row is shorter than its columns")
        return lengths, valid

    def binary(self, values: Values) -> pa.Array:
        """Values as a binary array."""
        return gathered(self._data, values.starts, values.ends, values.valid)

    def last_text(self, values: Values) -> str:
        """The last row's value, which is not NULL.

        Raises:
            ValueError: It is no UTF-8.
        """
        return bytes(self._data[int(values.starts[-1]) : int(values.ends[-1])]).decode()


@dataclass(frozen=True, slots=True)
class Values:
    """The slices of one column's values, one per row. `valid` is None if none is NULL; a NULL has no size."""

    starts: Longs
    ends: Longs
    valid: Bools | None

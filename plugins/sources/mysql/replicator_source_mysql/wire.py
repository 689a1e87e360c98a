"""Packets of the client protocol in bulk, and the columns of text result rows as Arrow arrays.

PyMySQL opens and authenticates a connection; what is read in quantity is read here, from its socket: a packet costs a
few lines of Python, a row's values none.
"""

from __future__ import annotations

import select
import ssl
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pymysql
from pymysql.constants import COMMAND

from replicator_source_mysql.connection import Connection

Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

ERROR: Final = 0xFF
EOF: Final = 0xFE
_EOF_SIZE_MAX: Final = 8
_RECEIVE_BYTES: Final = 1 << 18
_PACKET_MAX: Final = (1 << 24) - 1
_HEADER: Final = 4
_PADDING: Final = bytes(8)
_NULL: Final = 0xFB
_WIDEST: Final = 0xFE


class LostError(OSError):
    """The server ended the connection, or said nothing for too long."""


class PacketReader:
    """Reads whole packets from a connection's socket. Used from one thread.

    Args:
        connection: Nothing of its next answer has been read yet.
        sequence: The number that the next packet must bear.
        silence_s: How long the server may say nothing while it is waited for.
    """

    def __init__(self, connection: Connection, *, sequence: int, silence_s: float) -> None:
        self._socket = connection._sock  # noqa: SLF001 - PyMySQL has no name for it
        self._sequence = sequence
        self._silence_s = silence_s
        self._parts: list[bytes] = []
        self._size = 0
        self._needed = _HEADER
        self._large: list[bytes] = []
        self._heard_at = time.monotonic()
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def packets(self, wait_s: float) -> list[bytes]:
        """Contents of the packets that have arrived, waiting at most `wait_s` for the first bytes.

        Raises:
            LostError: The connection has ended, or nothing came for longer than the bound on silence.
            pymysql.InternalError: A packet is out of sequence.
        """
        if not self._await(wait_s):
            return []
        data = self._receive()
        return self._split(data) if data is not None else []

    def _await(self, wait_s: float) -> bool:
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        if self._poll.poll(max(0, round(wait_s * 1000))):
            return True
        if time.monotonic() - self._heard_at > self._silence_s:
            raise LostError(f"the server has said nothing for {self._silence_s:.0f} s")
        return False

    def _receive(self) -> bytes | None:
        """Everything that has arrived once at least one packet is whole."""
        chunk = self._socket.recv(_RECEIVE_BYTES)
        if not chunk:
            raise LostError("the server closed the connection")
        self._heard_at = time.monotonic()
        self._parts.append(chunk)
        self._size += len(chunk)
        if self._size < self._needed:
            return None
        data = b"".join(self._parts)
        self._parts, self._size = [], 0
        return data

    def _split(self, data: bytes) -> list[bytes]:
        packets: list[bytes] = []
        place, count, sequence = 0, len(data), self._sequence
        self._needed = _HEADER
        while place + _HEADER <= count:
            size = data[place] | data[place + 1] << 8 | data[place + 2] << 16
            end = place + _HEADER + size
            if end > count:
                self._needed = _HEADER + size
                break
            if data[place + 3] != sequence:
                self._check_farewell(data[place + _HEADER : end], data[place + 3])
            sequence = (sequence + 1) & 0xFF
            content = data[place + _HEADER : end]
            place = end
            if size == _PACKET_MAX or self._large:
                self._large.append(content)
                if size == _PACKET_MAX:
                    continue
                content, self._large = b"".join(self._large), []
            packets.append(content)
        self._sequence = sequence
        if place < count:
            self._parts, self._size = [data[place:]], count - place
        return packets

    def _check_farewell(self, content: bytes, found: int) -> None:
        """A server that shuts down, or kills the connection, says so with a number of its own."""
        if content[:1] == b"\xff":
            raise LostError("the server ended the connection: " + error_of(content)[1])
        raise pymysql.err.InternalError(2014, f"a packet has number {found}; {self._sequence} was expected")


def error_of(packet: bytes) -> tuple[int, str]:
    """Number and text of an ERR packet."""
    number = int.from_bytes(packet[1:3], "little")
    text = packet[3:].decode(errors="replace")
    return number, text[6:] if text.startswith("#") else text


def text_rows(connection: Connection, query: str, *, rows_max: int, bytes_max: int, silence_s: float) -> Iterator[Rows]:
    """Run a query and give its rows as they arrive, in blocks.

    Args:
        connection: Idle; it is idle again behind the last block, and only then.
        query: One statement.
        rows_max: Rows of a block, at least; a block takes whole reads of the socket.
        bytes_max: Bytes of a block, likewise.
        silence_s: How long the server may say nothing.

    Raises:
        pymysql.MySQLError, OSError: The statement failed, or the connection was lost.
    """
    connection._execute_command(COMMAND.COM_QUERY, query)  # noqa: SLF001 - the public call would also read the answer
    reader = PacketReader(connection, sequence=1, silence_s=silence_s)
    skipped = -1
    waiting: list[bytes] = []
    size = 0
    while True:
        for packet in reader.packets(1.0):
            if packet[0] == ERROR:
                raise pymysql.err.OperationalError(*error_of(packet))
            if skipped < 0:
                # The number of columns, then a packet for each of them and an end.
                skipped = (packet[0] if packet[0] < _NULL else int.from_bytes(packet[1:3], "little")) + 1
            elif skipped:
                skipped -= 1
            elif packet[0] == EOF and len(packet) <= _EOF_SIZE_MAX:
                if waiting:
                    yield Rows(waiting)
                return
            else:
                waiting.append(packet)
                size += len(packet)
        if len(waiting) >= rows_max or size >= bytes_max:
            yield Rows(waiting)
            waiting, size = [], 0


class Rows:
    """Text rows behind each other in one buffer, read column by column."""

    def __init__(self, packets: Sequence[bytes]) -> None:
        sizes = np.fromiter(map(len, packets), np.int64, len(packets))
        self.count = len(packets)
        self._ends = np.cumsum(sizes)
        self._data = b"".join([*packets, _PADDING])
        self._words: npt.NDArray[np.uint64] = np.ndarray((len(self._data) - 7,), "<u8", buffer=self._data, strides=(1,))
        self._places = self._ends - sizes

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self._data)

    def next_column(self) -> pa.Array:
        """The next column's values as a binary array.

        Raises:
            ValueError: A row ends before it has this column.
        """
        words = self._words[self._places]
        first = (words & np.uint64(0xFF)).astype(np.int64)
        lengths, starts = first.copy(), self._places + 1
        valid: Bools | None = None
        if (first >= _NULL).any():
            valid = first != _NULL
            lengths[~valid] = 0
            rest = words >> np.uint64(8)
            for mark, width in ((0xFC, 2), (0xFD, 3)):
                wide = first == mark
                lengths[wide] = (rest[wide] & np.uint64((1 << 8 * width) - 1)).astype(np.int64)
                starts[wide] += width
            wide = first == _WIDEST
            if wide.any():
                lengths[wide] = self._words[self._places[wide] + 1].astype(np.int64)
                starts[wide] += 8
        ends = starts + lengths
        if (lengths < 0).any() or (ends > self._ends).any():
            raise ValueError("a row is shorter than its columns")
        self._places = ends
        return self._values(starts, ends, valid)

    def _values(self, starts: Longs, ends: Longs, valid: Bools | None) -> pa.Array:
        """The whole buffer is seen as an array in which wanted values and gaps alternate; Arrow gathers the wanted ones."""
        offsets = np.empty(2 * self.count + 1, np.int32)
        offsets[0:-1:2] = starts
        offsets[1::2] = ends
        offsets[-1] = ends[-1] if self.count else 0
        buffers: list[Any] = [None, pa.py_buffer(offsets), pa.py_buffer(self._data)]
        alternating = pa.Array.from_buffers(pa.binary(), 2 * self.count, buffers)
        wanted = np.arange(0, 2 * self.count, 2, dtype=np.int32)
        return alternating.take(pa.array(wanted, mask=None if valid is None or valid.all() else ~valid))

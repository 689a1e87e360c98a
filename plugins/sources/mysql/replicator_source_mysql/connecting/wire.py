"""Packets of the client protocol in bulk.

PyMySQL opens and authenticates a connection; data in quantity is read here, from its socket, at the cost of a few
lines of Python per packet. (Rows of queries: `textrows`.)
"""

from __future__ import annotations

import select
import ssl
import struct
import time
from typing import Final

import pymysql

from replicator_source_mysql.connecting.connection import Connection

ERROR: Final = 0xFF
EOF: Final = 0xFE
_RECEIVE_BYTES: Final = 1 << 18
_PACKET_MAX: Final = (1 << 24) - 1
_JOINED_MAX: Final = (1 << 30) + (1 << 20)
"""Limit of a joined packet: no server sends a larger event, as max_allowed_packet ends at 1 GiB. The memory must not fill."""
_HEADER: Final = 4
_HEAD: Final = struct.Struct("<I")


class LostError(OSError):
    """The server ended the connection, or said nothing for too long."""


class PacketReader:
    """Reads whole packets from a connection's socket. Used from one thread.

    Args:
        connection: Nothing of its next answer has been read yet.
        sequence: The number that the next packet must have.
        silence_s: Seconds for which the server may send nothing while it is waited for.
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
        """Contents of the packets that have arrived, waiting at most `wait_s` for the first that is whole.

        A large one comes in thousands of pieces, none of which ends the wait.

        Raises:
            LostError: The connection has ended, or nothing came for longer than the bound on silence.
            pymysql.InternalError: A packet is out of sequence.
        """
        until = time.monotonic() + wait_s
        while self._await(wait_s):
            data = self._receive()
            if data is not None:
                return self._split(data)
            wait_s = until - time.monotonic()
            if wait_s <= 0:
                break
        return []

    def _await(self, wait_s: float) -> bool:
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        if self._poll.poll(max(0, round(wait_s * 1000))):
            return True
        if time.monotonic() - self._heard_at > self._silence_s:
            raise LostError(f"the server has sent nothing for {self._silence_s:.0f} s")
        return False

    def _receive(self) -> bytes | None:
        """Return all bytes that have arrived once at least one packet is whole."""
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
        add, head_at = packets.append, _HEAD.unpack_from
        offset, count, sequence = 0, len(data), self._sequence
        last = count - _HEADER
        self._needed = _HEADER
        while offset <= last:
            head = head_at(data, offset)[0]
            size = head & _PACKET_MAX
            end = offset + _HEADER + size
            if end > count:
                self._needed = _HEADER + size
                break
            if head >> 24 != sequence:
                self._check_farewell(data[offset + _HEADER : end], head >> 24, sequence)
            sequence = (sequence + 1) & 0xFF
            if size == _PACKET_MAX or self._large:
                self._add_large(data[offset + _HEADER : end], packets)
            else:
                add(data[offset + _HEADER : end])
            offset = end
        self._sequence = sequence
        if offset < count:
            self._parts, self._size = [data[offset:]], count - offset
        return packets

    def _add_large(self, content: bytes, packets: list[bytes]) -> None:
        """Join the pieces of a packet; a piece of the largest size is not the last."""
        self._large.append(content)
        if sum(map(len, self._large)) > _JOINED_MAX:
            raise endless(_JOINED_MAX)
        if len(content) < _PACKET_MAX:
            packets.append(b"".join(self._large))
            self._large = []

    @staticmethod
    def _check_farewell(content: bytes, found: int, expected: int) -> None:
        """Raise if the server announced its end: one that shuts down, or kills the connection, does so with a number of its own."""
        if content[:1] == b"\xff":
            raise farewell(content)
        raise misnumbered(found, expected)


def farewell(packet: bytes) -> LostError:
    """The error for an ERR packet with which the server ended the connection."""
    number, text = error_of(packet)
    return LostError(f"the server ended the connection: ({number}) {text}")


def endless(bytes_max: int) -> LostError:
    """The error for a packet that is larger than any that a server sends."""
    return LostError(f"the server sent a packet of more than {bytes_max:,} bytes")


def misnumbered(found: int, expected: int) -> pymysql.err.InternalError:
    """The error for a packet that has another number than the one after the last."""
    return pymysql.err.InternalError(2014, f"a packet has number {found}; {expected} was expected")


def error_of(packet: bytes) -> tuple[int, str]:
    """Number and text of an ERR packet."""
    number = int.from_bytes(packet[1:3], "little")
    text = packet[3:].decode(errors="replace")
    return number, text[6:] if text.startswith("#") else text

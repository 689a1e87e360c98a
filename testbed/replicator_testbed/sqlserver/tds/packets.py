"""Packets of TDS: the eight bytes before each part of a message."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final

HEADER_BYTES: Final = 8
PACKET_BYTES: Final = 4096
MESSAGE_BYTES_MAX: Final = 64 << 20
"""A larger request is refused: nothing that a test sends is."""

_HEADER: Final = struct.Struct(">BBHHBB")
_END: Final = 1
_PROCESS: Final = 51


class PacketType(IntEnum):
    """What a message is."""

    SQL_BATCH = 0x01
    RPC = 0x03
    REPLY = 0x04
    ATTENTION = 0x06
    BULK_LOAD = 0x07
    TRANSACTION_MANAGER = 0x0E
    LOGIN7 = 0x10
    SSPI = 0x11
    PRELOGIN = 0x12


class ProtocolError(Exception):
    """Bytes that are no TDS, or a part of TDS that the model does not speak."""


def split(content: bytes, kind: PacketType, packet_bytes: int = PACKET_BYTES) -> Iterator[bytes]:
    """Cut a message into packets."""
    step = packet_bytes - HEADER_BYTES
    for number, start in enumerate(range(0, max(len(content), 1), step), 1):
        part = content[start : start + step]
        status = _END if start + step >= len(content) else 0
        yield _HEADER.pack(kind, status, len(part) + HEADER_BYTES, _PROCESS, number % 256, 0) + part


class Assembler:
    """Puts packets together again: bytes go in as they arrive, messages come out."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._message = bytearray()

    def feed(self, received: bytes) -> Iterator[tuple[PacketType, bytes]]:
        """Take bytes; yield each message that they complete.

        Raises:
            ProtocolError: They are no packets, or the message is too large.
        """
        self._buffer += received
        while len(self._buffer) >= HEADER_BYTES:
            kind, status, length, *_ = _HEADER.unpack_from(self._buffer)
            if length < HEADER_BYTES:
                raise ProtocolError(f"a packet claims to have {length} bytes")
            if len(self._buffer) < length:
                return
            self._message += self._buffer[HEADER_BYTES:length]
            del self._buffer[:length]
            if len(self._message) > MESSAGE_BYTES_MAX:
                raise ProtocolError(f"a message has more than {MESSAGE_BYTES_MAX} bytes")
            if status & _END:
                content = bytes(self._message)
                self._message.clear()
                try:
                    known = PacketType(kind)
                except ValueError:
                    raise ProtocolError(f"no packet has type {kind:#x}") from None
                yield known, content


class Reader:
    """Reads a message's fields in turn."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.offset = 0

    @property
    def is_at_end(self) -> bool:
        """Whether everything was read."""
        return self.offset >= len(self._content)

    def take(self, size: int) -> bytes:
        """So many bytes.

        Raises:
            ProtocolError: There are fewer.
        """
        end = self.offset + size
        if size < 0 or end > len(self._content):
            raise ProtocolError(f"a field of {size} bytes runs over the end of its message")
        part = self._content[self.offset : end]
        self.offset = end
        return part

    def number(self, form: str) -> int:
        """A little-endian integer: `struct`'s letter says its size and sign."""
        (value,) = struct.unpack("<" + form, self.take(struct.calcsize(form)))
        return int(value)

    def text(self, characters: int) -> str:
        """A text of so many UTF-16 units."""
        return wide(self.take(2 * characters))


def wide(content: bytes) -> str:
    """UTF-16 as TDS sends it; a half of a surrogate pair stays what it is."""
    return content.decode("utf-16-le", "surrogatepass")


def to_wide(text: str) -> bytes:
    """A text as TDS sends it."""
    return text.encode("utf-16-le", "surrogatepass")

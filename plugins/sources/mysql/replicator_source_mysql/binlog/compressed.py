"""Events within events: MySQL's TRANSACTION_PAYLOAD and MariaDB's compressed events, with a cap on what they may become."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from replicator_source_mysql.binlog.events import (
    MARIADB_COMPRESSED,
    MARIADB_QUERY_COMPRESSED,
    QUERY,
    TRANSACTION_PAYLOAD,
    RowsEvent,
    corrupt,
    too_large,
)
from replicator_source_mysql.binlog.reading import EventReader

_HEADER: Final = struct.Struct("<IBIIIH")

# Fields in front of a payload.
_END: Final = 0
_PAYLOAD_SIZE: Final = 1
_COMPRESSION: Final = 2
_UNCOMPRESSED_SIZE: Final = 3
_ZSTD: Final = 0
_NONE: Final = 255

_WHAT: Final = "A TRANSACTION_PAYLOAD event"

# Of an event that is too large: more than an empty rows event has, and enough to tell its table.
_BEGINNING: Final = 32
_SKIPPED_AT_ONCE: Final = 1 << 20

# A compressed part of MariaDB's events: 1000 0nnn (method 0, zlib; n bytes of length), the length, big-endian, zlib's stream.
_METHOD_BITS: Final = 0xF8
_MARIADB_ZLIB: Final = 0x80
_LENGTH_BITS: Final = 0x07
_LENGTH_BYTES_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class InnerEvent:
    """An event out of a TRANSACTION_PAYLOAD: header fields and body (inside there are no checksums).

    `timestamp` is in seconds. The position in the header means nothing: positions are the outer event's. `cut` is the size of the
    body in bytes where it is too large to be held, and `body` is its beginning then; 0 where `body` is whole.
    """

    timestamp: int
    type_code: int
    server_id: int
    flags: int
    body: bytes
    cut: int = 0


class _Source(Protocol):
    def read(self, size: int, /) -> bytes: ...


def transaction_payload(body: bytes | memoryview, *, size_max: int) -> Iterator[InnerEvent]:
    """The events of a TRANSACTION_PAYLOAD event's body, in order, uncompressed piece by piece: one is held at a time.

    Args:
        body: The event's body.
        size_max: Bytes that the body of one event in it may have; of a larger one only the beginning is held.

    Raises:
        CorruptStreamError: `corrupt_binlog_event`, also if it becomes larger than it says itself.
    """
    compression, size, payload = _payload(EventReader(body, _WHAT))
    left = size
    if compression == _NONE:
        source: _Source = pa.BufferReader(payload)
    else:
        source = pa.CompressedInputStream(pa.BufferReader(payload), "zstd")
    while left:
        raw = _exactly(source, min(_HEADER.size, left))
        if len(raw) < _HEADER.size:
            raise corrupt(f"{_WHAT} ends within an event's header.")
        timestamp, type_code, server_id, event_size, _, flags = _HEADER.unpack(raw)
        if not _HEADER.size <= event_size <= left or type_code == TRANSACTION_PAYLOAD:
            raise corrupt(f"{_WHAT} holds an event of type {type_code} and {event_size} bytes, where {left} are left.")
        body_size = event_size - _HEADER.size
        if body_size <= size_max:
            yield InnerEvent(timestamp, type_code, server_id, flags, _exactly(source, body_size))
        else:
            beginning = _exactly(source, _BEGINNING)
            _skip(source, body_size - _BEGINNING)
            yield InnerEvent(timestamp, type_code, server_id, flags, beginning, cut=body_size)
        left -= event_size
    if _read(source, 1):
        raise corrupt(f"{_WHAT} is larger than the {size} bytes that it declares.")


def _payload(reader: EventReader) -> tuple[int, int, bytes]:
    """Kind of compression, size when uncompressed, and the payload."""
    fields: dict[int, int] = {}
    while (kind := reader.packed()) != _END:
        content = EventReader(reader.string(), _WHAT)
        if kind in {_PAYLOAD_SIZE, _COMPRESSION, _UNCOMPRESSED_SIZE}:
            fields[kind] = content.packed()
    payload = reader.rest()
    compression = fields.get(_COMPRESSION)
    if compression not in {_ZSTD, _NONE} or compression is None:
        raise corrupt(f"{_WHAT} is compressed by a method ({compression}) that is unknown.")
    if fields.get(_PAYLOAD_SIZE, len(payload)) != len(payload):
        raise corrupt(f"{_WHAT} does not have its declared size.")
    size = fields.get(_UNCOMPRESSED_SIZE, len(payload) if compression == _NONE else None)
    if size is None or (compression == _NONE and size != len(payload)):
        raise corrupt(f"{_WHAT} declares a wrong size.")
    return compression, size, payload


def _exactly(source: _Source, size: int) -> bytes:
    raw = _read(source, size)
    if len(raw) != size:
        raise corrupt(f"{_WHAT} ends before its events do.")
    return raw


def _skip(source: _Source, size: int) -> None:
    while size:
        size -= len(_exactly(source, min(_SKIPPED_AT_ONCE, size)))


def _read(source: _Source, size: int) -> bytes:
    parts = []
    while size and (part := _piece(source, size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _piece(source: _Source, size: int) -> bytes:
    try:
        return source.read(size)
    except OSError as error:
        raise corrupt(f"{_WHAT} cannot be uncompressed.") from error


def uncompressed_body(type_code: int, body: bytes | memoryview, *, size_max: int) -> tuple[int, bytes]:
    """The plain type code and body of one of MariaDB's compressed events (165 to 171).

    A QUERY_COMPRESSED becomes a QUERY (2), a rows event what `MARIADB_COMPRESSED` says.

    Raises:
        CorruptStreamError: `corrupt_binlog_event`.
        FatalError: `transaction_too_large`.
    """
    reader = EventReader(body, "A compressed event")
    if type_code == MARIADB_QUERY_COMPRESSED:
        plain_type = QUERY
        _skip_query_head(reader)
    else:
        plain_type = MARIADB_COMPRESSED[type_code]
        _skip_rows_head(reader, MARIADB_COMPRESSED[type_code])
    head = bytes(body[: reader.offset])
    return plain_type, head + _inflated(reader, size_max)


def _skip_query_head(reader: EventReader) -> None:
    reader.take(8)
    database_size = reader.integer(1)
    reader.take(2)
    variables_size = reader.integer(2)
    reader.take(variables_size + database_size + 1)


def _skip_rows_head(reader: EventReader, plain_type: RowsEvent) -> None:
    reader.take(8)
    if plain_type >= RowsEvent.WRITE_V2:
        extra = reader.integer(2)
        if extra < 2:  # noqa: PLR2004  (the length counts itself)
            raise corrupt("A compressed event's extra data is shorter than its length.")
        reader.take(extra - 2)
    bitmap_size = (reader.packed() + 7) // 8
    reader.take(bitmap_size * (2 if plain_type in {RowsEvent.UPDATE_V1, RowsEvent.UPDATE_V2} else 1))


def _inflated(reader: EventReader, size_max: int) -> bytes:
    first = reader.integer(1)
    length_size = first & _LENGTH_BITS
    if first & _METHOD_BITS != _MARIADB_ZLIB or not 0 < length_size <= _LENGTH_BYTES_MAX:
        raise corrupt("An event is compressed by a method that is unknown.")
    size = int.from_bytes(reader.take(length_size), "big")
    if size > size_max:
        raise too_large("A compressed event", size, size_max)
    engine = zlib.decompressobj()
    try:
        plain = engine.decompress(reader.rest(), size + 1)
    except zlib.error:
        raise corrupt("A compressed event cannot be uncompressed.") from None
    if len(plain) != size or not engine.eof:
        raise corrupt("A compressed event does not have its declared size.")
    return plain

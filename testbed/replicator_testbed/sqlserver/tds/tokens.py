"""What a server answers: the tokens of a reply [DOC: MS-TDS 2.2.7]."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any, Final

from replicator_testbed.sqlserver.sqltypes import INT, OLD_LARGE, SqlType
from replicator_testbed.sqlserver.tds.packets import to_wide
from replicator_testbed.sqlserver.tds.values import COLLATION_BYTES, encoder, type_info

SERVER_NAME: Final = "MODEL"
PROGRAM_NAME: Final = "Microsoft SQL Server"
"""What drivers look for."""
TDS_VERSION: Final = 0x74000004
PROGRAM_VERSION: Final = bytes([16, 0, 0x10, 0])
"""SQL Server 2022, as drivers read it."""

_RETURN_STATUS, _COLMETADATA, _ERROR, _INFO, _RETURN_VALUE = 0x79, 0x81, 0xAA, 0xAB, 0xAC
_LOGINACK, _FEATURE_ACK, _ROW, _NBCROW, _ENVCHANGE = 0xAD, 0xAE, 0xD1, 0xD2, 0xE3
_NULLABLE, _UPDATABLE_UNKNOWN = 0x0001, 0x0008
_COLUMN_NAME_MAX: Final = 255


class Done(IntEnum):
    """The end of a statement, of a procedure, or of a statement in a procedure."""

    STATEMENT = 0xFD
    PROCEDURE = 0xFE
    IN_PROCEDURE = 0xFF


class DoneStatus(IntFlag):
    """What a DONE token says."""

    FINAL = 0x00
    MORE = 0x01
    ERROR = 0x02
    IN_TRANSACTION = 0x04
    COUNT = 0x10
    ATTENTION = 0x20


class Command(IntEnum):
    """What kind of statement ended: drivers look at it before they believe a count."""

    NONE = 0x00
    SELECT = 0xC1
    INSERT = 0xC3
    DELETE = 0xC4
    UPDATE = 0xC5
    EXECUTE = 0xE0


class Change(IntEnum):
    """What an ENVCHANGE says is different now."""

    DATABASE = 1
    PACKET_SIZE = 4
    COLLATION = 7
    BEGUN = 8
    COMMITTED = 9
    ROLLED_BACK = 10


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a result."""

    name: str
    type: SqlType
    is_nullable: bool = True


def error(number: int, text: str, *, state: int = 1, severity: int = 16, is_info: bool = False) -> bytes:
    """An ERROR, or an INFO."""
    body = struct.pack("<IBB", number, state, severity) + _long(text) + _short(SERVER_NAME) + _short("")
    return _sized(_INFO if is_info else _ERROR, body + struct.pack("<I", 1))


def done(
    kind: Done = Done.STATEMENT,
    status: DoneStatus = DoneStatus.FINAL,
    *,
    command: Command = Command.NONE,
    count: int | None = None,
) -> bytes:
    """A DONE, with a count where there is one."""
    if count is not None:
        status |= DoneStatus.COUNT
    return struct.pack("<BHHQ", kind, status, command, count or 0)


def columns(described: Sequence[Column]) -> bytes:
    """COLMETADATA."""
    parts = [struct.pack("<BH", _COLMETADATA, len(described))]
    for column in described:
        flags = _UPDATABLE_UNKNOWN | (_NULLABLE if column.is_nullable else 0)
        # The old large types also name their table; the model does not know it here.
        table = struct.pack("<BH", 1, 0) if column.type.name in OLD_LARGE else b""
        parts.append(struct.pack("<IH", 0, flags) + type_info(column.type) + table)
        parts.append(_short(column.name[:_COLUMN_NAME_MAX]))
    return b"".join(parts)


def row_encoder(described: Sequence[Column]) -> Callable[[Sequence[Any]], bytes]:
    """What makes ROW, or NBCROW where a bitmap of its NULLs is shorter."""
    encoders = [encoder(column.type) for column in described]
    bitmap_bytes = (len(encoders) + 7) // 8

    def encode(row: Sequence[Any]) -> bytes:
        nulls = [value is None for value in row]
        if sum(nulls) <= bitmap_bytes:
            return bytes([_ROW]) + b"".join(
                [encode_one(value) for encode_one, value in zip(encoders, row, strict=True)]
            )
        bits = sum(1 << index for index, is_null in enumerate(nulls) if is_null)
        present = [one(value) for one, value in zip(encoders, row, strict=True) if value is not None]
        return bytes([_NBCROW]) + bits.to_bytes(bitmap_bytes, "little") + b"".join(present)

    return encode


def rows(described: Sequence[Column], values: Iterable[Sequence[Any]]) -> bytes:
    """Every row."""
    encode = row_encoder(described)
    return b"".join([encode(row) for row in values])


def return_status(status: int = 0) -> bytes:
    """RETURNSTATUS of a procedure."""
    return struct.pack("<Bi", _RETURN_STATUS, status)


def return_value(value: int, ordinal: int = 0, name: str = "") -> bytes:
    """RETURNVALUE: an output parameter that is an int."""
    head = struct.pack("<BH", _RETURN_VALUE, ordinal) + _short(name) + b"\x01" + struct.pack("<IH", 0, 0)
    return head + type_info(INT) + encoder(INT)(value)


def login_acknowledged() -> bytes:
    """LOGINACK."""
    body = b"\x01" + struct.pack(">I", TDS_VERSION) + _short(PROGRAM_NAME) + PROGRAM_VERSION
    return _sized(_LOGINACK, body)


def no_features() -> bytes:
    """FEATUREEXTACK that acknowledges none of the extensions that were offered."""
    return bytes([_FEATURE_ACK, 0xFF])


def database_changed(new: str, old: str) -> bytes:
    """ENVCHANGE of the database."""
    return _env(Change.DATABASE, _short(new), _short(old))


def collation_set() -> bytes:
    """ENVCHANGE of the collation."""
    return _env(Change.COLLATION, bytes([len(COLLATION_BYTES)]) + COLLATION_BYTES)


def packet_size_set(size: int) -> bytes:
    """ENVCHANGE of the packets' size."""
    return _env(Change.PACKET_SIZE, _short(str(size)), _short(str(size)))


def transaction_begun(descriptor: int) -> bytes:
    """ENVCHANGE: the driver names the transaction by this number from now on."""
    return _env(Change.BEGUN, b"\x08" + struct.pack("<Q", descriptor))


def transaction_ended(descriptor: int, *, is_committed: bool) -> bytes:
    """ENVCHANGE: the transaction is over."""
    kind = Change.COMMITTED if is_committed else Change.ROLLED_BACK
    return _env(kind, b"\0", b"\x08" + struct.pack("<Q", descriptor))


def _env(kind: Change, new: bytes, old: bytes = b"\0") -> bytes:
    return _sized(_ENVCHANGE, bytes([kind]) + new + old)


def _sized(token: int, body: bytes) -> bytes:
    return struct.pack("<BH", token, len(body)) + body


def _short(text: str) -> bytes:
    content = to_wide(text)
    return bytes([len(content) // 2]) + content


def _long(text: str) -> bytes:
    content = to_wide(text)[: 2 * 4000]
    return struct.pack("<H", len(content) // 2) + content

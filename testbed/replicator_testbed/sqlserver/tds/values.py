"""Columns and values on the wire: TYPE_INFO of each type, and the bytes of its values, both ways [DOC: MS-TDS 2.2.5.4 to 2.2.5.6]."""

from __future__ import annotations

import decimal
import struct
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from replicator_testbed.sqlserver.sqltypes import (
    DOCUMENTS,
    MAX,
    NARROW_TEXTS,
    OLD_LARGE,
    SqlType,
    TypeName,
    decimal_size,
)
from replicator_testbed.sqlserver.tds import temporal
from replicator_testbed.sqlserver.tds.packets import ProtocolError, Reader, to_wide, wide

Encode = Callable[[Any], bytes]

COLLATION_BYTES: Final = bytes.fromhex("0904d00034")
"""SQL_Latin1_General_CP1_CI_AS: code page 1252. The model sends no other, and keeps texts of other collations to what 1252 has."""
CODE_PAGE: Final = "cp1252"
CHUNK_BYTES: Final = 4000
NULL_16: Final = b"\xff\xff"
NULL_PLP: Final = b"\xff" * 8
UNKNOWN_LENGTH: Final = 2**64 - 2
NULL_LENGTH: Final = 2**64 - 1
OLD_LARGE_BYTES_MAX: Final = 0x7FFFFFFF
_TEXT_POINTER: Final = bytes([16]) + bytes(16) + bytes(8)

# Tokens of types, by the bytes of their lengths.
INTN, BITN, DECIMALN, NUMERICN, FLTN, MONEYN, DATETIMN, GUID = 0x26, 0x68, 0x6A, 0x6C, 0x6D, 0x6E, 0x6F, 0x24
DATEN, TIMEN, DATETIME2N, DATETIMEOFFSETN = 0x28, 0x29, 0x2A, 0x2B
BIGVARBINARY, BIGVARCHAR, BIGBINARY, BIGCHAR, NVARCHAR, NCHAR = 0xA5, 0xA7, 0xAD, 0xAF, 0xE7, 0xEF
IMAGE, TEXT, NTEXT, XML, VARIANT, UDT, TVP = 0x22, 0x23, 0x63, 0xF1, 0x62, 0xF0, 0xF3

_INTEGERS: Final[Mapping[TypeName, int]] = {
    TypeName.BIGINT: 8,
    TypeName.INT: 4,
    TypeName.SMALLINT: 2,
    TypeName.TINYINT: 1,
}
_FIXED_INFO: Final[Mapping[TypeName, bytes]] = {
    **{name: bytes([INTN, size]) for name, size in _INTEGERS.items()},
    TypeName.BIT: bytes([BITN, 1]),
    TypeName.FLOAT: bytes([FLTN, 8]),
    TypeName.REAL: bytes([FLTN, 4]),
    TypeName.MONEY: bytes([MONEYN, 8]),
    TypeName.SMALLMONEY: bytes([MONEYN, 4]),
    TypeName.DATETIME: bytes([DATETIMN, 8]),
    TypeName.SMALLDATETIME: bytes([DATETIMN, 4]),
    TypeName.UNIQUEIDENTIFIER: bytes([GUID, 16]),
    TypeName.DATE: bytes([DATEN]),
    TypeName.XML: bytes([XML, 0]),
    # A client is shown a text [DOC: json data type, limitations]; here nvarchar(max), because the model sends no texts in UTF-8.
    TypeName.JSON: struct.pack("<BH", NVARCHAR, 0xFFFF) + COLLATION_BYTES,
    TypeName.TIMESTAMP: struct.pack("<BH", BIGBINARY, 8),
}
_TIMES: Final = {
    TypeName.TIME: TIMEN,
    TypeName.DATETIME2: DATETIME2N,
    TypeName.DATETIMEOFFSET: DATETIMEOFFSETN,
}
_STRINGS: Final = {
    TypeName.CHAR: BIGCHAR,
    TypeName.VARCHAR: BIGVARCHAR,
    TypeName.NCHAR: NCHAR,
    TypeName.NVARCHAR: NVARCHAR,
    TypeName.SYSNAME: NVARCHAR,
    TypeName.BINARY: BIGBINARY,
    TypeName.VARBINARY: BIGVARBINARY,
}
_OLD_LARGE: Final = {TypeName.TEXT: TEXT, TypeName.NTEXT: NTEXT, TypeName.IMAGE: IMAGE}
_COLLATED: Final = frozenset({BIGVARCHAR, BIGCHAR, NVARCHAR, NCHAR, TEXT, NTEXT})
_EXACT: Final = decimal.Context(prec=60, traps=[decimal.Inexact, decimal.InvalidOperation])


def type_info(kind: SqlType) -> bytes:
    """TYPE_INFO, as COLMETADATA and RETURNVALUE have it."""
    name = kind.name
    if name in _FIXED_INFO:
        return _FIXED_INFO[name]
    if name in {TypeName.DECIMAL, TypeName.NUMERIC}:
        token = DECIMALN if name is TypeName.DECIMAL else NUMERICN
        return bytes([token, decimal_size(kind.precision) + 1, kind.precision, kind.scale])
    if name in _TIMES:
        return bytes([_TIMES[name], kind.scale])
    if name in _OLD_LARGE:
        collation = b"" if name is TypeName.IMAGE else COLLATION_BYTES
        return struct.pack("<BI", _OLD_LARGE[name], OLD_LARGE_BYTES_MAX) + collation
    token = _STRINGS[name]
    size = 0xFFFF if kind.length == MAX else kind.max_length
    return struct.pack("<BH", token, size) + (COLLATION_BYTES if token in _COLLATED else b"")


def encoder(kind: SqlType) -> Encode:
    """What makes the bytes of one column's values; NULL is None."""
    name = kind.name
    if name in _OLD_LARGE:
        to_bytes = _to_bytes(kind)
        return lambda value: b"\0" if value is None else _TEXT_POINTER + _counted(to_bytes(value), "<I")
    if name in DOCUMENTS or kind.length == MAX:
        to_bytes = _to_bytes(kind)
        return lambda value: NULL_PLP if value is None else plp(to_bytes(value))
    if name in _STRINGS or name is TypeName.TIMESTAMP:
        to_bytes = _to_bytes(kind)
        return lambda value: NULL_16 if value is None else _counted(to_bytes(value), "<H")
    to_bytes = _to_bytes(kind)
    return lambda value: b"\0" if value is None else _counted(to_bytes(value), "<B")


def plp(content: bytes) -> bytes:
    """A (max) value: its length, its parts, and the end."""
    starts = range(0, len(content), CHUNK_BYTES)
    parts = [_counted(content[start : start + CHUNK_BYTES], "<I") for start in starts]
    return b"".join((struct.pack("<Q", len(content)), *parts, bytes(4)))


def read_parameter(reader: Reader) -> Any:
    """The value of an RPC's parameter, whose TYPE_INFO stands before it.

    Raises:
        ProtocolError: The model does not read parameters of that type.
    """
    token = reader.number("B")
    if token in {INTN, BITN, DECIMALN, NUMERICN, FLTN, MONEYN, DATETIMN, GUID}:
        reader.take(1)
        scale = reader.take(2)[1] if token in {DECIMALN, NUMERICN} else 0
        return _from_short(token, reader.take(reader.number("B")), scale)
    if token in {DATEN, TIMEN, DATETIME2N, DATETIMEOFFSETN}:
        scale = 0 if token == DATEN else reader.number("B")
        return _from_time(token, reader.take(reader.number("B")), scale)
    if token in {BIGVARBINARY, BIGVARCHAR, BIGBINARY, BIGCHAR, NVARCHAR, NCHAR}:
        return _read_string(reader, token)
    if token in {TEXT, NTEXT, IMAGE}:
        reader.take(4 + (5 if token in _COLLATED else 0))
        size = reader.number("i")
        return None if size < 0 else _decoded(token, reader.take(size))
    if token == XML:
        if reader.number("B"):
            raise ProtocolError("the model reads no xml with a schema")
        content = _read_plp(reader)
        return None if content is None else wide(content)
    if token == VARIANT:
        raise ProtocolError("the model has no sql_variant")
    if token in _FIXED_PARAMETERS:
        return _FIXED_PARAMETERS[token](reader)
    raise ProtocolError(f"the model reads no parameter of type {token:#x}")


_FIXED_PARAMETERS: Final[Mapping[int, Callable[[Reader], Any]]] = {
    0x1F: lambda _: None,
    0x30: lambda reader: reader.number("B"),
    0x32: lambda reader: bool(reader.number("B")),
    0x34: lambda reader: reader.number("h"),
    0x38: lambda reader: reader.number("i"),
    0x7F: lambda reader: reader.number("q"),
    0x3B: lambda reader: struct.unpack("<f", reader.take(4))[0],
    0x3E: lambda reader: struct.unpack("<d", reader.take(8))[0],
    0x3A: lambda reader: temporal.decode_datetime(reader.take(4)),
    0x3D: lambda reader: temporal.decode_datetime(reader.take(8)),
    0x3C: lambda reader: _money(reader.take(8)),
    0x7A: lambda reader: _money(reader.take(4)),
}


def _counted(content: bytes, form: str) -> bytes:
    return struct.pack(form, len(content)) + content


def _to_bytes(kind: SqlType) -> Encode:
    """What makes the bytes of a value that is not NULL, without their length."""
    name = kind.name
    if name in NARROW_TEXTS:
        return (lambda v: _narrow(v).ljust(kind.length, b" ")) if name is TypeName.CHAR else _narrow
    if name is TypeName.NCHAR:
        return lambda value: _padded(value, kind.length)
    if name in {TypeName.NVARCHAR, TypeName.NTEXT, TypeName.SYSNAME}:
        return to_wide
    if name is TypeName.BINARY:
        return lambda value: bytes(value).ljust(kind.length, b"\0")
    if name in _TIMES:
        scale = kind.scale
        return {
            TypeName.TIME: lambda v: temporal.encode_time(v, scale),
            TypeName.DATETIME2: lambda v: temporal.encode_time(v, scale) + temporal.encode_date(v),
            TypeName.DATETIMEOFFSET: lambda v: (
                temporal.encode_time(v, scale) + temporal.encode_date(v) + struct.pack("<h", v.offset)
            ),
        }[name]
    if name in {TypeName.DECIMAL, TypeName.NUMERIC}:
        size = decimal_size(kind.precision)
        return lambda value: _decimal(value, kind.scale, size)
    if name in _INTEGERS:
        size, signed = _INTEGERS[name], name is not TypeName.TINYINT
        return lambda value: int(value).to_bytes(size, "little", signed=signed)
    return _SIMPLE[name]


_SIMPLE: Final[Mapping[TypeName, Encode]] = {
    TypeName.BIT: lambda value: bytes([bool(value)]),
    TypeName.FLOAT: lambda value: struct.pack("<d", value),
    TypeName.REAL: lambda value: struct.pack("<f", value),
    TypeName.MONEY: lambda value: struct.pack("<iI", *divmod(_scaled(value, 4), 1 << 32)),
    TypeName.SMALLMONEY: lambda value: struct.pack("<i", _scaled(value, 4)),
    TypeName.UNIQUEIDENTIFIER: lambda value: value.bytes_le,
    TypeName.DATE: temporal.encode_date,
    TypeName.DATETIME: temporal.encode_datetime,
    TypeName.SMALLDATETIME: temporal.encode_smalldatetime,
    TypeName.XML: to_wide,
    TypeName.JSON: to_wide,
    TypeName.VARBINARY: bytes,
    TypeName.IMAGE: bytes,
    TypeName.TIMESTAMP: bytes,
}
assert frozenset(_OLD_LARGE) == OLD_LARGE


def _narrow(text: str) -> bytes:
    """A text in the code page, a question mark for what that has not [DOC: collation and Unicode support]."""
    return text.encode(CODE_PAGE, "replace")


def _padded(text: str, length: int) -> bytes:
    content = to_wide(text)
    return content + to_wide(" ") * (length - len(content) // 2)


def _scaled(value: Decimal | int, scale: int) -> int:
    return int(_EXACT.scaleb(Decimal(value), scale).to_integral_exact(context=_EXACT))


def _decimal(value: Decimal | int, scale: int, size: int) -> bytes:
    unscaled = _scaled(value, scale)
    return bytes([unscaled >= 0]) + abs(unscaled).to_bytes(size, "little")


def _money(content: bytes) -> Decimal:
    if len(content) == 4:
        return Decimal(int.from_bytes(content, "little", signed=True)).scaleb(-4, _EXACT)
    high, low = struct.unpack("<iI", content)
    return Decimal((high << 32) + low).scaleb(-4, _EXACT)


def _from_short(token: int, content: bytes, scale: int) -> Any:
    if not content:
        return None
    if token == INTN:
        return int.from_bytes(content, "little", signed=len(content) > 1)
    if token == BITN:
        return bool(content[0])
    if token == FLTN:
        (number,) = struct.unpack("<d" if len(content) == 8 else "<f", content)
        return number
    if token in {DECIMALN, NUMERICN}:
        unscaled = int.from_bytes(content[1:], "little")
        return Decimal(unscaled if content[0] else -unscaled).scaleb(-scale, _EXACT)
    if token == MONEYN:
        return _money(content)
    return uuid.UUID(bytes_le=content) if token == GUID else temporal.decode_datetime(content)


def _from_time(token: int, content: bytes, scale: int) -> temporal.Moment | None:
    if not content:
        return None
    if token == DATEN:
        return temporal.decode_date(content)
    if token == TIMEN:
        return temporal.decode_time(content, scale)
    decode = temporal.decode_datetime2 if token == DATETIME2N else temporal.decode_datetimeoffset
    return decode(content, scale)


def _read_string(reader: Reader, token: int) -> Any:
    size_max = reader.number("H")
    if token in _COLLATED:
        reader.take(5)
    if size_max == 0xFFFF:
        content = _read_plp(reader)
    else:
        size = reader.number("H")
        content = None if size == 0xFFFF else reader.take(size)
    return None if content is None else _decoded(token, content)


def _read_plp(reader: Reader) -> bytes | None:
    total = reader.number("Q")
    if total == NULL_LENGTH:
        return None
    parts: list[bytes] = []
    while size := reader.number("I"):
        parts.append(reader.take(size))
    content = b"".join(parts)
    if total not in {UNKNOWN_LENGTH, len(content)}:
        raise ProtocolError(f"a value of {total} bytes came with {len(content)}")
    return content


def _decoded(token: int, content: bytes) -> str | bytes:
    if token in {NVARCHAR, NCHAR, NTEXT}:
        return wide(content)
    return content.decode(CODE_PAGE, "replace") if token in {BIGVARCHAR, BIGCHAR, TEXT} else content

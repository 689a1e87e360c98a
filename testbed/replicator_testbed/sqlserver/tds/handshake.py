"""How a connection begins: PRELOGIN, where encryption is agreed on, and LOGIN7, with user, password and database."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from replicator_testbed.sqlserver.tds.packets import ProtocolError, wide
from replicator_testbed.sqlserver.tds.tokens import PROGRAM_VERSION

_VERSION, _ENCRYPTION, _INSTANCE, _THREAD, _MARS, _END = 0, 1, 2, 3, 4, 0xFF
_OPTIONS_MAX: Final = 32
_FIELDS: Final = struct.Struct("<HH")
_HOST, _USER, _PASSWORD, _APPLICATION, _SERVER, _EXTENSION, _LIBRARY, _LANGUAGE, _DATABASE = range(36, 72, 4)
_OPTION_FLAGS_3: Final = 27
_HAS_EXTENSION: Final = 0x10
_FIXED_BYTES: Final = 94


class Encryption(IntEnum):
    """What each side says of encryption."""

    OFF = 0
    ON = 1
    NOT_SUPPORTED = 2
    REQUIRED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """What LOGIN7 says. `server`: what the client calls the server, by which Azure's gateway knows which one is meant."""

    server: str
    user: str
    password: str
    database: str
    application: str
    tds_version: int
    has_features: bool


def wanted_encryption(prelogin: bytes) -> Encryption:
    """What the client says of encryption.

    Raises:
        ProtocolError: It is no PRELOGIN.
    """
    offset = 0
    for _ in range(_OPTIONS_MAX):
        if offset >= len(prelogin):
            break
        if prelogin[offset] == _END:
            return Encryption.NOT_SUPPORTED
        if offset + 5 > len(prelogin):
            break
        start, length = struct.unpack_from(">HH", prelogin, offset + 1)
        if prelogin[offset] == _ENCRYPTION:
            if length != 1 or start >= len(prelogin):
                break
            try:
                return Encryption(prelogin[start])
            except ValueError:
                break
        offset += 5
    raise ProtocolError("PRELOGIN cannot be read")


def prelogin_reply(encryption: Encryption) -> bytes:
    """The server's PRELOGIN."""
    options = (
        (_VERSION, PROGRAM_VERSION + bytes(2)),
        (_ENCRYPTION, bytes([encryption])),
        (_INSTANCE, b"\0"),
        (_THREAD, b""),
        (_MARS, b"\0"),
    )
    offset = 5 * len(options) + 1
    heads, contents = b"", b""
    for kind, content in options:
        heads += struct.pack(">BHH", kind, offset + len(contents), len(content))
        contents += content
    return heads + bytes([_END]) + contents


def read_login(content: bytes) -> Login:
    """What LOGIN7 says.

    Raises:
        ProtocolError: It is no LOGIN7.
    """
    if len(content) < _FIXED_BYTES:
        raise ProtocolError(f"LOGIN7 has {len(content)} bytes")

    def field(position: int) -> bytes:
        start, characters = _FIELDS.unpack_from(content, position)
        if start + 2 * characters > len(content):
            raise ProtocolError("a field of LOGIN7 runs over its end")
        return content[start : start + 2 * characters]

    return Login(
        server=wide(field(_SERVER)),
        user=wide(field(_USER)),
        password=wide(_revealed(field(_PASSWORD))),
        database=wide(field(_DATABASE)),
        application=wide(field(_APPLICATION)),
        tds_version=struct.unpack_from("<I", content, 4)[0],
        has_features=bool(content[_OPTION_FLAGS_3] & _HAS_EXTENSION),
    )


def hidden(password: bytes) -> bytes:
    """A password as a client sends it: the halves of each byte swapped, then inverted by 0xA5."""
    return bytes((byte << 4 & 0xF0 | byte >> 4) ^ 0xA5 for byte in password)


def _revealed(content: bytes) -> bytes:
    return bytes((byte ^ 0xA5) << 4 & 0xF0 | (byte ^ 0xA5) >> 4 for byte in content)

"""Events that carry no rows: transactions' beginnings, statements, heartbeats. Bytes in, values out.

A *body* stands between an event's common header and its checksum. Sources: MySQL `libs/mysql/binlog/event/`, MariaDB
`sql/log_event.h`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from replicator_source_mysql.binlog.events import corrupt
from replicator_source_mysql.clienttext import DEFAULT_CHARSET, charset_name, decoded
from replicator_source_mysql.flavors import Flavor


class EventKind(IntEnum):
    """Type codes of the events that are told apart here; those of rows are in `binlog.events`."""

    QUERY = 2
    STOP = 3
    ROTATE = 4
    INTVAR = 5
    APPEND_BLOCK = 9
    DELETE_FILE = 11
    RAND = 13
    USER_VAR = 14
    FORMAT_DESCRIPTION = 15
    XID = 16
    BEGIN_LOAD_QUERY = 17
    EXECUTE_LOAD_QUERY = 18
    TABLE_MAP = 19
    INCIDENT = 26
    HEARTBEAT = 27
    IGNORABLE = 28
    ROWS_QUERY = 29
    GTID = 33
    ANONYMOUS_GTID = 34
    PREVIOUS_GTIDS = 35
    TRANSACTION_CONTEXT = 36
    VIEW_CHANGE = 37
    XA_PREPARE = 38
    HEARTBEAT_V2 = 41
    GTID_TAGGED = 42
    ANNOTATE_ROWS = 160
    BINLOG_CHECKPOINT = 161
    MARIADB_GTID = 162
    GTID_LIST = 163
    START_ENCRYPTION = 164


IGNORED: Final = frozenset(
    {
        EventKind.STOP,
        EventKind.INTVAR,
        EventKind.APPEND_BLOCK,
        EventKind.DELETE_FILE,
        EventKind.RAND,
        EventKind.USER_VAR,
        EventKind.FORMAT_DESCRIPTION,
        EventKind.BEGIN_LOAD_QUERY,
        EventKind.IGNORABLE,
        EventKind.ROWS_QUERY,
        EventKind.PREVIOUS_GTIDS,
        EventKind.TRANSACTION_CONTEXT,
        EventKind.VIEW_CHANGE,
        EventKind.ANNOTATE_ROWS,
        EventKind.BINLOG_CHECKPOINT,
        EventKind.GTID_LIST,
        EventKind.START_ENCRYPTION,
    }
)
"""Types that are known, and without meaning for us. One that is neither here nor handled stops the reader."""

FLAG_ARTIFICIAL: Final = 0x20
FLAG_IGNORABLE: Final = 0x80

# MariaDB's flags of a group.
STANDALONE: Final = 1
PREPARED_XA: Final = 64
COMPLETED_XA: Final = 128

_GROUP_COMMIT: Final = 2
# Among its further flags: START ALTER, COMMIT ALTER, ROLLBACK ALTER.
_ALTER_PHASES: Final = 2 | 4 | 8

_UUID_SIZE: Final = 16
_TIMESTAMP_SIZE: Final = 7
_TIMESTAMP_BITS: Final = 55


@dataclass(slots=True)
class Event:
    """An event without its framing; `cut` as in `InnerEvent`."""

    timestamp: int
    kind: int
    server_id: int
    flags: int
    body: memoryview
    cut: int = 0


@dataclass(frozen=True, slots=True)
class Begin:
    """The beginning of a group of events that commits as one.

    Attributes:
        gtid: Its name; empty where the server gives none.
        committed_us: Time of the commit on this server, in µs since 1970; None where the event does not say.
        is_standalone: MariaDB: the group is one statement. None: the event does not say.
        is_prepared_xa: MariaDB: the group ends with the PREPARE of an XA transaction.
        is_alter_phase: MariaDB: the group has the beginning or the end of an ALTER that is logged in two phases.
    """

    gtid: str
    committed_us: int | None = None
    is_standalone: bool | None = None
    is_prepared_xa: bool = False
    is_alter_phase: bool = False


def mysql_begin(body: memoryview) -> Begin:
    """GTID: flags, UUID, number, logical clocks, commit time."""
    _need(body, 42, "GTID")
    source = _uuid_text(bytes(body[1:17]))
    number = int.from_bytes(body[17:25], "little")
    committed = None
    if body[25] == 2 and len(body) >= 42 + _TIMESTAMP_SIZE:  # noqa: PLR2004 - the code of logical clocks, and what precedes the time
        committed = int.from_bytes(body[42 : 42 + _TIMESTAMP_SIZE], "little") & ((1 << _TIMESTAMP_BITS) - 1)
    return Begin(f"{source}:{number}", committed)


def tagged_begin(body: memoryview) -> Begin:
    """GTID_TAGGED: fields with numbers, in MySQL's serialisation format."""
    reader = _Serialized(body)
    reader.unsigned()  # the version of the format
    reader.unsigned()  # the size of the message
    reader.unsigned()  # the last field that must be understood
    uuid, number, tag, committed = b"", 0, "", None
    while reader.left and uuid is not None:
        match reader.unsigned():
            case 0 | 4 | 5:
                reader.signed_or_flags()
            case 1:
                uuid = bytes(reader.unsigned() & 0xFF for _ in range(_UUID_SIZE))
            case 2:
                number = reader.signed()
            case 3:
                tag = bytes(reader.raw(reader.unsigned())).decode()
            case 6:
                committed = reader.unsigned()
            case _:
                break
    if len(uuid) != _UUID_SIZE or number <= 0:
        raise corrupt("A GTID_TAGGED event has no UUID or no number.")
    source = _uuid_text(uuid) + (f":{tag}" if tag else "")
    return Begin(f"{source}:{number}", committed)


class _Serialized:
    """MySQL's variable-length integers: as many low one bits as bytes follow."""

    def __init__(self, body: memoryview) -> None:
        self._body = body
        self._offset = 0

    @property
    def left(self) -> int:
        return len(self._body) - self._offset

    def unsigned(self) -> int:
        _need(self._body, self._offset + 1, "GTID_TAGGED")
        first = self._body[self._offset]
        extra = 0
        while extra < 8 and first & (1 << extra):  # noqa: PLR2004 - bits of a byte
            extra += 1
        size = extra + 1
        _need(self._body, self._offset + size, "GTID_TAGGED")
        value = int.from_bytes(self._body[self._offset : self._offset + size], "little")
        self._offset += size
        return value >> size if size <= 8 else value >> 8  # noqa: PLR2004

    def signed(self) -> int:
        value = self.unsigned()
        return -(value >> 1) - 1 if value & 1 else value >> 1

    def signed_or_flags(self) -> None:
        self.unsigned()

    def raw(self, size: int) -> memoryview:
        _need(self._body, self._offset + size, "GTID_TAGGED")
        self._offset += size
        return self._body[self._offset - size : self._offset]


def mariadb_begin(body: memoryview, server_id: int) -> Begin:
    """GTID of MariaDB: number, domain, flags; the server is the header's."""
    _need(body, 13, "GTID")
    number, domain, flags = struct.unpack_from("<QIB", body)
    is_xa = bool(flags & (PREPARED_XA | COMPLETED_XA))
    # Behind the number of a group commit, if there is one; an XA transaction is no ALTER, and its name would stand before it.
    offset = 21 if flags & _GROUP_COMMIT else 13
    is_phase = not is_xa and len(body) > offset and bool(body[offset] & _ALTER_PHASES)
    is_alone = bool(flags & (STANDALONE | COMPLETED_XA))
    return Begin(f"{domain}-{server_id}-{number}", None, is_alone, bool(flags & PREPARED_XA), is_phase)


@dataclass(frozen=True, slots=True)
class Query:
    """A statement in the log.

    Attributes:
        database: The session's own; empty if it has chosen none.
        text: Decoded; bytes that are no text in the client's character set are U+FFFD.
        sql_mode: None where the event does not say.
        charset: The client's character set.
        is_of_session: It used a temporary table, or something else that only its session has.
    """

    database: str
    text: str
    sql_mode: int | None
    charset: str = DEFAULT_CHARSET
    is_of_session: bool = False


_QUERY: Final = struct.Struct("<IIBHH")
_LOAD_EXTRA: Final = 13
_THREAD_SPECIFIC: Final = 4
_FLAGS: Final = 0
_SQL_MODE: Final = 1
_AUTO_INCREMENT: Final = 3
_CHARSET: Final = 4
_CATALOG: Final = 6
_SIZES: Final = {_FLAGS: 4, _SQL_MODE: 8, _AUTO_INCREMENT: 4, _CHARSET: 6}


def query(body: memoryview, *, flavor: Flavor, flags: int = 0, is_load: bool = False) -> Query:
    """QUERY and EXECUTE_LOAD_QUERY; `flags` are the event's."""
    _need(body, _QUERY.size + (_LOAD_EXTRA if is_load else 0), "QUERY")
    _, _, database_size, _, variables_size = _QUERY.unpack_from(body)
    offset = _QUERY.size + (_LOAD_EXTRA if is_load else 0)
    text_offset = offset + variables_size + database_size + 1
    _need(body, text_offset, "QUERY")
    database = bytes(body[offset + variables_size : text_offset - 1]).decode(errors="replace")
    variables = _variables(body[offset : offset + variables_size])
    charset = charset_name(variables.get(_CHARSET), flavor)
    return Query(
        database,
        decoded(bytes(body[text_offset:]), charset),
        variables.get(_SQL_MODE),
        charset,
        bool(flags & _THREAD_SPECIFIC),
    )


def _variables(variables: memoryview) -> dict[int, int]:
    """SQL mode and the client's collation, which stand in front where they are there."""
    found: dict[int, int] = {}
    offset = 0
    while offset < len(variables) and _CHARSET not in found:
        code = variables[offset]
        size = _SIZES.get(code)
        if code == _CATALOG and offset + 1 < len(variables):
            size = 1 + variables[offset + 1]
        if size is None or offset + 1 + size > len(variables):
            break
        if code == _SQL_MODE:
            found[code] = int.from_bytes(variables[offset + 1 : offset + 9], "little")
        elif code == _CHARSET:
            found[code] = int.from_bytes(variables[offset + 1 : offset + 3], "little")
        offset += 1 + size
    return found


def rotate(body: memoryview) -> tuple[str, int]:
    """The next file, and the offset in it."""
    _need(body, 9, "ROTATE")
    return _file(body[8:]), int.from_bytes(body[:8], "little")


def heartbeat_v2(body: memoryview) -> tuple[str, int]:
    """File and offset, each as a field with its number and length."""
    file, pos, offset = "", 0, 0
    while offset + 2 <= len(body) and body[offset]:
        code, size = body[offset], body[offset + 1]
        value = body[offset + 2 : offset + 2 + size]
        _need(value, size, "HEARTBEAT")
        if code == 1:
            file = _file(value)
        elif code == 2 and size:  # noqa: PLR2004 - the field's number
            first = value[0]
            width = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(first, 0)
            pos = int.from_bytes(value[1 : 1 + width], "little") if width else first
        offset += 2 + size
    return file, pos


def xa_prepare(body: memoryview) -> tuple[bool, str]:
    """Return whether it is a commit in one phase, and the transaction's name, as `xid_text` writes it."""
    _need(body, 13, "XA_PREPARE")
    one_phase, format_id, gtrid_size, bqual_size = struct.unpack_from("<BIII", body)
    _need(body, 13 + gtrid_size + bqual_size, "XA_PREPARE")
    gtrid = bytes(body[13 : 13 + gtrid_size])
    bqual = bytes(body[13 + gtrid_size : 13 + gtrid_size + bqual_size])
    return bool(one_phase), xid_text(gtrid, bqual, format_id)


def xid_text(gtrid: bytes, bqual: bytes, format_id: int) -> str:
    """One spelling of an XA transaction's name: that of the server's own statements in the log."""
    return f"X'{gtrid.hex()}',X'{bqual.hex()}',{format_id}"


def _file(raw: memoryview) -> str:
    try:
        return bytes(raw).decode()
    except UnicodeDecodeError as error:
        raise corrupt("A binary log file's name is not UTF-8.") from error


def _uuid_text(raw: bytes) -> str:
    text = raw.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _need(body: memoryview, size: int, what: str) -> None:
    if len(body) < size:
        raise corrupt(f"A {what} event is too short.")

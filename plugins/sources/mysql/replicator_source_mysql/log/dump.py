"""The replication connection: the server's binary log as events, framed and proved by their checksums.

The dump is asked for on a connection that PyMySQL opened, with the client protocol's own commands. Nothing here
reconnects, skips or guesses: a lost connection, a wrong checksum and an error of the server are each an error of ours.
"""

from __future__ import annotations

import contextlib
import secrets
import struct
import uuid
import zlib
from collections.abc import Sequence
from typing import Final

import pymysql
from pymysql.constants import COMMAND

from replicator.model.errors import CorruptStreamError, ReplicatorError, SourceUnavailableError
from replicator_source_mysql.config import MysqlConfig
from replicator_source_mysql.connecting.connection import Connection, SameServer, connect, literal, rows_of
from replicator_source_mysql.connecting.errors import facts_of, translate, translate_log
from replicator_source_mysql.connecting.wire import EOF, ERROR, PacketReader, error_of
from replicator_source_mysql.coordinates import Coordinates
from replicator_source_mysql.flavors import Flavor
from replicator_source_mysql.positions.position import Executed

HEADER: Final = struct.Struct("<IBIIIH")
"""Common header of an event: timestamp, type, server id, size, end position, flags."""
HEADER_SIZE: Final = 19
ROTATE: Final = 4
FORMAT_DESCRIPTION: Final = 15

_CHECKSUM_SIZE: Final = 4
_CRC32: Final = 1
_SIZE: Final = struct.Struct("<I")
_OWN_RULES: Final = frozenset({ROTATE, FORMAT_DESCRIPTION})
# The CRC-32 of anything with its own CRC-32 after it.
_SOUND: Final = 0x2144DF1C


def _before_status() -> int:
    """Initial value of a CRC-32 by which the status byte, 0, in front of an event does not count: no copy without it is made."""
    table = (zlib.crc32(b"\0", number ^ 0xFFFF_FFFF) ^ 0xFFFF_FFFF for number in range(256))
    number, entry = next((n, e) for n, e in enumerate(table) if e >> 24 == 0xFF)  # noqa: PLR2004 - the byte that the rest shifts out
    return ((entry ^ 0xFFFF_FFFF) << 8 | number) ^ 0xFFFF_FFFF


_BEFORE_STATUS: Final = _before_status()
_SILENCE_BEATS: Final = 10
_SILENCE_S_MIN: Final = 30.0
_NANOSECONDS: Final = 1_000_000_000


class Dump:
    """An open dump of the binary log. `events` belongs to one thread; `close` may be called from any."""

    def __init__(self, connection: Connection, *, server: str, silence_s: float, has_checksums: bool) -> None:
        self._connection = connection
        self._server = server
        self._reader = PacketReader(connection, sequence=1, silence_s=silence_s)
        self._has_checksums = has_checksums
        self._is_closed = False
        self._failure: ReplicatorError | None = None

    @classmethod
    def open(
        cls, config: MysqlConfig, same: SameServer, *, flavor: Flavor, coordinates: Coordinates, behind: Executed
    ) -> Dump:
        """Connect to the same server as the others, and ask for everything after a position.

        Raises:
            ReplicatorError: As `errors.translate`.
        """
        silence_s = max(_SILENCE_S_MIN, _SILENCE_BEATS * config.heartbeat.total_seconds())
        try:
            connection = connect(config, read_timeout_s=silence_s)
        except (pymysql.MySQLError, OSError) as error:
            raise translate(error, doing=f"connecting to {config.server} for its log") from error
        try:
            same.verify(connection)
            has_checksums = _introduce(connection, config, flavor)
            server_id = (1 << 31) | secrets.randbits(31)
            _execute(connection, COMMAND.COM_REGISTER_SLAVE, _registration(server_id))
            connection._read_ok_packet()  # noqa: SLF001 - PyMySQL has no name for what replication needs
            request = coordinates.request(behind, server_id)
            if request.statement:
                with connection.cursor() as cursor:
                    cursor.execute(request.statement)
            _execute(connection, request.command, request.body)
        except (pymysql.MySQLError, OSError) as error:
            connection._force_close()  # noqa: SLF001
            raise translate(error, doing=f"asking {config.server} for its log") from error
        except BaseException:
            # Whatever ended it, an interrupt too, no dump may be left on the server.
            connection._force_close()  # noqa: SLF001
            raise
        return cls(connection, server=config.server, silence_s=silence_s, has_checksums=has_checksums)

    def events(self, wait_s: float) -> list[bytes]:
        """The events that have arrived, header included, checksums proved and taken off; waits at most `wait_s` for the first.

        Raises:
            ReplicatorError: The connection was lost, the server refuses or ends the dump, or an event's checksum is wrong.
        """
        if self._is_closed:
            raise SourceUnavailableError("reading the log: the connection is closed.", code="source_unavailable")
        if self._failure is not None:
            raise self._failure
        try:
            packets = self._reader.packets(wait_s)
        except (pymysql.MySQLError, OSError, ValueError) as error:
            raise SourceUnavailableError(
                f"reading the log of {self._server}: {facts_of(error)}", code="source_unavailable"
            ) from error
        sound: list[bytes] = []
        try:
            self._prove(packets, sound)
        except ReplicatorError as error:
            if not sound:
                raise
            # What arrived before it is read first: it may say what the error is about.
            self._failure = error
        return sound

    def close(self) -> None:
        """Close the connection. May be called twice."""
        self._is_closed = True
        # Closing is all that is left to do, whether or not it still stands.
        with contextlib.suppress(pymysql.MySQLError, OSError):
            self._connection._force_close()  # noqa: SLF001 - PyMySQL's close would talk into the dump

    def _prove(self, packets: Sequence[bytes], sound: list[bytes]) -> None:
        if not self._has_checksums:
            sound.extend(self._event(packet) for packet in packets)
            return
        size_at, crc32 = _SIZE.unpack_from, zlib.crc32
        for packet in packets:
            # Nearly all are events whose checksum is right; what is wrong with the others, `_event` says.
            is_event = len(packet) > HEADER_SIZE + _CHECKSUM_SIZE and not packet[0] and packet[5] not in _OWN_RULES
            if is_event and size_at(packet, 10)[0] == len(packet) - 1 and crc32(packet, _BEFORE_STATUS) == _SOUND:
                sound.append(packet[1:-_CHECKSUM_SIZE])
            else:
                sound.append(self._event(packet))

    def _event(self, packet: bytes) -> bytes:
        if not packet or packet[0] == ERROR:
            raise self._refusal(packet)
        if packet[0] == EOF and len(packet) < HEADER_SIZE:
            raise SourceUnavailableError(
                f"The server {self._server} ended the reading of its log. It does so when another reader uses the same server id.",
                code="source_unavailable",
            )
        if len(packet) <= HEADER_SIZE or int.from_bytes(packet[10:14], "little") != len(packet) - 1:
            raise self._corrupt("an event's size is not that of its packet")
        event = packet[1:]
        kind = event[4]
        if kind == FORMAT_DESCRIPTION:
            self._has_checksums = event[-_CHECKSUM_SIZE - 1] == _CRC32
            # It has a checksum even where the others have none.
            return self._proved(event) if self._has_checksums else event[:-_CHECKSUM_SIZE]
        if kind == ROTATE and not _is_sound(event):
            # Made up for us: whether it has a checksum depends on the server's version.
            return event
        return self._proved(event) if self._has_checksums or kind == ROTATE else event

    def _proved(self, event: bytes) -> bytes:
        if not _is_sound(event):
            raise self._corrupt(f"the checksum of an event of type {event[4]} is wrong")
        return event[:-_CHECKSUM_SIZE]

    def _refusal(self, packet: bytes) -> ReplicatorError:
        number, text = error_of(packet) if packet else (0, "an empty packet")
        return translate_log(number, text, doing=f"reading the log of {self._server}")

    def _corrupt(self, what: str) -> CorruptStreamError:
        return CorruptStreamError(
            f"reading the log of {self._server}: {what}.",
            code="corrupt_binlog_event",
            action="Check the source's binlog with mysqlbinlog --verify-binlog-checksum, and the network between.",
        )


def _is_sound(event: bytes) -> bool:
    return zlib.crc32(memoryview(event)[:-_CHECKSUM_SIZE]) == int.from_bytes(event[-_CHECKSUM_SIZE:], "little")


def _introduce(connection: Connection, config: MysqlConfig, flavor: Flavor) -> bool:
    """Say what we understand; return whether the log has checksums."""
    ((checksum,),) = rows_of(connection, "SELECT @@GLOBAL.binlog_checksum")
    period = round(config.heartbeat.total_seconds() * _NANOSECONDS)
    me = literal(str(uuid.uuid4()))
    sources, replicas = {"master", flavor.source_word}, {"slave", flavor.replica_word}
    settings = [f"@{name}_heartbeat_period = {period}" for name in sources]
    settings += [f"@{name}_binlog_checksum = @@GLOBAL.binlog_checksum" for name in sources]
    settings += [f"@{name}_uuid = {me}" for name in replicas]
    settings += flavor.dump_settings
    with connection.cursor() as cursor:
        cursor.execute("SET " + ", ".join(settings))
        # The log may be read slowly while the journal is.
        cursor.execute("SET SESSION net_write_timeout = 3600")
    return str(checksum).upper() == "CRC32"


def _registration(server_id: int) -> bytes:
    """COM_REGISTER_SLAVE: the server then lists us, by name, among its replicas."""
    host = b"replicator"
    return struct.pack("<IB", server_id, len(host)) + host + b"\0\0" + struct.pack("<HII", 0, 0, 0)


def _execute(connection: Connection, command: int, body: bytes) -> None:
    connection._execute_command(command, body)  # noqa: SLF001 - PyMySQL has no name for it

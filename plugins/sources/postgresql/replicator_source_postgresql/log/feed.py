"""The replication connection: START_REPLICATION over psycopg 3's raw COPY_BOTH, messages in, status updates out.

psycopg has no interface for logical replication, but its libpq layer has all that is needed. Messages are fetched in
bulk: the server sends each one by itself, so a reader that is woken for each pays a system call or two per row.
    `Feed.receive` therefore lets data gather for a moment while it flows.
"""

from __future__ import annotations

import select
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import psycopg
from psycopg import pq

from replicator.model.errors import ReplicatorError, SourceUnavailableError
from replicator_source_postgresql.connecting.connection import SameServer, verify_tls
from replicator_source_postgresql.connecting.errors import translate_connect, translate_log
from replicator_source_postgresql.types import RAW_SETTING, SESSION_OPTIONS
from replicator_source_postgresql.wire import Block, Message, received_messages

KEEPALIVE_SIZE: Final = 18
"""Length of a keepalive: kind, end of the log, clock, whether an answer is wanted. Row messages are longer."""

# libpq reads the socket in pieces of its buffer, which only grows for large messages: at 16 KiB a read brings some fifty rows.
_INPUT_BUFFER_BYTES: Final = 256 * 1024
# While data flows, so long between two looks at the socket, and so long in all; longer when much comes, because a pull costs some 3 ms
# whatever it holds (measured: 6 µs a row in pulls of 500, 1.4 µs in pulls of 20,000).
_GATHER_S: Final = 0.001
_GATHER_TOTAL_S: Final = 0.05
_GATHER_BUSY_S: Final = 0.25
_BUSY_COUNT: Final = 2_000
# The server drops a silent reader after wal_sender_timeout (60 s by default).
_STATUS_INTERVAL_S: Final = 10.0
_MESSAGES_SINCE: Final = 140_000  # earlier, pgoutput does not send messages
_EPOCH_2000_US: Final = 946_684_800_000_000
_STATUS: Final = struct.Struct(">cQQQqB")


class Feed:
    """An open replication stream. `receive` belongs to one thread; `confirm` and `close` may be called from any."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        *,
        slot: str,
        start_lsn: int,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._slot = slot
        self._clock = clock
        self._pause = pause
        # libpq's connections are not thread-safe.
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(self._pgconn.socket, select.POLLIN)
        self._durable_lsn = start_lsn
        self._status_at = clock()
        # Received and not delivered yet; and the reason why nothing more can come after it.
        self._unread: list[Block] = []
        self._end: ReplicatorError | None = None
        self._owes_answer = False
        self.is_answer_wanted = False

    @classmethod
    def open(
        cls,
        conninfo: Mapping[str, Any],
        same: SameServer,
        *,
        slot: str,
        publication: str,
        start_lsn: int,
        is_raw: bool,
        pause: Callable[[float], None] = time.sleep,
    ) -> Feed:
        """Connect and start streaming after `start_lsn`.

        Args:
            conninfo: libpq parameters (host, user, sslmode, …) without `replication` and `options`; `SESSION_OPTIONS` are added here.
            same: Shared by all connections of the source.
            slot: An existing logical slot made with pgoutput.
            publication: The publication's name, unquoted.
            start_lsn: See `PgLogReader`.
            is_raw: True if the database has no encoding: texts come as they are.
            pause: Waits between two reads.

        Raises:
            SourceUnavailableError: Not reachable, another server than that of the other connections, or the slot is in use (`slot_active`).
            AccessDeniedError: See `translate_connect`.
            LogGapError: The slot does not exist, or was invalidated.
            OffsetExpiredError: The log at `start_lsn` has been removed.
        """
        options = f"{SESSION_OPTIONS} -c {'='.join(RAW_SETTING)}" if is_raw else SESSION_OPTIONS
        try:
            connection = psycopg.connect(**{**conninfo, "replication": "database", "options": options}, autocommit=True)
        except psycopg.Error as error:
            raise translate_connect(error, doing="connecting for replication") from error
        try:
            verify_tls(connection, conninfo)
            same.verify(connection)
            connection.execute(f"SELECT repeat('x', {_INPUT_BUFFER_BYTES})".encode())
            _start(connection, slot, publication, start_lsn)
        except psycopg.Error as error:
            connection.close()
            raise translate_log(error, doing="starting replication", slot=slot) from error
        except ReplicatorError:
            connection.close()
            raise
        return cls(connection, slot=slot, start_lsn=start_lsn, pause=pause)

    def receive(self, *, count_max: int, bytes_max: int, wait_s: float) -> list[Block]:
        """Fetch what there is, waiting at most `wait_s` for the first message.

        While data flows it continues for a moment, until a limit is reached (the last read may go over) or nothing more comes. A keepalive
        that wants an answer gets it at once, and `is_answer_wanted` is set until the caller clears it.

        Raises:
            ReplicatorError: The stream broke or was ended by the server. What came before has been delivered.
        """
        if self._clock() - self._status_at >= _STATUS_INTERVAL_S:
            self.confirm()
        blocks: list[Block] = []
        count = size = 0
        more = self._wait(wait_s)
        began = self._clock()
        while more:
            blocks += more
            count += sum(len(block.sizes) for block in more)
            size += sum(len(block.data) for block in more)
            gather_s = _GATHER_BUSY_S if count >= _BUSY_COUNT else _GATHER_TOTAL_S
            is_full = count >= count_max or size >= bytes_max or self._clock() - began >= gather_s
            if is_full or self._end is not None:
                break
            self._pause(_GATHER_S)
            more = self._read()
        if self._end is not None and not blocks:
            raise self._end
        return blocks

    def confirm(self, durable_lsn: int | None = None) -> None:
        """Tell the server that everything up to `durable_lsn` (None: as before) is durable here. Never goes back.

        Raises:
            ReplicatorError: The connection is lost, or the server ended it; not while there is something left to deliver.
        """
        with self._lock:
            if durable_lsn is not None:
                self._durable_lsn = max(self._durable_lsn, durable_lsn)
            if self._end is None:
                self._send_status()
            if self._end is not None and not self._unread:
                raise self._end

    def close(self) -> None:
        """Close the connection. May be called twice."""
        with self._lock:
            self._connection.close()

    def _wait(self, wait_s: float) -> list[Block]:
        until = self._clock() + wait_s
        while True:
            # Twice: a read may stop short of what TLS has decrypted already, of which the socket knows nothing.
            blocks = self._read() or self._read()
            now = self._clock()
            if blocks or self._end is not None or now >= until:
                return blocks
            if now - self._status_at >= _STATUS_INTERVAL_S:
                self.confirm()
            self._poll.poll(max(1, round(1000 * min(until - now, _STATUS_INTERVAL_S))))

    def _read(self) -> list[Block]:
        """Return the data that has arrived, without waiting; one read of the socket. If nothing more can come, `_end` says why."""
        with self._lock:
            if self._end is None and self._pgconn.status != pq.ConnStatus.OK:
                self._end = SourceUnavailableError(
                    "reading the log: the connection is closed", code="source_unavailable"
                )
            if self._end is None:
                self._receive()
            if self._end is None and self._owes_answer:
                self._send_status()
            blocks, self._unread = self._unread, []
        return blocks

    def _receive(self) -> None:
        """Take over the data that has arrived, and, if nothing more can come, note why."""
        broken: psycopg.Error | None = None
        try:
            self._pgconn.consume_input()
        except psycopg.OperationalError as error:
            # A server that ends the connection says why before it does: that may lie in the buffer.
            broken = error
        try:
            while messages := received_messages(self._pgconn):
                has_ended = messages[-1][0] < 0
                if data := messages[:-1] if has_ended else messages:
                    self._unread.append(self._block(data))
                if has_ended:
                    self._end = self._ended()
                    return
        except psycopg.Error as error:
            broken = broken or error
        if broken is not None:
            self._end = translate_log(broken, doing="reading the log", slot=self._slot)

    def _block(self, messages: list[Message]) -> Block:
        block = Block.of(messages)
        # Only keepalives are that short: a glance at the sizes spares looking at each message.
        if any(messages[index][1][-1] for index in np.flatnonzero(block.sizes == KEEPALIVE_SIZE).tolist()):
            self.is_answer_wanted = self._owes_answer = True
        return block

    def _ended(self) -> ReplicatorError:
        """Return the error for a stream that the server ended."""
        result = self._pgconn.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            error = psycopg.errors.error_from_result(result, encoding="utf-8")
            return translate_log(error, doing="reading the log", slot=self._slot)
        return SourceUnavailableError("reading the log: the server ended the stream", code="source_unavailable")

    def _send_status(self) -> None:
        """Send a status update, or note why the connection has ended: in the server's own words if it said any."""
        # Written, flushed and applied are one: a synchronous standby's wait must not end before the journal is durable.
        lsn = self._durable_lsn
        moment = round(time.time() * 1_000_000) - _EPOCH_2000_US
        try:
            # Nothing is lost when libpq takes it later or the socket is full: each status repeats the last.
            self._pgconn.put_copy_data(_STATUS.pack(b"r", lsn, lsn, lsn, moment, 0))
            self._pgconn.flush()
        except psycopg.Error as error:
            self._receive()
            self._end = self._end or translate_log(error, doing="confirming to the server", slot=self._slot)
        self._status_at = self._clock()
        self._owes_answer = False


def _start(connection: psycopg.Connection[Any], slot: str, publication: str, start_lsn: int) -> None:
    options = ["proto_version '1'", f"publication_names {_literal(_identifier(publication))}"]
    if connection.info.server_version >= _MESSAGES_SINCE:
        options.append("messages 'true'")
    position = f"{start_lsn >> 32:X}/{start_lsn & 0xFFFFFFFF:X}"
    command = f"START_REPLICATION SLOT {_identifier(slot)} LOGICAL {position} ({', '.join(options)})"
    # A blocking connection for the command; the stream itself is read without blocking.
    connection.pgconn.nonblocking = 0
    result = connection.pgconn.exec_(command.encode())
    if result.status != pq.ExecStatus.COPY_BOTH:
        raise psycopg.errors.error_from_result(result, encoding="utf-8")
    connection.pgconn.nonblocking = 1


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"

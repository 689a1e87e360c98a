"""A synchronous standby that stores nothing and acknowledges late, or not before it is told to.

What it has not acknowledged has been committed to the log, and is decoded and delivered, but no other session sees
it: the gap between the order of commits and the order of visibility, as long as a test wants it.
"""

from __future__ import annotations

import select
import struct
import threading
from types import TracebackType
from typing import Any, Final, Self

import psycopg
from psycopg import pq

from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testing.waiting import wait_until

NAME: Final = "late_standby"
SETTINGS: Final = {"synchronous_standby_names": NAME, "synchronous_commit": "local"}
"""For `PostgresServer`: only sessions that set `synchronous_commit = on` wait for the standby."""

_ROUND_MS: Final = 15
_STATUS: Final = struct.Struct(">cQQQqB")


class LateStandby:
    """A physical walreceiver in a thread. Each round it acknowledges what it had received a round earlier."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._is_held = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="late-standby", daemon=True)
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(self._is_synchronous, "the standby is synchronous", every_s=0.02)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(timeout=30)
        if self._error is not None and error is None:
            raise self._error

    def hold(self) -> None:
        """Acknowledge nothing until `release`: who commits waits, and is invisible meanwhile."""
        self._is_held.set()

    def release(self) -> None:
        """Acknowledge again."""
        self._is_held.clear()

    def _is_synchronous(self) -> bool:
        if self._error is not None:
            raise self._error
        query = f"SELECT 1 FROM pg_stat_replication WHERE application_name = '{NAME}' AND sync_state = 'sync' AND state = 'streaming'"
        return bool(self._server.execute(query))

    def _run(self) -> None:
        try:
            connection = psycopg.connect(
                self._server.dsn("postgres"), replication="true", application_name=NAME, autocommit=True
            )
            try:
                self._stream(connection.pgconn)
            finally:
                connection.close()
        except BaseException as error:  # noqa: BLE001 (raised in the test's thread)
            self._error = error

    def _stream(self, pgconn: Any) -> None:
        position = pgconn.exec_(b"IDENTIFY_SYSTEM").get_value(0, 2).decode()
        high, low = position.split("/")
        received = acknowledged = (int(high, 16) << 32) + int(low, 16)
        result = pgconn.exec_(f"START_REPLICATION PHYSICAL {position}".encode())
        assert result.status == pq.ExecStatus.COPY_BOTH, result.error_message
        pgconn.nonblocking = 1
        readable = select.poll()
        readable.register(pgconn.socket, select.POLLIN)
        while not self._stop.is_set():
            earlier = received
            readable.poll(_ROUND_MS)
            pgconn.consume_input()
            while (message := pgconn.get_copy_data(1))[0] > 0:
                received = max(received, _end(bytes(message[1])))
            assert message[0] == 0, "the server ended the stream"
            if not self._is_held.is_set():
                acknowledged = max(acknowledged, earlier)
            pgconn.put_copy_data(_STATUS.pack(b"r", received, acknowledged, acknowledged, 0, 0))
            pgconn.flush()
            # Its pace, not a wait of a test: what comes meanwhile is acknowledged late.
            self._stop.wait(_ROUND_MS / 1000)


def _end(message: bytes) -> int:
    """Up to where the log has come with this message."""
    start = int.from_bytes(message[1:9])
    return start + len(message) - 25 if message[:1] == b"w" else start

"""Connections to the server: one per role, opened when first needed and again after it was lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

import psycopg
from psycopg import pq

from replicator.model.errors import SourceUnavailableError
from replicator.model.schema import TableId
from replicator_source_postgresql.discovery import Connection
from replicator_source_postgresql.errors import translate, translate_connect
from replicator_source_postgresql.types import SESSION_OPTIONS

ANOTHER_SERVER: Final = "another_server"
_CLOSE_WAIT_S: Final = 10.0


def is_raw(connection: Connection) -> bool:
    """Whether the database has no encoding, so that what brings values needs `RAW_SETTING`."""
    return connection.info.parameter_status("server_encoding") == "SQL_ASCII"


class SameServer:
    """Holds all connections of one source object to one running server. Thread-safe.

    Behind a name or a proxy may stand several servers. After a failover that the open log does not notice, its server and the one that
    is asked about tables are two: what one of them has logged, the other may not show.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: datetime | None = None

    def verify(self, connection: Connection) -> None:
        """Take the first server that answers for the one, and refuse any other.

        A server is known by the moment at which it was started: system identifier and timeline are also those of a standby, of a clone of
        its disk, and (the timeline in the control file) of one that was promoted a moment ago.

        Raises:
            SourceUnavailableError: Another one answers, or it was restarted: a new process begins with whichever answers then.
        """
        row = connection.execute(b"SELECT pg_postmaster_start_time()").fetchone()
        assert row is not None
        with self._lock:
            if self._started is None:
                self._started = row[0]
            if self._started != row[0]:
                raise SourceUnavailableError(
                    f"the connection reached a server that was started at {_moment(row[0])}, not the one of before,"
                    f" which was started at {_moment(self._started)}.",
                    code=ANOTHER_SERVER,
                    action="After a restart or a failover: nothing. Otherwise let source.host lead to one server only.",
                )


class Session:
    """A connection that one thread uses at a time.

    `use` gives it under a lock, and turns psycopg's errors into ours. A statement that failed half-way leaves no transaction
    behind: the connection is then closed, and the next use opens another. `close` may come from any thread; it cancels what
    runs.
    """

    def __init__(
        self, parameters: Mapping[str, str], same: SameServer, *, settings: Mapping[str, str], server: str
    ) -> None:
        """Describe the connection; nothing is opened yet.

        Args:
            parameters: libpq's, without `options`.
            same: Shared by all connections of a source.
            settings: Server settings of this role, over those that make values canonical.
            server: `host:port`, for messages.
        """
        options = "".join(f" -c {name}={value}" for name, value in settings.items())
        self._parameters: dict[str, Any] = {**parameters, "options": SESSION_OPTIONS + options}
        self._same = same
        self._server = server
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._is_closed = False

    @contextmanager
    def use(self, doing: str, *, table: TableId | None = None) -> Iterator[Connection]:
        """Give the connection: autocommit, without a transaction.

        Args:
            doing: What it is used for, for messages (`reading the catalogue`).
            table: The table that an error concerns.

        Raises:
            ReplicatorError: Any error of psycopg inside the block, translated.
        """
        with self._lock:
            doing = f"{doing} on {self._server}"
            try:
                connection = self._opened()
            except psycopg.Error as error:
                raise translate_connect(error, doing=doing) from error
            try:
                yield connection
            except psycopg.Error as error:
                raise translate(error, doing=doing, table=str(table) if table else None) from error
            finally:
                self._drop_unless_idle()

    @property
    def backend_pid(self) -> int | None:
        """The server process behind the connection that is open now. Thread-safe."""
        connection = self._connection
        return connection.info.backend_pid if connection is not None and not connection.closed else None

    def release(self) -> None:
        """Close the connection; the next use opens another. For connections that use a scarce resource of the server."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def close(self) -> None:
        """Cancel what runs, and close. May be called twice, and from any thread."""
        self._is_closed = True
        connection = self._connection
        if connection is None:
            return
        if not self._lock.acquire(blocking=False):
            # A waiting thread gets QueryCanceled, or finds the connection closed.
            if not connection.closed:
                connection.cancel_safe(timeout=_CLOSE_WAIT_S)
            if not self._lock.acquire(timeout=_CLOSE_WAIT_S):
                return
        try:
            connection.close()
            self._connection = None
        finally:
            self._lock.release()

    def _opened(self) -> Connection:
        if self._is_closed:
            raise SourceUnavailableError("the source has been closed.", code="source_closed")
        if self._connection is None or self._connection.closed:
            connection = psycopg.connect(autocommit=True, prepare_threshold=None, **self._parameters)
            try:
                self._same.verify(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _drop_unless_idle(self) -> None:
        connection = self._connection
        if connection is not None and (
            self._is_closed or connection.closed or connection.pgconn.transaction_status != pq.TransactionStatus.IDLE
        ):
            connection.close()
            self._connection = None


def _moment(started: datetime) -> str:
    return started.astimezone(UTC).isoformat(sep=" ")

"""Connections to the server: one per role, opened when first needed and again after it was lost."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

import psycopg
from psycopg import pq, sql
from typing_extensions import override

from replicator.model.errors import ConfigError, ReplicatorError, SourceUnavailableError
from replicator.plugins.kit.session import Session as KitSession
from replicator_source_postgresql.catalogue.discovery import Connection
from replicator_source_postgresql.connecting.errors import (
    CONNECTION_POOLER,
    POOLER_ACTION,
    translate,
    translate_connect,
)
from replicator_source_postgresql.types import SESSION_SETTINGS

ANOTHER_SERVER: Final = "another_server"


_REFUSING_VIEWS: Final = ("restrict_nonsystem_relation_kind", "view, foreign-table")
"""A setting of servers from 13.16, 14.13, 15.8, 16.4 and 17 on: no statement of the session reads a view that somebody made.

A table's owner can exchange the table for one between two of our statements, and the functions in it would run as our role.
"""

_PLANNING: Final[Mapping[str, str]] = {
    "constraint_exclusion": "off",  # The planner would evaluate functions in CHECK constraints of partitions, as our role.
}


class SameServer:
    """Holds all connections of one source object to one running server. Thread-safe.

    A name or a proxy may lead to several servers. After a failover that the open log does not notice, its server and the one that
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
            SourceUnavailableError: Another one answers, or it was restarted: a new process begins with the server that answers then.
        """
        row = connection.execute(b"SELECT pg_postmaster_start_time()").fetchone()
        assert row is not None
        with self._lock:
            if self._started is None:
                self._started = row[0]
            if self._started != row[0]:
                raise SourceUnavailableError(
                    f"The connection reached another server, or the server was restarted. It was started at {_moment(row[0])};"
                    f" the one before was started at {_moment(self._started)}.",
                    code=ANOTHER_SERVER,
                    action="After a restart or a failover, nothing to do. Otherwise set source.host to one server.",
                )


class Session(KitSession[Connection]):
    """A connection of psycopg's. A statement that failed half-way leaves no transaction open: its connection is closed."""

    driver_errors: ClassVar[tuple[type[Exception], ...]] = (psycopg.Error,)

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
        super().__init__(server)
        self._same = same
        self._settings = {**SESSION_SETTINGS, **_PLANNING, **settings}
        options = " ".join(f"-c {name}={value}" for name, value in self._settings.items())
        self._parameters: dict[str, Any] = {**parameters, "options": options}
        self.refuses_views = False
        """True if the server refuses statements that read views or foreign tables; known once it is connected."""

    @property
    def backend_pid(self) -> int | None:
        """The server process of the connection that is open now. Thread-safe."""
        connection = self.connection
        return connection.info.backend_pid if connection is not None else None

    @override
    def connect(self) -> Connection:
        connection: Connection = psycopg.connect(autocommit=True, prepare_threshold=None, **self._parameters)
        try:
            verify_tls(connection, self._parameters)
            self._same.verify(connection)
            _verify_settings(connection, self._settings)
            self.refuses_views = _refuse_views(connection)
        except BaseException:
            # However the session ended, nothing of it may be left on the server.
            connection.close()
            raise
        return connection

    @override
    def is_open(self, connection: Connection) -> bool:
        return not connection.closed

    @override
    def is_reusable(self, connection: Connection, *, has_failed: bool) -> bool:
        return not connection.closed and connection.pgconn.transaction_status == pq.TransactionStatus.IDLE

    @override
    def disconnect(self, connection: Connection) -> None:
        connection.close()

    @override
    def interrupt(self, connection: Connection, wait_s: float) -> None:
        # The thread gets QueryCanceled, or finds the connection closed.
        if not connection.closed:
            connection.cancel_safe(timeout=wait_s)

    @override
    def translated(self, error: Exception, doing: str, table: str | None) -> ReplicatorError:
        assert isinstance(error, psycopg.Error), "one of `driver_errors`"
        return translate(error, doing=doing, table=table)

    @override
    def translated_connect(self, error: Exception, doing: str) -> ReplicatorError:
        assert isinstance(error, psycopg.Error), "one of `driver_errors`"
        return translate_connect(error, doing=doing)


def verify_tls(connection: psycopg.Connection[Any], parameters: Mapping[str, Any]) -> None:
    """Verify that a connection is encrypted, if its parameters demand it.

    Raises:
        psycopg.OperationalError: It is not.
    """
    if parameters.get("sslmode", "prefer") not in ("disable", "prefer") and not connection.pgconn.ssl_in_use:
        raise psycopg.OperationalError(
            "the connection is not encrypted: server does not support SSL, but it is demanded"
        )


def _verify_settings(connection: Connection, settings: Mapping[str, str]) -> None:
    """Compare the session's settings with those that it was opened with.

    Raises:
        ConfigError: `connection_pooler`: some have other values.
    """
    wanted = sql.SQL(", ").join(map(sql.SQL("({}, {})").format, settings, settings.values()))
    # The server spells a value as it shows it; for the length of this statement.
    query = sql.SQL(
        "SELECT name FROM (SELECT name, current_setting(name) AS found, set_config(name, value, true) AS wanted"
        " FROM (VALUES {}) AS s(name, value) OFFSET 0) AS s WHERE found IS DISTINCT FROM wanted"
    )
    if differing := [name for (name,) in connection.execute(query.format(wanted))]:
        raise ConfigError(
            f"The session does not have the settings that it was opened with ({', '.join(differing)}): a connection pooler, such as"
            " PgBouncer, is between Replicator and the server, and drops them.",
            code=CONNECTION_POOLER,
            action=POOLER_ACTION,
        )


def _refuse_views(connection: Connection) -> bool:
    """Have the server refuse statements that read views or foreign tables; return whether it can."""
    query = sql.SQL("SELECT set_config(name, {1}, false) FROM pg_settings WHERE name = {0}")
    return connection.execute(query.format(*_REFUSING_VIEWS)).fetchone() is not None


def _moment(started: datetime) -> str:
    return started.astimezone(UTC).isoformat(sep=" ")

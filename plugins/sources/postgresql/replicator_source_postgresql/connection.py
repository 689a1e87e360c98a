"""Connections to the server: one per role, opened when first needed and again after it was lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import psycopg
from psycopg import pq
from typing_extensions import override

from replicator.model.errors import ReplicatorError
from replicator.plugins.kit.session import Session as KitSession
from replicator_source_postgresql.discovery import Connection
from replicator_source_postgresql.errors import translate, translate_connect
from replicator_source_postgresql.types import SESSION_OPTIONS


def is_raw(connection: Connection) -> bool:
    """Whether the database has no encoding, so that what brings values needs `RAW_SETTING`."""
    return connection.info.parameter_status("server_encoding") == "SQL_ASCII"


class Session(KitSession[Connection]):
    """A connection of psycopg's. A statement that failed half-way leaves no transaction behind: its connection is closed."""

    driver_errors: ClassVar[tuple[type[Exception], ...]] = (psycopg.Error,)

    def __init__(self, parameters: Mapping[str, str], *, settings: Mapping[str, str], server: str) -> None:
        """Describe the connection; nothing is opened yet.

        Args:
            parameters: libpq's, without `options`.
            settings: Server settings of this role, over those that make values canonical.
            server: `host:port`, for messages.
        """
        super().__init__(server)
        options = "".join(f" -c {name}={value}" for name, value in settings.items())
        self._parameters: dict[str, Any] = {**parameters, "options": SESSION_OPTIONS + options}

    @property
    def backend_pid(self) -> int | None:
        """The server process behind the connection that is open now. Thread-safe."""
        connection = self.connection
        return connection.info.backend_pid if connection is not None else None

    @override
    def connect(self) -> Connection:
        return psycopg.connect(autocommit=True, prepare_threshold=None, **self._parameters)

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

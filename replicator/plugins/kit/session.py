"""Connections to a server: one per role, opened when first needed and again after a loss."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Final, Generic, TypeVar

from replicator.model.errors import ReplicatorError, SourceUnavailableError
from replicator.model.schema import TableId

ConnectionT = TypeVar("ConnectionT")

_CLOSE_WAIT_S: Final = 10.0


class Session(ABC, Generic[ConnectionT]):
    """A connection that one thread uses at a time.

    `use` yields it under a lock, and turns the driver's errors into ours. A connection that cannot be used any more is closed, and the
    next use opens another. `close` may come from any thread; it ends a running statement.
    """

    driver_errors: ClassVar[tuple[type[Exception], ...]]
    """Exceptions of the driver for `translated` and `translated_connect`."""

    def __init__(self, server: str) -> None:
        """Describe the connection; nothing is opened yet. `server`: for messages."""
        self._server = server
        self._lock = threading.RLock()
        self._connection: ConnectionT | None = None
        self._is_closed = False

    # -- the driver ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def connect(self) -> ConnectionT:
        """Open a connection: autocommit, with the settings of its role. Leaves nothing open if it fails."""

    @abstractmethod
    def is_open(self, connection: ConnectionT) -> bool:
        """Return whether the connection is open, as far as the client knows. Thread-safe."""

    @abstractmethod
    def is_reusable(self, connection: ConnectionT, *, has_failed: bool) -> bool:
        """Return whether the next use may have the connection. `has_failed`: this one ended with an exception."""

    @abstractmethod
    def disconnect(self, connection: ConnectionT) -> None:
        """Close the connection, whatever its state; never fails."""

    @abstractmethod
    def interrupt(self, connection: ConnectionT, wait_s: float) -> None:
        """Make the thread that uses the connection fail. Called from another thread."""

    @abstractmethod
    def translated(self, error: Exception, doing: str, table: str | None) -> ReplicatorError:
        """Translate an error of the driver into one of ours."""

    def translated_connect(self, error: Exception, doing: str) -> ReplicatorError:
        """Translate an error while connecting: it concerns no table."""
        return self.translated(error, doing, None)

    # -- its use ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def use(self, doing: str, *, table: TableId | None = None) -> Iterator[ConnectionT]:
        """Yield the connection: autocommit, without a transaction.

        Args:
            doing: Purpose of the use, for messages (`reading the catalogue`).
            table: The table that an error concerns.

        Raises:
            ReplicatorError: Any error of the driver inside the block, translated.
        """
        with self._lock:
            doing = f"{doing} on {self._server}"
            try:
                connection = self._opened()
            except self.driver_errors as error:
                raise self.translated_connect(error, doing) from error
            has_failed = True
            try:
                yield connection
                has_failed = False
            except self.driver_errors as error:
                raise self.translated(error, doing, str(table) if table else None) from error
            finally:
                if self._is_closed or not self.is_reusable(connection, has_failed=has_failed):
                    self._drop()

    @property
    def connection(self) -> ConnectionT | None:
        """Return the connection that is open now, perhaps in use by another thread. Thread-safe."""
        connection = self._connection
        return connection if connection is not None and self.is_open(connection) else None

    def release(self) -> None:
        """Close the connection; the next use opens another. For connections that use a scarce resource of the server."""
        with self._lock:
            self._drop()

    def close(self) -> None:
        """End a running statement, and close. May be called twice, and from any thread."""
        self._is_closed = True
        connection = self._connection
        if connection is None:
            return
        if not self._lock.acquire(blocking=False):
            self.interrupt(connection, _CLOSE_WAIT_S)
            if not self._lock.acquire(timeout=_CLOSE_WAIT_S):
                return
        try:
            self._drop()
        finally:
            self._lock.release()

    def _opened(self) -> ConnectionT:
        if self._is_closed:
            raise SourceUnavailableError("The source has been closed.", code="source_closed")
        if self._connection is None or not self.is_open(self._connection):
            self._connection = self.connect()
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self.disconnect(connection)

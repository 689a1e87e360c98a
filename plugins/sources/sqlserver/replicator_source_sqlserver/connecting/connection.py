"""Connections to SQL Server through ODBC, one per role of a source."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Final

import pyodbc
from typing_extensions import override

from replicator.model.errors import ReplicatorError
from replicator.plugins.kit.session import Session as KitSession
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.connecting.driver import DriverSettings, settings_of, write_freetds_conf
from replicator_source_sqlserver.connecting.errors import CANCELLED, translate, translate_connect

Row = Sequence[Any]

# Read by FreeTDS whenever it connects, of the whole process.
_FREETDS_CONF: Final = "FREETDSCONF"
_CONNECTING = threading.Lock()


class Connection:
    """A connection of pyodbc's in autocommit, and the statement that runs on it."""

    def __init__(self, raw: pyodbc.Connection) -> None:
        """Take a connection that is open."""
        self.raw = raw
        self._running: pyodbc.Cursor | None = None
        # Drivers crash when a statement is closed while another thread cancels it.
        self._closing = threading.Lock()
        self._number: int | None = None
        self._is_cancelled = False

    @property
    def is_cancelled(self) -> bool:
        """Return whether `cancel` was called: nothing runs on it any more."""
        return self._is_cancelled

    def number(self) -> int:
        """The server's number of the session."""
        if self._number is None:
            self._number = int(self.rows("SELECT @@SPID")[0][0])
        return self._number

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> None:
        """Run a statement that has no rows."""
        with self._cursor() as cursor:
            cursor.execute(statement, *parameters)
            _exhaust(cursor)

    def changed(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement that has no rows; return how many rows it changed."""
        with self._cursor() as cursor:
            cursor.execute(statement, *parameters)
            count = int(cursor.rowcount)
            _exhaust(cursor)
            return count

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Return all rows of one query."""
        with self._cursor() as cursor:
            return list(cursor.execute(query, *parameters).fetchall())

    def blocks(
        self, query: str, parameters: Sequence[Any], rows_max: int | Callable[[], int]
    ) -> Generator[list[Row], None, None]:
        """Return the rows of one query, some at a time; `rows_max` may be asked before each time. Close it to end the statement early."""
        with self._cursor() as cursor:
            cursor.execute(query, *parameters)
            while rows := cursor.fetchmany(rows_max if isinstance(rows_max, int) else rows_max()):
                self._verify_not_cancelled()
                yield list(rows)

    def begin_snapshot(self) -> None:
        """Begin a SNAPSHOT transaction. Its first read settles what it sees."""
        self.execute("SET TRANSACTION ISOLATION LEVEL SNAPSHOT")
        self.execute("BEGIN TRANSACTION")

    def end_snapshot(self) -> None:
        """End the transaction. The isolation would outlive it otherwise."""
        self.execute("ROLLBACK TRANSACTION")
        self.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")

    def cancel(self) -> None:
        """End the running statement, from another thread; the waiting thread gets an error, and its next statement ends with one, too."""
        self._is_cancelled = True
        with self._closing:
            if self._running is not None:
                # It may have ended meanwhile.
                with suppress(pyodbc.Error):
                    self._running.cancel()

    def _verify_not_cancelled(self) -> None:
        if self._is_cancelled:
            raise _cancelled()

    @contextmanager
    def _cursor(self) -> Iterator[pyodbc.Cursor]:
        self._verify_not_cancelled()
        cursor = self._running = self.raw.cursor()
        try:
            yield cursor
            # What was cancelled may end as if it had no more rows, and between two fetches a driver has nothing to cancel.
            self._verify_not_cancelled()
        except pyodbc.Error as error:
            if self._is_cancelled:
                raise _cancelled() from error
            raise
        finally:
            with self._closing:
                self._running = None
            # An error of the statement is the one to tell.
            with suppress(pyodbc.Error):
                cursor.close()


def _exhaust(cursor: pyodbc.Cursor) -> None:
    """Read a statement to its end: after a message or a result an error would stay unseen, and the rest might not run."""
    while cursor.nextset():
        pass


def _cancelled() -> pyodbc.Error:
    return pyodbc.OperationalError(CANCELLED, f"[{CANCELLED}] The statement was cancelled from our side.")


class Connector:
    """Opens connections of one configuration. FreeTDS's file is in a folder that ends with this object."""

    def __init__(self, config: SqlServerConfig) -> None:
        """Describe connections; nothing is opened yet."""
        self.config = config
        self._lock = threading.Lock()
        self._settings: DriverSettings | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._conf: Path | None = None

    def connect(self) -> pyodbc.Connection:
        """Open a connection.

        Raises:
            pyodbc.Error: It cannot be opened.
            ConfigError: `tls_not_verifiable`, `driver_cannot_be_told`.
        """
        settings = self._prepared()
        seconds = max(1, round(self.config.connect_timeout.total_seconds()))
        with _CONNECTING, _environment({} if self._conf is None else {_FREETDS_CONF: str(self._conf)}):
            # A pool would hand out connections with settings, and locks, of others.
            pyodbc.pooling = False
            # What a server sends has a point, whatever the process's locale has: pyodbc would leave it out, and read 1.5 as 15.
            pyodbc.setDecimalSeparator(".")
            return pyodbc.connect(settings.connection_string, autocommit=True, timeout=seconds)

    def close(self) -> None:
        """Remove FreeTDS's file."""
        with self._lock:
            folder, self._folder, self._conf, self._settings = self._folder, None, None, None
        if folder is not None:
            folder.cleanup()

    def _prepared(self) -> DriverSettings:
        with self._lock:
            if self._settings is None:
                self._settings = settings_of(self.config)
                if self._settings.freetds_conf is not None:
                    self._folder = tempfile.TemporaryDirectory(prefix="replicator-freetds-")
                    self._conf = write_freetds_conf(self._settings.freetds_conf, Path(self._folder.name))
            return self._settings


class Session(KitSession[Connection]):
    """A connection that is opened when first needed. After any error it is closed, so no statement or transaction is left open."""

    # pyodbc reads the halves of surrogate pairs, which nvarchar may hold alone, as what they are: no text.
    driver_errors: ClassVar[tuple[type[Exception], ...]] = (pyodbc.Error, UnicodeDecodeError)

    def __init__(
        self, connector: Connector, *, is_bounded: bool = True, verify: Callable[[Connection], None] = lambda _: None
    ) -> None:
        """Describe the connection.

        Args:
            connector: Shared by all sessions of a source.
            is_bounded: True if a statement may run for `statement_timeout` only.
            verify: Raises an error of ours if a connection that was just opened may not be used.
        """
        super().__init__(connector.config.server)
        self._connector = connector
        self._is_bounded = is_bounded
        self._verify = verify

    def rows(self, doing: str, query: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Return all rows of one query."""
        with self.use(doing) as connection:
            return connection.rows(query, parameters)

    @override
    def connect(self) -> Connection:
        config = self._connector.config
        connection = Connection(self._connector.connect())
        try:
            # The capture job, and any other session in a deadlock with us, wins.
            connection.execute("SET DEADLOCK_PRIORITY LOW")
            connection.execute(f"SET LOCK_TIMEOUT {round(config.lock_timeout.total_seconds() * 1000)}")
            # Else FreeTDS may cut what is longer, and says nothing.
            connection.execute("SET TEXTSIZE 2147483647")
            # The server may have other defaults for everybody (`user options`): counts that stay unknown, errors that end a transaction.
            connection.execute("SET NOCOUNT OFF; SET XACT_ABORT OFF; SET IMPLICIT_TRANSACTIONS OFF")
            if self._is_bounded:
                connection.raw.timeout = max(1, round(config.statement_timeout.total_seconds()))
            self._verify(connection)
        except BaseException:
            # However the session ended, it may not be left on the server.
            self.disconnect(connection)
            raise
        return connection

    @override
    def is_open(self, connection: Connection) -> bool:
        return not connection.raw.closed

    @override
    def is_reusable(self, connection: Connection, *, has_failed: bool) -> bool:
        return not has_failed and not connection.is_cancelled

    @override
    def disconnect(self, connection: Connection) -> None:
        # It may be lost already: that is what is wanted.
        with suppress(pyodbc.Error):
            connection.raw.close()

    @override
    def interrupt(self, connection: Connection, wait_s: float) -> None:
        connection.cancel()

    @override
    def translated(self, error: Exception, doing: str, table: str | None) -> ReplicatorError:
        return translate(error, doing=doing, table=table)

    @override
    def translated_connect(self, error: Exception, doing: str) -> ReplicatorError:
        return translate_connect(error, doing=doing, tls=self._connector.config.tls_mode)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

"""The model as a test uses it: a server that ODBC drivers connect to, its database, its users, and its capture job."""

from __future__ import annotations

import contextlib
import hmac
import ssl
from collections.abc import Iterator, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Final, Self

from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.capture.job import CaptureJob, Clock, utc_now
from replicator_testbed.sqlserver.drivers import Address
from replicator_testbed.sqlserver.engine.commands import HANDLERS
from replicator_testbed.sqlserver.engine.database import Database
from replicator_testbed.sqlserver.engine.names import quoted
from replicator_testbed.sqlserver.engine.session import Session
from replicator_testbed.sqlserver.outcomes import SqlError
from replicator_testbed.sqlserver.server import TdsServer
from replicator_testbed.sqlserver.tds.handshake import Login

DATABASE: Final = "shop"
USER: Final = "app"
PASSWORD: Final = "Correct.Horse-9"  # noqa: S105 - of a server on loopback that lives as long as a test


class SqlServerModel:
    """A running model, on a database of a PostgreSQL that runs; a context manager."""

    def __init__(
        self,
        postgres: PostgresServer,
        *,
        database: str = DATABASE,
        users: Mapping[str, str] | None = None,
        readers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        clock: Clock = utc_now,
    ) -> None:
        """Describe a model.

        Args:
            postgres: Where its data is.
            database: The one database that it has.
            users: Passwords by user, who may do everything; the default is USER with PASSWORD.
            readers: Passwords by user, who may do what is granted to them.
            tls: Its certificate. Without it the model does not encrypt.
            clock: Of the capture job: it decides about rows without a transaction, lag and retention.
        """
        self._postgres = postgres
        self._name = database
        self._owners = dict(users or {USER: PASSWORD})
        self._users = self._owners | dict(readers or {})
        self._tls = tls
        self._clock = clock
        self._stack = contextlib.ExitStack()
        self.port = 0
        self.called = set[str]()
        """What clients have called the server."""

    def __enter__(self) -> Self:
        """Make the database, and listen."""
        with contextlib.ExitStack() as stack:
            scratch = stack.enter_context(self._postgres.database())
            self.database = Database(scratch.dsn, self._name)
            stack.callback(self.database.close)
            for owner in self._owners:
                self.database.permissions.set_owner(owner, is_owner=True)
            self.capture = CaptureJob(self.database, clock=self._clock)
            stack.callback(self.capture.close)
            self.server = stack.enter_context(TdsServer(self._open, tls=self._tls))
            self.port = self.server.port
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End every connection, and remove the database."""
        self._stack.close()

    @property
    def host(self) -> str:
        """The address that it listens on."""
        return self.server.host

    @property
    def password(self) -> str:
        """Of the first of its users."""
        return self.address.password

    @property
    def address(self) -> Address:
        """Where to connect, as the first of its users."""
        return self.address_of(next(iter(self._users)))

    def address_of(self, user: str) -> Address:
        """Where to connect as one of its users."""
        return Address(host=self.host, port=self.port, user=user, password=self._users[user], database=self._name)

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """The server is down until the context is left, and SQL Server Agent with it: what its capture job had not read is in the log."""
        is_capturing = self.capture.is_started
        self.capture.stop()
        with self.server.away():
            yield
        if is_capturing:
            self.capture.start()

    def change(self, **facts: bool | int | str) -> None:
        """Change what no statement of T-SQL of the model changes.

        `edition`, `engine_edition`, `version`, `is_read_only`, `is_agent_running`, `is_published`, `is_accelerated` (accelerated database
        recovery).
        """
        for name, value in facts.items():
            self.database.execute(f"UPDATE sqlserver.database SET {quoted(name)} = %s", [value])

    def set_clock(self, ahead: timedelta) -> None:
        """Set the server's clock: from now on its times are so far ahead of the true ones, or behind them."""
        self.database.execute("INSERT INTO sqlserver.clock VALUES (clock_timestamp() AT TIME ZONE 'UTC', %s)", [ahead])

    def grant(self, user: str, permission: str, schema: str, name: str) -> None:
        """Grant what a GRANT in this database cannot: something in msdb."""
        with self.database.connect() as connection:
            number = self.database.names(connection).table(schema, name).oid
        self.database.permissions.change(user, [permission], number, to=True)

    def _open(self, login: Login) -> Session:
        self.called.add(login.server)
        password = self._users.get(login.user)
        if password is None or not hmac.compare_digest(password.encode(), login.password.encode()):
            raise SqlError(18456, f"Login failed for user '{login.user}'.", severity=14)
        if login.database and login.database.lower() not in {self._name.lower(), "master"}:
            raise SqlError(
                4060, f'Cannot open database "{login.database}" requested by the login. The login failed.', severity=11
            )
        return Session(self.database, login.user, HANDLERS)

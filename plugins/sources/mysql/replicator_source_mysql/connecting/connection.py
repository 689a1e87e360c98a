"""Connections to the server: one per role, opened when first needed and again after it was lost."""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Sequence
from typing import Any, ClassVar, Final, TypeAlias

import pymysql
import pymysql.connections
from typing_extensions import override

from replicator.model.errors import ReplicatorError, SourceUnavailableError
from replicator.model.schema import TableId
from replicator.plugins.kit.session import Session as KitSession
from replicator_source_mysql.config import MysqlConfig
from replicator_source_mysql.connecting.errors import translate
from replicator_source_mysql.flavors import Flavor, flavor_of_server, version_of

Connection: TypeAlias = pymysql.connections.Connection
Row = tuple[Any, ...]

_READ_MARGIN_S: Final = 60.0
_TLS_REFUSED: Final = 2026
# What makes values canonical: no padding, no zone, and identifiers and strings quoted as we quote them.
_SQL_MODE: Final = "NO_BACKSLASH_ESCAPES"


def connect(config: MysqlConfig, *, read_timeout_s: float) -> Connection:
    """Open a connection: UTF-8, UTC, autocommit, TLS as configured, no LOAD DATA LOCAL.

    Args:
        config: Address and account.
        read_timeout_s: Longest silence of the server that is not taken for its end.

    Raises:
        pymysql.MySQLError, OSError: As PyMySQL.
    """
    connection = pymysql.connect(
        host=config.host,
        port=config.port,
        user=config.user,
        password=config.password.reveal() if config.password is not None else "",
        charset="utf8mb4",
        connect_timeout=max(1, round(config.connect_timeout.total_seconds())),
        read_timeout=read_timeout_s,
        write_timeout=config.connect_timeout.total_seconds(),
        autocommit=True,
        local_infile=False,
        ssl=config.tls_context(),
        ssl_disabled=config.tls_mode == "disable",
        program_name="replicator",
        defer_connect=True,
    )
    try:
        connection.connect()
        _verify_tls(connection, config)
        with connection.cursor() as cursor:
            # PyMySQL believes the greeting, in which MySQL says that autocommit is on where `SET GLOBAL autocommit = OFF` made it
            # off: a session would then read in one transaction, and so as of one moment, permanently.
            cursor.execute(
                f"SET autocommit = 1, time_zone = '+00:00', sql_mode = '{_SQL_MODE}', character_set_results = 'utf8mb4'"
            )
    except BaseException:
        # Whatever ended it, an interrupt too, no session may be left on the server; that it cannot say goodbye is not the news.
        with contextlib.suppress(pymysql.MySQLError):
            connection.close()
        raise
    return connection


def _verify_tls(connection: Connection, config: MysqlConfig) -> None:
    # PyMySQL has no name for its socket.
    if config.demands_tls and not isinstance(connection._sock, ssl.SSLSocket):  # noqa: SLF001
        raise pymysql.err.OperationalError(_TLS_REFUSED, "the connection is not encrypted, although TLS is demanded")


class SameServer:
    """Holds all connections of one source object to one server. Thread-safe.

    A name or a proxy may lead to several servers: what one of them has logged, another may not show yet.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._name: str | None = None

    def verify(self, connection: Connection) -> None:
        """Take the first server that answers for the one, and refuse any other.

        Raises:
            SourceUnavailableError: Another one answers: a new process begins with whichever answers then.
        """
        ((name,),) = rows_of(connection, flavor_of(connection).identity_query)
        with self._lock:
            if self._name is None:
                self._name = str(name)
            if self._name != str(name):
                raise SourceUnavailableError(
                    f"The connection reached another server: {name}. Before, it was {self._name}.",
                    code="another_server",
                    action="Set source.host to one server. A proxy must not spread connections over several servers.",
                )


def verify_host(config: MysqlConfig, same: SameServer) -> None:
    """Verify over a new connection that the host still leads to the same server: open connections do not notice a failover.

    Raises:
        SourceUnavailableError: It leads to another one. A server that does not answer is left to the connections that are in use.
    """
    with contextlib.suppress(pymysql.MySQLError, OSError):
        connection = connect(config, read_timeout_s=config.connect_timeout.total_seconds())
        try:
            same.verify(connection)
        finally:
            connection.close()


class Session(KitSession[Connection]):
    """A connection of PyMySQL's. After any error it is closed, so no half-finished statement or transaction stays."""

    driver_errors: ClassVar[tuple[type[Exception], ...]] = (pymysql.MySQLError, OSError)

    def __init__(
        self, config: MysqlConfig, same: SameServer, *, is_bounded: bool = True, is_reading: bool = False
    ) -> None:
        """Describe the connection; nothing is opened yet.

        Args:
            config: Address and account.
            same: Shared by all connections of a source.
            is_bounded: A statement may run for `statement_timeout` only.
            is_reading: Tables are read over it.
        """
        super().__init__(config.server)
        self._config = config
        self._same = same
        self._is_bounded = is_bounded
        self._is_reading = is_reading

    def rows(self, doing: str, query: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """All rows of one query."""
        with self.use(doing) as connection:
            return rows_of(connection, query, parameters)

    @override
    def connect(self) -> Connection:
        bound = self._config.statement_timeout.total_seconds()
        connection = connect(self._config, read_timeout_s=bound + _READ_MARGIN_S)
        try:
            self._same.verify(connection)
            self._set_bounds(connection)
        except BaseException:
            # Whatever ended it, no session may be left on the server.
            self.disconnect(connection)
            raise
        return connection

    @override
    def is_open(self, connection: Connection) -> bool:
        return bool(connection.open)

    @override
    def is_reusable(self, connection: Connection, *, has_failed: bool) -> bool:
        # It may be in the middle of a result.
        return not has_failed

    @override
    def disconnect(self, connection: Connection) -> None:
        # It may be closed already: that is what is wanted.
        with contextlib.suppress(pymysql.MySQLError):
            connection._force_close()  # noqa: SLF001 - PyMySQL's close would send a message into the running one

    @override
    def interrupt(self, connection: Connection, wait_s: float) -> None:
        # The thread that reads from it finds the socket closed.
        self.disconnect(connection)

    @override
    def translated(self, error: Exception, doing: str, table: str | None) -> ReplicatorError:
        return translate(error, doing=doing, table=table)

    def _set_bounds(self, connection: Connection) -> None:
        seconds = max(1, round(self._config.lock_timeout.total_seconds()))
        flavor = flavor_of(connection)
        settings: dict[str, Any] = {
            "lock_wait_timeout": seconds,
            "innodb_lock_wait_timeout": seconds,
            # A server's own values may cut results short, and compare no more than the beginning of long keys when sorting.
            "sql_select_limit": (1 << 64) - 1,
            "max_sort_length": 8 << 20,
        }
        if self._is_reading:
            # MariaDB ignores WITH CONSISTENT SNAPSHOT at lower levels; and rows wait in the socket while the journal is slow.
            settings |= {flavor.isolation_variable: "'REPEATABLE-READ'", "net_write_timeout": 3600}
        settings |= flavor.session_settings(version_of(connection.get_server_info()))
        if self._is_bounded:
            name, bound = flavor.statement_bound(self._config.statement_timeout.total_seconds())
            settings[name] = bound
        with connection.cursor() as cursor:
            cursor.execute("SET " + ", ".join(f"SESSION {name} = {value}" for name, value in settings.items()))


def rows_of(connection: Connection, query: str, parameters: Sequence[Any] = ()) -> list[Row]:
    """All rows of one query."""
    with connection.cursor() as cursor:
        cursor.execute(query, tuple(parameters) or None)
        return list(cursor.fetchall())


def flavor_of(connection: Connection) -> Flavor:
    """The flavor of the server, by what it said when it was connected to."""
    return flavor_of_server(connection.get_server_info())


def quoted(name: str) -> str:
    """An identifier in backticks."""
    if "\0" in name:
        raise ValueError("an identifier has a NUL")
    return "`" + name.replace("`", "``") + "`"


def quoted_table(table: TableId) -> str:
    """A table's name in backticks."""
    return f"{quoted(table.namespace)}.{quoted(table.name)}"


def literal(text: str) -> str:
    """A string literal, under NO_BACKSLASH_ESCAPES."""
    return "'" + text.replace("'", "''") + "'"

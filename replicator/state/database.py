"""The connection to the state store: transactions, the store's clock, and everything that differs between SQLite and PostgreSQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, Table, create_engine, event, func, select, text, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, OperationalError

from replicator.model.errors import ConfigError
from replicator.state.errors import translated
from replicator.state.local_files import prepared_file
from replicator.state.migrations import POSTGRESQL_SCHEMA, is_current, migrate
from replicator.state.tables import REPLICATORS, STORE

POOL_SIZE: Final = 5
_ROWS_PER_STATEMENT: Final = 500
_APPLICATION: Final = "replicator"
_LOCK_NOT_AVAILABLE: Final = "55P03"
_END_SLEEPERS: Final = text(
    # What `idle_in_transaction_session_timeout` does, where the server did not: its timer can get lost, and poolers drop the setting.
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND usename = current_user"
    " AND application_name = :application AND state LIKE 'idle in transaction%'"
    " AND clock_timestamp() - state_change > make_interval(secs => :seconds)"
)
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def parse_state_url(text: str) -> URL:
    """Read a state store's URL: `sqlite:///path` or `postgresql://…`.

    Raises:
        ConfigError: `invalid_state_url`. The message never repeats the text, which may hold a password.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise _invalid("it is not a URL") from error
    if "@" in (url.host or ""):
        # The end of the password would be taken for the host's name, and shown.
        raise _invalid("user or password have an @, which is written %40")
    if url.drivername in {"sqlite", "sqlite+pysqlite"}:
        if not url.database or url.database == ":memory:" or url.query:
            raise _invalid("a SQLite store is a file without options")
        return url.set(drivername="sqlite+pysqlite")
    if url.drivername in {"postgresql", "postgres", "postgresql+psycopg"}:
        return url.set(drivername="postgresql+psycopg")
    raise _invalid(f"{url.drivername} is not supported")


def is_shared(url: URL) -> bool:
    """Whether workers on several hosts may use the store: PostgreSQL, unless it is reached over loopback or a local socket."""
    if not is_server(url):
        return False
    host = url.host or url.query.get("host") or ""
    hosts = [host] if isinstance(host, str) else list(host)
    return not all(h == "" or h.startswith("/") or h in _LOOPBACK for h in hosts)


def is_server(url: URL) -> bool:
    """Whether the store is a server, which workers with homes of their own can share."""
    return url.get_backend_name() == "postgresql"


def utc_now() -> datetime:
    """This host's clock."""
    return datetime.now(UTC)


class Database:
    """An engine whose transactions raise our errors.

    Args:
        url: As `parse_state_url` takes it.
        busy_timeout_s: How long a statement waits for another process's lock.
        clock: The clock of a SQLite store, which is this host's; PostgreSQL has its own.
    """

    def __init__(self, url: str, *, busy_timeout_s: float, clock: Callable[[], datetime]) -> None:
        self._url = parse_state_url(url)
        self._clock, self._busy_timeout_s = clock, busy_timeout_s
        self.location = _location(self._url)
        if self._url.get_backend_name() == "sqlite":
            assert self._url.database is not None
            self._engine = _sqlite_engine(self._url, busy_timeout_s)
            with prepared_file(Path(self._url.database)):
                self._open()
        else:
            self._engine = _postgresql_engine(self._url, busy_timeout_s)
            self._open()

    def close(self) -> None:
        """Close all connections. May be called twice."""
        self._engine.dispose()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One read transaction: everything in it sees the same state."""
        with translated(self.location), self._engine.connect() as connection:
            if self._engine.dialect.name == "postgresql":
                connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            with connection.begin():
                yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One write transaction, committed at the end of the block and rolled back by an exception.

        If a lock was not free in time, transactions of processes that sleep are ended, so that the next attempt succeeds.
        """
        with translated(self.location):
            try:
                with self._engine.connect() as connection:
                    connection.execution_options(is_write=True)
                    with connection.begin():
                        yield connection
            except OperationalError as error:
                if getattr(error.orig, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
                    self._end_sleepers()
                raise

    def now(self, connection: Connection) -> datetime:
        """The store's clock."""
        if self._engine.dialect.name != "postgresql":
            return self._clock()
        moment = connection.scalar(select(func.clock_timestamp()))
        assert isinstance(moment, datetime)
        return moment.astimezone(UTC)

    def _end_sleepers(self) -> None:
        with self._engine.connect() as connection, connection.begin():
            ended = connection.scalars(
                _END_SLEEPERS, {"application": _APPLICATION, "seconds": self._busy_timeout_s}
            ).all()
        if ended:
            from replicator.observability import get_logger  # what only looks does without it

            get_logger(__name__).warning("sleeping_transactions_ended", sessions=len(ended))

    def _open(self) -> None:
        try:
            with self.read() as connection:
                is_ready = is_current(connection, self.location)
            if not is_ready:
                with self.write() as connection:
                    migrate(connection, self.location)
        except BaseException:
            # No caller gets an object to close.
            self.close()
            raise


def check_exists(connection: Connection, name: str) -> None:
    """Refuse to write to a replicator that is not stored.

    Raises:
        ConfigError: `unknown_replicator`.
    """
    if connection.scalar(select(REPLICATORS.c.name).where(REPLICATORS.c.name == name)) is None:
        raise ConfigError(
            f"There is no replicator named {name}.",
            code="unknown_replicator",
            action="`replicator list` shows those that exist.",
        )


def next_id(connection: Connection) -> int:
    """An id that the store never gave out before."""
    connection.execute(update(STORE).values(last_id=STORE.c.last_id + 1))
    drawn: int = connection.scalars(select(STORE.c.last_id)).one()
    return drawn


def upsert(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows, each in place of the one with the same primary key."""
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    key = [column.name for column in table.primary_key]
    for start in range(0, len(rows), _ROWS_PER_STATEMENT):
        statement = make(table)
        statement = statement.on_conflict_do_update(
            index_elements=key, set_={c.name: statement.excluded[c.name] for c in table.columns if c.name not in key}
        )
        connection.execute(statement, [dict(row) for row in rows[start : start + _ROWS_PER_STATEMENT]])


def _sqlite_engine(url: URL, busy_timeout_s: float) -> Engine:
    engine = create_engine(url, pool_size=POOL_SIZE, max_overflow=POOL_SIZE, hide_parameters=True)

    @event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _: object) -> None:
        # The driver would begin transactions by itself, and only before writes; `_begin` does it instead.
        connection.isolation_level = None
        for pragma in (
            f"busy_timeout = {int(busy_timeout_s * 1000)}",
            "journal_mode = WAL",
            "synchronous = FULL",
            "foreign_keys = ON",
        ):
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # IMMEDIATE: a read that later turns into a write could not wait for another writer.
        is_write = connection.get_execution_options().get("is_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if is_write else "BEGIN")

    return engine


def _postgresql_engine(url: URL, busy_timeout_s: float) -> Engine:
    timeout_ms = int(busy_timeout_s * 1000)
    # The server ends a statement before its client gives up on it.
    statement_ms, answer_s = 6 * timeout_ms, 7 * busy_timeout_s
    settings = {
        "search_path": POSTGRESQL_SCHEMA,
        "lock_timeout": timeout_ms,
        "statement_timeout": statement_ms,
        # A process that sleeps amid a transaction keeps nobody from taking over for longer than its lease lasts.
        "idle_in_transaction_session_timeout": timeout_ms,
    }
    given = url.query.get("options", ())
    options = [given] if isinstance(given, str) else list(given)
    try:
        engine = create_engine(
            url.difference_update_query(["options"]),
            pool_size=POOL_SIZE,
            max_overflow=POOL_SIZE,
            pool_pre_ping=True,
            hide_parameters=True,
            connect_args={
                "application_name": _APPLICATION,
                "options": " ".join([*options, *(f"-c {name}={value}" for name, value in settings.items())]),
            },
        )
        from replicator.state.postgresql import connector
    except ImportError as error:
        raise ConfigError(
            "A state store on PostgreSQL needs psycopg, which is not installed.",
            code="missing_driver",
            action="Install `replicator[postgresql]`.",
        ) from error
    connect = connector(answer_s)

    @event.listens_for(engine, "do_connect")
    def _connect(_: object, __: object, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
        return connect(*arguments, **options)

    return engine


def _location(url: URL) -> str:
    if url.get_backend_name() == "sqlite":
        return str(Path(url.database or "").absolute())
    return url.set(drivername="postgresql", password=None, query={}).render_as_string()


def _invalid(fact: str) -> ConfigError:
    return ConfigError(
        f"The state store's URL cannot be used: {fact}.",
        code="invalid_state_url",
        action="Set REPLICATOR_STATE_URL to `sqlite:////path/of/state.db` or `postgresql://user@host/database`.",
    )

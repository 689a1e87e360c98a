"""The connection to the state store: transactions, the store's clock, and everything that differs between SQLite and PostgreSQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, Engine, Table, create_engine, event, func, select, text, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import URL
from sqlalchemy.exc import OperationalError

from replicator.model.errors import ConfigError
from replicator.state.database import address
from replicator.state.database.errors import translated
from replicator.state.database.local_files import prepared_file
from replicator.state.database.migrations import POSTGRESQL_SCHEMA, is_current, migrate
from replicator.state.tables import REPLICATORS, STORE

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql

POOL_SIZE: Final = 5
_ROWS_PER_STATEMENT: Final = 500
_APPLICATION: Final = "replicator"
_LOCK_NOT_AVAILABLE: Final = "55P03"
_END_SLEEPERS: Final = text(
    # Does the work of `idle_in_transaction_session_timeout` where the server did not: its timer can get lost, and poolers drop the setting.
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND usename = current_user"
    " AND application_name = :application AND state LIKE 'idle in transaction%'"
    " AND clock_timestamp() - state_change > make_interval(secs => :seconds)"
)


def utc_now() -> datetime:
    """Return this host's time."""
    return datetime.now(UTC)


class Database:
    """An engine whose transactions raise our errors.

    Args:
        url: A URL for `address.parse_state_url`. Its secrets are masked from now on.
        busy_timeout_s: Seconds that a statement waits for another process's lock.
        clock: The clock of a SQLite store, which is this host's; PostgreSQL has its own.
    """

    def __init__(self, url: str, *, busy_timeout_s: float, clock: Callable[[], datetime]) -> None:
        self._url = address.parse_state_url(url)
        if secrets := address.secrets(self._url):
            from replicator.observability import register_secret  # what only looks at a local store does without it

            for secret in secrets:
                register_secret(secret)
        self._clock, self._busy_timeout_s = clock, busy_timeout_s
        self.location = address.location(self._url)
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
        """Open a read transaction: everything in it sees the same state."""
        with translated(self.location), self._engine.connect() as connection:
            if self._engine.dialect.name == "postgresql":
                connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            with connection.begin():
                yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a write transaction, committed at the end of the block and rolled back by an exception.

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
        """Return the store's time."""
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
    """Return an id that the store never assigned before."""
    connection.execute(update(STORE).values(last_id=STORE.c.last_id + 1))
    drawn: int = connection.scalars(select(STORE.c.last_id)).one()
    return drawn


def insert_into(connection: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """Return an INSERT that may say what to do about a conflict."""
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import (
            postgresql,
        )  # of SQLAlchemy's modules the one that a local store would load in vain

        return postgresql.insert(table)
    return sqlite.insert(table)


def upsert(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows, each replacing the one with the same primary key."""
    key = [column.name for column in table.primary_key]
    for start in range(0, len(rows), _ROWS_PER_STATEMENT):
        statement = insert_into(connection, table)
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
                **address.protection(url),
                "options": " ".join([*options, *(f"-c {name}={value}" for name, value in settings.items())]),
            },
        )
        from replicator.state.database.postgresql import connector
    except ImportError as error:
        raise ConfigError(
            "A state store on PostgreSQL needs psycopg, which is not installed.",
            code="missing_driver",
            action="Install `replicator[postgresql]`.",
        ) from error
    connect = connector(answer_s, demands_tls=address.demands_tls(url))

    @event.listens_for(engine, "do_connect")
    def _connect(_: object, __: object, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
        return connect(*arguments, **options)

    return engine

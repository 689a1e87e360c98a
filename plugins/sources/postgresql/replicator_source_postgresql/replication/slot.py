"""A replicator's replication slot: named, made, read, dropped, and the sessions that its making waits for."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql

from replicator.model.errors import ConfigError, SourceUnavailableError
from replicator.plugins.source import LogRetention
from replicator_source_postgresql.catalogue.discovery import Connection
from replicator_source_postgresql.catalogue.raw_texts import catalogue_texts, shown
from replicator_source_postgresql.lsn import lsn_from_text

PLUGIN: Final = "pgoutput"
VERSION_INVALIDATION_REASON: Final = 170000
NAME_BYTES_MAX: Final = 63
BLOCKERS_MAX: Final = 20

_PREFIX: Final = "replicator_"


def resource_name(replicator: str) -> str:
    """The name of slot and publication of a replicator, unlike that of any other replicator.

    Slots allow no hyphen. Where replacing it, or the length, could make two names one, a hash of the name tells them apart.
    """
    name = _PREFIX + replicator.replace("-", "_")
    if "-" not in replicator and len(name) <= NAME_BYTES_MAX:
        return name
    digest = hashlib.sha256(replicator.encode()).hexdigest()[:8]
    return f"{name[: NAME_BYTES_MAX - 9]}_{digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """A replication slot as the server shows it. `lost` says why it can no longer be read, None if it can."""

    name: str
    plugin: str | None
    database: str | None
    is_temporary: bool
    active_pid: int | None
    confirmed_flush: int | None
    lost: str | None

    def unusable_in(self, database: str) -> str | None:
        """Return the reason why the slot cannot serve for this database, whatever its position; None if it can."""
        if self.plugin is None:
            return "is a physical slot"
        if self.plugin != PLUGIN:
            return f"was created with the plugin {self.plugin}, not with {PLUGIN}"
        if self.database != database:
            return f"belongs to the database {self.database}"
        return "is temporary" if self.is_temporary else None


def read_slot(connection: Connection, name: str) -> SlotState | None:
    """Read a slot; None if there is none of that name."""
    reason = "invalidation_reason" if connection.info.server_version >= VERSION_INVALIDATION_REASON else "NULL::text"
    row = connection.execute(
        f"SELECT plugin, database, temporary, active_pid, confirmed_flush_lsn::text, wal_status, {reason}"  # noqa: S608 our own text
        " FROM pg_replication_slots WHERE slot_name = %s".encode(),
        (name,),
    ).fetchone()
    if row is None:
        return None
    plugin, database, is_temporary, pid, flushed, wal_status, invalidation = row
    lost = invalidation or ("wal_removed" if wal_status == "lost" else None)
    return SlotState(
        name=name,
        plugin=plugin,
        database=database,
        is_temporary=is_temporary,
        active_pid=pid,
        confirmed_flush=lsn_from_text(flushed) if flushed else None,
        lost=lost,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLog:
    """The log that the server keeps for a slot.

    Attributes:
        now: The server's clock.
        retained: Bytes of log after the slot's position; None without the slot.
        retention: Bytes by which the log may still grow (`max_slot_wal_keep_size`).
    """

    now: datetime
    retained: int | None
    retention: LogRetention


def read_kept_log(connection: Connection, name: str) -> KeptLog:
    """Read the kept log, and the clock."""
    row = connection.execute(
        "SELECT clock_timestamp(), pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::int8,"
        " pg_size_bytes(current_setting('max_slot_wal_keep_size')),"
        " (SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::int8 FROM pg_replication_slots WHERE slot_name = %s),"
        " (SELECT safe_wal_size FROM pg_replication_slots WHERE slot_name = %s)",
        (name, name),
    ).fetchone()
    assert row is not None
    now, written, most, retained, left = row
    limit = LogRetention(bytes_written=written)
    if left is not None and most > 0:
        limit = LogRetention(bytes_written=written, bytes_left=max(0, left), bytes_max=most)
    return KeptLog(now=now.astimezone(UTC), retained=retained, retention=limit)


def create_slot(replication: Connection, name: str) -> int:
    """Create the slot and return its consistent point. Waits for the transactions that are open now; cancelled, nothing is left.

    Args:
        replication: A replication connection without statement and lock time-outs.
        name: The slot's name.
    """
    row = replication.execute(
        f"CREATE_REPLICATION_SLOT {sql.Identifier(name).as_string(None)} LOGICAL {PLUGIN} NOEXPORT_SNAPSHOT".encode()
    ).fetchone()
    assert row is not None
    return lsn_from_text(row[1])


def drop_slot(replication: Connection, slot: SlotState, *, wait_s: float) -> None:
    """Drop the slot, waiting up to `wait_s` for its present user to release it. Replay: does nothing.

    A reader that was killed a moment ago still counts as its user until the server has noticed.

    Args:
        replication: A replication connection without statement and lock time-outs.
        slot: The slot as it was seen.
        wait_s: Bound of the wait, in seconds.

    Raises:
        TransientError: `slot_active`.
    """
    try:
        with _cancelled_after(replication, wait_s):
            replication.execute(f"DROP_REPLICATION_SLOT {sql.Identifier(slot.name).as_string(None)} WAIT".encode())
    except psycopg.errors.UndefinedObject:
        return
    except psycopg.errors.QueryCanceled as error:
        raise slot_active_error(slot.name, slot.active_pid) from error


def slot_active_error(name: str, pid: int | None) -> SourceUnavailableError:
    """The error for a slot that another process reads."""
    holder = f"the server process {pid}" if pid is not None else "another process"
    return SourceUnavailableError(
        f"The replication slot {name} is in use by {holder}.",
        code="slot_active",
        action="Stop the other process: a second replicator of this name, or a reader that was just killed.",
    )


def verify_usable(slot: SlotState | None, name: str, database: str) -> SlotState:
    """Verify that the user's own slot can be read from now on.

    Raises:
        ConfigError: It does not exist, is of another kind, or has lost its log.
        TransientError: Another process reads it.
    """
    if slot is None:
        literal = sql.Literal(name).as_string(None)
        raise ConfigError(
            f"There is no replication slot {name} in the source.",
            code="slot_missing",
            action=f"Run there: SELECT pg_create_logical_replication_slot({literal}, '{PLUGIN}'); or leave source.slot out.",
        )
    if fault := slot.unusable_in(database):
        raise ConfigError(
            f"The replication slot {name} {fault}.",
            code="slot_unusable",
            action=f"Name a permanent logical slot of this database that uses {PLUGIN}.",
        )
    if slot.lost is not None:
        raise ConfigError(
            f"The replication slot {name} has lost its log ({slot.lost}).",
            code="slot_lost",
            action="Drop it and create it again.",
        )
    if slot.active_pid is not None:
        raise slot_active_error(name, slot.active_pid)
    return slot


@contextmanager
def _cancelled_after(connection: Connection, seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, connection.cancel_safe)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def blockers(connection: Connection, waiting_pid: int) -> list[str]:
    """Return the sessions that keep the making of a slot, by the server process `waiting_pid`, from ending; empty if there are none.

    The server waits for the open writing transactions of all databases, one after the other; those that it waits for now come first.
    """
    return _sessions(connection, _BLOCKERS_QUERY, {"pid": waiting_pid, "limit": BLOCKERS_MAX})


def unfinished(connection: Connection, next_id: int) -> list[str]:
    """Return the sessions with a transaction id below `next_id` (64 bits) that has not ended; the oldest first."""
    return _sessions(connection, _UNFINISHED_QUERY, {"next": next_id % (1 << 32), "limit": BLOCKERS_MAX})


def _sessions(connection: Connection, query: LiteralString, parameters: Mapping[str, int]) -> list[str]:
    """Return the sessions that a query names, a line each. Users and databases may have names that are no text here."""
    with catalogue_texts(connection):
        rows = connection.execute(query, parameters).fetchall()
    readable: list[list[Any]] = [[shown(value) if isinstance(value, str) else value for value in row] for row in rows]
    return [_blocker_text(*row) for row in readable]


def _blocker_text(
    pid: int | None, user: str | None, database: str | None, state: str | None, since: str | None, prepared: str | None
) -> str:
    if pid is None:
        return f"the prepared transaction {prepared!r} in {database}"
    details = [
        f"user {user}" if user else None,
        f"database {database}" if database else None,
        state,
        f"open since {since}" if since else None,
    ]
    text = ", ".join(detail for detail in details if detail)
    return f"pid {pid}" + (f" ({text})" if text else "")


# A transaction that has an id holds the exclusive lock on it, and so does a prepared one, without a process.
_HOLDERS: Final = """
holders AS (SELECT DISTINCT l.pid, CASE WHEN l.pid IS NULL THEN l.transactionid END AS prepared_id FROM pg_locks l
  WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted AND {condition})
SELECT h.pid, a.usename, coalesce(a.datname, x.database), a.state, to_char(a.xact_start, 'YYYY-MM-DD HH24:MI:SS TZ'), x.gid
FROM holders h
LEFT JOIN pg_stat_activity a ON a.pid = h.pid
LEFT JOIN pg_prepared_xacts x ON h.pid IS NULL AND x.transaction = h.prepared_id
"""
# Ids go round: the half of the circle before one is older than it.
_UNFINISHED_QUERY: Final = f"""
WITH {_HOLDERS.format(condition="(l.transactionid::text::int8 - %(next)s + 6442450944) %% 4294967296 < 2147483648")}
ORDER BY coalesce(a.xact_start, x.prepared), h.pid
LIMIT %(limit)s
"""
_BLOCKERS_QUERY: Final = f"""
WITH waits_for AS (SELECT unnest(pg_blocking_pids(%(pid)s)) AS pid),
{_HOLDERS.format(condition="l.pid IS DISTINCT FROM %(pid)s")}
WHERE EXISTS (SELECT FROM waits_for)
ORDER BY coalesce(h.pid, 0) IN (SELECT pid FROM waits_for) DESC, coalesce(a.xact_start, x.prepared), h.pid
LIMIT %(limit)s
"""  # noqa: S608 our own text

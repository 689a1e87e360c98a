"""Leases: the right to run a replicator, under an epoch.

A lease is one row for the whole life of a replicator. Its epoch grows each time it is taken, so that its former holder is refused
(`FencedError`) by everything that checks the epoch in its own transaction. All times are the store's.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Row, select, update

from replicator.model.errors import FencedError
from replicator.state.codec import read_lease
from replicator.state.database.engine import Database, check_exists
from replicator.state.records import Lease
from replicator.state.tables import LEASES

_PROC: Final = Path("/proc")
_STARTED_FIELD: Final = 19  # of /proc/<pid>/stat, counted after the command's closing bracket
_STATE_FIELD: Final = 0
_UNKNOWN: Final = "unknown"
HOST_VARIABLE: Final = "REPLICATOR_HOST"
_CLAIMS_KEPT: Final = 16


def host_name() -> str:
    """Return this host's name in leases, the status and `workers`: its own, unless `REPLICATOR_HOST` sets another."""
    return os.environ.get(HOST_VARIABLE) or socket.gethostname()


def holder_id(pid: int | None = None) -> str:
    """Return the name of this process (or another of this host) as a holder: `host:pid:boot/namespace/start`.

    Hosts may have the same name. The third part makes the name unique for all time: a later process with the same pid has another start
    time, another host another boot, and a container its own namespace of pids.
    """
    pid = os.getpid() if pid is None else pid
    return f"{host_name()}:{pid}:{_world()}/{_started(pid) or 0}"


def holder_in_words(holder: str) -> str:
    """Return a name made by `holder_id` for people: `process 123 on host shop-1`."""
    pid = pid_of(holder)
    return holder if pid is None else f"process {pid} on host {host_of(holder)}"


def host_of(holder: str) -> str:
    """Return the host in a name made by `holder_id`."""
    host, _, pid = holder.rpartition(":")[0].rpartition(":")
    return host if host and pid.isdigit() else holder


def pid_of(holder: str) -> int | None:
    """Return the process in a name made by `holder_id`."""
    pid = holder.rpartition(":")[0].rpartition(":")[2]
    return int(pid) if pid.isdigit() else None


def is_dead(holder: str) -> bool:
    """Return whether `holder` was a process of this host that no longer runs. False whenever that cannot be known."""
    host, _, rest = holder.rpartition(":")
    host, _, pid = host.rpartition(":")
    world, _, started = rest.rpartition("/")
    if host != host_name() or world == _UNKNOWN or world != _world() or not pid.isdigit():
        return False
    if _is_hidden(int(pid)):
        return False
    return _started(int(pid)) != started


def is_free(row: Row[Any], now: datetime, holder: str | None) -> bool:
    """Return whether `holder` may take the lease in `row`."""
    if row.holder is None or row.holder == holder or row.expires_at <= now:
        return True
    return is_dead(row.holder)


def _locked(connection: Connection, name: str) -> Row[Any] | None:
    return connection.execute(select(LEASES).where(LEASES.c.replicator == name).with_for_update()).one_or_none()


def _fenced(name: str, epoch: int, row: Row[Any] | None) -> FencedError:
    if row is None:
        message = f"The replicator {name} was deleted. This worker stops."
    elif row.holder:
        message = f"Another worker has taken over {name}: {holder_in_words(row.holder)}. This one stops (epoch {epoch}, now {row.epoch})."
    else:
        message = f"This worker no longer holds the lease of {name}, and nobody else does. It stops (epoch {epoch}, now {row.epoch})."
    return FencedError(message, code="fenced", action="Nothing to do: the worker that holds the lease continues.")


def _world() -> str:
    """Return an identifier of the host's boot and the namespace of pids, within which pids are comparable."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = (_PROC / "self/ns/pid").stat().st_ino
    except OSError:
        return _UNKNOWN
    return f"{boot}/{namespace}"


def _is_hidden(pid: int) -> bool:
    """Return whether the process runs, but `/proc` does not show it to this user (`hidepid`)."""
    if (_PROC / str(pid)).exists():
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        return False
    return False


def _started(pid: int) -> str | None:
    """Return the start time of a process in ticks since boot; None if it does not run (any more)."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command, in brackets, may itself hold brackets and blanks.
    fields = stat.rpartition(")")[2].split()
    return None if fields[_STATE_FIELD] in "ZX" else fields[_STARTED_FIELD]


class Leases:
    """Who may run each replicator. Errors as those of `StateStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def acquire(self, name: str, holder: str, ttl_s: float) -> Lease | None:
        """Take the lease if it is free, expired, already the holder's, or its holder is a dead process of this host; epoch + 1.

        None if another process holds it. `holder` comes from `replicator.state.holder_id`.
        """
        with self._database.write() as connection:
            check_exists(connection, name)
            now = self._database.now(connection)
            row = _locked(connection, name)
            if row is None or not is_free(row, now, holder):
                return None
            values = {"epoch": row.epoch + 1, "holder": holder, "expires_at": now + timedelta(seconds=ttl_s)}
            connection.execute(update(LEASES).where(LEASES.c.replicator == name).values(values))
            return Lease(replicator=name, **values)

    def renew(self, lease: Lease, ttl_s: float) -> Lease:
        """Return the same lease, with a later end. Raises FencedError if another process took it, or it was released."""
        with self._database.write() as connection:
            now = self._database.now(connection)
            row = check_epoch(connection, lease.replicator, lease.epoch)
            if row.holder != lease.holder:
                raise _fenced(lease.replicator, lease.epoch, row)
            if row.expires_at < lease.expires_at:
                raise FencedError(
                    f"The state store of the replicator {lease.replicator} was restored from a backup while it ran.",
                    code="fenced",
                    action="Start it again.",
                )
            expires_at = now + timedelta(seconds=ttl_s)
            connection.execute(
                update(LEASES).where(LEASES.c.replicator == lease.replicator).values(expires_at=expires_at)
            )
            return Lease(replicator=lease.replicator, epoch=lease.epoch, holder=lease.holder, expires_at=expires_at)

    def release(self, lease: Lease) -> None:
        """Let other processes take it at once. Replay, or another process took it: does nothing."""
        with self._database.write() as connection:
            mine = (
                (LEASES.c.replicator == lease.replicator)
                & (LEASES.c.epoch == lease.epoch)
                & (LEASES.c.holder == lease.holder)
            )
            connection.execute(update(LEASES).where(mine).values(holder=None, expires_at=None))

    def current(self, name: str) -> Lease | None:
        """Return the lease that a living worker holds; None if it may be taken."""
        with self._database.read() as connection:
            now = self._database.now(connection)
            row = connection.execute(select(LEASES).where(LEASES.c.replicator == name)).one_or_none()
            return None if row is None or is_free(row, now, holder=None) else read_lease(row)

    def check_epoch(self, name: str, epoch: int) -> None:
        """Raise FencedError unless `epoch` is the current one."""
        with self._database.write() as connection:
            check_epoch(connection, name, epoch)

    def claim_journal(self, name: str, epoch: int, token: str, count: int) -> None:
        """Record that the journal's folder is about to be claimed with this token and count (from 1). Errors as those of `check_epoch`."""
        with self._database.write() as connection:
            claims = dict(check_epoch(connection, name, epoch).journal_claims)
            claims.pop(token, None)
            latest = dict([*claims.items(), (token, count)][-_CLAIMS_KEPT:])
            connection.execute(update(LEASES).where(LEASES.c.replicator == name).values(journal_claims=latest))

    def journal_claims(self, name: str) -> Mapping[str, int]:
        """Return the highest count of each token that the journal's folder was claimed with; only of the latest tokens."""
        with self._database.read() as connection:
            found = connection.scalar(select(LEASES.c.journal_claims).where(LEASES.c.replicator == name)) or {}
            return {str(token): int(count) for token, count in found.items()}


def check_epoch(connection: Connection, name: str, epoch: int) -> Row[Any]:
    """Lock the lease's row, so that no process takes it before this transaction ends, and return it.

    Raises:
        FencedError: `epoch` is not the current one.
    """
    row = _locked(connection, name)
    if row is None or row.epoch != epoch:
        raise _fenced(name, epoch, row)
    return row

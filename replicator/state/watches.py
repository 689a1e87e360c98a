"""Side jobs of a replicator, each of which one of several processes and hosts does."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, select, update

from replicator.model.counts import Counts
from replicator.state import counters
from replicator.state.database.engine import Database, check_exists, insert_into
from replicator.state.leases import is_free
from replicator.state.tables import WATCHES


class WatchJob(StrEnum):
    """Job on the side: nothing waits for it."""

    ALERTS = "alerts"
    LINEAGE = "lineage"


class Watches:
    """The part of the state store that assigns side jobs to processes. Errors as those of `StateStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def hold(self, name: str, job: WatchJob, holder: str, ttl_s: float) -> bool:
        """Take a job, or keep it for longer; False while another living process has it."""
        with self._database.write() as connection:
            check_exists(connection, name)
            return hold(connection, name, job, holder, ttl_s, self._database.now(connection))

    def holder(self, name: str, job: WatchJob) -> str | None:
        """Return the living process that has a job; None if it may be taken."""
        with self._database.read() as connection:
            row = connection.execute(select(WATCHES).where(_is(name, job))).one_or_none()
            return None if row is None or is_free(row, self._database.now(connection), holder=None) else row.holder

    def release(self, name: str, job: WatchJob, holder: str) -> None:
        """Let other processes take it at once. Does nothing if it is not the holder's."""
        with self._database.write() as connection:
            mine = (WATCHES.c.replicator == name) & (WATCHES.c.job == job.value) & (WATCHES.c.holder == holder)
            connection.execute(update(WATCHES).where(mine).values(holder=None, expires_at=None))

    def record(self, name: str, job: WatchJob) -> Mapping[str, Any]:
        """Return the stored state of the job; empty before the first time."""
        with self._database.read() as connection:
            return read_record(connection, name, job)

    def remember(self, name: str, job: WatchJob, holder: str, record: Mapping[str, Any], counts: Counts) -> bool:
        """Replace the stored state of the job, and count; False, and nothing is stored, if it is not the holder's any more."""
        with self._database.write() as connection:
            if not is_held(connection, name, job, holder):
                return False
            write_record(connection, name, job, record)
            counters.add(connection, name, counts)
            return True


def hold(connection: Connection, name: str, job: WatchJob, holder: str, ttl_s: float, now: datetime) -> bool:
    """See `Watches.hold`; in a transaction."""
    # The first one makes the row, and the first one to lock it has the job.
    connection.execute(
        insert_into(connection, WATCHES).on_conflict_do_nothing(),
        [{"replicator": name, "job": job.value, "record": {}}],
    )
    row = connection.execute(select(WATCHES).where(_is(name, job)).with_for_update()).one()
    if not is_free(row, now, holder):
        return False
    values = {"holder": holder, "expires_at": now + timedelta(seconds=ttl_s)}
    connection.execute(update(WATCHES).where(_is(name, job)).values(values))
    return True


def is_held(connection: Connection, name: str, job: WatchJob, holder: str) -> bool:
    """Return whether the holder has the job; it keeps it until the end of the transaction."""
    return connection.scalar(select(WATCHES.c.holder).where(_is(name, job)).with_for_update()) == holder


def read_record(connection: Connection, name: str, job: WatchJob) -> Mapping[str, Any]:
    """See `Watches.record`; in a transaction."""
    found: Mapping[str, Any] | None = connection.scalar(select(WATCHES.c.record).where(_is(name, job)))
    return found or {}


def write_record(connection: Connection, name: str, job: WatchJob, record: Mapping[str, Any]) -> None:
    """Replace the stored state of a job that is held."""
    connection.execute(update(WATCHES).where(_is(name, job)).values(record=dict(record)))


def _is(name: str, job: WatchJob) -> Any:
    return (WATCHES.c.replicator == name) & (WATCHES.c.job == job.value)

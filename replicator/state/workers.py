"""Workers that share a state store: their capacity, the replicators that they run, and those that they cannot run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Row, delete, select

from replicator.state.database.engine import Database, upsert
from replicator.state.leases import is_dead, is_free
from replicator.state.tables import LEASES, WORKERS

_FORGET: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRefusal:
    """Reason why a worker cannot run a replicator."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """Last report of a worker. `holder` is its name in leases."""

    holder: str
    capacity: int
    is_draining: bool
    version: str
    started_at: datetime
    seen_at: datetime
    refusals: Mapping[str, WorkerRefusal]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """All workers and leases, as one read of the store saw them.

    Attributes:
        now: Time of the store's clock.
        workers: Workers; also those that have ended without saying so, for an hour.
        holders: Per replicator the living process that holds its lease.
    """

    now: datetime
    workers: Sequence[WorkerRecord]
    holders: Mapping[str, str]

    def is_heard(self, worker: WorkerRecord, within_s: float) -> bool:
        """Return whether a worker reported lately, and is not known to have ended."""
        return self.now - worker.seen_at <= timedelta(seconds=within_s) and not is_dead(worker.holder)


class Workers:
    """The part of the state store that knows the workers. Errors as those of `StateStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def announce(
        self, holder: str, *, capacity: int, is_draining: bool, version: str, refusals: Mapping[str, WorkerRefusal]
    ) -> None:
        """Record that a worker is there, and its capacity; delete workers that did not report for an hour."""
        with self._database.write() as connection:
            now = self._database.now(connection)
            began = connection.scalar(select(WORKERS.c.started_at).where(WORKERS.c.holder == holder))
            values = {
                "holder": holder,
                "capacity": capacity,
                "is_draining": is_draining,
                "version": version,
                "started_at": began or now,
                "seen_at": now,
                "refusals": {name: [one.code, one.message] for name, one in sorted(refusals.items())},
            }
            upsert(connection, WORKERS, [values])
            connection.execute(delete(WORKERS).where(WORKERS.c.seen_at < now - _FORGET))

    def remove(self, holder: str) -> None:
        """Delete a worker that ends."""
        with self._database.write() as connection:
            connection.execute(delete(WORKERS).where(WORKERS.c.holder == holder))

    def scene(self) -> Scene:
        """Return all workers, and the holder of each replicator."""
        with self._database.read() as connection:
            now = self._database.now(connection)
            leases = [row for row in connection.execute(select(LEASES)) if not is_free(row, now, holder=None)]
            return Scene(
                now=now,
                workers=tuple(_read(row) for row in connection.execute(select(WORKERS).order_by(WORKERS.c.holder))),
                holders={row.replicator: row.holder for row in leases},
            )


def _read(row: Row[Any]) -> WorkerRecord:
    return WorkerRecord(
        holder=row.holder,
        capacity=row.capacity,
        is_draining=row.is_draining,
        version=row.version,
        started_at=row.started_at,
        seen_at=row.seen_at,
        refusals={name: WorkerRefusal(code=code, message=message) for name, (code, message) in row.refusals.items()},
    )

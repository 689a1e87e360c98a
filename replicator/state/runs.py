"""Runs of supervisors, the latest of each replicator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import delete, insert, select, update

from replicator.state import counters, leases
from replicator.state.codec import read_run, write_error
from replicator.state.database.engine import Database, next_id
from replicator.state.records import ErrorRecord, Lease, Run
from replicator.state.tables import REPLICATORS, RUNS

RUNS_KEPT: Final = 1000


class Runs:
    """Reads and writes the lives of supervisors. Errors as those of `StateStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def start(self, lease: Lease) -> int:
        """Record that a supervisor began; return the run's id. Only the latest `RUNS_KEPT` runs are kept."""
        mine = RUNS.c.replicator == lease.replicator
        oldest_kept = select(RUNS.c.id).where(mine).order_by(RUNS.c.id.desc()).offset(RUNS_KEPT - 1).limit(1)
        with self._database.write() as connection:
            leases.check_epoch(connection, lease.replicator, lease.epoch)
            connection.execute(delete(RUNS).where(mine & (RUNS.c.id <= oldest_kept.scalar_subquery())))
            id_ = next_id(connection)
            values = {
                "id": id_,
                "replicator": lease.replicator,
                "epoch": lease.epoch,
                "holder": lease.holder,
                "started_at": self._database.now(connection),
            }
            connection.execute(insert(RUNS), [values])
            return id_

    def end(self, lease: Lease, run: int, outcome: str, error: ErrorRecord | None) -> None:
        """Record the end of a run, and with an error why the replicator stopped. Fenced by epoch. Replay: the later call wins."""
        with self._database.write() as connection:
            leases.check_epoch(connection, lease.replicator, lease.epoch)
            if error is not None:
                stopped = update(REPLICATORS).where(REPLICATORS.c.name == lease.replicator)
                connection.execute(stopped.values(error=write_error(error)))
            counters.add(connection, lease.replicator, counters.of_error(error))
            values = {"ended_at": self._database.now(connection), "outcome": outcome, "error": write_error(error)}
            connection.execute(update(RUNS).where(RUNS.c.id == run).values(values))

    def latest(self, name: str, limit: int = 20) -> Sequence[Run]:
        """Return the latest runs, newest first."""
        query = select(RUNS).where(RUNS.c.replicator == name).order_by(RUNS.c.id.desc()).limit(limit)
        with self._database.read() as connection:
            return [read_run(row) for row in connection.execute(query)]

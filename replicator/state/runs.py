"""Runs of supervisors, the latest of each replicator."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, delete, insert, select, update

from replicator.state.codec import read_run, write_error
from replicator.state.records import ErrorRecord, Lease, Run
from replicator.state.tables import RUNS


def begin(connection: Connection, lease: Lease, id_: int, now: datetime, *, kept: int) -> int:
    """Record that a supervisor began, and forget all but the latest runs; return the run's id."""
    mine = RUNS.c.replicator == lease.replicator
    oldest_kept = select(RUNS.c.id).where(mine).order_by(RUNS.c.id.desc()).offset(kept - 1).limit(1).scalar_subquery()
    connection.execute(delete(RUNS).where(mine & (RUNS.c.id <= oldest_kept)))
    values = {
        "id": id_,
        "replicator": lease.replicator,
        "epoch": lease.epoch,
        "holder": lease.holder,
        "started_at": now,
    }
    connection.execute(insert(RUNS), [values])
    return id_


def end(connection: Connection, run: int, outcome: str, error: ErrorRecord | None, now: datetime) -> None:
    """Record the end of a run."""
    values = {"ended_at": now, "outcome": outcome, "error": write_error(error)}
    connection.execute(update(RUNS).where(RUNS.c.id == run).values(values))


def list_latest(connection: Connection, name: str, limit: int) -> Sequence[Run]:
    """Return the latest runs, newest first."""
    query = select(RUNS).where(RUNS.c.replicator == name).order_by(RUNS.c.id.desc()).limit(limit)
    return [read_run(row) for row in connection.execute(query)]

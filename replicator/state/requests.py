"""Requests to a running replicator that are done."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, delete, select, update

from replicator.state.records import CHANGED_ONLY, RequestKind
from replicator.state.tables import REPLICATORS, REQUESTS


def close(connection: Connection, name: str, ids: Sequence[int], now: datetime) -> None:
    """Remove requests that are done. The time of a restart is kept, so that a repeated call is recognised."""
    done = (REQUESTS.c.replicator == name) & REQUESTS.c.id.in_(ids)
    restarts = select(REQUESTS.c.payload).where(done, REQUESTS.c.kind == RequestKind.RESTART.value)
    if any(not payload.get(CHANGED_ONLY) for payload in connection.scalars(restarts)):
        connection.execute(update(REPLICATORS).where(REPLICATORS.c.name == name).values(restarted_at=now))
    connection.execute(delete(REQUESTS).where(done))

"""Requests to a running replicator that are done."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from replicator.state.codec import read_request
from replicator.state.database.engine import Database, check_exists, next_id
from replicator.state.records import CHANGED_ONLY, Request, RequestKind
from replicator.state.tables import REPLICATORS, REQUESTS


def close(connection: Connection, name: str, ids: Sequence[int], now: datetime) -> None:
    """Remove requests that are done. The time of a restart is kept, so that a repeated call is recognised."""
    done = (REQUESTS.c.replicator == name) & REQUESTS.c.id.in_(ids)
    restarts = select(REQUESTS.c.payload).where(done, REQUESTS.c.kind == RequestKind.RESTART.value)
    if any(not payload.get(CHANGED_ONLY) for payload in connection.scalars(restarts)):
        connection.execute(update(REPLICATORS).where(REPLICATORS.c.name == name).values(restarted_at=now))
    connection.execute(delete(REQUESTS).where(done))


class Requests:
    """Reads and writes requests to running replicators. Errors as those of `StateStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, name: str, kind: RequestKind, payload: Mapping[str, Any]) -> int:
        """Ask something of a running replicator; return the request's id, which is never used again."""
        with self._database.write() as connection:
            check_exists(connection, name)
            id_ = next_id(connection)
            moment = self._database.now(connection)
            values = {"id": id_, "replicator": name, "kind": kind.value, "payload": dict(payload), "created_at": moment}
            connection.execute(insert(REQUESTS), [values])
            return id_

    def open(self, name: str) -> Sequence[Request]:
        """Return the open requests, oldest first."""
        with self._database.read() as connection:
            query = select(REQUESTS).where(REQUESTS.c.replicator == name).order_by(REQUESTS.c.id)
            return [read_request(row) for row in connection.execute(query)]

    def barriers(self, name: str, *, asked_within_s: float = math.inf) -> Sequence[int]:
        """Return the sequence numbers of the barriers that are found (`RequestKind.BARRIER`), of those requested within that time."""
        is_barrier = REQUESTS.c.kind == RequestKind.BARRIER.value
        with self._database.read() as connection:
            query = select(REQUESTS).where(REQUESTS.c.replicator == name, is_barrier).order_by(REQUESTS.c.id)
            found = [read_request(row) for row in connection.execute(query)]
            now = self._database.now(connection) if found else None
        return [
            request.payload["position"]
            for request in found
            if "position" in request.payload
            and (now is None or abs((now - request.created_at).total_seconds()) <= asked_within_s)
        ]

    def replace(self, id_: int, payload: Mapping[str, Any]) -> None:
        """Replace the payload of a request. Does nothing if it was withdrawn."""
        with self._database.write() as connection:
            connection.execute(update(REQUESTS).where(REQUESTS.c.id == id_).values(payload=dict(payload)))

    def remove(self, id_: int) -> None:
        """Withdraw a request, or lift a barrier. Replay: does nothing."""
        with self._database.write() as connection:
            connection.execute(delete(REQUESTS).where(REQUESTS.c.id == id_))

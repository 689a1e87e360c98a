"""Holds a snapshot half-way: some of its chunks are sealed, and the next one waits for a lock that a test has."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from replicator.model.documents.status import ReplicatorStatus, SnapshotStatus, TableState
from replicator_testbed.databases import Database
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testbed.rig import Rig, is_captured


@contextmanager
def amid(rig: Rig, process: subprocess.Popen[str], table: str, *, in_place: bool = False) -> Iterator[None]:
    """Inside, a snapshot of the table has begun and cannot end: the first one, or one in place that is asked for here."""
    if in_place:
        rig.command("snapshot", rig.name, rig.full_name(table))
    rig.wait_for_status(lambda s: is_amid(rig, s, table, in_place=in_place), process)
    with locked(rig.database, table):
        found = rig.status()
        assert found is not None, "it is stored"
        assert is_amid(rig, found, table, in_place=in_place), found
        yield


def is_amid(rig: Rig, status: ReplicatorStatus, table: str, *, in_place: bool) -> bool:
    """Whether some chunks of this snapshot are sealed, and not all."""
    snapshot = _running(rig, status, table)
    return snapshot is not None and snapshot.rows > 0 and snapshot.is_in_place is in_place


def rows_read(rig: Rig, status: ReplicatorStatus, table: str) -> int | None:
    """How many rows of the table a running snapshot has read."""
    snapshot = _running(rig, status, table)
    return None if snapshot is None else snapshot.rows


def _running(rig: Rig, status: ReplicatorStatus, table: str) -> SnapshotStatus | None:
    found = next((t for t in status.tables if t.table == rig.full_name(table)), None)
    is_running = found is not None and found.state is TableState.SNAPSHOT and not is_captured(found)
    return found.snapshot if found is not None and is_running else None


@contextmanager
def locked(database: Database, table: str) -> Iterator[None]:
    """Inside, nobody else reads or writes the table."""
    if isinstance(database, ScratchDatabase):
        holder: Any = database.connect(autocommit=False)
        statement = f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"
    else:
        holder, statement = database.connect(), f"LOCK TABLES {table} WRITE"
    try:
        holder.cursor().execute(statement)
        yield
    finally:
        holder.close()

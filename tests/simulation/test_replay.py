"""The plain replay that folds and merges are compared with is itself compared with a database that executes the changes."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing

from replicator.model.events import DMLOperation
from replicator_testbed.workloads.changes import COLUMNS, Change, Replay, Workloads

WORKLOADS = 3_000


def execute(database: sqlite3.Connection, change: Change) -> None:
    """Do in SQLite what the source's statement did."""
    if change.key is None:
        assert change.before is not None
        done = database.execute("DELETE FROM rows WHERE workload = ? AND id = ?", change.before)
        assert done.rowcount == 1
        return
    sent = {n: v for n, v in zip(COLUMNS, change.values, strict=True) if n not in change.absent}
    if change.operation is DMLOperation.INSERT and not change.is_snapshot:
        database.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", (*change.key, *change.values))
        return
    # A row of a snapshot is there already; it says again what the columns hold.
    names = ("workload", "id", *sent)
    where = change.before or change.key
    text = f"UPDATE rows SET {', '.join(f'{name} = ?' for name in names)} WHERE workload = ? AND id = ?"
    done = database.execute(text, (*change.key, *sent.values(), *where))
    assert done.rowcount == 1


def test_thousands_of_random_workloads_leave_in_the_replay_what_they_leave_in_sqlite() -> None:
    numbers = itertools.count()
    workloads, replay = Workloads(29, range(WORKLOADS), numbers, valid=True), Replay()
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute(
            f"CREATE TABLE rows (workload, id, {', '.join(COLUMNS)}, PRIMARY KEY (workload, id)) WITHOUT ROWID"
        )
        for _ in range(3):
            for change in workloads.round(8):
                execute(database, change)
                replay.apply(change)
            rows = {(w, i): tuple(values) for w, i, *values in database.execute("SELECT * FROM rows")}
            assert len(rows) > WORKLOADS
            assert replay.rows == rows
            assert workloads.source == rows

"""The oracle and the plain replay of the workloads are compared with a database that executes the changes."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing

from replicator.model.events import DMLOperation
from replicator_testbed.workloads.changes import COLUMNS, SCHEMA, Change, Replay, Workloads
from replicator_testing.batches import RowChange
from replicator_testing.oracle import Oracle

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


def row_change(change: Change) -> RowChange:
    """Return the same change as the contract suites have it."""
    names = ("workload", "id", *COLUMNS)
    return RowChange(
        sequence_num=change.sequence_num,
        operation=change.operation,
        before=None if change.before is None else dict(zip(names, change.before, strict=False)),
        row=None if change.key is None else dict(zip(names, (*change.key, *change.values), strict=True)),
        absent=frozenset(change.absent),
        is_snapshot=change.is_snapshot,
    )


def test_thousands_of_random_workloads_leave_in_the_replay_what_they_leave_in_sqlite() -> None:
    numbers = itertools.count()
    workloads, replay, oracle = Workloads(29, range(WORKLOADS), numbers, valid=True), Replay(), Oracle(SCHEMA)
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute(
            f"CREATE TABLE rows (workload, id, {', '.join(COLUMNS)}, PRIMARY KEY (workload, id)) WITHOUT ROWID"
        )
        for _ in range(3):
            changes = workloads.round(8)
            for change in changes:
                execute(database, change)
                replay.apply(change)
            oracle.apply(map(row_change, changes))
            rows = {(w, i): tuple(values) for w, i, *values in database.execute("SELECT * FROM rows")}
            assert len(rows) > WORKLOADS
            assert replay.rows == rows
            assert {(r["workload"], r["id"]): tuple(r[name] for name in COLUMNS) for r in oracle.live} == rows
            assert workloads.source == rows

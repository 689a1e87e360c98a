"""Locking reads of the model, and commits that are captured before anybody sees them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pyodbc
import pytest

from replicator_testbed.postgresql.standby import LateStandby
from replicator_testbed.sqlserver.databases import SqlServerDatabase
from replicator_testbed.sqlserver.late import late_database, late_writer
from replicator_testing.waiting import wait_until

pytestmark = pytest.mark.matrix


@pytest.fixture(scope="module")
def late() -> Iterator[tuple[SqlServerDatabase, LateStandby]]:
    """Two captured tables."""
    with late_database(
        "CREATE TABLE held (id int NOT NULL PRIMARY KEY, v int)",
        "CREATE TABLE other (id int NOT NULL PRIMARY KEY)",
        "INSERT INTO held VALUES (1, 1)",
        "INSERT INTO other VALUES (1)",
    ) as (database, standby):
        database.capture("held", "other")
        database.server.capture.stop()
        yield database, standby


@pytest.mark.parametrize(
    ("statement", "count"),
    [
        ("INSERT INTO held VALUES (2, 2)", 2),
        ("UPDATE held SET id = id + 10", 1),
        ("DELETE FROM held", 0),
    ],
)
def test_a_locking_read_waits_for_a_captured_commit_that_nobody_sees_yet(
    late: tuple[SqlServerDatabase, LateStandby], statement: str, count: int
) -> None:
    # rule 27 [DOC: table hints]
    database, standby = late
    database.execute("DELETE FROM held", "INSERT INTO held VALUES (1, 1)")
    with late_writer(database) as writer, closing(database.connect()) as reader:
        database.server.capture.scan_all()
        standby.hold()
        thread = threading.Thread(target=writer.execute, args=(statement,))
        thread.start()
        try:
            wait_until(database.server.capture.scan_all, "it is captured", every_s=0.02)
            reader.execute("SET LOCK_TIMEOUT 0")
            assert [row.id for row in reader.execute("SELECT id FROM held")] == [1]
            with pytest.raises(pyodbc.Error, match="1222"):
                reader.execute("SELECT id FROM held WITH (READCOMMITTEDLOCK)")
            assert len(reader.execute("SELECT id FROM other WITH (READCOMMITTEDLOCK)").fetchall()) == 1
        finally:
            standby.release()
            thread.join(60)
        reader.execute("SET LOCK_TIMEOUT -1")
        assert len(reader.execute("SELECT id FROM held WITH (READCOMMITTEDLOCK)").fetchall()) == count


def test_a_locking_read_that_waits_for_a_change_table_keeps_nobody_waiting(
    late: tuple[SqlServerDatabase, LateStandby],
) -> None:
    """The capture job locks the table to alter it, and needs what all share meanwhile."""
    database, _ = late
    model, read = database.server.database, "SELECT id FROM other WITH (READCOMMITTEDLOCK)"
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    with closing(database.connect()) as reader, ThreadPoolExecutor() as pool, closing(model.connect()) as job:
        with job.transaction():
            job.execute('LOCK TABLE cdc."dbo_other_CT"')
            rows = pool.submit(lambda: reader.execute(read).fetchall())
            wait_until(lambda: job.execute(waiting).fetchall() == [(1,)], "the read waits", every_s=0.02)
            assert pool.submit(model.execute, "SELECT 1").result(timeout=30) == [(1,)]
        assert len(rows.result(timeout=30)) == 1

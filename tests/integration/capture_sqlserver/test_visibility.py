"""Commits of a SQL Server that are captured before anybody sees them: no row goes back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Literal

import pytest

from replicator.model.schema import TableId
from replicator_testbed.journals.captured import PublishedWindow, RunningCapture
from replicator_testbed.postgresql.standby import LateStandby
from replicator_testbed.sqlserver.databases import SqlServerDatabase
from replicator_testbed.sqlserver.late import late_database, late_writer
from replicator_testing.waiting import wait_until
from tests.integration.capture_sqlserver.conftest import Around, Make, assert_equal

T = TableId("dbo", "t")


@pytest.fixture(scope="module")
def late() -> Iterator[tuple[SqlServerDatabase, LateStandby]]:
    """A database with a captured table."""
    with late_database("CREATE TABLE t (id int NOT NULL PRIMARY KEY, v int NOT NULL)") as (database, standby):
        database.capture("t")
        yield database, standby


@pytest.mark.matrix
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("isolation", "has_rule"),
    [("default", True), ("locking", True), pytest.param("default", False, marks=pytest.mark.matrix)],
)
@pytest.mark.condition("D05")
def test_a_commit_that_is_captured_before_a_chunk_can_see_it_survives(
    late: tuple[SqlServerDatabase, LateStandby],
    make: Make,
    around_reads: Around,
    monkeypatch: pytest.MonkeyPatch,
    isolation: Literal["default", "locking"],
    has_rule: bool,
) -> None:
    database, standby = late
    database.execute("DELETE FROM t", "INSERT INTO t VALUES " + ", ".join(f"({i}, 0)" for i in range(1, 41)))
    captured = make(database, "t", chunk_isolation=isolation)
    # Longer than a test lets a commit wait.
    for module in ("cdc.visibility", "cdc.capture"):
        monkeypatch.setattr(f"replicator_source_sqlserver.{module}.UNSETTLED_S", 6.0)
    if not has_rule:
        captured.make_window = PublishedWindow
    with captured.running() as running:
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    model, capture, threads = database.server.database, list[RunningCapture](), list[threading.Thread]()
    with late_writer(database) as writer:

        def hide(number: int, _: str) -> None:
            if number != 1:
                return
            standby.hold()
            threads.append(threading.Thread(target=writer.execute, args=("UPDATE t SET v = 1 WHERE id <= 30",)))
            threads[0].start()
            capture[0].wait_until(lambda: (1, 1) in captured.rows(T), "it is delivered")
            if isolation == "locking":
                # The chunk will wait for the rows' locks, which the commit has until it is visible.
                def release() -> None:
                    wait_until(lambda: model.waits_for_commits, "the chunk waits", every_s=0.01)
                    standby.release()

                threads.append(threading.Thread(target=release))
                threads[1].start()

        try:
            with captured.running(lambda source: around_reads(source, "before", hide)) as running:
                capture.append(running)
                request = captured.request("snapshot", tables=[])
                running.wait_until(lambda: captured.is_done(request), "the snapshot has begun")
                running.wait_until(
                    lambda: (progress := captured.record(T).snapshot) is not None and progress.rows > 0,
                    "a chunk is sealed",
                )
                standby.release()
                captured.wait_for_streaming(running)
                captured.catch_up(running)
        finally:
            standby.release()
            for thread in threads:
                thread.join(60)
    if has_rule:
        assert_equal(captured, database, "t")
    else:
        with pytest.raises(AssertionError):
            assert_equal(captured, database, "t")

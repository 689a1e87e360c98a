"""The position in PostgreSQL's log: acknowledged is what is sealed, and a lost slot has a remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from replicator.model.errors import LogGapError, TransientError
from replicator.model.processes.reports import CaptureStage
from replicator_testbed.journals.captured import Captured, RunningCapture
from replicator_testbed.postgresql.captures import (
    Make,
    Writers,
    assert_equal,
    fill,
    move_one,
    table,
    update_one,
)
from replicator_testbed.postgresql.servers import PostgresServer, ScratchDatabase
from replicator_testbed.present import present
from replicator_testing.waiting import wait_until


def let_it_continue(captured: Captured, until: Callable[[RunningCapture], Any]) -> None:
    """Capture until `until` returns, beginning again after errors that pass, as the supervisor does."""
    for _ in range(50):
        try:
            with captured.running() as running:
                until(running)
                return
        except TransientError:
            continue
    raise AssertionError("the capture does not get on")


def drop_slot(database: ScratchDatabase) -> None:
    """Drop the replicator's slot as soon as the server has noticed that nobody reads it any more."""
    name = f"replicator_{database.name}"
    active = f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{name}' AND active"
    wait_until(lambda: not database.execute(active), "the slot is free")
    database.execute(f"SELECT pg_drop_replication_slot('{name}')")


def test_an_idle_log_is_heard_and_its_growth_is_measured(database: ScratchDatabase, make: Make) -> None:
    fill(database, "t", 5)
    captured = make(database, "t")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        running.wait_until(lambda: running.control.status.log_bytes_per_s is not None, "the log's growth is known")
        report = running.control.status
        assert report.heartbeat_s == 10
        assert report.silent_s is not None
        seen = report.source_time
        # Nothing is written, and the log tells a newer time all the same.
        running.wait_until(lambda: running.control.status.source_time != seen, "the log tells a newer time")
        assert present(running.control.status.silent_s) < 3 * 10


@pytest.mark.matrix
def test_restart_after_the_slot_was_lost_makes_both_sides_equal(database: ScratchDatabase, make: Make) -> None:
    fill(database, "t", 25)
    database.execute(
        "CREATE TABLE bag (a bigint)", "ALTER TABLE bag REPLICA IDENTITY FULL", "INSERT INTO bag VALUES (1), (1), (2)"
    )
    captured = make(database, "t", "bag")
    with captured.running() as running:
        captured.wait_for_streaming(running)
    drop_slot(database)
    database.execute(
        "DELETE FROM t WHERE id IN (3, 25)", "UPDATE t SET v = 5 WHERE id = 4", "DELETE FROM bag WHERE a = 1", "INSERT INTO bag VALUES (2)",
    )  # fmt: skip
    with captured.running() as running:
        error = running.error()
        assert isinstance(error, LogGapError)
        assert "--restart" in (error.action or "")
    request = captured.request("restart")
    with captured.running() as running:
        running.wait_until(lambda: captured.is_done(request), "the new position is taken")
        database.execute("UPDATE t SET v = 6 WHERE id = 5")
        captured.wait_for_streaming(running)
        captured.catch_up(running)
        assert_equal(captured, database, "t", "bag")
        assert captured.record(table("t")).incarnation == 1
        # The same while it runs.
        captured.request("restart")
        running.wait_until(lambda: not captured.store.requests.open(captured.name), "the new position is taken")
        captured.wait_for_streaming(running)
        database.execute("DELETE FROM t WHERE id = 6")
        captured.catch_up(running)
    assert_equal(captured, database, "t", "bag")


def confirmed(database: ScratchDatabase) -> int:
    """Up to where the server believes us."""
    ((lsn,),) = database.execute(
        f"SELECT pg_wal_lsn_diff(confirmed_flush_lsn, '0/0')::int8 FROM pg_replication_slots WHERE slot_name = 'replicator_{database.name}'"
    )
    return int(lsn)


def sealed(captured: Captured) -> int:
    """Up to where the journal goes."""
    record = captured.store.replicator(captured.name)
    segment = captured.store.journal.last_segment(captured.name)
    assert record is not None
    offset = (segment.offset if segment is not None else None) or record.start_offset
    assert offset is not None
    high, low = offset.value["lsn"].split("/")
    return (int(high, 16) << 32) + int(low, 16)


@pytest.mark.matrix
def test_acknowledged_is_only_what_is_sealed_and_an_idle_slot_moves(database: ScratchDatabase, make: Make) -> None:
    fill(database, "hot", 40)
    database.execute("CREATE TABLE unwatched (a bigint)")
    captured = make(database, "hot")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        with Writers(database, 3, update_one) as writers:
            looks = 0
            while looks < 200 or writers.done < 300:
                # The server is asked first: what it believes must be sealed by now.
                believed = confirmed(database)
                assert believed <= sealed(captured), "the source may drop what is not sealed"
                looks += 1
        captured.catch_up(running)
        before = confirmed(database)
        database.execute("INSERT INTO unwatched SELECT generate_series(1, 2000)", "SELECT pg_switch_wal()")
        ((written,),) = database.execute("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::int8")
        assert written > before
        running.wait_until(lambda: confirmed(database) >= written, "the slot of an idle database moves", timeout_s=120)
        assert confirmed(database) <= sealed(captured)
    assert_equal(captured, database, "hot")


@pytest.mark.matrix
@pytest.mark.parametrize("how", ["stop", "kill9"])
def test_capture_continues_when_the_server_comes_back(make: Make, how: str) -> None:
    with PostgresServer.distribution() as server, server.database() as database:
        fill(database, "hot", 40)
        database.execute(
            "ALTER TABLE hot ALTER note SET STORAGE EXTERNAL",
            "CREATE TABLE bag (a bigint)",
            "ALTER TABLE bag REPLICA IDENTITY FULL",
        )
        captured = make(database, "hot", "bag")
        with Writers(database, 6, move_one) as writers:
            let_it_continue(captured, captured.wait_for_streaming)
            for _ in range(3):
                captured.request("snapshot", tables=[])

                def until_it_breaks(running: RunningCapture) -> None:
                    running.wait_until(lambda: running.control.status.stage is CaptureStage.CAPTURING, "it captures")
                    goal = writers.done + 100
                    running.wait_until(lambda: writers.done >= goal, "much is written")
                    server.kill9() if how == "kill9" else server.stop()
                    running.thread.join(timeout=60)
                    server.start()

                with pytest.raises(TransientError), captured.running() as running:
                    until_it_breaks(running)
        let_it_continue(captured, lambda running: (captured.wait_for_streaming(running), captured.catch_up(running)))
        let_it_continue(captured, lambda running: (captured.wait_for_streaming(running), captured.catch_up(running)))
        assert_equal(captured, database, "hot", "bag")

"""No row goes back: what was delivered and what a read of PostgreSQL sees are told apart."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from replicator.model.processes.reports import CaptureStage
from replicator.plugins.source import ChunkRequest
from replicator.state.records import Stage
from replicator_testbed.journals.captured import PublishedWindow, RunningCapture
from replicator_testbed.postgresql.captures import (
    Make,
    Writers,
    assert_equal,
    before_reads,
    committing,
    fill,
    has_sealed_chunks,
    move_one,
    open_transaction,
    source_rows,
    table,
    update_one,
)
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testbed.postgresql.standby import LateStandby
from replicator_testing.waiting import PATIENCE, wait_until


@pytest.mark.sampled(1)
@pytest.mark.parametrize("has_rule", [True, False])
def test_change_that_was_delivered_before_a_chunk_could_see_it_survives(
    late: tuple[ScratchDatabase, LateStandby], make: Make, has_rule: bool
) -> None:
    database, standby = late
    fill(database, "hot", 40)
    captured = make(database, "hot")
    if not has_rule:
        captured.make_window = PublishedWindow
    with captured.running() as running:
        captured.wait_for_streaming(running)
    with ExitStack() as stack:
        capture: list[RunningCapture] = []

        def hide(number: int, _: ChunkRequest) -> None:
            if number == 1:
                standby.hold()
                stack.enter_context(
                    committing(database, "UPDATE hot SET v = 1 WHERE id <= 30", "DELETE FROM hot WHERE id = 5")
                )
                capture[0].wait_until(lambda: captured.window.ring_size, "it is delivered")

        with captured.running(lambda source: before_reads(source, hide)) as running:
            capture.append(running)
            request = captured.request("snapshot", tables=[])
            running.wait_until(lambda: captured.is_done(request), "the snapshot has begun")
            running.wait_until(lambda: has_sealed_chunks(captured, "hot"), "a chunk is sealed")
            assert database.execute("SELECT count(*) FROM hot WHERE v = 0") == [(40,)]
            standby.release()
            captured.wait_for_streaming(running)
            captured.catch_up(running)
    if has_rule:
        assert_equal(captured, database, "hot")
    else:
        assert captured.rows(table("hot")) != source_rows(database, "hot"), "the published algorithm is right after all"


@pytest.mark.matrix
def test_change_that_was_sealed_before_a_restart_survives_the_chunk_that_cannot_see_it(
    late: tuple[ScratchDatabase, LateStandby], make: Make
) -> None:
    database, standby = late
    fill(database, "hot", 40)
    captured = make(database, "hot")
    with captured.running() as running:
        captured.wait_for_streaming(running)
    with ExitStack() as stack:
        again = threading.Event()

        def stop_before_the_second(number: int, _: ChunkRequest) -> None:
            if number == 2:
                again.wait(60 * PATIENCE)

        with captured.running(lambda source: before_reads(source, stop_before_the_second)) as running:
            request = captured.request("snapshot", tables=[])
            running.wait_until(lambda: captured.is_done(request), "the snapshot has begun")
            running.wait_until(lambda: has_sealed_chunks(captured, "hot"), "a chunk is sealed")
            standby.hold()
            stack.enter_context(committing(database, "UPDATE hot SET v = 1"))
            running.wait_until(lambda: captured.window.ring_size, "it is delivered")
            captured.catch_up(running)
            running.control.stop()
            again.set()
        reads = list[int]()
        with captured.running(lambda source: before_reads(source, lambda number, _: reads.append(number))) as running:
            running.wait_until(lambda: len(reads) >= 3, "chunks are read again")
            assert captured.stage(table("hot")) is Stage.SNAPSHOT
            standby.release()
            captured.wait_for_streaming(running)
            captured.catch_up(running)
    assert_equal(captured, database, "hot")


@pytest.mark.matrix
def test_snapshot_in_place_keeps_what_was_delivered_and_is_not_visible_when_it_begins(
    late: tuple[ScratchDatabase, LateStandby], make: Make
) -> None:
    database, standby = late
    fill(database, "hot", 20)
    captured = make(database, "hot")
    with captured.running() as running, ExitStack() as stack:
        captured.wait_for_streaming(running)
        standby.hold()
        stack.enter_context(
            committing(database, "INSERT INTO hot VALUES (100, 1)", "UPDATE hot SET v = 1 WHERE id = 3")
        )
        running.wait_until(lambda: captured.window.ring_size, "it is delivered")
        request = captured.request("snapshot", tables=[])
        captured.catch_up(running)
        assert (100, 1, None) in captured.rows(table("hot"))
        standby.release()
        running.wait_until(lambda: captured.is_done(request), "the snapshot has begun")
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    assert_equal(captured, database, "hot")


@pytest.mark.matrix
def test_change_before_the_slots_own_position_that_nobody_sees_yet_is_in_the_first_copy(
    late: tuple[ScratchDatabase, LateStandby], make: Make
) -> None:
    # The server calls a slot consistent once every transaction that ran when its second look began has ended. Who committed after
    # that look, before the position, is not sent;
    # a standby that keeps it invisible keeps it out of the first chunks, too.
    database, standby = late
    fill(database, "hot", 20)
    database.execute("CREATE TABLE other (id bigint PRIMARY KEY)")
    captured = make(database, "hot")

    def waits_for(connection: psycopg.Connection[Any]) -> Callable[[], bool]:
        pid = f"pid {connection.info.backend_pid} "
        return lambda: any(line.startswith(pid) for line in running.control.status.waiting_for[:1])

    with (
        ExitStack() as stack,
        open_transaction(database, "INSERT INTO other VALUES (1)") as first,
        captured.running() as running,
    ):
        running.wait_until(waits_for(first), "the slot waits for the first")
        second = stack.enter_context(open_transaction(database, "INSERT INTO other VALUES (2)"))
        first.commit()
        running.wait_until(waits_for(second), "the slot waits for the second")
        standby.hold()
        hidden = stack.enter_context(
            committing(database, "UPDATE hot SET v = 1 WHERE id = 4", "DELETE FROM hot WHERE id = 5")
        )
        wait_until(
            lambda: database.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"),
            "it is committed and invisible",
        )
        second.commit()
        # Either it has begun to copy, or it says that it waits.
        running.wait_until(
            lambda: (
                captured.stage(table("hot")) is Stage.STREAMING
                or (running.control.status.stage is CaptureStage.CAPTURING and running.control.status.waiting_for)
            ),
            "the slot is made",
        )
        assert hidden.is_alive()
        standby.release()
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    assert_equal(captured, database, "hot")


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("has_rule", "snapshots"), [(True, 10), pytest.param(True, 50, marks=pytest.mark.matrix), (False, 10)]
)
def test_no_row_goes_back_in_many_snapshots_under_many_writers(
    late: tuple[ScratchDatabase, LateStandby],
    make: Make,
    has_rule: bool,
    snapshots: int,
) -> None:
    database, _ = late
    fill(database, "hot", 40)
    captured = make(database, "hot")
    if not has_rule:
        captured.make_window = PublishedWindow
    captured.settings = replace(captured.settings, chunk_rows=20)
    with captured.running() as running:
        with Writers(database, 16, update_one):
            captured.wait_for_streaming(running)
            for _ in range(snapshots):
                captured.snapshot(running)
        captured.catch_up(running)
    replayed = captured.replay(table("hot"), version="v")
    if has_rule:
        assert replayed.regressions == 0
        assert replayed.rows == source_rows(database, "hot")
    else:
        assert replayed.regressions > 0, "the published algorithm is right after all"


@pytest.mark.matrix
def test_everything_at_once_under_a_late_standby(late: tuple[ScratchDatabase, LateStandby], make: Make) -> None:
    database, _ = late
    fill(database, "hot", 60)
    database.execute(
        "ALTER TABLE hot ALTER note SET STORAGE EXTERNAL",
        "CREATE TABLE bag (a bigint)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
    )
    captured = make(database, "hot", "bag")
    captured.settings = replace(captured.settings, compare_every_s=0.3, pull_rows=7, seal_rows=20)
    with Writers(database, 10, move_one) as writers:
        for round_ in range(5):
            with captured.running() as running:
                captured.wait_for_streaming(running)
                if round_ == 2:
                    database.execute("TRUNCATE hot")
                if round_ == 3:
                    database.execute("SET lock_timeout = 0; TRUNCATE hot, bag")
                captured.request("snapshot", tables=[])
                goal = writers.done + 60
                running.wait_until(lambda goal=goal: writers.done >= goal, "something is written")  # type: ignore[misc]
    with captured.running() as running:
        captured.wait_for_streaming(running)
        running.wait_until(lambda: not captured.store.requests.open(captured.name), "no request is open")
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    assert_equal(captured, database, "hot", "bag")

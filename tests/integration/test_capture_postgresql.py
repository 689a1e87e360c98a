"""Capture over a real PostgreSQL: whatever happens there, the journal replays to what the source holds."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest

from replicator.model.errors import LogGapError, TransientError
from replicator.model.events import DDLEvent, DDLOperation, SnapshotEvent
from replicator.model.reports import CaptureStage
from replicator.model.schema import TableId
from replicator.plugins.source import Chunk, ChunkRequest, DeltaSource, SourceContext
from replicator.state.records import Stage
from replicator.testing.waiting import PATIENCE, wait_until
from replicator_source_postgresql.config import PostgresqlConfig
from replicator_source_postgresql.source import PostgresqlSource
from replicator_testbed.captured import Captured, RunningCapture, without_visibility
from replicator_testbed.servers import PostgresServer, ScratchDatabase
from replicator_testbed.standby import SETTINGS, LateStandby

Make = Callable[..., Captured]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes the captures of tables of a database; further arguments are settings of the source."""
    made: list[Captured] = []

    def of(database: ScratchDatabase, *tables: str, **settings: Any) -> Captured:
        server = database.server

        def source(context: SourceContext) -> PostgresqlSource:
            config = PostgresqlConfig(
                host=server.host, port=server.port, user=server.user, database=database.name, **settings
            )
            return PostgresqlSource(config, context)

        folder = tmp_path / f"capture{len(made)}"
        folder.mkdir()
        captured = Captured(folder=folder, name=database.name, make_source=source, tables=[table(t) for t in tables])
        made.append(captured)
        return captured

    yield of
    for captured in made:
        captured.close()


def table(name: str) -> TableId:
    return TableId("public", name)


def source_rows(database: ScratchDatabase, name: str) -> Counter[tuple[Any, ...]]:
    return Counter(database.execute(f'SELECT * FROM public."{name}"'))


def assert_equal(captured: Captured, database: ScratchDatabase, *names: str) -> None:
    """The journal replays to what the source holds now."""
    for name in names:
        found, wanted = captured.rows(table(name)), source_rows(database, name)
        assert found == wanted, (
            f"{name}: too many {list((found - wanted).items())[:5]}, lacking {list((wanted - found).items())[:5]}"
        )


def fill(database: ScratchDatabase, name: str, rows: int) -> None:
    """A table with a key, a value and some rows."""
    database.execute(
        f"CREATE TABLE {name} (id bigint PRIMARY KEY, v bigint NOT NULL, note text)",
        f"INSERT INTO {name} SELECT i, 0, 'note ' || i FROM generate_series(1, {rows}) AS i",
    )


@contextmanager
def open_transaction(database: ScratchDatabase, *statements: str) -> Iterator[psycopg.Connection[Any]]:
    """A transaction that has run the statements and has not ended."""
    with database.connect(autocommit=False) as connection:
        for statement in statements:
            connection.execute(statement.encode())
        yield connection


class Writers:
    """Sessions that write until told to stop; each commit waits for the standby if there is one."""

    def __init__(
        self, database: ScratchDatabase, count: int, write: Callable[[psycopg.Connection[Any], random.Random], None]
    ) -> None:
        self._database = database
        self._write = write
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self.done = 0
        self._threads = [
            threading.Thread(target=self._run, args=(seed,), name=f"writer{seed}") for seed in range(count)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        wait_until(lambda: self.done >= len(self._threads), "everybody writes")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=60)
        assert not self._errors, self._errors

    def _run(self, seed: int) -> None:
        chance = random.Random(seed)
        try:
            while not self._stop.is_set():
                try:
                    with self._database.connect(options="-c synchronous_commit=on") as connection:
                        while not self._stop.is_set():
                            self._write(connection, chance)
                            self.done += 1
                except psycopg.OperationalError:
                    # The server was stopped under it, or ended a deadlock.
                    self._stop.wait(0.05)
        except BaseException as error:  # noqa: BLE001 (raised in the test's thread)
            self._errors.append(error)


@contextmanager
def committing(database: ScratchDatabase, *statements: str) -> Iterator[threading.Thread]:
    """Statements whose commit waits for the standby, in a thread of their own; joined at the end."""

    def run() -> None:
        with database.connect(autocommit=False, options="-c synchronous_commit=on") as connection:
            for statement in statements:
                connection.execute(statement.encode())
            connection.commit()

    thread = threading.Thread(target=run, name="committing")
    thread.start()
    try:
        yield thread
    finally:
        thread.join(timeout=60)
        assert not thread.is_alive(), "the standby has not acknowledged"


def before_reads(source: DeltaSource[Any], act: Callable[[int, ChunkRequest], None]) -> None:
    """Call `act` with the number of each chunk, from 1, before it is read."""
    read, count = source.read_chunk, [0]

    def acting(request: ChunkRequest) -> Chunk:
        count[0] += 1
        act(count[0], request)
        return read(request)

    source.read_chunk = acting  # type: ignore[method-assign]


def after_reads(source: DeltaSource[Any], act: Callable[[int, ChunkRequest], None]) -> None:
    """Call `act` after each chunk was read, before its mark is written."""
    read, count = source.read_chunk, [0]

    def acting(request: ChunkRequest) -> Chunk:
        chunk = read(request)
        count[0] += 1
        act(count[0], request)
        return chunk

    source.read_chunk = acting  # type: ignore[method-assign]


def has_sealed_chunks(captured: Captured, name: str) -> bool:
    """Whether a chunk of the table's newest snapshot is sealed; one commit may hold all of them, and the snapshot's end."""
    progress = captured.record(table(name)).snapshot
    return progress is not None and (progress.completed_at is not None or progress.ranges[0].after is not None)


# --- the order of visibility --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def late_server() -> Iterator[tuple[PostgresServer, LateStandby]]:
    """A server whose synchronous standby acknowledges late."""
    with PostgresServer.distribution(settings=SETTINGS) as server, LateStandby(server) as standby:
        yield server, standby


@pytest.fixture
def late(late_server: tuple[PostgresServer, LateStandby]) -> Iterator[tuple[ScratchDatabase, LateStandby]]:
    """A database there."""
    server, standby = late_server
    with server.database() as database:
        try:
            yield database, standby
        finally:
            standby.release()


@pytest.mark.parametrize("has_rule", [True, False])
def test_change_that_was_delivered_before_a_chunk_could_see_it_survives(
    late: tuple[ScratchDatabase, LateStandby], make: Make, has_rule: bool
) -> None:
    database, standby = late
    fill(database, "hot", 40)
    captured = make(database, "hot")
    if not has_rule:
        captured.make_window = without_visibility
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
                capture[0].wait_until(lambda: capture[0].control.status.ring, "it is delivered")

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
            running.wait_until(lambda: running.control.status.ring, "it is delivered")
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
        running.wait_until(lambda: running.control.status.ring, "it is delivered")
        request = captured.request("snapshot", tables=[])
        captured.catch_up(running)
        assert (100, 1, None) in captured.rows(table("hot"))
        standby.release()
        running.wait_until(lambda: captured.is_done(request), "the snapshot has begun")
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    assert_equal(captured, database, "hot")


def test_change_before_the_slots_own_place_that_nobody_sees_yet_is_in_the_first_copy(
    late: tuple[ScratchDatabase, LateStandby], make: Make
) -> None:
    # The server calls a slot consistent once whoever ran when its second look began has ended. Who committed after
    # that look, before the place, is not sent;
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


def update_one(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    connection.execute("UPDATE hot SET v = v + 1 WHERE id = %s", (chance.randint(1, 40),))


@pytest.mark.parametrize(("has_rule", "snapshots"), [(True, 50), (False, 10)])
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
        captured.make_window = without_visibility
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


# --- tables that come to the publication while somebody writes to them ------------------------------------------------------------


def test_a_table_added_later_keeps_what_an_older_transaction_had_written_to_it(
    database: ScratchDatabase, make: Make
) -> None:
    fill(database, "first", 5)
    fill(database, "later", 25)
    captured = make(database, "first")
    with captured.running() as running:
        captured.wait_for_streaming(running)
    captured.tables.append(table("later"))
    with open_transaction(
        database, "UPDATE later SET v = 1 WHERE id <= 12", "INSERT INTO later VALUES (100, 1)"
    ) as writer:
        pid = writer.info.backend_pid
        with captured.running() as running:
            # Either it says whom it waits for, or it has copied the table without these rows.
            running.wait_until(
                lambda: (
                    any(str(pid) in line for line in running.control.status.waiting_for)
                    or captured.stage(table("later")) is Stage.STREAMING
                ),
                "it waits for the writer",
            )
            database.execute("UPDATE first SET v = 7 WHERE id = 1")
            writer.commit()
            captured.wait_for_streaming(running)
            database.execute("UPDATE later SET v = v + 1 WHERE id = 25")
            captured.catch_up(running)
    assert_equal(captured, database, "first", "later")


@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_table_taken_out_of_the_publication_for_a_moment_is_copied_again(
    database: ScratchDatabase, make: Make, is_prepared: bool
) -> None:
    fill(database, "t", 25)
    captured = make(database, "t")
    captured.settings = replace(captured.settings, compare_every_s=0.1)
    publication = f"replicator_{database.name}"
    with captured.running() as running:
        captured.wait_for_streaming(running)
        with ExitStack() as stack:
            database.execute(
                f"ALTER PUBLICATION {publication} DROP TABLE t",
                "INSERT INTO t VALUES (100, 1)",
                "DELETE FROM t WHERE id = 7",
            )
            writer = stack.enter_context(
                open_transaction(database, "UPDATE t SET v = 5 WHERE id <= 9", "INSERT INTO t VALUES (101, 1)")
            )
            if is_prepared:
                writer.execute("PREPARE TRANSACTION 'held'")
                writer.rollback()
            database.execute(f"ALTER PUBLICATION {publication} ADD TABLE t")
            name = "held" if is_prepared else f"pid {writer.info.backend_pid} "
            running.wait_until(
                lambda: (
                    any(name in line for line in running.control.status.waiting_for)
                    or len(captured.events(table("t"))) > 3
                ),
                "the change is noticed",
            )
            database.execute("COMMIT PREPARED 'held'") if is_prepared else writer.commit()
        running.wait_until(lambda: len(captured.events(table("t"))) >= 5, "it is copied again")
        database.execute("UPDATE t SET v = v + 1 WHERE id IN (9, 10)")
        captured.catch_up(running)
    assert_equal(captured, database, "t")


# --- tables that are set aside, and come back -----------------------------------------------------------------------------


def wait_for_failing(captured: Captured, running: RunningCapture, name: str, code: str) -> None:
    running.wait_until(lambda: captured.stage(table(name)) is Stage.FAILED, f"{name} is set aside")
    error = captured.record(table(name)).error
    assert error is not None
    assert error.code == code


def test_table_with_a_value_that_cannot_be_represented_comes_back_with_a_snapshot(
    database: ScratchDatabase, make: Make
) -> None:
    database.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, day date)",
        "INSERT INTO t SELECT i, '2024-01-01' FROM generate_series(1, 15) i",
    )
    fill(database, "other", 3)
    captured = make(database, "t", "other")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute("UPDATE t SET day = 'infinity' WHERE id = 3")
        running.wait_until(lambda: captured.stage(table("t")) is Stage.FAILED, "it is set aside")
        database.execute("UPDATE t SET day = '2024-02-02' WHERE id <= 3", "UPDATE other SET v = 1")
        captured.catch_up(running)
        assert_equal(captured, database, "other")
        captured.snapshot(running, table("t"))
        database.execute(
            "UPDATE t SET day = '2024-03-03' WHERE id = 15",
            "DELETE FROM t WHERE id = 1",
            "INSERT INTO t VALUES (50, NULL)",
        )
        captured.catch_up(running)
        assert_equal(captured, database, "t", "other")
        assert captured.record(table("t")).error is None


def test_value_that_cannot_be_represented_is_noticed_while_the_table_waits_for_its_copy(
    database: ScratchDatabase, make: Make
) -> None:
    database.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, day date)",
        "INSERT INTO t SELECT i, '2024-01-01' FROM generate_series(1, 15) i",
    )
    fill(database, "other", 3)
    captured = make(database, "other")
    with captured.running() as running:
        captured.wait_for_streaming(running)
    captured.tables.append(table("t"))
    with open_transaction(database, "INSERT INTO other VALUES (9, 9)") as writer, captured.running() as running:
        running.wait_until(lambda: running.control.status.waiting_for, "the copy waits for the writer")
        # The log's reader cannot decode this one, and skips the table from here on; by the time it is copied it is gone.
        database.execute("INSERT INTO t VALUES (100, 'infinity')", "DELETE FROM t WHERE id = 100")
        captured.catch_up(running)
        writer.commit()
        captured.wait_for_streaming(running)
        database.execute("UPDATE t SET day = '2024-03-03' WHERE id = 15")
        captured.catch_up(running)
    assert_equal(captured, database, "t", "other")


def test_table_with_changed_columns_comes_back_in_its_new_shape(database: ScratchDatabase, make: Make) -> None:
    fill(database, "t", 15)
    captured = make(database, "t")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute(
            "ALTER TABLE t ADD COLUMN extra int DEFAULT 7",
            "ALTER TABLE t DROP COLUMN note",
            "INSERT INTO t VALUES (20, 2, 2)",
        )
        wait_for_failing(captured, running, "t", "schema_changed")
        captured.snapshot(running, table("t"))
        database.execute("UPDATE t SET extra = 8 WHERE id = 1", "DELETE FROM t WHERE id = 2")
        captured.catch_up(running)
        assert captured.record(table("t")).incarnation == 2
    assert_equal(captured, database, "t")


def test_table_that_did_not_exist_when_the_log_was_opened_comes_with_a_snapshot(
    database: ScratchDatabase, make: Make
) -> None:
    fill(database, "other", 3)
    captured = make(database, "other", "t")
    with captured.running() as running:
        captured.wait_for_streaming(running, table("other"))
        wait_for_failing(captured, running, "t", "table_missing")
        fill(database, "t", 15)
        captured.snapshot(running, table("t"))
        database.execute(
            "UPDATE t SET v = 8 WHERE id = 1", "DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (30, 3)"
        )
        captured.catch_up(running)
    assert_equal(captured, database, "t", "other")


def test_table_made_anew_without_a_key_is_set_aside_alone(database: ScratchDatabase, make: Make) -> None:
    fill(database, "t", 5)
    fill(database, "other", 5)
    captured = make(database, "t", "other")
    captured.settings = replace(captured.settings, compare_every_s=0.1)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute(
            "DROP TABLE t",
            "CREATE TABLE t (id bigint NOT NULL, v bigint NOT NULL, note text)",
            "INSERT INTO t VALUES (1, 1)",
        )
        running.wait_until(lambda: captured.stage(table("t")) is Stage.FAILED, "it is set aside")
        database.execute("UPDATE other SET v = 3")
        captured.catch_up(running)
        assert_equal(captured, database, "other")
    with captured.running() as running:
        database.execute("UPDATE other SET v = 4", "UPDATE t SET v = 9", "ALTER TABLE t ADD PRIMARY KEY (id)")
        captured.snapshot(running, table("t"))
        database.execute("UPDATE t SET v = 10")
        captured.catch_up(running)
    assert_equal(captured, database, "t", "other")


# --- tables that change while they are read ----------------------------------------------------------------------------------


def at_chunk(number: int, act: Callable[[], Any], *, after: bool = False) -> Callable[[DeltaSource[Any]], None]:
    """Something that happens just before (or after) the given chunk is read, once."""

    def once(count: int, _: ChunkRequest) -> None:
        if count == number:
            act()

    return lambda source: after_reads(source, once) if after else before_reads(source, once)


@pytest.mark.parametrize("is_after", [False, True])
def test_truncate_of_several_tables_in_the_window_leaves_only_what_came_after(
    database: ScratchDatabase, make: Make, is_after: bool
) -> None:
    fill(database, "a", 35)
    fill(database, "b", 12)

    def truncate() -> None:
        with database.connect(autocommit=False) as connection:
            connection.execute("UPDATE a SET v = 2 WHERE id IN (1, 30)")
            connection.execute("TRUNCATE a, b")
            connection.execute("INSERT INTO a VALUES (1, 9), (2, 9), (33, 9)")
            connection.commit()
        database.execute("INSERT INTO b VALUES (1, 1)")

    captured = make(database, "a", "b")
    with captured.running(at_chunk(2, truncate, after=is_after)) as running:
        captured.wait_for_streaming(running)
        database.execute("UPDATE a SET v = 10 WHERE id = 2")
        captured.catch_up(running)
        assert_equal(captured, database, "a", "b")
        assert (
            sum(
                isinstance(e, DDLEvent) and e.operation is DDLOperation.TRUNCATE_TABLE
                for e in captured.events(table("b"))
            )
            == 1
        )


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize(
    "statement",
    [
        "VACUUM FULL t",
        "ALTER TABLE t ALTER note TYPE varchar(40)",
        "ALTER TABLE t ALTER v TYPE numeric(20)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "CLUSTER t USING t_pkey",
    ],
)
def test_table_that_is_rewritten_while_it_is_read_is_whole_in_the_end(
    database: ScratchDatabase, make: Make, statement: str, is_after: bool
) -> None:
    fill(database, "t", 35)
    captured = make(database, "t")
    captured.settings = replace(captured.settings, compare_every_s=0.1)
    changes = "ALTER v" in statement or "ALTER note" in statement

    def act() -> None:
        database.execute(statement, "UPDATE t SET v = 3 WHERE id IN (2, 12, 33)", "DELETE FROM t WHERE id IN (3, 34)")

    with captured.running(at_chunk(2, act, after=is_after)) as running:
        running.wait_until(
            lambda: captured.stage(table("t")) in (Stage.STREAMING, Stage.FAILED), "it is copied or set aside"
        )
        captured.catch_up(running)
        if captured.stage(table("t")) is Stage.FAILED:
            assert changes
            captured.snapshot(running, table("t"))
        captured.wait_for_streaming(running)
        database.execute("UPDATE t SET v = 4 WHERE id IN (1, 20)")
        captured.catch_up(running)
    assert_equal(captured, database, "t")


def wait_for_copies(captured: Captured, running: RunningCapture, name: str, events: int) -> None:
    """Wait until a table has so many events of snapshots, and is followed."""
    running.wait_until(
        lambda: (
            sum(isinstance(e, SnapshotEvent) for e in captured.events(table(name))) >= events
            and captured.stage(table(name)) is Stage.STREAMING
        ),
        f"{name} is copied again",
    )


def test_partitions_that_come_go_or_are_emptied_are_found(database: ScratchDatabase, make: Make) -> None:
    database.execute(
        "CREATE TABLE p (id bigint, part int, v bigint, PRIMARY KEY (part, id)) PARTITION BY LIST (part)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2)",
        "CREATE TABLE p3 (id bigint NOT NULL, part int NOT NULL, v bigint, PRIMARY KEY (part, id))",
        "INSERT INTO p SELECT i, 1 + i % 2, 0 FROM generate_series(1, 30) AS i",
        "INSERT INTO p3 SELECT i, 3, 0 FROM generate_series(1, 12) AS i",
    )
    captured = make(database, "p")
    captured.settings = replace(captured.settings, compare_every_s=0.1)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        for count, statements in enumerate(
            [
                ("ALTER TABLE p ATTACH PARTITION p3 FOR VALUES IN (3)", "UPDATE p SET v = 1 WHERE part = 3 AND id = 2"),
                ("TRUNCATE p2", "INSERT INTO p VALUES (50, 2, 1)"),
                ("ALTER TABLE p DETACH PARTITION p1", "INSERT INTO p1 VALUES (60, 1, 1)"),
                ("DROP TABLE p2",),
            ],
            start=2,
        ):
            database.execute(*statements)
            wait_for_copies(captured, running, "p", 2 * count)
            # A row that crosses over keeps its history straight.
            database.execute("UPDATE p SET v = v + 1 WHERE id % 3 = 0")
            captured.catch_up(running)
            assert_equal(captured, database, "p")


def test_table_dropped_and_made_again_with_the_same_name_is_copied_again(database: ScratchDatabase, make: Make) -> None:
    fill(database, "t", 15)
    captured = make(database, "t")
    captured.settings = replace(captured.settings, compare_every_s=0.1)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute(
            "BEGIN; DROP TABLE t; CREATE TABLE t (id bigint PRIMARY KEY, v bigint NOT NULL, note text); "
            "INSERT INTO t VALUES (1, 9), (99, 9); COMMIT"
        )
        wait_for_copies(captured, running, "t", 4)
        database.execute("UPDATE t SET v = 10 WHERE id = 99")
        captured.catch_up(running)
    assert_equal(captured, database, "t")


# Each leaves table and shape as they were: only what the catalogue says beside them tells that something came in between.
THERE_AND_BACK = {
    "column": ("ALTER TABLE t DROP COLUMN note, ADD COLUMN note text", "UPDATE t SET v = 1 WHERE id = 3"),
    "spelling": ("ALTER TABLE t ALTER COLUMN at TYPE inet", "INSERT INTO t VALUES (90, 0, '10.0.0.9')"),
    "schema_of_the_publication": (
        "ALTER PUBLICATION mine DROP TABLES IN SCHEMA public",
        "UPDATE t SET v = 7 WHERE id <= 5",
        "ALTER PUBLICATION mine ADD TABLES IN SCHEMA public",
    ),
    "imposter": (
        "ALTER TABLE t RENAME TO t_kept",
        "CREATE TABLE t (id bigint PRIMARY KEY, v bigint NOT NULL, at inet, note text)",
        "INSERT INTO t VALUES (3, 66, NULL, 'imposter'), (500, 66, NULL, 'imposter')",
        "DROP TABLE t",
        "ALTER TABLE t_kept RENAME TO t",
    ),
    "partition": (
        "ALTER TABLE p DETACH PARTITION p1",
        "UPDATE p1 SET v = 9 WHERE id <= 3",
        "DELETE FROM p1 WHERE id = 5",
        "ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (100)",
    ),
}


@pytest.mark.parametrize("is_running", [False, True])
def test_what_was_changed_and_changed_back_is_copied_again(
    database: ScratchDatabase, make: Make, is_running: bool
) -> None:
    with database.connect() as connection:
        has_schemas = connection.info.server_version >= 150000
    database.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, v bigint NOT NULL, at cidr, note text)",
        "INSERT INTO t SELECT i, 0, '10.0.0.1/32', 'note ' || i FROM generate_series(1, 20) AS i",
        "CREATE TABLE p (id bigint PRIMARY KEY, v bigint) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100)",
        "INSERT INTO p SELECT i, 0 FROM generate_series(1, 10) AS i",
        f"CREATE PUBLICATION mine FOR {'TABLES IN SCHEMA public' if has_schemas else 'ALL TABLES'} WITH (publish_via_partition_root)",
    )
    captured = make(database, "t", "p", publication="mine")
    captured.settings = replace(captured.settings, compare_every_s=0.1)
    for name, statements in THERE_AND_BACK.items():
        if name == "schema_of_the_publication" and not has_schemas:
            continue
        if is_running and name == "imposter":
            continue  # a comparison in between would find no table
        changed = "p" if name == "partition" else "t"
        with captured.running() as running:
            captured.wait_for_streaming(running)
            captured.catch_up(running)
            copies = sum(isinstance(event, SnapshotEvent) for event in captured.events(table(changed)))
            if is_running:
                database.execute(*statements)
                wait_for_copies(captured, running, changed, copies + 2)
        if not is_running:
            database.execute(*statements)
            with captured.running() as running:
                wait_for_copies(captured, running, changed, copies + 2)
                captured.catch_up(running)
        found = captured.rows(table(changed))
        # The driver has a type of its own for these.
        wanted = Counter(
            (*row[:2], None if row[2] is None else str(row[2]), row[3]) if changed == "t" else row
            for row in source_rows(database, changed).elements()
        )
        assert found == wanted, name


@pytest.mark.parametrize("is_described", [False, True])
def test_a_table_renamed_and_renamed_back_is_set_aside(
    database: ScratchDatabase, make: Make, is_described: bool
) -> None:
    fill(database, "t", 10)
    captured = make(database, "t")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        captured.catch_up(running)
        if is_described:
            database.execute("UPDATE t SET v = 1 WHERE id = 1")
            captured.catch_up(running)
        database.execute(
            "ALTER TABLE t RENAME TO t_old",
            "UPDATE t_old SET v = 7 WHERE id <= 5",
            "ALTER TABLE t_old RENAME TO t",
        )
        wait_for_failing(captured, running, "t", "table_renamed")


def test_rows_of_a_table_that_bore_anothers_name_do_not_come_as_its_own(database: ScratchDatabase, make: Make) -> None:
    for name in ("a", "b"):
        fill(database, name, 5)
    captured = make(database, "a", "b")
    swap = ("ALTER TABLE a RENAME TO c", "ALTER TABLE b RENAME TO a", "ALTER TABLE c RENAME TO b")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    database.execute(*swap, "INSERT INTO a VALUES (77, 1, 'of b')", "DELETE FROM b WHERE id = 2", *swap)
    with captured.running() as running:
        running.wait_until(
            lambda: any(captured.stage(table(name)) is Stage.FAILED for name in "ab"), "one of them is set aside"
        )
        captured.catch_up(running)
        for name in "ab":
            if captured.stage(table(name)) is not Stage.FAILED:
                captured.wait_for_streaming(running, table(name))
                assert_equal(captured, database, name)
            assert not {row for row in captured.rows(table(name)) if row[0] == 77} - set(source_rows(database, name))


def test_a_table_that_becomes_a_partition_is_set_aside(database: ScratchDatabase, make: Make) -> None:
    fill(database, "leaf", 5)
    database.execute(
        "CREATE TABLE root (id bigint PRIMARY KEY, v bigint NOT NULL, note text) PARTITION BY RANGE (id)",
        "CREATE TABLE other PARTITION OF root FOR VALUES FROM (1000) TO (2000)",
    )
    captured = make(database, "leaf", "root")
    captured.settings = replace(captured.settings, compare_every_s=0.1)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute(
            "ALTER TABLE root ATTACH PARTITION leaf FOR VALUES FROM (0) TO (1000)",
            "INSERT INTO root VALUES (50, 1, 'by way of the root')",
        )
        wait_for_failing(captured, running, "leaf", "is_partition")
        error = captured.record(table("leaf")).error
        assert error is not None
        assert "name its root" in str(error.action)
        wait_for_copies(captured, running, "root", 4)
        captured.catch_up(running)
    assert_equal(captured, database, "root")


def test_a_slot_made_anew_in_the_instant_before_it_is_read_is_noticed(database: ScratchDatabase, make: Make) -> None:
    fill(database, "t", 5)
    captured = make(database, "t")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    ((slot,),) = database.execute("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")

    def alter(source: DeltaSource[Any]) -> None:
        accept = source.accept

        def made_anew(identities: Any) -> None:
            accept(identities)
            session = source._control  # type: ignore[attr-defined]
            use = session.use

            @contextmanager
            def used(what: str) -> Iterator[Any]:
                with use(what) as connection:
                    yield connection
                if what == "reading the replication slot":
                    session.use = use
                    database.execute(
                        f"SELECT pg_drop_replication_slot('{slot}')",
                        "UPDATE t SET v = 5",
                        f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')",
                    )

            session.use = used

        source.accept = made_anew  # type: ignore[method-assign]

    with captured.running(alter) as running:
        error = running.error()
    assert isinstance(error, LogGapError)
    assert error.code == "slot_ahead"


def test_changed_key_begins_a_new_incarnation(database: ScratchDatabase, make: Make) -> None:
    fill(database, "t", 25)
    database.execute(
        "ALTER TABLE t ALTER v DROP NOT NULL",
        "UPDATE t SET v = id",
        "ALTER TABLE t ALTER v SET NOT NULL",
        "CREATE UNIQUE INDEX by_v ON t (v)",
    )
    captured = make(database, "t")
    captured.settings = replace(captured.settings, compare_every_s=0.1)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute(
            "ALTER TABLE t REPLICA IDENTITY USING INDEX by_v",
            "UPDATE t SET id = id + 100 WHERE id <= 5",
            "UPDATE t SET v = v + 1000 WHERE v = 7",
        )
        running.wait_until(lambda: captured.record(table("t")).incarnation == 2, "a new incarnation begins")
        captured.wait_for_streaming(running)
        database.execute(
            "UPDATE t SET id = id + 100 WHERE id > 100",
            "UPDATE t SET v = v + 1000 WHERE v = 9",
            "DELETE FROM t WHERE v = 11",
        )
        captured.catch_up(running)
        assert captured.record(table("t")).schema.key == ("v",)  # type: ignore[union-attr]
    assert_equal(captured, database, "t")


# --- values that are not sent, rows without a key, odd names ---------------------------------------------------------------------


def test_unchanged_large_values_survive_moves_and_updates_while_the_table_is_copied(
    database: ScratchDatabase, make: Make
) -> None:
    database.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, v bigint NOT NULL, a text, b text)",
        "ALTER TABLE t ALTER a SET STORAGE EXTERNAL, ALTER b SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT i, 0, repeat('a' || i, 1200), repeat('b' || i, 1200) FROM generate_series(1, 40) AS i",
    )

    def change(number: int, _: ChunkRequest) -> None:
        if number > 6:
            return
        n = 5 * number
        database.execute(
            f"UPDATE t SET v = {number} WHERE id IN ({n}, {n - 1}, {41 - n}, {41 - n + 1})",
            f"UPDATE t SET b = repeat('n{number}', 1300) WHERE id IN ({n - 1}, {42 - n})",
            f"UPDATE t SET id = id + 100 WHERE id IN ({n - 2}, {40 - n})",
            f"UPDATE t SET id = id - 50, v = v + 1 WHERE id = {100 + n - 2}",
        )

    captured = make(database, "t")
    with captured.running(
        lambda source: (before_reads(source, change), after_reads(source, lambda n, r: change(n + 3, r)))[0]
    ) as running:
        captured.wait_for_streaming(running)
        database.execute("UPDATE t SET v = v + 1 WHERE id % 4 = 0", "UPDATE t SET id = id + 1000 WHERE id % 7 = 0")
        captured.catch_up(running)
        assert_equal(captured, database, "t")
        captured.snapshot(running)
        captured.catch_up(running)
    assert_equal(captured, database, "t")


def write_bag(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    value = chance.randint(1, 6)
    connection.execute(
        chance.choice(
            [
                f"INSERT INTO bag VALUES ({value}, 'same'), ({value}, 'same'), ({value + 1}, NULL)",
                f"DELETE FROM bag WHERE ctid = (SELECT ctid FROM bag WHERE a = {value} LIMIT 1)",
                f"UPDATE bag SET a = {chance.randint(1, 6)} WHERE ctid = (SELECT ctid FROM bag WHERE a = {value} LIMIT 1)",
            ]
        ).encode()
    )


def test_table_without_a_key_has_each_row_as_often_as_the_source_through_restarts(
    late: tuple[ScratchDatabase, LateStandby], make: Make
) -> None:
    database, _ = late
    database.execute(
        "CREATE TABLE bag (a bigint, b text)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        "INSERT INTO bag SELECT i % 6, 'same' FROM generate_series(1, 300) i",
    )
    fill(database, "other", 30)
    captured = make(database, "bag", "other")
    with Writers(database, 6, write_bag):
        for round_ in range(6):
            with captured.running() as running:
                if round_ % 2:
                    # Stopped anywhere: the copy may have begun, or be whole.
                    captured.request("snapshot", tables=["public.bag"])
                    captured.catch_up(running)
                else:
                    captured.wait_for_streaming(running)
                    captured.catch_up(running)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        running.wait_until(lambda: not captured.store.requests(captured.name), "no request is open")
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    assert_equal(captured, database, "bag", "other")


def test_keys_of_odd_collations_and_odd_names_are_read_in_order_and_found_again(
    database: ScratchDatabase, make: Make
) -> None:
    name = 'ta"ble 😀.x'
    quoted = '"ta""ble 😀.x"'
    database.execute(
        "CREATE COLLATION odd (provider = icu, locale = 'de-u-kn-ks-level2', deterministic = false)",
        f"""CREATE TABLE {quoted} ("na""me 😀" text COLLATE odd, "Id" text COLLATE "C", "in%voice's" bigint,"""
        """ PRIMARY KEY ("na""me 😀", "Id"))""",
    )
    words = [
        "a",
        "B",
        "ß",
        "ss ",
        "10",
        "9",
        "é",
        "e\u0301x",
        "'; DROP",
        '"',
        "\\",
        "😀",
        "",
        " ",
        "_",
        "Z1",
        "z 1",
        "\t",
        "%s",
        "ÄÖ",
    ]
    with database.connect() as connection:
        for word in words:
            for other in ("x", "X", "x ", "'", "😀"):
                connection.execute(f"INSERT INTO {quoted} VALUES (%s, %s, 0)", (word, other))
    captured = make(database, name)
    captured.settings = replace(captured.settings, chunk_rows=3)

    def change(number: int, _: ChunkRequest) -> None:
        with database.connect() as connection:
            word = words[number % len(words)]
            column, of = '"na""me 😀"', '"in%%voice\'s"'
            connection.execute(f"UPDATE {quoted} SET {of} = {of} + 1 WHERE {column} = %s", (word,))
            if number in (3, 8):
                connection.execute(
                    f"UPDATE {quoted} SET {column} = upper({column} || 'ü') WHERE {column} = %s", (word,)
                )

    with captured.running(lambda source: after_reads(source, change)) as running:
        captured.wait_for_streaming(running)
        captured.catch_up(running)
        found, wanted = captured.rows(table(name)), Counter(database.execute(f"SELECT * FROM {quoted}"))
        assert found == wanted


def test_a_recreated_table_begins_a_new_incarnation_and_the_others_go_on(database: ScratchDatabase, make: Make) -> None:
    fill(database, "t", 25)
    fill(database, "u", 25)
    captured = make(database, "t", "u")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        request = captured.request("recreate", tables=["public.t"])
        running.wait_until(lambda: captured.is_done(request), "the copy has begun")
        captured.wait_for_streaming(running)
        database.execute("DELETE FROM t WHERE id = 3", "DELETE FROM u WHERE id = 3")
        captured.catch_up(running)
        assert captured.record(table("t")).incarnation == 2
        assert captured.record(table("u")).incarnation == 1
        captured.snapshot(running, table("t"))
        assert captured.record(table("t")).incarnation == 2, "recreated once, not from then on"
        captured.catch_up(running)
    creations = [item.operation for _, _, item in captured.items(table("t")) if isinstance(item, DDLEvent)]
    assert creations == [DDLOperation.CREATE_TABLE] * 2
    assert_equal(captured, database, "t", "u")


def test_a_table_that_comes_is_followed_without_another_start(database: ScratchDatabase, make: Make) -> None:
    fill(database, "t", 25)
    captured = make(database, "t")
    captured.settings = replace(captured.settings, compare_every_s=0.3)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        fill(database, "u", 25)
        captured.tables.append(table("u"))
        captured.wait_for_streaming(running)
        database.execute("DELETE FROM t WHERE id = 3", "DELETE FROM u WHERE id = 3")
        captured.catch_up(running)
    assert_equal(captured, database, "t", "u")


def test_a_table_with_wide_rows_is_copied_whole(database: ScratchDatabase, make: Make) -> None:
    database.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, v text)",
        "INSERT INTO t SELECT i, repeat('x', 100000) FROM generate_series(1, 150) i",
    )
    captured = make(database, "t", chunk_bytes_max="5MiB")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    assert_equal(captured, database, "t")


# --- the place in the log ----------------------------------------------------------------------------------------------------


def go_on(captured: Captured, until: Callable[[RunningCapture], Any]) -> None:
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
        running.wait_until(lambda: captured.is_done(request), "the new place is taken")
        database.execute("UPDATE t SET v = 6 WHERE id = 5")
        captured.wait_for_streaming(running)
        captured.catch_up(running)
        assert_equal(captured, database, "t", "bag")
        assert captured.record(table("t")).incarnation == 1
        # The same while it runs.
        captured.request("restart")
        running.wait_until(lambda: not captured.store.requests(captured.name), "the new place is taken")
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
    segment = captured.store.last_segment(captured.name)
    assert record is not None
    offset = (segment.offset if segment is not None else None) or record.start_offset
    assert offset is not None
    high, low = offset.value["lsn"].split("/")
    return (int(high, 16) << 32) + int(low, 16)


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


def move_one(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    one, other = chance.randint(1, 60), chance.randint(1, 60)
    statement = chance.choice(
        [
            f"UPDATE hot SET v = v + 1 WHERE id = {one}",
            f"UPDATE hot SET id = {other} WHERE id = {one} AND NOT EXISTS (SELECT FROM hot WHERE id = {other})",
            f"DELETE FROM hot WHERE id = {one}",
            f"INSERT INTO hot VALUES ({one}, 0, 'new') ON CONFLICT (id) DO UPDATE SET v = hot.v + 1",
            f"UPDATE hot SET note = repeat('long', 900) || {one} WHERE id = {one}",
            (
                f"BEGIN; UPDATE hot SET v = v + 1 WHERE id = {one}; SAVEPOINT s; DELETE FROM hot WHERE id = {one}; "
                f"ROLLBACK TO s; INSERT INTO bag VALUES ({one}); COMMIT"
            ),
        ]
    )
    try:
        connection.execute(statement.encode())
    except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
        connection.rollback()


@pytest.mark.slow  # failed once beside another suite on two busy cores, passes alone: to be understood
@pytest.mark.parametrize("how", ["stop", "kill9"])
def test_capture_goes_on_when_the_server_comes_back(make: Make, how: str) -> None:
    with PostgresServer.distribution() as server, server.database() as database:
        fill(database, "hot", 40)
        database.execute(
            "ALTER TABLE hot ALTER note SET STORAGE EXTERNAL",
            "CREATE TABLE bag (a bigint)",
            "ALTER TABLE bag REPLICA IDENTITY FULL",
        )
        captured = make(database, "hot", "bag")
        with Writers(database, 6, move_one) as writers:
            go_on(captured, captured.wait_for_streaming)
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
        go_on(captured, lambda running: (captured.wait_for_streaming(running), captured.catch_up(running)))
        go_on(captured, lambda running: (captured.wait_for_streaming(running), captured.catch_up(running)))
        assert_equal(captured, database, "hot", "bag")


@pytest.mark.slow
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
        running.wait_until(lambda: not captured.store.requests(captured.name), "no request is open")
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    assert_equal(captured, database, "hot", "bag")

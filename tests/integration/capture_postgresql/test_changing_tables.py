"""Tables that change while they are read, or while nobody looks, are found and read again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from replicator.config import DDLConfig
from replicator.model.errors import LogGapError
from replicator.model.events import DDLEvent, DDLOperation, SnapshotEvent
from replicator.plugins.source import ChunkRequest, DeltaSource
from replicator.state.records import Decision, Stage
from replicator_testbed.journals.captured import Captured, RunningCapture
from replicator_testbed.postgresql.captures import (
    Make,
    after_reads,
    assert_equal,
    before_reads,
    fill,
    source_rows,
    table,
    wait_for_failed,
)
from replicator_testbed.postgresql.servers import ScratchDatabase


def at_chunk(number: int, act: Callable[[], Any], *, after: bool = False) -> Callable[[DeltaSource[Any]], None]:
    """Something that happens just before (or after) the given chunk is read, once."""

    def once(count: int, _: ChunkRequest) -> None:
        if count == number:
            act()

    return lambda source: after_reads(source, once) if after else before_reads(source, once)


@pytest.mark.matrix
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


@pytest.mark.sampled(1)
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
            lambda: captured.stage(table("t")) in (Stage.STREAMING, Stage.FAILED), "it is copied or failed"
        )
        captured.catch_up(running)
        if captured.stage(table("t")) is Stage.FAILED:
            assert changes
            captured.snapshot(running, table("t"))
        captured.wait_for_streaming(running)
        database.execute("UPDATE t SET v = 4 WHERE id IN (1, 20)")
        captured.catch_up(running)
    assert_equal(captured, database, "t")


def wait_for_snapshots(captured: Captured, running: RunningCapture, name: str, events: int) -> None:
    """Wait until a table has so many events of snapshots, and is followed."""
    running.wait_until(
        lambda: (
            sum(isinstance(e, SnapshotEvent) for e in captured.events(table(name))) >= events
            and captured.stage(table(name)) is Stage.STREAMING
        ),
        f"{name} is read again",
    )


@pytest.mark.matrix
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
            wait_for_snapshots(captured, running, "p", 2 * count)
            # A row that crosses over keeps its history straight.
            database.execute("UPDATE p SET v = v + 1 WHERE id % 3 = 0")
            captured.catch_up(running)
            assert_equal(captured, database, "p")


@pytest.mark.matrix
def test_table_dropped_and_made_again_with_the_same_name_gets_a_new_snapshot(
    database: ScratchDatabase, make: Make
) -> None:
    fill(database, "t", 15)
    captured = make(database, "t")
    captured.settings = replace(captured.settings, compare_every_s=0.1)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute(
            "BEGIN; DROP TABLE t; CREATE TABLE t (id bigint PRIMARY KEY, v bigint NOT NULL, note text); "
            "INSERT INTO t VALUES (1, 9), (99, 9); COMMIT"
        )
        wait_for_snapshots(captured, running, "t", 4)
        database.execute("UPDATE t SET v = 10 WHERE id = 99")
        captured.catch_up(running)
    assert_equal(captured, database, "t")
    last = captured.store.histories.latest(captured.name, 10)[-1]
    assert (last.operation, last.decision) == (DDLOperation.CREATE_TABLE, Decision.SNAPSHOT)
    assert "the table was replaced by another one" in str(last.reason)


# Each leaves table and shape as they were: only what the catalogue says next to them tells that something came in between.
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


@pytest.mark.matrix
@pytest.mark.parametrize("is_running", [False, True])
def test_what_was_changed_and_changed_back_gets_a_new_snapshot(
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
            snapshots = sum(isinstance(event, SnapshotEvent) for event in captured.events(table(changed)))
            if is_running:
                database.execute(*statements)
                wait_for_snapshots(captured, running, changed, snapshots + 2)
        if not is_running:
            database.execute(*statements)
            with captured.running() as running:
                wait_for_snapshots(captured, running, changed, snapshots + 2)
                captured.catch_up(running)
        found = captured.rows(table(changed))
        # The driver has a type of its own for these.
        wanted = Counter(
            (*row[:2], None if row[2] is None else str(row[2]), row[3]) if changed == "t" else row
            for row in source_rows(database, changed).elements()
        )
        assert found == wanted, name


@pytest.mark.matrix
@pytest.mark.parametrize("is_described", [False, True])
def test_a_table_renamed_and_renamed_back_loses_nothing(
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
        captured.catch_up(running)
        assert_equal(captured, database, "t")


@pytest.mark.matrix
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
            lambda: any(captured.stage(table(name)) is Stage.FAILED for name in "ab"), "one of them has failed"
        )
        captured.catch_up(running)
        for name in "ab":
            if captured.stage(table(name)) is not Stage.FAILED:
                captured.wait_for_streaming(running, table(name))
                assert_equal(captured, database, name)
            assert not {row for row in captured.rows(table(name)) if row[0] == 77} - set(source_rows(database, name))


@pytest.mark.matrix
def test_a_table_that_becomes_a_partition_fails(database: ScratchDatabase, make: Make) -> None:
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
        wait_for_failed(captured, running, "leaf", "is_partition")
        error = captured.record(table("leaf")).error
        assert error is not None
        assert "name its root" in str(error.action)
        wait_for_snapshots(captured, running, "root", 4)
        captured.catch_up(running)
    assert_equal(captured, database, "root")


@pytest.mark.matrix
def test_a_slot_recreated_in_the_instant_before_it_is_read_is_noticed(database: ScratchDatabase, make: Make) -> None:
    fill(database, "t", 5)
    captured = make(database, "t")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    ((slot,),) = database.execute("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")

    def alter(source: DeltaSource[Any]) -> None:
        accept = source.accept

        def recreated(identities: Any) -> None:
            accept(identities)
            session = source._sessions.control  # type: ignore[attr-defined]
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

        source.accept = recreated  # type: ignore[method-assign]

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
    captured.settings = replace(captured.settings, compare_every_s=0.1, ddl=lambda _: DDLConfig(change_key="apply"))
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

"""A table that fails stops alone, and a snapshot brings it back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replicator.state.records import Stage
from replicator_testbed.postgresql.captures import (
    Make,
    assert_equal,
    fill,
    open_transaction,
    table,
    wait_for_failed,
)
from replicator_testbed.postgresql.servers import ScratchDatabase


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
        running.wait_until(lambda: captured.stage(table("t")) is Stage.FAILED, "it has failed")
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


@pytest.mark.matrix
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
        # The log's reader cannot decode this one, and skips the table from here on; by the time of its snapshot it does not exist.
        database.execute("INSERT INTO t VALUES (100, 'infinity')", "DELETE FROM t WHERE id = 100")
        captured.catch_up(running)
        writer.commit()
        captured.wait_for_streaming(running)
        database.execute("UPDATE t SET day = '2024-03-03' WHERE id = 15")
        captured.catch_up(running)
    assert_equal(captured, database, "t", "other")


@pytest.mark.matrix
def test_table_with_changed_columns_comes_back_in_its_new_shape(database: ScratchDatabase, make: Make) -> None:
    fill(database, "t", 15)
    captured = make(database, "t")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute(
            "ALTER TABLE t ADD COLUMN extra int DEFAULT 7",
            "ALTER TABLE t ALTER COLUMN note TYPE int USING length(note)",
            "INSERT INTO t VALUES (20, 2, 2, 2)",
        )
        wait_for_failed(captured, running, "t", "ddl_stop")
        captured.snapshot(running, table("t"))
        database.execute("UPDATE t SET extra = 8 WHERE id = 1", "DELETE FROM t WHERE id = 2")
        captured.catch_up(running)
        assert captured.record(table("t")).incarnation == 2
    assert_equal(captured, database, "t")


@pytest.mark.matrix
def test_table_that_did_not_exist_when_the_log_was_opened_comes_with_a_snapshot(
    database: ScratchDatabase, make: Make
) -> None:
    fill(database, "other", 3)
    captured = make(database, "other", "t")
    with captured.running() as running:
        captured.wait_for_streaming(running, table("other"))
        wait_for_failed(captured, running, "t", "table_missing")
        fill(database, "t", 15)
        captured.snapshot(running, table("t"))
        database.execute(
            "UPDATE t SET v = 8 WHERE id = 1", "DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (30, 3)"
        )
        captured.catch_up(running)
    assert_equal(captured, database, "t", "other")


@pytest.mark.matrix
def test_table_recreated_without_a_key_fails_alone(database: ScratchDatabase, make: Make) -> None:
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
        running.wait_until(lambda: captured.stage(table("t")) is Stage.FAILED, "it has failed")
        database.execute("UPDATE other SET v = 3")
        captured.catch_up(running)
        assert_equal(captured, database, "other")
    with captured.running() as running:
        database.execute("UPDATE other SET v = 4", "UPDATE t SET v = 9", "ALTER TABLE t ADD PRIMARY KEY (id)")
        captured.snapshot(running, table("t"))
        database.execute("UPDATE t SET v = 10")
        captured.catch_up(running)
    assert_equal(captured, database, "t", "other")

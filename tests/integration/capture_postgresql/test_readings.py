"""Alterations that the log tells only in part: what is not known is read again, in place, and no table fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest

from replicator.model.events import DDLEvent, DDLOperation, SnapshotEvent, SnapshotKind, SnapshotPhase
from replicator.model.schema import TableId
from replicator.state.records import Decision, Stage
from replicator_testbed.journals.captured import Captured
from replicator_testbed.postgresql.captures import Make, assert_equal, fill, table, wait_for_failed
from replicator_testbed.postgresql.servers import ScratchDatabase

NEVER_S = 3600.0


@pytest.fixture
def captured(database: ScratchDatabase, make: Make) -> Captured:
    """A table and a capture that hears of it by the log alone."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text, s varchar(10), n int)")
    database.execute("INSERT INTO t VALUES (1, 'x', 's', 1), (2, 'y', 's', 2)")
    found = make(database, "t")
    found.settings = replace(found.settings, compare_every_s=NEVER_S)
    return found


def snapshots(captured: Captured) -> list[SnapshotKind]:
    events = captured.events(table("t"))
    return [e.kind for e in events if isinstance(e, SnapshotEvent) and e.phase is SnapshotPhase.COMPLETED]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "statements",
    [
        # Under one name and with one type: the log shows the same table.
        ("ALTER TABLE t DROP n, ADD n int DEFAULT 7",),
        # Between two looks: which of them the log meant cannot be told.
        ("ALTER TABLE t DROP n", "ALTER TABLE t ADD n int", "ALTER TABLE t DROP n", "ALTER TABLE t ADD n int DEFAULT 7"),
        ("ALTER TABLE t ADD m int DEFAULT 5", "ALTER TABLE t DROP n", "ALTER TABLE t RENAME m TO n", "ALTER TABLE t ADD m int DEFAULT 7"),
    ],
)  # fmt: skip
def test_two_readings_are_not_guessed_between(
    database: ScratchDatabase, captured: Captured, statements: Sequence[str]
) -> None:
    with captured.running() as running:
        captured.wait_for_streaming(running)
        captured.catch_up(running)
        with database.connect() as connection, connection.transaction():
            for statement in statements:
                connection.execute(statement.encode())
        database.execute("UPDATE t SET a = 'z' WHERE id = 1")
        running.wait_until(lambda: snapshots(captured)[1:] == [SnapshotKind.IN_PLACE], "it is read again, in place")
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    record = captured.record(table("t"))
    assert (record.stage, record.error) == (Stage.STREAMING, None)
    assert record.schema is not None
    # What was dropped is kept, under another name.
    assert "n__dropped_1" in [column.name for column in record.schema.kept]
    assert_equal(captured, database, "t")
    *_, altered, found = captured.store.histories.latest(captured.name, 100, table=table("t"))
    assert (altered.decision, altered.reason) == (
        Decision.SNAPSHOT,
        "Only a new snapshot in place tells what the rows have.",
    )
    assert (found.decision, found.reason) == (Decision.SNAPSHOT, "Found when a new snapshot of the table began.")


@pytest.mark.matrix
def test_names_that_are_swapped_need_no_new_snapshot(database: ScratchDatabase, captured: Captured) -> None:
    with captured.running() as running:
        captured.wait_for_streaming(running)
        captured.catch_up(running)
        database.execute(
            "ALTER TABLE t RENAME a TO x",
            "ALTER TABLE t RENAME s TO a",
            "ALTER TABLE t RENAME x TO s",
            "UPDATE t SET n = 9",
        )
        captured.catch_up(running)
        assert_equal(captured, database, "t")
    assert snapshots(captured) == [SnapshotKind.FIRST]


@pytest.mark.matrix
def test_a_longer_type_is_followed_without_a_snapshot(database: ScratchDatabase, captured: Captured) -> None:
    with captured.running() as running:
        captured.wait_for_streaming(running)
        captured.catch_up(running)
        database.execute("ALTER TABLE t ALTER s TYPE varchar(20)", "UPDATE t SET s = repeat('s', 20) WHERE id = 1")
        captured.catch_up(running)
        assert_equal(captured, database, "t")
    record = captured.record(table("t"))
    assert record.schema is not None
    assert record.schema.column("s").source_type == "varchar(20)"
    # Also after a restart nothing is read again.
    with captured.running() as running:
        database.execute("UPDATE t SET n = 5")
        captured.catch_up(running)
        assert_equal(captured, database, "t")
    assert snapshots(captured) == [SnapshotKind.FIRST]


@pytest.mark.matrix
def test_a_shorter_type_is_read_again_at_once(database: ScratchDatabase, captured: Captured) -> None:
    with captured.running() as running:
        captured.wait_for_streaming(running)
        captured.catch_up(running)
        database.execute("ALTER TABLE t ALTER a TYPE varchar(5) USING upper(a)", "UPDATE t SET n = 5 WHERE id = 1")
        running.wait_until(lambda: snapshots(captured)[1:] == [SnapshotKind.IN_PLACE], "it is read again, in place")
        captured.wait_for_streaming(running)
        captured.catch_up(running)
        assert_equal(captured, database, "t")
    record = captured.record(table("t"))
    assert record.schema is not None
    assert record.schema.column("a").source_type == "varchar(5)"


@pytest.mark.matrix
@pytest.mark.parametrize("is_down", [False, True], ids=["running", "down"])
@pytest.mark.parametrize(
    ("statement", "decision"),
    [
        ("ALTER TABLE t ADD v double precision DEFAULT random()", Decision.SNAPSHOT),
        ("ALTER TABLE t ADD v int DEFAULT 5", Decision.APPLY),
    ],
)
def test_the_history_tells_of_the_snapshot_that_a_change_needs(
    database: ScratchDatabase, captured: Captured, statement: str, decision: Decision, is_down: bool
) -> None:
    captured.settings = replace(captured.settings, compare_every_s=0.1)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        captured.catch_up(running)
        if not is_down:
            # No row comes behind it: the catalogue shows it.
            database.execute(statement)
            running.wait_until(lambda: len(decisions(captured)) > 1, "it is found")
    if is_down:
        database.execute(statement)
    with captured.running() as running:
        running.wait_until(lambda: len(decisions(captured)) > 1, "it is found")
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    assert decisions(captured) == [Decision.APPLY, decision]
    is_read_again = decision is Decision.SNAPSHOT
    assert snapshots(captured) == [SnapshotKind.FIRST, *[SnapshotKind.IN_PLACE] * is_read_again]
    reason = captured.store.histories.latest(captured.name, 1)[0].reason
    assert reason == ("Only a new snapshot in place tells what the rows have." if is_read_again else None)


@pytest.mark.matrix
def test_the_history_tells_of_a_snapshot_that_a_change_needs_later(
    database: ScratchDatabase, captured: Captured
) -> None:
    with captured.running() as running:
        captured.wait_for_streaming(running)
        captured.catch_up(running)
        database.execute("ALTER TABLE t DROP n", "VACUUM FULL t", "UPDATE t SET a = 'z' WHERE id = 1")
        running.wait_until(lambda: snapshots(captured)[1:] == [SnapshotKind.IN_PLACE], "it is read again, in place")
    assert decisions(captured) == [Decision.APPLY, Decision.KEEP, Decision.SNAPSHOT]
    reason = captured.store.histories.latest(captured.name, 1)[0].reason
    assert reason is not None
    assert "the table's rows were rewritten or removed" in reason


def decisions(captured: Captured) -> list[Decision]:
    return [entry.decision for entry in captured.store.histories.latest(captured.name, 10)]


@pytest.mark.matrix
def test_the_tables_of_a_schema_that_is_dropped_fail_and_others_continue(
    database: ScratchDatabase, captured: Captured
) -> None:
    captured.settings = replace(captured.settings, compare_every_s=0.1)
    database.execute("CREATE SCHEMA s")
    for name in ("a", "b"):
        fill(database, name, 3)
        database.execute(f"ALTER TABLE {name} SET SCHEMA s")
    gone = [type(table("a"))("s", name) for name in ("a", "b")]
    captured.tables.extend(gone)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        captured.catch_up(running)
        database.execute("DROP SCHEMA s CASCADE", "UPDATE t SET n = 5")
        for dropped in gone:
            running.wait_until(partial(_has_failed, captured, dropped), "it has failed")
            error = captured.record(dropped).error
            assert error is not None
            assert error.code == "table_missing"
        captured.catch_up(running)
        assert_equal(captured, database, "t")


@pytest.mark.matrix
def test_a_table_made_like_another_is_one_of_its_own(database: ScratchDatabase, captured: Captured) -> None:
    captured.settings = replace(captured.settings, compare_every_s=0.1)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute(
            "ALTER TABLE t DROP a", "CREATE TABLE u (LIKE t INCLUDING ALL)", "INSERT INTO u SELECT * FROM t"
        )
        captured.tables.append(table("u"))
        captured.wait_for_streaming(running, table("u"))
        captured.catch_up(running)
        assert_equal(captured, database, "u")
        database.execute("DROP TABLE t", "ALTER TABLE u ADD b int DEFAULT 5", "UPDATE u SET n = 3")
        wait_for_failed(captured, running, "t", "table_missing")
        captured.catch_up(running)
        operations = [e.operation for e in captured.events(table("u")) if isinstance(e, DDLEvent)]
        assert operations == [DDLOperation.CREATE_TABLE, DDLOperation.ALTER_TABLE]
        assert_equal(captured, database, "u")


def _has_failed(captured: Captured, name: TableId) -> bool:
    return captured.stage(name) is Stage.FAILED

"""Tables that are renamed in MariaDB and MySQL are followed by the statements in the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from replicator.model.events import SnapshotEvent, SnapshotPhase
from replicator.model.schema import TableId
from replicator.state.records import Stage
from replicator_testbed.journals.captured import Captured
from replicator_testbed.mysql.servers import MysqlDatabase

Make = Callable[..., Captured]


@pytest.fixture
def make(make_mysql: Make) -> Make:
    return make_mysql


def fill(database: MysqlDatabase, name: str) -> None:
    database.execute(f"CREATE TABLE `{name}` (id bigint PRIMARY KEY, v bigint NOT NULL, note text)")
    database.execute(f"INSERT INTO `{name}` VALUES {', '.join(f'({i}, 0, {i})' for i in range(1, 11))}")


def rows_of(database: MysqlDatabase, name: str) -> Counter[tuple[Any, ...]]:
    return Counter(database.execute(f"SELECT * FROM `{name}`"))


def snapshots(captured: Captured, table: TableId) -> int:
    """How many snapshots of a table were completed."""
    events = [e for e in captured.events(table) if isinstance(e, SnapshotEvent)]
    return sum(e.phase is SnapshotPhase.COMPLETED for e in events)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("statements", "new"),
    [
        (["RENAME TABLE t TO u"], "u"),
        (["ALTER TABLE t RENAME TO x", "RENAME TABLE x TO y, y TO u"], "u"),
        (["ALTER TABLE t ADD COLUMN more int DEFAULT 7, RENAME AS u", "UPDATE u SET more = 8"], "u"),
        (["RENAME TABLE t TO u", "ALTER TABLE u ADD COLUMN more int DEFAULT 7", "UPDATE u SET more = 8"], "u"),
        (["RENAME TABLE t TO u", "UPDATE u SET v = 3", "RENAME TABLE u TO t"], "t"),
    ],
    ids=["renamed", "more than once", "and altered", "altered afterwards", "and back"],
)
@pytest.mark.parametrize("is_down", [False, True], ids=["while it runs", "while it is down"])
def test_it_continues(
    mysql_database: MysqlDatabase, make: Make, statements: list[str], new: str, is_down: bool
) -> None:
    fill(mysql_database, "t")
    captured = make(mysql_database, "t")
    t, named = TableId(mysql_database.name, "t"), TableId(mysql_database.name, new)
    changes = (f"UPDATE {new} SET v = 7 WHERE id <= 5", f"DELETE FROM {new} WHERE id = 9")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        captured.catch_up(running)
        if not is_down:
            mysql_database.execute(*statements, *changes)
            captured.catch_up(running)
    if is_down:
        mysql_database.execute(*statements, *changes)
    captured.tables[:] = [named]
    with captured.running() as running:
        running.wait_until(lambda: captured.stage(t) is Stage.STREAMING, "it is captured")
        mysql_database.execute(f"INSERT INTO {new} (id, v) VALUES (100, 1)")
        captured.catch_up(running)
        running.wait_until(lambda: captured.rows(t) == rows_of(mysql_database, new), "it has its rows")
    assert captured.record(t).source_table == (None if new == "t" else named)
    if not any("ADD COLUMN" in statement for statement in statements):
        assert snapshots(captured, t) == 1
    assert new == "t" or captured.stage(named) in (None, Stage.REMOVED)


@pytest.mark.matrix
def test_a_table_that_gets_its_name_back_while_the_worker_is_down_continues(
    mysql_database: MysqlDatabase, make: Make
) -> None:
    fill(mysql_database, "t")
    captured = make(mysql_database, "t")
    t, u = TableId(mysql_database.name, "t"), TableId(mysql_database.name, "u")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        mysql_database.execute("RENAME TABLE t TO u")
        captured.catch_up(running)
        running.wait_until(lambda: captured.record(t).source_table == u, "it is followed")
    mysql_database.execute("UPDATE u SET v = 3", "RENAME TABLE u TO t", "UPDATE t SET v = 4 WHERE id <= 5")
    with captured.running() as running:
        captured.catch_up(running)
        mysql_database.execute("INSERT INTO t (id, v) VALUES (100, 1)")
        captured.catch_up(running)
        assert captured.record(t).source_table is None
        assert captured.rows(t) == rows_of(mysql_database, "t")
    assert captured.stage(t) is Stage.STREAMING
    assert snapshots(captured, t) == 1


@pytest.mark.matrix
def test_a_table_that_moves_to_another_database_continues(mysql_database: MysqlDatabase, make: Make) -> None:
    fill(mysql_database, "t")
    captured = make(mysql_database, "t")
    t, other = TableId(mysql_database.name, "t"), f"{mysql_database.name}_other"
    mysql_database.execute(f"CREATE DATABASE `{other}`")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        mysql_database.execute(f"RENAME TABLE t TO `{other}`.u", f"UPDATE `{other}`.u SET v = 7")
        captured.catch_up(running)
        assert captured.record(t).source_table == TableId(other, "u")
        assert captured.rows(t) == Counter(mysql_database.execute(f"SELECT * FROM `{other}`.u"))
        mysql_database.execute(f"DROP DATABASE `{other}`")
        running.wait_until(lambda: captured.stage(t) is Stage.FAILED, "it is dropped")
        error = captured.record(t).error
        assert error is not None
        assert error.code == "table_missing"


@pytest.mark.matrix
def test_a_table_renamed_out_of_the_patterns_fails_and_another_of_its_name_is_it(
    mysql_database: MysqlDatabase, make: Make
) -> None:
    fill(mysql_database, "t")
    captured = make(mysql_database, "t")
    t = TableId(mysql_database.name, "t")
    captured.settings = replace(captured.settings, compare_every_s=0.1, selects=lambda table: table == t)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        mysql_database.execute("RENAME TABLE t TO elsewhere")
        running.wait_until(lambda: captured.stage(t) is Stage.FAILED, "it has failed")
        assert "table_renamed" in str(captured.record(t).error)
        mysql_database.execute("UPDATE elsewhere SET v = 5", "CREATE TABLE t LIKE elsewhere")
        mysql_database.execute("INSERT INTO t VALUES (1, 2, 'new')")
        running.wait_until(lambda: captured.stage(t) is Stage.STREAMING, "it is back")
        mysql_database.execute("INSERT INTO t VALUES (2, 2, 'newer')")
        captured.catch_up(running)
        assert captured.rows(t) == rows_of(mysql_database, "t")


@pytest.mark.matrix
@pytest.mark.parametrize("is_made_again", [False, True], ids=["as it was", "dropped and created again"])
def test_a_name_that_was_passed_on_while_the_worker_was_down_is_that_of_the_table_that_took_it(
    mysql_database: MysqlDatabase, make: Make, is_made_again: bool
) -> None:
    fill(mysql_database, "t")
    captured = make(mysql_database, "t")
    t, u = TableId(mysql_database.name, "t"), TableId(mysql_database.name, "u")
    captured.settings = replace(captured.settings, compare_every_s=0.1, selects=lambda table: table in (t, u))
    with captured.running() as running:
        captured.wait_for_streaming(running)
    if is_made_again:
        mysql_database.execute("DROP TABLE t")
        fill(mysql_database, "t")
        mysql_database.execute("UPDATE t SET v = 3")
    mysql_database.execute(
        "RENAME TABLE t TO u",
        "CREATE TABLE u_new LIKE u",
        "INSERT INTO u_new SELECT * FROM u",
        "RENAME TABLE u TO u_old, u_new TO u",
    )
    captured.tables[:] = [u]
    with captured.running() as running:
        captured.catch_up(running)
        running.wait_until(
            lambda: any(
                record.stage is Stage.STREAMING
                and u in (record.table, record.source_table)
                and captured.rows(record.table) == rows_of(mysql_database, "u")
                for record in captured.store.tables(captured.name)
            ),
            "it has its rows",
        )


@pytest.mark.matrix
def test_names_in_a_circle_end_where_the_names_are(mysql_database: MysqlDatabase, make: Make) -> None:
    for number, name in enumerate("abc"):
        fill(mysql_database, name)
        mysql_database.execute(f"UPDATE {name} SET v = {number}")
    captured = make(mysql_database, *"abc")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        captured.catch_up(running)
        mysql_database.execute(
            "RENAME TABLE a TO tmp, c TO a, b TO c, tmp TO b",
            "INSERT INTO a VALUES (50, 1, 'a')",
            "RENAME TABLE a TO tmp", "RENAME TABLE b TO a", "RENAME TABLE tmp TO b",
            "INSERT INTO b VALUES (51, 1, 'b')",
        )  # fmt: skip
        captured.catch_up(running)
        for name in "abc":
            table = TableId(mysql_database.name, name)
            running.wait_until(
                lambda table=table, name=name: (  # type: ignore[misc]
                    captured.stage(table) is Stage.STREAMING and captured.rows(table) == rows_of(mysql_database, name)
                ),
                f"{name} has its rows",
            )
            assert captured.record(table).source_table is None


@pytest.mark.matrix
@pytest.mark.parametrize(
    "statements",
    [("RENAME TABLE t TO old, new TO t",), ("DROP TABLE t", "RENAME TABLE new TO t")],
    ids=["swapped", "dropped before"],
)
def test_a_table_that_took_the_name_may_be_altered_before_it_has_changes(
    mysql_database: MysqlDatabase, make: Make, statements: Sequence[str]
) -> None:
    fill(mysql_database, "t")
    mysql_database.execute("CREATE TABLE new LIKE t", "INSERT INTO new VALUES (1, 2, 'new')")
    captured = make(mysql_database, "t")
    t = TableId(mysql_database.name, "t")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        mysql_database.execute(*statements)
        running.wait_until(lambda: captured.rows(t) == rows_of(mysql_database, "t"), "it is the new one")
        captured.wait_for_streaming(running)
        mysql_database.execute("ALTER TABLE t ADD COLUMN more int", "UPDATE t SET more = 8")
        captured.catch_up(running)
        captured.wait_for_streaming(running)
        running.wait_until(lambda: captured.rows(t) == rows_of(mysql_database, "t"), "it has its rows")

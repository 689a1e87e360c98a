"""Tables that are renamed in PostgreSQL are followed by their oids."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from replicator.model.events import DDLOperation, SnapshotEvent, SnapshotPhase
from replicator.model.schema import TableId
from replicator.state.records import Stage
from replicator_testbed.journals.captured import Captured
from replicator_testbed.postgresql.captures import Make, fill, source_rows, table, wait_for_failed
from replicator_testbed.postgresql.servers import ScratchDatabase


def rows_of(database: ScratchDatabase, name: TableId) -> Counter[tuple[Any, ...]]:
    return Counter(database.execute(f'SELECT * FROM "{name.namespace}"."{name.name}"'))


def is_equal(captured: Captured, database: ScratchDatabase, name: TableId) -> bool:
    """Whether the journal of `t` replays to what the source holds under this name."""
    return captured.rows(table("t")) == rows_of(database, name)


def snapshots(captured: Captured) -> int:
    """How many snapshots of `t` were completed."""
    events = [e for e in captured.events(table("t")) if isinstance(e, SnapshotEvent)]
    return sum(e.phase is SnapshotPhase.COMPLETED for e in events)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("statements", "new"),
    [
        (["ALTER TABLE t RENAME TO u"], table("u")),
        (["ALTER TABLE t SET SCHEMA s"], TableId("s", "t")),
        (["ALTER TABLE t SET SCHEMA s", "ALTER SCHEMA s RENAME TO s2"], TableId("s2", "t")),
        (["ALTER TABLE t RENAME TO u", "ALTER TABLE u RENAME TO w"], table("w")),
        (["ALTER TABLE t RENAME TO u", "UPDATE u SET v = 3", "ALTER TABLE u RENAME TO t"], table("t")),
        (["BEGIN", "ALTER TABLE t RENAME TO u", "ALTER TABLE u ADD x int DEFAULT 7", "UPDATE u SET v = 4", "COMMIT"], table("u")),
    ],
    ids=["table", "to another schema", "schema", "twice", "and back", "and altered"],
)  # fmt: skip
@pytest.mark.parametrize("is_down", [False, True], ids=["while it runs", "while it is down"])
def test_it_continues_without_a_snapshot(
    database: ScratchDatabase, make: Make, statements: list[str], new: TableId, is_down: bool
) -> None:
    fill(database, "t", 10)
    database.execute("CREATE SCHEMA s")
    captured = make(database, "t")
    where = f'"{new.namespace}"."{new.name}"'
    changes = (f"UPDATE {where} SET v = 7 WHERE id <= 5", f"DELETE FROM {where} WHERE id = 9")

    def alter() -> None:
        with database.connect() as connection:
            for statement in (*statements, *changes):
                connection.execute(statement.encode())

    with captured.running() as running:
        captured.wait_for_streaming(running)
        captured.catch_up(running)
        if not is_down:
            alter()
            captured.catch_up(running)
    if is_down:
        alter()
        captured.tables[:] = [new]
    else:
        assert is_equal(captured, database, new)
        captured.tables[:] = [new]
    with captured.running() as running:
        running.wait_until(lambda: captured.stage(table("t")) is Stage.STREAMING, "it is captured")
        captured.catch_up(running)
        database.execute(f"INSERT INTO {where} (id, v) VALUES (100, 1)")
        captured.catch_up(running)
        assert is_equal(captured, database, new)
    assert captured.record(table("t")).source_table == (None if new == table("t") else new)
    assert snapshots(captured) == 1
    history = captured.store.histories.latest(captured.name, 20)
    names = [entry.new_table for entry in history if entry.operation is DDLOperation.RENAME_TABLE]
    assert new == table("t") or names[-1] == new


@pytest.mark.matrix
def test_a_renaming_that_nothing_in_the_log_shows_is_found(database: ScratchDatabase, make: Make) -> None:
    fill(database, "t", 10)
    captured = make(database, "t")
    captured.settings = replace(captured.settings, compare_every_s=0.1)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute("ALTER TABLE t RENAME TO u")
        running.wait_until(lambda: captured.record(table("t")).source_table == table("u"), "it is followed")
        database.execute("UPDATE u SET v = 7 WHERE id <= 5", "ALTER TABLE u RENAME TO w", "DELETE FROM w WHERE id = 7")
        captured.catch_up(running)
        assert is_equal(captured, database, table("w"))
    assert snapshots(captured) == 1


@pytest.mark.matrix
def test_a_table_renamed_out_of_the_patterns_fails(database: ScratchDatabase, make: Make) -> None:
    fill(database, "t", 10)
    captured = make(database, "t")
    captured.settings = replace(captured.settings, selects=lambda name: name != table("u"))
    with captured.running() as running:
        captured.wait_for_streaming(running)
        captured.catch_up(running)
        database.execute("ALTER TABLE t RENAME TO u", "UPDATE u SET v = 7")
        wait_for_failed(captured, running, "t", "table_renamed")
        database.execute("ALTER TABLE u RENAME TO t")
        captured.snapshot(running, table("t"))
        captured.catch_up(running)
        assert is_equal(captured, database, table("t"))


@pytest.mark.matrix
@pytest.mark.parametrize("old_speaks", [False, True], ids=["new rows", "rows of both"])
def test_a_table_that_was_swapped_is_the_new_one(database: ScratchDatabase, make: Make, old_speaks: bool) -> None:
    fill(database, "t", 10)
    database.execute("CREATE TABLE t_new (id bigint PRIMARY KEY, v bigint NOT NULL, note text, more text)")
    captured = make(database, "t")
    captured.settings = replace(
        captured.settings, compare_every_s=0.1, selects=lambda name: not name.name.startswith("t_")
    )
    with captured.running() as running:
        captured.wait_for_streaming(running)
        captured.catch_up(running)
        database.execute("INSERT INTO t_new SELECT id, v + 100, note, 'more' FROM t WHERE id < 9")
        with database.connect(autocommit=False) as connection:
            connection.execute("ALTER TABLE t RENAME TO t_old")
            connection.execute("ALTER TABLE t_new RENAME TO t")
            connection.commit()
        if old_speaks:
            database.execute("UPDATE t_old SET v = -1")
        database.execute("INSERT INTO t VALUES (50, 1, 'new', 'more')")
        running.wait_until(lambda: source_rows(database, "t") == captured.rows(table("t")), "it is the new one")
        captured.catch_up(running)
    assert captured.record(table("t")).source_table is None

"""The event trigger: changes of tables without a change of a row arrive at once, and nobody who writes such messages can do harm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from replicator.model.events import DDLEvent, DDLOperation
from replicator.state.records import Stage
from replicator_source_postgresql.replication.ddl_trigger import DDL_PREFIX, SCRIPT
from replicator_testbed.journals.captured import Captured
from replicator_testbed.postgresql.captures import Make, assert_equal, fill, table, wait_for_failed
from replicator_testbed.postgresql.servers import ScratchDatabase

NEVER_S = 3600.0


@pytest.fixture
def announced(database: ScratchDatabase, make: Make) -> Captured:
    """Two tables, a capture that does not compare them by itself, and the trigger."""
    if database.server.major_version < 14:
        pytest.skip("pgoutput sends messages since PostgreSQL 14")
    database.execute(*statements(SCRIPT))
    fill(database, "t", 3)
    fill(database, "other", 3)
    captured = make(database, "t", "other")
    captured.settings = replace(captured.settings, compare_every_s=NEVER_S)
    return captured


def statements(script: str) -> Sequence[str]:
    """The statements of the script: the function's body has semicolons of its own."""
    before, body, after = script.split("$$")
    first, function = before.split(";", 1)
    function = function.split("\n", 1)[1]
    return [f"{first};", f"{function}$$ {body} $$", *(part for part in after.split(";") if part.strip())]


def operations(captured: Captured, name: str) -> list[DDLOperation]:
    return [e.operation for e in captured.events(table(name)) if isinstance(e, DDLEvent)]


def test_changes_of_tables_without_a_change_of_a_row_arrive_at_once(
    database: ScratchDatabase, announced: Captured
) -> None:
    with announced.running() as running:
        announced.wait_for_streaming(running)
        announced.catch_up(running)
        database.execute("ALTER TABLE t ADD b int DEFAULT 5, DROP note")
        running.wait_until(lambda: DDLOperation.ALTER_TABLE in operations(announced, "t"), "the alteration has arrived")
        # Rows of another table do not wait for it, nor does the next change.
        database.execute("UPDATE other SET v = 1", "ALTER TABLE t RENAME b TO c")
        running.wait_until(
            lambda: operations(announced, "t").count(DDLOperation.ALTER_TABLE) == 2, "the next one has arrived"
        )
        announced.catch_up(running)
        assert_equal(announced, database, "other")
        database.execute("DROP TABLE t")
        wait_for_failed(announced, running, "t", "table_missing")
        assert announced.stage(table("other")) is Stage.STREAMING


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("change", "cleared"),
    [
        ("DROP TABLE t; CREATE TABLE t (id bigint PRIMARY KEY, v bigint NOT NULL, note text)", True),
        ("ALTER TABLE t ALTER note TYPE text USING upper(note)", False),
        ("CREATE SCHEMA s; ALTER TABLE t SET SCHEMA s; ALTER TABLE s.t SET SCHEMA public", False),
    ],
)
def test_what_is_another_table_afterwards_is_read_again_at_once(
    database: ScratchDatabase, announced: Captured, change: str, cleared: bool
) -> None:
    with announced.running() as running:
        announced.wait_for_streaming(running)
        announced.catch_up(running)
        before = len(announced.events(table("t")))
        with database.connect() as connection, connection.transaction():
            for statement in change.split(";"):
                connection.execute(statement.encode())
        if "SCHEMA" in change:
            # It is the same object under the same name, and was published all the time.
            announced.catch_up(running)
        else:
            running.wait_until(lambda: len(announced.events(table("t"))) > before, "it is read again")
        announced.wait_for_streaming(running)
        announced.catch_up(running)
        assert_equal(announced, database, "t")
        assert (not announced.rows(table("t"))) is cleared


@pytest.mark.matrix
def test_a_table_that_is_created_comes_at_once(database: ScratchDatabase, announced: Captured) -> None:
    with announced.running() as running:
        announced.wait_for_streaming(running)
        announced.tables.append(table("new"))
        fill(database, "new", 3)
        announced.wait_for_streaming(running, table("new"))
        assert_equal(announced, database, "new")


@pytest.mark.matrix
def test_forged_messages_do_nothing(database: ScratchDatabase, announced: Captured) -> None:
    compared: list[object] = []
    with announced.running(lambda source: _count(source, compared.append)) as running:
        announced.wait_for_streaming(running)
        announced.catch_up(running)
        before, events = len(compared), {n: len(announced.events(table(n))) for n in ("t", "other")}
        oid = database.execute("SELECT 't'::regclass::oid::text")[0][0]
        forged = ("", "DROP TABLE " + oid, "{", "\\x00ff", "x" * 100_000)
        with database.connect() as connection:
            for _ in range(100):
                for text in forged:
                    connection.execute("SELECT pg_logical_emit_message(true, %s, %s)", (DDL_PREFIX, text))
                connection.execute("SELECT pg_logical_emit_message(false, %s, 'DROP TABLE t')", (DDL_PREFIX,))
        running.wait_until(lambda: len(compared) > before, "the catalogue was compared")
        database.execute("UPDATE t SET v = 7")
        announced.catch_up(running)
        assert len(compared) - before < 50
        assert {n: len(announced.events(table(n))) for n in ("t", "other")} == events
        assert_equal(announced, database, "t", "other")


def _count(source: object, note: Callable[[object], None]) -> None:
    describe = source.describe  # type: ignore[attr-defined]

    def counting(tables: object) -> object:
        note(tables)
        return describe(tables)

    source.describe = counting  # type: ignore[attr-defined]

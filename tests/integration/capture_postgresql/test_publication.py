"""Tables that come to the publication while somebody writes to them miss nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from replicator.model.schema import TableId
from replicator.plugins.source import DeltaSource
from replicator.state.records import Stage
from replicator_testbed.postgresql.captures import (
    Make,
    assert_equal,
    fill,
    open_transaction,
    table,
)
from replicator_testbed.postgresql.servers import ScratchDatabase


@pytest.mark.matrix
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


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_table_taken_out_of_the_publication_for_a_moment_gets_a_new_snapshot(
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
        running.wait_until(lambda: len(captured.events(table("t"))) >= 5, "it is read again")
        database.execute("UPDATE t SET v = v + 1 WHERE id IN (9, 10)")
        captured.catch_up(running)
    assert_equal(captured, database, "t")


@pytest.mark.matrix
@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE gone",
        "ALTER TABLE gone RENAME TO other",
        "ALTER TABLE gone SET SCHEMA elsewhere",
        "DROP SCHEMA s CASCADE",
        "ALTER SCHEMA s RENAME TO t",
    ],
)
@pytest.mark.parametrize("is_listed", [False, True], ids=["new", "listed"])
def test_a_table_that_goes_while_the_publication_is_prepared_stops_no_other(
    database: ScratchDatabase, make: Make, statement: str, is_listed: bool
) -> None:
    fill(database, "stays", 5)
    fill(database, "gone", 5)
    database.execute("CREATE SCHEMA elsewhere", "CREATE SCHEMA s", "CREATE TABLE s.gone (id int PRIMARY KEY)")
    captured = make(database, "stays")
    gone = [table("gone"), TableId("s", "gone")]
    captured.tables.extend(gone if is_listed else [])
    with captured.running() as running:
        captured.wait_for_streaming(running)
    # Either they come to the publication in the moment in which one of them goes, or leave it.
    captured.tables[:] = [table("stays")] if is_listed else [table("stays"), *gone]

    def alter(source: DeltaSource[Any]) -> None:
        session = source._sessions.control  # type: ignore[attr-defined]
        execute = {"preparing the publication": statement}
        use = session.use

        @contextmanager
        def used(what: str, **named: Any) -> Iterator[Any]:
            with use(what, **named) as connection:
                yield _Acting(connection, database, execute.pop(what)) if what in execute else connection

        session.use = used

    with captured.running(alter) as running:
        captured.wait_for_streaming(running, table("stays"))
        database.execute("UPDATE stays SET v = 7 WHERE id = 1")
        captured.catch_up(running)
    assert_equal(captured, database, "stays")


class _Acting:
    """A connection that lets something happen in the source before its first transaction."""

    def __init__(self, connection: Any, database: ScratchDatabase, statement: str) -> None:
        self._connection, self._database, self._statement = connection, database, statement

    def __getattr__(self, name: str) -> Any:
        if name == "transaction":
            self._database.execute(self._statement)
        return getattr(self._connection, name)

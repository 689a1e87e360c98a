"""Capture over a real PostgreSQL: whatever happens there, the journal replays to what the source holds."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from replicator.model.schema import TableId
from replicator.plugins.source import SourceContext
from replicator.state.records import Stage
from replicator.testing.captured import Captured, RunningCapture
from replicator.testing.servers import PostgresServer, ScratchDatabase
from replicator.testing.waiting import wait_until
from replicator_source_postgresql.config import PostgresqlConfig
from replicator_source_postgresql.source import PostgresqlSource

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
        assert found == wanted, f"{name}: too many {list((found - wanted).items())[:5]}, lacking {list((wanted - found).items())[:5]}"


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


# --- tables that come to the publication while somebody writes to them ------------------------------------------------------------


def test_a_table_added_later_keeps_what_an_older_transaction_had_written_to_it(database: ScratchDatabase, make: Make) -> None:
    fill(database, "first", 5)
    fill(database, "later", 25)
    captured = make(database, "first")
    with captured.running() as running:
        captured.wait_for_streaming(running)
    captured.tables.append(table("later"))
    with open_transaction(database, "UPDATE later SET v = 1 WHERE id <= 12", "INSERT INTO later VALUES (100, 1)") as writer:
        pid = writer.info.backend_pid
        with captured.running() as running:
            # Either it says whom it waits for, or it has copied the table without these rows.
            running.wait_until(
                lambda: any(str(pid) in line for line in running.control.status.get("waiting_for", ()))
                or captured.stage(table("later")) is Stage.STREAMING,
                "it waits for the writer",
            )
            database.execute("UPDATE first SET v = 7 WHERE id = 1")
            writer.commit()
            captured.wait_for_streaming(running)
            database.execute("UPDATE later SET v = v + 1 WHERE id = 25")
            captured.catch_up(running)
    assert_equal(captured, database, "first", "later")

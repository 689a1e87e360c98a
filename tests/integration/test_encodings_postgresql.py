"""A value that no text can hold fails its table, also where the database knows no encoding: the others continue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from replicator.model.schema import TableId
from replicator.plugins.source import SourceContext
from replicator.state.records import Stage
from replicator_source_postgresql.config import PostgresqlConfig
from replicator_source_postgresql.source import PostgresqlSource
from replicator_testbed.captured import Captured
from replicator_testbed.servers import PostgresServer, ScratchDatabase

Make = Callable[..., Captured]

GOOD, BAD, KEY = (TableId("public", name) for name in ("good", "bad", "key"))
NOT_UTF8: Final = "E'\\xff'"


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[ScratchDatabase]:
    """A database without an encoding."""
    options = "TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"
    with postgres.database(options=options) as database:
        database.execute(
            'CREATE TABLE good (id int PRIMARY KEY, "größe" text)',
            "CREATE TABLE bad (id int PRIMARY KEY, v text)",
            "CREATE TABLE key (id text PRIMARY KEY, v int)",
            "INSERT INTO good VALUES (1, 'é'), (2, '')",
            "INSERT INTO bad VALUES (1, '日本')",
            "INSERT INTO key VALUES ('ü', 1)",
        )
        yield database


@pytest.fixture
def make(tmp_path: Path, database: ScratchDatabase) -> Iterator[Make]:
    made: list[Captured] = []

    def of(*tables: TableId, **settings: Any) -> Captured:
        server = database.server

        def source(context: SourceContext) -> PostgresqlSource:
            config = PostgresqlConfig(
                host=server.host, port=server.port, user=server.user, database=database.name, **settings
            )
            return PostgresqlSource(config, context)

        folder = tmp_path / f"capture{len(made)}"
        folder.mkdir()
        made.append(Captured(folder=folder, name=database.name, make_source=source, tables=list(tables)))
        return made[-1]

    yield of
    for captured in made:
        captured.close()


def test_bytes_that_are_no_text_fail_their_table_alone(database: ScratchDatabase, make: Make) -> None:
    captured = make(GOOD, BAD, KEY)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute(
            f"INSERT INTO bad VALUES (2, {NOT_UTF8})",
            f"INSERT INTO key VALUES ({NOT_UTF8}, 2)",
            "INSERT INTO good VALUES (3, 'ñ')",
            "UPDATE good SET id = 4 WHERE id = 2",
        )
        captured.catch_up(running)
        assert {captured.stage(BAD), captured.stage(KEY)} == {Stage.FAILED}
        assert captured.rows(GOOD) == Counter([(1, "é"), (4, ""), (3, "ñ")])
        assert captured.stage(GOOD) is Stage.STREAMING
    error = captured.record(BAD).error
    assert error is not None
    assert (error.code, "Column v" in error.message) == ("unrepresentable_value", True)


def test_bytes_that_are_no_text_may_become_null_in_log_and_snapshot(database: ScratchDatabase, make: Make) -> None:
    database.execute(f"INSERT INTO bad VALUES (2, {NOT_UTF8})")
    captured = make(BAD, unrepresentable="null")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute(f"INSERT INTO bad VALUES (3, {NOT_UTF8}), (4, 'é')")
        captured.catch_up(running)
    assert captured.rows(BAD) == Counter([(1, "日本"), (2, None), (3, None), (4, "é")])

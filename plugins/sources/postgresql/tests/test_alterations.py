"""ADD, DROP and RENAME of columns on a real server: each arrives where it happened, with the shapes before and after it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from replicator.capture.definitions.catalogue import CatalogChange, judge
from replicator.model.alteration import alteration
from replicator.model.errors import SchemaConflictError, SourceUnavailableError
from replicator.model.events import DDLEvent
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.source import ChunkRequest
from replicator_source_postgresql.log.lookups import LogCatalogue
from replicator_source_postgresql.source import PostgresqlSource
from replicator_testbed.postgresql.servers import PostgresServer, ScratchDatabase
from replicator_testbed.postgresql.stream import Row, Stream, T
from replicator_testing.waiting import wait_until

MakeSource = Callable[..., PostgresqlSource]


def columns(schema: TableSchema | None) -> list[tuple[int | None, str]]:
    assert schema is not None
    return [(c.id, c.name) for c in schema.columns]


def fill_of(event: DDLEvent) -> Row:
    assert event.fill is not None, "what rows have in new columns is known"
    rows: list[Row] = event.fill.to_pylist()
    (row,) = rows
    return row


Replicate = Callable[..., Stream]


@pytest.fixture
def stream(any_database: ScratchDatabase, source: PostgresqlSource, replicate: Replicate) -> Stream:
    """A table with two rows, once on each server."""
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a text, n int)", "INSERT INTO t VALUES (1, 'x', 1), (2, 'y', 2)"
    )
    return replicate(any_database, source)


def one(events: Sequence[DDLEvent]) -> DDLEvent:
    (event,) = events
    return event


def test_an_added_column_is_null_in_rows_that_are_there(stream: Stream) -> None:
    event = one(stream.altered("ALTER TABLE t ADD b int", "INSERT INTO t VALUES (3, 'z', 3, 3)"))
    assert columns(event.before) == [(1, "id"), (2, "a"), (3, "n")]
    assert columns(event.schema) == [(1, "id"), (2, "a"), (3, "n"), (4, "b")]
    assert fill_of(event) == {}
    stream.assert_same()


@pytest.mark.parametrize(
    ("type_", "default"),
    [
        ("int", "5"),
        ("text", "'a,\"b\" {c} \\ '''"),
        ("text", "''"),
        ("text[]", "ARRAY['a b', NULL, '{', '\"']"),
        ("int[]", "'{}'"),
        ("bytea", "'\\x00ff'"),
        ("char(5)", "'a'"),
        ("numeric(6,2)", "1.5"),
        ("numeric", "1e-30"),
        ("boolean", "true"),
        ("timestamptz", "now()"),
        ("timestamptz", "'2020-01-01 12:00 Europe/Berlin'"),
        ("date", "'0004-01-01'"),
        ("interval", "'1 day 2 hours'"),
        ("float8", "0.1"),
        ("jsonb", "'{\"a\": [1, null]}'"),
        ("uuid", "'00000000-0000-0000-0000-000000000001'"),
        ("mood", "'it''s'"),
        ("pair", "ROW(1, 'a b')"),
        ("positive", "3"),
        ("int4range", "'[1,5)'"),
    ],
)
def test_a_default_is_evaluated_once_and_read_as_the_table_is_read(
    database: ScratchDatabase, make_source: MakeSource, type_: str, default: str, replicate: Replicate
) -> None:
    database.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'it''s')",
        "CREATE TYPE pair AS (n int, t text)",
        "CREATE DOMAIN positive AS int",
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1), (2)",
    )
    stream = replicate(database, make_source(database))
    event = one(stream.altered(f"ALTER TABLE t ADD b {type_} DEFAULT {default}", "UPDATE t SET id = 3 WHERE id = 2"))
    assert fill_of(event)["b"] == stream.present(T)[0]["b"]
    stream.assert_same()
    # The same of the catalogue, for a table of which the log brings nothing.
    fill = stream.source.describe([T])[T].fill
    assert fill is not None
    assert fill.column("b").to_pylist() == [stream.present(T)[0]["b"]]


def test_a_default_that_changes_later_is_not_that_of_the_rows_that_were_there(stream: Stream) -> None:
    event = one(
        stream.altered(
            "ALTER TABLE t ADD b int DEFAULT 5",
            "ALTER TABLE t ALTER b SET DEFAULT 6",
            "ALTER TABLE t RENAME b TO c",
            "INSERT INTO t VALUES (3, 'z', 3)",
        )
    )
    assert fill_of(event) == {"c": 5}
    stream.assert_same()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "column",
    ["b serial", "b int GENERATED ALWAYS AS IDENTITY", "b uuid DEFAULT gen_random_uuid()", "b float8 DEFAULT random()"],
)
def test_what_the_server_writes_into_every_row_is_not_known(stream: Stream, column: str) -> None:
    event = one(stream.altered(f"ALTER TABLE t ADD {column}", "INSERT INTO t (id) VALUES (3)"))
    assert columns(event.schema)[3] == (4, "b")
    assert event.fill is None


def test_a_rewritten_table_does_not_tell_what_a_new_column_held(stream: Stream) -> None:
    event = one(
        stream.altered("ALTER TABLE t ADD b int DEFAULT 5", "VACUUM FULL t", "INSERT INTO t VALUES (3, 'z', 3, 3)")
    )
    assert columns(event.schema)[3] == (4, "b")
    assert event.fill is None


def test_a_generated_column_is_no_alteration(stream: Stream) -> None:
    assert (
        stream.altered("ALTER TABLE t ADD g int GENERATED ALWAYS AS (id * 2) STORED", "INSERT INTO t VALUES (3)") == []
    )
    event = one(stream.altered("ALTER TABLE t ALTER g DROP EXPRESSION", "INSERT INTO t VALUES (4, 'a', 4, 4)"))
    assert event.fill is None


def test_a_column_that_was_generated_until_now_is_not_taken_for_a_new_one(
    any_database: ScratchDatabase, source: PostgresqlSource, replicate: Replicate
) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id * 2) STORED)", "INSERT INTO t VALUES (1)"
    )
    stream = replicate(any_database, source)
    accepted = stream.described[T].identity
    event = one(stream.altered("ALTER TABLE t ALTER g DROP EXPRESSION", "INSERT INTO t VALUES (2, 9)"))
    assert event.fill is None
    found = source.describe([T])[T]
    assert judge(found.schema, accepted, found, truncates_since=0) is CatalogChange.DEFINITION


def test_a_dropped_column_goes(stream: Stream) -> None:
    event = one(stream.altered("ALTER TABLE t DROP a", "INSERT INTO t VALUES (3, 3)"))
    assert columns(event.schema) == [(1, "id"), (3, "n")]
    assert fill_of(event) == {}
    stream.assert_same()


def test_a_renamed_column_is_the_same_one(stream: Stream) -> None:
    event = one(stream.altered("ALTER TABLE t RENAME a TO b", "INSERT INTO t VALUES (3, 'z', 3)"))
    assert event.before is not None
    assert event.schema is not None
    change = alteration(event.before, event.schema)
    assert [(old.name, new.name) for old, new in change.renamed] == [("a", "b")]
    assert not change.added
    assert not change.dropped
    stream.assert_same()


def test_names_that_are_swapped_are_told_from_columns_that_are_not(
    any_database: ScratchDatabase, source: PostgresqlSource, replicate: Replicate
) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b int)", "INSERT INTO t VALUES (1, 10, 20)")
    stream = replicate(any_database, source)
    with any_database.connect() as connection, connection.transaction():
        for names in ("a TO c", "b TO a", "c TO b"):
            connection.execute(f"ALTER TABLE t RENAME {names}".encode())
    event = one(stream.altered("INSERT INTO t VALUES (2, 11, 21)"))
    assert columns(event.schema) == [(1, "id"), (2, "b"), (3, "a")]
    stream.assert_same()
    assert stream.rows[T][0] == {"id": 1, "b": 10, "a": 20}


def test_a_renamed_key_stays_the_key(
    any_database: ScratchDatabase, source: PostgresqlSource, replicate: Replicate
) -> None:
    any_database.execute("CREATE TABLE t (a int, b int, v int, PRIMARY KEY (b, a))", "INSERT INTO t VALUES (1, 2, 3)")
    stream = replicate(any_database, source)
    event = one(stream.altered("ALTER TABLE t RENAME b TO c", "UPDATE t SET v = 4"))
    assert event.schema is not None
    assert event.schema.key == ("c", "a")
    assert event.before is not None
    assert not alteration(event.before, event.schema).has_other_key
    stream.assert_same()


def test_another_key_is_told_as_one(stream: Stream) -> None:
    event = one(
        stream.altered(
            "ALTER TABLE t ALTER n SET NOT NULL",
            "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (n)",
            "INSERT INTO t VALUES (3, 'z', 3)",
        )
    )
    assert event.schema is not None
    assert event.schema.key == ("n",)


def test_several_changes_in_one_statement_are_one_event(stream: Stream) -> None:
    event = one(
        stream.altered(
            "ALTER TABLE t ADD b int DEFAULT 7, DROP a, ADD c text, ADD d text DEFAULT 'd'",
            "INSERT INTO t VALUES (3, 3)",
        )
    )
    # Which of the columns was dropped follows from its type.
    assert columns(event.schema) == [(1, "id"), (3, "n"), (4, "b"), (5, "c"), (6, "d")]
    assert fill_of(event) == {"b": 7, "d": "d"}
    stream.assert_same()


def says_that_rows_may_be_others(event: DDLEvent) -> bool:
    """Nothing is said of its columns: the table is read from the catalogue."""
    return event.schema == event.before and event.fill is None


def test_dropped_and_added_under_one_name_may_be_the_same_column_or_another(stream: Stream) -> None:
    event = one(stream.altered("ALTER TABLE t DROP n, ADD n int", "INSERT INTO t VALUES (3, 'z', 3)"))
    assert says_that_rows_may_be_others(event)
    stream.reopen()
    stream.accept()
    assert columns(stream.schemas[T])[2] == (4, "n")
    assert stream.altered("INSERT INTO t VALUES (4, 'z', 4)") == []
    stream.assert_same()


def test_a_column_that_may_be_another_by_now_is_not_taken_for_that(stream: Stream) -> None:
    """The message means `b`; by its name and type it could also be the one that is called `n` and is dropped by now."""
    events = stream.altered(
        "ALTER TABLE t ADD b int",
        "ALTER TABLE t DROP n",
        "ALTER TABLE t RENAME b TO n",
        "INSERT INTO t VALUES (3, 'z', 3)",
        "ALTER TABLE t DROP n, ADD n text",
        "INSERT INTO t VALUES (4, 'z', 'text')",
    )
    assert says_that_rows_may_be_others(events[0])
    assert all(event.schema == event.before for event in events)


def test_dropped_and_added_under_one_name_with_rows_between_is_exact(stream: Stream) -> None:
    events = stream.altered("ALTER TABLE t DROP n", "INSERT INTO t VALUES (3, 'z')")
    events += stream.altered("ALTER TABLE t ADD n int DEFAULT 4", "INSERT INTO t VALUES (4, 'z', 5)")
    assert [columns(e.schema) for e in events] == [
        [(1, "id"), (2, "a")],
        [(1, "id"), (2, "a"), (4, "n")],
    ]
    stream.assert_same()


def test_a_first_message_that_looks_the_same_is_compared_with_the_catalogue(stream: Stream) -> None:
    """Nothing of the table was read in this session yet, and its last column is another one."""
    stream.pull()
    stream.reopen()
    event = one(stream.altered("ALTER TABLE t DROP n", "ALTER TABLE t ADD n int", "INSERT INTO t VALUES (3, 'z', 3)"))
    assert says_that_rows_may_be_others(event)


def test_shapes_are_those_of_their_position_although_the_catalogue_is_ahead(stream: Stream) -> None:
    events = stream.altered(
        "ALTER TABLE t ADD b int DEFAULT 1",
        "INSERT INTO t VALUES (3, 'z', 3, 3)",
        "ALTER TABLE t RENAME b TO c",
        "INSERT INTO t VALUES (4, 'z', 4, 4)",
        "ALTER TABLE t ADD b text DEFAULT 'b'",
        "INSERT INTO t VALUES (5, 'z', 5, 5)",
    )
    assert [columns(e.schema)[3:] for e in events] == [[(4, "b")], [(4, "c")], [(4, "c"), (5, "b")]]
    assert [fill_of(e) for e in events] == [{"b": 1}, {}, {"b": "b"}]
    stream.assert_same()


def test_one_transaction_may_have_rows_of_three_shapes(stream: Stream) -> None:
    stream.run(
        "INSERT INTO t VALUES (3, 'z', 3)",
        "ALTER TABLE t ADD b int DEFAULT 1",
        "INSERT INTO t VALUES (4, 'z', 4, 4)",
        "ALTER TABLE t DROP a",
        "INSERT INTO t VALUES (5, 5, 5)",
    )
    batches = stream.pull()
    assert [len(c.schema.columns) for b in batches for c in b.changes] == [3, 4, 3]
    assert [columns(e.schema) for e in stream.events] == [
        [(1, "id"), (2, "a"), (3, "n"), (4, "b")],
        [(1, "id"), (3, "n"), (4, "b")],
    ]
    assert {e.transaction_id for e in stream.events} == {stream.events[0].transaction_id}
    stream.assert_same()


def test_a_column_that_came_and_went_is_not_known_any_more(stream: Stream) -> None:
    events = stream.altered(
        "ALTER TABLE t ADD b int DEFAULT 1",
        "INSERT INTO t VALUES (3, 'z', 3, 3)",
        "ALTER TABLE t DROP b",
        "INSERT INTO t VALUES (4, 'z', 4)",
    )
    assert [columns(e.schema)[3:] for e in events] == [[(4, "b")], []]
    assert [e.fill is None for e in events] == [True, False]


def test_a_table_without_a_key_is_altered_alike(
    any_database: ScratchDatabase, source: PostgresqlSource, replicate: Replicate
) -> None:
    any_database.execute(
        "CREATE TABLE t (a int, b text)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (1, 'x'), (1, 'x')",
    )
    stream = replicate(any_database, source)
    stream.altered("ALTER TABLE t ADD c int DEFAULT 3", "DELETE FROM t WHERE ctid = (SELECT min(ctid) FROM t)")
    stream.altered("ALTER TABLE t RENAME b TO d", "INSERT INTO t VALUES (2, 'y', 4)")
    stream.altered("ALTER TABLE t DROP a", "UPDATE t SET c = 9 WHERE c = 4")
    assert all(e.fill is not None for e in stream.events)
    stream.assert_same()


ODD = ["a.b", "A.B", "", 'q"q', "ä'", " ", "_sequence_num", "c1"]


def test_odd_names_are_names(any_database: ScratchDatabase, source: PostgresqlSource, replicate: Replicate) -> None:
    quoted = ['"' + name.replace('"', '""') + '"' for name in ODD if name]
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1)")
    stream = replicate(any_database, source)
    for number, name in enumerate(quoted):
        stream.altered(f"ALTER TABLE t ADD {name} int DEFAULT {number}", f"INSERT INTO t (id) VALUES ({number + 10})")
    stream.altered(
        f'ALTER TABLE t RENAME {quoted[0]} TO "other . one"',
        f"ALTER TABLE t RENAME v TO {quoted[0]}",
        "UPDATE t SET id = id + 100",
    )
    assert all(e.fill is not None for e in stream.events)
    stream.assert_same()


def test_a_name_of_another_table_changes_nothing_there(
    any_database: ScratchDatabase, source: PostgresqlSource, replicate: Replicate
) -> None:
    other = TableId("public", "other")
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY, a int)", "CREATE TABLE other (id int PRIMARY KEY, b int)")
    stream = replicate(any_database, source, T, other)
    event = one(
        stream.altered("ALTER TABLE t RENAME a TO b", "INSERT INTO other VALUES (1, 1)", "INSERT INTO t VALUES (1, 1)")
    )
    assert event.table == T
    stream.assert_same()


def test_a_partitioned_table_is_altered_at_its_root(
    any_database: ScratchDatabase, source: PostgresqlSource, replicate: Replicate
) -> None:
    any_database.execute(
        "CREATE TABLE t (gone int, id int PRIMARY KEY, a int) PARTITION BY RANGE (id)",
        "ALTER TABLE t DROP gone",
        # Other numbers than the root's.
        "CREATE TABLE t1 (a int, x int, y int, id int NOT NULL)",
        "ALTER TABLE t1 DROP x, DROP y",
        "ALTER TABLE t ATTACH PARTITION t1 FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (20)",
        "INSERT INTO t VALUES (1, 1), (11, 11)",
    )
    stream = replicate(any_database, source)
    event = one(stream.altered("ALTER TABLE t ADD b int DEFAULT 5", "INSERT INTO t VALUES (2, 2, 2), (12, 12, 12)"))
    assert columns(event.schema) == [(2, "id"), (3, "a"), (4, "b")]
    assert fill_of(event) == {"b": 5}
    stream.assert_same()
    event = one(stream.altered("ALTER TABLE t RENAME a TO c", "INSERT INTO t VALUES (3, 3, 3)"))
    assert columns(event.schema) == [(2, "id"), (3, "c"), (4, "b")]
    event = one(stream.altered("ALTER TABLE t ADD d int", "INSERT INTO t VALUES (13, 13, 13)"))
    assert fill_of(event) == {}
    stream.assert_same()


def test_a_table_that_others_inherit_from_is_altered_alone(
    any_database: ScratchDatabase, source: PostgresqlSource, replicate: Replicate
) -> None:
    child = TableId("public", "child")
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int)",
        "CREATE TABLE child (own int, PRIMARY KEY (id)) INHERITS (t)",
        "INSERT INTO t VALUES (1, 1)",
        "INSERT INTO child VALUES (2, 2, 2)",
    )
    stream = replicate(any_database, source, T, child)
    events = stream.altered(
        "ALTER TABLE t ADD b int DEFAULT 5", "INSERT INTO t VALUES (3, 3, 3)", "INSERT INTO child VALUES (4, 4, 4, 4)"
    )
    assert {e.table for e in events} == {T, child}
    assert [fill_of(e) for e in events] == [{"b": 5}, {"b": 5}]
    stream.assert_same()


# -- publications with column lists


@pytest.fixture
def listed(database: ScratchDatabase, make_source: MakeSource, replicate: Replicate) -> Stream:
    """A table of which two columns are published."""
    if database.server.major_version < 15:
        pytest.skip("column lists came with PostgreSQL 15")
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int, secret int)",
        "INSERT INTO t VALUES (1, 1, 1)",
        "CREATE PUBLICATION mine FOR TABLE t (id, a) WITH (publish_via_partition_root = true)",
    )
    return replicate(database, make_source(database, publication="mine"))


def test_a_column_that_is_not_in_the_list_stays_out(listed: Stream) -> None:
    assert listed.altered("ALTER TABLE t ADD b int DEFAULT 5", "INSERT INTO t VALUES (2, 2, 2, 2)") == []
    assert listed.altered("ALTER TABLE t DROP secret", "INSERT INTO t VALUES (3, 3, 3)") == []
    event = one(listed.altered("ALTER TABLE t RENAME a TO c", "INSERT INTO t VALUES (4, 4, 4)"))
    assert columns(event.schema) == [(1, "id"), (2, "c")]
    listed.assert_same()


def test_a_column_that_enters_the_list_is_no_new_one(listed: Stream) -> None:
    event = one(listed.altered("ALTER PUBLICATION mine SET TABLE t (id, a, secret)", "INSERT INTO t VALUES (2, 2, 2)"))
    assert columns(event.schema) == [(1, "id"), (2, "a"), (3, "secret")]
    assert event.fill is None


def test_a_list_that_is_taken_off_shows_no_new_columns(listed: Stream) -> None:
    event = one(listed.altered("ALTER PUBLICATION mine SET TABLE t", "INSERT INTO t VALUES (2, 2, 2)"))
    assert columns(event.schema) == [(1, "id"), (2, "a"), (3, "secret")]
    assert event.fill is None


def test_kept_columns_are_carried_along(stream: Stream) -> None:
    kept = (Column(name="old", type=pa.string(), source_type="text", id=-1),)
    stream.schemas = {T: replace(stream.schemas[T], kept=kept)}
    event = one(stream.altered("ALTER TABLE t DROP a", "INSERT INTO t VALUES (3, 3)"))
    assert event.before is not None
    assert event.schema is not None
    assert event.before.kept == event.schema.kept == kept


# -- the catalogue, for tables of which the log brings nothing


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "statements",
    [
        ("ALTER TABLE t ADD b int DEFAULT 5",),
        ("ALTER TABLE t ADD b mood DEFAULT 'sad'",),
        ("ALTER TABLE t DROP a",),
        ("ALTER TABLE t RENAME a TO b",),
        ("ALTER TABLE t ADD b int, DROP n", "ALTER TABLE t DROP b"),
        ("ALTER TABLE t ADD b pair", "ALTER TABLE t RENAME n TO a2", "ALTER TABLE t DROP b"),
    ],
    ids=["add", "add an enum", "drop", "rename", "come and go", "all"],
)
def test_an_altered_table_is_the_same_object_once_its_columns_are_known(
    stream: Stream, statements: Sequence[str]
) -> None:
    stream.database.execute("CREATE TYPE mood AS ENUM ('sad')", "CREATE TYPE pair AS (n int)")
    before = stream.described[T]
    stream.database.execute(*statements)
    found = stream.source.describe([T])[T]
    assert judge(before.schema, before.identity, found, truncates_since=0) is CatalogChange.COLUMNS
    assert judge(found.schema, before.identity, found, truncates_since=0) in (
        CatalogChange.NONE,
        CatalogChange.EXPLAINED,
    )
    assert judge(found.schema, found.identity, found, truncates_since=0) is CatalogChange.NONE
    assert found.fill is not None


def test_dropping_columns_of_enums_and_composites_redefines_nothing(
    any_database: ScratchDatabase, source: PostgresqlSource
) -> None:
    any_database.execute(
        "CREATE TYPE mood AS ENUM ('sad')",
        "CREATE TYPE pair AS (n int)",
        "CREATE TABLE t (id int PRIMARY KEY, m mood, p pair)",
    )
    before = source.describe([T])[T]
    any_database.execute("ALTER TABLE t DROP m, DROP p")
    found = source.describe([T])[T]
    assert judge(found.schema, before.identity, found, truncates_since=0) is CatalogChange.EXPLAINED


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("statement", "change"),
    [
        ("ALTER TABLE t ADD b uuid DEFAULT gen_random_uuid()", CatalogChange.STORAGE),
        ("VACUUM FULL t", CatalogChange.STORAGE),
        ("ALTER TABLE t ALTER a TYPE varchar", CatalogChange.DEFINITION),
    ],
)
def test_a_rewrite_and_another_type_stay_what_they_are(stream: Stream, statement: str, change: CatalogChange) -> None:
    before = stream.described[T]
    stream.database.execute(statement)
    found = stream.source.describe([T])[T]
    assert judge(found.schema, before.identity, found, truncates_since=0) is change


def test_a_chunk_is_read_with_the_columns_that_are_asked_for(stream: Stream) -> None:
    before = stream.described[T]
    stream.source.read_chunk(ChunkRequest(schema=before.schema, limit=10))
    stream.database.execute("ALTER TABLE t ADD b int DEFAULT 5", "ALTER TABLE t RENAME a TO c", "ALTER TABLE t DROP n")
    with pytest.raises(SchemaConflictError):
        stream.source.read_chunk(ChunkRequest(schema=before.schema, limit=10))
    found = stream.source.describe([T])[T]
    chunk = stream.source.read_chunk(ChunkRequest(schema=found.schema, limit=10))
    assert chunk.rows.to_pylist() == [{"id": 1, "c": "x", "b": 5}, {"id": 2, "c": "y", "b": 5}]
    assert chunk.identity == found.identity


def test_a_chunk_of_another_column_with_the_name_is_refused(stream: Stream) -> None:
    before = stream.described[T]
    stream.database.execute("ALTER TABLE t DROP n, ADD n int")
    request = ChunkRequest(schema=before.schema, limit=10)
    # Remembered as it was.
    assert stream.source.read_chunk(request).identity is None
    with pytest.raises(SchemaConflictError):
        stream.source.read_chunk(request)


def test_an_alteration_that_nobody_sees_yet_is_waited_for(source_of: MakeSource) -> None:
    """Under synchronous replication a commit may hang that the log has already."""
    with PostgresServer.distribution() as server:
        database = ScratchDatabase(server=server, name="postgres")
        database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        stream = Stream(database, source_of(server, database.name))
        stream.pull()
        server.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
        wait_until(lambda: server.execute("SHOW synchronous_standby_names") == [("nobody",)], "the setting holds")
        with database.connect() as writer:
            writer.pgconn.send_query(b"BEGIN; ALTER TABLE t ADD b int DEFAULT 5; INSERT INTO t VALUES (2, 2); COMMIT")
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            wait_until(lambda: server.execute(waiting) == [(1,)], "the writer hangs in its commit")
            with pytest.raises(SourceUnavailableError) as unseen:
                stream.pull()
            writer.cancel_safe()
            while writer.pgconn.get_result() is not None:
                pass
        assert unseen.value.code == "commit_not_visible"
        stream.close()
        assert columns(one(stream.altered()).schema) == [(1, "id"), (2, "b")]
        stream.assert_same()
        stream.close()
        stream.source.close()


# -- how often the catalogue is asked


class Counting(LogCatalogue):
    asked: ClassVar[list[str]] = []

    def live_columns(self, *arguments: Any) -> Any:
        self.asked.append("columns")
        return super().live_columns(*arguments)

    def table(self, *arguments: Any) -> Any:
        self.asked.append("table")
        return super().table(*arguments)


@pytest.mark.matrix
def test_a_backlog_of_many_tables_asks_once_about_all(
    database: ScratchDatabase, make_source: MakeSource, monkeypatch: pytest.MonkeyPatch, replicate: Replicate
) -> None:
    monkeypatch.setattr("replicator_source_postgresql.source.LogCatalogue", Counting)
    monkeypatch.setattr(Counting, "asked", [])
    tables = [TableId("public", f"t{n}") for n in range(20)]
    database.execute(*(f"CREATE TABLE {t} (id int PRIMARY KEY)" for t in tables))
    stream = replicate(database, make_source(database), *tables)
    database.execute(*(f"INSERT INTO {t} VALUES (1)" for t in tables))
    stream.pull()
    assert Counting.asked == ["columns"]
    # A description that is repeated is compared again; nothing about the table as such is asked.
    stream.altered("ANALYZE t0", "INSERT INTO t0 VALUES (2)", "INSERT INTO t0 VALUES (3)")
    assert set(Counting.asked) == {"columns"}
    assert len(Counting.asked) <= 2
    stream.assert_same()


# -- everything at random


def _statement(chance: random.Random, names: list[str], made: list[int]) -> str:
    free = [name for name in "abcdef" if name not in names]
    what = chance.choice(("insert", "insert", "update", "delete", "add", "add", "drop", "rename", "again"))
    statement = "SELECT 1"
    if what == "insert":
        made[0] += 1
        statement = f"INSERT INTO t (id) VALUES ({made[0]})"
    elif what == "delete":
        statement = f"DELETE FROM t WHERE id = {chance.randint(1, made[0] + 1)}"
    elif what == "add" and free:
        names.append(chance.choice(free))
        default = chance.choice(("", f" DEFAULT {chance.randint(100, 199)}"))
        statement = f"ALTER TABLE t ADD {names[-1]} int{default}"
    elif names:
        name = chance.choice(names)
        if what == "update":
            statement = f"UPDATE t SET {name} = {chance.randint(0, 99)} WHERE id % 3 = {chance.randint(0, 2)}"
        elif what == "drop":
            names.remove(name)
            statement = f"ALTER TABLE t DROP {name}"
        elif what == "rename" and free:
            names[names.index(name)] = new = chance.choice(free)
            statement = f"ALTER TABLE t RENAME {name} TO {new}"
        elif what == "again":
            statement = f"ALTER TABLE t DROP {name}, ADD {name} int DEFAULT {chance.randint(100, 199)}"
    return statement


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(12))
def test_rows_that_are_altered_by_the_events_are_those_of_the_table(
    database: ScratchDatabase, make_source: MakeSource, seed: int, replicate: Replicate
) -> None:
    chance = random.Random(seed)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b int)", "INSERT INTO t VALUES (1, 1, 1), (2, 2, 2)")
    stream = replicate(database, make_source(database))
    names, made, exact = ["a", "b"], [2], 0
    for _ in range(25):
        statements = [_statement(chance, names, made) for _ in range(chance.randint(1, 3))]
        if chance.random() < 0.5:
            stream.run(*statements)
        else:
            database.execute(*statements)
        if chance.random() < 0.3:
            continue
        # A row is written, so that the log describes the table again.
        database.execute("INSERT INTO t (id) VALUES (0) ON CONFLICT (id) DO UPDATE SET id = 0")
        stream.pull()
        if stream.unknown:
            # A snapshot in place.
            stream.close()
            stream.accept()
        else:
            exact += 1
            stream.assert_same()
        if chance.random() < 0.2:
            stream.reopen()
    assert exact > 5

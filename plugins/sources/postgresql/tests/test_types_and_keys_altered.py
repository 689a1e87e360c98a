"""Other types and keys on a real server: which shapes come, where, and whether rows have the values that they had."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from replicator.capture.definitions.catalogue import CatalogChange, judge
from replicator.model.errors import SchemaConflictError
from replicator.model.events import DDLEvent
from replicator.plugins.source import ChunkRequest
from replicator_source_postgresql.source import PostgresqlSource
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testbed.postgresql.stream import Stream, T

MakeSource = Callable[..., PostgresqlSource]
Replicate = Callable[..., Stream]


def one(events: Sequence[DDLEvent]) -> DDLEvent:
    (event,) = events
    return event


def types(event: DDLEvent, column: str = "c") -> tuple[str, str]:
    """The column's types before and after."""
    assert event.before is not None
    assert event.schema is not None
    return event.before.column(column).source_type, event.schema.column(column).source_type


@pytest.fixture
def of_type(database: ScratchDatabase, make_source: MakeSource, replicate: Replicate) -> Callable[[str, str], Stream]:
    """Makes a table with one column of a type, and a row with a value there."""

    def make(type_: str, value: str) -> Stream:
        database.execute(
            "CREATE DOMAIN d AS int",
            "CREATE TYPE mood AS ENUM ('sad')",
            f"CREATE TABLE t (id int PRIMARY KEY, c {type_})",
            f"INSERT INTO t VALUES (1, {value})",
        )
        return replicate(database, make_source(database))

    return make


@pytest.mark.parametrize(
    ("before", "value", "change", "after"),
    [
        ("int4", "1", "bigint", "int8"),
        ("int4", "1", "bigint USING c * 2", "int8"),
        ("int4", "1", "text", "text"),
        ("int4", "-1", "oid", "oid"),
        ("int4", "1", "d", "public.d"),
        ("float4", "1.5", "float8", "float8"),
        ("numeric(10,2)", "1.55", "numeric(10,1)", "numeric(10,1)"),
        ("numeric(10,2)", "1.5", "numeric(12,3)", "numeric(12,3)"),
        ("varchar(20)", "'abc'", "varchar(2) USING left(c, 2)", "varchar(2)"),
        ("varchar(20)", "'abc'", "text", "text"),
        ("text", "'abc'", "varchar(5) USING upper(c)", "varchar(5)"),
        ("char(5)", "'abc'", "char(6)", "char(6)"),
        ("date", "'2020-01-01'", "timestamp", "timestamp"),
        ("timestamp", "'2020-01-01'", "timestamptz", "timestamptz"),
        ("timestamp(6)", "'2020-01-01 00:00:00.123456'", "timestamp(3)", "timestamp(3)"),
        ("text", "'sad'", "mood USING c::mood", "public.mood"),
        ("varchar(3)[]", "ARRAY['a', NULL]", "varchar(4)[]", "varchar(4)[]"),
    ],
)
def test_values_of_another_type_are_not_known(
    of_type: Callable[[str, str], Stream], before: str, value: str, change: str, after: str
) -> None:
    stream = of_type(before, value)
    event = one(stream.altered(f"ALTER TABLE t ALTER c TYPE {change}", "INSERT INTO t VALUES (2, NULL)"))
    assert types(event) == (before, after)
    assert event.fill is None


@pytest.mark.parametrize(
    ("before", "value", "after"),
    [
        ("numeric(10,2)", "1.5", "numeric(12,2)"),
        ("varchar(10)", "'a'", "varchar(20)"),
        ("varchar(10)", "'a'", "varchar"),
        ("time(3)", "'12:00:00.123'", "time"),
        ("timestamptz(0)", "'2020-01-01'", "timestamptz(6)"),
    ],
)
def test_a_longer_type_changes_no_value(
    of_type: Callable[[str, str], Stream], before: str, value: str, after: str
) -> None:
    stream = of_type(before, value)
    accepted = stream.described[T]
    event = one(stream.altered(f"ALTER TABLE t ALTER c TYPE {after}", "INSERT INTO t VALUES (2, NULL)"))
    assert types(event) == (before, after)
    assert event.fill is not None
    assert event.fill.num_columns == 0
    stream.assert_same()
    # Nor does the catalogue show another table.
    found = stream.source.describe([T])[T]
    assert event.schema == found.schema
    assert judge(found.schema, accepted.identity, found, truncates_since=0) is CatalogChange.NONE
    # It is told once.
    assert stream.altered("ANALYZE t", "INSERT INTO t VALUES (3, NULL)") == []


def test_a_longer_type_of_a_rewritten_table_is_not_known_to_change_nothing(
    of_type: Callable[[str, str], Stream],
) -> None:
    stream = of_type("varchar(10)", "'a'")
    event = one(
        stream.altered("ALTER TABLE t ALTER c TYPE varchar(20)", "VACUUM FULL t", "INSERT INTO t VALUES (2, NULL)")
    )
    assert event.fill is None


def test_a_new_column_next_to_a_longer_type_is_filled(of_type: Callable[[str, str], Stream]) -> None:
    stream = of_type("varchar(10)", "'a'")
    event = one(
        stream.altered(
            "ALTER TABLE t ALTER c TYPE varchar(20), ADD b int DEFAULT 5", "INSERT INTO t VALUES (2, 'z', 3)"
        )
    )
    assert event.fill is not None
    assert event.fill.to_pylist() == [{"b": 5}]
    stream.assert_same()


def test_types_are_those_of_their_position_although_the_catalogue_is_ahead(
    of_type: Callable[[str, str], Stream],
) -> None:
    stream = of_type("int4", "1")
    stream.run(
        "INSERT INTO t VALUES (2, 2)",
        "ALTER TABLE t ALTER c TYPE bigint",
        "INSERT INTO t VALUES (3, 3000000000)",
        "ALTER TABLE t ALTER c TYPE text",
        "INSERT INTO t VALUES (4, 'four')",
    )
    events = stream.altered("ALTER TABLE t ALTER c TYPE int USING length(c)", "INSERT INTO t VALUES (5, 5)")
    assert [types(event) for event in events] == [("int4", "int8"), ("int8", "text"), ("text", "int4")]
    assert [event.fill for event in events] == [None, None, None]
    stream.reopen()
    stream.accept()
    assert stream.altered("INSERT INTO t VALUES (6, 6)") == []
    stream.assert_same()


@pytest.mark.parametrize("change", ["text USING c", "text USING upper(c)"])
def test_values_that_were_rewritten_under_the_same_type_are_found_by_the_catalogue(
    of_type: Callable[[str, str], Stream], change: str
) -> None:
    stream = of_type("text", "'a'")
    accepted = stream.described[T]
    assert stream.altered(f"ALTER TABLE t ALTER c TYPE {change}", "INSERT INTO t VALUES (2, NULL)") == []
    found = stream.source.describe([T])[T]
    change_found = judge(accepted.schema, accepted.identity, found, truncates_since=0)
    # A USING that does nothing rewrites nothing.
    assert change_found is (CatalogChange.STORAGE if "upper" in change else CatalogChange.NONE)


def test_a_type_that_was_changed_and_changed_back_is_found_by_the_catalogue(
    of_type: Callable[[str, str], Stream],
) -> None:
    stream = of_type("int4", "1")
    accepted = stream.described[T]
    statements = ("ALTER TABLE t ALTER c TYPE bigint USING c + 1", "ALTER TABLE t ALTER c TYPE int")
    assert stream.altered(*statements, "INSERT INTO t VALUES (2, NULL)") == []
    found = stream.source.describe([T])[T]
    assert judge(accepted.schema, accepted.identity, found, truncates_since=0) is CatalogChange.STORAGE


def test_a_label_that_is_added_is_no_alteration(of_type: Callable[[str, str], Stream]) -> None:
    stream = of_type("mood", "'sad'")
    accepted = stream.described[T]
    assert stream.altered("ALTER TYPE mood ADD VALUE 'glad'", "INSERT INTO t VALUES (2, 'glad')") == []
    found = stream.source.describe([T])[T]
    assert judge(accepted.schema, accepted.identity, found, truncates_since=0) is CatalogChange.EXPLAINED
    stream.assert_same()


def test_a_constraint_of_a_domain_is_no_alteration(of_type: Callable[[str, str], Stream]) -> None:
    stream = of_type("d", "1")
    accepted = stream.described[T]
    assert stream.altered("ALTER DOMAIN d ADD CHECK (VALUE > 0)", "INSERT INTO t VALUES (2, 1)") == []
    found = stream.source.describe([T])[T]
    assert judge(accepted.schema, accepted.identity, found, truncates_since=0) is CatalogChange.NONE


def test_nullability_is_in_the_catalogue_and_not_in_the_log(of_type: Callable[[str, str], Stream]) -> None:
    stream = of_type("int", "1")
    assert stream.altered("ALTER TABLE t ALTER c SET NOT NULL", "INSERT INTO t VALUES (2, 1)") == []
    found = stream.source.describe([T])[T]
    assert [c.nullable for c in stream.described[T].schema.columns] == [False, True]
    assert [c.nullable for c in found.schema.columns] == [False, False]
    # Shapes of the log keep what is known of the columns.
    stream.schemas = {T: found.schema}
    stream.reopen()
    event = one(stream.altered("ALTER TABLE t ADD b int", "INSERT INTO t VALUES (3, 1, 1)"))
    assert event.schema is not None
    assert [c.nullable for c in event.schema.columns] == [False, False, True]


def test_a_chunk_of_another_type_is_refused(of_type: Callable[[str, str], Stream]) -> None:
    """A type that changes while a snapshot runs: the rows that are read next are not taken for those of the old type."""
    stream = of_type("int4", "1")
    request = ChunkRequest(schema=stream.described[T].schema, limit=10)
    assert stream.source.read_chunk(request).identity is not None
    stream.database.execute("ALTER TABLE t ALTER c TYPE text")
    # Remembered as it was.
    assert stream.source.read_chunk(request).identity is None
    with pytest.raises(SchemaConflictError):
        stream.source.read_chunk(request)


# -- keys


def test_a_key_that_is_dropped_is_told_with_the_next_row(stream_with_key: Stream) -> None:
    event = one(stream_with_key.altered("ALTER TABLE t DROP CONSTRAINT t_pkey", "INSERT INTO t VALUES (3, 3)"))
    assert event.before is not None
    assert event.schema is not None
    assert (event.before.key, event.schema.key) == (("id",), ())


def test_another_index_as_the_identity_is_another_key(stream_with_key: Stream) -> None:
    stream = stream_with_key
    event = one(
        stream.altered(
            "ALTER TABLE t ALTER n SET NOT NULL",
            "CREATE UNIQUE INDEX t_n ON t (n)",
            "ALTER TABLE t REPLICA IDENTITY USING INDEX t_n",
            "UPDATE t SET n = 7 WHERE id = 1",
        )
    )
    assert event.schema is not None
    assert event.schema.key == ("n",)
    # What was logged by the new identity comes behind it, and is identified by it.
    assert {row["n"] for row in stream.rows[T]} == {7, 2}


def test_a_primary_key_under_full_identity_is_told_with_the_next_row(
    any_database: ScratchDatabase, source: PostgresqlSource, replicate: Replicate
) -> None:
    """Whole rows are logged before and after, so the log's description is the same; the catalogue is asked."""
    any_database.execute(
        "CREATE TABLE t (id int NOT NULL, n int NOT NULL)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (1, 1)",
    )
    stream = replicate(any_database, source)
    event = one(stream.altered("ALTER TABLE t ADD PRIMARY KEY (n, id)", "UPDATE t SET n = 2"))
    assert event.schema is not None
    assert event.schema.key == ("n", "id")
    stream.assert_same()


@pytest.fixture
def stream_with_key(any_database: ScratchDatabase, source: PostgresqlSource, replicate: Replicate) -> Stream:
    """A table with two rows, once on each server."""
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    return replicate(any_database, source)


def test_full_identity_keeps_the_key(stream_with_key: Stream) -> None:
    stream = stream_with_key
    statements = (
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "UPDATE t SET n = 7 WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
    )
    assert stream.altered(*statements) == []
    stream.assert_same()


def test_a_key_that_is_dropped_under_full_identity_is_told_with_the_next_row(stream_with_key: Stream) -> None:
    stream = stream_with_key
    assert stream.altered("ALTER TABLE t REPLICA IDENTITY FULL", "UPDATE t SET n = 7 WHERE id = 1") == []
    event = one(stream.altered("ALTER TABLE t DROP CONSTRAINT t_pkey", "INSERT INTO t VALUES (1, 7), (1, 7)"))
    assert event.schema is not None
    assert event.schema.key == ()

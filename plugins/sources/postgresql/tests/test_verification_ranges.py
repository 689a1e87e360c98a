"""Ranges of keys: a range has on the server the rows that it has for everybody else, and is read through the key's index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import psycopg
import pytest

from plugins.sources.postgresql.tests.test_verification import (
    MOMENTS,
    UNHELD,
    VALUES,
    MakeSource,
    read,
    schema_of,
)
from replicator.model.errors import UnsupportedTypeError
from replicator.model.schema import TableId
from replicator.plugins.verification import KeyRange
from replicator_source_postgresql.source import PostgresqlSource
from replicator_source_postgresql.verification.states import RANGE_SETTINGS, StateQuery
from replicator_testbed.postgresql.servers import PostgresServer, ScratchDatabase
from replicator_testing.table_states import assert_ranges

UUIDS = (
    "00000000-0000-0000-0000-000000000000", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A12",
    "9fffffff-ffff-ffff-ffff-ffffffffffff", "ffffffff-ffff-ffff-ffff-ffffffffffff", "0a000000-0000-0000-0000-000000000000",
)  # fmt: skip
RANGED: Mapping[str, Sequence[str]] = {
    "bool": VALUES["bool"],
    "int2": VALUES["int2"],
    "int4": VALUES["int4"],
    "int8": (*VALUES["int8"], "10", "9", "-10", "-9"),
    "oid": (*VALUES["oid"], "2147483648", "2147483647"),
    "posposint": VALUES["posposint"],
    "numeric(12,2)": (*VALUES["numeric(12,2)"], "10", "9.5", "-10", "-9.5"),
    "price": VALUES["price"],
    "numeric(38,0)": VALUES["numeric(38,0)"],
    "numeric(38,38)": VALUES["numeric(38,38)"],
    "numeric(65,30)": VALUES["numeric(65,30)"],
    "date": VALUES["date"],
    "day": (*VALUES["day"], "0044-03-15 BC"),
    "timestamp": (*MOMENTS, "294246-12-31 23:59:59.999998"),
    "timestamp(0)": MOMENTS,
    "timestamptz": VALUES["timestamptz"],
    "bytea": (r"\x", r"\x00", r"\x0000", r"\x7f", r"\x80", r"\xff", r"\x00ff", r"\x01"),
    "uuid": UUIDS,
}  # fmt: skip
WHOLE = ("text", "varchar(400)", "char(5)", "citext", "numeric", "time", "timetz", "inet", "mood", "name", "interval")
"""Types of keys that have an order of the server's own, or texts by which they are not ordered."""


@pytest.mark.sampled(5)
@pytest.mark.parametrize("type_", RANGED)
def test_a_range_has_the_rows_that_it_has_for_everybody(
    any_database: ScratchDatabase, source: PostgresqlSource, type_: str
) -> None:
    if type_ in ("posposint", "price", "day"):
        base = {"posposint": "int CHECK (value < 1000000)", "price": "numeric(10,2)", "day": "date"}[type_]
        any_database.execute(f"CREATE DOMAIN {type_} AS {base}")
    any_database.execute(f"CREATE TABLE t (v text, n int, k {type_}, PRIMARY KEY (k, n))")
    with any_database.connect() as connection, connection.cursor() as cursor:
        insert = f"INSERT INTO t VALUES ('x', %s, %s::text::{type_}) ON CONFLICT DO NOTHING".encode()
        cursor.executemany(insert, [(n, value) for value in RANGED[type_] for n in (-1, 1, 2)])
    schema = schema_of(source)
    with source.open_state(schema, ["v", "n", "k"]) as state:
        assert_ranges(state, read(source, schema).select(["v", "n", "k"]), schema, columns=2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("type_", WHOLE)
def test_other_keys_are_read_in_one(any_database: ScratchDatabase, source: PostgresqlSource, type_: str) -> None:
    any_database.execute("CREATE TYPE mood AS ENUM ('sad', 'happy')")
    try:
        any_database.execute(*(["CREATE EXTENSION citext"] if type_ == "citext" else []))
    except (psycopg.errors.UndefinedFile, psycopg.errors.FeatureNotSupported):
        pytest.skip("this server has no citext")
    any_database.execute(
        f"CREATE TABLE t (k {type_}, n int, PRIMARY KEY (k, n))", "CREATE TABLE u (n int, k text, PRIMARY KEY (n, k))"
    )
    with source.open_state(schema_of(source), ["k", "n"]) as state:
        assert state.range_key == []
    other = TableId("public", "u")
    with source.open_state(schema_of(source, other), ["k", "n"]) as state:
        assert state.range_key == ["n"]


def test_an_index_with_an_order_of_its_own_is_not_for_ranges(
    any_database: ScratchDatabase, source: PostgresqlSource
) -> None:
    any_database.execute(
        "CREATE FUNCTION backwards(int, int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT btint4cmp($2, $1)'",
        "CREATE OPERATOR CLASS downwards FOR TYPE int4 USING btree AS OPERATOR 1 >, OPERATOR 2 >=, OPERATOR 3 =, OPERATOR 4 <=,"
        " OPERATOR 5 <, FUNCTION 1 backwards(int, int)",
        "CREATE TABLE t (id int NOT NULL)",
        "CREATE UNIQUE INDEX k ON t (id downwards)",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX k",
    )
    with source.open_state(schema_of(source), ["id"]) as state:
        assert state.range_key == []


def test_a_key_that_cannot_be_held_is_in_the_last_range(any_database: ScratchDatabase, make_source: MakeSource) -> None:
    for number, type_ in enumerate(("numeric(12,2)", "date", "timestamp", "timestamptz")):
        name = TableId("public", f"k{number}")
        any_database.execute(f"CREATE TABLE {name.name} (k {type_} PRIMARY KEY)")
        with any_database.connect() as connection, connection.cursor() as cursor:
            insert = f"INSERT INTO {name.name} VALUES (%s::text::{type_})".encode()
            cursor.executemany(insert, [[value] for value in (*UNHELD[type_][:1], *VALUES[type_][2:5])])
        source = make_source(any_database, unrepresentable="null")
        schema = schema_of(source, name)
        with source.open_state(schema, ["k"]) as state:
            bound = state.bound(("k",), None, 3)
            assert bound is not None
            assert state.bound(("k",), bound, 1) is None
            assert sum(c.rows for c in state.checksums(0, None, KeyRange(("k",), None, bound)).values()) == 3
            with pytest.raises(UnsupportedTypeError, match="Column k"):
                state.checksums(0, None, KeyRange(("k",), bound))


def test_the_filter_of_a_publication_and_partitions_hold_in_ranges(
    any_database: ScratchDatabase, make_source: MakeSource
) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (100) TO (200)",
        "INSERT INTO t SELECT i, 'v' FROM generate_series(0, 199) i",
        "CREATE PUBLICATION mine FOR TABLE t WHERE (id % 3 = 0) WITH (publish_via_partition_root = true)",
    )
    source = make_source(any_database, publication="mine")
    schema = schema_of(source)
    rows = read(source, schema)
    assert rows.num_rows == 67
    with source.open_state(schema, ["id", "v"]) as state:
        assert_ranges(state, rows, schema, columns=1)


def test_a_range_is_read_through_the_index_whatever_the_statistics_say(
    postgres: PostgresServer, make_source: MakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that was filled after it was last looked at: for the planner it is so small that all of it is read most cheaply."""
    with postgres.database() as database:
        database.execute(
            "CREATE TABLE t (a int, b uuid, v text, PRIMARY KEY (a, b)) WITH (autovacuum_enabled = off)",
            "INSERT INTO t SELECT 1, gen_random_uuid(), 'x' FROM generate_series(1, 10) i",
            "ANALYZE t",
            "INSERT INTO t SELECT i % 10, gen_random_uuid(), 'x' FROM generate_series(1, 5000) i",
        )
        source = make_source(database)
        schema = schema_of(source)
        asked = list[str]()
        for name in ("bound", "checksums", "rows", "texts"):
            original = getattr(StateQuery, name)

            def note(self: StateQuery, *arguments: object, original: object = original) -> str:
                asked.append(original(self, *arguments))  # type: ignore[operator]
                return asked[-1]

            monkeypatch.setattr(StateQuery, name, note)
        with source.open_state(schema, ["a", "b", "v"]) as state:
            first = state.bound(("a", "b"), None, 1000)
            last = state.bound(("a", "b"), first, 1000)
            within = KeyRange(("a", "b"), first, last)
            assert sum(c.rows for c in state.checksums(2, None, within).values()) == 1000
            ids = state.rows([""], within).column("id").to_pylist()
            state.texts(ids[:5], within)
        with database.connect(autocommit=False) as connection:
            connection.execute(RANGE_SETTINGS.encode())
            for number, query in enumerate(asked):
                plan = "\n".join(line for (line,) in connection.execute(f"EXPLAIN {query}".encode()))
                # The first range begins with the index: it has no condition.
                assert ("Index Cond" if number else "using t_pkey") in plan, plan
                assert "Seq Scan" not in plan, plan
        assert len(asked) == 5

"""Chunks and whole reads: every row once, in the key's order, with what was seen, and out of everybody's way."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from replicator.model.errors import (
    ImpossibleKeyError,
    SchemaConflictError,
    TableError,
    TransientError,
    UnsupportedTypeError,
)
from replicator.model.keys import key_bytes
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.cursors import cursors, keys_of
from replicator.plugins.source import Chunk, ChunkRequest, Cursor, Seen
from replicator_source_postgresql.catalogue.discovery import read_tables
from replicator_source_postgresql.snapshot import chunk_statements as chunksql
from replicator_source_postgresql.snapshot.reader import PgVisibility, read_plan
from replicator_source_postgresql.source import PostgresqlSource
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testbed.postgresql.tables import make_tables
from replicator_testing.defaults import chunk_request
from replicator_testing.waiting import wait_until

T = TableId("public", "t")
MakeSource = Callable[..., PostgresqlSource]


def schema_of(source: PostgresqlSource, table: TableId = T) -> TableSchema:
    return source.describe([table])[table].schema


def pages(source: PostgresqlSource, schema: TableSchema, limit: int) -> list[Chunk]:
    chunks: list[Chunk] = []
    after: Cursor | None = None
    while not chunks or chunks[-1].rows.num_rows == limit:
        chunks.append(source.read_chunk(ChunkRequest(schema=schema, after=after, limit=limit)))
        assert chunks[-1].identity == source.describe([schema.table])[schema.table].identity
        after = chunks[-1].cursor
    return chunks


def rows(chunks: list[Chunk]) -> list[dict[str, Any]]:
    return [row for chunk in chunks for row in chunk.rows.to_pylist()]


def column(chunks: list[Chunk], name: str) -> list[Any]:
    return [value for chunk in chunks for value in chunk.rows.column(name).to_pylist()]


def whole(source: PostgresqlSource, schema: TableSchema) -> list[dict[str, Any]]:
    with source.read_whole(schema) as read:
        found = [row for batch in read.batches for row in batch.to_pylist()]
        assert read.identity() == source.describe([schema.table])[schema.table].identity
    return found


# -- visibility


def test_a_snapshot_sees_what_ended_before_it() -> None:
    visibility = PgVisibility.of("10:20:12,15")
    ids = pa.array([str(n) for n in (1, 9, 10, 11, 12, 15, 19, 20, 21, 2**63)])
    seen = [Seen(value) for value in visibility.classify(ids).to_pylist()]
    assert [s is Seen.SEEN for s in seen] == [True, True, True, True, False, False, True, False, False, False]
    assert [visibility.sees(int(n)) for n in ids.to_pylist()] == [s is Seen.SEEN for s in seen]
    assert visibility.classify(ids).type == pa.int8()
    assert PgVisibility.of("7:7:").classify(pa.array([], pa.string())).to_pylist() == []


def test_ids_beyond_32_bits_are_told_apart() -> None:
    visibility = PgVisibility.of(f"{2**33}:{2**33 + 5}:{2**33 + 1}")
    assert visibility.classify(pa.array(["1", str(2**33 + 1), str(2**33 + 2), str(2**34)])).to_pylist() == [0, 1, 0, 1]


# -- keys and their order

KEYS = {
    "uuid": ("uuid", "SELECT md5(i::text)::uuid FROM generate_series(1, 50) i"),
    "text in the collation C": (
        'text COLLATE "C"',
        "SELECT chr(64 + i % 60) || CASE WHEN i % 3 = 0 THEN ' ' ELSE '''\\' END FROM generate_series(1, 50) i",
    ),
    "text in an ICU collation": (
        'text COLLATE "de-x-icu"',
        "SELECT v FROM unnest(ARRAY['a', 'A', 'ä', 'B', 'b', 'z', 'Z', 'ß', 'ss', '-', 'a-b', 'ab', '']) v",
    ),
    "char(n)": ("char(5)", "SELECT v FROM unnest(ARRAY['a', 'b ', '', 'abcde', 'é']) v"),
    "numeric(p,s)": ("numeric(30, 10)", "SELECT i / 7.0 - 3 FROM generate_series(1, 50) i"),
    "numeric": (
        "numeric",
        "SELECT (i || repeat('0', i) || '.' || i)::numeric * (-1) ^ i FROM generate_series(1, 50) i",
    ),
    "timestamp": (
        "timestamp(3)",
        "SELECT timestamp '1999-12-31 23:59:59' + i * interval '17.001 hours' FROM generate_series(-25, 25) i",
    ),
    "timestamptz": (
        "timestamptz",
        "SELECT timestamptz '2000-01-01 Europe/Berlin' + i * interval '0.000001 s' FROM generate_series(-25, 25) i",
    ),
    "date": ("date", "SELECT date '0004-01-01 BC' + i * 400 FROM generate_series(1, 50) i"),
    "time": ("time", "SELECT time '00:00' + i * interval '1 s' FROM generate_series(1, 50) i"),
    "interval": ("interval", "SELECT i * interval '1 day 3 hours' - interval '1 mon' FROM generate_series(1, 50) i"),
    "bytea": ("bytea", "SELECT decode(lpad(to_hex(i * 5), 2, '0'), 'hex') || '\\x00ff' FROM generate_series(1, 50) i"),
    "bool": ("bool", "SELECT v FROM unnest(ARRAY[true, false]) v"),
    "enum": ("mood", "SELECT v::mood FROM unnest(ARRAY['sad', 'it''s', 'OK', 'happy']) v"),
    "domain": ("positive", "SELECT i FROM generate_series(1, 50) i"),
    "inet": ("inet", "SELECT ('10.0.' || i || '.1/' || 8 + i % 20)::inet FROM generate_series(1, 50) i"),
    "smallint": ("smallint", "SELECT i FROM generate_series(-25, 25) i"),
    "oid": ("oid", "SELECT (4294967295 - i)::oid FROM generate_series(0, 50) i"),
    "internal char": ('"char"', 'SELECT chr(i)::"char" FROM generate_series(33, 80) i'),
    "bit": ("bit(6)", "SELECT i::bit(6) FROM generate_series(0, 50) i"),
}


@pytest.fixture
def types(any_database: ScratchDatabase) -> ScratchDatabase:
    any_database.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'it''s', 'OK', 'happy')", "CREATE DOMAIN positive AS int CHECK (VALUE > 0)"
    )
    return any_database


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", list(KEYS))
def test_paging_by_any_kind_of_key_reads_every_row_once(
    types: ScratchDatabase, source: PostgresqlSource, kind: str
) -> None:
    type_, values = KEYS[kind]
    try:
        types.execute(f"CREATE TABLE t (note int, k {type_} PRIMARY KEY)")
    except psycopg.errors.UndefinedObject:
        pytest.skip("this server was built without ICU")
    types.execute(f"INSERT INTO t SELECT row_number() OVER (), v FROM ({values}) s(v)")
    schema = schema_of(source)
    assert schema.key == ("k",)
    paged = pages(source, schema, 3)
    (at_once,) = pages(source, schema, 1000)
    assert pa.Table.from_batches([chunk.rows for chunk in paged]).combine_chunks() == pa.Table.from_batches(
        [at_once.rows]
    )
    assert column(paged, "note") == [note for (note,) in types.execute("SELECT note FROM t ORDER BY k")]


@pytest.mark.matrix
def test_composite_keys_are_compared_as_rows(any_database: ScratchDatabase, source: PostgresqlSource) -> None:
    any_database.execute(
        "CREATE TABLE t (c int, b text, a int, x int, PRIMARY KEY (a, b, c))",
        "INSERT INTO t SELECT c, chr(97 + b), a, a * 100 + b * 10 + c"
        " FROM generate_series(0, 4) a, generate_series(0, 4) b, generate_series(0, 4) c",
    )
    schema = schema_of(source)
    assert schema.key == ("a", "b", "c")
    expected = [x for (x,) in any_database.execute("SELECT x FROM t ORDER BY a, b, c")]
    for limit in (1, 4, 7, 125, 200):
        assert [row["x"] for row in rows(pages(source, schema, limit))] == expected
    chunk = source.read_chunk(chunk_request(schema, after=("1", "c", "3"), upto=("3", "a", "0")))
    assert [row["x"] for row in chunk.rows.to_pylist()] == [x for x in expected if 123 < x <= 300]
    keyed = source.read_chunk(
        chunk_request(schema, keys=[("3", "a", "0"), ("9", "z", "9"), ("1", "c", "3"), ("1", "c", "3")])
    )
    assert [row["x"] for row in keyed.rows.to_pylist()] == [123, 300]


def test_equal_under_the_collation_is_still_another_row(
    any_database: ScratchDatabase, source: PostgresqlSource
) -> None:
    """A unique index in C over a column whose collation takes `a` and `A` for equal: the index's order decides."""
    try:
        any_database.execute(
            "CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
        )
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("this server was built without ICU")
    any_database.execute(
        "CREATE TABLE t (k text COLLATE blind NOT NULL, n int NOT NULL)",
        'CREATE UNIQUE INDEX i ON t (n, k COLLATE "C")',
        "ALTER TABLE t REPLICA IDENTITY USING INDEX i",
        "INSERT INTO t SELECT k, n FROM unnest(ARRAY['a', 'A', 'b', 'B', 'ab', 'AB']) k, generate_series(1, 2) n",
    )
    schema = schema_of(source)
    assert schema.key == ("n", "k")
    expected = any_database.execute('SELECT k, n FROM t ORDER BY n, k COLLATE "C"')
    for limit in (1, 5, 100):
        assert [(row["k"], row["n"]) for row in rows(pages(source, schema, limit))] == expected
    assert source.read_chunk(chunk_request(schema, upto=("1", "a"))).rows.column("k").to_pylist() == [
        "A",
        "AB",
        "B",
        "a",
    ]
    assert source.read_chunk(chunk_request(schema, keys=[("1", "a")])).rows.column("k").to_pylist() == ["a"]


def test_an_index_with_an_operator_class_of_its_own_gives_the_order(
    any_database: ScratchDatabase, source: PostgresqlSource
) -> None:
    any_database.execute(
        "CREATE TABLE t (k text NOT NULL)",
        "CREATE UNIQUE INDEX i ON t (k text_pattern_ops)",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX i",
        "INSERT INTO t VALUES ('a'), ('B'), ('b'), ('A'), ('a b'), ('ab')",
    )
    schema = schema_of(source)
    expected = [k for (k,) in any_database.execute("SELECT k FROM t ORDER BY k USING ~<~")]
    assert [row["k"] for row in rows(pages(source, schema, 2))] == expected
    assert "unusual_key_order" in {p.code for p in source.check([T])}


def test_a_key_type_of_an_extension_is_compared_by_its_own_operators(
    database: ScratchDatabase, make_source: MakeSource
) -> None:
    """Citext in another schema: with the names of pg_catalog it would be compared as text."""
    try:
        database.execute("CREATE SCHEMA extensions", "CREATE EXTENSION citext SCHEMA extensions")
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("this server has no citext")
    database.execute(
        "CREATE TABLE t (k extensions.citext, n int, PRIMARY KEY (k, n))",
        "INSERT INTO t SELECT k, n FROM unnest(ARRAY['a', 'B', 'c', 'D', 'e']) k, generate_series(1, 2) n",
    )
    source = make_source(database)
    schema = schema_of(source)
    for limit in (1, 3, 100):
        assert [row["k"] for row in rows(pages(source, schema, limit))] == [k for k in "aBcDe" for _ in range(2)]
    assert source.read_chunk(chunk_request(schema, keys=[("b", "1")])).rows.column("k").to_pylist() == ["B"]


@pytest.mark.parametrize(
    "table",
    [
        "t (a int, b text, v text, PRIMARY KEY (a, b))",
        "t (a int, b text, v text, PRIMARY KEY (a, b)) PARTITION BY RANGE (a)",
    ],
    ids=["table", "partitioned"],
)
def test_chunks_are_read_by_the_index_of_the_key(
    any_database: ScratchDatabase, source: PostgresqlSource, table: str
) -> None:
    any_database.execute(f"CREATE TABLE {table}")
    if "PARTITION" in table:
        any_database.execute(
            "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (50)",
            "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (50) TO (1000)",
        )
    any_database.execute(
        "INSERT INTO t SELECT i % 97, md5(i::text), repeat('x', 100) FROM generate_series(1, 20000) i", "ANALYZE t"
    )
    schema = schema_of(source)
    source.read_chunk(ChunkRequest(schema=schema, limit=1))
    with any_database.connect(options="-c search_path= -c enable_sort=off") as connection:
        plan = read_plan(read_tables(connection, [T], "none")[T], schema, "none")
        for request in (
            ChunkRequest(schema=schema, limit=500),
            ChunkRequest(schema=schema, after=("30", "5"), limit=500),
            ChunkRequest(schema=schema, after=("30", "5"), upto=("60", "6"), limit=500),
        ):
            lines = [line for (line,) in connection.execute(f"EXPLAIN {chunksql.chunk_query(plan, request)}".encode())]
            assert not [line for line in lines if "Sort " in line or "Seq Scan" in line], lines
            assert any("Index" in line for line in lines)
            assert (request.after is None) == (not any("Index Cond" in line for line in lines))


def test_a_read_in_the_server_s_own_time_zone_gives_utc(
    any_database: ScratchDatabase, source: PostgresqlSource
) -> None:
    any_database.execute(
        f"ALTER DATABASE \"{any_database.name}\" SET timezone = 'America/New_York'",
        f"ALTER DATABASE \"{any_database.name}\" SET datestyle = 'SQL, DMY'",
        "CREATE TABLE t (k timestamptz PRIMARY KEY)",
        "INSERT INTO t VALUES ('2024-03-10 06:59:59Z'), ('2024-03-10 07:00:00Z'), ('2024-11-03 05:30Z'), ('2024-11-03 06:30Z')",
    )
    read = [row["k"].isoformat() for row in rows(pages(source, schema_of(source), 1))]
    assert read == [
        "2024-03-10T06:59:59+00:00",
        "2024-03-10T07:00:00+00:00",
        "2024-11-03T05:30:00+00:00",
        "2024-11-03T06:30:00+00:00",
    ]


# -- what belongs to a table


def test_inheritance_children_are_not_read_with_their_parent(
    any_database: ScratchDatabase, source: PostgresqlSource
) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE c (PRIMARY KEY (id)) INHERITS (t)",
        "INSERT INTO t VALUES (1)",
        "INSERT INTO c VALUES (2)",
    )
    schema = schema_of(source)
    assert rows(pages(source, schema, 10)) == whole(source, schema) == [{"id": 1}]


def test_a_partitioned_table_is_one_table_and_its_identity_knows_its_leaves(
    any_database: ScratchDatabase, source: PostgresqlSource
) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (30) PARTITION BY RANGE (id)",
        "CREATE TABLE t21 PARTITION OF t2 FOR VALUES FROM (10) TO (20)",
        "CREATE TABLE loose (id int PRIMARY KEY, v int)",
        "INSERT INTO t SELECT i, i FROM generate_series(0, 19) i",
        "ANALYZE t",
    )
    left_out = {s.table.name: s.left_out for s in source.list_tables()}
    assert left_out["t"] is None
    assert all("partition of public.t" in (left_out[name] or "") for name in ("t1", "t2", "t21"))
    source.prepare([T], is_first=True)
    schema = schema_of(source)
    assert [row["id"] for row in rows(pages(source, schema, 3))] == list(range(20))
    assert source.describe([T])[T].estimated_rows == 20
    seen = [source.describe([T])[T].identity]
    for change in (
        "ALTER TABLE t2 ATTACH PARTITION loose FOR VALUES FROM (20) TO (30)",
        "TRUNCATE t1",
        "ALTER TABLE t DETACH PARTITION t1",
        "DROP TABLE t21",
    ):
        before = source.read_chunk(ChunkRequest(schema=schema, limit=1))
        assert before.identity == seen[-1]
        any_database.execute(change)
        seen.append(source.describe([T])[T].identity)
        assert seen[-1].parts["partitions"] != seen[-2].parts["partitions"]
        assert source.read_chunk(ChunkRequest(schema=schema, limit=1)).identity is None, (
            "planned on what was there before"
        )


def test_column_list_and_row_filter_of_the_user_s_publication_hold_for_reads(
    any_database: ScratchDatabase, make_source: MakeSource
) -> None:
    if any_database.server.major_version < 15:
        pytest.skip("column lists and row filters came with PostgreSQL 15")
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, secret text, v text)",
        "INSERT INTO t SELECT i, 's', 'v' FROM generate_series(1, 10) i",
        "CREATE PUBLICATION mine FOR TABLE t (id, v) WHERE (id > 5) WITH (publish_via_partition_root = true)",
    )
    source = make_source(any_database, publication="mine")
    description = source.describe([T])[T]
    assert [c.name for c in description.schema.columns] == ["id", "v"]
    assert (description.identity.parts["column_list"], description.identity.parts["row_filter"]) == ([1, 3], "(id > 5)")
    assert [row["id"] for row in rows(pages(source, description.schema, 2))] == [6, 7, 8, 9, 10]
    assert len(whole(source, description.schema)) == 5
    assert source.read_chunk(chunk_request(description.schema, keys=[("1",), ("9",)])).rows.to_pylist() == [
        {"id": 9, "v": "v"}
    ]


def test_generated_columns_are_left_out_and_the_rest_stays_in_order(
    any_database: ScratchDatabase, source: PostgresqlSource
) -> None:
    any_database.execute(
        "CREATE TABLE t (b int, g int GENERATED ALWAYS AS (b * 2) STORED, id int PRIMARY KEY, dropped int)",
        "INSERT INTO t VALUES (1, DEFAULT, 2)",
    )
    any_database.execute("ALTER TABLE t DROP COLUMN dropped", "ALTER TABLE t ADD COLUMN z text DEFAULT 'z'")
    assert rows(pages(source, schema_of(source), 10)) == [{"b": 1, "id": 2, "z": "z"}]


def test_row_security_makes_a_read_fail_instead_of_hiding_rows(
    any_database: ScratchDatabase, make_source: MakeSource
) -> None:
    role = f"r_{any_database.name}"
    any_database.execute(
        f"CREATE ROLE {role} LOGIN",
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1), (2)",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY p ON t USING (id = 1)",
        f"GRANT SELECT ON t TO {role}",
    )
    try:
        source = make_source(any_database, user=role)
        with pytest.raises(Exception, match="row-level security"):
            source.read_chunk(chunk_request(schema_of(source)))
        source.close()
    finally:
        any_database.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_a_keyless_table_is_read_whole_in_bounded_batches(
    any_database: ScratchDatabase, source: PostgresqlSource
) -> None:
    any_database.execute(
        "CREATE TABLE t (id int, v text)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t SELECT i, repeat('x', 400) FROM generate_series(1, 120000) i",
    )
    schema = schema_of(source)
    assert schema.key == ()
    with source.read_whole(schema) as read:
        sizes = [(batch.num_rows, batch.nbytes) for batch in read.batches]
        assert read.identity() is not None
    assert sum(rows for rows, _ in sizes) == 120_000
    assert max(rows for rows, _ in sizes) < 60_000
    assert max(size for _, size in sizes) < 24 << 20


def test_a_whole_read_left_early_leaves_nothing_running(
    any_database: ScratchDatabase, source: PostgresqlSource
) -> None:
    any_database.execute(
        "CREATE TABLE t (id int)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t SELECT generate_series(1, 500000)",
    )
    with source.read_whole(schema_of(source)) as read:
        next(read.batches)
    assert source.read_chunk(chunk_request(schema_of(source, keyed(any_database)))).rows.num_rows == 1
    wait_until(
        lambda: (
            any_database.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%COPY (SELECT%' AND state = 'active' AND pid <> pg_backend_pid()"
            )
            == [(0,)]
        ),
        "it has ended",
    )


def keyed(database: ScratchDatabase) -> TableId:
    database.execute("CREATE TABLE k (id int PRIMARY KEY)", "INSERT INTO k VALUES (1)")
    return TableId("public", "k")


# -- DDL


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("DROP TABLE t", TableError),
        ("ALTER TABLE t RENAME COLUMN v TO w", SchemaConflictError),
        ("ALTER TABLE t DROP COLUMN v", SchemaConflictError),
        ("ALTER TABLE t ALTER COLUMN v TYPE bigint", SchemaConflictError),
        ("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (v)", SchemaConflictError),
    ],
)
def test_a_changed_shape_is_the_table_s_error_or_a_read_in_vain(
    any_database: ScratchDatabase, source: PostgresqlSource, change: str, error: type[TableError]
) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 2)")
    schema = schema_of(source)
    source.read_chunk(chunk_request(schema))
    any_database.execute(change)
    first = attempt(lambda: source.read_chunk(chunk_request(schema)))
    # It may have been planned on what was there before.
    assert isinstance(first, error) or first.identity is None
    with pytest.raises(error) as caught:
        source.read_chunk(chunk_request(schema))
    assert caught.value.table == "public.t"


def test_an_added_column_is_not_read_before_it_is_asked_for(
    any_database: ScratchDatabase, source: PostgresqlSource
) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    schema = schema_of(source)
    any_database.execute("ALTER TABLE t ADD COLUMN v int DEFAULT 7")
    assert source.read_chunk(chunk_request(schema)).rows.to_pylist() == [{"id": 1}]
    assert source.read_chunk(chunk_request(schema_of(source))).rows.to_pylist() == [{"id": 1, "v": 7}]


def test_a_column_that_came_and_went_between_two_reads_is_in_the_identity(
    any_database: ScratchDatabase, source: PostgresqlSource
) -> None:
    """What is remembered of the table would never be the table's identity again, and its snapshot never end."""
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    schema = schema_of(source)
    source.read_chunk(ChunkRequest(schema=schema, limit=10))
    any_database.execute("ALTER TABLE t ADD COLUMN extra int", "ALTER TABLE t DROP COLUMN extra")
    pages_ = [source.read_chunk(ChunkRequest(schema=schema, limit=10)) for _ in range(2)]
    assert [page.identity for page in pages_] == [None, source.describe([T])[T].identity]


def test_a_table_that_changed_since_it_was_planned_is_read_again(
    any_database: ScratchDatabase, source: PostgresqlSource
) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    schema = schema_of(source)
    before = source.read_chunk(chunk_request(schema)).identity
    any_database.execute("TRUNCATE t")
    assert source.read_chunk(chunk_request(schema)).identity is None
    after = source.read_chunk(chunk_request(schema))
    assert after.identity is not None
    assert after.identity != before
    assert after.rows.num_rows == 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ddl", ["ALTER TABLE t ALTER COLUMN v TYPE bigint", "TRUNCATE t", "VACUUM FULL t"])
def test_a_read_that_waited_for_a_rewrite_never_returns_a_wrong_end(
    any_database: ScratchDatabase, source: PostgresqlSource, ddl: str
) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t SELECT i, i FROM generate_series(1, 500) i"
    )
    schema = schema_of(source)
    source.read_chunk(ChunkRequest(schema=schema, limit=1))
    is_vacuum = ddl.startswith("VACUUM")
    with any_database.connect(autocommit=False) as writer:
        writer.execute("LOCK TABLE t" if is_vacuum else ddl.encode())
        outcome: list[Any] = []
        thread = threading.Thread(
            target=lambda: outcome.append(attempt(lambda: source.read_chunk(chunk_request(schema))))
        )
        thread.start()
        wait_until(lambda: waiting(any_database), "the read waits")
        writer.commit()
        thread.join()
    if is_vacuum:
        any_database.execute(ddl)
        outcome = [attempt(lambda: source.read_chunk(chunk_request(schema)))]
    (result,) = outcome
    assert isinstance(result, TableError) or result.identity is None, "never an empty chunk that would end the table"


def waiting(database: ScratchDatabase) -> bool:
    return database.execute("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 't'::regclass") != [(0,)]


def attempt(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (TableError, TransientError) as error:
        return error


# -- out of the way


def test_a_read_waits_for_a_lock_no_longer_than_set(any_database: ScratchDatabase, make_source: MakeSource) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = make_source(any_database, lock_timeout="20ms")
    schema = schema_of(source)
    with any_database.connect(autocommit=False) as holder:
        holder.execute("LOCK TABLE t")
        with pytest.raises(TransientError) as caught:
            source.read_chunk(chunk_request(schema))
        assert (caught.value.code, caught.value.table) == ("lock_timeout", "public.t")
    assert source.read_chunk(chunk_request(schema)).rows.num_rows == 0


def test_a_statement_runs_no_longer_than_set(any_database: ScratchDatabase, make_source: MakeSource) -> None:
    any_database.execute(
        "CREATE FUNCTION slow(int) RETURNS bool LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(60); RETURN true; END'",
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
    )
    source = make_source(any_database, statement_timeout="1s")
    source._reader._tables[T] = slowed(source, any_database)
    with pytest.raises(TransientError) as caught:
        source.read_chunk(chunk_request(schema_of(source)))
    assert caught.value.code == "statement_timeout"


def slowed(source: PostgresqlSource, database: ScratchDatabase) -> Any:
    """The table's plan with a row filter that takes a minute: the test-only way to a slow statement."""
    from dataclasses import replace

    from replicator_source_postgresql.catalogue.tables import PublishedAs

    with database.connect() as connection:
        table = read_tables(connection, [T], source.identity()["publication"])[T]
    return replace(
        table,
        published=PublishedAs(
            rel_oid=None, is_listed=True, schema_oid=None, columns=None, row_filter="public.slow(id)"
        ),
    )


def test_a_running_read_gives_way_to_waiting_ddl(any_database: ScratchDatabase, make_source: MakeSource) -> None:
    any_database.execute(
        "CREATE FUNCTION slow(int) RETURNS bool LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(60); RETURN true; END'",
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
    )
    source = make_source(any_database, yield_after="20ms")
    source._reader._tables[T] = slowed(source, any_database)
    outcome: list[Any] = []
    thread = threading.Thread(
        target=lambda: outcome.append(attempt(lambda: source.read_chunk(chunk_request(schema_of(source)))))
    )
    thread.start()
    wait_until(
        lambda: (
            any_database.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
            )
            == [(1,)]
        ),
        "the read runs",
    )
    any_database.execute("ALTER TABLE t ADD COLUMN v int")
    thread.join()
    assert outcome[0].code == "gave_way"


def test_a_whole_read_that_nobody_takes_rows_from_gives_way_too(
    any_database: ScratchDatabase, make_source: MakeSource
) -> None:
    """The server hangs in sending, where it hears no cancellation; its connection is ended then."""
    any_database.execute(
        "CREATE TABLE t (v text)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t SELECT repeat('x', 1000) FROM generate_series(1, 100000) i",
    )
    source = make_source(any_database, yield_after="20ms")

    def read_with_a_pause() -> None:
        with source.read_whole(schema_of(source)) as read:
            next(read.batches)
            any_database.execute("ALTER TABLE t ADD COLUMN w int")
            list(read.batches)

    with pytest.raises(TransientError) as caught:
        read_with_a_pause()
    assert caught.value.code == "gave_way"


def test_closing_from_another_thread_ends_a_read(any_database: ScratchDatabase, make_source: MakeSource) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = make_source(any_database)
    schema = schema_of(source)
    with any_database.connect(autocommit=False) as holder:
        holder.execute("LOCK TABLE t")
        outcome: list[Any] = []
        thread = threading.Thread(
            target=lambda: outcome.append(attempt(lambda: source.read_chunk(chunk_request(schema))))
        )
        thread.start()
        wait_until(lambda: waiting(any_database), "the read waits")
        source.close()
        thread.join()
    assert isinstance(outcome[0], TransientError)


# -- values that do not fit


def test_values_that_do_not_fit_follow_the_setting(any_database: ScratchDatabase, make_source: MakeSource) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, d date)", "INSERT INTO t VALUES (1, 'infinity'), (2, '2024-01-01')"
    )
    failing, lenient = make_source(any_database), make_source(any_database, unrepresentable="null")
    with pytest.raises(UnsupportedTypeError, match="Column d") as caught:
        failing.read_chunk(chunk_request(schema_of(failing)))
    assert caught.value.table == "public.t"
    assert [row["d"] is None for row in rows(pages(lenient, schema_of(lenient), 10))] == [True, False]
    any_database.execute("CREATE TABLE k (d date PRIMARY KEY)", "INSERT INTO k VALUES ('infinity')")
    with pytest.raises(UnsupportedTypeError):
        lenient.read_chunk(chunk_request(schema_of(lenient, TableId("public", "k"))))


BAD_AND_FINE = {
    "date": ("infinity", "2024-01-01", "finite dates"),
    "timestamptz": ("294276-12-31 23:59:59+00", "2024-01-01", "finite moments up to the year 294246"),
    "timestamp": ("-infinity", "2024-01-01", "finite moments up to the year 294246"),
    "numeric(6,2)": ("NaN", "1.5", "finite numbers"),
    "time": ("24:00:00", "23:59:59", "times before 24:00"),
    "int[]": ("{{1},{2}}", "{1,2}", "arrays of one dimension that begin at 1"),
    "text[]": ("[0:1]={a,b}", "{}", "arrays of one dimension that begin at 1"),
    "date[]": ("{2024-01-01,infinity}", "{2024-01-01}", "arrays of one dimension that begin at 1, of finite dates"),
}


def test_the_message_about_values_that_do_not_fit_says_what_does_and_finds_the_rows(
    database: ScratchDatabase, make_source: MakeSource
) -> None:
    source = make_source(database)
    for number, (type_, (bad, fine, fits)) in enumerate(BAD_AND_FINE.items()):
        table = TableId("public", f"t {number}")
        database.execute(
            f'CREATE TABLE "{table.name}" (id int PRIMARY KEY, "the value" {type_})',
            f"INSERT INTO \"{table.name}\" VALUES (1, '{fine}'), (2, '{bad}'), (3, NULL)",
        )
        with pytest.raises(UnsupportedTypeError) as caught:
            source.read_chunk(chunk_request(schema_of(source, table)))
        assert caught.value.message.startswith(
            f"Column the value: 1 of 3 values of type {type_.replace('int', 'int4')} "
        )
        assert caught.value.message.endswith(f", which holds {fits}.")
        assert bad not in caught.value.message
        found = re.search("`(SELECT .*);`", caught.value.action or "")
        assert found is not None
        assert database.execute(f"SELECT id FROM ({found[1]}) AS found") == [(2,)], type_


def test_a_chunk_of_wide_rows_is_cut_and_what_follows_is_read_next(
    any_database: ScratchDatabase, make_source: MakeSource
) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT i, repeat('x', 100000) FROM generate_series(1, 200) i",
        "INSERT INTO t SELECT i, 'x' FROM generate_series(201, 300) i",
    )
    source = make_source(any_database, chunk_bytes_max="8MiB")
    found: list[int] = []
    sizes: list[int] = []
    chunk: Chunk | None = None
    while chunk is None or chunk.is_cut:
        after = chunk.cursor if chunk else None
        chunk = source.read_chunk(ChunkRequest(schema=schema_of(source), after=after, limit=1000))
        found += chunk.rows.column("id").to_pylist()
        sizes.append(chunk.rows.nbytes)
    assert found == list(range(1, 301))
    assert len(sizes) > 2
    assert max(sizes) <= 8 << 20
    every = source.read_chunk(chunk_request(schema_of(source), keys=[(str(i),) for i in range(1, 201)]))
    assert (every.rows.num_rows, every.is_cut) == (0, True)
    some = source.read_chunk(chunk_request(schema_of(source), keys=[("1",), ("2",)]))
    assert (some.rows.num_rows, some.is_cut) == (2, False)


def test_a_whole_read_behind_a_change_of_the_table_is_of_use(
    any_database: ScratchDatabase, source: PostgresqlSource
) -> None:
    """What is remembered of the table before the change made every later read of no use, for as long as the process lived."""
    bag = TableId("public", "bag")
    any_database.execute(
        "CREATE TABLE bag (n int)", "ALTER TABLE bag REPLICA IDENTITY FULL", "INSERT INTO bag VALUES (1)"
    )
    schema = source.describe([bag])[bag].schema

    def read() -> object:
        with source.read_whole(schema) as whole:
            assert sum(batch.num_rows for batch in whole.batches) in (0, 1)
            return whole.identity()

    assert read() == source.describe([bag])[bag].identity
    any_database.execute("TRUNCATE bag")
    assert read() == source.describe([bag])[bag].identity


# -- rows by their keys, as the host spells them


@pytest.mark.matrix
def test_rows_of_every_type_of_key_are_found_by_their_values(
    database: ScratchDatabase, make_source: MakeSource
) -> None:
    tables = [table for table in make_tables(database, rows=30) if table.name.startswith("k")]
    database.execute(
        "CREATE TABLE k_days (d date PRIMARY KEY)",
        "INSERT INTO k_days VALUES ('4713-01-01 BC'), ('0044-03-15 BC'), ('0001-12-31 BC'), ('0001-01-01'), ('0099-02-03'), "
        "('32768-01-01'), ('5874897-12-31')",
        "CREATE TABLE k_moments (t timestamp, z timestamptz, PRIMARY KEY (t, z))",
        "INSERT INTO k_moments VALUES ('4713-01-01 00:00:01.000001 BC', '0044-03-15 12:00:00+02 BC'), "
        "('294246-12-31 23:59:59.999999', '99999-01-01 00:00:00-12'), ('0001-01-01', '1900-01-01')",
    )
    source = make_source(database)
    counts = {}
    for table in [*(table.table for table in tables), TableId("public", "k_days"), TableId("public", "k_moments")]:
        schema = schema_of(source, table)
        found = source.read_chunk(chunk_request(schema, limit=1000)).rows
        wanted = cursors([found.column(name) for name in schema.key_fields])
        assert len(wanted) == found.num_rows
        asked = keys_of(schema, wanted)
        assert key_bytes(asked.columns) == key_bytes([found.column(name) for name in schema.key_fields])
        read = source.read_chunk(chunk_request(schema, keys=wanted, limit=1000)).rows
        assert read.equals(found), table
        counts[table.name] = found.num_rows
    assert len(counts) > 20
    assert (counts["k_days"], counts["k_moments"]) == (7, 3)
    assert sum(counts.values()) > 100


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("uuid", "none"),
        ("int", "2147483648"),
        ("date", "5874898-01-01"),
        ("timestamptz", "294277-01-01 00:00:00.000000Z"),
        ("mood", "angry"),
        ("numeric(4,2)", "1000.00"),
        ("inet", "1.2.3"),
        ("tsvector", "'cat"),
        ("ltree", "a..b"),
        ("hstore", "a="),
    ],
)
def test_a_key_that_is_no_value_of_its_type_is_said_to_be_one(
    database: ScratchDatabase, make_source: MakeSource, type_: str, text: str
) -> None:
    if type_ in {"ltree", "hstore"}:
        if not database.execute(f"SELECT 1 FROM pg_available_extensions WHERE name = '{type_}'"):
            pytest.skip(f"the server has no {type_}")
        database.execute(f"CREATE EXTENSION {type_}")
    database.execute(
        "CREATE TYPE mood AS ENUM ('sad')",
        f"CREATE TABLE t (a int, b {type_}, PRIMARY KEY (a, b))",
    )
    source = make_source(database)
    schema = schema_of(source)
    with pytest.raises(ImpossibleKeyError) as refused:
        source.read_chunk(chunk_request(schema, keys=[("1", text)]))
    assert (refused.value.code, refused.value.table) == ("impossible_key", "public.t")
    assert text not in refused.value.message
    # The connection is as good as new.
    assert source.read_chunk(chunk_request(schema, keys=[])).rows.num_rows == 0


def test_rows_that_are_older_than_a_constraint_of_their_domain_are_found(
    database: ScratchDatabase, make_source: MakeSource
) -> None:
    database.execute(
        "CREATE DOMAIN code AS varchar(3)",
        "CREATE TABLE t (id code PRIMARY KEY)",
        "INSERT INTO t VALUES ('a'), ('bcd')",
        "ALTER DOMAIN code ADD CHECK (VALUE <> 'a') NOT VALID",
    )
    source = make_source(database)
    # Cut to three letters, the last one would be another key.
    found = source.read_chunk(chunk_request(schema_of(source), keys=[("a",), ("bcd",), ("bcde",)])).rows
    assert found.column(0).to_pylist() == ["a", "bcd"]

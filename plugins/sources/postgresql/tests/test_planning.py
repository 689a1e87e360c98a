"""What the server's statistics say of tables and log, and samples of rows: read, and nothing else."""

from __future__ import annotations

import pytest

from replicator.model.figures import Basis
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.planning import TableStatistics
from replicator_source_postgresql.source import PostgresqlSource
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testing.waiting import wait_until

T = TableId("public", "t")


def schema_of(source: PostgresqlSource, table: TableId = T) -> TableSchema:
    return source.describe([table])[table].schema


def statistics_of(source: PostgresqlSource, table: TableId = T) -> TableStatistics:
    return source.statistics([table]).tables[table]


def test_rows_and_size_are_those_of_the_catalogue_once_it_has_any(
    any_database: ScratchDatabase, source: PostgresqlSource
) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a text) WITH (autovacuum_enabled = off)",
        "INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 5000) i",
    )
    before = statistics_of(source)
    assert (before.bytes.value, before.bytes.basis) == (None, Basis.UNKNOWN)
    any_database.execute("ANALYZE t")
    found = statistics_of(source)
    assert (found.rows.value, found.rows.how) == (5000, "pg_class.reltuples")
    assert 5000 * 100 < (found.bytes.value or 0) < 5000 * 200


def test_a_partitioned_table_has_what_its_partitions_have(
    any_database: ScratchDatabase, source: PostgresqlSource
) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE high PARTITION OF t FOR VALUES FROM (100) TO (1000)",
        "INSERT INTO t SELECT generate_series(0, 499)",
        "ANALYZE",
    )
    assert statistics_of(source).rows.value == 500


def test_tables_that_inherit_do_not_count_as_rows_of_their_parent(
    any_database: ScratchDatabase, source: PostgresqlSource
) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE child () INHERITS (t)",
        "INSERT INTO t VALUES (1)",
        "INSERT INTO child SELECT generate_series(10, 99)",
        "ANALYZE",
    )
    assert statistics_of(source).rows.value == 1


def test_changes_are_counted(any_database: ScratchDatabase, source: PostgresqlSource) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    assert statistics_of(source).changes.value == 0
    any_database.execute(
        "INSERT INTO t SELECT i, 0 FROM generate_series(1, 10) i",
        "UPDATE t SET n = 1 WHERE id <= 5",
        "DELETE FROM t WHERE id > 8",
    )
    # The server's sessions report what they did a moment later.
    wait_until(lambda: statistics_of(source).changes.value == 10 + 5 + 2, "the counters have what was changed")


def test_the_log_grows(any_database: ScratchDatabase, source: PostgresqlSource) -> None:
    first = source.statistics([])
    any_database.execute("CREATE TABLE t AS SELECT repeat('x', 1000) AS a FROM generate_series(1, 1000)")
    second = source.statistics([])
    assert (second.log_bytes.value or 0) - (first.log_bytes.value or 0) > 1_000_000
    assert second.log_kept_how == "max_slot_wal_keep_size is -1"
    assert (second.log_kept_bytes, second.log_kept_for) == (None, None)
    assert second.at > first.at


def test_no_lock_is_waited_for(any_database: ScratchDatabase, source: PostgresqlSource) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)", "ANALYZE")
    with any_database.connect() as other, other.transaction():
        other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        assert statistics_of(source).rows.value == 1


@pytest.mark.parametrize("key", [" PRIMARY KEY", ""])
def test_a_sample_has_at_most_so_many_rows_and_says_whether_these_are_all(
    any_database: ScratchDatabase, source: PostgresqlSource, key: str
) -> None:
    any_database.execute(f"CREATE TABLE t (id int{key})", "INSERT INTO t SELECT generate_series(1, 30)")
    schema = schema_of(source)
    some = source.sample(schema, 10)
    assert (some.rows.num_rows, some.is_whole) == (10, False)
    everything = source.sample(schema, 31)
    assert (sorted(everything.rows.column("id").to_pylist()), everything.is_whole) == (list(range(1, 31)), True)
    assert source.sample(schema, 5).rows.num_rows == 5


def test_a_sample_leaves_nothing_on_the_server(any_database: ScratchDatabase, source: PostgresqlSource) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 30)")
    query = "SELECT (SELECT count(*) FROM pg_replication_slots), (SELECT count(*) FROM pg_publication), pg_current_xact_id_if_assigned()"
    next_id = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8"
    before, ids = any_database.execute(query), any_database.execute(next_id)
    source.sample(schema_of(source), 10)
    assert (any_database.execute(query), any_database.execute(next_id)) == (before, ids), "no transaction wrote"

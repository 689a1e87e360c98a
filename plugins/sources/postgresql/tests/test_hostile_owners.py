"""A table's owner cannot run functions as the role that reads it, by what its name stands for or by the types of its columns."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from replicator.model.errors import ReplicatorError, SchemaConflictError
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import ChunkRequest
from replicator.plugins.verification import KeyRange
from replicator_source_postgresql.connecting import connection
from replicator_source_postgresql.source import PostgresqlSource
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testing.waiting import wait_until

T = TableId("public", "t")
MakeSource = Callable[..., PostgresqlSource]

# Seen even if the transaction that ran it is rolled back, and it may only read.
_EVIL = """
CREATE FUNCTION evil({argument} int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
  PERFORM pg_create_physical_replication_slot('evil_' || pg_backend_pid()); RETURN $1;
EXCEPTION WHEN duplicate_object THEN RETURN $1; END $$
"""
_SLOTS = "SELECT slot_name FROM pg_replication_slots WHERE slot_name LIKE 'evil%'"


def chunk(source: PostgresqlSource, schema: TableSchema) -> None:
    source.read_chunk(ChunkRequest(schema=schema, limit=10))


def keys(source: PostgresqlSource, schema: TableSchema) -> None:
    source.read_chunk(ChunkRequest(schema=schema, limit=10, keys=[("1",)]))


def whole(source: PostgresqlSource, schema: TableSchema) -> None:
    with source.read_whole(schema) as read:
        list(read.batches)
        read.identity()


def sample(source: PostgresqlSource, schema: TableSchema) -> None:
    source.sample(schema, 10)


def state(source: PostgresqlSource, schema: TableSchema) -> None:
    with source.open_state(schema, ["id", "v"]) as found:
        found.checksums(0)


DOORS = {door.__name__: door for door in (chunk, keys, whole, sample, state)}


@pytest.fixture(params=["refused", "locked"])
def guard(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How views are kept from being read: by the server; as on an older one, that cannot."""
    if request.param == "locked":
        monkeypatch.setattr(connection, "_REFUSING_VIEWS", ("no_such_setting", "on"))
    return str(request.param)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("door", DOORS)
def test_a_view_that_replaces_the_table_while_a_read_waits_is_not_read(
    database: ScratchDatabase, make_source: MakeSource, guard: str, door: str
) -> None:
    database.execute(_EVIL.format(argument=""))
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    database.execute("INSERT INTO t SELECT n, n FROM generate_series(1, 5) AS n")
    source = make_source(database)
    schema = source.describe([T])[T].schema
    DOORS[door](source, schema)
    errors: list[Exception] = []

    def read() -> None:
        try:
            DOORS[door](source, schema)
        except ReplicatorError as error:
            errors.append(error)

    reader = threading.Thread(target=read)
    with database.connect() as owner, owner.transaction():
        owner.execute("ALTER TABLE t RENAME TO kept")
        owner.execute("CREATE VIEW t AS SELECT id, evil(v) AS v FROM kept WHERE id > evil(0)")
        reader.start()
        wait_until(
            lambda: bool(database.execute("SELECT 1 FROM pg_locks WHERE NOT granted")), "the read to wait", every_s=0.02
        )
    reader.join()
    assert database.execute(_SLOTS) == []
    (error,) = errors
    assert isinstance(error, SchemaConflictError)


def test_constraints_of_a_key_s_domain_are_not_evaluated(
    any_database: ScratchDatabase, make_source: MakeSource
) -> None:
    database = any_database
    database.execute(_EVIL.format(argument=""))
    database.execute("CREATE DOMAIN own AS int")
    database.execute("CREATE TABLE t (id own PRIMARY KEY, v int)")
    database.execute("INSERT INTO t SELECT n, n FROM generate_series(1, 5) AS n")
    database.execute("ALTER DOMAIN own ADD CHECK (evil(VALUE) > -1) NOT VALID")
    source = make_source(database)
    schema = source.describe([T])[T].schema
    found = source.read_chunk(ChunkRequest(schema=schema, limit=10, after=("1",), upto=("4",)))
    assert found.rows.column("id").to_pylist() == [2, 3, 4]
    keys(source, schema)
    with source.open_state(schema, ["id", "v"]) as compared:
        within = KeyRange(columns=("id",), after=("1",), upto=("4",))
        assert sum(one.rows for one in compared.checksums(0, within=within).values()) == 3
    assert database.execute(_SLOTS) == []


@pytest.mark.parametrize("door", DOORS)
def test_constraints_of_partitions_are_not_evaluated(
    database: ScratchDatabase, make_source: MakeSource, door: str
) -> None:
    database.execute(_EVIL.format(argument=""))
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE p PARTITION OF t DEFAULT")
    # A function with constant arguments, which the planner evaluates when it looks at the constraint.
    database.execute("ALTER TABLE t ADD CHECK (v > -evil(1))")
    database.execute(f"SELECT pg_drop_replication_slot(slot_name) FROM ({_SLOTS}) AS made")  # as the owner
    source = make_source(database)
    schema = source.describe([T])[T].schema
    DOORS[door](source, schema)
    assert database.execute(_SLOTS) == []


@pytest.mark.parametrize("type_", ["(a own)", "RANGE (subtype = own)"])
def test_what_is_made_of_a_domain_is_no_key(database: ScratchDatabase, make_source: MakeSource, type_: str) -> None:
    database.execute("CREATE DOMAIN own AS int CHECK (VALUE > 0)")
    database.execute(f"CREATE TYPE made AS {type_}")
    database.execute("CREATE TABLE t (id made PRIMARY KEY, v int)")
    (problem,) = [p for p in make_source(database).check([T]) if p.table == str(T) and p.severity.value == "blocking"]
    assert "made cannot identify rows" in problem.message

"""States of tables that are verified under change tracking: what they saw, as the rounds of the log tell it, and what makes them void."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pyarrow as pa
import pyodbc
import pytest

from plugins.sources.sqlserver.tests.test_tracking_log import (
    TABLES,
    WIDE,
    A,
    B,
    World,
    model,
    statement,
    world,
)
from replicator.model.errors import SourceUnavailableError, TableError
from replicator.model.schema import TableSchema
from replicator.plugins.kit.canonical import digest_of
from replicator.plugins.source import PullLimits, Seen
from replicator_source_sqlserver.tracking.versions import spelled
from replicator_testbed.sqlserver.drivers import Driver, connect
from replicator_testing.source_harness import Delivered, classify
from replicator_testing.table_states import assert_ranges, assert_state, expected

__all__ = ["model", "world"]

COLUMNS = ("id", "n", "name", "note")


def schema_of(world: World) -> TableSchema:
    return world.source.describe([A])[A].schema


def batch_of(rows: Mapping[int, Mapping[str, object]], schema: TableSchema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows.values()), schema=pa.schema(list(schema.row_type)))


def id_of(key: object) -> str:
    return digest_of(f"{key},")


# -- what is asked -----------------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_a_state_has_the_rows_of_the_round_that_ends_at_its_version(world: World) -> None:
    """And stays as it is while rows change; nobody waits for it."""
    world(f"INSERT INTO {A} (id, n, name, note) VALUES (1, -5, N'ż ', NULL), (2, NULL, N'', N'x'), (30, 7, NULL, N'y')")
    world.round()
    schema = schema_of(world)
    with world.source.open_state(schema, COLUMNS) as state:
        rows = batch_of(world.rows[A], schema)
        world(f"UPDATE {A} SET id = id + 1, note = N'later'", f"DELETE FROM {A} WHERE id = 31")
        assert_state(state, rows, schema)
        assert_ranges(state, rows, schema, columns=1)
        assert state.texts([id_of(1)])[id_of(1)] == {"id": "1", "n": "-5", "name": "3:ż ", "note": None}
        assert state.identity() == world.source.describe([A])[A].identity


# -- what a state saw --------------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_a_round_that_a_state_saw_in_part_may_have_been_seen(world: World) -> None:
    """It ends above the state's version, and has a row that the state has, too."""
    world(f"INSERT INTO {A} (id) VALUES (1)")
    world.round()
    world(f"INSERT INTO {A} (id) VALUES (2)")
    with world.source.open_state(schema_of(world), COLUMNS) as state:
        world(f"INSERT INTO {A} (id) VALUES (3)")
        delivered = Delivered()
        while not delivered.transactions:
            delivered.add(world.reader.pull(WIDE))
        assert sorted(change.row["id"] for change in delivered.changes if change.row is not None) == [2, 3]
        assert classify(state.visibility, delivered.transactions) == [Seen.UNKNOWN]
        # Also where a version stands in front of another number.
        assert classify(state.visibility, [spelled(1), spelled(2), f"{spelled(2)}:7"]) == [Seen.SEEN] * 3
        assert {row["id"] for row in state.rows([""]).to_pylist()} == {id_of(1), id_of(2)}


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("seed", "count"), [(1, 6), *(pytest.param(seed, 150, marks=pytest.mark.matrix) for seed in (2, 3))]
)
def test_what_a_state_has_beyond_a_barrier_is_told_by_rounds_that_it_may_have_seen(
    world: World, seed: int, count: int
) -> None:
    """As a verification does it: a barrier, the state, a later barrier. Whatever differs was changed in between, by what the log says."""
    draw = random.Random(seed)
    writer = connect(Driver.FREETDS, world.model.address)
    schema = schema_of(world)
    moved = 0

    def write() -> None:
        for _ in range(draw.randint(0, 3)):
            try:
                writer.execute(statement(draw))
            except pyodbc.IntegrityError:
                continue

    for number in range(count):
        write()
        world.round(PullLimits(rows=draw.randint(1, 9), bytes=64 << 20, wait_s=0.0))
        barrier = dict(expected(batch_of(world.rows[A], schema), schema))
        # So that something differs, whatever is drawn.
        writer.execute(f"INSERT INTO {A} (id) VALUES ({1000 + number})")
        write()
        with world.source.open_state(schema, COLUMNS) as state:
            write()
            has = {row["id"]: row["hash"] for row in state.rows([""]).to_pylist()}
            mark, delivered, touched = world.source.mark(), Delivered(), set[str]()
            while mark not in delivered.marks:
                batch = world.reader.pull(PullLimits(rows=draw.randint(1, 4), bytes=64 << 20, wait_s=0.0))
                part = Delivered()
                part.add(batch)
                touched |= {
                    id_of(image["id"])
                    for change in part.changes
                    if change.table == A
                    and classify(state.visibility, [change.transaction]) != [Seen.UNSEEN]
                    and (image := change.row or change.before) is not None
                }
                world.take(delivered, batch)
                if draw.random() < 0.3:
                    write()
        differing = {id_ for id_, _ in barrier.items() ^ has.items()}
        assert differing <= touched
        moved += len(differing)
    assert moved, "rows were changed in between"
    writer.close()


# -- what makes a state void -------------------------------------------------------------------------------------------

Act = Callable[[World], None]


def truncated(world: World) -> None:
    world(f"TRUNCATE TABLE {A}")


def altered(world: World) -> None:
    world(f"ALTER TABLE {A} ADD more int NULL")


def dropped(world: World) -> None:
    world(f"DROP TABLE {A}")


def made_again(world: World) -> None:
    world(f"DROP TABLE {A}")
    world.create(A)


def untracked(world: World) -> None:
    world(f"ALTER TABLE {A} DISABLE CHANGE_TRACKING")


def tracked_again(world: World) -> None:
    """What was changed meanwhile no round tells."""
    world(f"INSERT INTO {B} (id) VALUES (1)", f"ALTER TABLE {A} DISABLE CHANGE_TRACKING", f"UPDATE {A} SET n = 8")
    world(f"ALTER TABLE {A} ENABLE CHANGE_TRACKING")


@pytest.mark.matrix
@pytest.mark.sampled(1)
@pytest.mark.parametrize("act", [truncated, altered, dropped, made_again, untracked, tracked_again])
@pytest.mark.parametrize("is_open", [True, False], ids=["amid", "before"])
def test_a_table_that_is_another_than_the_host_accepted_is_void(world: World, act: Act, is_open: bool) -> None:
    world(f"INSERT INTO {A} (id) VALUES (1)")
    world.round()
    accepted = world.source.describe([A])[A]
    if not is_open:
        act(world)
    try:
        with world.source.open_state(accepted.schema, COLUMNS) as state:
            if is_open:
                act(world)
            assert state.identity() != accepted.identity or world.source.describe([A])[A].schema != accepted.schema
    except TableError:
        assert act is dropped


@pytest.mark.matrix
def test_rows_of_a_table_that_was_altered_amid_are_not_read(world: World) -> None:
    world(f"INSERT INTO {A} (id) VALUES (1)")
    schema = schema_of(world)

    def compare() -> None:
        with world.source.open_state(schema, COLUMNS) as state:
            assert state.checksums(0)[""].rows == 1
            world(f"TRUNCATE TABLE {A}")
            state.checksums(0)

    with pytest.raises(SourceUnavailableError) as raised:
        compare()
    assert raised.value.code == "table_changed_under_snapshot"


@pytest.mark.matrix
def test_a_state_does_not_need_what_cleanup_removes(world: World) -> None:
    world(f"INSERT INTO {A} (id) VALUES (1)", f"INSERT INTO {A} (id) VALUES (2)")
    with world.source.open_state(schema_of(world), COLUMNS) as state:
        world.tracking.raise_min_valid(2)
        world.tracking.delete_below()
        assert state.checksums(0)[""].rows == 2
        assert state.identity() == world.source.describe([A])[A].identity


@pytest.mark.matrix
def test_what_a_database_has_to_allow(world: World) -> None:
    schema = schema_of(world)
    world("ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION OFF")
    with pytest.raises(TableError) as raised, world.source.open_state(schema, COLUMNS):
        pass
    assert (raised.value.code, raised.value.table) == ("snapshot_isolation_off", str(A))
    world("ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON")
    world(*(f"ALTER TABLE {table} DISABLE CHANGE_TRACKING" for table in TABLES))
    world("ALTER DATABASE CURRENT SET CHANGE_TRACKING = OFF")
    with pytest.raises(SourceUnavailableError) as unavailable, world.source.open_state(schema, COLUMNS):
        pass
    assert unavailable.value.code == "change_tracking_off"

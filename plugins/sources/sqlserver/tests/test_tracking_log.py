"""The log of change tracking on the model: rounds against the tables, readers that die in them, and changes that are lost."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyodbc
import pytest

from plugins.sources.sqlserver.tests.conftest import config_of
from replicator.model.errors import CorruptStreamError, OffsetExpiredError, SourceUnavailableError
from replicator.model.events import DDLOperation
from replicator.model.offset import Offset
from replicator.model.schema import TableId
from replicator.plugins.source import ChunkRequest, LogBatch, LogReader, PullLimits, SourceContext
from replicator_source_sqlserver.catalogue import discovery
from replicator_source_sqlserver.source import SqlServerSource
from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.drivers import Driver, connect
from replicator_testbed.sqlserver.model import SqlServerModel
from replicator_testing.source_harness import Change, Delivered

A, B = TABLES = TableId("dbo", "a"), TableId("dbo", "b")
KEYS = 12
WIDE = PullLimits(rows=10_000, bytes=64 << 20, wait_s=0.0)
NARROW = PullLimits(rows=1, bytes=64 << 20, wait_s=0.0)
Rows = dict[TableId, dict[int, Mapping[str, Any]]]


class World:
    """A tracked database with two tables, a source, and what the log has said of the tables."""

    def __init__(self, model: SqlServerModel, **settings: Any) -> None:
        self.model, self.settings = model, settings
        self.tracking = model.database.tracking
        self.sql = connect(Driver.FREETDS, model.address)
        self._run(
            "ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON (CHANGE_RETENTION = 7 DAYS, AUTO_CLEANUP = ON)",
            "ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON",
        )
        for table in TABLES:
            self.create(table)
        self.stack = contextlib.ExitStack()
        self.stack.callback(self.sql.close)
        self.open(None)
        self.rows: Rows = {table: {} for table in TABLES}
        self.offset = self.start

    def _run(self, *statements: str) -> None:
        for statement in statements:
            self.sql.execute(statement)

    __call__ = _run

    def create(self, table: TableId) -> None:
        self._run(
            f"CREATE TABLE {table} (id int NOT NULL PRIMARY KEY, n int NULL, name nvarchar(20) NULL, note nvarchar(max) NULL)",
            f"ALTER TABLE {table} ENABLE CHANGE_TRACKING",
        )

    def open(self, after: Offset | None) -> None:
        """A new source and reader, as another process would make them."""
        config = config_of(self.model, Driver.FREETDS, capture="change_tracking", **self.settings)
        self.source = SqlServerSource(config, SourceContext(replicator="shop", uuid="u1", epoch=1))
        self.stack.callback(self.source.close)
        found = self.source.describe(TABLES)
        self.source.accept({table: d.identity for table, d in found.items()})
        self.start = self.source.prepare(TABLES, is_first=after is None)
        self.reader: LogReader = self.source.open_log(after or self.start, {t: d.schema for t, d in found.items()})

    def die(self) -> None:
        """The reader's process ends, and another one continues behind what is durable."""
        self.reader.close()
        self.source.close()
        self.open(self.offset)

    def until(self, what: Callable[[LogBatch], bool], limits: PullLimits = WIDE) -> LogBatch:
        for _ in range(200):
            batch = self.reader.pull(limits)
            if what(batch):
                return batch
        raise AssertionError("it did not come within 200 pulls")

    def round(self, limits: PullLimits = WIDE) -> Delivered:
        """Everything up to now, applied to `rows` where a transaction ends."""
        delivered = Delivered()
        mark = self.source.mark()
        while mark not in delivered.marks:
            self.take(delivered, self.reader.pull(limits))
        return delivered

    def take(self, delivered: Delivered, batch: LogBatch) -> None:
        assert not batch.table_errors
        delivered.add(batch)
        if batch.offset is not None:
            self.offset = batch.offset
        if batch.open_transaction is None:
            self.apply(delivered)

    def apply(self, delivered: Delivered) -> None:
        for change in delivered.changes:
            rows = self.rows[change.table]
            if change.row is None:
                assert change.before is not None
                rows.pop(change.before["id"], None)
            else:
                rows[change.row["id"]] = dict(change.row)
        delivered.changes.clear()

    def tables(self) -> Rows:
        """What the tables are, by chunks of the source."""
        found: Rows = {}
        for table, description in self.source.describe(TABLES).items():
            chunk = self.source.read_chunk(ChunkRequest(schema=description.schema, limit=10_000))
            found[table] = {row["id"]: row for row in chunk.rows.to_pylist()}
        return found


@pytest.fixture
def model(postgres: PostgresServer) -> Iterator[SqlServerModel]:
    with SqlServerModel(postgres) as model:
        yield model


@pytest.fixture
def world(model: SqlServerModel) -> Iterator[World]:
    world = World(model)
    with world.stack:
        yield world


def statement(draw: random.Random) -> str:
    table = draw.choice(TABLES)
    low, high = sorted((draw.randint(1, KEYS), draw.randint(1, KEYS)))
    text = f"N'{draw.choice('abcż') * draw.randint(1, 5)}'"
    return draw.choice(
        (
            f"DELETE FROM {table} WHERE id BETWEEN {low} AND {high}",
            (
                f"IF NOT EXISTS (SELECT 1 FROM {table} WHERE id = {low}) INSERT INTO {table} (id, n, name, note)"
                f" VALUES ({low}, {high}, {text}, REPLICATE({text}, 50))"
            ),
            (
                f"INSERT INTO {table} (id, n, name) SELECT {KEYS} + s.id, s.n, s.name FROM {table} s"
                f" WHERE s.id <= {KEYS} AND NOT EXISTS (SELECT 1 FROM {table} x WHERE x.id = {KEYS} + s.id)"
            ),
            f"UPDATE {table} SET n = {high}, note = {text} WHERE id BETWEEN {low} AND {high}",
            f"UPDATE {table} SET id = id + 1000 WHERE id = {low}",
            f"UPDATE {table} SET id = -id",
        )
    )


def write(connection: pyodbc.Connection, draw: random.Random) -> None:
    """One transaction; one that breaks a key is rolled back."""
    try:
        for _ in range(draw.randint(1, 5)):
            connection.execute(statement(draw))
    except pyodbc.IntegrityError:
        connection.rollback()
        return
    (connection.commit if draw.random() < 0.9 else connection.rollback)()


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("seed", "count"), [(1, 30), *(pytest.param(seed, 400, marks=pytest.mark.matrix) for seed in (2, 3, 4))]
)
def test_random_transactions_and_readers_that_die_at_any_page(world: World, seed: int, count: int) -> None:
    """Where a transaction of the log ends the rows are those of one commit, and in the end those of the tables."""
    draw = random.Random(seed)
    writer = connect(Driver.FREETDS, world.model.address)
    writer.autocommit = False
    history: list[Rows] = [world.tables()]
    deaths = 0
    for _ in range(count):
        write(writer, draw)
        history.append(world.tables())
        if draw.random() < 0.4:
            limits = PullLimits(rows=draw.randint(1, 9), bytes=64 << 20, wait_s=0.0)
            delivered = Delivered()
            for _ in range(draw.randint(1, 6)):
                world.take(delivered, world.reader.pull(limits))
                if delivered.open_transaction is None:
                    assert world.rows in history, "a state that nobody committed"
                    del history[: history.index(world.rows)]
                elif draw.random() < 0.5:
                    # Committed while the round runs: it belongs to the next.
                    write(writer, draw)
                    history.append(world.tables())
            if delivered.open_transaction is not None or draw.random() < 0.3:
                deaths += delivered.open_transaction is not None
                world.die()
    world.round(PullLimits(rows=3, bytes=64 << 20, wait_s=0.0))
    assert world.rows == world.tables()
    assert deaths > 2
    writer.close()


@pytest.mark.matrix
def test_a_reader_that_dies_at_each_page_of_a_round_loses_and_doubles_nothing(world: World) -> None:
    world(*(f"INSERT INTO {table} (id, n) VALUES (1, 1), (2, 2), (3, 3)" for table in TABLES))
    pages, start = 6, world.start
    for page in range(1, pages):
        delivered = Delivered()
        for _ in range(page):
            delivered.add(world.reader.pull(NARROW))
        assert (len(delivered.changes), delivered.offsets) == (page, [])
        world(f"UPDATE {A} SET n = n + 1 WHERE id = 1")
        world.die()
        assert world.offset == start
    world.round(NARROW)
    assert world.rows == world.tables()
    assert world.rows[A][1]["n"] == pages


@pytest.mark.matrix
def test_what_a_later_page_is_told_besides_takes_nothing_from_the_round(world: World) -> None:
    """What the server tells is relative to the version that it is asked for: a later page may have a row that was not counted."""
    world.tracking.hide_passing_rows()
    world(*(f"INSERT INTO {A} (id) VALUES ({number})" for number in (1, 2, 3)))
    world(f"INSERT INTO {B} (id) VALUES (1)", f"DELETE FROM {A} WHERE id = 2", f"INSERT INTO {A} (id) VALUES (4)")
    world.round(NARROW)
    assert world.rows == world.tables()
    assert set(world.rows[A]) == {1, 3, 4}


@pytest.mark.matrix
def test_a_page_is_bounded_by_bytes(world: World) -> None:
    """Rows with large values: not all of a table's stand in memory at once."""
    for number in range(40):
        world(f"INSERT INTO {A} (id, note) VALUES ({number}, REPLICATE(CAST(N'x' AS nvarchar(max)), 100000))")
    sizes = []
    while True:
        batch = world.reader.pull(PullLimits(rows=10_000, bytes=400_000, wait_s=0.0))
        sizes += [changes.rows.num_rows for changes in batch.changes]
        if batch.offset is not None:
            break
    assert sum(sizes) == 40
    assert max(sizes) <= 16


@pytest.mark.matrix
def test_version_zero_is_a_position(world: World) -> None:
    assert world.start.value["version"] == 0
    world(f"INSERT INTO {A} (id) VALUES (1)")
    assert world.round().offsets[-1][0].value["version"] == 1


@pytest.mark.matrix
def test_snapshots_that_are_not_allowed_any_more_are_waited_for(world: World) -> None:
    world("ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION OFF", f"INSERT INTO {A} (id) VALUES (1)")
    with pytest.raises(SourceUnavailableError) as refused:
        world.reader.pull(WIDE)
    assert refused.value.code == "snapshot_isolation_off"
    world("ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON")
    world.die()
    world.round()
    assert world.rows == world.tables()


# -- what is lost ------------------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_what_cleanup_has_removed_is_read_again(world: World) -> None:
    """Of the table that lost changes, and of no other; and the position moves on."""
    world(f"INSERT INTO {A} (id) VALUES (1)", f"INSERT INTO {B} (id) VALUES (1)", f"INSERT INTO {A} (id) VALUES (2)")
    world.tracking.raise_min_valid(1, "a")
    world.tracking.delete_below()
    batch = world.until(lambda batch: bool(batch.unlogged))
    assert set(batch.unlogged) == {A}
    assert batch.transactions.num_rows == 1
    delivered = world.round()
    assert delivered.offsets[-1][0].value["version"] == 3
    world(f"INSERT INTO {A} (id) VALUES (3)")
    assert not world.until(lambda batch: batch.offset is not None).unlogged


@pytest.mark.matrix
def test_cleanup_amid_a_round_is_noticed_behind_it(world: World) -> None:
    world(f"INSERT INTO {A} (id) VALUES (1), (2), (3)", f"INSERT INTO {B} (id) VALUES (1)")
    first = world.reader.pull(NARROW)
    assert first.open_transaction is not None
    world.tracking.raise_min_valid(2, "a")
    batch = world.until(lambda batch: batch.offset is not None)
    assert set(batch.unlogged) == {A}


@pytest.mark.matrix
def test_an_idle_table_is_not_lost_by_cleanup(world: World) -> None:
    world(f"INSERT INTO {A} (id) VALUES (1)")
    for number in range(2, 5):
        world(f"INSERT INTO {B} (id) VALUES ({number})")
        world.round()
        world.tracking.raise_min_valid(number)
        world.tracking.delete_below()
        world(f"UPDATE {B} SET n = {number}")
        assert not world.until(lambda batch: batch.offset is not None).unlogged


@pytest.mark.matrix
def test_a_truncated_table_is_read_again(world: World) -> None:
    world(f"INSERT INTO {A} (id) VALUES (1)")
    world.round()
    before = world.source.describe([A])[A].identity
    world(f"TRUNCATE TABLE {A}", f"INSERT INTO {A} (id) VALUES (2)")
    assert set(world.until(lambda batch: bool(batch.unlogged)).unlogged) == {A}
    identity = world.source.describe([A])[A].identity
    assert before.is_redefined_in(identity)
    world.source.accept({A: identity})
    world(f"INSERT INTO {A} (id) VALUES (3)")
    assert not world.until(lambda batch: batch.offset is not None).unlogged


@pytest.mark.matrix
def test_a_table_truncated_while_nobody_looked_is_read_again(world: World) -> None:
    """The host has accepted it as it was before."""
    world(f"INSERT INTO {A} (id) VALUES (1)")
    world.round()
    identities = {table: d.identity for table, d in world.source.describe(TABLES).items()}
    world.reader.close()
    world(f"TRUNCATE TABLE {A}")
    world.source.accept(identities)
    world.reader = world.source.open_log(world.offset, {t: d.schema for t, d in world.source.describe(TABLES).items()})
    assert set(world.until(lambda batch: bool(batch.unlogged)).unlogged) == {A}


@pytest.mark.matrix
def test_tracking_that_was_switched_off_and_on_has_the_table_read_again(world: World) -> None:
    world(f"INSERT INTO {A} (id) VALUES (1)")
    world.round()
    world(f"ALTER TABLE {A} DISABLE CHANGE_TRACKING", f"DELETE FROM {A}", f"ALTER TABLE {A} ENABLE CHANGE_TRACKING")
    world(f"INSERT INTO {B} (id) VALUES (1)", f"TRUNCATE TABLE {B}")
    assert set(world.until(lambda batch: bool(batch.unlogged)).unlogged) == {A, B}


@pytest.mark.matrix
def test_it_is_noticed_too_where_no_version_passed_in_between(world: World) -> None:
    world(f"INSERT INTO {A} (id) VALUES (1)")
    world.round()
    again = (f"ALTER TABLE {A} DISABLE CHANGE_TRACKING", f"DELETE FROM {A}", f"ALTER TABLE {A} ENABLE CHANGE_TRACKING")
    before = world.source.describe([A])[A].identity
    world(*again)
    assert before.is_redefined_in(world.source.describe([A])[A].identity)
    world(f"INSERT INTO {B} (id) VALUES (1)")
    assert set(world.until(lambda batch: bool(batch.unlogged)).unlogged) == {A}
    world(*again)
    world.die()
    assert before.is_redefined_in(world.source.describe([A])[A].identity)


@pytest.mark.matrix
def test_tracking_that_was_switched_off_fails_the_table_alone_and_a_snapshot_takes_it_up_again(world: World) -> None:
    world(f"ALTER TABLE {A} DISABLE CHANGE_TRACKING", f"INSERT INTO {B} (id) VALUES (1)")
    batch = world.until(lambda batch: bool(batch.table_errors))
    assert {table: error.code for table, error in batch.table_errors.items()} == {A: "table_not_tracked"}
    assert "ENABLE CHANGE_TRACKING" in (batch.table_errors[A].action or "")
    assert batch.offset is not None
    world(f"ALTER TABLE {A} ENABLE CHANGE_TRACKING")
    world.source.accept({A: world.source.describe([A])[A].identity})
    world(f"INSERT INTO {A} (id) VALUES (7)")
    delivered = Delivered()
    delivered.add(world.until(lambda batch: batch.events > 0))
    assert [(c.table, c.row and c.row["id"]) for c in delivered.changes] == [(A, 7)]


@pytest.mark.matrix
def test_a_column_that_came_since_the_table_was_described_is_told_by_the_log(world: World) -> None:
    """The host accepted the table as it was described; rows with one column more would contradict that."""
    found = world.source.describe([A])
    world(f"ALTER TABLE {A} ADD more int NULL")
    assert world.source.describe([A])[A].schema != found[A].schema
    world.source.accept({A: found[A].identity})
    world(f"INSERT INTO {A} (id, more) VALUES (1, 7)")
    delivered = Delivered()
    while not delivered.changes:
        delivered.add(world.until(lambda batch: batch.events > 0))
    assert [c.row and c.row["more"] if isinstance(c, Change) else str(c.operation) for c in delivered.events] == [
        "ALTER_TABLE",
        7,
    ]


@pytest.mark.matrix
def test_managed_tracking_is_switched_on_again_and_the_table_read_again(model: SqlServerModel) -> None:
    world = World(model, manage_capture=True)
    with world.stack:
        world(f"ALTER TABLE {A} DISABLE CHANGE_TRACKING")
        assert set(world.until(lambda batch: bool(batch.unlogged)).unlogged) == {A}
        world(f"INSERT INTO {A} (id) VALUES (1)")
        assert not world.until(lambda batch: batch.offset is not None).table_errors


@pytest.mark.matrix
def test_a_database_that_is_behind_us_was_restored(world: World) -> None:
    world.reader.close()
    schemas = {t: d.schema for t, d in world.source.describe(TABLES).items()}
    world.reader = world.source.open_log(Offset.of({"version": 5}), schemas)
    with pytest.raises(OffsetExpiredError) as raised:
        world.reader.pull(WIDE)
    assert raised.value.code == "offset_expired"
    with pytest.raises(CorruptStreamError):
        world.source.open_log(Offset.of({"lsn": "0x0"}), schemas)


# -- definitions -------------------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_a_column_that_came_and_one_that_went_are_events_with_both_shapes(world: World) -> None:
    world(f"INSERT INTO {A} (id, n) VALUES (1, 1)")
    world.round()
    world(f"ALTER TABLE {A} ADD more int NULL", f"UPDATE {A} SET more = 5", f"ALTER TABLE {A} DROP COLUMN n")
    batch = world.until(lambda batch: bool(batch.ddl))
    (event,) = batch.ddl
    assert (event.operation, event.table) == (DDLOperation.ALTER_TABLE, A)
    assert event.before is not None
    assert event.schema is not None
    assert [c.name for c in event.before.columns] == ["id", "n", "name", "note"]
    assert [c.name for c in event.schema.columns] == ["id", "name", "note", "more"]
    delivered = world.round()
    assert delivered.ddl == []
    assert world.rows[A] == {1: {"id": 1, "name": None, "note": None, "more": 5}}


@pytest.mark.matrix
def test_a_column_that_cannot_be_replicated_fails_its_table_alone(world: World) -> None:
    world(
        f"ALTER TABLE {A} ADD v sql_variant NULL",
        f"INSERT INTO {A} (id) VALUES (1)",
        f"INSERT INTO {B} (id) VALUES (1)",
    )
    batch = world.until(lambda batch: batch.offset is not None)
    assert {table: error.code for table, error in batch.table_errors.items()} == {A: "unsupported_type"}
    assert {change.schema.table for change in batch.changes} == {B}


@pytest.mark.matrix
def test_a_table_altered_amid_a_round_ends_it_and_it_is_read_again_in_the_new_shape(world: World) -> None:
    world(f"INSERT INTO {A} (id, n) VALUES (1, 1), (2, 2), (3, 3)", f"INSERT INTO {B} (id) VALUES (1)")
    assert world.reader.pull(NARROW).open_transaction is not None
    world(f"ALTER TABLE {A} ADD more int NULL")
    with pytest.raises(SourceUnavailableError) as raised:
        world.until(lambda _: False, NARROW)
    assert raised.value.code == "table_changed_under_snapshot"
    world.die()
    world.round(NARROW)
    assert world.rows == world.tables()
    assert set(world.rows[A][1]) == {"id", "n", "name", "note", "more"}


@pytest.mark.matrix
def test_a_table_altered_behind_its_last_page_ends_the_round_too(world: World) -> None:
    world(f"INSERT INTO {A} (id, n) VALUES (1, 1)", f"INSERT INTO {B} (id) VALUES (1), (2)")
    assert world.reader.pull(NARROW).open_transaction is not None
    world(f"ALTER TABLE {A} DROP COLUMN name")
    with pytest.raises(SourceUnavailableError) as raised:
        world.until(lambda _: False, NARROW)
    assert raised.value.code == "table_changed_under_snapshot"


@pytest.mark.matrix
def test_a_table_that_is_dropped_while_the_catalogue_is_read_is_dropped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.round()
    read, drops = discovery.read_objects, [f"DROP TABLE {A}"]

    def read_then_drop(*arguments: Any, **more: Any) -> Any:
        found = read(*arguments, **more)
        world(*(drops.pop() for _ in drops[:]))
        return found

    monkeypatch.setattr(discovery, "read_objects", read_then_drop)
    world(f"INSERT INTO {B} (id) VALUES (1)")
    batch = world.until(lambda b: bool(b.ddl or b.table_errors))
    assert dict(batch.table_errors) == {}
    assert [(e.operation, e.table) for e in batch.ddl] == [(DDLOperation.DROP_TABLE, A)]


@pytest.mark.matrix
def test_a_dropped_table_is_an_event_also_where_another_has_its_name(world: World) -> None:
    world(f"DROP TABLE {A}")
    world.create(A)
    world(f"INSERT INTO {A} (id) VALUES (1)", f"INSERT INTO {B} (id) VALUES (1)")
    batch = world.until(lambda batch: bool(batch.ddl))
    assert [(event.operation, event.table) for event in batch.ddl] == [(DDLOperation.DROP_TABLE, A)]
    assert {change.schema.table for change in world.until(lambda batch: batch.offset is not None).changes} == {B}


@pytest.mark.matrix
def test_a_renamed_table_is_followed_by_its_number(world: World) -> None:
    world("EXEC sp_rename N'dbo.a', N'c'", "INSERT INTO dbo.c (id) VALUES (1)")
    assert world.source.locate(TABLES) == {A: TableId("dbo", "c")}
    delivered = Delivered()
    delivered.add(world.until(lambda batch: batch.offset is not None))
    assert [(c.table, c.row and c.row["id"]) for c in delivered.changes] == [(A, 1)]


@pytest.mark.matrix
def test_a_table_that_may_not_be_read_any_more_fails_alone(model: SqlServerModel, world: World) -> None:
    world(f"INSERT INTO {A} (id) VALUES (1)", f"INSERT INTO {B} (id) VALUES (1)", f"DENY SELECT ON {A} TO app")
    batch = world.until(lambda batch: batch.offset is not None)
    assert {table: error.code for table, error in batch.table_errors.items()} == {A: "access_denied"}
    assert {change.schema.table for change in batch.changes} == {B}

"""A database that is restored counts on from an earlier state: what was read behind that never happened in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest

from plugins.sources.sqlserver.tests.conftest import config_of
from replicator.model.errors import LogGapError
from replicator.model.offset import Offset
from replicator.model.schema import TableId
from replicator.plugins.source import LogReader, PullLimits, SourceContext
from replicator_source_sqlserver.cdc.position import Position
from replicator_source_sqlserver.source import SqlServerSource
from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.drivers import Driver, connect
from replicator_testbed.sqlserver.model import SqlServerModel

Capture = Literal["cdc", "change_tracking"]
T = TableId("dbo", "t")
LIMITS = PullLimits(rows=100, bytes=1 << 20, wait_s=0.0)
SETUP = {
    "cdc": (
        "EXEC sys.sp_cdc_enable_db",
        "EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', @source_name = N't', @role_name = NULL, @supports_net_changes = 0",
    ),
    "change_tracking": (
        "ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON (CHANGE_RETENTION = 7 DAYS, AUTO_CLEANUP = ON)",
        "ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON",
        "ALTER TABLE dbo.t ENABLE CHANGE_TRACKING",
    ),
}


class World:
    def __init__(self, model: SqlServerModel, capture: Capture) -> None:
        self.model = model
        self.sql = connect(Driver.FREETDS, model.address)
        for statement in ("CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, n int NULL)", *SETUP[capture]):
            self.sql.execute(statement)
        self.change(1)
        self.capture = capture
        self.connect(Driver.FREETDS)
        self.start = self.source.prepare([T], is_first=True)

    def connect(self, driver: Driver) -> None:
        config = config_of(self.model, driver, capture=self.capture)
        self.source = SqlServerSource(config, SourceContext(replicator="shop", uuid="u1", epoch=1))

    def change(self, id_: int) -> None:
        self.sql.execute(f"INSERT INTO dbo.t (id, n) VALUES ({id_}, 0)")
        self.model.capture.scan_all()

    def open(self, after: Offset) -> LogReader:
        return self.source.open_log(after, {t: d.schema for t, d in self.source.describe([T]).items()})

    def restore(self) -> None:
        """Another recovery fork; that it has other rows does not matter, nobody may read them."""
        self.model.database.execute("UPDATE sqlserver.database SET recovery_fork_guid = gen_random_uuid()")

    def last_offset(self, reader: LogReader) -> Offset:
        for _ in range(200):
            if (offset := reader.pull(LIMITS).offset) is not None:
                return offset
        raise AssertionError("no offset came")


@pytest.fixture(params=list(SETUP))
def world(postgres: PostgresServer, request: pytest.FixtureRequest) -> Iterator[World]:
    with SqlServerModel(postgres) as model:
        world = World(model, request.param)
        yield world
        world.source.close()
        world.sql.close()


@pytest.mark.matrix
@pytest.mark.sampled(1)
def test_a_position_in_another_history_is_refused(world: World) -> None:
    """Also where the database has counted past the position since: its numbers do not show it."""
    reader = world.open(world.start)
    world.change(2)
    offset = world.last_offset(reader)
    reader.close()
    world.open(offset).close()
    world.restore()
    for position in (world.start, offset):
        with pytest.raises(LogGapError) as refused:
            world.open(position)
        assert refused.value.code == "other_history"


@pytest.mark.matrix
def test_a_database_that_is_restored_before_the_log_is_read_is_noticed(world: World) -> None:
    reader = world.open(world.start)
    world.restore()
    world.change(2)
    with pytest.raises(LogGapError) as refused:
        reader.pull(LIMITS)
    assert refused.value.code == "other_history"
    reader.close()


@pytest.mark.sampled(1)
def test_a_restored_database_is_the_same_source(world: World) -> None:
    """So that a new position in the log can be asked for."""
    before = world.source.identity()
    world.restore()
    assert world.source.identity() == before


@pytest.mark.matrix
def test_an_offset_without_a_history_gets_one(world: World) -> None:
    value = world.start.value
    del value["history"]
    world.change(2)
    reader = world.open(Offset.of(value))
    assert world.last_offset(reader).value["history"] == world.start.value["history"]
    reader.close()


def hide_forks(world: World) -> None:
    """Azure SQL Database has none; elsewhere they can be hidden from an account."""
    world.model.database.execute(
        "CREATE OR REPLACE VIEW sys.database_recovery_status AS SELECT 5 AS database_id, family_guid, recovery_fork_guid"
        " FROM sqlserver.database WHERE false"
    )


@pytest.mark.matrix
def test_where_forks_are_not_shown_a_restore_is_told_by_when_the_database_was_made(world: World) -> None:
    hide_forks(world)
    assert set(world.source.identity()) >= {"database", "created"}
    world.open(world.start).close()
    world.model.database.execute("UPDATE sqlserver.database SET create_date = create_date + interval '1 day'")
    with pytest.raises(LogGapError) as refused:
        world.open(world.start)
    assert refused.value.code == "other_history"


@pytest.mark.matrix
def test_a_new_name_of_the_database_is_no_other_history(world: World) -> None:
    """It gets another date, which does not matter where forks are shown."""
    world.model.database.execute("UPDATE sqlserver.database SET create_date = create_date + interval '1 day'")
    world.open(world.start).close()


@pytest.mark.matrix
@pytest.mark.parametrize("digits", ["003", "007"])
def test_another_driver_has_the_same_times(world: World, digits: str) -> None:
    """`datetime` counts 1/300 s: FreeTDS gives .003 s, Microsoft's driver .003333 s, which earlier versions stored."""
    hide_forks(world)
    moment = f"2026-01-02 03:04:05.{digits}"
    world.model.database.execute(f"UPDATE sqlserver.database SET create_date = timestamp '{moment}'")
    if world.capture == "cdc":
        world.model.database.execute(f"UPDATE sqlserver.cdc_instances SET create_date = timestamp '{moment}'")
    found = {}
    for driver in Driver:
        world.source.close()
        world.connect(driver)
        found[driver] = world.source.prepare([T], is_first=True).value
    by_freetds, by_microsoft = found[Driver.FREETDS], found[Driver.MICROSOFT]
    assert by_freetds["history"] == by_microsoft["history"] == {"created": f"2026-01-02T03:04:05.{digits}000"}
    earlier = f"2026-01-02T03:04:05.{'003333' if digits == '003' else '006667'}"
    stored = {**by_freetds, "history": {"created": earlier}}
    if world.capture == "cdc":
        assert by_freetds["instances_until"] == by_microsoft["instances_until"] == f"2026-01-02T03:04:05.{digits}000"
        stored["instances_until"] = earlier
        assert Position.of(Offset.of(stored)) == Position.of(Offset.of(by_freetds))
    world.open(Offset.of(stored)).close()

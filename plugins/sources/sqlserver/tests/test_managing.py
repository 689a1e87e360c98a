"""`manage_capture: true`: capture instances come, are replaced and go by themselves, and only those that are ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from replicator.config import Secret
from replicator.model.errors import SourceUnavailableError
from replicator.model.events import DDLOperation
from replicator.model.offset import Offset
from replicator.model.schema import TableId
from replicator.plugins.source import PullLimits, SourceContext
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.source import SqlServerSource
from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.databases import MARKS, SqlServerDatabase, SqlServers, enable
from replicator_testing.source_harness import Change, Delivered
from replicator_testing.waiting import wait_until

T = TableId("dbo", "t")
WIDE = PullLimits(rows=1000, bytes=64 << 20, wait_s=0.2)


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[SqlServerDatabase]:
    with SqlServers(postgres=postgres).database() as database:
        database.execute("CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, name nvarchar(20) NULL)")
        yield database


@pytest.fixture
def source(database: SqlServerDatabase) -> Iterator[SqlServerSource]:
    block = {name: value for name, value in database.source.items() if name != "type"}
    config = SqlServerConfig(**block, password=Secret(database.server.password), manage_capture=True)
    source = SqlServerSource(config, SourceContext(replicator="shop", uuid="u1", epoch=1))
    yield source
    source.close()


def instances(database: SqlServerDatabase) -> list[str]:
    rows = database.execute("SELECT capture_instance FROM cdc.change_tables ORDER BY create_date, capture_instance")
    return [row[0] for row in rows if row[0] != MARKS.replace(".", "_")]


@pytest.mark.matrix
def test_a_table_without_an_instance_gets_one_and_a_new_column_another_one(
    database: SqlServerDatabase, source: SqlServerSource
) -> None:
    start = source.prepare([T], is_first=True)
    source.prepare([T], is_first=False)
    (first,) = instances(database)
    assert first.startswith("replicator_")
    reader = source.open_log(start, {T: source.describe([T])[T].schema})
    delivered = Delivered()

    def drain() -> None:
        mark = source.mark()
        while mark not in delivered.marks:
            batch = reader.pull(WIDE)
            assert not batch.table_errors
            delivered.add(batch)
            if batch.offset is not None:
                reader.acknowledge(batch.offset)

    database.execute("INSERT INTO dbo.t (id) VALUES (1)")
    drain()
    for number, column in enumerate(("one", "two", "three"), start=2):
        before = instances(database)
        database.execute(f"ALTER TABLE dbo.t ADD {column} int NULL")
        while instances(database) == before:
            drain()
        database.execute(f"INSERT INTO dbo.t (id, {column}) VALUES ({number}, 7)")
        drain()
    events = [e.row and e.row["id"] if isinstance(e, Change) else e.operation for e in delivered.events]
    altered = DDLOperation.ALTER_TABLE
    assert events == [1, altered, 2, altered, 3, altered, 4]
    last = delivered.changes[-1].row
    assert last is not None
    assert last["three"] == 7
    assert len(instances(database)) == 2
    reader.close()


@pytest.mark.matrix
def test_the_mark_table_is_captured_too_also_when_it_is_made_again(
    database: SqlServerDatabase, source: SqlServerSource
) -> None:
    database.execute("EXEC sys.sp_cdc_disable_table N'dbo', N'replicator_marks', N'all'")

    def prepared() -> Offset | None:
        try:
            return source.prepare([T], is_first=True)
        except SourceUnavailableError:
            return None

    start = wait_until(prepared, "the capture job has run since there are instances")
    assert len(instances(database)) == 2
    reader = source.open_log(start, {T: source.describe([T])[T].schema})

    def reach(mark: str) -> None:
        delivered = Delivered()
        while mark not in delivered.marks:
            delivered.add(reader.pull(WIDE))

    reach(source.mark())
    database.execute(
        f"DROP TABLE {MARKS}", f"CREATE TABLE {MARKS} (id int NOT NULL PRIMARY KEY, token varchar(64) NULL)"
    )
    source.mark()  # what waits for a token has the mark table captured
    database.execute("INSERT INTO dbo.t (id) VALUES (1)")
    while len(instances(database)) == 1:
        reader.pull(WIDE)
    reach(source.mark())
    reader.close()


@pytest.mark.matrix
def test_partitions_are_kept_from_being_switched(database: SqlServerDatabase, source: SqlServerSource) -> None:
    """Of a table that is not partitioned a server ignores the setting, and says so."""
    database.execute(
        "CREATE PARTITION FUNCTION by_id (int) AS RANGE RIGHT FOR VALUES (100)",
        "CREATE PARTITION SCHEME by_id AS PARTITION by_id ALL TO ([PRIMARY])",
        "CREATE TABLE dbo.parts (id int NOT NULL PRIMARY KEY) ON by_id(id)",
    )
    source.prepare([T, TableId("dbo", "parts")], is_first=True)
    of = "SELECT c.partition_switch FROM cdc.change_tables c JOIN sys.tables t ON t.object_id = c.source_object_id WHERE t.name = N'{}'"
    assert [tuple(row) for row in database.execute(of.format("parts"))] == [(False,)]
    assert [tuple(row) for row in database.execute(of.format("t"))] == [(True,)]


@pytest.mark.matrix
def test_a_name_that_is_taken_anywhere_in_the_database_is_left_alone(
    database: SqlServerDatabase, source: SqlServerSource
) -> None:
    ((number,),) = database.execute("SELECT object_id FROM sys.tables WHERE name = N't'")
    taken = f"replicator_u1_{number}_1"
    database.execute("CREATE TABLE dbo.other (id int NOT NULL PRIMARY KEY)", enable("other", taken.upper()))
    source.prepare([T], is_first=True)
    assert instances(database) == [taken.upper(), f"replicator_u1_{number}_2"]


@pytest.mark.matrix
def test_only_our_instances_are_dropped(database: SqlServerDatabase, source: SqlServerSource) -> None:
    """Another replicator's are not: its UUID is in their names."""
    database.execute("CREATE TABLE dbo.other (id int NOT NULL PRIMARY KEY)", enable("other", "replicator_u2_7_1"))
    source.prepare([T, TableId("dbo", "other")], is_first=True)
    (ours,) = [name for name in instances(database) if name.startswith("replicator_u1_")]
    assert source.remove().removed == (f"the capture instance {ours}",)
    assert instances(database) == ["replicator_u2_7_1"]
    assert source.remove().removed == ()

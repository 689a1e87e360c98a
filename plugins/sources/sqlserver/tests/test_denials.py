"""A table whose changes the account may not read any more, or that it may not even see, fails alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from replicator.config import Secret
from replicator.model.errors import CurableError, SourceUnavailableError
from replicator.model.identity import TableIdentity
from replicator.model.schema import TableId
from replicator.plugins.source import PullLimits, SourceContext
from replicator_source_sqlserver.catalogue.tables import Accepted
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.connecting.connection import Connector
from replicator_source_sqlserver.source import SqlServerSource
from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.drivers import Driver, library
from replicator_testbed.sqlserver.model import PASSWORD, SqlServerModel
from replicator_testbed.sqlserver.world import World, codes, drained, labels, shown, world_of

T, U = TableId("dbo", "t"), TableId("dbo", "u")
READER = "reader"


@pytest.fixture
def two(postgres: PostgresServer) -> Iterator[World]:
    """Two captured tables, t and u, and readers that may read them and nothing else."""
    with SqlServerModel(postgres, readers={READER: PASSWORD}) as model, world_of(model, tables=(T, U)) as world:
        world.execute("EXEC sys.sp_cdc_enable_db")
        for table in world.tables:
            world.execute(f"CREATE TABLE {table} (id int NOT NULL PRIMARY KEY, name nvarchar(50) NULL)")
            world.enable(table)
            world.execute(
                f"GRANT SELECT ON {table} TO {READER}", f"GRANT SELECT ON cdc.dbo_{table.name}_CT TO {READER}"
            )
        address = model.address_of(READER)
        config = SqlServerConfig(
            host=address.host, port=address.port, user=address.user, password=Secret(address.password),
            database=address.database, driver=str(library(Driver.FREETDS)), tls="disable",
        )  # fmt: skip
        connector = Connector(config)
        yield replace(world, connector=connector)
        connector.close()


@pytest.mark.matrix
def test_a_change_table_that_may_not_be_read_fails_its_table_alone(two: World) -> None:
    reader = two.open(two.position())
    two.execute("INSERT INTO dbo.t (id) VALUES (1)", "INSERT INTO dbo.u (id) VALUES (1)")
    two.capture()
    assert labels(drained(reader)) == [1, 1]
    two.execute(f"REVOKE SELECT ON cdc.dbo_t_CT FROM {READER}", "INSERT INTO dbo.t (id) VALUES (2)")
    two.execute("INSERT INTO dbo.u (id) VALUES (2)")
    two.capture()
    delivered = drained(reader)
    assert shown(delivered) == [("u", "INSERT", 2)]
    assert codes(delivered) == {"dbo.t": "select_missing"}
    (error,) = delivered.table_errors.values()
    assert isinstance(error, CurableError)
    assert f"GRANT SELECT ON [cdc].[dbo_t_CT] TO [{READER}];" in str(error.action)
    two.execute(f"GRANT SELECT ON cdc.dbo_t_CT TO {READER}", "INSERT INTO dbo.t (id) VALUES (3)")
    two.capture()
    reader._tables.accept({T: Accepted(TableIdentity(object=str(reader._tables._numbers[T])), None)})
    assert shown(drained(reader)) == [("t", "INSERT", 3)]
    reader.close()


@pytest.mark.matrix
def test_a_change_table_that_may_not_be_read_within_a_large_commit_is_named(
    two: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the host has of the commit it drops, and the log is opened again without the table."""
    monkeypatch.setattr("replicator_source_sqlserver.cdc.log.PAGE_ROWS", 2)
    reader = two.open(two.position())
    two.execute(
        "BEGIN TRANSACTION; INSERT INTO dbo.t (id) VALUES (1), (2), (3), (4); INSERT INTO dbo.u (id) VALUES (1), (2); COMMIT"
    )
    two.capture()
    assert reader.pull(PullLimits(rows=2, bytes=1 << 20, wait_s=0.0)).events
    two.execute(f"REVOKE SELECT ON cdc.dbo_t_CT FROM {READER}", f"REVOKE SELECT ON cdc.dbo_u_CT FROM {READER}")
    with pytest.raises(CurableError) as caught:
        drained(reader, PullLimits(rows=2, bytes=1 << 20, wait_s=0.0))
    assert caught.value.code == "select_missing"
    assert caught.value.table in {"dbo.t", "dbo.u"}
    reader.close()


@pytest.mark.matrix
def test_a_change_table_that_was_denied_when_the_log_was_opened_fails_its_table(two: World) -> None:
    """Its columns are not shown either: none of them is missing."""
    position = two.position()
    two.execute(f"REVOKE SELECT ON cdc.dbo_t_CT FROM {READER}")
    two.execute("INSERT INTO dbo.t (id) VALUES (1)", "INSERT INTO dbo.u (id) VALUES (1)")
    two.capture()
    reader = two.open(position)
    delivered = drained(reader)
    assert shown(delivered) == [("u", "INSERT", 1)]
    assert codes(delivered) == {"dbo.t": "select_missing"}
    reader.close()


@pytest.mark.matrix
@pytest.mark.parametrize("is_opened_before", [True, False])
def test_a_privilege_that_all_tables_lack_fails_none_of_them(two: World, *, is_opened_before: bool) -> None:
    position = two.position()
    reader = two.open(position)
    if is_opened_before:
        drained(reader)
    two.execute(*(f"REVOKE SELECT ON cdc.dbo_{name}_CT FROM {READER}" for name in "tu"))
    two.execute("INSERT INTO dbo.t (id) VALUES (1)", "INSERT INTO dbo.u (id) VALUES (1)")
    two.capture()
    with pytest.raises(SourceUnavailableError) as caught:
        drained(reader)
    assert caught.value.code == "select_missing"
    reader.close()


@pytest.mark.matrix
def test_a_table_that_is_hidden_was_not_dropped(two: World) -> None:
    reader = two.open(two.position())
    assert labels(drained(reader)) == []
    two.execute(f"REVOKE SELECT ON dbo.t FROM {READER}", "ALTER TABLE dbo.u ALTER COLUMN name nvarchar(60) NULL")
    two.execute("INSERT INTO dbo.t (id) VALUES (1)", "INSERT INTO dbo.u (id) VALUES (1)")
    two.capture()
    delivered = drained(reader)
    assert labels(delivered) == ["ALTER_TABLE", 1]
    assert codes(delivered) == {"dbo.t": "select_missing"}
    two.execute("DROP TABLE dbo.u", "INSERT INTO dbo.t (id) VALUES (2)")
    two.capture()
    assert labels(drained(reader)) == ["DROP_TABLE"]
    reader.close()


@pytest.mark.matrix
def test_tables_that_are_all_hidden_fail_none_of_them(two: World) -> None:
    with closing(SqlServerSource(two.connector.config, SourceContext(replicator="shop", uuid="u1", epoch=1))) as source:
        found = source.describe([T, U])
        source.accept({table: found[table].identity for table in (T, U)})
        two.execute(f"REVOKE SELECT ON dbo.t FROM {READER}")
        with pytest.raises(CurableError):
            source.describe([T, U])
        two.execute(f"REVOKE SELECT ON dbo.u FROM {READER}")
        with pytest.raises(SourceUnavailableError) as caught:
            source.describe([T, U])
        assert caught.value.code == "select_missing"

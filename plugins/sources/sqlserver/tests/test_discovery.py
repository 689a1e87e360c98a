"""What is read of the catalogue, through both drivers. The catalogue is the model's: no SQL Server is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from replicator.config import Secret
from replicator.model.errors import SourceUnavailableError, TableError
from replicator.model.schema import TableId
from replicator.plugins.source import ChunkRequest
from replicator_source_sqlserver.catalogue.discovery import list_tables, read_tables
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.connecting.connection import Connector, Session
from replicator_source_sqlserver.snapshot.chunk_statements import chunk_query
from replicator_source_sqlserver.snapshot.reader import read_plan
from replicator_testbed.sqlserver.drivers import Driver, library
from replicator_testbed.sqlserver.model import SqlServerModel

Make = Callable[..., Session]
ORDERS, CODED = TableId("dbo", "orders"), TableId("dbo", "coded")


@pytest.fixture(params=[Driver.FREETDS, pytest.param(Driver.MICROSOFT, marks=pytest.mark.matrix)])
def session_of(model: SqlServerModel, request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[tuple[Connector, Session]] = []

    def make(**changed: Any) -> Session:
        address = model.address
        config = SqlServerConfig(
            host=address.host, port=address.port, user=address.user, password=Secret(address.password),
            database=address.database, driver=str(library(request.param)), tls="disable", **changed,
        )  # fmt: skip
        connector = Connector(config)
        made.append((connector, Session(connector)))
        return made[-1][1]

    yield make
    for connector, session in made:
        session.close()
        connector.close()


@pytest.fixture
def tables(session_of: Make) -> Iterator[Session]:
    """A session on a database with two tables and a view, one of them captured."""
    session = session_of()
    with session.use("making tables") as connection:
        connection.execute(
            "IF (SELECT is_cdc_enabled FROM sys.databases WHERE name = DB_NAME()) = 0 EXEC sys.sp_cdc_enable_db"
        )
        connection.execute(
            "CREATE TABLE dbo.orders (id bigint NOT NULL, shop nvarchar(10) NOT NULL, note varchar(20) COLLATE Polish_CI_AS,"
            " amount decimal(12,2), total AS (amount * 2), CONSTRAINT pk_orders PRIMARY KEY (shop, id))"
        )
        connection.execute("CREATE TABLE dbo.log (at datetime2(7), what nvarchar(max))")
        connection.execute(
            "EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', @source_name = N'orders', @role_name = NULL"
        )
    yield session
    with session.use("removing tables") as connection:
        connection.execute(
            "EXEC sys.sp_cdc_disable_table @source_schema = N'dbo', @source_name = N'orders', @capture_instance = N'all'"
        )
        connection.execute("DROP TABLE dbo.orders")
        connection.execute("DROP TABLE dbo.log")


def test_a_table_is_described_as_it_was_made(tables: Session) -> None:
    with tables.use("reading") as connection:
        found = read_tables(
            connection, [ORDERS, TableId("dbo", "log"), TableId("dbo", "none"), TableId("dbo", "ORDERS")]
        )
    assert set(found) == {ORDERS, TableId("dbo", "log")}
    orders = found[ORDERS]
    assert [(c.name, c.source_type, c.nullable) for c in orders.schema.columns] == [
        ("id", "bigint", False),
        ("shop", "nvarchar(10)", False),
        ("note", "varchar(20)", True),
        ("amount", "decimal(12,2)", True),
    ]
    assert orders.schema.key == ("shop", "id"), "in the order of the key, not of the table"
    assert [c.name for c in orders.columns if c.is_computed] == ["total"]
    assert orders.specs["note"].declared.collation == "Polish_CI_AS"
    assert found[TableId("dbo", "log")].schema.key == ()


@pytest.mark.matrix
def test_descriptions_are_comments(tables: Session) -> None:
    table = "@level0type = N'SCHEMA', @level0name = N'dbo', @level1type = N'TABLE', @level1name = N'orders'"
    column = f"{table}, @level2type = N'COLUMN', @level2name = N'shop'"
    with tables.use("describing") as connection:
        for name, text, where in (
            ("MS_Description", "What was ordered", table),
            ("MS_Description", "Żółty sklep", column),
            ("other", "of no interest", column),
        ):
            connection.execute(f"EXEC sys.sp_addextendedproperty @name = N'{name}', @value = N'{text}', {where}")
        schema = read_tables(connection, [ORDERS])[ORDERS].schema
    assert schema.comment == "What was ordered"
    assert {c.name: c.comment for c in schema.columns if c.comment} == {"shop": "Żółty sklep"}


@pytest.mark.matrix
def test_an_alias_is_the_type_behind_it_in_a_key_too(tables: Session) -> None:
    with tables.use("making tables") as connection:
        connection.execute("CREATE TYPE dbo.code FROM varchar(8) NOT NULL")
        connection.execute(
            "CREATE TABLE dbo.coded (code dbo.code, node hierarchyid NOT NULL, PRIMARY KEY (code, node))"
        )
        connection.execute("INSERT INTO dbo.coded VALUES ('b', '/1/'), ('a', '/2/'), ('a', '/10/'), ('c', '/')")
        found = read_tables(connection, [CODED])[CODED]
        plan = read_plan(found, found.schema)
        query, parameters = chunk_query(plan, ChunkRequest(schema=found.schema, limit=9, after=("a", "/2/")))
        rows = [tuple(row) for row in connection.rows(query, parameters)]
        connection.execute("DROP TABLE dbo.coded")
        connection.execute("DROP TYPE dbo.code")
    assert [(c.name, c.source_type, c.nullable) for c in found.schema.columns] == [
        ("code", "varchar(8)", False),
        ("node", "hierarchyid", False),
    ]
    assert found.key == ("code", "node")
    assert rows == [("a", "/10/"), ("b", "/1/"), ("c", "/")]


@pytest.mark.matrix
def test_capture_instances_are_those_of_the_table(tables: Session, model: SqlServerModel) -> None:
    with tables.use("reading") as connection:
        (instance,) = read_tables(connection, [ORDERS])[ORDERS].instances
        assert instance.name == "dbo_orders"
        assert instance.ordinals["shop"] == 2
        model.capture.scan_all()
        (instance,) = read_tables(connection, [ORDERS])[ORDERS].instances
    assert instance.start_lsn is not None
    assert len(instance.start_lsn) == 10


@pytest.mark.matrix
def test_an_instance_has_no_start_until_the_capture_job_has_met_it(tables: Session, model: SqlServerModel) -> None:
    assert model.capture.lag == timedelta(0), "the model's job runs when it is told to"
    with tables.use("reading") as connection:
        (instance,) = read_tables(connection, [ORDERS])[ORDERS].instances
    assert instance.start_lsn is None


def test_tables_are_listed_and_views_left_out(tables: Session, model: SqlServerModel) -> None:
    # The model runs no CREATE VIEW.
    with psycopg.connect(model.database.dsn, autocommit=True) as behind, tables.use("reading") as connection:
        behind.execute("CREATE VIEW dbo.v AS SELECT id FROM dbo.orders")
        listed = {summary.table.name: summary.left_out for summary in list_tables(connection)}
        behind.execute("DROP VIEW dbo.v")
    assert listed["orders"] is None
    assert listed["v"] == "view"
    assert not any(name.startswith("dbo_orders") or name == "change_tables" for name in listed)


@pytest.mark.matrix
def test_an_error_is_ours_and_the_next_use_has_a_new_connection(session_of: Make) -> None:
    session = session_of()
    with session.use("reading") as connection:
        first = connection
    with pytest.raises(TableError), session.use("reading a chunk", table=ORDERS) as connection:
        connection.rows("SELECT 1/0")
    with session.use("reading") as connection:
        assert connection is not first
        assert connection.rows("SELECT @@LOCK_TIMEOUT")[0][0] == 10_000


@pytest.mark.matrix
def test_a_connection_that_was_lost_is_opened_again(session_of: Make, model: SqlServerModel) -> None:
    session = session_of()
    assert session.rows("reading", "SELECT 1")[0][0] == 1
    model.server.disconnect_all()
    with pytest.raises(SourceUnavailableError):
        session.rows("reading", "SELECT 1")
    assert session.rows("reading", "SELECT 2")[0][0] == 2


def test_a_lock_is_not_waited_for_without_end(session_of: Make, tables: Session) -> None:
    holder, waiter = session_of(), session_of(lock_timeout="1s", chunk_isolation="locking")
    with holder.use("holding") as held:
        held.raw.autocommit = False
        held.execute("INSERT INTO dbo.orders (id, shop) VALUES (1, N'a')")
        held.execute("UPDATE dbo.orders SET amount = 1")
        with pytest.raises(SourceUnavailableError) as caught, waiter.use("reading a chunk", table=ORDERS) as connection:
            connection.execute("DROP TABLE dbo.orders")
        held.raw.rollback()
        held.raw.autocommit = True
    assert caught.value.code == "lock_timeout"


@pytest.mark.matrix
def test_another_collation_of_text_in_a_code_page_is_another_identity(tables: Session) -> None:
    """The server converts the rows to it, and no log tells of that."""
    with tables.use("altering") as connection:
        before = read_tables(connection, [ORDERS])[ORDERS].identity
        connection.execute("ALTER TABLE dbo.orders ADD more varchar(5)")
        assert not before.is_redefined_in(read_tables(connection, [ORDERS])[ORDERS].identity)
        connection.execute("ALTER TABLE dbo.orders ALTER COLUMN note varchar(20) COLLATE Latin1_General_CI_AS")
        assert before.is_redefined_in(read_tables(connection, [ORDERS])[ORDERS].identity)

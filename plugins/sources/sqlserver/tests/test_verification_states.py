"""States of tables that are verified: ranges of keys, what a state saw, and tables that change or cannot be read meanwhile."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pyodbc
import pytest

from plugins.sources.sqlserver.tests.verifying import KEYS, rows_of, schema_of, source_of
from replicator.model.errors import SchemaConflictError, SourceUnavailableError, TableError
from replicator.model.schema import TableId
from replicator.plugins.kit.canonical import digest_of
from replicator.plugins.source import Seen
from replicator.plugins.verification import Ids
from replicator_source_sqlserver.catalogue.discovery import read_tables
from replicator_source_sqlserver.cdc.change_table import change_table
from replicator_source_sqlserver.cdc.settling import Settling, locking_query
from replicator_source_sqlserver.cdc.visibility import NotedHeads
from replicator_source_sqlserver.connecting.connection import Connection
from replicator_source_sqlserver.lsn import ZERO, lsn_to_text
from replicator_source_sqlserver.source import SqlServerSource
from replicator_source_sqlserver.verification.ranges import pieces_of
from replicator_source_sqlserver.verification.state_statements import LISTED_MAX
from replicator_testbed.sqlserver.databases import SqlServerDatabase, enable
from replicator_testing.table_states import assert_ranges, assert_state
from replicator_testing.waiting import wait_until

HIGHEST = b"\xff" * 10
ORDERS = "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, note nvarchar(20) NULL)"


def make_orders(database: SqlServerDatabase, *rows: int) -> None:
    database.execute(ORDERS, enable("t"), *(f"INSERT INTO dbo.t VALUES ({row}, N'note {row}')" for row in rows))


def wait_for_capture(database: SqlServerDatabase, rows: int, instance: str = "dbo_t") -> None:
    count = f"SELECT COUNT(*) FROM cdc.{instance}_CT"
    wait_until(lambda: database.execute(count)[0][0] >= rows, "the rows are captured")


@pytest.fixture
def other(database: SqlServerDatabase) -> Iterator[pyodbc.Connection]:
    """Somebody else's session, in which each statement is part of a transaction."""
    with closing(database.connect(autocommit=False)) as connection:
        yield connection
        connection.rollback()


# -- ranges --------------------------------------------------------------------------------------------------------------


def test_a_range_is_stretches_of_the_index() -> None:
    assert list(pieces_of(None, None)) == [()]
    assert list(pieces_of(("5",), ("9",))) == [[(0, ">", "5"), (0, "<=", "9")]]
    # What both bounds have in common is a condition of all pieces: else a range would read all rows that have it.
    assert list(pieces_of(("1", "5"), ("1", "9"))) == [[(0, "=", "1"), (1, ">", "5"), (1, "<=", "9")]]
    assert list(pieces_of(("1", "5"), ("3", "9"))) == [
        [(0, "=", "1"), (1, ">", "5")],
        [(0, ">", "1"), (0, "<", "3")],
        [(0, "=", "3"), (1, "<=", "9")],
    ]
    assert list(pieces_of(None, ("3", "9"))) == [[(0, "<", "3")], [(0, "=", "3"), (1, "<=", "9")]]
    assert list(pieces_of(("1", "5"), None)) == [[(0, "=", "1"), (1, ">", "5")], [(0, ">", "1")]]
    assert list(pieces_of(("1", "5"), ("1", "5"))) == []


@pytest.mark.matrix
@pytest.mark.parametrize(
    "type_", [pytest.param(name, marks=() if name == "datetimeoffset(3)" else pytest.mark.matrix) for name in KEYS]
)
def test_a_range_has_the_rows_that_it_has_for_everybody(
    database: SqlServerDatabase, source: SqlServerSource, type_: str
) -> None:
    database.execute(
        f"CREATE TABLE dbo.t (v int NULL, b int NOT NULL, a {type_} NOT NULL, PRIMARY KEY (a, b))",
        enable("t"),
        *(f"INSERT INTO dbo.t VALUES ({n}, {m}, {value})" for n, value in enumerate(KEYS[type_]) for m in (-1, 2)),
    )
    schema = schema_of(source)
    with source.open_state(schema, ["v", "a", "b"]) as state:
        assert_ranges(state, rows_of(source, schema), schema, columns=2)


# -- what is asked -------------------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_a_state_stays_as_it_is_while_rows_change(database: SqlServerDatabase, source: SqlServerSource) -> None:
    make_orders(database, 1, 2)
    schema = schema_of(source)
    with source.open_state(schema, ["id", "note"]) as state, source.open_state(schema, ["id"]) as second:
        rows = rows_of(source, schema)
        # Nobody waits for a state.
        database.execute("UPDATE dbo.t SET note = N'later' WHERE id = 1", "INSERT INTO dbo.t VALUES (3, NULL)")
        assert_state(state, rows, schema)
        assert second.checksums(0)[""].rows == 2
        assert state.identity() == source.describe([schema.table])[schema.table].identity
    with source.open_state(schema, ["id", "note"]) as state:
        assert state.checksums(0)[""].rows == 3


@pytest.mark.matrix
def test_more_ids_than_a_statement_takes_are_chosen_here(database: SqlServerDatabase, source: SqlServerSource) -> None:
    make_orders(database)
    database.execute(*(f"INSERT INTO dbo.t VALUES ({n}, NULL)" for n in range(40)))
    some = frozenset(digest_of(f"{n},") for n in range(0, LISTED_MAX * 4, 2))
    with source.open_state(schema_of(source), ["id", "note"]) as state:
        assert state.checksums(0, Ids(some))[""].rows == 20
        assert sorted(state.rows(some).column("id").to_pylist()) == sorted(digest_of(f"{n},") for n in range(0, 40, 2))
        assert state.rows(sorted({id_[:6] for id_ in some})).num_rows == 20


@pytest.mark.matrix
def test_an_empty_table_has_no_groups(database: SqlServerDatabase, source: SqlServerSource) -> None:
    make_orders(database)
    with source.open_state(schema_of(source), ["id", "note"]) as state:
        assert (state.checksums(0), state.checksums(3), state.texts([]), state.rows([]).num_rows) == ({}, {}, {}, 0)
        assert (state.rows([""]).num_rows, state.bound(["id"], None, 1)) == (0, None)


@pytest.mark.matrix
def test_a_wide_table(database: SqlServerDatabase, source: SqlServerSource) -> None:
    """More columns than CONCAT takes."""
    columns = ", ".join(f"c{n} int NULL" for n in range(140))
    database.execute(f"CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, {columns})", enable("t"))
    database.execute("INSERT INTO dbo.t (id, c0, c60, c124, c125, c139) VALUES (1, 2, 3, 4, 5, 6)")
    schema = schema_of(source)
    with source.open_state(schema, [column.name for column in schema.columns]) as state:
        assert_state(state, rows_of(source, schema), schema)


# -- what a state saw ----------------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_all_that_was_captured_is_seen_at_once(database: SqlServerDatabase, source: SqlServerSource) -> None:
    """By the locks of its rows: the minute in which other reads do not know is not waited for."""
    make_orders(database, 1, 2)
    wait_for_capture(database, 2)
    rows = database.execute("SELECT [__$start_lsn] FROM cdc.dbo_t_CT")
    ids = pa.array([lsn_to_text(bytes(row[0])) for row in rows])
    with source.open_state(schema_of(source), ["id"]) as state:
        assert set(state.visibility.classify(ids).to_pylist()) == {int(Seen.SEEN)}


@pytest.mark.matrix
def test_who_still_has_the_lock_of_a_row_that_was_captured_is_waited_for(
    database: SqlServerDatabase, other: pyodbc.Connection
) -> None:
    make_orders(database, 1, 2)
    wait_for_capture(database, 2)
    with closing(source_of(database, lock_timeout="1s")) as source:
        schema = schema_of(source)
        other.execute("UPDATE dbo.t SET note = N'x' WHERE id = 2")
        with pytest.raises(SourceUnavailableError) as raised, source.open_state(schema, ["id"]):
            pass
        assert raised.value.code == "lock_timeout"
        other.commit()
        with source.open_state(schema, ["id"]) as state:
            assert state.checksums(0)[""].rows == 2


@pytest.mark.matrix
def test_rows_that_nobody_changed_lately_are_not_locked(database: SqlServerDatabase, other: pyodbc.Connection) -> None:
    make_orders(database, 1)
    wait_for_capture(database, 1)
    with closing(source_of(database, lock_timeout="1s")) as source:
        schema = schema_of(source)
        other.execute("INSERT INTO dbo.t VALUES (2, N'y')")
        with source.open_state(schema, ["id"]) as state:
            assert state.checksums(0)[""].rows == 1


@pytest.mark.matrix
def test_a_lock_is_taken_of_the_row_itself(database: SqlServerDatabase) -> None:
    """An index that has the key and nothing else is not locked by who changes another column. All is read that the state reads."""
    database.execute(
        "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY NONCLUSTERED, n int, name nvarchar(20), node hierarchyid, [o'd]]d,] varchar(max),"
        " shape geometry, note xml)",
        enable("t"),
        "INSERT INTO dbo.t VALUES (1, 2, N'żó', '/1/', 'long', 'POINT (1 2)', '<a/>'), (2, NULL, NULL, NULL, NULL, NULL, NULL)",
    )
    wait_for_capture(database, 2)
    with closing(database.connect()) as raw:
        connection = Connection(raw)
        table = read_tables(connection, [TableId("dbo", "t")])[TableId("dbo", "t")]
        query = locking_query(table, change_table("dbo_t"), table.specs)
        rows = sorted(connection.rows(query, [ZERO, HIGHEST]), key=lambda row: row[1] is None)
        assert [tuple(row)[:4] for row in rows] == [(1, 2, 4, "/1/"), (1, None, None, None)]
        assert all(size > 0 for size in rows[0][4:])
        assert len(rows[0]) == len(table.specs)
        key_alone = locking_query(table, change_table("dbo_t"), ["id"])
        assert [tuple(row) for row in connection.rows(key_alone, [ZERO, HIGHEST])] == [(1,), (1,)]


@pytest.mark.matrix
def test_the_change_table_of_a_text_key_may_have_another_collation(
    database: SqlServerDatabase, other: pyodbc.Connection
) -> None:
    database.execute(
        "CREATE TABLE dbo.t (id nvarchar(9) COLLATE Polish_CI_AS NOT NULL PRIMARY KEY, n int)",
        enable("t"),
        "INSERT INTO dbo.t VALUES (N'a', 1), (N'ż', 1)",
    )
    wait_for_capture(database, 2)
    database.execute(
        "ALTER TABLE cdc.dbo_t_CT ALTER COLUMN id nvarchar(9) COLLATE SQL_Latin1_General_CP1_CI_AS NOT NULL"
    )
    other.execute("UPDATE dbo.t SET n = 2 WHERE id = N'Ż'")
    with closing(source_of(database, lock_timeout="1s")) as source:
        schema = schema_of(source)
        with pytest.raises(SourceUnavailableError) as raised, source.open_state(schema, ["id", "n"]):
            pass
        assert raised.value.code == "lock_timeout"
        other.rollback()
        with source.open_state(schema, ["id", "n"]) as state:
            assert state.checksums(0)[""].rows == 2


@pytest.mark.matrix
def test_without_a_key_the_minute_is_waited_for_or_the_table_locked(
    database: SqlServerDatabase, other: pyodbc.Connection
) -> None:
    database.execute("CREATE TABLE dbo.t (n int NOT NULL)", enable("t"), "INSERT INTO dbo.t VALUES (1), (1)")
    wait_for_capture(database, 2)
    other.execute("INSERT INTO dbo.t VALUES (2)")
    asked = list[str]()

    class Noting(Connection):
        def execute(self, statement: str, parameters: object = ()) -> None:
            asked.append(statement)
            super().execute(statement)

    with closing(database.connect()) as raw:
        raw.execute("SET LOCK_TIMEOUT 100")
        connection = Noting(raw)
        table = read_tables(connection, [TableId("dbo", "t")])[TableId("dbo", "t")]
        waiting = Settling(heads=NotedHeads(), is_locking=False, settle_s=1.0, poll_s=0.02).visibility(
            connection, table, ["n"]
        )
        assert waiting.settled == waiting.captured
        assert asked == []
        with pytest.raises(pyodbc.Error, match="1222"):
            Settling(heads=NotedHeads(), is_locking=True, settle_s=60.0).visibility(connection, table, ["n"])
        assert asked == ["BEGIN TRANSACTION"]
        connection.execute("ROLLBACK TRANSACTION")
        other.commit()
        Settling(heads=NotedHeads(), is_locking=True, settle_s=60.0).visibility(connection, table, ["n"])
        assert asked[-1] == "ROLLBACK TRANSACTION", "the lock is not kept"
        # Until the capture job has met the instance, the change table does not tell.
        (instance,) = table.instances
        younger = dataclasses.replace(table, instances=(dataclasses.replace(instance, start_lsn=None),))
        Settling(heads=NotedHeads(), is_locking=True, settle_s=60.0).visibility(connection, younger, ["n"])
        assert asked[-2:] == ["BEGIN TRANSACTION", "ROLLBACK TRANSACTION"]


# -- what cannot be read -------------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_a_table_that_was_altered_or_replaced_is_void(database: SqlServerDatabase, source: SqlServerSource) -> None:
    make_orders(database, 1)
    schema = schema_of(source)
    with source.open_state(schema, ["id"]) as state:
        # Capture gets another instance: what the log has is another thing from here on.
        database.execute(enable("t", "dbo_t_2"))
        assert state.identity() is None
    database.execute(
        "EXEC sys.sp_cdc_disable_table @source_schema = N'dbo', @source_name = N't', @capture_instance = N'all'"
    )
    database.execute("DROP TABLE dbo.t")
    with pytest.raises(SchemaConflictError), source.open_state(schema, ["id"]):
        pass


@pytest.mark.matrix
def test_a_database_has_to_allow_snapshots(database: SqlServerDatabase, source: SqlServerSource) -> None:
    make_orders(database, 1)
    schema = schema_of(source)
    database.execute("ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION OFF")
    try:
        with pytest.raises(TableError) as raised, source.open_state(schema, ["id"]):
            pass
    finally:
        database.execute("ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON")
    assert (raised.value.code, raised.value.table) == ("snapshot_isolation_off", "dbo.t")
    assert raised.value.action is not None
    assert "ALLOW_SNAPSHOT_ISOLATION ON" in raised.value.action


@pytest.mark.matrix
def test_a_server_has_to_have_utf8(database: SqlServerDatabase, source: SqlServerSource) -> None:
    make_orders(database, 1)
    schema = schema_of(source)
    database.server.change(version="14.0.3456.2")
    try:
        with pytest.raises(TableError) as raised, source.open_state(schema, ["id"]):
            pass
    finally:
        database.server.change(version="16.0.4000.0")
    assert raised.value.code == "utf8_missing"

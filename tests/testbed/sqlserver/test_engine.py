"""T-SQL on the model: what a plugin asks, and the rules of SQL Server that its answers depend on."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal

import pyodbc
import pytest

from replicator_testbed.background import in_background
from replicator_testbed.sqlserver.drivers import Driver, connect
from replicator_testbed.sqlserver.engine.settings import UserOption
from replicator_testbed.sqlserver.model import SqlServerModel
from replicator_testing.waiting import wait_until
from tests.testbed.sqlserver.conftest import Client

pytestmark = pytest.mark.matrix

ORDERS = """
CREATE TABLE [dbo].[Orders] (
  [Id] int IDENTITY(1,1) NOT NULL CONSTRAINT [PK_Orders] PRIMARY KEY CLUSTERED,
  [Customer Name] nvarchar(40) COLLATE Latin1_General_BIN2 NULL,
  [Amount] decimal(10,2) NOT NULL DEFAULT ((0)),
  [Doubled] AS ([Amount] * 2),
  [At] datetime2(3) NULL
) ON [PRIMARY]
"""


@pytest.fixture
def orders(client: Client) -> Iterator[Client]:
    client("DROP TABLE IF EXISTS dbo.Orders")
    client(ORDERS)
    client("INSERT INTO dbo.Orders ([Customer Name], Amount) VALUES (N'Zoë', 1.5), (N'ann', 2), (N'Ann', 3)")
    yield client
    client("DROP TABLE dbo.Orders")


# -- the catalogue -------------------------------------------------------------------------------------------------------


def test_a_table_is_discovered(orders: Client) -> None:
    assert orders(
        "SELECT s.name, t.name, t.is_tracked_by_cdc FROM sys.tables AS t JOIN sys.schemas AS s ON s.schema_id = t.schema_id"
    ) == [("dbo", "Orders", False)]
    assert orders(
        "SELECT c.name, y.name, c.max_length, c.precision, c.scale, c.is_nullable, c.is_identity, c.is_computed, c.collation_name"
        " FROM sys.columns AS c JOIN sys.types AS y ON y.user_type_id = c.user_type_id"
        " WHERE c.object_id = OBJECT_ID(N'dbo.Orders') ORDER BY c.column_id"
    ) == [
        ("Id", "int", 4, 10, 0, False, True, False, None),
        ("Customer Name", "nvarchar", 80, 0, 0, True, False, False, "Latin1_General_BIN2"),
        ("Amount", "decimal", 9, 10, 2, False, False, False, None),
        ("Doubled", "decimal", 17, 38, 2, True, False, True, None),
        ("At", "datetime2", 7, 23, 3, True, False, False, None),
    ]


def test_a_key_is_discovered_in_its_own_order(client: Client) -> None:
    # [ISS: RisingWave #27160, keys by key_ordinal]
    client(
        "DROP TABLE IF EXISTS dbo.pairs; CREATE TABLE dbo.pairs (a int NOT NULL, b int NOT NULL, PRIMARY KEY (b, a))"
    )
    assert client(
        "SELECT c.name FROM sys.indexes AS i JOIN sys.index_columns AS k ON k.object_id = i.object_id AND k.index_id = i.index_id"
        " JOIN sys.columns AS c ON c.object_id = k.object_id AND c.column_id = k.column_id"
        " WHERE i.is_primary_key = 1 AND i.object_id = OBJECT_ID(N'dbo.pairs') ORDER BY k.key_ordinal"
    ) == [("b",), ("a",)]


def test_a_clustered_columnstore_index_is_listed_and_bars_capture(orders: Client) -> None:
    # [DOC: sys.indexes, CREATE COLUMNSTORE INDEX; the number: K]
    orders("CREATE CLUSTERED COLUMNSTORE INDEX stored ON dbo.Orders")
    orders("EXEC sys.sp_cdc_enable_db")
    listed = "SELECT name, index_id, type FROM sys.indexes WHERE object_id = OBJECT_ID(N'dbo.Orders') ORDER BY index_id"
    assert orders(listed)[0] == ("stored", 1, 5)
    assert {kind for *_, kind in orders(listed)[1:]} == {2}
    assert orders.error("EXEC sys.sp_cdc_enable_table N'dbo', N'Orders', NULL") == 35353
    orders("DROP INDEX stored ON dbo.Orders")
    orders("EXEC sys.sp_cdc_enable_table N'dbo', N'Orders', NULL")
    assert orders.error("CREATE CLUSTERED COLUMNSTORE INDEX stored ON dbo.Orders") == 35353
    orders("EXEC sys.sp_cdc_disable_db")


def test_the_pages_of_a_table_and_of_its_large_values_are_listed(client: Client) -> None:
    # [DOC: sys.allocation_units]
    client("DROP TABLE IF EXISTS dbo.pages; CREATE TABLE dbo.pages (id int, note varchar(max))")
    asked = (
        "SELECT a.type, a.used_pages FROM sys.partitions p JOIN sys.allocation_units a"
        " ON a.container_id = CASE WHEN a.type = 2 THEN p.partition_id ELSE p.hobt_id END"
        " WHERE p.object_id = OBJECT_ID(N'dbo.pages') ORDER BY a.type"
    )
    assert client(asked) == [(1, 0), (2, 0)]
    client("INSERT INTO dbo.pages VALUES (1, 'x')")
    assert client(asked) == [(1, 1), (2, 0)]


def test_a_renamed_table_keeps_its_object_id(client: Client) -> None:
    client("DROP TABLE IF EXISTS dbo.before; DROP TABLE IF EXISTS dbo.after; CREATE TABLE dbo.before (id int)")
    number = client.value("SELECT OBJECT_ID(N'dbo.before')")
    client("EXEC sp_rename N'dbo.before', N'after'")
    assert client.value("SELECT OBJECT_ID(N'[dbo].[after]')") == number
    assert client.value("SELECT OBJECT_ID(N'dbo.before')") is None


def test_a_dropped_column_leaves_a_gap_in_the_ids(client: Client) -> None:
    client("DROP TABLE IF EXISTS dbo.gaps; CREATE TABLE dbo.gaps (a int, b int); ALTER TABLE dbo.gaps DROP COLUMN a")
    client("ALTER TABLE dbo.gaps ADD c int NULL")
    assert client(
        "SELECT name, column_id FROM sys.columns WHERE object_id = OBJECT_ID('dbo.gaps') ORDER BY column_id"
    ) == [
        ("b", 2),
        ("c", 3),
    ]


def test_the_server_says_what_it_is(client: Client) -> None:
    assert client.value("SELECT DB_NAME()") == "shop"
    assert client.value("SELECT SERVERPROPERTY('Edition')").startswith("Developer")
    assert "model" in client.value("SELECT @@VERSION")
    assert client("SELECT name, is_cdc_enabled FROM sys.databases WHERE name = DB_NAME()") == [("shop", False)]


@pytest.mark.parametrize("kind", ["vector(3)", "json", "dbo.own"])
def test_a_type_that_the_model_has_not_is_refused(client: Client, kind: str) -> None:
    assert client.error(f"CREATE TABLE dbo.odd (a {kind})") == 2715


# -- statements ----------------------------------------------------------------------------------------------------------


def test_names_are_compared_without_case(orders: Client) -> None:
    assert orders.value("SELECT T.[CUSTOMER NAME] FROM DBO.ORDERS AS t WHERE T.id = 1") == "Zoë"


def test_a_chunk_is_read_by_disjoint_pieces(orders: Client) -> None:
    # [LAB: UNION ALL of disjoint pieces]
    statement = (
        "SELECT TOP (3) u.[Id], u.[Amount] FROM ("
        " SELECT TOP (3) t.[Id], t.[Amount] FROM [dbo].[Orders] AS t WITH (READCOMMITTEDLOCK) WHERE t.[Id] = ? AND t.[Amount] > ?"
        " UNION ALL SELECT TOP (3) t.[Id], t.[Amount] FROM [dbo].[Orders] AS t WITH (READCOMMITTEDLOCK) WHERE t.[Id] > ?"
        ") AS u ORDER BY u.[Id] OPTION (RECOMPILE)"
    )
    assert orders(statement, 1, Decimal("1.5"), 1) == [(2, Decimal("2.00")), (3, Decimal("3.00"))]
    assert orders(statement, 1, Decimal("1.4"), 2) == [(1, Decimal("1.50")), (3, Decimal("3.00"))]


def test_the_types_of_a_union_are_those_of_its_tables(orders: Client) -> None:
    cursor = orders.connection.cursor()
    cursor.execute("SELECT [Amount], [At] FROM dbo.Orders UNION ALL SELECT [Amount], [At] FROM dbo.Orders WHERE 1 = 0")
    assert [column[4:6] for column in cursor.description] == [(10, 2), (23, 3)]
    cursor.close()


def test_a_bound_is_compared_in_the_columns_collation(orders: Client) -> None:
    # [ISS: DBZ-7359, flink-cdc #4443]
    found = orders(
        "SELECT [Customer Name] FROM dbo.Orders WHERE [Customer Name] > CAST(? COLLATE Latin1_General_BIN2 AS nvarchar(40))"
        " ORDER BY [Customer Name]",
        "Ann",
    )
    assert found == [("Zoë",), ("ann",)]


def test_case_is_ignored_by_default(client: Client) -> None:
    # The default collation's CI [DOC: Windows collation name]; its order is ICU's here, not SQL Server's.
    client("DROP TABLE IF EXISTS dbo.words; CREATE TABLE dbo.words (word varchar(10) NOT NULL PRIMARY KEY)")
    client("INSERT INTO dbo.words VALUES ('n')")
    assert client.error("INSERT INTO dbo.words VALUES ('N')") == 2627
    assert client("SELECT word FROM dbo.words WHERE word = 'N'") == [("n",)]
    assert client("SELECT word FROM dbo.words WHERE word = 'ń'") == []
    assert client("SELECT word FROM dbo.words WHERE word LIKE '[M-O]%'") == [("n",)]


def test_a_guid_is_ordered_by_its_last_bytes(client: Client) -> None:
    # [ISS: risingwave PR 27112: FFFFFFFF-0000-…-01 comes before 00000000-0000-…-02]
    client("DROP TABLE IF EXISTS dbo.guids; CREATE TABLE dbo.guids (g uniqueidentifier NOT NULL PRIMARY KEY)")
    ordered = [
        "01000000-0000-0000-0000-000000000000",
        "00010000-0000-0000-0000-000000000000",
        "00000000-0100-0000-0000-000000000000",
        "00000000-0000-0100-0000-000000000000",
        "00000000-0000-0000-0001-000000000000",
        "FFFFFFFF-0000-0000-0000-000000000001",
        "00000000-0000-0000-0000-000000000002",
        "00000000-0000-0000-0000-010000000000",
    ]
    for value in sorted(ordered):
        client("INSERT INTO dbo.guids VALUES (?)", value)
    assert [row[0] for row in client("SELECT g FROM dbo.guids ORDER BY g")] == ordered
    for index, value in enumerate(ordered):
        above = client("SELECT g FROM dbo.guids WHERE g > CAST(? AS uniqueidentifier) ORDER BY g", value)
        assert [row[0] for row in above] == ordered[index + 1 :]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("23:59:59.998", "1998-01-01T23:59:59.997"),
        ("23:59:59.999", "1998-01-02T00:00:00"),
        ("01:01:01.001", "1998-01-01T01:01:01"),
        ("01:01:01.004", "1998-01-01T01:01:01.003"),
        ("01:01:01.009", "1998-01-01T01:01:01.010"),
    ],
)
def test_datetime_is_rounded_when_it_is_stored(client: Client, written: str, read: str) -> None:
    # [DOC: datetime, rounding of datetime fractional second precision]
    client("DROP TABLE IF EXISTS dbo.times; CREATE TABLE dbo.times (a datetime)")
    client("INSERT INTO dbo.times VALUES (?)", f"1998-01-01T{written}")
    assert client("SELECT a FROM dbo.times WHERE a = CAST(? AS datetime)", f"1998-01-01T{written}") == [
        (dt.datetime.fromisoformat(read),)
    ]


@pytest.mark.parametrize(("written", "minute"), [("12:35:29.998", 35), ("12:35:29.999", 36), ("12:35:30", 36)])
def test_smalldatetime_is_rounded_to_the_minute(client: Client, written: str, minute: int) -> None:
    # [DOC: smalldatetime, example]
    found = client.value("SELECT CAST(? AS smalldatetime)", f"2007-05-08T{written}")
    assert found == dt.datetime(2007, 5, 8, 12, minute)


def test_binaries_are_converted_by_style(client: Client) -> None:
    # [DOC: CAST and CONVERT, binary styles]
    assert client.value("SELECT CONVERT(binary(10), '0x0000000a0000000b0001', 1)").hex() == "0000000a0000000b0001"
    assert client.value("SELECT CONVERT(varchar(22), CONVERT(binary(10), ?, 1), 1)", "0x0A") == "0x0A000000000000000000"
    assert client.value("SELECT CONVERT(binary(2), '0a0b', 2)") == b"\x0a\x0b"


def test_values_that_are_too_long_are_refused_and_casts_cut(client: Client) -> None:
    client("DROP TABLE IF EXISTS dbo.short; CREATE TABLE dbo.short (a varchar(3), b binary(2))")
    assert client.error("INSERT INTO dbo.short (a) VALUES ('abcd')") == 2628
    assert client.value("SELECT CAST('abcd' AS varchar(3))") == "abc"


def test_null_comes_first(client: Client) -> None:
    client("DROP TABLE IF EXISTS dbo.nulls; CREATE TABLE dbo.nulls (a int); INSERT INTO dbo.nulls VALUES (1), (NULL)")
    assert client("SELECT a FROM dbo.nulls ORDER BY a") == [(None,), (1,)]


def test_a_batch_has_statements_without_semicolons(client: Client) -> None:
    client(
        "SET NOCOUNT ON DROP TABLE IF EXISTS dbo.batch CREATE TABLE dbo.batch (id int) INSERT INTO dbo.batch VALUES (1)"
    )
    client(
        "DECLARE @wanted int = 1, @text nvarchar(10) = N'a;b' IF EXISTS (SELECT 1 FROM dbo.batch) DELETE FROM dbo.batch WHERE id = @wanted"
    )
    assert client("SELECT * FROM dbo.batch") == []


def test_a_batch_cannot_name_a_column_that_it_adds(client: Client) -> None:
    # [DOC: deferred name resolution, EXECUTE] It is compiled as a whole: nothing of it runs.
    client("CREATE TABLE dbo.t (id int NOT NULL)")
    client("INSERT INTO dbo.t VALUES (1)")
    assert (
        client.error("ALTER TABLE dbo.t ADD [v] int NULL; UPDATE dbo.t SET v = 2; ALTER TABLE dbo.t DROP COLUMN id")
        == 207
    )
    assert [name for (name,) in client("SELECT name FROM sys.columns WHERE object_id = OBJECT_ID(N'dbo.t')")] == ["id"]
    client("ALTER TABLE dbo.t ADD [v] int NULL; EXEC(N'UPDATE dbo.t SET v = 2')")
    assert client("SELECT id, v FROM dbo.t") == [(1, 2)]
    client("CREATE TABLE dbo.u (id int NOT NULL); ALTER TABLE dbo.u ADD v int NULL; INSERT INTO dbo.u VALUES (1, 2)")
    assert client("SELECT v FROM dbo.u") == [(2,)]


def test_the_rows_of_a_change_are_counted(orders: Client) -> None:
    cursor = orders.connection.cursor()
    assert cursor.execute("UPDATE dbo.Orders SET Amount = Amount + 1 WHERE Id > 1").rowcount == 2
    assert cursor.execute("SELECT @@ROWCOUNT").fetchval() == 2
    cursor.close()


def test_a_key_may_be_shifted_in_one_statement(client: Client) -> None:
    client("DROP TABLE IF EXISTS dbo.shifted; CREATE TABLE dbo.shifted (id int NOT NULL PRIMARY KEY)")
    client("INSERT INTO dbo.shifted VALUES (1), (2), (3)")
    client("UPDATE dbo.shifted SET id = id + 1")
    assert client("SELECT id FROM dbo.shifted ORDER BY id") == [(2,), (3,), (4,)]


def test_rowversion_grows_with_every_change(client: Client) -> None:
    client("DROP TABLE IF EXISTS dbo.versions; CREATE TABLE dbo.versions (id int NOT NULL PRIMARY KEY, v rowversion)")
    client("INSERT INTO dbo.versions (id) VALUES (1), (2)")
    first = client.value("SELECT v FROM dbo.versions WHERE id = 2")
    client("UPDATE dbo.versions SET id = 3 WHERE id = 1")
    assert client.value("SELECT v FROM dbo.versions WHERE id = 3") > first


def test_textsize_cuts_large_values_without_a_word(client: Client) -> None:
    # [ISS: TablePro #1784]
    client("SET TEXTSIZE 100")
    assert len(client.value("SELECT CAST(REPLICATE(N'x', 500) AS nvarchar(max))")) == 50
    client("SET TEXTSIZE 2147483647")
    assert len(client.value("SELECT CAST(REPLICATE(N'x', 500) AS nvarchar(max))")) == 500


@pytest.mark.parametrize(
    ("statement", "number"),
    [
        ("SELECT * FROM dbo.nothing", 208),
        ("SELECT nothing FROM sys.tables", 207),
        ("SELEC 1", 2812),
        ("SELECT 1 SELEC 1", 102),
        ("EXEC dbo.nothing", 2812),
        ("SELECT @x", 137),
        ("SELECT CAST('x' AS int)", 245),
        ("SELECT CAST('x' AS datetime2(3))", 241),
        ("SELECT 1 / 0", 8134),
        ("COMMIT", 3902),
        ("ROLLBACK", 3903),
        ("USE elsewhere", 911),
        ("SELECT name FROM elsewhere.dbo.tables", 208),
        ("SELECT name FROM sys.tables WITH (NOLOCK)", 40510),
        ("SELECT TRY_CAST('x' AS int)", 40510),
    ],
)
def test_an_error_has_the_number_of_sql_server(client: Client, statement: str, number: int) -> None:
    assert client.error(statement) == number


def test_a_batch_continues_after_a_constraint(client: Client) -> None:
    # [DOC: SET XACT_ABORT, remarks]
    client("DROP TABLE IF EXISTS dbo.kept; CREATE TABLE dbo.kept (id int NOT NULL PRIMARY KEY)")
    insert = "INSERT INTO dbo.kept VALUES (1) INSERT INTO dbo.kept VALUES (1) INSERT INTO dbo.kept VALUES (2)"
    assert client.error(insert) == 2627
    assert client("SELECT id FROM dbo.kept ORDER BY id") == [(1,), (2,)]
    client("DELETE FROM dbo.kept")
    assert client.error("SET XACT_ABORT ON " + insert) == 2627
    assert client("SELECT id FROM dbo.kept") == [(1,)]


# -- transactions --------------------------------------------------------------------------------------------------------


@pytest.fixture
def counters(client: Client) -> Client:
    client("DROP TABLE IF EXISTS dbo.counters; CREATE TABLE dbo.counters (id int NOT NULL PRIMARY KEY, n int)")
    client("INSERT INTO dbo.counters VALUES (1, 0), (2, 0)")
    return client


def test_transactions_nest_by_count(counters: Client) -> None:
    counters("BEGIN TRAN BEGIN TRAN UPDATE dbo.counters SET n = 1")
    assert counters.value("SELECT @@TRANCOUNT") == 2
    counters("COMMIT")
    counters("SAVE TRAN here UPDATE dbo.counters SET n = 2 ROLLBACK TRAN here COMMIT")
    assert counters("SELECT n FROM dbo.counters") == [(1,), (1,)]
    counters("BEGIN TRAN BEGIN TRAN UPDATE dbo.counters SET n = 3 ROLLBACK")
    assert counters.value("SELECT @@TRANCOUNT") == 0
    assert counters("SELECT n FROM dbo.counters") == [(1,), (1,)]


def test_a_failed_statement_leaves_its_transaction(counters: Client) -> None:
    counters("BEGIN TRAN UPDATE dbo.counters SET n = 5 WHERE id = 1")
    assert counters.error("INSERT INTO dbo.counters VALUES (1, 1)") == 2627
    counters("COMMIT")
    assert counters.value("SELECT n FROM dbo.counters WHERE id = 1") == 5


def test_a_lock_ends_a_wait_by_lock_timeout(counters: Client, other: Client) -> None:
    # [RUN]
    other("BEGIN TRAN UPDATE dbo.counters SET n = 1 WHERE id = 1")
    counters("SET LOCK_TIMEOUT 50")
    assert counters.error("SELECT n FROM dbo.counters WITH (READCOMMITTEDLOCK) WHERE id = 1") == 1222
    # Row versions are read without waiting.
    assert counters.value("SELECT n FROM dbo.counters WHERE id = 1") == 0
    other("ROLLBACK")


def test_without_row_versions_a_plain_select_waits(model: SqlServerModel, counters: Client, other: Client) -> None:
    # [DOC: SET TRANSACTION ISOLATION LEVEL, READ_COMMITTED_SNAPSHOT OFF]
    counters("ALTER DATABASE shop SET READ_COMMITTED_SNAPSHOT OFF")
    try:
        other("BEGIN TRAN UPDATE dbo.counters SET n = 1 WHERE id = 1")
        counters("SET LOCK_TIMEOUT 50")
        assert counters.error("SELECT n FROM dbo.counters WHERE id = 1") == 1222
        other("COMMIT")
        assert counters.value("SELECT n FROM dbo.counters WHERE id = 1") == 1
    finally:
        counters("ALTER DATABASE shop SET READ_COMMITTED_SNAPSHOT ON")


def test_snapshot_has_to_be_allowed(counters: Client) -> None:
    # [ISS: ingestr; rule 12: the level outlives the transaction, 3952 comes later]
    counters("SET TRANSACTION ISOLATION LEVEL SNAPSHOT")
    assert counters.error("SELECT n FROM dbo.counters") == 3952


@pytest.fixture
def snapshots(counters: Client) -> Iterator[Client]:
    counters("ALTER DATABASE shop SET ALLOW_SNAPSHOT_ISOLATION ON")
    yield counters
    counters("IF @@TRANCOUNT > 0 ROLLBACK TRAN SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
    counters("ALTER DATABASE shop SET ALLOW_SNAPSHOT_ISOLATION OFF")


def test_a_snapshot_begins_with_the_first_read(snapshots: Client, other: Client) -> None:
    # [ISS: Materialize #32979; rule 12]
    snapshots("SET TRANSACTION ISOLATION LEVEL SNAPSHOT BEGIN TRAN")
    other("UPDATE dbo.counters SET n = 1")
    assert snapshots.value("SELECT n FROM dbo.counters WHERE id = 1") == 1
    other("UPDATE dbo.counters SET n = 2")
    assert snapshots.value("SELECT n FROM dbo.counters WHERE id = 1") == 1


def test_a_snapshot_that_lost_a_row_to_another_is_rolled_back(snapshots: Client, other: Client) -> None:
    # [DOC: 3960]
    snapshots("SET TRANSACTION ISOLATION LEVEL SNAPSHOT BEGIN TRAN")
    snapshots("SELECT n FROM dbo.counters")
    other("UPDATE dbo.counters SET n = 1 WHERE id = 1")
    assert snapshots.error("UPDATE dbo.counters SET n = 2 WHERE id = 1") == 3960
    assert snapshots.value("SELECT @@TRANCOUNT") == 0


def test_a_lock_on_a_table_waits_for_writers_and_keeps_them_off(counters: Client, other: Client) -> None:
    # [DOC: table hints, TABLOCK and HOLDLOCK: shared, until the transaction ends]
    locking = "SELECT TOP (1) 1 AS found FROM dbo.counters WITH (TABLOCK, HOLDLOCK)"
    counters("SET LOCK_TIMEOUT 50")
    other("SET LOCK_TIMEOUT 50")
    other("BEGIN TRAN UPDATE dbo.counters SET n = 1 WHERE id = 1")
    counters("BEGIN TRAN")
    assert counters.error(locking) == 1222
    other("ROLLBACK")
    assert counters(locking) == [(1,)]
    assert other("SELECT COUNT(*) FROM dbo.counters") == [(2,)]
    assert other.error("UPDATE dbo.counters SET n = 1 WHERE id = 1") == 1222
    counters("ROLLBACK")
    other("UPDATE dbo.counters SET n = 1 WHERE id = 1")


def test_table_locks_that_the_model_cannot_show_are_refused(counters: Client) -> None:
    assert counters.error("SELECT n FROM dbo.counters WITH (TABLOCK)") == 40510
    assert counters.error("SELECT n FROM dbo.counters WITH (TABLOCK, HOLDLOCK)") == 40510


def adds_a_column(other: Client) -> None:
    other("ALTER TABLE dbo.counters ADD more int")


def test_who_waits_for_a_lock_to_alter_a_table_is_seen(counters: Client, other: Client, model: SqlServerModel) -> None:
    # [DOC: sys.dm_exec_requests; K: the text of wait_resource]
    watching = Client(connect(Driver.FREETDS, model.address))
    number = counters.value("SELECT OBJECT_ID(N'dbo.counters')")
    spid, waiter = (client.value("SELECT @@SPID") for client in (counters, other))
    counters("BEGIN TRAN UPDATE dbo.counters SET n = 1 WHERE id = 1")
    query = "SELECT session_id, blocking_session_id, wait_resource FROM sys.dm_exec_requests WHERE wait_type = N'LCK_M_SCH_M'"
    assert watching(query) == []
    with in_background(lambda _: adds_a_column(other)):
        found = wait_until(lambda: watching(query), "a session waits", every_s=0.01)
        counters("ROLLBACK")
    assert found == [(waiter, spid, f"OBJECT: 5:{number}:0 ")]
    watching.connection.close()


def wins(other: Client) -> None:
    other("UPDATE dbo.counters SET n = 2 WHERE id = 1")


WAITING = "SELECT session_id FROM sys.dm_exec_requests WHERE wait_type LIKE N'LCK%'"


def test_the_session_of_low_priority_loses_a_deadlock(counters: Client, other: Client, model: SqlServerModel) -> None:
    # [DOC: SET DEADLOCK_PRIORITY]
    counters("SET DEADLOCK_PRIORITY LOW")
    other("SET DEADLOCK_PRIORITY HIGH")
    counters("BEGIN TRAN UPDATE dbo.counters SET n = 1 WHERE id = 1")
    other("BEGIN TRAN UPDATE dbo.counters SET n = 1 WHERE id = 2")
    watching = Client(connect(Driver.FREETDS, model.address))
    with in_background(lambda _: wins(other)):
        # The model's sessions look for a deadlock once, some time after they began to wait.
        wait_until(lambda: watching(WAITING), "the other one waits", every_s=0.01)
        assert counters.error("UPDATE dbo.counters SET n = 2 WHERE id = 2") == 1205
    other("COMMIT")
    watching.connection.close()
    assert counters.value("SELECT @@TRANCOUNT") == 0


def test_a_cancelled_wait_leaves_its_transaction(counters: Client, other: Client) -> None:
    other("BEGIN TRAN UPDATE dbo.counters SET n = 1 WHERE id = 1")
    counters("BEGIN TRAN UPDATE dbo.counters SET n = 7 WHERE id = 2")
    counters.connection.timeout = 1
    with pytest.raises(pyodbc.Error, match="HYT00"):
        counters("UPDATE dbo.counters SET n = 7 WHERE id = 1")
    counters.connection.timeout = 0
    other("ROLLBACK")
    counters("COMMIT")
    assert counters("SELECT n FROM dbo.counters ORDER BY id") == [(0,), (7,)]


def test_user_options_are_what_sessions_begin_with(model: SqlServerModel, client: Client) -> None:
    # [DOC: configure the user options server configuration option, rule 16]
    client("DROP TABLE IF EXISTS dbo.counted")
    client("CREATE TABLE dbo.counted (id int NOT NULL PRIMARY KEY)")
    client("INSERT INTO dbo.counted VALUES (1)")
    client(f"EXEC sys.sp_configure N'user options', {int(UserOption.NOCOUNT)}")
    client("RECONFIGURE")
    later = connect(Driver.FREETDS, model.address)
    try:
        for connection, is_counted in ((client.connection, True), (later, False)):
            cursor = connection.execute("UPDATE dbo.counted SET id = id")
            assert (cursor.rowcount == 1) is is_counted
    finally:
        later.close()
        client("EXEC sys.sp_configure N'user options', 0")
        client("RECONFIGURE")

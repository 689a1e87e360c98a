"""Change Data Capture on the model: what the capture job writes, and what SQL Server's procedures and functions say of it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import pytest

from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.capture.job import Failure
from replicator_testbed.sqlserver.drivers import Driver, connect
from replicator_testbed.sqlserver.model import SqlServerModel
from replicator_testing.waiting import wait_until
from tests.testbed.sqlserver.conftest import Client

pytestmark = pytest.mark.matrix

ZERO = bytes(10)
CHANGES = (
    "SELECT [__$operation], id, name FROM cdc.[{}_CT]"
    " ORDER BY [__$start_lsn], [__$command_id], [__$seqval], [__$operation]"
)


class Clock:
    """The capture job's clock, which a test moves."""

    def __init__(self) -> None:
        self.now = dt.datetime(2030, 1, 1)

    def __call__(self) -> dt.datetime:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += dt.timedelta(seconds=seconds)


@pytest.fixture(scope="module")
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cdc(postgres: PostgresServer, clock: Clock) -> Iterator[SqlServerModel]:
    """A model whose database is enabled, with a captured table; nothing is scanned unless a test does it."""
    with SqlServerModel(postgres, clock=clock) as model:
        sql = Client(connect(Driver.FREETDS, model.address))
        sql("CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, name nvarchar(20) NULL)")
        sql("EXEC sys.sp_cdc_enable_db")
        enable(sql)
        model.capture.scan_all()
        sql.connection.close()
        yield model


@pytest.fixture
def sql(cdc: SqlServerModel) -> Iterator[Client]:
    client = Client(connect(Driver.FREETDS, cdc.address))
    yield client
    client.connection.close()


@pytest.fixture
def second(cdc: SqlServerModel) -> Iterator[Client]:
    client = Client(connect(Driver.FREETDS, cdc.address))
    yield client
    client.connection.close()


def enable(sql: Client, table: str = "t", **more: str) -> None:
    arguments = {"source_schema": "dbo", "source_name": table, **more}
    written = ", ".join(f"@{name} = N'{value}'" for name, value in arguments.items())
    sql(f"EXEC sys.sp_cdc_enable_table {written}, @role_name = NULL")


def max_lsn(sql: Client) -> bytes | None:
    value = sql.value("SELECT sys.fn_cdc_get_max_lsn()")
    return None if value is None else bytes(value)


def min_lsn(sql: Client, instance: str = "dbo_t") -> bytes:
    return bytes(sql.value("SELECT sys.fn_cdc_get_min_lsn(?)", instance))


# -- commits, order and time ---------------------------------------------------------------------------------------------


def test_changes_come_in_the_order_of_commits(cdc: SqlServerModel, sql: Client, second: Client) -> None:
    # [LAB t4: commit order, not begin order; a long transaction gets a high LSN]
    sql("BEGIN TRAN INSERT INTO dbo.t VALUES (1, N'first to begin')")
    second("INSERT INTO dbo.t VALUES (2, N'first to commit')")
    sql("COMMIT")
    assert cdc.capture.scan_all() == 2
    assert [row[1] for row in sql(CHANGES.format("dbo_t"))] == [2, 1]


def test_one_transaction_has_one_lsn_in_every_table(cdc: SqlServerModel, sql: Client) -> None:
    sql("CREATE TABLE dbo.u (id int NOT NULL PRIMARY KEY, name nvarchar(20))")
    enable(sql, "u")
    cdc.capture.scan_all()
    sql("BEGIN TRAN INSERT INTO dbo.t VALUES (1, N'a') INSERT INTO dbo.u VALUES (1, N'b') COMMIT")
    cdc.capture.scan_all()
    lsn = sql.value("SELECT [__$start_lsn] FROM cdc.dbo_t_CT")
    assert sql.value("SELECT [__$start_lsn] FROM cdc.dbo_u_CT") == lsn == max_lsn(sql)
    assert sql.value("SELECT COUNT(*) FROM cdc.lsn_time_mapping WHERE start_lsn = ?", lsn) == 1


def test_what_is_rolled_back_is_not_captured(cdc: SqlServerModel, sql: Client) -> None:
    sql("BEGIN TRAN INSERT INTO dbo.t VALUES (1, N'a') ROLLBACK")
    sql(
        "BEGIN TRAN INSERT INTO dbo.t VALUES (2, N'b') SAVE TRAN s INSERT INTO dbo.t VALUES (3, N'c') ROLLBACK TRAN s COMMIT"
    )
    cdc.capture.scan_all()
    assert sql(CHANGES.format("dbo_t")) == [(2, 2, "b")]


def test_a_transaction_of_several_statements(cdc: SqlServerModel, sql: Client) -> None:
    # [LAB t3: measured as 2, 3, 4, 3, 4, 1]
    sql(
        "BEGIN TRAN INSERT INTO dbo.t VALUES (1, N'a') UPDATE dbo.t SET name = N'b' UPDATE dbo.t SET name = N'c' DELETE FROM dbo.t COMMIT"
    )
    cdc.capture.scan_all()
    assert [row[0] for row in sql(CHANGES.format("dbo_t"))] == [2, 3, 4, 3, 4, 1]


def test_shifted_keys_are_deleted_before_they_are_inserted(cdc: SqlServerModel, sql: Client) -> None:
    # [ISS: PowerSync #742]
    sql("INSERT INTO dbo.t VALUES (1, N'a'), (2, N'b')")
    sql("UPDATE dbo.t SET id = id + 1")
    cdc.capture.scan_all()
    assert sql(CHANGES.format("dbo_t"))[2:] == [(1, 1, "a"), (1, 2, "b"), (2, 2, "a"), (2, 3, "b")]


def test_max_lsn_first_then_changes_up_to_it_is_complete(cdc: SqlServerModel, sql: Client) -> None:
    # [LAB t4: 0 probes grew later; DOC: one transaction for each scan]
    query = "SELECT COUNT(*) FROM cdc.dbo_t_CT WHERE [__$start_lsn] <= ?"
    probes = []
    for key in range(5):
        sql("INSERT INTO dbo.t VALUES (?, N'x')", key)
        cdc.capture.scan()
        top = max_lsn(sql)
        probes.append((top, sql.value(query, top)))
    cdc.capture.scan_all()
    assert [sql.value(query, top) for top, _ in probes] == [count for _, count in probes] == [1, 2, 3, 4, 5]


def test_an_idle_database_gets_a_row_without_a_transaction(cdc: SqlServerModel, sql: Client, clock: Clock) -> None:
    # [LAB t1: tran_id 0x00 about every 305 s, so max_lsn is up to 300 s stale]
    sql("INSERT INTO dbo.t VALUES (1, N'a')")
    cdc.capture.scan_all()
    before = max_lsn(sql)
    clock.pass_(300)
    cdc.capture.scan_all()
    assert max_lsn(sql) == before
    clock.pass_(5)
    cdc.capture.scan_all()
    top = max_lsn(sql)
    assert before is not None
    assert top is not None
    assert top > before
    assert [bytes(row[0]) for row in sql("SELECT tran_id FROM cdc.lsn_time_mapping WHERE start_lsn = ?", top)] == [
        b"\0"
    ]
    sql("INSERT INTO dbo.t VALUES (2, N'b')")
    cdc.capture.scan_all()
    after = max_lsn(sql)
    assert after is not None
    assert after > top


def test_lsns_are_counted_up_and_down(sql: Client) -> None:
    assert sql.value("SELECT sys.fn_cdc_increment_lsn(0x000000000000000100FF)").hex() == "00000000000000010100"
    assert sql.value("SELECT sys.fn_cdc_decrement_lsn(0x00000000000000010100)").hex() == "000000000000000100ff"


def test_an_lsn_has_a_time_and_a_time_has_an_lsn(cdc: SqlServerModel, sql: Client) -> None:
    sql("INSERT INTO dbo.t VALUES (1, N'a')")
    cdc.capture.scan_all()
    time = sql.value("SELECT sys.fn_cdc_map_lsn_to_time(sys.fn_cdc_get_max_lsn())")
    assert time is not None
    found = sql.value(
        "SELECT sys.fn_cdc_map_time_to_lsn('largest less than or equal', CAST(? AS datetime))", time.isoformat()
    )
    assert bytes(found) == max_lsn(sql)


# -- ranges --------------------------------------------------------------------------------------------------------------


def test_min_lsn_is_zero_until_the_enable_was_captured(cdc: SqlServerModel, sql: Client) -> None:
    # [rule 4]
    enable(sql, capture_instance="v2")
    assert min_lsn(sql, "v2") == ZERO
    cdc.capture.scan_all()
    assert min_lsn(sql, "v2") > min_lsn(sql)
    assert min_lsn(sql, "unknown") == ZERO


def test_a_purged_range_is_refused_by_the_function_and_empty_in_the_table(cdc: SqlServerModel, sql: Client) -> None:
    # [LAB destructive: rule 4]
    for key in range(3):
        sql("INSERT INTO dbo.t VALUES (?, N'x')", key)
        cdc.capture.scan_all()
    first, last = min_lsn(sql), max_lsn(sql)
    function = "SELECT COUNT(*) FROM cdc.fn_cdc_get_all_changes_dbo_t(?, sys.fn_cdc_get_max_lsn(), N'all')"
    assert sql.value(function, first) == 3
    assert last is not None
    cdc.capture.raise_low_watermark(last)
    # Half done: the rows are there still, and the function already refuses them.
    assert sql.error(function, first) == 313
    assert sql.value("SELECT COUNT(*) FROM cdc.dbo_t_CT WHERE [__$start_lsn] < ?", last) == 2
    cdc.capture.delete_below()
    assert sql.value("SELECT COUNT(*) FROM cdc.dbo_t_CT WHERE [__$start_lsn] < ?", last) == 0
    assert min_lsn(sql) == last


def test_the_function_has_no_command_id(cdc: SqlServerModel, sql: Client) -> None:
    # [rule 4]
    cursor = sql.connection.cursor()
    sql("INSERT INTO dbo.t VALUES (1, N'a')")
    cdc.capture.scan_all()
    cursor.execute(
        "SELECT * FROM cdc.fn_cdc_get_all_changes_dbo_t(sys.fn_cdc_get_min_lsn('dbo_t'), sys.fn_cdc_get_max_lsn(), N'all update old')"
    )
    assert [c[0] for c in cursor.description] == [
        "__$start_lsn",
        "__$seqval",
        "__$operation",
        "__$update_mask",
        "id",
        "name",
    ]
    cursor.close()


def test_cleanup_raises_the_start_of_an_idle_table_too(cdc: SqlServerModel, sql: Client, clock: Clock) -> None:
    # [rule 5, airbyte #37772]
    sql("CREATE TABLE dbo.idle (id int NOT NULL PRIMARY KEY)")
    enable(sql, "idle")
    cdc.capture.scan_all()
    before = min_lsn(sql, "dbo_idle")
    sql("EXEC sys.sp_cdc_change_job @job_type = N'cleanup', @retention = 10")
    clock.now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
    sql("INSERT INTO dbo.t VALUES (1, N'a')")
    cdc.capture.scan_all()
    clock.pass_(3600)
    cdc.capture.scan_all()
    cdc.capture.clean_up()
    assert min_lsn(sql, "dbo_idle") > before
    assert sql(CHANGES.format("dbo_t")) == []


def test_one_instance_is_cleaned_up_by_itself(cdc: SqlServerModel, sql: Client) -> None:
    # [DOC: rule 5]
    sql("INSERT INTO dbo.t VALUES (1, N'a')")
    sql("INSERT INTO dbo.t VALUES (2, N'b')")
    cdc.capture.scan_all()
    low = "(SELECT [__$start_lsn] FROM cdc.dbo_t_CT WHERE id = 2)"
    sql(f"DECLARE @low binary(10) SET @low = {low} EXEC sys.sp_cdc_cleanup_change_table N'dbo_t', @low")
    assert [row[0] for row in sql("SELECT id FROM cdc.dbo_t_CT")] == [2]
    assert min_lsn(sql, "dbo_t") == sql.value("SELECT [__$start_lsn] FROM cdc.dbo_t_CT")
    assert sql.error("EXEC sys.sp_cdc_cleanup_change_table N'nothing', NULL") == 22959


def test_rows_that_are_switched_out_are_not_captured(cdc: SqlServerModel, sql: Client) -> None:
    # [DOC, K: rule 10]
    sql("CREATE TABLE dbo.staged (id int NOT NULL PRIMARY KEY, v nvarchar(50))")
    sql("INSERT INTO dbo.t VALUES (1, N'a')")
    sql("ALTER TABLE dbo.t SWITCH TO dbo.staged")
    assert sql("SELECT id FROM dbo.t") == []
    assert sql("SELECT id FROM dbo.staged") == [(1,)]
    sql("INSERT INTO dbo.t VALUES (2, N'b')")
    assert sql.error("ALTER TABLE dbo.t SWITCH PARTITION 1 TO dbo.staged") == 4905
    cdc.capture.scan_all()
    assert [row[0] for row in sql("SELECT id FROM cdc.dbo_t_CT")] == [1, 2]


def test_a_switch_is_barred_for_partitioned_tables_only(sql: Client) -> None:
    # [DOC: rule 10; the number: K]
    sql("CREATE PARTITION FUNCTION by_id (int) AS RANGE RIGHT FOR VALUES (100)")
    sql("CREATE PARTITION SCHEME by_id AS PARTITION by_id ALL TO ([PRIMARY])")
    sql("CREATE TABLE dbo.parts (id int NOT NULL PRIMARY KEY, v nvarchar(50)) ON by_id(id)")
    sql("CREATE TABLE dbo.staged (id int NOT NULL PRIMARY KEY, v nvarchar(50))")
    for table in ("t", "parts"):
        sql(f"EXEC sys.sp_cdc_enable_table N'dbo', N'{table}', NULL, N'strict_{table}', @allow_partition_switch = 0")
    set_to = (
        "SELECT partition_switch FROM cdc.change_tables WHERE capture_instance <> N'dbo_t' ORDER BY capture_instance"
    )
    assert sql(set_to) == [(False,), (True,)]
    assert sql.error("ALTER TABLE dbo.parts SWITCH PARTITION 1 TO dbo.staged") == 22895
    sql("ALTER TABLE dbo.t SWITCH TO dbo.staged")


# -- instances and definitions -------------------------------------------------------------------------------------------


def test_a_second_instance_has_the_changes_from_its_start(cdc: SqlServerModel, sql: Client) -> None:
    # [LAB: rule 6, 259 + 426 of 685 commits, none lost, equal (start_lsn, seqval)]
    sql("INSERT INTO dbo.t VALUES (1, N'a')")
    enable(sql, capture_instance="v2")
    sql("INSERT INTO dbo.t VALUES (2, N'b')")
    cdc.capture.scan_all()
    start = min_lsn(sql, "v2")
    query = "SELECT [__$start_lsn], [__$seqval], id FROM cdc.{}_CT WHERE [__$start_lsn] {} ?"
    assert [row[2] for row in sql(query.format("dbo_t", "<"), start)] == [1]
    assert sql(query.format("v2", "<"), start) == []
    assert sql(query.format("dbo_t", ">="), start) == sql(query.format("v2", ">="), start)


def test_a_third_instance_is_refused(sql: Client) -> None:
    # [LAB: rule 6]
    enable(sql, capture_instance="v2")
    assert sql.error("EXEC sys.sp_cdc_enable_table N'dbo', N't', NULL, N'v3'") == 22962


def test_names_of_instances_are_short_and_no_two_alike(sql: Client) -> None:
    # [DOC: rule 6; the numbers: K]
    sql("CREATE TABLE dbo.u (id int NOT NULL PRIMARY KEY)")
    assert sql.error("EXEC sys.sp_cdc_enable_table N'dbo', N'u', NULL, N'DBO_T'") == 22926
    assert sql.error(f"EXEC sys.sp_cdc_enable_table N'dbo', N'u', NULL, N'{'i' * 101}'") == 22927


def test_a_disabled_instance_is_missing_at_once(cdc: SqlServerModel, sql: Client) -> None:
    # [rule 6]
    sql("EXEC sys.sp_cdc_disable_table N'dbo', N't', N'dbo_t'")
    assert sql.error("SELECT * FROM cdc.dbo_t_CT") == 208
    sql("INSERT INTO dbo.t VALUES (1, N'a')")
    assert cdc.capture.scan_all() == 0


def test_instances_are_described(sql: Client) -> None:
    ((schema, table, instance, *_, keys, columns),) = sql("EXEC sys.sp_cdc_help_change_data_capture")
    assert (schema, table, instance, keys, columns) == ("dbo", "t", "dbo_t", "id", "id, name")
    assert sql("SELECT column_name, column_ordinal, column_type FROM cdc.captured_columns") == [
        ("id", 1, "int"),
        ("name", 2, "nvarchar"),
    ]
    assert sql("SELECT column_name, index_ordinal FROM cdc.index_columns") == [("id", 1)]


def test_an_added_column_is_not_captured(cdc: SqlServerModel, sql: Client) -> None:
    # [LAB: rule 7; ddl_time in whole minutes; ddl_history was never behind max_lsn]
    sql("INSERT INTO dbo.t VALUES (1, N'a')")
    sql("ALTER TABLE dbo.t ADD extra int NULL")
    sql("UPDATE dbo.t SET extra = 5")
    sql("UPDATE dbo.t SET name = N'b'")
    cdc.capture.scan_all()
    assert sql(CHANGES.format("dbo_t")) == [(2, 1, "a"), (3, 1, "a"), (4, 1, "b")]
    ((required, command, lsn, time),) = sql(
        "SELECT required_column_update, ddl_command, ddl_lsn, ddl_time FROM cdc.ddl_history"
    )
    assert (required, command, time.second) == (False, "ALTER TABLE dbo.t ADD extra int NULL", 0)
    top = max_lsn(sql)
    assert top is not None
    assert bytes(lsn) < top


def test_a_dropped_column_is_null_and_stays_listed(cdc: SqlServerModel, sql: Client) -> None:
    # [LAB: rule 7]
    sql("ALTER TABLE dbo.t DROP COLUMN name")
    sql("INSERT INTO dbo.t VALUES (1)")
    cdc.capture.scan_all()
    assert sql(CHANGES.format("dbo_t")) == [(2, 1, None)]
    assert sql.value("SELECT COUNT(*) FROM cdc.captured_columns WHERE column_name = 'name'") == 1


def test_a_column_with_the_name_of_a_dropped_one_is_not_captured(cdc: SqlServerModel, sql: Client) -> None:
    # [LAB: rule 7, of both; DOC: column_id is that of the table]
    sql("ALTER TABLE dbo.t DROP COLUMN name")
    sql("ALTER TABLE dbo.t ADD name nvarchar(50) NULL")
    sql("INSERT INTO dbo.t (id, name) VALUES (1, N'a')")
    cdc.capture.scan_all()
    sql("INSERT INTO dbo.t (id, name) VALUES (2, N'b')")
    sql("UPDATE dbo.t SET name = N'c'")
    cdc.capture.scan_all()
    assert sql(CHANGES.format("dbo_t")) == [(2, 1, None), (2, 2, None)]
    ids = "SELECT column_id FROM {} WHERE {} AND object_id = OBJECT_ID(N'{}')"
    captured = sql.value("SELECT column_id FROM cdc.captured_columns WHERE column_name = 'name'")
    assert captured != sql.value(ids.format("sys.columns", "name = 'name'", "dbo.t"))


def test_an_altered_type_alters_the_change_table(cdc: SqlServerModel, sql: Client) -> None:
    # [LAB: rule 7: old rows are converted, required_column_update = 1]
    sql("INSERT INTO dbo.t VALUES (1, N'5')")
    cdc.capture.scan_all()
    sql("ALTER TABLE dbo.t ALTER COLUMN name nvarchar(200) NULL")
    cdc.capture.scan_all()
    assert (
        sql.value("SELECT max_length FROM sys.columns WHERE name = 'name' AND object_id = OBJECT_ID('cdc.dbo_t_CT')")
        == 400
    )
    assert sql.value("SELECT required_column_update FROM cdc.ddl_history") is True


def test_an_identity_is_an_int_or_a_bigint_in_the_change_table(cdc: SqlServerModel, sql: Client) -> None:
    # [DOC: cdc.<capture_instance>_CT; K which of them is which] rule 7
    kinds = ("tinyint", "smallint", "int", "bigint", "numeric(9,0)", "decimal(18,0)")
    for number, kind in enumerate(kinds):
        sql(f"CREATE TABLE dbo.i{number} (id {kind} IDENTITY(3,2) NOT NULL PRIMARY KEY, n int)")
        enable(sql, f"i{number}")
        sql(f"INSERT INTO dbo.i{number} (n) VALUES (1), (2)")
    cdc.capture.scan_all()
    for number, kind in enumerate(kinds):
        kept = (
            "SELECT t.name FROM sys.columns c JOIN sys.types t ON t.user_type_id = c.user_type_id"
            f" WHERE c.object_id = OBJECT_ID(N'cdc.dbo_i{number}_CT') AND c.name = N'id'"
        )
        assert sql.value(kept) == ("int" if kind in {"tinyint", "smallint", "int"} else "bigint"), kind
        assert sql(f"SELECT id FROM cdc.dbo_i{number}_CT ORDER BY id") == [(3,), (5,)], kind
        assert sql(f"SELECT id FROM dbo.i{number} ORDER BY id") == [(3,), (5,)], kind
        assert sql.value(
            f"SELECT is_identity FROM sys.columns WHERE object_id = OBJECT_ID(N'dbo.i{number}') AND name = N'id'"
        )


@pytest.mark.parametrize(
    ("statement", "number"),
    [
        ("TRUNCATE TABLE dbo.t", 4711),
        ("EXEC sp_rename N'dbo.t.name', N'title', N'COLUMN'", 4928),
        ("ALTER TABLE dbo.t ALTER COLUMN id bigint NOT NULL", 4922),
    ],
)
def test_what_cdc_refuses(sql: Client, statement: str, number: int) -> None:
    # [LAB: rule 7; the numbers other than 4711 are K]
    assert sql.error(statement) == number
    sql("EXEC sys.sp_cdc_disable_table N'dbo', N't', N'all'")
    sql(statement)


def test_a_renamed_table_is_captured_and_not_recorded(cdc: SqlServerModel, sql: Client) -> None:
    # [LAB: rule 7]
    sql("EXEC sp_rename N'dbo.t', N'renamed'")
    sql("INSERT INTO dbo.renamed VALUES (1, N'a')")
    cdc.capture.scan_all()
    assert sql(CHANGES.format("dbo_t")) == [(2, 1, "a")]
    assert sql("SELECT * FROM cdc.ddl_history") == []
    assert sql.value("SELECT source_object_id FROM cdc.change_tables") == sql.value("SELECT OBJECT_ID('dbo.renamed')")


def test_a_value_over_max_text_repl_size_fails_in_the_application(sql: Client) -> None:
    # [DOC: rule 9]
    sql("CREATE TABLE dbo.large (id int NOT NULL PRIMARY KEY, v nvarchar(max))")
    sql("INSERT INTO dbo.large VALUES (1, REPLICATE(N'x', 40000))")
    enable(sql, "large")
    assert sql.error("INSERT INTO dbo.large VALUES (2, REPLICATE(N'x', 40000))") == 7139
    sql("EXEC sp_configure 'max text repl size', -1")
    assert sql.error("INSERT INTO dbo.large VALUES (2, REPLICATE(N'x', 40000))") == 7139
    sql("RECONFIGURE")
    sql("INSERT INTO dbo.large VALUES (2, REPLICATE(N'x', 40000))")


# -- the job -------------------------------------------------------------------------------------------------------------


def test_a_scan_takes_maxtrans_transactions(cdc: SqlServerModel, sql: Client) -> None:
    # [DOC: sys.sp_cdc_add_job]
    sql("EXEC sys.sp_cdc_change_job @job_type = N'capture', @maxtrans = 2")
    for key in range(5):
        sql("INSERT INTO dbo.t VALUES (?, N'x')", key)
    assert [cdc.capture.scan() for _ in range(4)] == [2, 2, 1, None]
    assert [
        row[0]
        for row in sql("SELECT tran_count FROM sys.dm_cdc_log_scan_sessions WHERE tran_count > 0 ORDER BY session_id")
    ] == [
        2,
        2,
        1,
    ]


def test_a_stopped_job_captures_nothing_and_says_nothing(cdc: SqlServerModel, sql: Client) -> None:
    # [ISS: Estuary #4902]
    sql("EXEC sys.sp_cdc_stop_job")
    sql("INSERT INTO dbo.t VALUES (1, N'a')")
    assert cdc.capture.scan_all() == 0
    assert sql("SELECT * FROM sys.dm_cdc_errors") == []
    sql("EXEC sys.sp_cdc_start_job")
    assert cdc.capture.scan_all() == 1


def test_after_a_failover_there_are_no_jobs(cdc: SqlServerModel, sql: Client) -> None:
    # [ISS: Redis docs #3850, Estuary #4902, #2547]
    cdc.capture.fail_over()
    sql("INSERT INTO dbo.t VALUES (1, N'a')")
    assert cdc.capture.scan_all() == 0
    assert sql("SELECT job_type FROM msdb.dbo.cdc_jobs") == []
    assert sql("SELECT * FROM sys.dm_cdc_log_scan_sessions") == []
    sql("EXEC sys.sp_cdc_add_job @job_type = N'capture'")
    assert cdc.capture.scan_all() == 1


def test_a_job_that_fails_says_so_and_captures_nothing(cdc: SqlServerModel, sql: Client) -> None:
    # [rule 10: 2628 after a column became smaller; K: what is noted behind it]
    before = max_lsn(sql)
    cdc.capture.failure = Failure(number=2628, text="String or binary data would be truncated")
    sql("INSERT INTO dbo.t VALUES (1, N'a')")
    assert cdc.capture.scan_all() == 0
    errors = sql("SELECT e.error_number, e.session_id FROM sys.dm_cdc_errors e ORDER BY e.entry_time")
    ((session,),) = sql("SELECT session_id FROM sys.dm_cdc_log_scan_sessions WHERE error_count = 3")
    assert sorted(errors) == [(2628, session), (22859, session), (22863, session)]
    assert max_lsn(sql) == before
    cdc.capture.failure = None
    assert cdc.capture.scan_all() == 1


def test_a_lagging_job_leaves_what_is_recent(cdc: SqlServerModel, sql: Client, clock: Clock) -> None:
    clock.now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
    cdc.capture.lag = dt.timedelta(hours=1)
    sql("INSERT INTO dbo.t VALUES (1, N'a')")
    assert cdc.capture.scan_all() == 0
    clock.pass_(2 * 3600)
    assert cdc.capture.scan_all() == 1


def test_a_job_that_was_killed_between_its_commit_and_the_slot_doubles_nothing(
    cdc: SqlServerModel, sql: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql("INSERT INTO dbo.t VALUES (1, N'a')")
    waiting = cdc.capture._waiting()
    cdc.capture._capture(waiting, cdc.capture._clock(), None)
    assert cdc.capture.scan_all() == 0
    assert sql(CHANGES.format("dbo_t")) == [(2, 1, "a")]


def test_a_thread_captures_while_others_write(cdc: SqlServerModel, sql: Client, second: Client) -> None:
    cdc.capture.start()
    for key in range(20):
        (sql if key % 2 else second)("INSERT INTO dbo.t VALUES (?, N'x')", key)
    wait_until(lambda: sql.value("SELECT COUNT(*) FROM cdc.dbo_t_CT") == 20, "everything is captured")
    cdc.capture.stop()
    lsns = [row[0] for row in sql("SELECT [__$start_lsn] FROM cdc.dbo_t_CT ORDER BY id")]
    assert len(set(lsns)) == 20


def test_a_snapshot_transaction_reads_the_current_max_lsn(cdc: SqlServerModel, sql: Client, second: Client) -> None:
    # [ISS: ingestr; rule 12]
    sql("ALTER DATABASE shop SET ALLOW_SNAPSHOT_ISOLATION ON")
    sql("SET TRANSACTION ISOLATION LEVEL SNAPSHOT BEGIN TRAN")
    sql("SELECT * FROM dbo.t")
    second("INSERT INTO dbo.t VALUES (1, N'a')")
    cdc.capture.scan_all()
    assert max_lsn(sql) == max_lsn(second)
    assert sql("SELECT * FROM dbo.t") == []
    sql("ROLLBACK")


def test_everything_is_removed_when_the_database_is_disabled(cdc: SqlServerModel, sql: Client) -> None:
    sql("EXEC sys.sp_cdc_disable_db")
    assert sql.value("SELECT is_cdc_enabled FROM sys.databases WHERE name = DB_NAME()") is False
    assert sql("SELECT name FROM sys.schemas WHERE name = 'cdc'") == []
    assert sql.error("EXEC sys.sp_cdc_help_change_data_capture") == 22901
    sql("EXEC sys.sp_cdc_enable_db")
    enable(sql)
    sql("INSERT INTO dbo.t VALUES (1, N'a')")
    assert cdc.capture.scan_all() == 1


def test_the_end_of_the_log_is_behind_everything_that_is_visible(cdc: SqlServerModel, sql: Client) -> None:
    # [DOC sys.dm_db_log_stats: the last log record, and nothing on a secondary replica; K for its spelling: rule 18]
    ask = "SELECT log_end_lsn FROM sys.dm_db_log_stats(DB_ID())"
    ends = []
    for key in range(5):
        sql("INSERT INTO dbo.t VALUES (?, N'x')", key)
        ends.append(bytes.fromhex(sql.value(ask).replace(":", "")))
    cdc.capture.scan_all()
    commits = [bytes(row[0]) for row in sql("SELECT [__$start_lsn] FROM cdc.dbo_t_CT ORDER BY [__$start_lsn]")]
    assert all(commit <= end for commit, end in zip(commits, ends, strict=True))
    assert all(end < commit for end, commit in zip(ends, commits[1:], strict=False))
    cdc.change(is_read_only=True)
    assert sql.value(ask) is None


def test_a_database_with_two_instances_of_a_table_is_disabled(cdc: SqlServerModel, sql: Client) -> None:
    # [DOC sys.sp_cdc_disable_db: every instance goes]
    sql("EXEC sys.sp_cdc_enable_table N'dbo', N't', NULL, @capture_instance = N'dbo_t_2'")
    cdc.capture.scan_all()
    sql("EXEC sys.sp_cdc_disable_db")
    sql("INSERT INTO dbo.t VALUES (1, N'a')")
    assert sql.value("SELECT is_cdc_enabled FROM sys.databases WHERE name = DB_NAME()") == 0

"""Whatever writes rows of a SQL Server, and whatever is computed in them: the journal replays to what the source holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from replicator.model.schema import TableId
from replicator.state.records import Stage
from replicator_testbed.sqlserver.databases import SqlServerDatabase, enable
from tests.integration.capture_sqlserver.conftest import Make, assert_equal

AFTER_UPDATE = """CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO dbo.trail (v, w) VALUES (OLD.v, NEW.v); RETURN NULL; END $$"""
CASCADES = (
    "CREATE UNIQUE INDEX ON dbo.elder (id)",
    "CREATE UNIQUE INDEX ON dbo.parent (id)",
    "ALTER TABLE dbo.parent ADD FOREIGN KEY (e) REFERENCES dbo.elder (id) ON DELETE CASCADE ON UPDATE CASCADE",
    "ALTER TABLE dbo.child ADD FOREIGN KEY (p) REFERENCES dbo.parent (id) ON DELETE SET NULL ON UPDATE CASCADE",
)
"""The model's T-SQL has no triggers and no foreign keys. Those of its PostgreSQL do what theirs would: their changes are in the log."""


@pytest.mark.matrix
@pytest.mark.condition("D23")
def test_whatever_writes_rows_is_in_the_log(each_database: SqlServerDatabase, make: Make) -> None:
    database = each_database
    database.execute(
        "CREATE TABLE a (id int IDENTITY(1, 1) NOT NULL PRIMARY KEY, v int NULL, u int NULL UNIQUE)",
        "CREATE TABLE b (id int NOT NULL PRIMARY KEY, v int NULL)",
        "CREATE TABLE trail (n int IDENTITY(1, 1) NOT NULL PRIMARY KEY, v int NULL, w int NULL)",
    )
    database.server.database.execute(AFTER_UPDATE)
    database.server.database.execute("CREATE TRIGGER noted AFTER UPDATE ON dbo.a FOR EACH ROW EXECUTE FUNCTION noted()")
    database.capture("a", "b", "trail")
    captured = make(database, "a", "b", "trail")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute(
            "INSERT INTO a (v, u) VALUES (1, 1), (2, 2), (3, 3), (4, NULL)",
            "INSERT INTO b SELECT id, v FROM a",
            "MERGE INTO b USING (SELECT id + 2 AS id, v FROM a) AS s ON b.id = s.id"
            " WHEN MATCHED THEN UPDATE SET v = s.v * 10 WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, s.v);",
            "UPDATE a SET v = a.v + b.v FROM b WHERE b.id = a.id AND b.id > 1",
            "DELETE FROM b WHERE EXISTS (SELECT 1 FROM a WHERE a.id = b.id AND a.u = 3)",
            "UPDATE TOP (1) b SET v = -1",
            "UPDATE a SET u = 7 - u WHERE u IS NOT NULL",
            "INSERT INTO trail (v, w) SELECT v, w FROM trail",
            "DELETE TOP (2) FROM trail",
        )
        captured.catch_up(running)
    assert sum(captured.rows(TableId("dbo", "trail")).values()) > 3, "the trigger wrote"
    assert_equal(captured, database, "a", "b", "trail")


@pytest.mark.matrix
@pytest.mark.condition("D22")
def test_what_cascades_do_is_in_the_log(each_database: SqlServerDatabase, make: Make) -> None:
    database = each_database
    database.execute(
        "CREATE TABLE elder (id int NOT NULL PRIMARY KEY)",
        "CREATE TABLE parent (id int NOT NULL PRIMARY KEY, e int NULL)",
        "CREATE TABLE child (id int NOT NULL PRIMARY KEY, p int NULL)",
        "INSERT INTO elder VALUES (1), (2), (3)",
        "INSERT INTO parent VALUES (1, 1), (2, 2), (3, 3)",
        "INSERT INTO child VALUES (1, 1), (2, 1), (3, 2), (4, 3)",
    )
    for statement in CASCADES:
        database.server.database.execute(statement)
    database.capture("child", "parent")
    # The eldest are not followed.
    captured = make(database, "child", "parent")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute(
            "DELETE FROM elder WHERE id = 1",
            "UPDATE parent SET id = 20 WHERE id = 2",
            "UPDATE elder SET id = 30 WHERE id = 3",
        )
        captured.catch_up(running)
    assert captured.rows(TableId("dbo", "child")) == Counter({(1, None): 1, (2, None): 1, (3, 20): 1, (4, 3): 1})
    assert_equal(captured, database, "child", "parent")


@pytest.mark.matrix
@pytest.mark.condition("D25")
def test_what_was_changed_while_nobody_captured_is_read_again(each_database: SqlServerDatabase, make: Make) -> None:
    database = each_database
    off, on = (
        ("ALTER TABLE dbo.t DISABLE CHANGE_TRACKING", "ALTER TABLE dbo.t ENABLE CHANGE_TRACKING")
        if database.is_tracked
        else (
            "EXEC sys.sp_cdc_disable_table @source_schema = N'dbo', @source_name = N't', @capture_instance = N'all'",
            enable("t"),
        )
    )
    database.execute("CREATE TABLE t (id int NOT NULL PRIMARY KEY, v int NULL)")
    database.capture("t")
    database.execute("INSERT INTO t VALUES " + ", ".join(f"({i}, 0)" for i in range(1, 31)))
    captured, table = make(database, "t"), TableId("dbo", "t")
    captured.settings = replace(captured.settings, compare_every_s=0.2, cure_every_s=0.2)
    hidden = ("UPDATE t SET v = 1 WHERE id = 3", "DELETE FROM t WHERE id = 4", "INSERT INTO t VALUES (100, 1)")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute("UPDATE t SET v = 7 WHERE id = 8", off, *hidden)
        running.wait_until(lambda: captured.stage(table) is Stage.FAILED, "the table has failed")
        assert captured.rows(table) != Counter(map(tuple, database.rows("t", ("id", "v"))))
        database.execute(on)
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    assert_equal(captured, database, "t")
    # At once, so that nobody notices in between; and while no replicator runs.
    with captured.running() as running:
        captured.catch_up(running)
        database.execute(off, "UPDATE t SET v = 2 WHERE id = 5", "DELETE FROM t WHERE id = 6", on)
        running.wait_until(lambda: (5, 2) in captured.rows(table), "the table is read again")
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    assert_equal(captured, database, "t")
    database.execute(off, "UPDATE t SET v = 3 WHERE id = 7", "DELETE FROM t WHERE id = 8", on)
    with captured.running() as running:
        running.wait_until(lambda: (7, 3) in captured.rows(table), "the table is read again")
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    assert_equal(captured, database, "t")


@pytest.mark.matrix
@pytest.mark.condition("D29")
def test_columns_that_the_server_fills_are_the_same_from_a_chunk_and_from_the_log(
    each_database: SqlServerDatabase, make: Make
) -> None:
    database = each_database
    database.execute(
        "CREATE TABLE t (id int IDENTITY(1, 1) NOT NULL PRIMARY KEY, v int NULL, twice AS (v * 2) PERSISTED,"
        " seen timestamp, few nvarchar(20) SPARSE NULL, made datetime2(6) NOT NULL DEFAULT SYSUTCDATETIME())",
    )
    database.capture("t")
    database.execute("INSERT INTO t (v, few) VALUES " + ", ".join(f"({i}, NULL)" for i in range(1, 25)))
    captured = make(database, "t")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute(
            "UPDATE t SET v = v + 100 WHERE id IN (3, 14)",
            "UPDATE t SET few = N'x' WHERE id IN (5, 16)",
            "INSERT INTO t (v, few) VALUES (0, N'new')",
            "DELETE FROM t WHERE id = 7",
        )
        captured.catch_up(running)
    columns = ("id", "v", "seen", "few", "made")
    schema = captured.record(TableId("dbo", "t")).schema
    assert schema is not None
    assert tuple(column.name for column in schema.columns) == columns, "computed columns are left out"
    assert captured.rows(TableId("dbo", "t")) == Counter(map(tuple, database.rows("t", columns)))

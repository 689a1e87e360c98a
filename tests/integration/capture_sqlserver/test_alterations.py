"""Tables of a SQL Server that are altered, emptied, switched or replaced while they are copied: the journal ends equal to the source."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pyodbc
import pytest

from replicator.model.schema import TableId
from replicator.state.records import Stage
from replicator_testbed.journals.captured import Captured, RunningCapture
from replicator_testbed.sqlserver.databases import SqlServerDatabase, enable
from tests.integration.capture_sqlserver.conftest import Around, Make, Moment, assert_equal

T = TableId("dbo", "t")


def fill(database: SqlServerDatabase, name: str = "t", rows: int = 45) -> None:
    database.execute(f"CREATE TABLE {name} (id int NOT NULL PRIMARY KEY, v int NOT NULL, note nvarchar(20) NULL)")
    database.capture(name)
    database.execute(f"INSERT INTO {name} VALUES " + ", ".join(f"({i}, 0, N'x')" for i in range(1, rows + 1)))


def settled(captured: Captured, running: RunningCapture) -> None:
    """What begins a new snapshot is in the log, and so is the end of that snapshot."""
    for _ in range(3):
        captured.catch_up(running)
        captured.wait_for_streaming(running)


@pytest.mark.matrix
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "moment", ["inside", *(pytest.param(m, marks=pytest.mark.matrix) for m in ("before", "behind"))]
)
@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE dbo.t ADD more int",
        pytest.param("ALTER TABLE dbo.t ALTER COLUMN v bigint NOT NULL", marks=pytest.mark.matrix),
        pytest.param("ALTER TABLE dbo.t DROP COLUMN note", marks=pytest.mark.matrix),
    ],
)
@pytest.mark.condition("D18")
def test_a_table_that_is_altered_while_a_chunk_is_read_ends_equal(
    each_database: SqlServerDatabase, make: Make, around_reads: Around, moment: Moment, statement: str
) -> None:
    database = each_database
    fill(database)
    captured = make(database, "t")
    captured.settings = replace(captured.settings, compare_every_s=0.2, cure_every_s=0.2)
    is_done: list[bool] = []

    def alter(number: int, _: str) -> None:
        if number == 2 and not is_done:
            is_done.append(True)
            database.execute(
                statement, "UPDATE t SET v = 5 WHERE id IN (3, 14, 40)", "DELETE FROM t WHERE id IN (5, 41)"
            )
            if "ADD" in statement and not database.is_tracked:
                database.execute(enable("t", "second"))

    with captured.running(alter=lambda source: around_reads(source, moment, alter)) as running:
        running.wait_until(lambda: is_done, "it is altered")
        # Where the catalogue shows it before the log does, it needs an answer of a person (`schema_changed`): a new snapshot is one.
        running.wait_until(lambda: captured.stage(T) in (Stage.STREAMING, Stage.FAILED), "it is copied or failed")
        captured.catch_up(running)
        if captured.stage(T) is Stage.FAILED:
            captured.snapshot(running, T)
        settled(captured, running)
        if "ADD" in statement:
            database.execute("UPDATE t SET more = id WHERE id IN (1, 20, 45)")
        database.execute("UPDATE t SET v = v + 1 WHERE id IN (2, 30)")
        captured.catch_up(running)
        if "DROP" in statement:
            captured.snapshot(running)
            captured.catch_up(running)
    schema = captured.record(T).schema
    assert schema is not None
    names = [column.name for column in schema.columns]
    wanted = set(database.columns("t"))
    assert wanted <= set(names)
    rows = Counter(
        tuple(v for v, n in zip(row, names, strict=True) if n in wanted) for row in captured.rows(T).elements()
    )
    assert rows == Counter(map(tuple, database.rows("t", [name for name in names if name in wanted])))


@pytest.mark.matrix
@pytest.mark.condition("D21")
def test_a_captured_table_is_not_truncated(captured_database: SqlServerDatabase, make: Make) -> None:
    """The server refuses it, so nothing of it can be missing in the log; and rows that are deleted are there."""
    database = captured_database
    fill(database)
    captured = make(database, "t")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        with pytest.raises(pyodbc.Error, match="4711"):
            database.execute("TRUNCATE TABLE t")
        database.execute("DELETE FROM t", "INSERT INTO t VALUES (3, 3, NULL)")
        captured.catch_up(running)
    assert_equal(captured, database, "t")


@pytest.mark.matrix
@pytest.mark.parametrize(
    "moment", ["behind", *(pytest.param(m, marks=pytest.mark.matrix) for m in ("before", "inside"))]
)
@pytest.mark.condition("D21")
def test_a_tracked_table_that_is_truncated_while_it_is_read_ends_equal(
    tracked_database: SqlServerDatabase, make: Make, around_reads: Around, moment: Moment
) -> None:
    database = tracked_database
    fill(database)
    captured = make(database, "t")
    captured.settings = replace(captured.settings, compare_every_s=0.2)

    def truncate(number: int, _: str) -> None:
        if number == 3:
            database.execute("TRUNCATE TABLE t", "INSERT INTO t VALUES (1, 9, NULL), (12, 9, NULL), (44, 9, NULL)")

    with captured.running(alter=lambda source: around_reads(source, moment, truncate)) as running:
        running.wait_until(lambda: (44, 9, None) in captured.rows(T) if captured.stage(T) else None, "it is truncated")
        settled(captured, running)
        assert_equal(captured, database, "t")
        database.execute("TRUNCATE TABLE t", "INSERT INTO t VALUES (7, 7, N'last')")
        running.wait_until(lambda: len(captured.rows(T)) == 1, "it is read again")
        settled(captured, running)
    assert_equal(captured, database, "t")


@pytest.mark.matrix
@pytest.mark.condition("D21")
def test_what_a_switch_of_partitions_moved_is_there_after_a_new_snapshot(
    captured_database: SqlServerDatabase, make: Make
) -> None:
    """Change data capture does not record it; such tables are refused unless `partition_switch: accept` is set."""
    database = captured_database
    fill(database)
    database.execute("CREATE TABLE u (id int NOT NULL PRIMARY KEY, v int NOT NULL, note nvarchar(20) NULL)")
    captured = make(database, "t", partition_switch="accept")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute("ALTER TABLE t SWITCH TO u", "INSERT INTO t VALUES (2, 2, NULL)")
        captured.catch_up(running)
        assert sum(captured.rows(T).values()) == 45, "nothing in the log tells of it"
        captured.snapshot(running)
        captured.catch_up(running)
    assert_equal(captured, database, "t")


@pytest.mark.matrix
@pytest.mark.condition("D21")
def test_a_table_that_takes_the_name_of_another_is_read(each_database: SqlServerDatabase, make: Make) -> None:
    database = each_database
    fill(database)
    captured = make(database, "t")
    captured.settings = replace(captured.settings, compare_every_s=0.2, cure_every_s=0.2)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute("DROP TABLE t")
        fill(database, rows=12)
        database.execute("UPDATE t SET v = 77 WHERE id = 3")
        running.wait_until(lambda: (3, 77, "x") in captured.rows(T), "the new table is read")
        settled(captured, running)
        database.execute("UPDATE t SET v = 78 WHERE id = 4")
        captured.catch_up(running)
    assert_equal(captured, database, "t")

"""Which server and which account read a SQL Server, in which time zone, and how often: the journal replays to what the source holds."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import replace
from datetime import datetime, timedelta

import pyodbc
import pytest

from replicator.config import Secret
from replicator.model.errors import SourceUnavailableError
from replicator.model.schema import TableId
from replicator_testbed.background import in_background
from replicator_testbed.network.proxy import FaultProxy
from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.databases import SqlServerDatabase, SqlServers
from tests.integration.capture_sqlserver.conftest import Around, Make, assert_equal

T = TableId("dbo", "t")


def fill(database: SqlServerDatabase, rows: int) -> None:
    database.execute("CREATE TABLE t (id int NOT NULL PRIMARY KEY, v int NOT NULL, note nvarchar(max) NULL)")
    database.capture("t")
    database.execute("INSERT INTO t VALUES " + ", ".join(f"({i}, 0, N'note {i}')" for i in range(1, rows + 1)))


@pytest.mark.matrix
@pytest.mark.condition("D03")
def test_a_chunk_of_another_database_under_the_same_address_is_refused(
    each_database: SqlServerDatabase, postgres: PostgresServer, make: Make, around_reads: Around
) -> None:
    database = each_database
    fill(database, 40)
    with (
        SqlServers(postgres=postgres, is_tracked=database.is_tracked).database(name=database.name) as other,
        FaultProxy(database.server.host, database.server.port) as proxy,
    ):
        fill(other, 40)
        other.execute("UPDATE t SET v = 1000")
        captured = make(database, "t", host=proxy.host, port=proxy.port)

        def lead_elsewhere(number: int, _: str) -> None:
            if number == 1:  # the connection that reads chunks is opened now
                proxy.lead_to(other.server.host, other.server.port)

        with captured.running(alter=lambda source: around_reads(source, "before", lead_elsewhere)) as running:
            error = running.error()
        assert isinstance(error, SourceUnavailableError)
        assert error.code == "another_server"
        proxy.lead_to(database.server.host, database.server.port)
        with captured.running() as running:
            captured.wait_for_streaming(running)
            captured.catch_up(running)
    assert_equal(captured, database, "t")


def write_some(database: SqlServerDatabase, tables: tuple[str, ...], stop: threading.Event, seed: int) -> None:
    """Transactions of one to three statements, until told to stop; after a broken key or a deadlock on another connection."""
    draw = random.Random(seed)
    while not stop.is_set():
        with closing(database.connect(autocommit=False)) as connection, suppress(pyodbc.Error):
            while not stop.is_set():
                for _ in range(draw.randint(1, 3)):
                    table, id_, other = draw.choice(tables), draw.randint(1, 60), draw.randint(1, 60)
                    connection.execute(
                        draw.choice(
                            (
                                f"UPDATE {table} SET v = v + 1 WHERE id = {id_}",
                                f"UPDATE {table} SET note = N'new' WHERE id = {id_}",
                                f"UPDATE {table} SET id = {other} WHERE id = {id_}",
                                f"DELETE FROM {table} WHERE id = {id_}",
                                f"INSERT INTO {table} VALUES ({id_}, 1, N'again')",
                            )
                        )
                    )
                (connection.commit if draw.random() < 0.9 else connection.rollback)()


@pytest.mark.matrix
@pytest.mark.parametrize(
    "each_database",
    ["captured_database", pytest.param("tracked_database", marks=pytest.mark.matrix)],
    indirect=True,
)
@pytest.mark.condition("D16", "D17")
def test_two_replicators_that_end_again_and_again_under_writers_lose_and_double_nothing(
    each_database: SqlServerDatabase, make: Make
) -> None:
    """They share the mark table, and do not know each other."""
    database = each_database
    fill(database, 60)
    one, two = make(database, "t"), make(database, "t")
    with (
        in_background(lambda stop: write_some(database, ("t",), stop, 1)),
        in_background(lambda stop: write_some(database, ("t",), stop, 2)),
    ):
        for _ in range(2):
            with one.running() as first, two.running() as second:
                one.catch_up(first)
                two.catch_up(second)
    with one.running() as first, two.running() as second:
        one.wait_for_streaming(first)
        two.wait_for_streaming(second)
        one.snapshot(first)
        one.catch_up(first)
        two.catch_up(second)
    assert_equal(one, database, "t")
    assert_equal(two, database, "t")


@pytest.mark.matrix
@pytest.mark.condition("D14")
def test_a_table_without_a_key_is_read_under_steady_writers(captured_database: SqlServerDatabase, make: Make) -> None:
    database = captured_database
    database.execute("CREATE TABLE bag (v int NULL, w nvarchar(10) NULL)")
    database.capture("bag")
    database.execute("INSERT INTO bag VALUES " + ", ".join("(1, N'a')" for _ in range(50)))
    captured = make(database, "bag")

    def write(stop: threading.Event) -> None:
        draw = random.Random(1)
        with closing(database.connect()) as connection:
            while not stop.is_set():
                connection.execute(f"INSERT INTO bag VALUES ({draw.randint(1, 3)}, N'b')")
                connection.execute(f"UPDATE TOP (1) bag SET w = N'c' WHERE v = {draw.randint(1, 3)}")
                connection.execute(f"DELETE TOP (1) FROM bag WHERE v = {draw.randint(1, 3)}")

    with captured.running() as running:
        with in_background(write):
            captured.wait_for_streaming(running)
            captured.snapshot(running)
        captured.catch_up(running)
    assert_equal(captured, database, "bag")


@pytest.mark.matrix
@pytest.mark.condition("D26")
def test_no_time_zone_changes_a_value(
    each_database: SqlServerDatabase, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the server's nor our own: times that summer time leaves out, or has twice, among them."""
    database = each_database
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        database.server.set_clock(timedelta(hours=-5))
        moments = ("2024-03-10T02:30:00", "2024-11-03T01:30:00", "1969-12-31T23:59:59.5", "2024-07-01T12:00:00.123456")
        database.execute(
            "CREATE TABLE t (id int NOT NULL PRIMARY KEY, a datetime NULL, b datetime2(6) NULL, c datetimeoffset(6) NULL)"
        )
        database.capture("t")
        rows = [
            f"'{m[:23]}', '{m}', '{m}{zone}'"
            for m, zone in zip(moments, ("-05:00", "-04:00", "+00:00", "+05:30"), strict=True)
        ]
        database.execute(*(f"INSERT INTO t VALUES ({n}, {row})" for n, row in enumerate(rows)))
        captured = make(database, "t")
        with captured.running() as running:
            captured.wait_for_streaming(running)
            database.execute(
                *(f"INSERT INTO t VALUES ({n}, {row})" for n, row in enumerate(rows, len(rows))),
                "UPDATE t SET id = id + 100 WHERE id = 0",
            )
            captured.catch_up(running)
        found = captured.rows(T)
    finally:
        monkeypatch.undo()
        time.tzset()
    utc = [datetime.fromisoformat(row.split("'")[5]) for row in rows]
    plain = [datetime.fromisoformat(m) for m in moments]
    ids = (100, 1, 2, 3, 4, 5, 6, 7)
    assert found == Counter(
        (id_, plain[n % 4].replace(microsecond=plain[n % 4].microsecond // 1000 * 1000), plain[n % 4], utc[n % 4])
        for n, id_ in enumerate(ids)
    )


@pytest.mark.matrix
@pytest.mark.condition("D27")
def test_a_chunk_of_wide_rows_is_cut_and_what_follows_is_read_next(
    each_database: SqlServerDatabase, make: Make, around_reads: Around
) -> None:
    database = each_database
    fill(database, 50)
    database.execute("UPDATE t SET note = REPLICATE(CAST(N'x' AS nvarchar(max)), 100000) WHERE id <> 6")
    captured = make(database, "t", chunk_bytes_max=1 << 20)
    captured.settings = replace(captured.settings, chunk_rows=1000)
    chunks: list[int] = []

    def change(number: int, _: str) -> None:
        chunks.append(number)
        database.execute(f"UPDATE t SET v = v + 1 WHERE id IN ({number}, {51 - number})")

    with captured.running(alter=lambda source: around_reads(source, "behind", change)) as running:
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    assert len(chunks) > 2, "the rows are more than a chunk may have"
    assert_equal(captured, database, "t")


READER, PASSWORD = "reader", "Only.Reads-1"


@pytest.mark.matrix
@pytest.mark.parametrize(
    "is_tracked", [False, pytest.param(True, marks=pytest.mark.matrix)], ids=["cdc", "change_tracking"]
)
@pytest.mark.condition("D15")
def test_a_server_that_may_not_be_written_is_read_by_an_account_that_may_only_read(
    postgres: PostgresServer, make: Make, is_tracked: bool
) -> None:
    """Without a mark table."""
    servers = SqlServers(postgres=postgres, is_tracked=is_tracked)
    with servers.database(readers={READER: PASSWORD}) as database:
        fill(database, 30)
        database.execute(
            f"GRANT SELECT ON dbo.t TO {READER}",
            f"GRANT VIEW CHANGE TRACKING ON dbo.t TO {READER}"
            if is_tracked
            else f"GRANT SELECT ON cdc.dbo_t_CT TO {READER}",
        )
        database.server.change(is_read_only=True)
        settings = {} if is_tracked else {"mark_table": None, "chunk_isolation": "default"}
        captured = make(database, "t", user=READER, password=Secret(PASSWORD), **settings)

        def write(stop: threading.Event) -> None:
            """As the primary does, whose log this one has; without it an idle log is waited for, for five minutes."""
            with closing(database.connect()) as connection:
                while not stop.wait(0.1):
                    connection.execute("UPDATE t SET v = v + 1 WHERE id IN (3, 14)")

        with captured.running() as running, in_background(write):
            captured.wait_for_streaming(running)
            database.execute("UPDATE t SET v = -1 WHERE id = 5", "DELETE FROM t WHERE id = 6")
            running.wait_until(lambda: (5, -1, "note 5") in captured.rows(T), "the change arrives")
            captured.catch_up(running)
        with captured.running() as running, in_background(write):
            captured.snapshot(running)
            captured.catch_up(running)
        rows = {id_: rest for id_, *rest in captured.rows(T)}
        wanted = {id_: rest for id_, *rest in database.rows("t", ("id", "v", "note"))}
        assert rows.keys() == wanted.keys()
        assert [id_ for id_ in rows if rows[id_] != wanted[id_] and id_ not in (3, 14)] == []

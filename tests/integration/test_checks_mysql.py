"""What `validate` refuses is refused while a capture runs: new tables, foreign keys and engines that change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest

from replicator.model.errors import FatalError
from replicator.model.schema import TableId
from replicator.plugins import Secret
from replicator.state.records import Stage
from replicator_source_mysql.server import read_facts
from replicator_testbed.journals.captured import Captured, RunningCapture
from replicator_testbed.mysql.servers import MysqlDatabase, MysqlServer
from replicator_testbed.present import present

Make = Callable[..., Captured]


def watched(captured: Captured) -> Captured:
    """With a check several times a second."""
    captured.settings = replace(captured.settings, check_every_s=0.2)
    return captured


def wait_for_failure(captured: Captured, running: RunningCapture, table: TableId) -> str:
    """Wait until the table has failed, and return the code."""
    running.wait_until(
        lambda: captured.stage(table) is Stage.FAILED or None,
        lambda: f"{table} fails; now {captured.stage(table)}, {captured.record(table).error}",
    )
    error = captured.record(table).error
    assert error is not None
    return error.code


def family(database: MysqlDatabase) -> tuple[TableId, TableId]:
    database.execute(
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (id int PRIMARY KEY, p int, KEY (p))",
        "INSERT INTO parent VALUES (1), (2)",
        "INSERT INTO child VALUES (1, 1), (2, 2)",
    )
    return TableId(database.name, "parent"), TableId(database.name, "child")


def test_a_cascade_that_is_added_while_it_runs_fails_its_table(mysql_database: MysqlDatabase, make_mysql: Make) -> None:
    parent, child = family(mysql_database)
    with closing(mysql_database.connect()) as connection:
        logs_cascades = read_facts(connection).logs_cascades
    captured = watched(make_mysql(mysql_database, "parent", "child"))
    with captured.running() as running:
        captured.wait_for_streaming(running)
        mysql_database.execute("ALTER TABLE child ADD FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE")
        if not logs_cascades:
            assert wait_for_failure(captured, running, child) == "unlogged_cascade"
        mysql_database.execute("DELETE FROM parent WHERE id = 1")
        captured.catch_up(running)
        captured.wait_for_streaming(running, parent)
        assert captured.rows(parent) == Counter({(2,): 1})
        if logs_cascades:
            captured.wait_for_streaming(running, child)
            assert captured.rows(child) == Counter({(2, 2): 1}), "this server logs what its foreign keys do"


def test_a_privilege_that_is_revoked_amid_a_run_stops_its_table_until_it_is_granted_again(
    mysql_database: MysqlDatabase, make_mysql: Make
) -> None:
    server, name = mysql_database.server, mysql_database.name
    t, other = TableId(name, "t"), TableId(name, "other")
    for table in ("t", "other"):
        mysql_database.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v int)", f"INSERT INTO {table} VALUES (1, 1)"
        )
    monitor = "BINLOG MONITOR" if server.flavor == "mariadb" else "REPLICATION CLIENT"
    server.execute(
        "CREATE USER waning IDENTIFIED BY 'Pw-1234567'",
        f"GRANT REPLICATION SLAVE, {monitor}, PROCESS ON *.* TO waning",
        *(f"GRANT SELECT ON {name}.{table} TO waning" for table in ("t", "other")),
    )
    captured = watched(make_mysql(mysql_database, "t", "other", user="waning", password=Secret("Pw-1234567")))
    captured.settings = replace(captured.settings, cure_every_s=0.05, compare_every_s=0.1)
    try:
        with captured.running() as running:
            captured.wait_for_streaming(running)
            server.execute(f"REVOKE SELECT ON {name}.t FROM waning")
            for table in ("t", "other"):
                mysql_database.execute(f"UPDATE {table} SET v = 7", f"INSERT INTO {table} VALUES (2, 2)")
            assert wait_for_failure(captured, running, t) == "select_missing"
            assert "GRANT SELECT" in present(present(captured.record(t).error).action)
            captured.catch_up(running)
            assert captured.rows(other) == Counter({(1, 7): 1, (2, 2): 1})
            mysql_database.execute("DELETE FROM t WHERE id = 1")
            server.execute(f"GRANT SELECT ON {name}.t TO waning")
            captured.wait_for_streaming(running, t)
            mysql_database.execute("INSERT INTO t VALUES (3, 3)")
            captured.catch_up(running)
            assert captured.rows(t) == Counter({(2, 2): 1, (3, 3): 1})
    finally:
        server.execute("DROP USER waning")


@pytest.mark.matrix
@pytest.mark.parametrize("rule", ["ON DELETE CASCADE", "ON DELETE SET NULL", "ON UPDATE CASCADE"])
def test_a_cascade_that_came_and_went_unseen_leaves_no_wrong_rows(
    mariadb: MysqlServer, make_mysql: Make, rule: str
) -> None:
    """Added without a rebuild of the table, acted, and dropped before anybody looked at the catalogue."""
    with mariadb.database() as database:
        _, child = family(database)
        captured = make_mysql(database, "parent", "child")
        with captured.running() as running:
            captured.wait_for_streaming(running)
        with closing(database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SET foreign_key_checks = 0")
            cursor.execute(
                f"ALTER TABLE child ADD CONSTRAINT fk FOREIGN KEY (p) REFERENCES parent (id) {rule}, ALGORITHM = INPLACE"
            )
            cursor.execute("SET foreign_key_checks = 1")
            if "UPDATE" in rule:
                cursor.execute("UPDATE parent SET id = 7 WHERE id = 1")
            else:
                cursor.execute("DELETE FROM parent WHERE id = 1")
            cursor.execute("ALTER TABLE child DROP FOREIGN KEY fk")
        with captured.running() as running:
            captured.catch_up(running)
            captured.wait_for_streaming(running)
            captured.catch_up(running)
            wanted = Counter(database.execute("SELECT * FROM child"))
            running.wait_until(lambda: captured.rows(child) == wanted or None, lambda: f"{captured.rows(child)}")


def test_new_tables_that_cannot_be_replicated_right_are_refused(
    mysql_database: MysqlDatabase, make_mysql: Make
) -> None:
    is_mariadb = mysql_database.server.flavor == "mariadb"
    mysql_database.execute("CREATE TABLE first (id int PRIMARY KEY)", "INSERT INTO first VALUES (1)")
    captured = watched(make_mysql(mysql_database, "first"))
    # New tables are found by a comparison, which is due once a minute.
    captured.settings = replace(captured.settings, compare_every_s=0.2)
    refused = {
        "memory": ("(id int PRIMARY KEY) ENGINE = MEMORY", "engine_not_transactional"),
        "isam": ("(id int PRIMARY KEY) ENGINE = MyISAM", "engine_not_transactional"),
        "zone": ("(id int PRIMARY KEY, ts timestamp NULL, h int AS (hour(ts)) VIRTUAL)", "virtual_column"),
    }
    if is_mariadb:
        fk = "CONSTRAINT fk FOREIGN KEY (p) REFERENCES first (id) ON DELETE CASCADE"
        refused["child"] = (f"(id int PRIMARY KEY, p int, {fk})", "unlogged_cascade")
        refused["history"] = ("(id int PRIMARY KEY) WITH SYSTEM VERSIONING", "system_versioned")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        mysql_database.execute(*(f"CREATE TABLE {name} {columns}" for name, (columns, _) in refused.items()))
        mysql_database.execute("CREATE TABLE good (id int PRIMARY KEY)", "INSERT INTO good VALUES (5)")
        captured.tables += [TableId(mysql_database.name, name) for name in [*refused, "good"]]
        for name, (_, code) in refused.items():
            table = TableId(mysql_database.name, name)
            running.wait_until(lambda table=table: captured.stage(table), f"{name} is known")  # type: ignore[misc]
            assert wait_for_failure(captured, running, table) == code
        captured.wait_for_streaming(running, *(TableId(mysql_database.name, n) for n in ("first", "good")))
        assert captured.rows(TableId(mysql_database.name, "good")) == Counter({(5,): 1})


def test_a_table_whose_engine_becomes_another_fails(mysql_database: MysqlDatabase, make_mysql: Make) -> None:
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    captured = watched(make_mysql(mysql_database, "t", "u"))
    table, other = TableId(mysql_database.name, "t"), TableId(mysql_database.name, "u")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        mysql_database.execute("ALTER TABLE t ENGINE = MEMORY")
        assert wait_for_failure(captured, running, table) == "engine_not_transactional"
        mysql_database.execute("INSERT INTO u VALUES (3)")
        captured.catch_up(running)
        assert captured.stage(other) is Stage.STREAMING
        assert captured.rows(other) == Counter({(3,): 1})
        mysql_database.execute("ALTER TABLE t ENGINE = InnoDB", "INSERT INTO t VALUES (9)")
        captured.snapshot(running, table)
        assert captured.rows(table) == Counter({(9,): 1})


@pytest.mark.matrix
def test_a_server_whose_log_cannot_be_trusted_any_more_stops_the_capture(
    every_database: MysqlDatabase, make_mysql: Make
) -> None:
    """What such a setting says of sessions that begin from now on; those of before write as they did."""
    database = every_database
    wrong = {"binlog_format": "STATEMENT", "binlog_row_image": "MINIMAL"}
    if database.execute("SHOW VARIABLES LIKE 'gtid_mode'") == [("gtid_mode", "OFF")]:
        wrong = {"binlog_order_commits": "OFF"}
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    captured = watched(make_mysql(database, "t"))
    for number, (name, value) in enumerate(wrong.items()):
        ((right,),) = database.execute(f"SELECT @@GLOBAL.{name}")
        try:
            with captured.running() as running:
                captured.wait_for_streaming(running)
                with closing(database.connect()) as before, before.cursor() as cursor:
                    database.execute(f"SET GLOBAL {name} = {value}")
                    error = running.error()
                    cursor.execute(f"INSERT INTO t VALUES ({number})")
            with captured.running() as running:
                again = running.error()
        finally:
            database.execute(f"SET GLOBAL {name} = {right}")
        for found in (error, again):
            assert isinstance(found, FatalError)
            assert (found.code, found.table) == ("server_setting", None)
            assert found.message.startswith(f"{name} is {value}; ")
            assert found.action is not None
            assert f"{name} = " in found.action
            assert found.action.endswith("Then start again.")
        with captured.running() as running:
            captured.catch_up(running)
            assert captured.stage(captured.tables[0]) is Stage.STREAMING
            assert captured.rows(captured.tables[0]) == Counter((n,) for n in range(number + 1))

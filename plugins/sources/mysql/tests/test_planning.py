"""What the server's statistics say of tables and log, and samples of rows: read, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from replicator.model.figures import Basis
from replicator.model.schema import TableId, TableSchema
from replicator.plugins import Secret
from replicator_source_mysql.source import MysqlSource
from replicator_testbed.mysql.programs import has_mysql
from replicator_testbed.mysql.servers import MysqlDatabase, MysqlServer

Make = Callable[..., MysqlSource]


@pytest.fixture(
    params=["mariadb", *(pytest.param(other, marks=pytest.mark.matrix) for other in ("mysql", "mysql_without_gtids"))]
)
def each_database(request: pytest.FixtureRequest) -> Iterator[MysqlDatabase]:
    """A fresh database on each kind of server."""
    server: MysqlServer = request.getfixturevalue(request.param)
    with server.database() as database:
        yield database


@pytest.fixture(scope="module", params=["mariadb", pytest.param("mysql", marks=pytest.mark.matrix)])
def counting(request: pytest.FixtureRequest) -> Iterator[MysqlServer]:
    """A server of each kind with its performance schema, which the shared ones do without."""
    if request.param == "mysql" and not has_mysql():
        pytest.skip("NO MYSQL: tools/install_mysql.sh could not unpack one; only MariaDB is tested")
    with MysqlServer(request.param, settings={"performance_schema": "ON"}) as server:
        yield server


def table_of(database: MysqlDatabase) -> TableId:
    return TableId(database.name, "t")


def schema_of(source: MysqlSource, table: TableId) -> TableSchema:
    return source.describe([table])[table].schema


def test_rows_and_size_are_estimated_by_the_catalogue(each_database: MysqlDatabase, source_of: Make) -> None:
    each_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a varchar(100))",
        "INSERT INTO t VALUES " + ", ".join(f"({i}, '{'x' * 100}')" for i in range(1000)),
        "ANALYZE TABLE t",
    )
    table = table_of(each_database)
    found = source_of(each_database.server).statistics([table]).tables[table]
    assert 500 < (found.rows.value or 0) < 2000
    assert (found.bytes.value or 0) > 100_000
    assert (found.rows.basis, found.rows.how) == (Basis.ESTIMATED, "information_schema.tables.table_rows")


def test_a_server_that_counts_no_changes_says_so(each_database: MysqlDatabase, source_of: Make) -> None:
    table = table_of(each_database)
    each_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    found = source_of(each_database.server).statistics([table]).tables[table].changes
    assert (found.value, found.how) == (None, "the server counts no changes of tables: performance_schema is OFF")


def test_changes_are_counted(counting: MysqlServer, source_of: Make) -> None:
    with counting.database() as database:
        source, table = source_of(counting), table_of(database)
        database.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
        found = source.statistics([table])
        assert (found.tables[table].changes.value, found.tables[table].changes.basis) == (0, Basis.COUNTED)
        assert found.changes_since is not None, "the server's start"
        database.execute(
            "INSERT INTO t VALUES (1, 0), (2, 0), (3, 0)",
            "UPDATE t SET n = 1 WHERE id < 3",
            "DELETE FROM t WHERE id = 3",
        )
        assert source.statistics([table]).tables[table].changes.value == 3 + 2 + 1


def test_an_account_that_may_not_look_gets_reasons_instead_of_figures(counting: MysqlServer, source_of: Make) -> None:
    with counting.database() as database:
        database.execute(
            "CREATE TABLE t (id int PRIMARY KEY)",
            "CREATE USER 'planner'@'%' IDENTIFIED BY 'p1'",
            f"GRANT SELECT ON {database.name}.* TO 'planner'@'%'",
        )
        table = table_of(database)
        found = source_of(counting, user="planner", password=Secret("p1")).statistics([table])
    assert found.tables[table].changes.value is None
    assert "does not let this account read its counters" in found.tables[table].changes.how
    assert "the server does not show its log" in found.log_bytes.how


def test_mariadb_counts_them_also_by_user_statistics(mariadb: MysqlServer, source_of: Make) -> None:
    with mariadb.database() as database:
        database.execute("SET GLOBAL userstat = 1")
        try:
            table = table_of(database)
            database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
            found = source_of(mariadb).statistics([table]).tables[table].changes
        finally:
            database.execute("SET GLOBAL userstat = 0")
    assert (found.value, found.how) == (2, "information_schema.table_statistics")


def test_the_log_grows_and_is_kept_by_a_setting(each_database: MysqlDatabase, source_of: Make) -> None:
    source = source_of(each_database.server)
    first = source.statistics([])
    each_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a longtext)", f"INSERT INTO t VALUES (1, '{'x' * 500_000}')"
    )
    second = source.statistics([])
    assert (second.log_bytes.value or 0) - (first.log_bytes.value or 0) > 400_000
    ((_, seconds),) = each_database.execute("SHOW GLOBAL VARIABLES LIKE 'binlog_expire_logs_seconds'")
    kept = timedelta(seconds=int(seconds)) if int(seconds) else None
    assert second.log_kept_for == kept
    assert second.log_kept_how == (
        f"binlog_expire_logs_seconds is {seconds}" if kept else "the server does not remove its log by itself"
    )


@pytest.mark.parametrize("key", [" PRIMARY KEY", ""])
def test_a_sample_is_read_and_nothing_is_written_into_the_log(
    each_database: MysqlDatabase, source_of: Make, key: str
) -> None:
    each_database.execute(
        f"CREATE TABLE t (id int{key})", "INSERT INTO t VALUES " + ", ".join(f"({i})" for i in range(30))
    )
    source, table = source_of(each_database.server), table_of(each_database)
    schema, end = schema_of(source, table), each_database.execute("SHOW BINARY LOGS")
    some, everything = source.sample(schema, 10), source.sample(schema, 31)
    assert (some.rows.num_rows, some.is_whole) == (10, False)
    assert (sorted(everything.rows.column("id").to_pylist()), everything.is_whole) == (list(range(30)), True)
    assert each_database.execute("SHOW BINARY LOGS") == end

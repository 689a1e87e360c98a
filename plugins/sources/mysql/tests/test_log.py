"""The log beyond the contract: names, GTIDs of every kind, sessions that write otherwise, servers that take over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from replicator.model.errors import LogGapError, SourceLagsError, TableError, TransientError
from replicator.model.events import OPERATION, ROW, TRANSACTION_ID
from replicator.model.offset import Offset
from replicator.model.schema import TableId
from replicator.plugins.source import LogReader, PullLimits
from replicator.testing.mysql_servers import MysqlDatabase, MysqlServer
from replicator_source_mysql.source import MysqlSource

_LIMITS = PullLimits(rows=10_000, bytes=64 << 20, wait_s=1.0)
Make = Callable[..., MysqlSource]


class Log:
    """An open log and what it has delivered."""

    def __init__(self, source: MysqlSource, *tables: TableId, after: Offset | None = None) -> None:
        self.source = source
        self.schemas = {t: d.schema for t, d in source.describe(tables).items()}
        self.offset = after or source.prepare(tables, is_first=True)
        self.reader: LogReader = source.open_log(self.offset, self.schemas)
        self.errors: dict[TableId, TableError] = {}
        self.ids: list[str] = []
        self.ddl: list[Any] = []

    def drain(self) -> list[Mapping[str, Any]]:
        """Every change up to now."""
        mark = self.source.mark()
        found: list[Mapping[str, Any]] = []
        for _ in range(100):
            batch = self.reader.pull(_LIMITS)
            for changes in batch.changes:
                found += changes.rows.to_pylist()
            self.errors |= batch.table_errors
            self.ddl += batch.ddl
            self.ids += batch.transactions.column("id").to_pylist()
            self.offset = batch.offset or self.offset
            if mark in batch.marks:
                return found
        raise AssertionError("the mark did not come")

    def rows(self) -> list[Any]:
        return [(c[OPERATION], tuple((c[ROW] or {}).values())) for c in self.drain()]


@pytest.fixture
def open_log(source_of: Make) -> Iterator[Callable[..., Log]]:
    made: list[Log] = []

    def make(database: MysqlDatabase, *names: str, **settings: Any) -> Log:
        log = Log(source_of(database.server, **settings), *(TableId(database.name, n) for n in names))
        made.append(log)
        return log

    yield make
    for log in made:
        log.reader.close()


@pytest.mark.parametrize("name", ["a.b`c", "a\"b 'c'", "select", "x" * 64, "größe 日本語", "50%\\_"])
def test_tables_of_any_name_are_followed(
    mysql_database: MysqlDatabase, open_log: Callable[..., Log], name: str
) -> None:
    quoted = "`" + name.replace("`", "``") + "`"
    mysql_database.execute(f"CREATE TABLE {quoted} (`co.l``` int PRIMARY KEY)")
    log = open_log(mysql_database, name)
    mysql_database.execute(f"INSERT INTO {quoted} VALUES (1)")
    assert log.rows() == [("INSERT", (1,))]
    assert log.source.check([TableId(mysql_database.name, name)]) is not None
    before = log.source.describe([TableId(mysql_database.name, name)])
    mysql_database.execute(f"TRUNCATE {quoted}")
    after = log.source.describe([TableId(mysql_database.name, name)])
    assert before != after, "a truncated table has other storage"
    log.drain()
    assert [e.operation.value for e in log.ddl] == ["TRUNCATE_TABLE"]


def test_tagged_gtids_are_read_and_resumed(mysql: MysqlServer, source_of: Make, open_log: Callable[..., Log]) -> None:
    with mysql.database() as database:
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        log = open_log(database, "t")
        with closing(database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SET gtid_next = 'AUTOMATIC:a_tag'")
            for i in range(300):
                cursor.execute(f"INSERT INTO t VALUES ({i})")
        assert len(log.rows()) == 300
        assert all(":a_tag:" in i for i in log.ids)
        again = Log(source_of(mysql), TableId(database.name, "t"), after=log.offset)
        database.execute("INSERT INTO t VALUES (1000)")
        assert again.rows() == [("INSERT", (1000,))]
        again.reader.close()


def test_every_domain_of_mariadb_is_followed(
    mariadb: MysqlServer, source_of: Make, open_log: Callable[..., Log]
) -> None:
    with mariadb.database() as database:
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        log = open_log(database, "t")
        for domain in (7, 3, 7):
            with closing(database.connect()) as connection, connection.cursor() as cursor:
                cursor.execute(f"SET SESSION gtid_domain_id = {domain}")
                cursor.execute("INSERT INTO t SELECT COUNT(*) FROM t")
        assert len(log.rows()) == 3
        assert {i.split("-")[0] for i in log.ids} == {"3", "7"}
        again = Log(source_of(mariadb), TableId(database.name, "t"), after=log.offset)
        database.execute("INSERT INTO t VALUES (100)")
        assert again.rows() == [("INSERT", (100,))]
        again.reader.close()


def test_sessions_that_write_otherwise_set_their_table_aside(
    mysql_database: MysqlDatabase, open_log: Callable[..., Log]
) -> None:
    mysql_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int)",
        "CREATE TABLE u (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1, 1)",
    )
    log = open_log(mysql_database, "t", "u")
    with closing(mysql_database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_row_image = 'MINIMAL'")
        cursor.execute("UPDATE t SET v = 2")
    mysql_database.execute("INSERT INTO u VALUES (5)")
    assert log.rows() == [("INSERT", (5,))]
    assert {t.name: e.code for t, e in log.errors.items()} == {"t": "row_image_not_full"}


def test_savepoints_and_undone_parts_leave_no_trace(
    mysql_database: MysqlDatabase, open_log: Callable[..., Log]
) -> None:
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    log = open_log(mysql_database, "t")
    with closing(mysql_database.connect(autocommit=False)) as connection, connection.cursor() as cursor:
        for text in (
            "INSERT INTO t VALUES (1)",
            "SAVEPOINT a",
            "INSERT INTO t VALUES (2)",
            "ROLLBACK TO a",
            "INSERT INTO t VALUES (3)",
        ):
            cursor.execute(text)
        connection.commit()
    assert log.rows() == [("INSERT", (1,)), ("INSERT", (3,))]


def test_rows_of_a_shape_that_is_not_followed_come_in_their_own(
    mysql_database: MysqlDatabase, open_log: Callable[..., Log]
) -> None:
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    log = open_log(mysql_database, "t")
    mysql_database.execute(
        "INSERT INTO t VALUES (1, 1)", "ALTER TABLE t ADD COLUMN w varchar(5)", "INSERT INTO t VALUES (2, 2, 'w')"
    )
    assert log.rows() == [("INSERT", (1, 1)), ("INSERT", (2, 2, "w"))]
    assert [e.operation.value for e in log.ddl] == ["ALTER_TABLE"]


def test_create_table_select_and_the_swap_of_names(mysql_database: MysqlDatabase, open_log: Callable[..., Log]) -> None:
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    log = open_log(mysql_database, "t")
    mysql_database.execute(
        "CREATE TABLE c SELECT * FROM t",
        "INSERT INTO t VALUES (3)",
        "RENAME TABLE t TO old, c TO t",
        "INSERT INTO t VALUES (9)",
    )
    assert log.rows() == [("INSERT", (3,)), ("INSERT", (9,))]
    assert [e.operation.value for e in log.ddl] == ["CREATE_TABLE"]


# --- servers --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["mariadb", "mysql"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[MysqlServer, MysqlServer]]:
    """A primary and its replica."""
    if request.param == "mysql":
        request.getfixturevalue("mysql")
    with MysqlServer(request.param) as primary, MysqlServer(request.param) as replica:
        replica.follow(primary)
        yield primary, replica


def test_a_replica_that_takes_over_is_followed_and_one_that_lags_is_waited_for(
    pair: tuple[MysqlServer, MysqlServer], source_of: Make
) -> None:
    primary, replica = pair
    table = TableId("shop", "t")
    primary.execute("CREATE DATABASE shop", "CREATE TABLE shop.t (id int PRIMARY KEY)")
    log = Log(source_of(primary), table)
    primary.execute("INSERT INTO shop.t VALUES (1)")
    assert log.rows() == [("INSERT", (1,))]
    replica.catch_up_with(primary)
    replica.stop_following()
    primary.execute("INSERT INTO shop.t VALUES (2)")
    assert log.rows() == [("INSERT", (2,))]
    other = source_of(replica)
    with pytest.raises(SourceLagsError) as lags:
        other.open_log(log.offset, log.schemas)
    assert lags.value.code == "source_lags"
    replica.go_on_following()
    replica.catch_up_with(primary)
    replica.stop_following()
    replica.execute("FLUSH BINARY LOGS", "INSERT INTO shop.t VALUES (3)")
    taken = Log(other, table, after=log.offset)
    assert taken.rows() == [("INSERT", (3,))]
    # Ids of the first server's transactions are judged, too.
    answers = other.visibility().classify(pa.array(log.ids + taken.ids))
    assert set(answers.to_pylist()) == {0}
    taken.reader.close()
    log.reader.close()


def test_what_a_server_that_took_over_logged_in_another_order_is_delivered_once(source_of: Make) -> None:
    """MariaDB keeps the order within a domain only; and with a prepared transaction the log is read again from its PREPARE."""
    with MysqlServer.mariadb() as primary, MysqlServer.mariadb() as replica:

        def write(server: MysqlServer, gtid: str, *statements: str) -> None:
            domain, origin, number = gtid.split("-")
            with closing(server.connect()) as connection, connection.cursor() as cursor:
                cursor.execute(f"SET gtid_domain_id = {domain}, server_id = {origin}, gtid_seq_no = {number}")
                for statement in statements:
                    cursor.execute(statement)

        for server in (primary, replica):
            write(server, "1-1-1", "CREATE DATABASE shop")
            write(server, "1-1-2", "CREATE TABLE shop.t (id int PRIMARY KEY)")
        prepare = ("XA START 'x'", "INSERT INTO shop.t VALUES (1)", "XA END 'x'", "XA PREPARE 'x'")
        table = TableId("shop", "t")
        log = Log(source_of(primary), table)
        write(primary, "2-1-1", *prepare)
        write(primary, "3-1-1", "INSERT INTO shop.t VALUES (2)")
        write(primary, "2-1-2", "INSERT INTO shop.t VALUES (3)")
        assert log.rows() == [("INSERT", (2,)), ("INSERT", (3,))]
        log.reader.close()

        write(replica, "2-1-1", *prepare)
        write(replica, "3-1-1", "INSERT INTO shop.t VALUES (2)")
        for number in (2, 3):
            write(replica, f"3-2-{number}", f"INSERT INTO shop.t VALUES ({10 * number})")
        write(replica, "2-1-2", "INSERT INTO shop.t VALUES (3)")
        taken = Log(source_of(replica), table, after=log.offset)
        found: list[int] = []
        offset = log.offset
        while 30 not in found:
            batch = taken.reader.pull(PullLimits(rows=1, bytes=1 << 20, wait_s=1.0))
            found += [change[ROW]["id"] for changes in batch.changes for change in changes.rows.to_pylist()]
            offset = batch.offset or offset
        assert found == [20, 30]
        taken.reader.close()
        # Killed here, amid the second of them.
        again = Log(source_of(replica), table, after=offset)
        write(replica, "2-2-3", "XA COMMIT 'x'")
        assert again.rows() == [("INSERT", (30,)), ("INSERT", (1,))]
        again.reader.close()


def test_a_server_of_another_history_is_refused(
    mysql_database: MysqlDatabase, mariadb: MysqlServer, source_of: Make
) -> None:
    server = mysql_database.server
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = source_of(server)
    offset = source.prepare([], is_first=True)
    value = offset.value
    if server.flavor == "mysql":
        beyond = {**value, "gtids": value["gtids"] + ",00000000-0000-0000-0000-00000000000a:1-5"}
    else:
        beyond = {**value, "gtids": f"0-{value['server']}-1000000000"}
    with pytest.raises(LogGapError):
        source.open_log(Offset.of(beyond), {})
    flavor = "mariadb" if server.flavor == "mysql" else "mysql"
    gtids = "0-1-1" if flavor == "mariadb" else "00000000-0000-0000-0000-00000000000a:1-5"
    with pytest.raises(LogGapError):
        source.open_log(Offset.of({**value, "flavor": flavor, "gtids": gtids}), {})


def test_start_at_is_where_the_first_start_begins(mysql_database: MysqlDatabase, source_of: Make) -> None:
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    table = TableId(mysql_database.name, "t")
    here = source_of(mysql_database.server).prepare([table], is_first=True)
    mysql_database.execute("INSERT INTO t VALUES (1)")
    log = Log(source_of(mysql_database.server, start_at=here.value["gtids"]), table)
    assert log.rows() == [("INSERT", (1,))]
    log.reader.close()


def pull_on(reader: LogReader) -> None:
    for _ in range(100):
        reader.pull(_LIMITS)


def test_an_open_reader_tells_when_its_server_goes(source_of: Make) -> None:
    with MysqlServer.mariadb() as server, server.database() as database:
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        log = Log(source_of(server), TableId(database.name, "t"))
        log.drain()
        server.kill9()
        with pytest.raises(TransientError):
            pull_on(log.reader)


def test_transactions_have_ids_that_reads_know(mysql_database: MysqlDatabase, open_log: Callable[..., Log]) -> None:
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    log = open_log(mysql_database, "t")
    mysql_database.execute("INSERT INTO t VALUES (1)")
    changes = log.drain()
    assert [c[TRANSACTION_ID] for c in changes] == log.ids


def test_what_was_prepared_before_our_place_in_the_log_is_a_gap_when_it_is_committed(
    mysql_database: MysqlDatabase, open_log: Callable[..., Log]
) -> None:
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE unfollowed (id int PRIMARY KEY)")
    with closing(mysql_database.server.connect(mysql_database.name)) as before, before.cursor() as cursor:
        for text in ("XA START 'early'", "INSERT INTO t VALUES (1)", "XA END 'early'", "XA PREPARE 'early'"):
            cursor.execute(text)
    log = open_log(mysql_database, "t")
    with closing(mysql_database.server.connect(mysql_database.name)) as after, after.cursor() as cursor:
        for text in ("XA START 'other'", "INSERT INTO unfollowed VALUES (1)", "XA END 'other'", "XA PREPARE 'other'"):
            cursor.execute(text)
    mysql_database.execute("XA COMMIT 'other'", "INSERT INTO t VALUES (2)")
    assert log.rows() == [("INSERT", (2,))], "one that was prepared since is known, and has nothing of ours"
    mysql_database.execute("XA COMMIT 'early'")
    with pytest.raises(LogGapError) as found:
        log.drain()
    assert found.value.code == "prepared_before_start"
    assert "--restart" in (found.value.action or "")


def test_the_oldest_prepared_transaction_and_how_long_the_log_is_kept_are_told(
    mysql_database: MysqlDatabase, open_log: Callable[..., Log]
) -> None:
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    log = open_log(mysql_database, "t")
    assert log.source.standing().oldest_open is None
    for number, name in enumerate(("first", "second")):
        with closing(mysql_database.connect()) as connection, connection.cursor() as cursor:
            for text in ("START", "END", "PREPARE"):
                cursor.execute(f"XA {text} '{name}'")
                if text == "START":
                    cursor.execute(f"INSERT INTO t VALUES ({number})")
    log.drain()
    oldest = log.source.standing().oldest_open
    assert oldest is not None
    assert b"first".hex() in oldest.name
    assert abs((log.source.now() - oldest.since).total_seconds()) < 60
    again = Log(log.source, TableId(mysql_database.name, "t"), after=log.offset)
    again.drain()
    assert log.source.standing().oldest_open == oldest, "it is read again after a restart"
    again.reader.close()
    mysql_database.execute("XA COMMIT 'first'")
    log.drain()
    mysql_database.execute("XA ROLLBACK 'second'")
    mysql_database.execute("SET GLOBAL binlog_expire_logs_seconds = 7200")
    try:
        assert log.source.standing().keeps_log == timedelta(hours=2)
    finally:
        default = 0 if mysql_database.server.flavor == "mariadb" else 2_592_000
        mysql_database.execute(f"SET GLOBAL binlog_expire_logs_seconds = {default}")


def test_a_server_s_own_limit_of_rows_cuts_nothing_short(mysql_database: MysqlDatabase, source_of: Make) -> None:
    mysql_database.execute("CREATE TABLE t (v int)", *(f"INSERT INTO t VALUES ({i})" for i in range(50)))
    mysql_database.execute("SET GLOBAL sql_select_limit = 20")
    try:
        source = source_of(mysql_database.server)
        schema = source.describe([TableId(mysql_database.name, "t")])[TableId(mysql_database.name, "t")].schema
        with source.read_whole(schema) as read:
            assert sum(batch.num_rows for batch in read.batches) == 50
    finally:
        mysql_database.execute("SET GLOBAL sql_select_limit = DEFAULT")

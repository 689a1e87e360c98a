"""The log beyond the contract: names, GTIDs of every kind, sessions that write otherwise, servers that take over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from replicator.model.errors import (
    CorruptStreamError,
    LogGapError,
    SourceLagsError,
    SourceUnavailableError,
    TableError,
    TransientError,
)
from replicator.model.events import OPERATION, ROW, TRANSACTION_ID
from replicator.model.offset import Offset
from replicator.model.schema import TableId
from replicator.plugins import Secret
from replicator.plugins.source import LogReader, PullLimits
from replicator_source_mysql.log import dump
from replicator_source_mysql.source import MysqlSource
from replicator_testbed.mysql.servers import Flavor, MysqlDatabase, MysqlServer
from replicator_testbed.network.proxy import FaultProxy
from replicator_testing.defaults import chunk_request
from replicator_testing.waiting import wait_until

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
        self.unlogged: set[TableId] = set()

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
            self.unlogged |= set(batch.unlogged)
            self.ids += batch.transactions.column("id").to_pylist()
            self.offset = batch.offset or self.offset
            if mark in batch.marks:
                return found
        raise AssertionError("the mark did not come")

    def rows(self) -> list[Any]:
        return [(c[OPERATION], tuple((c[ROW] or {}).values())) for c in self.drain()]


def prepare_xa(database: MysqlDatabase, name: str, *statements: str) -> None:
    with closing(database.server.connect(database.name)) as connection, connection.cursor() as cursor:
        for text in (f"XA START '{name}'", *statements, f"XA END '{name}'", f"XA PREPARE '{name}'"):
            cursor.execute(text)
        session = connection.thread_id()
    # Nobody else can end the transaction before the server has ended the session that prepared it.
    here = f"SELECT id FROM information_schema.processlist WHERE id = {session}"
    wait_until(lambda: not database.execute(here), "the session has ended")


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
    each_mysql_database: MysqlDatabase, open_log: Callable[..., Log], name: str
) -> None:
    quoted = "`" + name.replace("`", "``") + "`"
    each_mysql_database.execute(f"CREATE TABLE {quoted} (`co.l``` int PRIMARY KEY)")
    log = open_log(each_mysql_database, name)
    each_mysql_database.execute(f"INSERT INTO {quoted} VALUES (1)")
    assert log.rows() == [("INSERT", (1,))]
    assert log.source.check([TableId(each_mysql_database.name, name)]) is not None
    before = log.source.describe([TableId(each_mysql_database.name, name)])
    each_mysql_database.execute(f"TRUNCATE {quoted}")
    after = log.source.describe([TableId(each_mysql_database.name, name)])
    assert before != after, "a truncated table has other storage"
    log.drain()
    assert [e.operation.value for e in log.ddl] == ["TRUNCATE_TABLE"]


@pytest.mark.condition("M23")
def test_tagged_gtids_are_read_and_resumed(mysql: MysqlServer, source_of: Make, open_log: Callable[..., Log]) -> None:
    if mysql.lacks((8, 3)):
        pytest.skip("tags came with MySQL 8.3")
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


@pytest.mark.condition("M36")
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


@pytest.mark.condition("M38")
def test_sessions_that_write_otherwise_fail_their_table(
    each_mysql_database: MysqlDatabase, open_log: Callable[..., Log]
) -> None:
    each_mysql_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int)",
        "CREATE TABLE u (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1, 1)",
    )
    log = open_log(each_mysql_database, "t", "u")
    with closing(each_mysql_database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_row_image = 'MINIMAL'")
        cursor.execute("UPDATE t SET v = 2")
    each_mysql_database.execute("INSERT INTO u VALUES (5)")
    assert log.rows() == [("INSERT", (5,))]
    assert {t.name: e.code for t, e in log.errors.items()} == {"t": "row_image_not_full"}
    assert all("SET SESSION binlog_row_image" in str(e.action) for e in log.errors.values())


@pytest.mark.condition("M26")
def test_savepoints_and_undone_parts_leave_no_trace(
    each_mysql_database: MysqlDatabase, open_log: Callable[..., Log]
) -> None:
    each_mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    log = open_log(each_mysql_database, "t")
    with closing(each_mysql_database.connect(autocommit=False)) as connection, connection.cursor() as cursor:
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
    each_mysql_database: MysqlDatabase, open_log: Callable[..., Log]
) -> None:
    each_mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    log = open_log(each_mysql_database, "t")
    each_mysql_database.execute(
        "INSERT INTO t VALUES (1, 1)", "ALTER TABLE t ADD COLUMN w varchar(5)", "INSERT INTO t VALUES (2, 2, 'w')"
    )
    assert log.rows() == [("INSERT", (1, 1)), ("INSERT", (2, 2, "w"))]
    assert [e.operation.value for e in log.ddl] == ["ALTER_TABLE"]


@pytest.mark.condition("M30")
def test_create_table_select_and_the_swap_of_names(
    each_mysql_database: MysqlDatabase, open_log: Callable[..., Log]
) -> None:
    if each_mysql_database.server.lacks((8, 0, 21)):
        pytest.skip("with GTIDs, CREATE TABLE ... SELECT came with MySQL 8.0.21")
    each_mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    log = open_log(each_mysql_database, "t")
    each_mysql_database.execute(
        "CREATE TABLE c SELECT * FROM t",
        "INSERT INTO t VALUES (3)",
        "RENAME TABLE t TO old, c TO t",
        "INSERT INTO t VALUES (9)",
    )
    assert log.rows() == [("INSERT", (3,)), ("INSERT", (9,))]
    assert [e.operation.value for e in log.ddl] == ["CREATE_TABLE"]


@pytest.mark.condition("M07", "M08")
def test_rows_have_the_columns_of_their_own_time(
    each_mysql_database: MysqlDatabase, open_log: Callable[..., Log]
) -> None:
    each_mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b int)")
    log = open_log(each_mysql_database, "t")
    # All of it before anybody reads: what the catalogue says now is true of the last row only.
    each_mysql_database.execute(
        "INSERT INTO t VALUES (1, 10, 20)",
        "ALTER TABLE t MODIFY b int AFTER id",
        "INSERT INTO t (id, a, b) VALUES (2, 10, 20)",
        "ALTER TABLE t RENAME COLUMN a TO c",
        "ALTER TABLE t ADD COLUMN a int DEFAULT 7 FIRST",
        "INSERT INTO t (id, a, b, c) VALUES (3, 30, 20, 10)",
        "ALTER TABLE t DROP COLUMN c, MODIFY b varchar(10)",
        "INSERT INTO t (id, a, b) VALUES (4, 30, 'text')",
    )
    rows: list[dict[str, Any]] = []
    while len(rows) < 4:
        rows += [dict(c[ROW]) for c in log.drain()]
    assert rows == [
        {"id": 1, "a": 10, "b": 20},
        {"id": 2, "a": 10, "b": 20},
        {"id": 3, "a": 30, "b": 20, "c": 10},
        {"id": 4, "a": 30, "b": "text"},
    ]
    assert [e.operation.value for e in log.ddl] == ["ALTER_TABLE"] * 4


@pytest.mark.condition("M13")
def test_tables_are_told_apart_by_database_and_by_case(
    each_mysql_database: MysqlDatabase, open_log: Callable[..., Log]
) -> None:
    each_mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE T (id int PRIMARY KEY)")
    with each_mysql_database.server.database() as other:
        other.execute("CREATE TABLE t (id int PRIMARY KEY)")
        log = open_log(each_mysql_database, "t")
        other.execute("INSERT INTO t VALUES (1)", "TRUNCATE t")
        each_mysql_database.execute("INSERT INTO T VALUES (2)", "INSERT INTO t VALUES (3)", "TRUNCATE T")
        assert log.rows() == [("INSERT", (3,))]
        assert log.ddl == []


@pytest.mark.condition("M27")
def test_changes_of_tables_without_transactions_stand_next_to_ours(
    each_mysql_database: MysqlDatabase, open_log: Callable[..., Log]
) -> None:
    each_mysql_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE isam (id int PRIMARY KEY) ENGINE = MyISAM",
    )
    log = open_log(each_mysql_database, "t")
    each_mysql_database.execute("INSERT INTO isam VALUES (1)", "INSERT INTO t VALUES (1)")
    if each_mysql_database.server.flavor == "mariadb":
        # With GTIDs MySQL refuses to mix them.
        for end, number in (("COMMIT", 2), ("ROLLBACK", 3)):
            with closing(each_mysql_database.connect(autocommit=False)) as connection, connection.cursor() as cursor:
                cursor.execute(f"INSERT INTO t VALUES ({number})")
                cursor.execute(f"INSERT INTO isam VALUES ({number})")
                cursor.execute(end)
    each_mysql_database.execute("INSERT INTO t VALUES (4)")
    kept = [1, 4] if each_mysql_database.server.flavor == "mysql" else [1, 2, 4]
    assert log.rows() == [("INSERT", (n,)) for n in kept]


# --- the way here -----------------------------------------------------------------------------------------------------


@pytest.mark.condition("M03", "M04")
def test_a_network_that_swallows_everything_is_noticed_and_heartbeats_are_not_old_changes(
    each_mysql_database: MysqlDatabase, source_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dump, "_SILENCE_S_MIN", 1.0)
    each_mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with FaultProxy(each_mysql_database.server.host, each_mysql_database.server.port) as proxy:
        source = source_of(each_mysql_database.server, port=proxy.port, heartbeat="100ms", statement_timeout="1s")
        log = Log(source, TableId(each_mysql_database.name, "t"))
        log.drain()
        # Longer than the bound on silence: heartbeats come, and time continues.
        begun = source.status().now
        while (moment := log.reader.pull(_LIMITS).source_time) is None or moment - begun < timedelta(seconds=2):
            pass
        assert moment <= source.status().now
        proxy.blackhole()
        try:
            with pytest.raises(SourceUnavailableError):
                pull_on(log.reader)
        finally:
            proxy.restore()
            log.reader.close()


@pytest.mark.condition("M05")
def test_a_byte_that_is_flipped_on_its_way_is_noticed(each_mysql_database: MysqlDatabase, source_of: Make) -> None:
    each_mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(20))")
    with FaultProxy(each_mysql_database.server.host, each_mysql_database.server.port) as proxy:
        # In the clear: TLS would notice it by itself.
        source = source_of(each_mysql_database.server, port=proxy.port, tls="disable")
        log = Log(source, TableId(each_mysql_database.name, "t"))
        log.drain()
        proxy.alter(b"ten thousand", b"ten thousanD")
        each_mysql_database.execute("INSERT INTO t VALUES (1, 'ten thousand')")
        with pytest.raises(CorruptStreamError) as found:
            log.drain()
        assert proxy.has_altered
        assert found.value.code == "corrupt_binlog_event"
        assert "thousan" not in str(found.value)
        log.reader.close()


@pytest.mark.condition("M17")
def test_a_reader_may_rest_for_longer_than_the_server_waits_for_others(
    each_mysql_database: MysqlDatabase, source_of: Make
) -> None:
    server = each_mysql_database.server
    each_mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, v longtext)")
    server.execute("SET GLOBAL net_write_timeout = 1")
    try:
        log = Log(source_of(server), TableId(each_mysql_database.name, "t"))
    finally:
        server.execute("SET GLOBAL net_write_timeout = DEFAULT")
    # More than sockets hold.
    each_mysql_database.execute(*(f"INSERT INTO t VALUES ({i}, REPEAT('x', 1000000))" for i in range(12)))
    moment = server.execute("SELECT NOW(6)")[0][0]
    wait_until(
        lambda: (server.execute("SELECT NOW(6)")[0][0] - moment).total_seconds() > 2.5,
        "the time is over that the server gives others",
    )
    ids: list[int] = []
    # A pull ends where a large event is not whole yet.
    while len(ids) < 12:
        for changes in log.reader.pull(_LIMITS).changes:
            ids += [row["id"] for row in changes.rows.column(ROW).to_pylist()]
    assert ids == list(range(12))
    log.reader.close()


# --- servers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flavor", ["mariadb", pytest.param("mysql", marks=pytest.mark.matrix)])
@pytest.mark.condition("M37")
def test_table_numbers_that_a_restarted_server_gives_again_are_of_other_tables(
    flavor: Flavor, request: pytest.FixtureRequest, source_of: Make
) -> None:
    if flavor == "mysql":
        request.getfixturevalue("mysql")
    with MysqlServer(flavor) as server, server.database() as database:
        database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY, v varchar(5))")
        log = Log(source_of(server), TableId(database.name, "t"), TableId(database.name, "u"))
        log.reader.close()
        # Each is the first table that is opened.
        server.restart()
        database.execute("INSERT INTO t VALUES (1)")
        server.restart()
        database.execute("INSERT INTO u VALUES (2, 'two')")
        again = Log(source_of(server), *log.schemas, after=log.offset)
        assert again.rows() == [("INSERT", (1,)), ("INSERT", (2, "two"))]
        again.reader.close()


@pytest.fixture(scope="module", params=["mariadb", pytest.param("mysql", marks=pytest.mark.matrix)])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[MysqlServer, MysqlServer]]:
    """A primary and its replica."""
    if request.param == "mysql":
        request.getfixturevalue("mysql")
    with MysqlServer(request.param) as primary, MysqlServer(request.param) as replica:
        replica.follow(primary)
        yield primary, replica


@pytest.mark.condition("D03")
def test_a_balancer_that_leads_to_another_server_is_noticed(
    pair: tuple[MysqlServer, MysqlServer], source_of: Make
) -> None:
    primary, replica = pair
    for server in pair:
        server.execute(
            "SET SESSION sql_log_bin = 0",
            "CREATE USER same@'%' IDENTIFIED BY 'secret'",
            "GRANT ALL PRIVILEGES ON *.* TO same@'%'",
        )
    with primary.database() as database, FaultProxy(primary.host, primary.port) as proxy:
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        table = TableId(database.name, "t")
        source = source_of(primary, port=proxy.port, user="same", password=Secret("secret"))
        schemas = {table: source.describe([table])[table].schema}
        offset = source.prepare([table], is_first=True)
        proxy.lead_to(replica.host, replica.port)
        for attempt in (
            lambda: source.read_chunk(chunk_request(schemas[table])),
            lambda: source.open_log(offset, schemas),
        ):
            with pytest.raises(SourceUnavailableError) as found:
                attempt()
            assert found.value.code == "another_server"


def test_a_name_that_moves_to_a_replica_is_noticed_while_every_connection_stands(
    pair: tuple[MysqlServer, MysqlServer], source_of: Make
) -> None:
    primary, replica = pair
    for server in pair:
        server.execute(
            "SET SESSION sql_log_bin = 0",
            "CREATE USER moved@'%' IDENTIFIED BY 'secret'",
            "GRANT ALL PRIVILEGES ON *.* TO moved@'%'",
        )
    with primary.database() as database, FaultProxy(primary.host, primary.port) as proxy:
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        table = TableId(database.name, "t")
        source = source_of(primary, port=proxy.port, user="moved", password=Secret("secret"))
        schemas = {table: source.describe([table])[table].schema}
        reader = source.open_log(source.prepare([table], is_first=True), schemas)
        source.check([table])
        proxy.lead_to(replica.host, replica.port)
        with pytest.raises(SourceUnavailableError) as found:
            source.check([table])
        assert found.value.code == "another_server"
        proxy.lead_to(primary.host, 1)
        source.check([table])
        reader.close()


@pytest.mark.condition("M35")
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
    replica.resume_replication()
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
    each_mysql_database: MysqlDatabase, mariadb: MysqlServer, source_of: Make
) -> None:
    server = each_mysql_database.server
    each_mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
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


def test_start_at_is_where_the_first_start_begins(each_mysql_database: MysqlDatabase, source_of: Make) -> None:
    each_mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    table = TableId(each_mysql_database.name, "t")
    here = source_of(each_mysql_database.server).prepare([table], is_first=True)
    each_mysql_database.execute("INSERT INTO t VALUES (1)")
    log = Log(source_of(each_mysql_database.server, start_at=here.value["gtids"]), table)
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


def test_transactions_have_ids_that_reads_know(
    each_mysql_database: MysqlDatabase, open_log: Callable[..., Log]
) -> None:
    each_mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    log = open_log(each_mysql_database, "t")
    each_mysql_database.execute("INSERT INTO t VALUES (1)")
    changes = log.drain()
    assert [c[TRANSACTION_ID] for c in changes] == log.ids


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
def test_what_was_prepared_before_our_position_in_the_log_may_have_changed_every_table(
    each_mysql_database: MysqlDatabase, open_log: Callable[..., Log], ending: str
) -> None:
    each_mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE unfollowed (id int PRIMARY KEY)")
    prepare_xa(each_mysql_database, "early", "INSERT INTO t VALUES (1)")
    log = open_log(each_mysql_database, "t")
    prepare_xa(each_mysql_database, "other", "INSERT INTO unfollowed VALUES (1)")
    each_mysql_database.execute("XA COMMIT 'other'", "INSERT INTO t VALUES (2)")
    assert log.rows() == [("INSERT", (2,))]
    assert log.unlogged == set(), "one that was prepared since is known, and has nothing of ours"
    each_mysql_database.execute(f"XA {ending} 'early'", "INSERT INTO t VALUES (3)")
    assert log.rows() == [("INSERT", (3,))], "the log is read on"
    assert log.unlogged == ({TableId(each_mysql_database.name, "t")} if ending == "COMMIT" else set())


def test_the_oldest_prepared_transaction_and_how_long_the_log_is_kept_are_told(
    each_mysql_database: MysqlDatabase, open_log: Callable[..., Log]
) -> None:
    each_mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    log = open_log(each_mysql_database, "t")
    assert log.source.status().retention.oldest_open is None
    for number, name in enumerate(("first", "second")):
        prepare_xa(each_mysql_database, name, f"INSERT INTO t VALUES ({number})")
    log.drain()
    oldest = log.source.status().retention.oldest_open
    assert oldest is not None
    assert b"first".hex() in oldest.name
    assert abs((log.source.status().now - oldest.since).total_seconds()) < 60
    again = Log(log.source, TableId(each_mysql_database.name, "t"), after=log.offset)
    again.drain()
    assert log.source.status().retention.oldest_open == oldest, "it is read again after a restart"
    again.reader.close()
    each_mysql_database.execute("XA COMMIT 'first'")
    log.drain()
    each_mysql_database.execute("XA ROLLBACK 'second'")
    each_mysql_database.execute("SET GLOBAL binlog_expire_logs_seconds = 7200")
    try:
        assert log.source.status().retention.keeps_log == timedelta(hours=2)
    finally:
        default = 0 if each_mysql_database.server.flavor == "mariadb" else 2_592_000
        each_mysql_database.execute(f"SET GLOBAL binlog_expire_logs_seconds = {default}")


def test_a_server_s_own_limit_of_rows_cuts_nothing_short(each_mysql_database: MysqlDatabase, source_of: Make) -> None:
    each_mysql_database.execute("CREATE TABLE t (v int)", *(f"INSERT INTO t VALUES ({i})" for i in range(50)))
    each_mysql_database.execute("SET GLOBAL sql_select_limit = 20")
    try:
        source = source_of(each_mysql_database.server)
        schema = source.describe([TableId(each_mysql_database.name, "t")])[
            TableId(each_mysql_database.name, "t")
        ].schema
        with source.read_whole(schema) as read:
            assert sum(batch.num_rows for batch in read.batches) == 50
    finally:
        each_mysql_database.execute("SET GLOBAL sql_select_limit = DEFAULT")

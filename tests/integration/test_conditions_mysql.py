"""What happens to tables of MariaDB and MySQL while they are copied, moment by moment: the journal replays to what the source holds.

In addition to the random writers of `test_capture_mysql.py` these are made to happen at their moment: before a chunk is read, between
its beginning and its statement, and behind it, before its mark.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

from replicator.model.events import ROW, TRANSACTION_ID
from replicator.model.schema import TableId
from replicator.plugins import Secret
from replicator.plugins.source import Chunk, ChunkRequest, DeltaSource, PullLimits, Seen, SourceContext
from replicator.state.records import Stage
from replicator_source_mysql import snapshot
from replicator_source_mysql.rows.chunk_statements import ReadPlan, chunk_query
from replicator_testbed.journals.captured import Captured
from replicator_testbed.mysql.servers import MysqlDatabase, MysqlServer
from replicator_testing.defaults import chunk_request

Make = Callable[..., Captured]
Moment = Literal["before", "inside", "behind"]


def moments(*quick: str, slow: Sequence[str] = ()) -> list[Any]:
    """Moments as parameters; those that show little more than the others are left to the long runs."""
    return [*quick, *(pytest.param(moment, marks=pytest.mark.matrix) for moment in slow)]


def assert_equal(captured: Captured, database: MysqlDatabase, *names: str) -> None:
    """The journal replays to what the source holds now."""
    for name in names:
        found = captured.rows(TableId(database.name, name))
        wanted = Counter(database.execute(f"SELECT * FROM `{name}`"))
        assert found == wanted, (
            f"{name}: too many {list((found - wanted).items())[:5]}, lacking {list((wanted - found).items())[:5]}"
        )


@pytest.fixture
def around_reads(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has something done around each chunk: it is told the chunk's number, from 1, and its table."""

    def of(source: DeltaSource[Any], moment: Moment, act: Callable[[int, str], None]) -> None:
        read, count = source.read_chunk, [0]

        def acting(request: ChunkRequest) -> Chunk:
            count[0] += 1
            number, name = count[0], request.schema.table.name
            if moment == "before":
                act(number, name)
            chunk = read(request)
            if moment == "behind":
                act(number, name)
            return chunk

        def late(plan: ReadPlan, request: ChunkRequest) -> str:
            if moment == "inside":
                act(count[0], request.schema.table.name)
            return chunk_query(plan, request)

        source.read_chunk = acting  # type: ignore[method-assign]
        monkeypatch.setattr(snapshot, "chunk_query", late)

    return of


def statements_of(number: int) -> list[str]:
    """What is done at a chunk of ten rows, of which every second number is there, each another thing."""
    first = 20 * (number - 1)
    kinds: list[list[str]] = [
        [f"UPDATE IGNORE t SET v = v + 1 WHERE id = {first + 6}"],
        # Out of the chunk: to where is read later, to where was read; from there and there, into it and past it.
        [f"UPDATE IGNORE t SET id = {first + 5000} WHERE id = {first + 6}"],
        [f"UPDATE IGNORE t SET id = {-first} - 7 WHERE id = {first + 8}"],
        [f"UPDATE IGNORE t SET id = {first + 7} WHERE id = {first + 50}"],
        [f"UPDATE IGNORE t SET id = {first + 9} WHERE id = {first - 10}"],
        [f"UPDATE IGNORE t SET id = {-first} - 5 WHERE id = {first + 52}"],
        [f"UPDATE IGNORE t SET id = {first + 6001} WHERE id = {first - 12}"],
        [f"DELETE FROM t WHERE id = {first + 4}"],
        [f"DELETE FROM t WHERE id = {first + 4}", f"INSERT IGNORE INTO t VALUES ({first + 4}, 77, 'again')"],
        [f"DELETE FROM t WHERE id IN ({first + 60}, {first - 8})"],
        [f"INSERT IGNORE INTO t VALUES ({first + 3}, 1, NULL), ({first + 61}, 1, NULL), ({-first} - 3, 1, NULL)"],
        [f"REPLACE INTO t VALUES ({first + 6}, 8, 'replaced')"],
        [f"INSERT INTO t VALUES ({first + 6}, 0, '') ON DUPLICATE KEY UPDATE v = 9"],
        [
            f"UPDATE IGNORE t SET id = {first + 11} WHERE id = {first + 10}",
            f"UPDATE IGNORE t SET id = {first + 7000} WHERE id = {first + 11}",
        ],
        [f"UPDATE IGNORE t SET id = id + 1 WHERE id BETWEEN {first} AND {first + 20} ORDER BY id DESC"],
    ]
    return kinds[number % len(kinds)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("moment", moments("inside", "behind", slow=["before"]))
@pytest.mark.condition("D01", "D02", "D06", "D19", "D20", "D28")
def test_what_happens_around_a_chunk_is_neither_lost_nor_undone(
    mysql_database: MysqlDatabase, make_mysql: Make, around_reads: Callable[..., None], moment: Moment
) -> None:
    mysql_database.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, v bigint NOT NULL, note text)",
        "INSERT INTO t VALUES " + ", ".join(f"({2 * i}, 0, 'note {i}')" for i in range(1, 171)),
    )
    captured = make_mysql(mysql_database, "t")
    done: list[int] = []
    with (
        closing(mysql_database.connect(autocommit=False)) as early,
        closing(mysql_database.connect(autocommit=False)) as late,
        closing(mysql_database.connect()) as other,
    ):
        early.cursor().execute("UPDATE t SET v = 100 WHERE id IN (2, 302, 338)")

        def act(number: int, _: str) -> None:
            if number == 2:
                late.cursor().execute("UPDATE t SET v = 200 WHERE id IN (4, 304, 334)")
            if number == 9:
                early.commit()
            if number == 11:
                late.commit()
            for statement in ("UPDATE t SET v = v + 1 WHERE id = 330", *statements_of(number)):
                other.cursor().execute(statement)
            done.append(number)

        with captured.running(alter=lambda source: around_reads(source, moment, act)) as running:
            captured.wait_for_streaming(running)
            captured.catch_up(running)
    assert len(set(done)) >= 17
    assert_equal(captured, mysql_database, "t")


KEYS = {
    "bigint unsigned": ["0", "5", "9223372036854775808", "18446744073709551615"],
    "decimal(20,5)": ["-1.5", "0", "7.00001"],
    "bit(12)": ["1", "2", "4000"],
    "year": ["0", "1901", "2000", "2155"],
    "date": ["'2000-01-01'", "'2020-02-29'"],
    "time(3)": ["'-10:00:00.5'", "'00:00:00'", "'100:00:00.001'"],
    "datetime(6)": ["'2000-01-01 00:00:00.000001'", "'2000-01-01 00:00:00.000002'"],
    "timestamp(3) DEFAULT '2000-01-01'": ["'2001-01-01 00:00:00.001'", "'2002-01-01'"],
    "varchar(20) COLLATE utf8mb4_general_ci": ["'a'", "'B'", "'c''d'", "'é'", "'z '"],
    "char(20) CHARACTER SET latin1": ["'a'", "'é'", "'z'"],
    "varchar(20) CHARACTER SET sjis": ["'a'", "'日本'"],
    "varbinary(8)": ["x''", "x'00'", "x'0000'", "x'ff27'"],
    "binary(3)": ["x'000000'", "x'610000'", "x'616263'"],
    "enum('z','a','m')": ["'z'", "'a'", "'m'"],
    "set('z','a','m')": ["''", "'z'", "'a,m'", "'z,a,m'"],
}
MARIADB_KEYS = {
    "uuid": ["'123e4567-e89b-12d3-a456-426655440000'", "'00000000-0000-4000-8000-000000000001'"],
    "inet6": ["'::1'", "'2001:db8::ff00:42:8329'"],
}


@pytest.mark.matrix
@pytest.mark.parametrize("moment", moments("behind", slow=["before", "inside"]))
@pytest.mark.condition("D07", "D08", "D10")
def test_keys_of_every_kind_are_the_same_in_a_chunk_and_in_the_log(
    mysql_database: MysqlDatabase, make_mysql: Make, around_reads: Callable[..., None], moment: Moment
) -> None:
    server = mysql_database.server
    kinds = {**KEYS, **(MARIADB_KEYS if server.flavor == "mariadb" else {})}
    if server.version < (10, 7):
        kinds.pop("uuid", None)
    names = [f"k{i}" for i in range(len(kinds))]
    for name, (kind, values) in zip(names, kinds.items(), strict=True):
        mysql_database.execute(
            f"CREATE TABLE {name} (k {kind} NOT NULL, v int, PRIMARY KEY (k)) CHARACTER SET utf8mb4",
            f"INSERT INTO {name} VALUES " + ", ".join(f"({value}, 0)" for value in values),
        )
    captured = make_mysql(mysql_database, *names)

    def act(_: int, name: str) -> None:
        mysql_database.execute(f"UPDATE {name} SET v = v + 1")
        if "general_ci" in list(kinds)[int(name[1:])]:
            # Changes that the collation does not see.
            mysql_database.execute(
                f"UPDATE {name} SET k = 'A' WHERE k = 'a'",
                f"REPLACE INTO {name} VALUES ('b ', 5)",
                f"UPDATE {name} SET k = 'z' WHERE k = 'z'",
            )

    with captured.running(alter=lambda source: around_reads(source, moment, act)) as running:
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    for name, kind in zip(names, kinds, strict=True):
        assert captured.stage(TableId(mysql_database.name, name)) is Stage.STREAMING, kind
        found = captured.rows(TableId(mysql_database.name, name))
        ((count, total),) = mysql_database.execute(f"SELECT COUNT(*), SUM(v) FROM {name}")
        assert (sum(found.values()), sum(v * n for (_, v), n in found.items())) == (count, total), (kind, found)
        if kind.startswith("varchar(20) COLLATE"):
            assert {k for k, _ in found} == {k for (k,) in mysql_database.execute(f"SELECT k FROM {name}")}


@contextmanager
def in_thread(act: Callable[[], object]) -> Iterator[threading.Thread]:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 (raised in the test's thread)
            errors.append(error)

    thread = threading.Thread(target=run, name="other")
    thread.start()
    try:
        yield thread
    finally:
        thread.join(timeout=60)
        assert not errors, errors


@contextmanager
def waiting_for_a_replica(server: MysqlServer, act: Callable[[], object]) -> Iterator[threading.Thread]:
    """A thread whose commit waits during the block, in the log and not visible yet, for a replica that never answers.

    It waits for as long as the block takes: on a busy machine that is more than any number of seconds.
    """
    if server.flavor == "mariadb":
        prefix, suffix = "rpl_semi_sync_master", "slave"
    else:
        prefix, suffix = "rpl_semi_sync_source", "replica"
        server.execute(f"INSTALL PLUGIN {prefix} SONAME 'semisync_source.so'")
    settings = {"wait_point": "'AFTER_SYNC'", "timeout": "3600000", f"wait_no_{suffix}": "ON", "enabled": "ON"}
    server.execute(*(f"SET GLOBAL {prefix}_{name} = {value}" for name, value in settings.items()))
    try:
        with in_thread(act) as thread:
            try:
                yield thread
            finally:
                server.execute(f"SET GLOBAL {prefix}_enabled = OFF")
    finally:
        if server.flavor == "mysql":
            server.execute(f"UNINSTALL PLUGIN {prefix}")


@pytest.mark.matrix
@pytest.mark.condition("D05")
def test_a_transaction_that_is_in_the_log_and_waits_for_a_replica_counts_as_not_seen(
    mysql_database: MysqlDatabase, make_mysql: Make
) -> None:
    if mysql_database.server.lacks((8, 0, 26)):
        pytest.skip("the plugin for it has another name before MySQL 8.0.26")
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 0)")
    table = TableId(mysql_database.name, "t")
    source = make_mysql(mysql_database, "t").make_source(SourceContext(replicator="shop", uuid="u", epoch=1))
    schema = source.describe([table])[table].schema
    reader = source.open_log(source.prepare([table], is_first=True), {table: schema})
    limits = PullLimits(rows=100, bytes=1 << 20, wait_s=0.1)
    ids: list[str] = []
    try:
        with waiting_for_a_replica(
            mysql_database.server, lambda: mysql_database.execute("UPDATE t SET v = 1")
        ) as thread:
            while not ids:
                for changes in reader.pull(limits).changes:
                    ids += changes.rows.column(TRANSACTION_ID).to_pylist()
                    assert [row["v"] for row in changes.rows.column(ROW).to_pylist()] == [1]
            chunk = source.read_chunk(chunk_request(schema))
            assert thread.is_alive(), "it waits"
            assert chunk.rows.column("v").to_pylist() == [0], "delivered, and not visible"
            assert Seen.SEEN not in chunk.visibility.classify(pa.array(ids)).to_pylist()
        again = source.read_chunk(chunk_request(schema))
        assert again.rows.column("v").to_pylist() == [1]
        assert set(again.visibility.classify(pa.array(ids)).to_pylist()) == {int(Seen.SEEN)}
    finally:
        reader.close()
        source.close()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "statements",
    [
        ["TRUNCATE t", "INSERT INTO t VALUES (1, 5)"],
        ["ALTER TABLE t ADD INDEX (v)", "UPDATE t SET v = 4 WHERE id = 2"],
        ["ALTER TABLE t TRUNCATE PARTITION p0", "INSERT INTO t VALUES (3, 9)"],
        ["ALTER TABLE t EXCHANGE PARTITION p1 WITH TABLE u"],
        ["ALTER TABLE t DROP PARTITION p1"],
        ["CREATE TABLE n LIKE t", "INSERT INTO n SELECT id, v + 1 FROM t WHERE id < 60", "RENAME TABLE t TO o, n TO t"],
    ],
)
@pytest.mark.parametrize("moment", moments("inside", slow=["before", "behind", "afterwards"]))
@pytest.mark.condition("D18", "D21", "M30")
def test_a_table_whose_rows_come_and_go_otherwise_ends_equal(
    mysql_database: MysqlDatabase,
    make_mysql: Make,
    around_reads: Callable[..., None],
    moment: Moment | Literal["afterwards"],
    statements: list[str],
) -> None:
    rows = ", ".join(f"({i}, 0)" for i in range(1, 81))
    mysql_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)"
        " (PARTITION p0 VALUES LESS THAN (30), PARTITION p1 VALUES LESS THAN (50), PARTITION p2 VALUES LESS THAN (1000))",
        f"INSERT INTO t VALUES {rows}",
        "CREATE TABLE u (id int PRIMARY KEY, v int)",
        "INSERT INTO u VALUES (31, 31), (40, 40)",
    )
    captured = make_mysql(mysql_database, "t", "u")

    def alter(source: DeltaSource[Any]) -> None:
        if moment != "afterwards":
            around_reads(source, moment, lambda number, _: mysql_database.execute(*(statements if number == 3 else ())))

    with captured.running(alter=alter) as running:
        captured.wait_for_streaming(running)
        if moment == "afterwards":
            mysql_database.execute(*statements)
        # What begins a new snapshot is in the log, and so is the end of that snapshot.
        for _ in range(3):
            captured.catch_up(running)
            captured.wait_for_streaming(running)
        mysql_database.execute("UPDATE t SET v = v + 1000 WHERE id IN (1, 35, 70)")
        captured.catch_up(running)
    assert_equal(captured, mysql_database, "t", "u")


# --- what writes rows -------------------------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.condition("D23")
def test_whatever_writes_rows_is_in_the_log(mysql_database: MysqlDatabase, make_mysql: Make, tmp_path: Path) -> None:
    mysql_database.execute(
        "CREATE TABLE a (id int PRIMARY KEY AUTO_INCREMENT, v int, u int UNIQUE)",
        "CREATE TABLE b (id int PRIMARY KEY, v int)",
        "CREATE TABLE c (v int, w int)",
        "CREATE TRIGGER g AFTER UPDATE ON a FOR EACH ROW INSERT INTO c VALUES (OLD.v, NEW.v)",
        "CREATE TRIGGER h BEFORE INSERT ON b FOR EACH ROW SET NEW.v = NEW.v * 2",
        "CREATE PROCEDURE p() BEGIN DELETE FROM b WHERE id = 4; UPDATE a SET v = v + 1 WHERE id = 1; END",
        "CREATE VIEW seen AS SELECT id, v FROM b",
    )
    (tmp_path / "rows.csv").write_text("10\t1\n11\t\\N\n")
    captured = make_mysql(mysql_database, "a", "b", "c")
    mysql_database.server.execute("SET GLOBAL local_infile = ON")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        with closing(mysql_database.connect(local_infile=True)) as connection, connection.cursor() as cursor:
            cursor.execute(f"LOAD DATA LOCAL INFILE '{tmp_path / 'rows.csv'}' INTO TABLE b (id, v)")
        mysql_database.execute(
            "INSERT INTO a (v, u) VALUES (1, 1), (2, 2), (3, 3)",
            "REPLACE INTO a (id, v, u) VALUES (1, 9, 2)",
            "INSERT INTO a (v, u) VALUES (5, 3) ON DUPLICATE KEY UPDATE v = v + 100, id = id + 50",
            "INSERT INTO b SELECT id, v FROM a",
            "INSERT IGNORE INTO b VALUES (1, 1), (4, 4), (4, 5)",
            "UPDATE a JOIN b ON a.id = b.id SET a.v = 50, b.v = 51",
            "DELETE a, b FROM a JOIN b ON a.id = b.id WHERE a.id > 50",
            "CALL p()",
            "UPDATE seen SET v = v - 1 ORDER BY id LIMIT 2",
            "INSERT INTO c SELECT * FROM c",
            "DELETE FROM c LIMIT 1",
        )
        captured.catch_up(running)
    assert_equal(captured, mysql_database, "a", "b", "c")


@pytest.mark.matrix
@pytest.mark.condition("D22", "M31")
def test_cascades_that_the_server_logs_arrive(mysql: MysqlServer, make_mysql: Make) -> None:
    if mysql.lacks((9, 6)):
        pytest.skip("MySQL logs what cascades do since 9.6")
    acts = "ON DELETE CASCADE ON UPDATE CASCADE"
    with mysql.database() as database:
        database.execute(
            "CREATE TABLE elder (id int PRIMARY KEY)",
            f"CREATE TABLE parent (id int PRIMARY KEY, e int, FOREIGN KEY (e) REFERENCES elder (id) {acts})",
            "CREATE TABLE child (id int PRIMARY KEY, p int,"
            " FOREIGN KEY (p) REFERENCES parent (id) ON DELETE SET NULL ON UPDATE CASCADE)",
            "INSERT INTO elder VALUES (1), (2), (3)",
            "INSERT INTO parent VALUES (1, 1), (2, 2), (3, 3)",
            "INSERT INTO child VALUES (1, 1), (2, 1), (3, 2), (4, 3)",
        )
        # The parents are not followed.
        captured = make_mysql(database, "child", "parent")
        with captured.running() as running:
            captured.wait_for_streaming(running)
            database.execute("DELETE FROM elder WHERE id = 1", "UPDATE parent SET id = 20 WHERE id = 2")
            database.execute("UPDATE elder SET id = 30 WHERE id = 3")
            captured.catch_up(running)
        assert_equal(captured, database, "child", "parent")


@pytest.mark.matrix
@pytest.mark.condition("D25")
def test_what_a_session_did_not_log_is_there_after_a_new_copy(mysql_database: MysqlDatabase, make_mysql: Make) -> None:
    mysql_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int)",
        "INSERT INTO t VALUES " + ", ".join(f"({i}, 0)" for i in range(30)),
    )
    captured = make_mysql(mysql_database, "t")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        with closing(mysql_database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION sql_log_bin = 0")
            cursor.execute("UPDATE t SET v = 1 WHERE id = 3")
            cursor.execute("DELETE FROM t WHERE id = 4")
            cursor.execute("INSERT INTO t VALUES (100, 1)")
        captured.catch_up(running)
        before = Counter(mysql_database.execute("SELECT * FROM t"))
        assert captured.rows(TableId(mysql_database.name, "t")) != before, "nothing in the log tells of it"
        captured.snapshot(running)
        captured.catch_up(running)
    assert_equal(captured, mysql_database, "t")


# --- servers and neighbours -------------------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.condition("D15")
def test_a_server_that_may_not_be_written_is_read_by_an_account_that_may_only_read(
    mysql_database: MysqlDatabase, make_mysql: Make
) -> None:
    server = mysql_database.server
    mysql_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int)",
        "INSERT INTO t VALUES " + ", ".join(f"({i}, 0)" for i in range(30)),
        "CREATE TABLE bag (v int)",
        "INSERT INTO bag VALUES (1), (1)",
    )
    monitor = "BINLOG MONITOR" if server.flavor == "mariadb" else "REPLICATION CLIENT"
    user = mysql_database.name[-20:]
    server.execute(
        f"CREATE USER '{user}'@'%' IDENTIFIED BY 'secret'",
        f"GRANT REPLICATION SLAVE, PROCESS, {monitor} ON *.* TO '{user}'@'%'",
        f"GRANT SELECT ON `{mysql_database.name}`.* TO '{user}'@'%'",
    )
    captured = make_mysql(mysql_database, "t", "bag", user=user, password=Secret("secret"))
    server.execute("SET GLOBAL read_only = ON")
    try:
        with captured.running() as running:
            captured.wait_for_streaming(running)
            # Those who may write all the same, as replication does.
            mysql_database.execute("UPDATE t SET v = 1 WHERE id = 3", "INSERT INTO bag VALUES (2)")
            captured.catch_up(running)
        assert_equal(captured, mysql_database, "t", "bag")
    finally:
        server.execute("SET GLOBAL read_only = OFF", f"DROP USER '{user}'@'%'")


@pytest.mark.matrix
@pytest.mark.condition("D16", "M16")
def test_two_replicators_of_one_table_do_not_know_each_other(mysql_database: MysqlDatabase, make_mysql: Make) -> None:
    mysql_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int)",
        "INSERT INTO t VALUES " + ", ".join(f"({i}, 0)" for i in range(60)),
    )
    one, two = make_mysql(mysql_database, "t"), make_mysql(mysql_database, "t")
    with one.running() as first, two.running() as second:
        for number in range(3):
            mysql_database.execute(f"UPDATE t SET v = {number} WHERE id % 3 = {number}")
            one.wait_for_streaming(first)
            two.wait_for_streaming(second)
            one.snapshot(first)
            two.snapshot(second)
        one.catch_up(first)
        two.catch_up(second)
    assert_equal(one, mysql_database, "t")
    assert_equal(two, mysql_database, "t")

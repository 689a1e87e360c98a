"""Capture over real MariaDB and MySQL servers: whatever happens there, the journal replays to what the source holds."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

import pymysql
import pytest

from replicator.config import DDLConfig
from replicator.model.errors import LogGapError, OffsetExpiredError, TransientError
from replicator.model.events import SnapshotEvent, SnapshotPhase
from replicator.model.schema import TableId
from replicator.plugins.source import Chunk, ChunkRequest, DeltaSource
from replicator.state.records import Stage
from replicator_testbed.journals.captured import Captured, PublishedWindow, RunningCapture
from replicator_testbed.mysql import load as mysql_load
from replicator_testbed.mysql.programs import has_mysql
from replicator_testbed.mysql.servers import MysqlDatabase, MysqlServer
from replicator_testing.waiting import wait_until

if TYPE_CHECKING:
    from tests.integration.conftest import SourceOf

Make = Callable[..., Captured]

TRANSACTIONS = 2_000


@pytest.fixture
def make(make_mysql: Make) -> Make:
    return make_mysql


@pytest.fixture(scope="module")
def changed_without_gtids() -> Iterator[MysqlServer]:
    """One server for all of these tests: each of them begins at a position of its own."""
    if not has_mysql():
        pytest.skip("NO MYSQL: tools/install_mysql.sh could not unpack one; only MariaDB is tested")
    with MysqlServer.without_gtids() as server:
        yield server


@pytest.fixture(
    params=["mariadb", *(pytest.param(other, marks=pytest.mark.matrix) for other in ("mysql", "changed_without_gtids"))]
)
def every_own_server(request: pytest.FixtureRequest) -> Iterator[MysqlServer]:
    """A server of each kind that the test may stop, kill and change."""
    if request.param == "changed_without_gtids":
        yield request.getfixturevalue(request.param)
        return
    if request.param == "mysql" and not has_mysql():
        pytest.skip("NO MYSQL: tools/install_mysql.sh could not unpack one; only MariaDB is tested")
    with MysqlServer(request.param) as server:
        yield server


def source_rows(database: MysqlDatabase, name: str) -> Counter[tuple[Any, ...]]:
    return Counter(database.execute(f"SELECT * FROM `{name}`"))


def assert_equal(captured: Captured, database: MysqlDatabase, *names: str) -> None:
    """The journal replays to what the source holds now."""
    for name in names:
        found, wanted = captured.rows(TableId(database.name, name)), source_rows(database, name)
        assert found == wanted, (
            f"{name}: too many {list((found - wanted).items())[:5]}, lacking {list((wanted - found).items())[:5]}"
        )


def fill(database: MysqlDatabase, name: str, rows: int) -> None:
    """A table with a key, a value and some rows."""
    database.execute(f"CREATE TABLE `{name}` (id bigint PRIMARY KEY, v bigint NOT NULL, note text)")
    values = ", ".join(f"({i}, 0, 'note {i}')" for i in range(1, rows + 1))
    database.execute(f"INSERT INTO `{name}` VALUES {values}")


def write_some(connection: pymysql.connections.Connection[Any], chance: random.Random, tables: list[str]) -> None:
    """One transaction of one to three statements: every kind of change, key changes and undone ones among them."""
    with connection.cursor() as cursor:
        connection.begin()
        for _ in range(chance.randint(1, 3)):
            table, id_, other = chance.choice(tables), chance.randint(1, 60), chance.randint(1, 60)
            match chance.randint(0, 5):
                case 0 | 1:
                    cursor.execute(f"UPDATE `{table}` SET v = v + 1 WHERE id = {id_}")
                case 2:
                    cursor.execute(f"REPLACE INTO `{table}` VALUES ({id_}, {chance.randint(0, 9)}, 'r')")
                case 3:
                    cursor.execute(f"DELETE FROM `{table}` WHERE id = {id_}")
                case 4:
                    cursor.execute(f"UPDATE IGNORE `{table}` SET id = {other}, note = 'moved' WHERE id = {id_}")
                case _:
                    cursor.execute(f"INSERT IGNORE INTO `{table}` VALUES ({id_}, 1, NULL)")
        if chance.random() < 0.1:
            connection.rollback()
        else:
            connection.commit()


def count_up(connection: pymysql.connections.Connection[Any], chance: random.Random, tables: list[str]) -> None:
    """One transaction that lets the version of one row grow."""
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE `{chance.choice(tables)}` SET v = v + 1 WHERE id = {chance.randint(1, 40)}")
    connection.commit()


class Writers:
    """Sessions that write until told to stop."""

    def __init__(
        self,
        database: MysqlDatabase,
        count: int,
        tables: list[str],
        seed: int = 0,
        write: Callable[[pymysql.connections.Connection[Any], random.Random, list[str]], None] = write_some,
        pause_s: float = 0,
    ) -> None:
        self._pause_s = pause_s
        self._write = write
        self._database = database
        self._tables = tables
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self.done = 0
        self._threads = [threading.Thread(target=self._run, args=(seed + i,), name=f"writer{i}") for i in range(count)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        wait_until(lambda: self.done >= len(self._threads), "everybody writes")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=60)
        assert not self._errors, self._errors

    def _run(self, seed: int) -> None:
        chance = random.Random(seed)
        try:
            while not self._stop.is_set():
                try:
                    with closing(self._database.connect(autocommit=False)) as connection:
                        while not self._stop.is_set():
                            self._write(connection, chance, self._tables)
                            self.done += 1
                            self._stop.wait(self._pause_s)
                except pymysql.MySQLError:
                    # A deadlock, or the server was stopped under it.
                    self._stop.wait(0.05)
        except BaseException as error:  # noqa: BLE001 (raised in the test's thread)
            self._errors.append(error)


def before_reads(source: DeltaSource[Any], act: Callable[[int], None]) -> None:
    """Call `act` with the number of each chunk, from 1, before it is read."""
    read, count = source.read_chunk, [0]

    def acting(request: ChunkRequest) -> Chunk:
        count[0] += 1
        act(count[0])
        return read(request)

    source.read_chunk = acting  # type: ignore[method-assign]


def behind_reads(source: DeltaSource[Any], act: Callable[[], None]) -> None:
    """Call `act` behind every read of a chunk, before capture gets it."""
    read = source.read_chunk

    def acting(request: ChunkRequest) -> Chunk:
        chunk = read(request)
        act()
        return chunk

    source.read_chunk = acting  # type: ignore[method-assign]


# --- snapshots and changes ---------------------------------------------------------------------------------------------


def test_what_is_there_and_every_change_arrives(mysql_database: MysqlDatabase, make: Make) -> None:
    fill(mysql_database, "t", 25)
    mysql_database.execute(
        "CREATE TABLE bag (v int, w varchar(10))", "INSERT INTO bag VALUES (1, 'a'), (1, 'a'), (2, NULL)"
    )
    captured = make(mysql_database, "t", "bag")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        mysql_database.execute(
            "UPDATE t SET v = 7 WHERE id = 3",
            "UPDATE t SET id = 100 WHERE id = 4",
            "DELETE FROM t WHERE id = 5",
            "INSERT INTO t VALUES (101, 1, NULL)",
            "INSERT INTO bag VALUES (1, 'a'), (3, 'c')",
            "DELETE FROM bag WHERE v = 1 LIMIT 1",
            "UPDATE bag SET v = 9 WHERE v = 2",
        )
        captured.catch_up(running)
    assert_equal(captured, mysql_database, "t", "bag")


@pytest.mark.matrix
@pytest.mark.condition("D01", "D02", "D05", "D19")
def test_snapshots_under_writers_leave_no_difference_and_no_row_goes_back(
    every_database: MysqlDatabase, make: Make
) -> None:
    for name in ("hot", "warm"):
        fill(every_database, name, 60)
    captured = make(every_database, "hot", "warm")
    with captured.running() as running:
        with Writers(every_database, 6, ["hot", "warm"]):
            captured.wait_for_streaming(running)
            for _ in range(5):
                captured.snapshot(running)
        captured.catch_up(running)
    assert_equal(captured, every_database, "hot", "warm")


@pytest.mark.matrix
@pytest.mark.condition("D17")
def test_restarts_under_writers_lose_and_double_nothing(every_database: MysqlDatabase, make: Make) -> None:
    for name in ("hot", "warm"):
        fill(every_database, name, 60)
    every_database.execute("CREATE TABLE bag (v int)")
    captured = make(every_database, "hot", "warm")
    with Writers(every_database, 4, ["hot", "warm"]):
        for _ in range(6):
            with captured.running() as running:
                captured.catch_up(running)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    assert_equal(captured, every_database, "hot", "warm")


@pytest.mark.matrix
@pytest.mark.condition("D14")
def test_a_table_without_a_key_is_read_under_steady_writers(every_database: MysqlDatabase, make: Make) -> None:
    every_database.execute("CREATE TABLE bag (v int, w char(200))", "INSERT INTO bag SELECT 0, 'x'")
    for _ in range(12):
        every_database.execute("INSERT INTO bag SELECT v + 1, w FROM bag")
    captured = make(every_database, "bag")
    stop = threading.Event()

    def write(seed: int) -> None:
        chance = random.Random(seed)
        with closing(every_database.connect()) as connection, connection.cursor() as cursor:
            while not stop.is_set():
                cursor.execute(f"INSERT INTO bag VALUES ({chance.randint(100, 120)}, 'new')")

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    try:
        with captured.running() as running:
            captured.wait_for_streaming(running)
            for _ in range(3):
                captured.snapshot(running)
            stop.set()
            for thread in threads:
                thread.join(timeout=60)
            captured.catch_up(running)
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=60)
    assert_equal(captured, every_database, "bag")


@pytest.mark.matrix
@pytest.mark.parametrize("has_rule", [True, False])
def test_without_gtids_what_is_delivered_between_a_read_and_its_chunk_survives(
    mysql_without_gtids: MysqlServer, make: Make, has_rule: bool
) -> None:
    with mysql_without_gtids.database() as database:
        fill(database, "hot", 40)
        captured = make(database, "hot")
        if not has_rule:
            captured.make_window = PublishedWindow
        runs: list[RunningCapture] = []

        def deliver() -> None:
            database.execute("UPDATE hot SET v = v + 1")
            captured.catch_up(runs[0])

        with captured.running() as running:
            captured.wait_for_streaming(running)
        with captured.running(lambda source: behind_reads(source, deliver)) as running:
            runs.append(running)
            captured.snapshot(running)
            captured.catch_up(running)
        replayed = captured.replay(TableId(database.name, "hot"), version="v")
        if has_rule:
            assert replayed.regressions == 0
            assert_equal(captured, database, "hot")
        else:
            assert replayed.regressions > 0, "the published algorithm is right after all"


@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_without_gtids_no_row_goes_back_in_many_snapshots_under_many_writers(
    mysql_without_gtids: MysqlServer, make: Make
) -> None:
    with mysql_without_gtids.database() as database:
        fill(database, "hot", 40)
        captured = make(database, "hot")
        captured.settings = replace(captured.settings, chunk_rows=20)
        with captured.running() as running:
            # Not so many changes that capture falls ever further behind on a busy machine.
            with Writers(database, 16, ["hot"], write=count_up, pause_s=0.02):
                captured.wait_for_streaming(running)
                for _ in range(50):
                    captured.snapshot(running)
            captured.catch_up(running)
        assert captured.replay(TableId(database.name, "hot"), version="v").regressions == 0
        assert_equal(captured, database, "hot")


@pytest.mark.matrix
def test_random_transactions_of_every_kind_with_snapshots_and_restarts_leave_no_difference(
    mysql_database: MysqlDatabase, make: Make
) -> None:
    """A slice of `tests/faults/test_mysql_load.py`, which continues to the target."""
    mysql_load.create(mysql_database, 200)
    captured = make(mysql_database, *mysql_load.TABLES)
    captured.settings = replace(captured.settings, chunk_rows=40)
    # Writers without a pause are faster than capture on a busy machine: the marks of the snapshots then come ever later.
    with mysql_load.Load(mysql_database, keys=200, pause_s=0.02) as load:
        for round_ in range(4):
            with captured.running() as running:
                captured.wait_for_streaming(running)
                if round_ == 0:
                    load.begin_xa()
                while load.transactions < TRANSACTIONS * (round_ + 1) / 4:
                    captured.snapshot(running, TableId(mysql_database.name, random.choice(mysql_load.TABLES)))
                load.swap(("plain", "named", "pair", "plain")[round_])
                if round_ == 2:
                    load.empty("alt")
    with captured.running() as running:
        captured.catch_up(running)
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    assert_equal(captured, mysql_database, *mysql_load.TABLES)


@pytest.mark.condition("D21")
def test_truncate_and_large_transactions_arrive_in_order(mysql_database: MysqlDatabase, make: Make) -> None:
    fill(mysql_database, "t", 15)
    captured = make(mysql_database, "t")
    captured.settings = replace(captured.settings, pull_rows=50)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        mysql_database.execute("TRUNCATE t")
        fill(mysql_database, "other", 5)
        with closing(mysql_database.connect(autocommit=False)) as connection, connection.cursor() as cursor:
            for i in range(500):
                cursor.execute(f"INSERT INTO t VALUES ({i}, {i}, REPEAT('x', 1000))")
            connection.commit()
        captured.catch_up(running)
    assert_equal(captured, mysql_database, "t")


def storage_is_known(captured: Captured, table: TableId) -> bool:
    identity = captured.record(table).identity
    return identity is not None and isinstance(identity.storage, str)


@pytest.mark.matrix
@pytest.mark.condition("D21")
def test_a_truncate_needs_no_snapshot_and_hides_no_other_storage(mysql_database: MysqlDatabase, make: Make) -> None:
    fill(mysql_database, "t", 15)
    captured = make(mysql_database, "t")
    table = TableId(mysql_database.name, "t")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        snapshots = snapshots_of(captured, mysql_database, "t")
        for number in range(3):
            mysql_database.execute("TRUNCATE t", f"INSERT INTO t VALUES ({number}, 0, NULL)")
            captured.catch_up(running)
            running.wait_until(lambda: storage_is_known(captured, table), "its storage is known")
        assert snapshots_of(captured, mysql_database, "t") == snapshots
    assert_equal(captured, mysql_database, "t")
    # While nothing is captured, a TRUNCATE, and then other rows that the log does not have.
    mysql_database.execute("TRUNCATE t")
    time.sleep(1.1)  # the catalogue says seconds
    with closing(mysql_database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute("CREATE TABLE loaded LIKE t")
        cursor.execute("INSERT INTO loaded VALUES (77, 7, 'loaded')")
        cursor.execute("DROP TABLE t")
        cursor.execute("RENAME TABLE loaded TO t")
    with captured.running() as running:
        captured.catch_up(running)
        running.wait_until(lambda: storage_is_known(captured, table), "its storage is known")
        captured.wait_for_streaming(running)
        assert snapshots_of(captured, mysql_database, "t") == snapshots + 1
    assert_equal(captured, mysql_database, "t")


@pytest.mark.matrix
@pytest.mark.parametrize("is_logged", [True, False], ids=["in the log", "not in the log"])
def test_the_expression_of_a_virtual_column_changes(mysql_database: MysqlDatabase, make: Make, is_logged: bool) -> None:
    mysql_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int, g bigint AS (a + 1) VIRTUAL)", "INSERT INTO t (id, a) VALUES (1, 1)"
    )
    captured = make(mysql_database, "t")
    captured.settings = replace(captured.settings, compare_every_s=0.1)
    table = TableId(mysql_database.name, "t")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        with closing(mysql_database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"SET SESSION sql_log_bin = {int(is_logged)}")
            cursor.execute("ALTER TABLE t MODIFY g bigint AS (a + 2) VIRTUAL")
        mysql_database.execute("INSERT INTO t (id, a) VALUES (2, 1)")
        running.wait_until(lambda: captured.rows(table) == {(1, 1, 3): 1, (2, 1, 3): 1}, "its rows are read again")


# --- connections and servers ----------------------------------------------------------------------------------------


def dump_threads(server: MysqlServer) -> list[int]:
    return [
        row[0]
        for row in server.execute("SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'")
    ]


@pytest.mark.condition("M01")
def test_a_killed_log_connection_is_transient_and_the_rest_arrives_afterwards(
    every_database: MysqlDatabase, make: Make
) -> None:
    fill(every_database, "t", 25)
    captured = make(every_database, "t")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        for number in dump_threads(every_database.server):
            every_database.server.execute(f"KILL {number}")
        assert isinstance(running.error(), TransientError)
    every_database.execute("UPDATE t SET v = 1")
    with captured.running() as running:
        captured.catch_up(running)
    assert_equal(captured, every_database, "t")


@pytest.mark.matrix
@pytest.mark.condition("M01")
def test_a_server_killed_under_load_comes_back_without_a_difference(every_own_server: MysqlServer, make: Make) -> None:
    with every_own_server.database() as database:
        fill(database, "hot", 60)
        captured = make(database, "hot")
        with Writers(database, 4, ["hot"]):
            for _ in range(2):
                with captured.running() as running:
                    captured.catch_up(running)
                    every_own_server.kill9()
                    assert isinstance(running.error(), TransientError)
                every_own_server.start()
        with captured.running() as running:
            captured.wait_for_streaming(running)
            captured.catch_up(running)
        assert_equal(captured, database, "hot")


@pytest.mark.matrix
@pytest.mark.condition("M10")
def test_rotated_logs_are_read_across_and_purged_ones_are_an_error_with_a_remedy(
    every_own_server: MysqlServer, make: Make
) -> None:
    with every_own_server.database() as database:
        fill(database, "t", 15)
        captured = make(database, "t")
        with captured.running() as running:
            captured.wait_for_streaming(running)
            for i in range(3):
                database.execute("FLUSH BINARY LOGS", f"UPDATE t SET v = {i + 1} WHERE id <= {i + 5}")
            captured.catch_up(running)
        assert_equal(captured, database, "t")
        database.execute("UPDATE t SET v = 9", "FLUSH BINARY LOGS", "UPDATE t SET v = 10", "FLUSH BINARY LOGS")
        last = database.execute("SHOW BINARY LOGS")[-1][0]
        database.execute(f"PURGE BINARY LOGS TO '{last}'")
        with captured.running() as running:
            error = running.error()
        assert isinstance(error, OffsetExpiredError), error
        assert "--restart" in str(error)
        request = captured.request("restart")
        with captured.running() as running:
            running.wait_until(lambda: captured.is_done(request), "it has begun at a new position")
            captured.wait_for_streaming(running)
            captured.catch_up(running)
        assert_equal(captured, database, "t")


@pytest.mark.matrix
@pytest.mark.condition("M34")
def test_a_history_begun_again_is_a_gap(every_own_server: MysqlServer, make: Make) -> None:
    reset = every_own_server.reset_log
    # In the log's first file, whose name comes again, the server says nothing to its readers.
    every_own_server.execute(reset)
    with every_own_server.database() as database:
        fill(database, "t", 15)
        captured = make(database, "t")
        with captured.running() as running:
            captured.wait_for_streaming(running)
            captured.catch_up(running)
            database.execute(reset, "UPDATE t SET v = 1")
            error = running.error()
        assert isinstance(error, LogGapError), error
        request = captured.request("restart")
        with captured.running() as running:
            running.wait_until(lambda: captured.is_done(request), "it has begun at a new position")
            captured.wait_for_streaming(running)
            database.execute("UPDATE t SET v = 2")
            captured.catch_up(running)
        assert_equal(captured, database, "t")
        # Of another size: with GTIDs the same ones that end at the same bytes count as the same history.
        database.execute(
            reset, "INSERT INTO t VALUES (100, 0, 'new')", *[f"UPDATE t SET v = {i + 3}" for i in range(40)]
        )
        with captured.running() as running:
            error = running.error()
        assert isinstance(error, LogGapError), error


def _has_failed(captured: Captured, table: TableId) -> bool:
    return captured.stage(table) is Stage.FAILED


@pytest.mark.matrix
def test_a_replica_takes_over_amid_a_copy_and_a_prepared_transaction(
    own_server: MysqlServer, make: Make, mysql_source_of: SourceOf
) -> None:
    with MysqlServer(own_server.flavor) as replica, own_server.database() as database:
        replica.follow(own_server)
        fill(database, "t", 200)
        captured = make(database, "t")
        table = TableId(database.name, "t")
        with captured.running() as running:
            captured.wait_for_streaming(running)
        captured.request("snapshot", tables=[str(table)])
        amid = threading.Event()
        runs: list[RunningCapture] = []

        def stop(number: int) -> None:
            if number >= 8:
                amid.set()
                wait_until(lambda: runs and runs[0].control.should_stop(), "it is told to stop", every_s=0.02)

        with captured.running(lambda source: before_reads(source, stop)) as running:
            runs.append(running)
            for name, id_ in (("one", 1), ("two", 2)):
                with closing(database.connect()) as connection, connection.cursor() as cursor:
                    for text in ("XA START '{}'", "UPDATE t SET v = 5 WHERE id = {}", "XA END '{}'", "XA PREPARE '{}'"):
                        cursor.execute(text.format(id_ if "UPDATE" in text else name))
            database.execute("UPDATE t SET v = 1 WHERE id > 150", "UPDATE t SET id = 1000 WHERE id = 3")
            wait_until(amid.is_set, "some of it is copied")
        assert captured.stage(table) is Stage.SNAPSHOT, "amid the copy"
        replica.catch_up_with(own_server)
        replica.stop_following()
        moved = MysqlDatabase(server=replica, name=database.name)
        captured.make_source = mysql_source_of(replica)
        moved.execute("UPDATE t SET v = 2 WHERE id = 4", "UPDATE t SET id = 3 WHERE id = 1000")
        for end in ("XA COMMIT 'one'", "XA ROLLBACK 'two'", "UPDATE t SET v = 3 WHERE id > 190"):
            with captured.running() as running:
                moved.execute(end)
                captured.catch_up(running)
        with captured.running() as running:
            captured.wait_for_streaming(running)
            captured.catch_up(running)
        assert_equal(captured, moved, "t")


# --- what the log does not have ---------------------------------------------------------------------------------------


ACTS = "ON DELETE CASCADE ON UPDATE CASCADE"
FAMILY = (
    "CREATE TABLE elder (id int PRIMARY KEY, v int)",
    f"CREATE TABLE parent (id int PRIMARY KEY, e int, v int, FOREIGN KEY (e) REFERENCES elder (id) {ACTS})",
    f"CREATE TABLE child (id int PRIMARY KEY, p int, v int, FOREIGN KEY (p) REFERENCES parent (id) {ACTS})",
    "INSERT INTO elder SELECT seq, 0 FROM seq_1_to_30",
    "INSERT INTO parent SELECT seq, seq, 0 FROM seq_1_to_30",
    "INSERT INTO child SELECT seq, 1 + seq % 30, 0 FROM seq_1_to_90",
)


def snapshots_of(captured: Captured, database: MysqlDatabase, name: str) -> int:
    return sum(
        isinstance(e, SnapshotEvent) and e.phase is SnapshotPhase.STARTED
        for e in captured.events(TableId(database.name, name))
    )


@pytest.mark.condition("D22", "M31")
def test_what_unlogged_cascades_did_is_read_again(mariadb: MysqlServer, make: Make) -> None:
    with mariadb.database() as database:
        database.execute(*FAMILY)
        # The parent in between is not followed, and the first of them only for comparison.
        captured = make(database, "child", "elder", foreign_keys="resnapshot")
        with captured.running() as running:
            captured.wait_for_streaming(running)
            database.execute("DELETE FROM elder WHERE id = 1")
            captured.catch_up(running)
            captured.wait_for_streaming(running)
            assert_equal(captured, database, "child", "elder")
            database.execute("UPDATE parent SET id = 1000 WHERE id = 2")
            captured.catch_up(running)
            captured.wait_for_streaming(running)
            assert_equal(captured, database, "child", "elder")
            snapshots = snapshots_of(captured, database, "child")
            assert snapshots == 3
            # Neither of these changes what a child refers to.
            database.execute("UPDATE elder SET v = 7", "UPDATE parent SET v = 7", "INSERT INTO elder VALUES (500, 0)")
            captured.catch_up(running)
            captured.wait_for_streaming(running)
        assert_equal(captured, database, "child", "elder")
        assert snapshots_of(captured, database, "child") == snapshots


@pytest.mark.matrix
def test_cascades_under_writers_lead_to_one_copy_after_the_other_and_to_no_difference(
    mariadb: MysqlServer, make: Make
) -> None:
    with mariadb.database() as database:
        database.execute(*FAMILY)
        captured = make(database, "child", "parent", foreign_keys="resnapshot")
        stop = threading.Event()
        done = [0]

        def write() -> None:
            chance = random.Random(5)
            with closing(database.connect()) as connection, connection.cursor() as cursor:
                while not stop.is_set():
                    id_ = chance.randint(1, 30)
                    cursor.execute(f"DELETE FROM elder WHERE id = {id_}")
                    cursor.execute(f"INSERT INTO elder VALUES ({id_}, 0)")
                    cursor.execute(f"INSERT IGNORE INTO parent VALUES ({id_}, {id_}, 0)")
                    cursor.execute(
                        f"REPLACE INTO child VALUES ({chance.randint(1, 90)}, {id_}, {chance.randint(1, 9)})"
                    )
                    done[0] += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            # A restart in the middle of it.
            for _ in range(2):
                with captured.running() as running:
                    count, wanted = snapshots_of(captured, database, "child"), done[0] + 200
                    running.wait_until(lambda: snapshots_of(captured, database, "child") > count + 1, "snapshots end")  # noqa: B023
                    wait_until(lambda: done[0] >= wanted, "it has written")  # noqa: B023
            with captured.running() as running:
                stop.set()
                writer.join(timeout=60)
                captured.catch_up(running)
                captured.wait_for_streaming(running)
                captured.catch_up(running)
                captured.wait_for_streaming(running)
        finally:
            stop.set()
            writer.join(timeout=60)
        assert_equal(captured, database, "child", "parent")
        assert snapshots_of(captured, database, "child") < done[0] / 3, "many changes share a copy"


@pytest.mark.matrix
def test_a_cascade_in_an_xa_transaction_and_a_foreign_key_that_is_dropped_count(
    mariadb: MysqlServer, make: Make
) -> None:
    with mariadb.database() as database:
        database.execute(*FAMILY)
        captured = make(database, "child", foreign_keys="resnapshot")
        with captured.running() as running:
            captured.wait_for_streaming(running)
            with closing(database.connect()) as connection, connection.cursor() as cursor:
                for text in ("XA START 'x'", "DELETE FROM parent WHERE id = 3", "XA END 'x'", "XA PREPARE 'x'"):
                    cursor.execute(text)
            database.execute("XA COMMIT 'x'")
            captured.catch_up(running)
            captured.wait_for_streaming(running)
            assert_equal(captured, database, "child")
        # While nobody reads: the server knows nothing of the key any more when the log is read.
        database.execute("DELETE FROM elder WHERE id = 4", "ALTER TABLE child DROP FOREIGN KEY child_ibfk_1")
        with captured.running() as running:
            captured.catch_up(running)
            captured.wait_for_streaming(running)
        assert_equal(captured, database, "child")


# --- changes of tables ----------------------------------------------------------------------------------------------


@pytest.mark.condition("D18", "M30")
def test_a_swap_of_tables_is_followed_by_a_new_copy_in_place(mysql_database: MysqlDatabase, make: Make) -> None:
    fill(mysql_database, "t", 25)
    captured = make(mysql_database, "t")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        mysql_database.execute(
            "CREATE TABLE _t_gho LIKE t",
            "INSERT INTO _t_gho SELECT id, v + 1, note FROM t WHERE id <= 20",
            "RENAME TABLE t TO _t_del, _t_gho TO t",
            "UPDATE t SET v = v + 1 WHERE id = 1",
        )
        captured.catch_up(running)
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    assert_equal(captured, mysql_database, "t")


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("ALTER TABLE t MODIFY COLUMN v varchar(20)", "ddl_stop"),
        ("DROP TABLE t", "table_missing"),
    ],
)
@pytest.mark.condition("D18")
def test_a_table_that_changes_fails_and_the_others_continue(
    mysql_database: MysqlDatabase, make: Make, statement: str, code: str
) -> None:
    for name in ("t", "other"):
        fill(mysql_database, name, 15)
    captured = make(mysql_database, "t", "other")
    table = TableId(mysql_database.name, "t")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        mysql_database.execute(statement)
        running.wait_until(lambda: captured.stage(table) is Stage.FAILED, "it has failed")
        mysql_database.execute("UPDATE other SET v = 5")
        captured.catch_up(running)
    assert captured.record(table).error is not None
    assert code in str(captured.record(table).error)
    assert_equal(captured, mysql_database, "other")


@pytest.mark.matrix
def test_a_harmless_alter_changes_nothing(mysql_database: MysqlDatabase, make: Make) -> None:
    fill(mysql_database, "t", 15)
    captured = make(mysql_database, "t")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        mysql_database.execute("ALTER TABLE t ADD INDEX (v)", "UPDATE t SET v = 4 WHERE id = 2")
        captured.catch_up(running)
        assert captured.stage(TableId(mysql_database.name, "t")) is Stage.STREAMING
    assert_equal(captured, mysql_database, "t")


@pytest.mark.sampled(1)
@pytest.mark.condition("D24", "M28")
@pytest.mark.parametrize("policy", ["resnapshot", "stop"])
def test_a_change_logged_as_a_statement_concerns_the_table_that_it_names(
    mysql_database: MysqlDatabase, make: Make, policy: Literal["resnapshot", "stop"]
) -> None:
    for name in ("t", "other"):
        fill(mysql_database, name, 15)
    captured = make(mysql_database, "t", "other")
    captured.settings = replace(captured.settings, unexplained_change=policy)
    table, other = TableId(mysql_database.name, "t"), TableId(mysql_database.name, "other")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        with closing(mysql_database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION binlog_format = 'STATEMENT'")
            cursor.execute("UPDATE t SET v = 8 WHERE id = 1")
        if policy == "stop":
            running.wait_until(partial(_has_failed, captured, table), "it has failed")
            assert "statement_format" in str(captured.record(table).error)
            captured.snapshot(running, table)
        mysql_database.execute("UPDATE other SET v = 5")
        captured.catch_up(running)
        captured.wait_for_streaming(running)
        captured.catch_up(running)
        assert captured.record(other).error is None
    assert_equal(captured, mysql_database, "t", "other")


@pytest.mark.matrix
def test_after_a_change_of_the_key_the_table_gets_one_snapshot(mysql_database: MysqlDatabase, make: Make) -> None:
    fill(mysql_database, "t", 15)
    captured = make(mysql_database, "t")
    captured.settings = replace(captured.settings, ddl=lambda _: DDLConfig(change_key="apply"))
    table = TableId(mysql_database.name, "t")

    def beginnings() -> int:
        events = [item for _, _, item in captured.items(table) if isinstance(item, SnapshotEvent)]
        return sum(event.phase is SnapshotPhase.STARTED for event in events)

    with captured.running() as running:
        captured.wait_for_streaming(running)
        mysql_database.execute("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id, v)")
        running.wait_until(lambda: captured.record(table).incarnation == 2, "a new incarnation has begun")
        captured.wait_for_streaming(running)
        captured.catch_up(running)
        begun = beginnings()
        mysql_database.execute("UPDATE t SET v = 7 WHERE id = 1")
        captured.catch_up(running)
        assert beginnings() == begun, "a change of the table in its new shape is nothing new"
        assert captured.record(table).stage is Stage.STREAMING
    assert_equal(captured, mysql_database, "t")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("key", ["zz", "aa"])
@pytest.mark.parametrize("is_logged", [True, False], ids=["logged", "unlogged"])
def test_a_unique_key_that_is_dropped_and_made_again_loses_no_row(
    mysql_database: MysqlDatabase, make: Make, key: str, is_logged: bool
) -> None:
    mysql_database.execute(
        "CREATE TABLE t (a int NOT NULL, b int NOT NULL, UNIQUE zz (a), UNIQUE aa (b))",
        "INSERT INTO t VALUES (1, 1), (5, 5)",
    )
    captured = make(mysql_database, "t")
    table = TableId(mysql_database.name, "t")
    double, back = {"zz": ("(1, 2)", "b = 2"), "aa": ("(2, 1)", "a = 2")}[key]
    with captured.running() as running:
        captured.wait_for_streaming(running)
        with closing(mysql_database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"SET SESSION sql_log_bin = {int(is_logged)}")
            cursor.execute(f"DROP INDEX {key} ON t")
            mysql_database.execute(f"INSERT INTO t VALUES {double}", f"DELETE FROM t WHERE {back}")
            cursor.execute(f"CREATE UNIQUE INDEX {key} ON t ({'a' if key == 'zz' else 'b'})")
        mysql_database.execute("INSERT INTO t VALUES (7, 7)")
        captured.catch_up(running)
        captured.wait_for_streaming(running)
        captured.catch_up(running)
        incarnation = captured.record(table).incarnation
        mysql_database.execute("INSERT INTO t VALUES (8, 8)", "UPDATE t SET b = 9 WHERE a = 8")
        captured.catch_up(running)
        assert captured.record(table).incarnation == incarnation, "the key is what it is now"
    assert_equal(captured, mysql_database, "t")


@pytest.mark.matrix
@pytest.mark.parametrize(
    "definition", ["f float NOT NULL, b int NOT NULL, UNIQUE zz (f), UNIQUE aa (b)", "b int NOT NULL, KEY (b)"]
)
def test_a_table_that_no_key_can_serve_gets_one_snapshot(
    mysql_database: MysqlDatabase, make: Make, definition: str
) -> None:
    mysql_database.execute(
        f"CREATE TABLE t ({definition})",
        "INSERT INTO t (b) VALUES (1)" if "float" not in definition else "INSERT INTO t VALUES (1, 1)",
    )
    captured = make(mysql_database, "t")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        mysql_database.execute("UPDATE t SET b = 2", "DELETE FROM t WHERE b = 2")
        captured.catch_up(running)
        assert captured.record(TableId(mysql_database.name, "t")).incarnation == 1
    assert_equal(captured, mysql_database, "t")


# --- XA and compressed transactions ---------------------------------------------------------------------------------


@pytest.mark.condition("M25")
def test_prepared_transactions_are_held_back_until_they_are_decided(every_database: MysqlDatabase, make: Make) -> None:
    fill(every_database, "t", 15)
    captured = make(every_database, "t")

    def prepare(name: str, statement: str) -> None:
        with closing(every_database.connect()) as connection, connection.cursor() as cursor:
            for text in (f"XA START '{name}'", statement, f"XA END '{name}'", f"XA PREPARE '{name}'"):
                cursor.execute(text)

    table = TableId(every_database.name, "t")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        prepare("one", "UPDATE t SET v = 1 WHERE id = 1")
        prepare("two", "UPDATE t SET v = 2 WHERE id = 2")
        every_database.execute("UPDATE t SET v = 3 WHERE id = 3")
        captured.catch_up(running)
        held = {row[0]: row[1] for row in captured.rows(table)}
        assert (held[1], held[2], held[3]) == (0, 0, 3)
    with captured.running() as running:
        every_database.execute("XA COMMIT 'one'", "UPDATE t SET v = 4 WHERE id = 4", "XA ROLLBACK 'two'")
        captured.catch_up(running)
    assert_equal(captured, every_database, "t")
    with captured.running() as running:
        with closing(every_database.connect()) as connection, connection.cursor() as cursor:
            for text in ("XA START 'q'", "UPDATE t SET v = 6 WHERE id = 6", "XA END 'q'", "XA COMMIT 'q' ONE PHASE"):
                cursor.execute(text)
        captured.catch_up(running)
    assert_equal(captured, every_database, "t")


@pytest.mark.matrix
@pytest.mark.parametrize("is_other", [False, True], ids=["of ours", "of another database"])
def test_what_was_prepared_before_the_first_start_is_read_again_when_it_is_committed(
    every_database: MysqlDatabase, make: Make, is_other: bool
) -> None:
    fill(every_database, "t", 15)
    fill(every_database, "u", 15)
    every_database.execute("CREATE TABLE unfollowed (id int PRIMARY KEY)")
    statement = "INSERT INTO unfollowed VALUES (1)" if is_other else "UPDATE t SET v = 1 WHERE id = 1"
    with closing(every_database.connect()) as connection, connection.cursor() as cursor:
        for text in ("XA START 'early'", statement, "XA END 'early'", "XA PREPARE 'early'"):
            cursor.execute(text)
    captured = make(every_database, "t", "u")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        every_database.execute("XA COMMIT 'early'", "UPDATE t SET v = 2 WHERE id = 2")
        captured.catch_up(running)
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    assert_equal(captured, every_database, "t", "u")
    assert [snapshots_of(captured, every_database, name) for name in ("t", "u")] == [2, 2]


@pytest.mark.matrix
@pytest.mark.condition("M20", "M21")
def test_compressed_transactions_arrive(mysql_database: MysqlDatabase, make: Make) -> None:
    if mysql_database.server.lacks((8, 0, 20)):
        pytest.skip("compressed transactions came with MySQL 8.0.20")
    fill(mysql_database, "t", 15)
    captured = make(mysql_database, "t")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        if mysql_database.server.flavor == "mysql":
            with closing(mysql_database.connect(autocommit=False)) as connection, connection.cursor() as cursor:
                cursor.execute("SET SESSION binlog_transaction_compression = ON")
                for i in range(200):
                    cursor.execute(f"INSERT INTO t VALUES ({1000 + i}, 1, REPEAT('z', 500))")
                cursor.execute("UPDATE t SET v = 5 WHERE id >= 1100")
                connection.commit()
        else:
            mysql_database.server.execute("SET GLOBAL log_bin_compress = ON")
            mysql_database.execute(
                "INSERT INTO t VALUES (1000, 1, REPEAT('z', 5000))", "UPDATE t SET v = 5", "DELETE FROM t WHERE id = 3"
            )
            mysql_database.server.execute("SET GLOBAL log_bin_compress = OFF")
        captured.catch_up(running)
    assert_equal(captured, mysql_database, "t")

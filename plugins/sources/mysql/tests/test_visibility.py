"""What a read knows of transactions, and that it is true."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pyarrow as pa
import pytest

from replicator.model.events import ROW, TRANSACTION_ID
from replicator.model.schema import TableId
from replicator.plugins.source import Chunk, LogReader, PullLimits, Seen
from replicator_source_mysql.coordinates.mariadb import MariadbVisibility, xa_commit_id
from replicator_source_mysql.coordinates.xids import xid_of_sql
from replicator_source_mysql.positions.file_position import LogPosition
from replicator_source_mysql.positions.gtid_sets import GtidPosition
from replicator_source_mysql.source import MysqlSource
from replicator_testbed.mysql.servers import MysqlDatabase, MysqlServer
from replicator_testing.defaults import chunk_request
from replicator_testing.waiting import wait_until

READS = 300
WAITS = (50, 1000)


@pytest.mark.parametrize(
    ("id_", "seen"),
    [
        ("0-1-5@3:100", Seen.SEEN),
        ("0-1-5@3:300", Seen.SEEN),
        ("0-1-5@3:301", Seen.UNSEEN),
        ("0-1-5@4:4", Seen.UNSEEN),
        (xa_commit_id("0-1-5@3:100", "X'61',X'',1"), Seen.SEEN),
        (xa_commit_id("0-1-5@3:200", "X'61',X'',1"), Seen.SEEN),
        (xa_commit_id("0-1-5@3:201", "X'61',X'',1"), Seen.UNKNOWN),
        (xa_commit_id("0-1-5@3:100", "X'62',X'',1"), Seen.UNKNOWN),
        (xa_commit_id("0-1-5@3:301", "X'62',X'',1"), Seen.UNSEEN),
    ],
)
def test_an_xa_commit_is_seen_only_if_the_engine_had_done_with_it(id_: str, seen: Seen) -> None:
    visibility = MariadbVisibility(
        position=(3, 300), end=(3, 400), settled=(3, 200), prepared=frozenset({"X'62',X'',1"})
    )
    assert visibility.classify(pa.array([id_])).to_pylist() == [seen]


def test_on_a_server_that_took_over_gtids_decide() -> None:
    visibility = MariadbVisibility(
        position=(1, 300),
        end=(1, 400),
        settled=(1, 200),
        gtids=GtidPosition.of("0-1-9"),
        settled_gtids=GtidPosition.of("0-1-7"),
    )
    ids = ["0-1-9@8:1", "0-1-10@8:1", xa_commit_id("0-1-7@8:1", "x"), xa_commit_id("0-1-8@8:1", "x")]
    assert visibility.classify(pa.array(ids)).to_pylist() == [Seen.SEEN, Seen.UNSEEN, Seen.SEEN, Seen.UNKNOWN]


def test_a_gtid_that_is_owned_and_not_executed_is_waited_for_by_name_until_it_is_given_up(
    mysql: MysqlServer, source_of: Callable[..., MysqlSource]
) -> None:
    source = source_of(mysql)
    gtid = "aaaaaaaa-0000-0000-0000-00000000000a:7"
    with closing(mysql.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET gtid_next = '{gtid}'")
        since = source.visibility()
        assert not source.visibility().is_beyond(since)
        (line,) = source.status(since).waiting_for
        assert gtid in line
        assert f"session {connection.thread_id()}," in line
        cursor.execute("ROLLBACK")
        cursor.execute("SET gtid_next = 'AUTOMATIC'")
    assert source.visibility().is_beyond(since), "it will never be executed"
    assert source.status(since).waiting_for == []


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ((1, 5, "'plain'"), "X'706c61696e',X'',1"),
        ((77, 3, "X'00ff27',X'0102',77"), "X'00ff27',X'0102',77"),
        ((1, 2, "'ab','c'"), "X'6162',X'63',1"),
        ((1, 4, "X'69742773'"), "X'69742773',X'',1"),
        ((1, 4, "'0x41'"), "X'30783431',X'',1"),
        ((7, 7, "0x6561726C7922606227"), "X'6561726c792260',X'6227',7"),
    ],
)
def test_names_of_xa_transactions_have_one_spelling(row: tuple[int, int, str], expected: str) -> None:
    assert xid_of_sql(*row) == expected


@contextmanager
def writers_of_xa_transactions(database: MysqlDatabase) -> Iterator[None]:
    """Four sessions that commit a row each in one XA transaction after the other."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def write(w: int) -> None:
        try:
            with closing(database.connect()) as connection, connection.cursor() as cursor:
                n = 0
                while not stop.is_set():
                    n += 1
                    # Names with quotes in them, too.
                    xid = f"'w''{w}n{n}'" if n % 2 else f"'w{w}n{n}','b'"
                    for text in ("START", "END", "PREPARE", "COMMIT"):
                        cursor.execute(f"XA {text} {xid}")
                        if text == "START":
                            cursor.execute(f"INSERT INTO t VALUES ({w}, {n})")
        except BaseException as error:  # noqa: BLE001 (raised in the test's thread)
            errors.append(error)

    threads = [threading.Thread(target=write, args=(w,)) for w in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=60)
    assert not errors, errors


def rows_of(chunk: Chunk) -> set[tuple[int, int]]:
    return set(zip(*(column.to_pylist() for column in chunk.rows.columns), strict=True))


def delivered_by(reader: LogReader, source: MysqlSource) -> tuple[list[str], list[tuple[int, int]]]:
    """The ids of the transactions up to now, and the row of each."""
    mark = source.mark()
    ids: list[str] = []
    rows: list[tuple[int, int]] = []
    marks: list[str] = []
    while mark not in marks:
        batch = reader.pull(PullLimits(rows=10_000, bytes=1 << 26, wait_s=5.0))
        marks += batch.marks
        for changes in batch.changes:
            ids += changes.rows.column(TRANSACTION_ID).to_pylist()
            rows += [(row["w"], row["n"]) for row in changes.rows.column(ROW).to_pylist()]
    reader.close()
    return ids, rows


@pytest.mark.condition("D05")
@pytest.mark.parametrize("reads", [READS // 10, pytest.param(READS, marks=pytest.mark.matrix)])
def test_reads_under_writers_of_xa_transactions_say_the_truth(
    mysql_database: MysqlDatabase, source_of: Callable[..., MysqlSource], reads: int
) -> None:
    mysql_database.execute("CREATE TABLE t (w int, n int, PRIMARY KEY (w, n))")
    table = TableId(mysql_database.name, "t")
    source = source_of(mysql_database.server)
    schema = source.describe([table])[table].schema
    reader = source.open_log(source.prepare([table], is_first=True), {table: schema})
    with writers_of_xa_transactions(mysql_database):
        chunks = [source.read_chunk(chunk_request(schema)) for _ in range(reads)]
    ids, rows = delivered_by(reader, source)
    delivered = pa.array(ids)
    for chunk in chunks:
        there = rows_of(chunk)
        answers = chunk.visibility.classify(delivered).to_pylist()
        assert {row for row, seen in zip(rows, answers, strict=True) if seen == Seen.SEEN} <= there
        assert not {row for row, seen in zip(rows, answers, strict=True) if seen == Seen.UNSEEN} & there
    assert set(source.visibility().classify(delivered).to_pylist()) == {int(Seen.SEEN)}, "none stays unknown"


@pytest.mark.condition("D05")
@pytest.mark.parametrize("count", [WAITS[0], pytest.param(WAITS[1], marks=pytest.mark.matrix)])
def test_what_stood_in_the_log_is_seen_by_every_read_behind_the_wait(
    mariadb: MysqlServer, source_of: Callable[..., MysqlSource], count: int
) -> None:
    """A first snapshot waits so: what the log had before it was first read comes from nowhere else."""
    with mariadb.database() as database, closing(database.connect()) as other, other.cursor() as cursor:
        database.execute("CREATE TABLE t (w int, n int, PRIMARY KEY (w, n))")
        table = TableId(database.name, "t")
        source = source_of(mariadb)
        schema = source.describe([table])[table].schema
        reader = source.open_log(source.prepare([table], is_first=True), {table: schema})
        waits: list[tuple[LogPosition, dict[int, int]]] = []
        with writers_of_xa_transactions(database):
            for _ in range(count):
                since = source.visibility()
                assert isinstance(since, MariadbVisibility)
                while not source.visibility().is_beyond(since):
                    pass
                cursor.execute("SELECT w, max(n) FROM t GROUP BY w")
                waits.append((since.end, dict(cursor.fetchall())))
        ids, rows = delivered_by(reader, source)
    logged = ((position_of(id_), row) for id_, row in zip(ids, rows, strict=True))
    late, last, behind = list[tuple[int, int]](), dict[int, int](), next(logged)
    for end, there in waits:
        while behind[0] <= end:
            last |= [behind[1]]
            behind = next(logged)
        late += [(w, n) for w, n in last.items() if n > there.get(w, 0)]
    assert late == []


def position_of(id_: str) -> LogPosition:
    file, _, pos = id_.partition(";")[0].partition("@")[2].partition(":")
    return int(file), int(pos)


def test_a_statement_that_commits_an_xa_transaction_is_waited_for_and_a_prepared_one_is_not(
    mariadb: MysqlServer, source_of: Callable[..., MysqlSource]
) -> None:
    """The server holds the statement back behind its entry in the log, until a replica answers: there is none."""
    with (
        mariadb.database() as database,
        closing(database.connect()) as connection,
        closing(database.connect()) as forgotten,
        ThreadPoolExecutor(1) as executor,
    ):
        database.execute("CREATE TABLE t (n int PRIMARY KEY)")
        for number, session in enumerate((connection, forgotten)):
            with session.cursor() as cursor:
                for text in ("XA START 'a{}'", "INSERT INTO t VALUES ({})", "XA END 'a{}'", "XA PREPARE 'a{}'"):
                    cursor.execute(text.format(number))
        source = source_of(mariadb)
        mariadb.execute(
            "SET GLOBAL rpl_semi_sync_master_timeout = 600000", "SET GLOBAL rpl_semi_sync_master_enabled = ON"
        )
        try:
            commit = executor.submit(connection.query, "xa /* late */ commit 'a0'")
            wait_until(
                lambda: mariadb.execute(
                    "SELECT 1 FROM information_schema.processlist WHERE state LIKE '%semi-sync ACK%'"
                ),
                "it waits",
            )
            since = source.visibility()
            assert not source.visibility().is_beyond(since)
            assert source.status(since).waiting_for == [
                f"the statement XA COMMIT of the session {connection.thread_id()}"
            ]
        finally:
            mariadb.execute(
                "SET GLOBAL rpl_semi_sync_master_enabled = OFF", "SET GLOBAL rpl_semi_sync_master_timeout = 10000"
            )
        commit.result()
        assert source.visibility().is_beyond(since)
        assert source.status(since).waiting_for == []
        with forgotten.cursor() as cursor:
            cursor.execute("XA ROLLBACK 'a1'")

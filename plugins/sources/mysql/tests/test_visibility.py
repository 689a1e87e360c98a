"""What a read knows of transactions, and that it is true."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

import pyarrow as pa
import pytest

from replicator.model.events import ROW, TRANSACTION_ID
from replicator.model.schema import TableId
from replicator.plugins.source import Chunk, PullLimits, Seen
from replicator.testing.defaults import chunk_request
from replicator_source_mysql.coordinates.mariadb import MariadbVisibility, xa_commit_id
from replicator_source_mysql.gtidsets import GtidPosition
from replicator_source_mysql.source import MysqlSource
from replicator_source_mysql.xids import xid_of_sql
from replicator_testbed.mysql_servers import MysqlDatabase, MysqlServer

READS = 300


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


@pytest.mark.condition("D05")
def test_reads_under_writers_of_xa_transactions_say_the_truth(
    mysql_database: MysqlDatabase, source_of: Callable[..., MysqlSource]
) -> None:
    mysql_database.execute("CREATE TABLE t (w int, n int, PRIMARY KEY (w, n))")
    table = TableId(mysql_database.name, "t")
    source = source_of(mysql_database.server)
    schema = source.describe([table])[table].schema
    reader = source.open_log(source.prepare([table], is_first=True), {table: schema})
    stop = threading.Event()
    errors: list[BaseException] = []

    def write(w: int) -> None:
        try:
            with closing(mysql_database.connect()) as connection, connection.cursor() as cursor:
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
    chunks: list[Chunk] = []
    try:
        while len(chunks) < READS:
            chunks.append(source.read_chunk(chunk_request(schema)))
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=60)
    assert not errors, errors
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
    delivered = pa.array(ids)
    for chunk in chunks:
        there = set(zip(*(column.to_pylist() for column in chunk.rows.columns), strict=True))
        answers = chunk.visibility.classify(delivered).to_pylist()
        assert {row for row, seen in zip(rows, answers, strict=True) if seen == Seen.SEEN} <= there
        assert not {row for row, seen in zip(rows, answers, strict=True) if seen == Seen.UNSEEN} & there
    assert set(source.visibility().classify(delivered).to_pylist()) == {int(Seen.SEEN)}, "none stays unknown"

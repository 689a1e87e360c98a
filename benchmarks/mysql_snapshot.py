"""A first snapshot from MariaDB: chunks in key order with a mark behind each, into sealed Parquet, against a bare read of the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from typing import Final

from pymysql.constants import COMMAND

from benchmarks.captured import snapshot_of_mysql_table
from benchmarks.measure import Clock, Work, in_turns, say
from benchmarks.mysql_decode import SETTINGS, TABLE, insert
from benchmarks.report import Report, at_least, compared
from benchmarks.scale import Scale
from replicator.model.schema import TableId
from replicator_source_mysql.catalogue.discovery import read_tables
from replicator_source_mysql.rows.chunk_statements import whole_query
from replicator_source_mysql.snapshot import read_plan
from replicator_testbed.mysql.servers import MysqlDatabase, MysqlServer

GOAL: Final = 800_000
CHUNK_ROWS: Final = 50_000
OURS: Final = "chunks to sealed Parquet"
BARE: Final = "the same SELECT, dropped"
_RECEIVE_BYTES: Final = 1 << 18
# The packet behind the last row: five bytes, and the mark of an end.
_END_SIZE: Final = 9
_END_HEAD: Final = b"\x05\0\0"
_END_MARK: Final = 0xFE


def run(scale: Scale) -> Report:
    """Measure both sides on one server."""
    with MysqlServer.mariadb(settings=SETTINGS) as server, server.database("bench") as database:
        say(f"mysql_snapshot: loading {scale.rows:,} rows")
        database.execute(TABLE)
        insert(database, scale.rows)
        database.execute("ANALYZE TABLE orders")

        @contextmanager
        def chunks() -> Iterator[Work]:
            with snapshot_of_mysql_table(database, "orders", chunk_rows=CHUNK_ROWS) as work:

                def checked(clock: Clock) -> int:
                    count = work(clock)
                    assert count == scale.rows, f"{count} rows were copied, {scale.rows} are there"
                    return count

                yield checked

        bare = partial(read_bare, database, scale.rows)
        # Once for nothing: the server's memory is warm for both.
        bare(Clock())
        rates = in_turns({OURS: chunks, BARE: lambda: nullcontext(bare)}, scale.repetitions)
    what = f"{scale.rows:,} rows in chunks of {CHUNK_ROWS:,}, marked and resumable, to sealed Parquet"
    lines = [
        compared(what, rates[OURS], rates[BARE], BARE),
        at_least("rows per second, wall", rates[OURS].per_second, GOAL, "rows/s"),
    ]
    return Report(name="mysql_snapshot", lines=lines, raw={"rates": rates})


def read_bare(database: MysqlDatabase, rows: int, clock: Clock) -> int:
    """The columns as chunks ask for them, in the order of the key, in one statement: bytes are taken from the socket and dropped."""
    table = TableId(database.name, "orders")
    with closing(database.connect()) as connection:
        found = read_tables(connection, [table])[table]
        query = whole_query(read_plan(found, found.description.schema)) + " ORDER BY id"
        buffer = bytearray(_RECEIVE_BYTES)
        clock.begin()
        connection._execute_command(COMMAND.COM_QUERY, query)  # noqa: SLF001 - the public call would also read the answer
        tail = b""
        while not (len(tail) == _END_SIZE and tail[:3] == _END_HEAD and tail[4] == _END_MARK):
            count = connection._sock.recv_into(buffer)  # noqa: SLF001
            assert count, "the server closed the connection"
            tail = (tail + buffer[max(0, count - _END_SIZE) : count])[-_END_SIZE:]
    return rows

"""The least that a Python client can do: take the bytes from libpq as fast as it gives them, and drop them on the floor."""

from __future__ import annotations

import select
from collections import deque
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Final

import psycopg

from benchmarks.data import PUBLICATION, TABLE
from benchmarks.measure import Clock
from replicator_testbed.postgresql.servers import ScratchDatabase

# libpq's buffer grows only for long messages, and never shrinks: with its 16 KiB the socket is read in small pieces.
_INPUT_BUFFER_BYTES: Final = 256 * 1024
_NOTHING: Final = (0, memoryview(b""))
_AT_ONCE_MAX: Final = 1 << 17


def copy_binary(database: ScratchDatabase, clock: Clock) -> int:
    """`COPY table TO STDOUT (FORMAT binary)` in one piece; returns the number of rows."""
    with database.connect() as connection, connection.cursor() as cursor:
        clock.begin()
        with cursor.copy(f"COPY {TABLE} TO STDOUT (FORMAT binary)") as copy:
            deque(copy, maxlen=0)
        return cursor.rowcount


def read_log(database: ScratchDatabase, slot: str, until_lsn: int, clock: Clock, *, changes: int) -> int:
    """Read a slot's log with pgoutput up to a position, without looking at anything but the last message's position; returns `changes`.

    It reads as the product does: many messages for one call into psycopg, and a larger buffer.
    """
    with closing(psycopg.connect(database.dsn, autocommit=True, replication="database")) as connection:
        pgconn = connection.pgconn
        connection.execute(f"SELECT repeat('x', {_INPUT_BUFFER_BYTES})")
        pgconn.nonblocking = 0
        clock.begin()
        options = f"proto_version '1', publication_names '{PUBLICATION}', messages 'true'"
        result = pgconn.exec_(f'START_REPLICATION SLOT "{slot}" LOGICAL 0/0 ({options})'.encode())
        assert result.status == psycopg.pq.ExecStatus.COPY_BOTH, result.error_message
        pgconn.nonblocking = 1
        poll = select.poll()
        poll.register(pgconn.socket, select.POLLIN)
        fetch = partial(pgconn.get_copy_data, 1)
        position = 0
        while position < until_lsn:
            pgconn.consume_input()
            messages = list(islice(iter(fetch, _NOTHING), _AT_ONCE_MAX))
            if not messages:
                poll.poll()
                continue
            # Rows and keepalives alike have a position behind their kind.
            position = int.from_bytes(messages[-1][1][1:9])
    return changes

"""Events without rows, and positions in files that outgrow the header's 32 bits."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from replicator.model.errors import CorruptStreamError, FatalError, LogGapError
from replicator.plugins.source import PullLimits
from replicator_source_mysql.binlog.events import MARIADB_QUERY_COMPRESSED
from replicator_source_mysql.coordinates.mariadb import MariadbProgress
from replicator_source_mysql.events import (
    Begin,
    EventKind,
    heartbeat_v2,
    mariadb_begin,
    mysql_begin,
    query,
    rotate,
    tagged_begin,
    xa_prepare,
)
from replicator_source_mysql.flavors import MARIADB, MYSQL
from replicator_source_mysql.log.groups import Undoing
from replicator_source_mysql.log.reader import BinlogReader
from replicator_source_mysql.positions.gtid_sets import GtidPosition
from replicator_source_mysql.positions.marks import AwaitedMarks, LogEnd
from replicator_source_mysql.positions.position import Position

LIMITS = PullLimits(rows=100, bytes=1 << 20, wait_s=0.0)
# An end of the log that nobody reaches.
FAR = LogEnd(position=(1 << 40, 0), file="binlog.999999", moment=datetime.now(UTC), executed=None)


class Script:
    """A dump that hands out prepared events."""

    def __init__(self, *events: bytes) -> None:
        self._events = list(events)

    def events(self, wait_s: float) -> list[bytes]:
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        pass


def event(kind: int, body: bytes, *, end: int = 0, flags: int = 0, server_id: int = 1) -> bytes:
    return struct.pack("<IBIIIH", 1_700_000_000, kind, server_id, 19 + len(body) + 4, end, flags) + body


def reader_of(*events: bytes, **settings: Any) -> BinlogReader:
    values: Mapping[str, Any] = {
        "progress": MariadbProgress(Position(executed=GtidPosition(), server="1"), "1"),
        "flavor": MARIADB,
        "schemas": {},
        "board": AwaitedMarks(),
        "probe": lambda: FAR,
        "on_delivered": lambda _: None,
        "is_lower_case": False,
        "unrepresentable": "fail",
        "size_max": 1 << 20,
        "undoing": Undoing(groups={}, fold=str.upper),
        **settings,
    }
    return BinlogReader(Script(*events), **values)  # type: ignore[arg-type]


def gtid(number: int, flags: int = 0) -> bytes:
    return struct.pack("<QIB", number, 0, flags) + bytes(6)


@pytest.mark.condition("M09")
def test_positions_continue_beyond_four_gibibytes_and_are_counted_where_the_server_gives_none() -> None:
    reader = reader_of(
        event(EventKind.ROTATE, struct.pack("<Q", 4) + b"binlog.000007", flags=0x20),
        event(EventKind.MARIADB_GTID, gtid(1), end=(1 << 32) - 100),
        event(EventKind.XID, bytes(8), end=(1 << 32) - 50),
        event(EventKind.MARIADB_GTID, gtid(2), end=20),
        event(EventKind.XID, bytes(8), end=51),
        event(EventKind.MARIADB_GTID, gtid(3), end=100),
        event(EventKind.XID, bytes(8)),
    )
    batch = reader.pull(LIMITS)
    assert batch.offset is not None
    assert batch.offset.value["gtids"] == "0-1-3"
    assert batch.offset.value["file"] == "binlog.000007"
    assert batch.offset.value["pos"] == (1 << 32) + 100 + 31


@pytest.mark.parametrize(
    ("events", "error"),
    [
        ([event(EventKind.INCIDENT, bytes(3))], LogGapError),
        ([event(99, b"")], FatalError),
        ([event(EventKind.XID, bytes(8))], CorruptStreamError),
        ([event(EventKind.MARIADB_GTID, gtid(1)), event(EventKind.MARIADB_GTID, gtid(2))], CorruptStreamError),
        ([event(EventKind.MARIADB_GTID, b"short")], CorruptStreamError),
        ([event(EventKind.MARIADB_GTID, gtid(1)), event(23, bytes(20))], CorruptStreamError),
        ([event(EventKind.QUERY, bytes(20))], CorruptStreamError),
        ([event(EventKind.ANONYMOUS_GTID, bytes(42))], LogGapError),
    ],
)
@pytest.mark.condition("M29")
def test_what_must_not_be_skipped_stops_the_reader(events: list[bytes], error: type[Exception]) -> None:
    with pytest.raises(error):
        reader_of(*events).pull(LIMITS)


def test_events_that_may_be_ignored_are() -> None:
    batch = reader_of(event(99, b"", flags=0x80), event(EventKind.ROWS_QUERY, b"x")).pull(LIMITS)
    assert (batch.events, batch.offset) == (0, None)


def test_a_statement_that_mariadb_has_compressed_is_obeyed() -> None:
    body = struct.pack("<IIBHH", 1, 0, 0, 0, 0) + b"\0\x81\x06" + zlib.compress(b"COMMIT")
    reader = reader_of(
        event(EventKind.ROTATE, struct.pack("<Q", 4) + b"binlog.000007", flags=0x20),
        event(EventKind.MARIADB_GTID, gtid(1), end=100),
        event(MARIADB_QUERY_COMPRESSED, body, end=200),
    )
    offset = reader.pull(LIMITS).offset
    assert offset is not None
    assert offset.value["gtids"] == "0-1-1"


def test_the_end_of_the_log_is_asked_for_once_a_second() -> None:
    now, asked = [100.0], []

    def probe() -> LogEnd:
        asked.append(now[0])
        return FAR

    reader = reader_of(probe=probe, clock=lambda: now[0])
    for now[0] in (100.0, 100.4, 100.9, 101.1, 101.5, 102.2):
        reader.pull(LIMITS)
    assert asked == [100.0, 101.1, 102.2]


def test_a_transaction_that_a_crash_cut_off_counts_for_nothing() -> None:
    reader = reader_of(
        event(EventKind.ROTATE, struct.pack("<Q", 4) + b"binlog.000001", flags=0x20),
        event(EventKind.MARIADB_GTID, gtid(1), end=100),
        event(EventKind.ROTATE, struct.pack("<Q", 4) + b"binlog.000002"),
        event(EventKind.MARIADB_GTID, gtid(1), end=50),
        event(EventKind.XID, bytes(8), end=80),
    )
    batch = reader.pull(LIMITS)
    assert batch.offset is not None
    assert (batch.offset.value["gtids"], batch.offset.value["file"], batch.offset.value["pos"]) == (
        "0-1-1",
        "binlog.000002",
        80,
    )


def test_beginnings_of_transactions() -> None:
    source = bytes(range(16))
    body = b"\0" + source + struct.pack("<q", 77) + b"\x02" + bytes(16) + (1234567).to_bytes(7, "little")
    assert mysql_begin(memoryview(body)) == Begin("00010203-0405-0607-0809-0a0b0c0d0e0f:77", 1234567)
    assert mariadb_begin(memoryview(gtid(5, flags=1)), 9) == Begin("0-9-5", None, True)
    assert mariadb_begin(memoryview(gtid(6, flags=64)), 9) == Begin("0-9-6", None, False, True)
    for cut in range(len(body) - 8):
        with pytest.raises(CorruptStreamError):
            mysql_begin(memoryview(body[:cut]))


def test_a_tagged_beginning_is_cut_nowhere() -> None:
    def varlen(number: int) -> bytes:
        size = max(1, (number.bit_length() + 6) // 7)
        return ((number << size) | ((1 << (size - 1)) - 1)).to_bytes(size, "little")

    uuid = bytes(range(120, 136))
    fields = [varlen(0), varlen(1), varlen(1), *(varlen(b) for b in uuid), varlen(2), varlen(300 << 1)]
    fields += [
        varlen(3),
        varlen(3),
        b"tag",
        varlen(4),
        varlen(0),
        varlen(5),
        varlen(2),
        varlen(6),
        varlen(1_700_000_000_000_000),
    ]
    body = b"".join([varlen(1), varlen(60), varlen(0), *fields])
    begin = tagged_begin(memoryview(body))
    assert begin.gtid.endswith(":tag:300")
    assert begin.gtid.startswith(uuid[:4].hex())
    assert begin.committed_us == 1_700_000_000_000_000
    for cut in range(20):
        with pytest.raises(CorruptStreamError):
            tagged_begin(memoryview(body[:cut]))


def test_statements_positions_and_names() -> None:
    variables = b"\x00" + bytes(4) + b"\x01" + (4).to_bytes(8, "little")
    body = struct.pack("<IIBHH", 1, 0, 4, 0, len(variables)) + variables + b"shop\0TRUNCATE t"
    found = query(memoryview(body), flavor=MYSQL)
    assert (found.database, found.text, found.sql_mode) == ("shop", "TRUNCATE t", 4)
    for cut in range(len(body) - len("TRUNCATE t")):
        with pytest.raises(CorruptStreamError):
            query(memoryview(body[:cut]), flavor=MYSQL)
    assert rotate(memoryview(struct.pack("<Q", 4) + b"b.000002")) == ("b.000002", 4)
    assert heartbeat_v2(memoryview(b"\x01\x03b.1\x02\x09\xfe" + (1 << 33).to_bytes(8, "little") + b"\0")) == (
        "b.1",
        1 << 33,
    )
    assert xa_prepare(memoryview(struct.pack("<BIII", 0, 1, 2, 1) + b"abc")) == (False, "X'6162',X'63',1")

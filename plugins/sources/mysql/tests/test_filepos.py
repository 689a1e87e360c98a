"""Positions in a log without GTIDs, and readers that begin at them: pure, over prepared events."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from replicator.model.errors import CorruptStreamError, LogGapError
from replicator.model.offset import Offset
from replicator.plugins.source import LogBatch, PullLimits, Seen
from replicator_source_mysql.coordinates.file import FileProgress, FileVisibility
from replicator_source_mysql.events import FLAG_ARTIFICIAL, EventKind
from replicator_source_mysql.flavors import MYSQL
from replicator_source_mysql.log.groups import Undoing
from replicator_source_mysql.log.reader import BinlogReader
from replicator_source_mysql.positions.file_position import FIRST_BYTE, WRAP, FilePosition, fingerprint
from replicator_source_mysql.positions.gtid_sets import GtidSet
from replicator_source_mysql.positions.marks import AwaitedMarks, LogEnd
from replicator_source_mysql.positions.position import Position

LIMITS = PullLimits(rows=1000, bytes=1 << 30, wait_s=0.0)
SERVER = "aaaaaaaa-0000-0000-0000-00000000000a"
FILE = "binlog.000003"
# An end of the log that nobody reaches.
FAR = LogEnd(position=(1 << 40, 0), file="binlog.999999", moment=datetime.now(UTC), executed=None)


class Log:
    """A binary log that is made here: transactions of any size, without their bytes."""

    def __init__(self, pos: int = FIRST_BYTE) -> None:
        self.events: list[tuple[int, bytes]] = []
        self.pos = pos
        if pos == FIRST_BYTE:
            self._add(EventKind.FORMAT_DESCRIPTION, bytes(80))

    def _add(self, kind: int, body: bytes, size: int | None = None) -> None:
        size = 19 + len(body) + 4 if size is None else size
        raw = struct.pack("<IBIIIH", 1_700_000_000, kind, 1, size, (self.pos + size) % WRAP, 0) + body
        self.events.append((self.pos, raw))
        self.pos += size

    def transaction(self, size: int = 0, xid: int = 7) -> int:
        """Of some rows events with so many bytes in all; returns where it ends."""
        self._add(EventKind.ANONYMOUS_GTID, bytes(60))
        self._add(EventKind.QUERY, struct.pack("<IIBHH", 0, 0, 0, 0, 0) + b"\0BEGIN")
        while size:
            part = min(size, 1 << 29)
            self._add(EventKind.ROWS_QUERY, b"", part)
            size -= part
        self._add(EventKind.XID, xid.to_bytes(8, "little"))
        return self.pos

    def prepare(self, name: bytes) -> int:
        """An XA transaction up to its PREPARE."""
        self._add(EventKind.ANONYMOUS_GTID, bytes(60))
        self._add(EventKind.QUERY, struct.pack("<IIBHH", 0, 0, 0, 0, 0) + b"\0XA START X'61',X'',1")
        self._add(EventKind.XA_PREPARE, struct.pack("<BIII", 0, 1, len(name), 0) + name)
        return self.pos

    def dump(self, behind: FilePosition) -> list[bytes]:
        """What a server sends that is asked for the log from there on."""
        assert behind.begin < WRAP, "the command has 32 bits"
        assert behind.begin in {pos for pos, _ in self.events} | {self.pos}, "no event begins there"
        body = struct.pack("<Q", behind.begin) + behind.file.encode()
        first = struct.pack("<IBIIIH", 0, EventKind.ROTATE, 1, 19 + len(body), 0, FLAG_ARTIFICIAL) + body
        description = struct.pack("<IBIIIH", 1_700_000_000, EventKind.FORMAT_DESCRIPTION, 1, 103, 0, 0) + bytes(80)
        start = [first] if behind.begin == FIRST_BYTE else [first, description]
        return start + [raw for pos, raw in self.events if pos >= behind.begin]


class Dump:
    """Hands out the events of a log, a few at a time."""

    def __init__(self, events: list[bytes]) -> None:
        self._events = events

    def events(self, wait_s: float) -> list[bytes]:
        found, self._events = self._events[:3], self._events[3:]
        return found

    def close(self) -> None:
        pass


def reader_at(log: Log, start: Position, **settings: Any) -> BinlogReader:
    assert isinstance(start.begin, FilePosition)
    values: Mapping[str, Any] = {
        "progress": FileProgress(start, SERVER), "flavor": MYSQL, "schemas": {}, "board": AwaitedMarks(), "probe": lambda: FAR,
        "on_delivered": lambda _: None, "is_lower_case": False, "unrepresentable": "fail", "size_max": 1 << 20,
        "undoing": Undoing(groups={}, fold=str.upper),
        **settings,
    }  # fmt: skip
    return BinlogReader(Dump(log.dump(start.begin)), **values)  # type: ignore[arg-type]


def offsets(reader: BinlogReader) -> list[Position]:
    found: list[Position] = []
    for _ in range(200):
        batch: LogBatch = reader.pull(LIMITS)
        if batch.offset is not None:
            found.append(Position.of(batch.offset))
    return found


def at(pos: int) -> Position:
    return Position.at_file(FilePosition(FILE, pos), SERVER)


@pytest.mark.parametrize("text", ["binlog.000003:1234", "a.b:c.9999999:18446744073@4#0000beef"])
def test_a_position_is_what_its_text_says(text: str) -> None:
    assert str(FilePosition.of(text)) == text


@pytest.mark.parametrize("text", ["", "binlog.000003", "binlog:4", "binlog.000003:3", "x.1:4@5", "binlog.000003:-4", 5])
def test_what_is_no_position_is_refused(text: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        FilePosition.of(text)


def test_offsets_with_gtids_are_as_they_were_and_unknown_ones_are_refused() -> None:
    old = Offset.of({"flavor": "mysql", "gtids": f"{SERVER}:1-5", "server": SERVER, "file": FILE, "pos": 190})
    position = Position.of(old)
    assert position.executed == GtidSet.of(f"{SERVER}:1-5")
    assert position.offset == old
    here = Position.at_file(FilePosition(FILE, 4, 4, 99), SERVER)
    assert Position.of(here.offset) == here
    assert Position.of(here.offset).executed.crc == 99  # type: ignore[union-attr]
    for wrong in ({**here.offset.value, "version": 3}, {**here.offset.value, "at": 7}, {"version": 2}):
        with pytest.raises(CorruptStreamError):
            Position.of(Offset.of(wrong))


def test_positions_of_two_servers_and_positions_with_gtids_do_not_cover_each_other() -> None:
    here = at(900)
    assert here.covers(at(900))
    assert here.covers(at(4))
    assert here.covers(Position.at_file(FilePosition("binlog.000002", 5000), SERVER))
    assert not at(4).covers(here)
    other = Position.at_file(FilePosition(FILE, 4), "another")
    assert not here.covers(other)
    assert not other.covers(here)
    by_gtid = Position(executed=GtidSet(), server=SERVER)
    assert not here.covers(by_gtid)
    assert not by_gtid.covers(here)


@pytest.mark.parametrize(
    ("id_", "seen"),
    [
        ("binlog.000003:100", Seen.SEEN),
        ("binlog.000002:9000", Seen.SEEN),
        ("binlog.000003:300", Seen.SEEN),
        ("binlog.000003:301", Seen.UNKNOWN),
        ("binlog.000003:400", Seen.UNKNOWN),
        ("binlog.000003:401", Seen.UNSEEN),
        ("binlog.000010:4", Seen.UNSEEN),
    ],
)
def test_between_the_watermark_and_the_end_of_the_log_nobody_can_say(id_: str, seen: Seen) -> None:
    visibility = FileVisibility(before=(3, 300), after=(3, 400))
    assert visibility.classify(pa.array([id_])).to_pylist() == [seen]
    assert FileVisibility(before=(3, 400), after=(3, 500)).is_beyond(visibility)
    assert not FileVisibility(before=(3, 399), after=(3, 500)).is_beyond(visibility)


def test_a_reader_continues_behind_the_event_that_it_read_last() -> None:
    log = Log()
    ends = [log.transaction(xid=n) for n in range(3)]
    found = offsets(reader_at(log, at(FIRST_BYTE)))
    assert [p.pos for p in found][-1] == ends[-1]
    first = FilePosition.of(next(str(p.executed) for p in offsets(reader_at(log, at(FIRST_BYTE)))))
    assert first.crc is not None
    middle = Position.at_file(FilePosition(FILE, ends[0], ends[0] - 31, fingerprint(log.events[3][1])), SERVER)
    assert [p.pos for p in offsets(reader_at(log, middle))][-1] == ends[-1]


@pytest.mark.parametrize("what", ["another event", "no event"])
def test_a_history_in_which_the_last_event_is_another_is_a_gap(what: str) -> None:
    log, other = Log(), Log()
    log.transaction(xid=1)
    start = offsets(reader_at(log, at(FIRST_BYTE)))[-1]
    if what == "another event":
        other.transaction(xid=2)
        other.transaction(xid=3)
        reader = reader_at(other, start)
    else:
        # The server has the file, and nothing where the event was: it says that it is idle.
        assert isinstance(start.executed, FilePosition)
        log.events = [(pos, raw) for pos, raw in log.events if pos != start.executed.begin]
        log.events.append(
            (start.executed.begin, struct.pack("<IBIIIH", 0, EventKind.HEARTBEAT, 1, 40, 500, 0) + FILE.encode())
        )
        reader = reader_at(log, start)
    with pytest.raises(LogGapError) as found:
        offsets(reader)
    assert found.value.code == "other_history"


def test_positions_beyond_4_gib_are_counted_and_asked_for_from_below() -> None:
    log = Log()
    below = log.transaction()
    large = log.transaction(size=5 << 30)
    half = offsets(reader_at(log, at(FIRST_BYTE)))[-1]
    after = log.transaction()
    assert after > large == half.pos > WRAP
    found = offsets(reader_at(log, at(FIRST_BYTE)))
    assert found[-1].pos == after
    assert str(found[-1].begin).startswith(f"{FILE}:{below}@"), "from where 32 bits are enough"
    # On the way back what is durable is not news, and what comes behind it is.
    again = Position.of(found[-1].offset)
    assert offsets(reader_at(log, again)) == []
    last = log.transaction()
    assert [p.pos for p in offsets(reader_at(log, again))] == [last]
    assert offsets(reader_at(log, half))[-1].pos == last


def test_a_beginning_beyond_4_gib_reads_its_file_again() -> None:
    log = Log()
    log.transaction()
    end = log.transaction(size=5 << 30)
    start = at(end)
    assert str(start.begin) == f"{FILE}:4"
    assert offsets(reader_at(log, start)) == []
    last = log.transaction()
    assert [p.pos for p in offsets(reader_at(log, start))] == [last]


def test_what_is_prepared_holds_the_beginning_back() -> None:
    log = Log()
    first = log.transaction()
    log.prepare(b"a")
    last = log.transaction()
    found = offsets(reader_at(log, at(FIRST_BYTE)))[-1]
    assert found.pos == last
    assert isinstance(found.begin, FilePosition)
    assert found.begin.pos == first
    assert len(found.prepared) == 1
    assert Position.of(found.offset) == found
    reader = reader_at(log, found)
    assert offsets(reader) == []
    assert reader.oldest_open is not None, "its PREPARE has come again"


def test_an_idle_log_continues_to_the_next_file() -> None:
    log, following = Log(), Log()
    end = log.transaction()
    body = struct.pack("<Q", 4) + b"binlog.000004"
    rotate = struct.pack("<IBIIIH", 0, EventKind.ROTATE, 1, 19 + len(body), 0, FLAG_ARTIFICIAL) + body
    log.events.append((end, rotate))
    log.events += [(end + 100 + pos, raw) for pos, raw in following.events]
    found = offsets(reader_at(log, at(FIRST_BYTE)))[-1]
    assert (found.file, found.pos) == ("binlog.000004", FIRST_BYTE), "the file before may be purged"
    assert found.executed.crc == fingerprint(following.events[0][1])  # type: ignore[union-attr]


def test_a_mark_at_the_end_is_reached_by_a_reader_that_begins_there() -> None:
    log = Log()
    end = log.transaction()
    found = offsets(reader_at(log, at(FIRST_BYTE)))[-1]
    moment = LogEnd(position=(3, end), file=FILE, moment=None, executed=None)  # type: ignore[arg-type]
    reader = reader_at(log, found)
    reader.pull(LIMITS)
    reader.pull(LIMITS)
    assert moment.is_reached((3, reader._progress.cursor.pos), found.executed)


@pytest.mark.parametrize("is_waited_for", [False, True])
def test_an_end_that_lies_before_what_was_read_is_another_history(is_waited_for: bool) -> None:
    log = Log()
    read = log.transaction()
    # The first end was reached, or is still waited for, when the log is begun again.
    ends = [read + is_waited_for, read + is_waited_for, read - 1]
    probe: Callable[[], LogEnd] = lambda: replace(FAR, position=(3, ends.pop(0)))  # noqa: E731
    times = iter(range(100))
    reader = reader_at(log, at(FIRST_BYTE), probe=probe, clock=lambda: float(next(times)))

    def pull() -> None:
        while ends:
            reader.pull(LIMITS)

    with pytest.raises(LogGapError) as found:
        pull()
    assert found.value.code == "other_history"

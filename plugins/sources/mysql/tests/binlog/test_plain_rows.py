"""Events of known tables are taken in fewer steps than others, and become the same."""

from __future__ import annotations

import random
import struct
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.source import PullLimits
from replicator_source_mysql.coordinates.gtid import GtidSetProgress
from replicator_source_mysql.coordinates.mariadb import MariadbProgress
from replicator_source_mysql.log.groups import Undoing
from replicator_source_mysql.log.reader import BinlogReader
from replicator_source_mysql.log.stream import EventStream
from replicator_source_mysql.log.table_rows import TableRows
from replicator_source_mysql.positions.gtid_sets import GtidPosition, GtidSet
from replicator_source_mysql.positions.marks import AwaitedMarks, LogEnd
from replicator_source_mysql.positions.position import Position

if TYPE_CHECKING:
    from plugins.sources.mysql.tests.binlog.conftest import Binlog

IDLE_PULLS = 3
# An end of the log that nobody reaches.
FAR = LogEnd(position=(1 << 40, 0), file="binlog.999999", moment=datetime.now(UTC), executed=None)


class Script:
    """A dump that hands out the events of a file, some at a time."""

    def __init__(self, events: list[bytes], at_once: int) -> None:
        self._events = list(events)
        self._at_once = at_once

    def events(self, wait_s: float) -> list[bytes]:
        taken, self._events = self._events[: self._at_once], self._events[self._at_once :]
        return taken

    def close(self) -> None:
        pass


def with_headers(binlog: Binlog) -> list[bytes]:
    """The file's events since the beginning, without their checksums."""
    content = (Path(binlog.database.server.data_folder) / binlog._file).read_bytes()
    offset, found = binlog._position, []
    while offset < len(content):
        (size,) = struct.unpack_from("<I", content, offset + 9)
        found.append(content[offset : offset + size - 4])
        offset += size
    return found


def everything(binlog: Binlog, events: list[bytes], *names: str, at_once: int, limits: PullLimits) -> list[Any]:
    schemas = {
        TableId(binlog.database.name, name): TableSchema(
            table=TableId(binlog.database.name, name),
            columns=(
                Column(name="id", type=pa.int32(), source_type="int"),
                Column(name="v", type=pa.string(), source_type="varchar(20)"),
            ),
            key=("id",),
        )
        for name in names
    }
    start: Any = {"server": "1", "file": "binlog.000001", "pos": 4}
    progress = (
        MariadbProgress(Position(executed=GtidPosition(), **start), "1")
        if binlog.flavor == "mariadb"
        else GtidSetProgress(Position(executed=GtidSet(), **start), "1")
    )
    reader = BinlogReader(
        Script(events, at_once),  # type: ignore[arg-type]
        progress=progress,
        flavor=binlog.dialect,
        schemas=schemas,
        board=AwaitedMarks(),
        probe=lambda: FAR,
        on_delivered=lambda _: None,
        is_lower_case=False,
        unrepresentable="fail",
        size_max=1 << 20,
        undoing=Undoing(groups={}, fold=str.upper),
    )
    found: list[Any] = []
    base = 0
    last: Any = None
    idle = 0
    while idle < IDLE_PULLS:
        batch = reader.pull(limits)
        idle = 0 if batch.events or batch.offset is not None or batch.open_transaction is not None else idle + 1
        for changes in batch.changes:
            for change in changes.rows.to_pylist():
                change["_sequence_num"] += base
                found.append((str(changes.schema.table), sorted(change.items(), key=lambda i: i[0])))
        found += [(t["id"], base + t["end_ordinal"]) for t in batch.transactions.to_pylist()]
        found += [(e.operation, e.table, e.transaction_id) for e in batch.ddl]
        base += batch.events
        last = batch.offset.value if batch.offset is not None else last
    return [*sorted(found, key=repr), base, last]


@pytest.mark.parametrize(("at_once", "rows"), [(10_000, 10_000), (7, 3)])
def test_rows_taken_in_few_steps_are_those_taken_one_by_one(
    binlog: Binlog, monkeypatch: pytest.MonkeyPatch, at_once: int, rows: int
) -> None:
    for name in ("t", "u", "unfollowed"):
        binlog.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, v VARCHAR(20))")
    binlog.forget()
    chance = random.Random(3)
    for step in range(60):
        binlog.execute("BEGIN")
        for _ in range(chance.randint(1, 4)):
            table, id_ = chance.choice(["t", "t", "u", "unfollowed"]), chance.randint(1, 12)
            binlog.execute(f"REPLACE INTO {table} VALUES ({id_}, 'r{step}'), ({id_ + 20}, NULL)")
            binlog.execute(f"UPDATE {table} SET v = 'u{step}' WHERE id <= {id_}")
            binlog.execute(f"DELETE FROM {table} WHERE id = {id_ + 21}")
        binlog.execute("COMMIT")
        if step in {20, 40}:
            # Other numbers from here on.
            binlog.execute("TRUNCATE u")
    events = with_headers(binlog)
    limits = PullLimits(rows=rows, bytes=1 << 20, wait_s=0.0)
    taken = []
    steps = TableRows.take_queued

    def counted(self: TableRows, stream: EventStream, *arguments: Any) -> None:
        before = len(stream.queue)
        steps(self, stream, *arguments)
        taken.append(before - len(stream.queue))

    monkeypatch.setattr(TableRows, "take_queued", counted)
    quickly = everything(binlog, events, "t", "u", at_once=at_once, limits=limits)
    assert sum(taken) > len(events) / 4, "most of a log is plain"
    monkeypatch.setattr(TableRows, "take_queued", lambda *_: None)
    one_by_one = everything(binlog, events, "t", "u", at_once=at_once, limits=limits)
    assert quickly == one_by_one
    assert len(quickly) > 200

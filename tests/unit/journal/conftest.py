from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from replicator.journal import JournalWriter
from replicator.model.events import (
    ABSENT,
    BEFORE,
    IS_SNAPSHOT,
    OPERATION,
    ROW,
    SEQUENCE_NUM,
    SOURCE_TIMESTAMP,
    TRANSACTION_ID,
    SnapshotEvent,
    SnapshotPhase,
    change_schema,
)
from replicator.model.offset import Offset
from replicator.model.schema import Column, TableId, TableSchema
from replicator.state import SegmentFile, StateStore, holder_id
from replicator_testbed.journals.sealed import SealedReader
from replicator_testing.defaults import writer_limits

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


class FakeClock:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.time = NOW

    def __call__(self) -> datetime:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


def schema_of(name: str, *, key: tuple[str, ...] = ("id",), extra: Sequence[str] = ()) -> TableSchema:
    columns = [
        Column(name="id", type=pa.int64(), source_type="bigint"),
        Column(name="text of", type=pa.string(), source_type="text"),
    ]
    columns += [Column(name=n, type=pa.int64(), source_type="bigint") for n in extra]
    return TableSchema(table=TableId("public", name), columns=tuple(columns), key=key)


def started(table: TableId) -> SnapshotEvent:
    return SnapshotEvent(phase=SnapshotPhase.STARTED, table=table)


def inserts(
    schema: TableSchema, numbers: Sequence[int], *, is_snapshot: bool = False, text: str = "x"
) -> pa.RecordBatch:
    return changes(schema, [{"n": n, "row": {"id": n, "c2": text}, "snapshot": is_snapshot} for n in numbers])


def changes(schema: TableSchema, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {
                SEQUENCE_NUM: r["n"], OPERATION: r.get("op", "INSERT"), IS_SNAPSHOT: r.get("snapshot", False), SOURCE_TIMESTAMP: NOW,
                TRANSACTION_ID: "7", ABSENT: r.get("absent"), BEFORE: r.get("before"), ROW: r.get("row"),
            }
            for r in rows
        ],
        schema=change_schema(schema),
    )  # fmt: skip


class Journal:
    """A replicator's journal with one writer, and short ways to write into it."""

    NAME = "shop"
    schema_of = staticmethod(schema_of)
    inserts = staticmethod(inserts)
    changes = staticmethod(changes)
    started = staticmethod(started)

    def __init__(self, url: str, folder: Path, clock: FakeClock) -> None:
        self.url, self.folder, self.clock = url, folder, clock
        self.store = StateStore(url, clock=clock)
        self.uuid = self.store.create_replicator(self.NAME, "", str(folder)).uuid
        self.epoch = 0
        self.reader = SealedReader(self.store, self.NAME)
        self._writers: list[JournalWriter] = []
        self.writer = self.new_epoch()

    def new_epoch(self, **limits: int) -> JournalWriter:
        lease = self.store.leases.acquire(self.NAME, holder_id(), 60)
        assert lease is not None
        self.epoch = lease.epoch
        return self.new_writer(**limits)

    def new_writer(self, **limits: int) -> JournalWriter:
        self.writer = JournalWriter(
            self.store, name=self.NAME, epoch=self.epoch, uri=str(self.folder), limits=writer_limits(**limits)
        )
        self._writers.append(self.writer)
        return self.writer

    def insert(self, schema: TableSchema, count: int, *, incarnation: int = 1, **values: Any) -> int:
        """Number and append `count` inserts; return the first number."""
        first = self.writer.take(count)
        self.writer.append(schema, incarnation, inserts(schema, range(first, first + count), **values))
        return first

    def event(self, table: TableId, *, incarnation: int = 1) -> int:
        number = self.writer.take(1)
        self.writer.event(number, table, incarnation, started(table))
        return number

    def commit(self, lsn: int = 1, **values: Any) -> Sequence[Any]:
        parts: dict[str, Any] = {"offset": Offset.of({"lsn": lsn}), "source_time": NOW}
        return self.writer.commit(**(parts | values))

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("*.parquet"))

    def numbers(self, table: TableId) -> list[int]:
        """Every sequence number that the feed of a table holds, in its order."""
        found: list[int] = []
        for item in self.reader.feed(table, -1, 10_000):
            if isinstance(item, SegmentFile):
                for batch in self.reader.rows(item):
                    found += batch.column(SEQUENCE_NUM).to_pylist()
            else:
                found.append(item.sequence_num)
        return found

    def close(self) -> None:
        for writer in self._writers:
            writer.close()
        self.store.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def journal(tmp_path: Path, clock: FakeClock) -> Iterator[Journal]:
    journal = Journal(f"sqlite:///{tmp_path}/home/state.db", tmp_path / "journal", clock)
    yield journal
    journal.close()

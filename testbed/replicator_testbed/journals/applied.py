"""A journal written by hand in this process, and what applies it to a target in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from replicator.apply import Apply
from replicator.apply import table as apply_table
from replicator.journal import JournalReader, JournalWriter
from replicator.model.events import DDLEvent, DDLOperation, JournalEvent, SnapshotEvent, SnapshotKind, SnapshotPhase
from replicator.model.processes.reports import AppliedTable, ApplyReport, Report, WaitingReport
from replicator.model.schema import TableId
from replicator.plugins.target import DeltaTarget
from replicator.state import table_life
from replicator.state.records import AppliedRecord, SegmentFile, SnapshotProgress, Stage, TableRecord
from replicator.state.store import StateStore
from replicator_testbed.journals.scripted import START
from replicator_testing.batches import RowChange, insert, record_batch
from replicator_testing.defaults import AT_ONCE, apply_settings, target_context, writer_limits
from replicator_testing.memory import MemoryTarget, MemoryTargetConfig, MemoryWarehouse
from replicator_testing.target_harness import item, items_schema

NAME: Final = "shop"
A, B = TableId("shop", "a"), TableId("shop", "b")


class Killed(BaseException):
    """The process ends here."""


def kill_at(monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """Let the process end at a crash point of a table's applier."""

    def crash_point(name: str) -> None:
        if name == point:
            raise Killed(point)

    monkeypatch.setattr(apply_table, "crash_point", crash_point)


class Control:
    """Stops as soon as nothing is left to do."""

    def __init__(self, is_done: Callable[[], bool]) -> None:
        self._is_done = is_done
        self.reports: list[ApplyReport] = []
        self.announced: list[str] = []
        self.looked = threading.Semaphore(0)
        self._progress = threading.Event()

    def said(self, table: TableId) -> AppliedTable:
        """What the last report says of a table; nothing if it does not name it."""
        return self.reports[-1].tables.get(str(table), AppliedTable()) if self.reports else AppliedTable()

    def waits_of(self, table: TableId) -> list[WaitingReport]:
        """What the reports said of a table while it waited."""
        found = (report.tables.get(str(table), AppliedTable()).waiting for report in self.reports)
        return [waiting for waiting in found if waiting is not None]

    def should_stop(self) -> bool:
        return bool(self.reports) and self._is_done()

    def wait(self, timeout_s: float) -> None:
        """The loop looks again as soon as something was applied, or nearly at once."""
        self._progress.wait(min(timeout_s, 0.01))
        self._progress.clear()

    def announce(self, event: str, **_: Any) -> None:
        self.announced.append(event)
        self._progress.set()

    def report(self, report: Report) -> None:
        assert isinstance(report, ApplyReport)
        self.reports.append(report)
        self.looked.release()


class Shop:
    """A journal written by hand, and what applies it."""

    def __init__(self, folder: Path) -> None:
        self.store = StateStore(f"sqlite:///{folder}/state.db")
        self.uri = (folder / "journal").as_uri()
        self.uuid = self.store.create_replicator(NAME, "name: shop", self.uri).uuid
        self.database = str(folder)
        self.warehouse = MemoryWarehouse.open(self.database)
        self.records: dict[TableId, TableRecord] = {}
        self.schemas = {table: items_schema(table=table) for table in (A, B)}
        self.settings = apply_settings(AT_ONCE, tables_parallel=2, maintain_every=1000, maintain_idle=1000)
        self.new_epoch()

    def new_epoch(self) -> None:
        lease = self.store.leases.acquire(NAME, "host:1:boot", 60)
        assert lease is not None
        self.epoch = lease.epoch
        self.writer = JournalWriter(self.store, name=NAME, epoch=self.epoch, uri=self.uri, limits=writer_limits())

    # -- journal

    def event(self, table: TableId, event: JournalEvent) -> int:
        number = self.writer.take(1)
        self.writer.event(number, table, self.records[table].incarnation, event)
        return number

    def rows(self, table: TableId, *changes: RowChange, commit: bool = True) -> int:
        first = self.writer.take(len(changes))
        numbered = [replace(change, sequence_num=first + i) for i, change in enumerate(changes)]
        self.writer.append(
            self.schemas[table], self.records[table].incarnation, record_batch(self.schemas[table], numbered)
        )
        if commit:
            self.commit()
        return first + len(changes) - 1

    def begin(self, table: TableId, *, commit: bool = True) -> int:
        incarnation = self.records[table].incarnation + 1 if table in self.records else 1
        self.records[table] = TableRecord(
            table=table,
            incarnation=incarnation,
            stage=Stage.SNAPSHOT,
            schema=self.schemas[table],
            snapshot=SnapshotProgress(),
        )
        self.event(table, DDLEvent(operation=DDLOperation.CREATE_TABLE, table=table, schema=self.schemas[table]))
        number = self.event(table, SnapshotEvent(phase=SnapshotPhase.STARTED, table=table))
        if commit:
            self.commit()
        return number

    def complete(self, table: TableId, start: int | None = None, *, commit: bool = True) -> int:
        kind = SnapshotKind.FIRST if start is None else SnapshotKind.IN_PLACE
        event = SnapshotEvent(phase=SnapshotPhase.COMPLETED, table=table, kind=kind, start_number=start)
        number = self.event(table, event)
        if start is not None and self.records[table].incarnation > 1:
            number = self.event(table, SnapshotEvent(phase=SnapshotPhase.COMPLETED, table=table))
        first = self.records[table].first_change
        self.records[table] = replace(
            self.records[table], stage=Stage.STREAMING, first_change=number if first is None else first
        )
        if commit:
            self.commit()
        return number

    def start_in_place(self, table: TableId) -> int:
        start = self.writer.next_sequence_num
        kind = SnapshotKind.IN_PLACE
        self.event(table, SnapshotEvent(phase=SnapshotPhase.STARTED, table=table, kind=kind, start_number=start))
        self.records[table] = replace(
            self.records[table], stage=Stage.SNAPSHOT, snapshot=SnapshotProgress(kind=kind, start_number=start)
        )
        return start

    def commit(self, seconds: int = 0) -> None:
        at = START + timedelta(seconds=seconds or self.writer.next_sequence_num)
        self.writer.commit(offset=None, source_time=at, tables=list(self.records.values()))

    def copy(self, table: TableId, *ids: int) -> None:
        """A whole first snapshot."""
        self.begin(table, commit=False)
        self.rows(table, *[insert(0, item(i, "snapshot"), is_snapshot=True) for i in ids], commit=False)
        self.complete(table)

    # -- apply

    def target(self) -> MemoryTarget:
        context = target_context(replicator=NAME, uuid=self.uuid, epoch=self.epoch)
        return MemoryTarget(MemoryTargetConfig(database=self.database), context)

    def run(
        self,
        target: DeltaTarget[Any] | None = None,
        *,
        is_done: Callable[[], bool] | None = None,
        control: Control | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Apply:
        apply = Apply(
            target or self.target(),
            self.store,
            JournalReader(self.store, NAME),
            name=NAME,
            uuid=self.uuid,
            epoch=self.epoch,
            settings=self.settings,
            clock=clock,
        )
        self.control = control or Control(is_done or self.is_done)
        apply.run(self.control)
        return apply

    def is_done(self) -> bool:
        applied = self.store.applied(NAME)
        return all(
            t in applied and (applied[t].has_failed or applied[t].last_applied >= n)
            for t, n in self.store.journal.feed_tables(NAME).items()
        )

    def names(self, table: TableId) -> dict[int, str | None]:
        """What readers see."""
        stored = self.warehouse.tables[table]
        seen = stored.live() if stored.shown is None else [r.values for r in stored.shown[1] if not r.is_deleted]
        return {row["id"]: row["name"] for row in seen}

    def applied(self, table: TableId) -> AppliedRecord:
        return self.store.applied(NAME)[table]

    def reached(self, table: TableId) -> datetime | None:
        """Up to which time everything is in the target, as the status says."""
        is_whole = table_life.is_whole_in_target(self.records[table], self.applied(table))
        return self.store.reached.of(NAME)[str(table)] if is_whole else None

    def files(self, table: TableId, after: int) -> list[SegmentFile]:
        return [i for i in self.store.journal.feed(NAME, table, after, 1000) if isinstance(i, SegmentFile)]

    def highest(self, table: TableId) -> int:
        return self.store.journal.feed_tables(NAME)[table]

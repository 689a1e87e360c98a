"""Runs a capture over the in-memory source, and folds what it sealed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from replicator.capture import Capture, CaptureSettings
from replicator.capture.window import Window
from replicator.journal import JournalWriter, Retention
from replicator.model.events import DDLEvent, DDLOperation, SnapshotEvent, SnapshotPhase
from replicator.model.processes.reports import CaptureReport, CaptureStage, Report
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.source import SourceContext
from replicator.state.records import ErrorRecord, EventEntry, Lease, Stage, TableRecord
from replicator.state.store import StateStore
from replicator_testbed.journals.sealed import SealedReader
from replicator_testbed.present import present
from replicator_testing.defaults import capture_settings, writer_limits
from replicator_testing.memory import MemoryDatabase, MemorySource, MemorySourceConfig
from replicator_testing.memory.log import altered_row
from replicator_testing.waiting import PATIENCE

NAME = "test"
PATIENCE_S = 20.0 * PATIENCE


def schema_of(name: str, *, key: Sequence[str] = ("id",), extra: Sequence[str] = ()) -> TableSchema:
    names = ("a", "b", *extra)
    columns = [Column(name="id", type=pa.int64(), source_type="bigint", nullable=False)]
    columns += [Column(name=n, type=pa.string(), source_type="text") for n in names]
    return TableSchema(table=TableId("public", name), columns=tuple(columns), key=tuple(key))


class Control:
    """Tells the capture to stop, and wakes all that wait for what it announces."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.stopped = False
        self.announced: list[tuple[str, Mapping[str, Any]]] = []
        self.status = CaptureReport(stage=CaptureStage.PREPARING)

    def should_stop(self) -> bool:
        return self.stopped

    def wait(self, timeout_s: float) -> None:
        with self.changed:
            self.changed.wait(timeout_s)

    def announce(self, event: str, **fields: Any) -> None:
        with self.changed:
            self.announced.append((event, fields))
            self.changed.notify_all()

    def report(self, report: Report) -> None:
        assert isinstance(report, CaptureReport)
        with self.changed:
            self.status = report
            self.changed.notify_all()

    def stop(self) -> None:
        with self.changed:
            self.stopped = True
            self.changed.notify_all()


@dataclass
class Running:
    """A capture in a thread of its own."""

    control: Control
    thread: threading.Thread
    source: MemorySource
    errors: list[BaseException]
    states: Callable[[], object] = tuple

    def until(self, predicate: Callable[[], bool]) -> None:
        """Wait until something announced or reported makes it true."""
        with self.control.changed:
            came = self.control.changed.wait_for(lambda: bool(self.errors) or predicate(), timeout=PATIENCE_S)
            assert came, f"waited in vain: {self.control.status}, {self.source.faults.counts}, {self.states()}"
        if self.errors:
            raise self.errors[0]

    def join(self) -> None:
        """Wait for its end; raises what it raised."""
        self.thread.join(timeout=PATIENCE_S)
        assert not self.thread.is_alive()
        if self.errors:
            raise self.errors[0]


@dataclass
class Bench:
    """A database, a state store and a journal."""

    folder: Path
    settings: CaptureSettings = capture_settings(  # noqa: RUF009 (frozen)
        chunk_rows=2, seal_gap_s=0.0, chunk_backoff_s=0.001, chunk_backoff_max_s=0.01, request_every_s=0.0, report_every_s=0.0,
        pull_wait_s=0.02, snapshot_wait_s=0.005,
    )  # fmt: skip
    tables: list[TableId] = field(default_factory=list)
    make_window: Callable[[Sequence[str]], Window] = Window
    select: Callable[[], Sequence[TableId]] | None = None

    def __post_init__(self) -> None:
        self.settings = replace(self.settings, spool=self.folder / "spool")
        self.database = MemoryDatabase(f"db-{self.folder}")
        MemoryDatabase._databases[self.database.name] = self.database
        self.store = StateStore(f"sqlite:///{self.folder / 'state.db'}")
        self.store.create_replicator(NAME, "name: test", (self.folder / "journal").as_uri())

    schema = staticmethod(schema_of)

    def write(self, table: TableId, *rows: Mapping[str, Any], visible: bool = True) -> str:
        """Insert rows in one transaction."""
        transaction = self.database.begin()
        transaction.insert(table, *rows)
        return transaction.commit(visible=visible)

    def fill(self, table: TableId, count: int, first: int = 1) -> None:
        """Insert rows with ids from `first`."""
        self.write(table, *({"id": i, "a": f"a{i}", "b": f"b{i}"} for i in range(first, first + count)))

    def create(self, schema: TableSchema, *, toasted: Sequence[str] = ()) -> TableId:
        self.database.create_table(schema, toasted=toasted)
        if schema.table not in self.tables:
            self.tables.append(schema.table)
        return schema.table

    def make(self) -> tuple[Capture, MemorySource]:
        lease = self.store.leases.acquire(NAME, "test:1:1", 3600)
        assert lease is not None
        return self.make_with(lease)

    def make_with(self, lease: Lease) -> tuple[Capture, MemorySource]:
        source = MemorySource(
            MemorySourceConfig(database=self.database.name), SourceContext(replicator=NAME, epoch=lease.epoch)
        )
        writer = JournalWriter(
            self.store, name=NAME, epoch=lease.epoch, uri=(self.folder / "journal").as_uri(), limits=writer_limits()
        )
        retention = Retention(self.store, NAME, epoch=lease.epoch, keep_s=3600, bytes_max=1 << 40)
        capture = Capture(
            source,
            self.store,
            lease=lease,
            writer=writer,
            retention=retention,
            tables=self.tables,
            settings=self.settings,
            make_window=self.make_window,
            select=self.select,
        )
        return capture, source

    @contextmanager
    def running(self, prepare: Callable[[MemorySource], object] = lambda _: None) -> Iterator[Running]:
        capture, source = self.make()
        prepare(source)
        control, errors = Control(), []

        def run() -> None:
            try:
                capture.run(control)
            except BaseException as error:  # noqa: BLE001 (raised in the test's thread)
                errors.append(error)
                control.announce("ended")

        thread = threading.Thread(target=run)
        thread.start()
        running = Running(control, thread, source, errors, self.states)
        try:
            yield running
        finally:
            control.stop()
            thread.join(timeout=PATIENCE_S)
        if errors:
            raise errors[0]

    def record(self, table: TableId) -> TableRecord | None:
        return next((r for r in self.store.tables(NAME) if r.table == table), None)

    def known(self, table: TableId) -> TableRecord:
        """The record of a table that must have one."""
        return present(self.record(table))

    def error_of(self, table: TableId) -> ErrorRecord:
        """Why a table failed, which it must have."""
        return present(self.known(table).error)

    def is_at(self, *stages: Stage) -> Callable[[], bool]:
        """Whether every table is in one of the stages."""
        return lambda: all((r := self.record(t)) is not None and r.stage in stages for t in self.tables)

    def holds(self, table: TableId, source: TableId | None = None) -> Callable[[], bool]:
        """Whether the sealed journal folds to what the database holds."""
        name = source or table
        return lambda: self.folded(table, name) == Counter(dict(self.database.state(name)))

    def states(self) -> object:
        """Of each table its record, and in what its journal and the database differ."""
        found: list[tuple[object, object, object]] = []
        for record in self.store.tables(NAME):
            name = record.source_table or record.table
            if name not in self.database.tables:
                found.append((record, None, None))
                continue
            sealed, held = self.folded(record.table, name), Counter(dict(self.database.state(name)))
            found.append((record, sealed - held, held - sealed))
        return found

    def items(self, table: TableId) -> list[Any]:
        """Everything sealed of a table, by number: (number, change or event)."""
        found: list[tuple[int, Any]] = []
        for item in SealedReader(self.store, NAME).changes(tables=[table]):
            if isinstance(item, EventEntry):
                found.append((item.sequence_num, item.event))
            else:
                _, rows = item
                found.extend((r["_sequence_num"], r) for r in rows.to_pylist())
        return sorted(found, key=lambda i: i[0])

    def folded(self, table: TableId, source: TableId | None = None) -> Counter[Any]:
        """What a target would hold. `source`: the table's name in the database, if it is another one."""
        keyed: dict[Any, tuple[int, dict[str, Any]]] = {}
        bag: list[tuple[int, tuple[Any, ...]]] = []
        key = self.database.table(source or table).schema.key
        for number, item in self.items(table):
            has_key = bool(key)
            if isinstance(item, DDLEvent):
                if item.operation in (DDLOperation.CREATE_TABLE, DDLOperation.TRUNCATE_TABLE):
                    keyed, bag, key = {}, [], present(item.schema).key
                elif item.operation is DDLOperation.ALTER_TABLE:
                    keyed = {k: (n, _altered(item, row)) for k, (n, row) in keyed.items()}
                    names = [c.name for c in present(item.before).columns]
                    bag = [(n, tuple(_altered(item, dict(zip(names, row, strict=True))).values())) for n, row in bag]
            elif isinstance(item, SnapshotEvent):
                if item.phase is SnapshotPhase.COMPLETED and item.start_number is not None:
                    keyed = {k: v for k, v in keyed.items() if v[0] >= item.start_number}
                    bag = [r for r in bag if r[0] >= item.start_number]
            elif has_key:
                _apply(keyed, key, number, item)
            else:
                if item["before"] is not None and item["_operation"] != "INSERT":
                    wanted = tuple(item["before"].values())
                    # As every target: the older ones go when a snapshot in place is complete.
                    bag.remove(next(r for r in reversed(bag) if r[1] == wanted))
                if item["row"] is not None:
                    bag.append((number, tuple(item["row"].values())))
        return Counter(tuple(r.values()) for _, r in keyed.values()) if key else Counter(r for _, r in bag)


def _altered(event: DDLEvent, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row behind an ALTER_TABLE, without kept columns."""
    before, after = (replace(present(schema), kept=()) for schema in (event.before, event.schema))
    fill = {} if event.fill is None else event.fill.to_pylist()[0]
    return altered_row(row, before, after, fill)


def _apply(
    rows: dict[Any, tuple[int, dict[str, Any]]], names: Sequence[str], number: int, change: Mapping[str, Any]
) -> None:
    def key_of(part: Mapping[str, Any]) -> Any:
        return tuple(part[name] for name in names)

    if change["_operation"] == "DELETE":
        rows.pop(key_of(change["before"]), None)
        return
    key = key_of(change["row"])
    origin = key_of(change["before"]) if change["before"] else key
    _, base = rows.pop(origin, (0, {}))
    absent = change["_absent"] or []
    rows[key] = (number, {c: base.get(c) if c in absent else v for c, v in change["row"].items()})


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A database, a state store and a journal for one test."""
    made = Bench(tmp_path)
    yield made
    made.store.close()

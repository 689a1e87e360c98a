"""Runs a capture in this process, and replays what it sealed to rows that can be compared with the source's own.

The replay is plain on purpose: change after change in the order of their numbers, no batches and no folding, so that
nothing which apply does can hide what capture did wrong.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from replicator.capture import Capture, CaptureSettings
from replicator.capture.window import Read, Window
from replicator.journal import JournalWriter, Retention
from replicator.model.errors import SourceUnavailableError
from replicator.model.events import (
    ABSENT,
    BEFORE,
    IS_SNAPSHOT,
    OPERATION,
    ROW,
    SEQUENCE_NUM,
    DDLEvent,
    DDLOperation,
    DMLOperation,
    JournalEvent,
    SnapshotKind,
    SnapshotPhase,
)
from replicator.model.isolation import INTERNAL
from replicator.model.processes.reports import CaptureReport, CaptureStage, Report
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import DeltaSource, SourceContext
from replicator.state.records import EventEntry, Lease, RequestKind, Stage, TableRecord
from replicator.state.store import StateStore
from replicator_testbed.journals.sealed import SealedReader
from replicator_testing.defaults import capture_settings, writer_limits
from replicator_testing.waiting import PATIENCE, T, wait_until

PATIENCE_S: Final = 120.0
MISSING: Final = "<never sent>"
"""Stands in replayed rows for a value that neither the log nor a snapshot has brought."""

QUICK: Final = capture_settings(
    chunk_rows=10,
    seal_gap_s=0.0,
    seal_every_s=0.05,
    idle_seal_s=0.2,
    request_every_s=0.0,
    report_every_s=0.0,
    pull_wait_s=0.02,
    snapshot_wait_s=0.005,
    chunk_backoff_s=0.005,
    chunk_backoff_max_s=0.1,
    keep_alive_s=1.0,
)
"""Small chunks, and everything at once: what races can race."""

Row = tuple[Any, ...]
Change = Mapping[str, Any]


class CaptureControl:
    """Tells the capture to stop, and keeps what it reports."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self.status = CaptureReport(stage=CaptureStage.PREPARING)

    def should_stop(self) -> bool:
        """As `Control`."""
        return self._stop.is_set()

    def wait(self, timeout_s: float) -> None:
        """As `Control`."""
        self._stop.wait(timeout_s)

    def announce(self, event: str, **fields: Any) -> None:
        """As `Control`; nobody listens."""

    def report(self, report: Report) -> None:
        """As `Control`."""
        if isinstance(report, CaptureReport):
            self.status = report

    def stop(self) -> None:
        """End the capture at its next clean point."""
        self._stop.set()


@dataclass(eq=False, slots=True)
class RunningCapture:
    """A capture in a thread of its own, under an epoch of its own.

    `crashed` names the tables that failed by an error that capture did not foresee, with the error; empty if the test raises such errors.
    """

    source: DeltaSource[Any]
    control: CaptureControl
    lease: Lease
    thread: threading.Thread
    errors: list[BaseException]
    crashed: Callable[[], Sequence[str]]

    def wait_until(
        self, look: Callable[[], T | None], what: str | Callable[[], str], *, timeout_s: float = PATIENCE_S
    ) -> T:
        """As `waiting.wait_until`; fails soon with the error that ended the capture, or with an unexpected one of a table."""
        looks = itertools.count()

        def looked() -> T | None:
            if self.errors:
                raise self.errors[0]
            # To look takes processor time from the capture, which is in this process.
            if next(looks) % 10 == 0:
                self.check_tables()
            return look()

        def told() -> str:
            return f"{what if isinstance(what, str) else what()}; now {self.control.status}"

        return wait_until(looked, told, timeout_s=timeout_s, every_s=0.05)

    def check_tables(self) -> None:
        """Raise if a table failed by an error that capture did not foresee."""
        crashed = self.crashed()
        assert not crashed, f"tables failed by unexpected errors: {crashed}; {self.control.status}"

    def error(self) -> BaseException:
        """Wait until the capture ends by itself, and return what ended it."""
        self.thread.join(timeout=PATIENCE_S * PATIENCE)
        assert not self.thread.is_alive(), "the capture still runs"
        assert self.errors, "the capture ended without an error"
        return self.errors.pop()


@dataclass(eq=False, slots=True, kw_only=True)
class Sealed:
    """What the captures of one replicator have made durable, and what is asked of them."""

    name: str
    store: StateStore

    def request(self, kind: RequestKind | str, **payload: Any) -> int:
        """Ask something of the running capture; return the request's id."""
        return self.store.requests.add(self.name, RequestKind(kind), payload)

    def is_done(self, request: int) -> bool:
        """Whether a commit has closed the request."""
        return all(open_.id != request for open_ in self.store.requests.open(self.name))

    def record(self, table: TableId) -> TableRecord:
        """What capture made durable of a table."""
        return next(r for r in self.store.tables(self.name) if r.table == table)

    def stage(self, table: TableId) -> Stage | None:
        """How far capture is with a table; None while it does not know it."""
        return next((r.stage for r in self.store.tables(self.name) if r.table == table), None)

    def items(self, table: TableId) -> list[tuple[int, TableSchema | None, JournalEvent | Change]]:
        """Everything sealed of a table, in order: number, the rows' schema, event or change."""
        found: list[tuple[int, TableSchema | None, JournalEvent | Change]] = []
        for item in SealedReader(self.store, self.name).changes(tables=[table]):
            if isinstance(item, EventEntry):
                found.append((item.sequence_num, None, item.event))
            else:
                schema, rows = item
                found.extend((change[SEQUENCE_NUM], schema, change) for change in rows.to_pylist())
        numbers = [number for number, _, _ in found]
        assert numbers == sorted(set(numbers)), "numbers of a table ascend, and none is used twice"
        return found

    def events(self, table: TableId) -> list[JournalEvent]:
        """The events sealed of a table, in order."""
        return [item for _, schema, item in self.items(table) if schema is None and not isinstance(item, Mapping)]

    def replay(self, table: TableId, version: str | None = None) -> Replay:
        """The table after everything sealed."""
        done = Replay(version=version)
        for number, schema, item in self.items(table):
            done.apply(number, schema, item)
        self._check_plain(table)
        return done

    def rows(self, table: TableId) -> Counter[Row]:
        """The rows of a table after everything sealed, columns in order."""
        return self.replay(table).rows

    def _record_and_items(
        self, table: TableId
    ) -> tuple[TableRecord, list[tuple[int, TableSchema | None, JournalEvent | Change]]]:
        """Both as of one commit, though a capture may run: a record of one incarnation says nothing about the changes of another."""
        record = self.record(table)
        while True:
            items = self.items(table)
            if (now := self.record(table)) == record:
                return record, items
            record = now

    def _check_plain(self, table: TableId) -> None:
        """Rows below `first_change` may be appended to an empty target without looking: they must be inserts of distinct keys.

        It speaks of the last incarnation.
        """
        record, items = self._record_and_items(table)
        created = [
            number
            for number, _, item in items
            if isinstance(item, DDLEvent) and item.operation is DDLOperation.CREATE_TABLE
        ]
        keys = set[Row]()
        for number, schema, item in items:
            if not created or number < created[-1] or schema is None:
                continue
            if isinstance(item, Mapping) and (record.first_change is None or number < record.first_change):
                assert item[IS_SNAPSHOT], f"{number} is a change of the log below first_change"
                assert not item[ABSENT], f"{number} is a partial row below first_change"
                if schema.key:
                    key = tuple(item[ROW][name] for name in schema.key_fields)
                    assert key not in keys, f"{number} repeats a key below first_change"
                    keys.add(key)


class PublishedWindow(Window):
    """As the published algorithm has it, to show that it leaves wrong rows: nothing before a read counts, and everything after it does."""

    def start_number(self, next_number: int) -> int:
        return next_number

    def _add(self, read: Read, reader: int | None) -> None:  # noqa: ARG002 - in any order
        self._reads.append(read)

    def _unseen_of(self, read: Read, entries: Any) -> Any:  # noqa: ARG002 - whatever the read saw
        return np.sort(entries.serials)


@dataclass(eq=False, slots=True, kw_only=True)
class Captured(Sealed):
    """The captures of one replicator, one after the other, and its journal.

    Attributes:
        make_source: Makes a source, as every new process would.
        tables: What the configuration selects; may be changed at any time.
        window: Of the log that was opened last.
        ends_attempts: Codes of errors that end an attempt by design: a worker then tries again, and so does the capture.
        may_crash: The test raises errors that capture does not foresee. Otherwise a table that fails by one fails the test, too.
    """

    folder: Path
    make_source: Callable[[SourceContext], DeltaSource[Any]]
    tables: list[TableId]
    may_crash: bool = False
    ends_attempts: frozenset[str] = frozenset()
    make_window: Callable[[Sequence[str]], Window] = Window
    settings: CaptureSettings = QUICK
    store: StateStore = field(init=False)
    window: Window = field(init=False)

    def __post_init__(self) -> None:
        self.settings = replace(self.settings, spool=self.folder / "spool")
        self.store = StateStore(f"sqlite:///{self.folder / 'state.db'}")
        self.store.create_replicator(self.name, f"name: {self.name}", self._journal_uri)

    def _new_window(self, ring: Sequence[str]) -> Window:
        self.window = self.make_window(ring)
        return self.window

    # --- running ------------------------------------------------------------------------------------------------------

    @contextmanager
    def running(self, alter: Callable[[DeltaSource[Any]], None] = lambda _: None) -> Iterator[RunningCapture]:
        """Capture in a thread under the next epoch; ended at a clean point on leaving. Raises what ended it early, unless the test took it.

        `alter` is given the source first, for tests that stand in its way; not that of a further attempt.
        """
        lease = self._next_lease()
        source = self._source(lease)
        alter(source)
        control, errors = CaptureControl(), list[BaseException]()

        def run() -> None:
            try:
                while not self._attempt(running, lease):
                    running.source.close()
                    control.wait(0.1)
                    running.source = self._source(lease)
            except BaseException as error:  # noqa: BLE001 (raised in the test's thread)
                errors.append(error)

        thread = threading.Thread(target=run, name="capture")
        running = RunningCapture(source, control, lease, thread, errors, self._crashed)
        running.thread.start()
        try:
            yield running
        finally:
            control.stop()
            running.thread.join(timeout=PATIENCE_S * PATIENCE)
            is_stuck = running.thread.is_alive()
            running.source.close()
        assert not is_stuck, "the capture did not stop"
        if errors:
            raise errors[0]
        running.check_tables()

    def snapshot(self, running: RunningCapture, *tables: TableId) -> None:
        """Have tables (none given: all) read again, and wait until that is complete."""
        request = self.request(RequestKind.SNAPSHOT, tables=[str(t) for t in tables])
        running.wait_until(lambda: self.is_done(request), "the snapshot has begun")
        self.wait_for_streaming(running)

    def catch_up(self, running: RunningCapture) -> None:
        """Wait until everything that was committed before this call is sealed."""
        request = self.request(RequestKind.POSITION)
        running.wait_until(lambda: self.is_done(request), "the journal has caught up")

    def wait_for_streaming(self, running: RunningCapture, *tables: TableId) -> None:
        """Wait until tables (none given: all that are selected) have their snapshots and are streaming."""
        wanted = tables or tuple(self.tables)
        running.wait_until(
            lambda: all(self.stage(t) is Stage.STREAMING for t in wanted),
            lambda: f"all tables have their snapshots; {self._unfinished()} have not, {running.control.status}",
        )

    def _unfinished(self) -> list[tuple[str, str, object, object]]:
        """The tables without a snapshot: an assertion's text is cut off where it is long."""
        records = (r for r in self.store.tables(self.name) if r.stage is not Stage.STREAMING)
        return [(r.table.name, r.stage.value, r.error, r.snapshot) for r in records]

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def _source(self, lease: Lease) -> DeltaSource[Any]:
        record = self.store.replicator(self.name)
        assert record is not None
        return self.make_source(SourceContext(replicator=self.name, uuid=record.uuid, epoch=lease.epoch))

    def _attempt(self, running: RunningCapture, lease: Lease) -> bool:
        """Capture until the test stops it; False if an error ended the attempt after which there is another one."""
        capture = Capture(
            running.source,
            self.store,
            lease=lease,
            writer=JournalWriter(
                self.store, name=self.name, epoch=lease.epoch, uri=self._journal_uri, limits=writer_limits()
            ),
            retention=Retention(self.store, self.name, epoch=lease.epoch, keep_s=86_400, bytes_max=1 << 40),
            tables=self.tables,
            settings=self.settings,
            select=lambda: tuple(self.tables),
            make_window=self._new_window,
        )
        try:
            capture.run(running.control)
        except SourceUnavailableError as error:
            if error.code not in self.ends_attempts:
                raise
            return False
        return True

    def _crashed(self) -> Sequence[str]:
        if self.may_crash:
            return []
        errors = {record.table: record.error for record in self.store.tables(self.name) if record.error is not None}
        return [f"{table}: {error.message}" for table, error in errors.items() if error.code == INTERNAL]

    @property
    def _journal_uri(self) -> str:
        return (self.folder / "journal").as_uri()

    def _next_lease(self) -> Lease:
        taken = self.store.leases.acquire(self.name, "captured:1:1", 3600)
        assert taken is not None
        return taken


@dataclass(eq=False, slots=True)
class Replay:
    """A target that applies one change after the other.

    Attributes:
        version: A column whose values only ever grow in each row; None: there is none.
        regressions: How often a row's version went back, or a row came up again in a version that was deleted.
    """

    version: str | None = None
    regressions: int = 0
    _keyed: dict[Row, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    _bag: dict[Row, list[int]] = field(default_factory=dict)
    _versions: dict[Row, Any] = field(default_factory=dict)

    @property
    def rows(self) -> Counter[Row]:
        """What the table holds now."""
        rows = Counter({row: len(numbers) for row, numbers in self._bag.items() if numbers})
        rows.update(tuple(values.values()) for _, values in self._keyed.values())
        return rows

    def apply(self, number: int, schema: TableSchema | None, item: JournalEvent | Change) -> None:
        """Do what the item says."""
        if isinstance(item, Mapping):
            assert schema is not None
            if schema.key:
                self._change(number, schema, item)
            else:
                self._change_bag(number, item)
        elif isinstance(item, DDLEvent):
            if item.operation in (
                DDLOperation.CREATE_TABLE,
                DDLOperation.TRUNCATE_TABLE,
                DDLOperation.DROP_TABLE,
            ):
                self._keyed, self._bag, self._versions = {}, {}, {}
        elif item.phase is SnapshotPhase.COMPLETED and item.kind is SnapshotKind.IN_PLACE:
            assert item.start_number is not None
            start = item.start_number
            self._keyed = {key: held for key, held in self._keyed.items() if held[0] >= start}
            self._bag = {row: [n for n in numbers if n >= start] for row, numbers in self._bag.items()}

    def _change(self, number: int, schema: TableSchema, change: Change) -> None:
        before, row = change[BEFORE], change[ROW]
        old = tuple(before[name] for name in schema.key_fields) if before is not None else None
        if row is None:
            assert old is not None, "a DELETE names its row"
            _, removed = self._keyed.pop(old, (0, {}))
            if self.version is not None and removed:
                self._versions[old] = removed[self.version]
            return
        key = tuple(row[name] for name in schema.key_fields)
        _, base = self._keyed.pop(key if old is None else old, (0, {}))
        lacking = frozenset(change[ABSENT] or ())
        values = {name: base.get(name, MISSING) if name in lacking else value for name, value in row.items()}
        if self.version is not None:
            last = self._versions.get(key)
            if last is not None and values[self.version] != MISSING and values[self.version] < last:
                self.regressions += 1
            self._versions[key] = values[self.version]
        self._keyed[key] = (number, values)

    def _change_bag(self, number: int, change: Change) -> None:
        before, row = change[BEFORE], change[ROW]
        if change[OPERATION] != DMLOperation.INSERT.value:
            equal = self._bag.get(tuple(before.values()))
            assert equal, f"{number} takes away a row that is not there"
            # The newest of equal rows: while another snapshot runs, the older ones are deleted when it is complete.
            equal.remove(max(equal))
        if row is not None:
            self._bag.setdefault(tuple(row.values()), []).append(number)

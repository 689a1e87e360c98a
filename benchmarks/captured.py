"""The product's capture, as a worker runs it, from a server to a sealed journal of one table: from PostgreSQL, MySQL or MariaDB."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Literal

from benchmarks.data import PUBLICATION, TABLE
from benchmarks.measure import Clock, Work
from replicator.capture import Capture
from replicator.config.model import JournalConfig
from replicator.journal import JournalWriter, Retention, WriterLimits
from replicator.model.processes.reports import CaptureReport, CaptureStage, Report
from replicator.model.schema import TableId
from replicator.plugins import Secret
from replicator.plugins.source import DeltaSource, SourceContext
from replicator.projection.checking import Settings
from replicator.projection.rules import rules_for
from replicator.state.store import StateStore
from replicator_source_mysql.config import MysqlConfig
from replicator_source_mysql.source import MysqlSource
from replicator_source_postgresql.config import PostgresqlConfig
from replicator_source_postgresql.source import PostgresqlSource
from replicator_testbed.mysql.servers import MysqlDatabase
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testing.defaults import capture_settings

NO_SETTINGS: Final[Settings] = {}
ITEMS: Final = TableId("public", TABLE)
_NAME: Final = "bench"
_UUID: Final = "00000000-0000-0000-0000-00000000beac"
_LEASE_S: Final = 3600.0
_WAIT_S: Final = 0.05
_SEGMENTS_MAX: Final = 1_000_000


class _Control:
    """Begins the clock with capture's first turn, when the source is prepared, and ends it when a sequence number is sealed."""

    def __init__(self, store: StateStore, clock: Clock, last: int | None = None) -> None:
        self._store = store
        self._clock = clock
        self._last = last
        self._sealed = -1
        self._has_begun = False

    def should_stop(self) -> bool:
        # Asked before each turn; capture reports itself for the first time at the end of the first.
        if not self._has_begun:
            self._clock.begin()
        return self._last is not None and self._sealed >= self._last

    def wait(self, timeout_s: float) -> None:
        time.sleep(min(timeout_s, _WAIT_S))

    def announce(self, event: str, **_: Any) -> None:
        if event == "sealed" and (segment := self._store.journal.last_segment(_NAME)):
            self._sealed = segment.last

    def report(self, report: Report) -> None:
        self._has_begun = isinstance(report, CaptureReport) and report.stage is CaptureStage.CAPTURING


@contextmanager
def open_mysql_source(database: MysqlDatabase, start_at: str | None = None) -> Iterator[MysqlSource]:
    """The MySQL source, from a position in the log on."""
    server = database.server
    config = MysqlConfig(
        host=server.host, port=server.port, user=server.user, password=Secret(server.password), start_at=start_at
    )
    source = MysqlSource(config, SourceContext(replicator=_NAME, uuid=_UUID, epoch=1))
    try:
        yield source
    finally:
        source.close()


@contextmanager
def open_source(database: ScratchDatabase, slot: str) -> Iterator[PostgresqlSource]:
    """The PostgreSQL source on a slot and the benchmark's publication."""
    server = database.server
    config = PostgresqlConfig(
        host=server.host, port=server.port, user=server.user, database=database.name, slot=slot, publication=PUBLICATION
    )
    source = PostgresqlSource(config, SourceContext(replicator=_NAME, uuid=_UUID, epoch=1))
    try:
        yield source
    finally:
        source.close()


def make_slot(database: ScratchDatabase, name: str) -> None:
    """Make a slot: the log is kept for it from here on."""
    database.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")


@contextmanager
def copied_slot(database: ScratchDatabase, original: str, name: str) -> Iterator[str]:
    """A slot that begins where `original` does, so that the same log can be read again."""
    database.execute(f"SELECT pg_copy_logical_replication_slot('{original}', '{name}')")
    try:
        yield name
    finally:
        database.execute(
            f"SELECT pg_terminate_backend(active_pid, 30000) FROM pg_replication_slots WHERE slot_name = '{name}' AND active",
            f"SELECT pg_drop_replication_slot('{name}')",
        )


@contextmanager
def capturing_changes(
    database: ScratchDatabase, slot: str, changes: int, *, settings: Settings = NO_SETTINGS
) -> Iterator[Work]:
    """The capture of the first changes that a slot holds into sealed segments; `settings` are those of columns."""
    columns = {"columns": lambda table: rules_for(table, settings)}
    with open_source(database, slot) as source, _changes(source, ITEMS, changes, **columns) as work:
        yield work


@contextmanager
def snapshot_of_table(database: ScratchDatabase, slot: str, *, chunk_rows: int) -> Iterator[Work]:
    """The first snapshot of the table into sealed segments: chunks with their marks, resumable after each."""
    with open_source(database, slot) as source, _copy(source, ITEMS, chunk_rows) as work:
        yield work


@contextmanager
def capturing_mysql_changes(database: MysqlDatabase, table: str, start_at: str, changes: int) -> Iterator[Work]:
    """The capture of the first changes behind a position in the log into sealed segments."""
    with (
        open_mysql_source(database, start_at) as source,
        _changes(source, TableId(database.name, table), changes) as work,
    ):
        yield work


@contextmanager
def snapshot_of_mysql_table(database: MysqlDatabase, table: str, *, chunk_rows: int) -> Iterator[Work]:
    """The first snapshot of a table into sealed segments."""
    with open_mysql_source(database) as source, _copy(source, TableId(database.name, table), chunk_rows) as work:
        yield work


@contextmanager
def _changes(source: DeltaSource[Any], table: TableId, changes: int, **others: Any) -> Iterator[Work]:
    # One number goes to the CREATE_TABLE at the beginning.
    with _capture(source, table, mode="never", **others) as (capture, store):

        def work(clock: Clock) -> int:
            capture.run(_Control(store, clock, changes))
            return _sealed_rows(store)

        yield work


@contextmanager
def _copy(source: DeltaSource[Any], table: TableId, chunk_rows: int) -> Iterator[Work]:
    with _capture(source, table, mode="only", chunk_rows=chunk_rows) as (capture, store):

        def work(clock: Clock) -> int:
            capture.run(_Control(store, clock))
            return _sealed_rows(store)

        yield work


@contextmanager
def _capture(
    source: DeltaSource[Any], table: TableId, *, mode: Literal["never", "only"], **changes: Any
) -> Iterator[tuple[Capture, StateStore]]:
    """A capture with a journal and a state store of its own, both on disk and deleted afterwards, with a worker's default settings."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        uri, journal = f"file://{folder / 'journal'}", JournalConfig()
        store = StateStore(f"sqlite:///{folder / 'state.db'}")
        stack.callback(store.close)
        store.create_replicator(_NAME, "", uri)
        lease = store.leases.acquire(_NAME, "bench", _LEASE_S)
        assert lease is not None, "a new replicator's lease is free"
        yield (
            Capture(
                source,
                store,
                lease=lease,
                writer=JournalWriter(store, name=_NAME, epoch=lease.epoch, uri=uri, limits=WriterLimits.of(journal)),
                retention=Retention(
                    store, _NAME, epoch=lease.epoch, keep_s=journal.keep.total_seconds(), bytes_max=journal.bytes_max
                ),
                tables=[table],
                settings=capture_settings(snapshot_mode=mode, spool=folder, **changes),
            ),
            store,
        )


def _sealed_rows(store: StateStore) -> int:
    return sum(file.rows for segment in store.journal.segments(_NAME, 0, _SEGMENTS_MAX) for file in segment.files)

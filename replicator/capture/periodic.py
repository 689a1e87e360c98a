"""Periodic work of the loop of an open log."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from replicator.capture.asking import Refusals
from replicator.capture.definitions.names import NamedSource
from replicator.capture.definitions.renaming import SelectionAnswer
from replicator.capture.marks import MarkBoard
from replicator.capture.measuring import Measuring
from replicator.capture.parts import Parts
from replicator.capture.snapshots.driver import SnapshotRunner
from replicator.capture.tables import TrackedTables
from replicator.capture.tracker import CatalogTracker
from replicator.model.errors import TransientError
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import Seen, Visibility
from replicator.state import table_life
from replicator.state.records import ErrorRecord, Stage

_ANNOUNCED_EVERY_S: Final = 1.0
"""Every user of the source can announce changes of tables: the catalogue is not compared more often for it."""


@dataclass(frozen=True, slots=True)
class _Seeing:
    """The least that a comparison sees. `transaction`: for which it was asked; None if another was under way."""

    transaction: str | None
    future: Future[Visibility]

    def has_seen(self) -> bool:
        """Return whether it sees what the transaction did."""
        seen = self.future.result()
        if self.transaction is None:
            return False
        return bool(seen.classify(pa.array([self.transaction], pa.string()))[0].as_py() != Seen.UNSEEN)


@dataclass(slots=True)
class Announcements:
    """The log's news that a transaction has altered tables: the catalogue is compared until it shows what that has done."""

    _transaction: str | None = None
    _seeing: _Seeing | None = None

    @property
    def is_open(self) -> bool:
        """Return whether a comparison is still to see what a transaction did."""
        return self._transaction is not None

    @property
    def is_unseen(self) -> bool:
        """Return whether no comparison was asked yet that may see it."""
        return self._transaction is not None and self._seeing is None

    def add(self, transaction: str) -> None:
        """The log says that this transaction has altered tables."""
        self._transaction = transaction

    def see(self, seeing: Future[Visibility], *, was_asked: bool) -> None:
        """A comparison that sees at least as much was asked, unless another was under way."""
        self._seeing = _Seeing(self._transaction if was_asked else None, seeing)

    def poll(self) -> None:
        """Forget the transaction once a comparison has seen what it did."""
        if self._seeing is not None and self._seeing.future.done():
            done, self._seeing = self._seeing, None
            if done.has_seen() and done.transaction == self._transaction:
                self._transaction = None


@dataclass(slots=True, kw_only=True)
class Selecting:
    """New tables of the configuration's patterns: asked, and taken once the log has caught up with the answer.

    Attributes:
        added: Tables that the configuration selects and that were not there when the log was opened.
    """

    parts: Parts
    tables: TrackedTables
    tracker: CatalogTracker
    marks: MarkBoard[Any]
    added: tuple[TableId, ...] = ()
    _asked: Future[SelectionAnswer] | None = None
    _waiting: SelectionAnswer | None = None
    """Waits for its mark."""

    def ask(self) -> None:
        """Ask what the patterns select by now, unless that is under way."""
        parts = self.parts
        if parts.select is not None and self._asked is None and self._waiting is None:
            self._asked = parts.control.submit(_select, parts.source, parts.select, self.tracker.renaming.unnamed())

    def poll(self) -> None:
        """Have an answer with something new wait for a mark."""
        if self._asked is not None and self._asked.done():
            selection, self._asked = self._asked.result(), None
            if selection.taken or self._new(self.tracker.renaming.wanted(selection)):
                self._waiting = selection
                self.marks.expect(self.parts.write_mark(), selection)

    def take_mark(self, selection: SelectionAnswer) -> None:
        """The log has caught up with an answer about the configuration's patterns, and no transaction is open."""
        self._waiting = None
        self.added = self._new(self.tracker.take_selected(selection))

    def _new(self, wanted: Sequence[TableId]) -> tuple[TableId, ...]:
        """Return the tables that are not tracked. One that had made way for a renamed table is new again once that has another name."""
        tracked = {found.table for found in self.tables.all(*table_life.REPLICATED)}
        return tuple(table for table in wanted if table not in tracked)


@dataclass(slots=True)
class _Clocks:
    """Times at which things were last done, on the monotonic clock."""

    compared: float
    swept: float = -math.inf
    reported: float = -math.inf


@dataclass(slots=True, kw_only=True)
class PeriodicWork:
    """Comparisons with the catalogue, new tables, checks, failed tables, measures and retention. Called by the loop's thread alone."""

    parts: Parts
    tables: TrackedTables
    tracker: CatalogTracker
    snapshots: SnapshotRunner
    selecting: Selecting
    measuring: Measuring
    announcements: Announcements = field(default_factory=Announcements)
    _clocks: _Clocks = field(init=False)

    def __post_init__(self) -> None:
        """The log was opened with what the catalogue said just before, except of names that tables have given up."""
        self._clocks = _Clocks(compared=-math.inf if self.tracker.renaming.unnamed() else self.parts.clock())

    def run_due(self) -> None:
        """Begin what is due, and take in what is done."""
        now = self.parts.clock()
        self._compare(now)
        self.parts.checks.watch(self.tables.captured(), self.parts.control.submit, self.tracker.refuse)
        self.parts.target_checks.watch(self._captured, self.tracker.refuse)
        self.parts.cures.explain(self._unexplained(), self.parts.control.submit, self._refail)
        self.parts.cures.watch(self._curable(), self.parts.control.submit, self._resume)
        self.measuring.run_due(now, self.tracker.beginnings.since)
        if now - self._clocks.swept >= self.parts.settings.retention_every_s:
            self._clocks.swept = now
            self._sweep()

    def is_report_due(self) -> bool:
        """Return whether to report."""
        return self.parts.clock() - self._clocks.reported >= self.parts.settings.report_every_s

    def note_report(self) -> None:
        """It was reported."""
        self._clocks.reported = self.parts.clock()

    def _captured(self) -> Mapping[TableId, TableSchema]:
        return {tracked.table: tracked.target_schema for tracked in self.tables.all(*table_life.CAPTURED)}

    def _curable(self) -> Mapping[TableId, ErrorRecord]:
        now = self.parts.now()
        failed = [f.record for f in self.tables.all(Stage.FAILED) if table_life.resumes_itself(f.record, now)]
        return {record.table: record.error for record in failed if record.error is not None}

    def _unexplained(self) -> Mapping[TableId, ErrorRecord]:
        failed = [f.record for f in self.tables.all(Stage.FAILED) if table_life.may_have_finding(f.record)]
        return {record.table: record.error for record in failed if record.error is not None}

    def _refail(self, found: Refusals) -> None:
        """The source's check finds why these tables failed, or what else keeps them from continuing."""
        for table, error in found.items():
            if (tracked := self.tables.get(table)) is not None:
                self.tables.fail(tracked, error)

    def _resume(self, tables: Collection[TableId]) -> None:
        """Have new snapshots begin of these tables: the cause of their failure is found in order in the source."""
        for tracked in filter(None, map(self.tables.get, tables)):
            self.tables.resume(tracked)
        self.tracker.start(list(tables))

    def _compare(self, now: float) -> None:
        parts, announcements, since = self.parts, self.announcements, now - self._clocks.compared
        is_announced = announcements.is_open and since >= _ANNOUNCED_EVERY_S
        if since >= parts.settings.compare_every_s or self.snapshots.suspicious or is_announced:
            self._clocks.compared = now
            # Asked before: the comparison sees at least as much.
            seeing = parts.control.submit(parts.source.visibility) if announcements.is_unseen else None
            was_asked = self.tracker.compare()
            if seeing is not None:
                announcements.see(seeing, was_asked=was_asked)
            self.selecting.ask()
        self.selecting.poll()
        announcements.poll()

    def _sweep(self) -> None:
        swept = self.parts.retention.sweep()
        for table in swept.cleared:
            self.tables.forget_plain(table)
        for record in swept.given_up:
            tracked = self.tables.get(record.table)
            if tracked is None:
                continue
            assert record.error is not None, "it says why"
            self.snapshots.drop(record.table)
            self.tables.adopt(table_life.failed(tracked.record, record.error))


def _select(
    source: NamedSource, select: Callable[[], Sequence[TableId]], unnamed: Sequence[TableId]
) -> SelectionAnswer:
    """In the control thread: what the configuration selects by now."""
    seen: Visibility | None = None
    with suppress(TransientError):
        seen = source.visibility()
    selected = select()
    taken = source.existing([table for table in unnamed if table in selected])
    return SelectionAnswer(
        selected=[table for table in selected if table not in unnamed or table in taken], taken=taken, seen=seen
    )

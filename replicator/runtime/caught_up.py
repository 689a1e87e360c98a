"""Decides when a replicator has caught up with a moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto
from typing import Final

from replicator.model.schema import TableId
from replicator.state import table_life
from replicator.state.records import AppliedRecord, EventEntry, RequestKind, SegmentFile, TableRecord, TargetCopy
from replicator.state.store import StateStore

_BEGINNINGS: Final = (RequestKind.SNAPSHOT, RequestKind.RECREATE, RequestKind.RESTART)


class _Table(Enum):
    """State of a table at a position."""

    BEHIND = auto()
    CAUGHT_UP = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtUp:
    """Result of a catch-up: all other tables have caught up; `failed` did not, and `alarmed` may differ from the source."""

    failed: tuple[TableId, ...]
    alarmed: tuple[TableId, ...] = ()


@dataclass(slots=True, kw_only=True)
class CatchUp:
    """Watches one replicator until every table has its snapshot and everything committed before a log position is applied.

    First all snapshots must be captured, those asked for included. Then capture is asked for a log position (a
    request that it closes in the very commit that covers the position); then each table must have nothing left to apply of
    what was sealed by then.

    A table that failed in apply before `since`, the start of this run, does not count while it has something left: this
    run tries it once more.
    """

    store: StateStore
    name: str
    since: datetime | None = None
    _asked: int | None = field(default=None)
    _position: int | None = field(default=None)

    def check(self) -> CaughtUp | None:
        """Look once; return None while there is something to wait for.

        Requests are read before the effects of the commit that closes them.
        """
        requests = self.store.requests.open(self.name)
        tables = self._tables()
        is_unfinished = not tables or any(table_life.is_unfinished(t) for t in tables)
        if is_unfinished or any(request.kind in _BEGINNINGS for request in requests):
            # The end of a snapshot that begins while a position is awaited is after that position.
            self._asked = self._position = None
            return None
        if self._asked is None:
            self._asked = self.store.requests.add(self.name, RequestKind.POSITION, {})
            return None
        if self._position is None:
            if all(request.id != self._asked for request in requests):
                self._position = self._newest()
            # What was read before the position was known is too old to be judged by it.
            return None
        return self._judge(tables, self._position)

    def check_sealed(self) -> CaughtUp | None:
        """Look once at a replicator whose capture has ended: everything in the journal must be applied."""
        return self._judge(self._tables(), self._newest())

    def _tables(self) -> list[TableRecord]:
        return [t for t in self.store.tables(self.name) if table_life.is_replicated(t)]

    def _newest(self) -> int:
        last = self.store.journal.last_segment(self.name)
        return -1 if last is None else last.last

    def _judge(self, tables: Sequence[TableRecord], position: int) -> CaughtUp | None:
        applied = self.store.applied(self.name)
        outcomes = {table.table: self._look_at(table, applied.get(table.table), position) for table in tables}
        if _Table.BEHIND in outcomes.values():
            return None
        verified = self.store.verifications.of(self.name)
        differing = {table.table for table in tables if table_life.found_different(table, verified.get(table.table))}
        return CaughtUp(
            failed=tuple(table for table, how in outcomes.items() if how is _Table.FAILED),
            alarmed=tuple(
                table for table in outcomes if table in differing or (table in applied and applied[table].alarms)
            ),
        )

    def _look_at(self, table: TableRecord, done: AppliedRecord | None, position: int) -> _Table:
        if table_life.has_failed(table):
            return _Table.FAILED
        if done is not None and done.has_failed and not _continues(table, done):
            return _Table.BEHIND if self._is_to_be_tried(done) else _Table.FAILED
        if done is None or done.incarnation < table.incarnation:
            return _Table.BEHIND
        left = self.store.journal.feed(self.name, table.table, done.last_applied, 1)
        # The end of a snapshot that the target does not have all of may be after the position.
        is_behind = left and (_begin(left[0]) <= position or done.copy is TargetCopy.SNAPSHOT)
        return _Table.BEHIND if is_behind else _Table.CAUGHT_UP

    def _is_to_be_tried(self, done: AppliedRecord) -> bool:
        is_old = self.since is not None and done.error is not None and done.error.at < self.since
        return is_old and bool(self.store.journal.feed(self.name, done.table, done.last_applied, 1))


def _continues(table: TableRecord, done: AppliedRecord) -> bool:
    """Return whether a snapshot has begun since the target refused the table: apply continues with it once it sees it.

    A process that has just started may refuse the old incarnation once more after the new one has begun.
    """
    if table.incarnation > done.incarnation:
        return True
    started = table.snapshot.started_at if table.snapshot is not None else None
    return started is not None and done.error is not None and started > done.error.at


def _begin(item: SegmentFile | EventEntry) -> int:
    return item.first if isinstance(item, SegmentFile) else item.sequence_num

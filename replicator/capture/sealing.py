"""Makes what was delivered durable: files, index row, acknowledgement, in that order. Between transactions only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from replicator.capture.settings import CaptureSettings
from replicator.capture.tables import TrackedTables
from replicator.capture.tracker import CatalogTracker
from replicator.capture.window import Window
from replicator.journal.writer import JournalWriter
from replicator.model.crash import crash_point
from replicator.model.errors import PluginError
from replicator.model.offset import Offset
from replicator.model.processes.control import Control
from replicator.plugins.source import LogBatch, LogReader, SourceLog, Visibility

_VISIBILITY_WAIT_S: Final = 0.25
"""Seconds that a seal waits to learn which transactions later reads see; without an answer the ring is sealed as it is."""


@dataclass(slots=True, kw_only=True)
class Unsealed:
    """Deliveries of the log since the last seal.

    Attributes:
        position: Where the log is.
        offset: To be sealed; None if it has not moved.
        positions: Requests for a position that the next seal closes.
        open_transaction: Id of the transaction inside which the log is; nothing may be sealed until it ends. None at a boundary.
        is_idle: The last pull brought nothing.
        since: When the first of what is not sealed was delivered, on the monotonic clock; None if there is nothing.
        heard_at: When the log last delivered something, or told a newer time, on the monotonic clock.
    """

    position: Offset
    offset: Offset | None = None
    source_time: datetime | None = None
    positions: list[int] = field(default_factory=list)
    open_transaction: str | None = None
    is_idle: bool = False
    since: float | None = None
    heard_at: float | None = None

    @property
    def is_open(self) -> bool:
        """Return whether a transaction is open."""
        return self.open_transaction is not None

    def check(self, batch: LogBatch) -> None:
        """Refuse a batch that leaves the open transaction without its end: a part of it would be sealed, and read again after a crash.

        Raises:
            PluginError: `transaction_not_closed`.
        """
        before, after = self.open_transaction, batch.open_transaction
        if before is not None and after != before and not batch.closes(before):
            where = "at a transaction boundary" if after is None else f"inside transaction {after}"
            fault = f"transaction {before}, which it had begun to deliver, has not ended"
        elif after is None and batch.has_open_rows:
            where, fault = "at a transaction boundary", "the last rows belong to a transaction that has not ended"
        else:
            return
        raise PluginError(f"the source claimed to be {where}, but {fault}.", code="transaction_not_closed")

    def add(self, batch: LogBatch, now: float) -> None:
        """Take note of a batch that was `check`ed."""
        self.open_transaction = batch.open_transaction
        if self.is_open:
            crash_point("capture.mid_transaction")
        self.offset = batch.offset or self.offset
        self.position = batch.offset or self.position
        if batch.events or (batch.source_time is not None and batch.source_time != self.source_time):
            self.heard_at = now
        self.source_time = batch.source_time or self.source_time
        self.is_idle = not batch.events and not batch.marks
        if self.since is None and batch.events:
            self.since = now


@dataclass(slots=True, kw_only=True)
class RingPruner:
    """Lets the window's ring forget the transactions that every later read sees.

    Attributes:
        submit: Runs a call in the control thread.
    """

    source: SourceLog
    window: Window
    submit: Callable[..., Future[Any]]
    _seeing: Future[Visibility] | None = None

    def prune(self) -> None:
        """Forget what can be forgotten, if the control thread says so in time.

        An answer that came late is as good: visibility is monotone.
        """
        if not self.window.ring_size or self.window.is_reading:
            return
        if self._seeing is None:
            self._seeing = self.submit(self.source.visibility)
        if wait([self._seeing], timeout=_VISIBILITY_WAIT_S).not_done:
            return
        seeing, self._seeing = self._seeing, None
        self.window.prune(seeing.result())


@dataclass(slots=True, kw_only=True)
class Sealer:
    """Seals one open log. Called by the loop's thread alone.

    Attributes:
        control: Is told of each seal.
        unsealed: What the log delivered.
    """

    ring: RingPruner
    reader: LogReader
    writer: JournalWriter
    tables: TrackedTables
    tracker: CatalogTracker
    settings: CaptureSettings
    clock: Callable[[], float]
    control: Control
    unsealed: Unsealed
    _sealed_at: float = field(init=False)
    _sealed_source_time: datetime | None = None

    def __post_init__(self) -> None:
        """Begin: the log was opened after the last seal."""
        self._sealed_at = self.clock()

    @property
    def has_unsealed(self) -> bool:
        """Return whether anything waits for a seal but the offset."""
        is_done = self.tracker.done_requests or self.unsealed.positions
        return bool(self.writer.pending_rows or self.tables.has_changed or is_done)

    @property
    def idle_wait_s(self) -> float:
        """Return the seconds until the next seal of a log that brings nothing."""
        return max(0.0, self.settings.seal_gap_s - (self.clock() - self._sealed_at))

    def seal(self, *, is_final: bool = False) -> None:
        """Commit if the policy asks for it."""
        now, settings, unsealed = self.clock(), self.settings, self.unsealed
        if self.has_unsealed:
            since = unsealed.since if unsealed.since is not None else self._sealed_at
            is_due = (
                is_final
                or self.writer.pending_rows >= settings.seal_rows
                or self.writer.pending_bytes >= settings.seal_bytes
                or now - since >= settings.seal_every_s
                or (unsealed.is_idle and now - self._sealed_at >= settings.seal_gap_s)
            )
        else:
            has_moved = unsealed.offset is not None or unsealed.source_time != self._sealed_source_time
            is_due = has_moved and (is_final or now - self._sealed_at >= settings.idle_seal_s)
        if is_due:
            self.commit()
        elif self.tracker.beginnings.is_settling:
            self.ring.prune()

    def commit(self, *, barriers: Sequence[int] = ()) -> None:
        """Files, index row, acknowledgement: in that order. `barriers`: requests for barriers, which are here."""
        unsealed = self.unsealed
        assert not unsealed.is_open, "no position inside a transaction is durable"
        self.ring.prune()
        offset, positions = unsealed.offset, unsealed.positions
        crash_point("capture.before_seal")
        self.writer.commit(
            offset=offset,
            source_time=unsealed.source_time,
            ring=self.ring.window.ring_texts(),
            tables=self.tables.take_changed(),
            history=self.tables.take_history(),
            done_requests=[*self.tracker.done_requests, *positions],
            barriers=barriers,
        )
        crash_point("capture.after_seal")
        unsealed.offset, unsealed.positions, unsealed.since = None, [], None
        self.tracker.done_requests.clear()
        self._sealed_source_time = unsealed.source_time
        self._sealed_at = self.clock()
        if offset is not None:
            crash_point("capture.before_ack")
            self.reader.acknowledge(offset)
            crash_point("capture.after_ack")
        self.control.announce("sealed")
        self.control.announce("progress")

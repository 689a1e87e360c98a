"""Requests of the operator, or of another process, to the running capture."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

from replicator.capture.marks import MarkBoard
from replicator.capture.parts import Parts
from replicator.capture.tables import TrackedTables
from replicator.capture.tracker import CatalogTracker
from replicator.model.schema import TableId
from replicator.state import table_life
from replicator.state.records import Request, RequestKind, Stage

# A verification asks once per table: a request is often followed by another one.
_NEXT_WITHIN_S: Final = 3.0
_NEXT_EVERY_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class PositionMark:
    """The mark that closes a request for a position."""

    request: int


@dataclass(frozen=True, slots=True)
class BarrierMark:
    """The mark behind which a commit ends, for a request for a barrier."""

    request: int


@dataclass(slots=True, kw_only=True)
class OperatorRequests:
    """The requests of one open log. Called by the loop's thread alone.

    Attributes:
        wants_restart: Snapshots from a new position were asked for: the log is to be opened there.
    """

    parts: Parts
    tables: TrackedTables
    tracker: CatalogTracker
    marks: MarkBoard[Any]
    wants_restart: bool = False
    _begun: set[int] = field(default_factory=set)
    _looked_at: float = -math.inf
    _asked_at: float = -math.inf

    def take_due(self) -> None:
        """Begin what was asked since it was last looked, now and then."""
        now, every_s = self.parts.clock(), self.parts.settings.request_every_s
        if now - self._asked_at < _NEXT_WITHIN_S:
            every_s = min(every_s, _NEXT_EVERY_S)
        if now - self._looked_at < every_s:
            return
        self._looked_at = now
        for request in self.parts.store.requests.open(self.parts.lease.replicator):
            if request.id not in self._begun:
                self._begun.add(request.id)
                self._asked_at = now
                self._begin(request)

    def _begin(self, request: Request) -> None:
        match request.kind:
            case RequestKind.RESTART:
                self.wants_restart = True
            case RequestKind.POSITION:
                self.marks.expect(self.parts.write_mark(), PositionMark(request.id))
            case RequestKind.BARRIER:
                if "position" not in request.payload:
                    self.marks.expect(self.parts.write_mark(), BarrierMark(request.id))
            case RequestKind.SNAPSHOT | RequestKind.RECREATE:
                self._begin_snapshots(request)
            case RequestKind.REREAD:
                self._read_again(request)
            case RequestKind.PROVEN:
                self._complete(request)
            case RequestKind.ACCEPT:
                self._accept(request)
            case RequestKind.DELETE:
                pass  # The supervisor's.

    def _begin_snapshots(self, request: Request) -> None:
        names = request.payload["tables"]
        wanted = {TableId.parse(n) for n in names}
        chosen = [f for f in self.tables.all(*table_life.REPLICATED) if not names or f.table in wanted]
        chosen = [f for f in chosen if not self.parts.failures.is_left_out(request.id, f.table)]
        if request.kind is RequestKind.RECREATE:
            self.tracker.definitions.recreate([f.table for f in chosen])
        for tracked in [f for f in chosen if f.record.is_changed_only]:
            self.tables.put(table_life.read_next(tracked.record))
        tables = [f.table for f in chosen if not table_life.waits(f.record)]
        if tables:
            self.tracker.start(tables, requests=[request.id])
        else:
            self.tracker.done_requests.append(request.id)

    def _read_again(self, request: Request) -> None:
        """Rows of a table that streams, or is being compared, are read again.

        Of any other, a snapshot reads them, or none begins before somebody asks.
        """
        tracked = self.tables.get(TableId.parse(request.payload["table"]))
        if (
            tracked is not None
            and table_life.can_reread(tracked.record)
            and tracked.schema.key
            and not self.parts.failures.is_left_out(request.id, tracked.table)
        ):
            self.tables.read_again(tracked, [tuple(key) for key in request.payload["keys"]])
            self.tracker.snapshots.begin(tracked)
        self.tracker.done_requests.append(request.id)

    def _complete(self, request: Request) -> None:
        """A table that is being compared is complete, if that is still the comparison which found it equal."""
        tracked = self.tables.get(TableId.parse(request.payload["table"]))
        progress = None if tracked is None else tracked.record.snapshot
        if (
            tracked is not None
            and table_life.is_comparing(tracked.record)
            and tracked.record.reread is None
            and progress is not None
            and progress.started_at is not None
            and progress.started_at.isoformat() == request.payload["started_at"]
        ):
            self.tables.complete(tracked)
        self.tracker.done_requests.append(request.id)

    def _accept(self, request: Request) -> None:
        """Let tables continue with the change that they waited for; the request is done once their snapshots begin, or wait to begin."""
        wanted = {TableId.parse(name) for name in request.payload["tables"]}
        waiting = [f for f in self.tables.all(Stage.FAILED) if table_life.waits_for_acceptance(f.record)]
        chosen = [f for f in waiting if f.table in wanted and not self.parts.failures.is_left_out(request.id, f.table)]
        tables = [f.table for f in chosen if self.tracker.accept(f)]
        if tables:
            self.tracker.start(tables, requests=[request.id])
        else:
            self.tracker.done_requests.append(request.id)

"""Barriers in the journal: the capture that runs writes them, and apply ends a batch at them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from replicator.model.schema import TableId
from replicator.state import table_life
from replicator.state.records import RequestKind, SegmentFile
from replicator.state.store import StateStore

SCHEDULED: Final = "is_scheduled"
"""Key in the payload of a request for a barrier: a worker's schedule asks for it."""
_FORGOTTEN_BY_S: Final = 86_400.0


class NotVerifiedError(Exception):
    """A table cannot be compared. `action` is the operator's next step."""

    def __init__(self, reason: str, action: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.action = reason, action


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """A barrier in the journal: everything that was committed at the source when it was asked for has a number up to `position`.

    Attributes:
        ring: Ids of transactions up to there that a read might not have seen then.
        request: Id of the request for it.
    """

    position: int
    ring: tuple[str, ...]
    request: int


@dataclass(slots=True, kw_only=True)
class Barriers:
    """Finds barriers.

    Attributes:
        check: Raises NotVerifiedError if no worker runs the replicator any more.
        wait: Waits for a moment.
        forgotten_by_s: Age in seconds from which a barrier is taken for one of a verification that was killed.
        is_scheduled: True if a worker's schedule asks for barriers. Its supervisor removes what it leaves when killed (`forget_scheduled`).
        waits_max_s: Seconds for which capture and apply are each waited for at most, because a state of the source may be open meanwhile.
        clock: A monotonic clock in seconds.
    """

    store: StateStore
    name: str
    check: Callable[[], None]
    wait: Callable[[], object]
    forgotten_by_s: float = _FORGOTTEN_BY_S
    is_scheduled: bool = False
    waits_max_s: float = math.inf
    clock: Callable[[], float] = time.monotonic

    @contextmanager
    def held(self) -> Iterator[Barrier]:
        """Yield a barrier after everything committed by now.

        Until the context ends, or the barrier is lifted, no batch has changes on both sides of it.
        """
        payload = {SCHEDULED: True} if self.is_scheduled else {}
        asked = self.store.requests.add(self.name, RequestKind.BARRIER, payload)
        try:
            yield self._found(asked)
        finally:
            self.store.requests.remove(asked)

    def lift(self, barrier: Barrier) -> None:
        """Let batches have changes on both sides of it again."""
        self.store.requests.remove(barrier.request)

    def reach(self, table: TableId, position: int) -> None:
        """Wait until apply has nothing left of a table up to a position.

        Raises:
            NotVerifiedError: That takes too long, or does not happen any more.
        """
        until = self.clock() + self.waits_max_s
        while not self._is_applied(table, position):
            if self.clock() >= until:
                raise NotVerifiedError("its changes were not applied in time")
            self.check()
            self.wait()

    def forget_old(self) -> None:
        """Remove barriers of verifications that were killed; also those equally far ahead, because the clock was set back since."""
        now = self.store.now()
        for request in self.store.requests.open(self.name):
            if (
                request.kind is RequestKind.BARRIER
                and abs((now - request.created_at).total_seconds()) >= self.forgotten_by_s
            ):
                self.store.requests.remove(request.id)

    def _found(self, asked: int) -> Barrier:
        until = self.clock() + self.waits_max_s
        while True:
            payload = next((r.payload for r in self.store.requests.open(self.name) if r.id == asked), None)
            if payload is None:
                raise NotVerifiedError("the verification took too long, and another one has ended it")
            if "position" in payload:
                return Barrier(position=payload["position"], ring=_ids(payload["ring"]), request=asked)
            if self.clock() >= until:
                raise NotVerifiedError("capture did not get to a position at which it could be compared in time")
            self.check()
            self.wait()

    def _is_applied(self, table: TableId, position: int) -> bool:
        record = self.store.table(self.name, table)
        if record is not None and not table_life.is_replicated(record):
            raise NotVerifiedError("it is not replicated")  # what is left of it is not applied
        applied = self.store.applied(self.name).get(table)
        if applied is None:
            return False
        if applied.has_failed:
            raise NotVerifiedError("the table has failed", f"To see why: replicator status {self.name}")
        left = self.store.journal.feed(self.name, table, applied.last_applied, 1)
        return not left or _first(left[0]) > position


def forget_scheduled(store: StateStore, name: str) -> None:
    """Remove the barriers that a worker's schedule has left. Only where no such worker is left."""
    for request in store.requests.open(name):
        if request.kind is RequestKind.BARRIER and request.payload.get(SCHEDULED):
            store.requests.remove(request.id)


def _first(item: object) -> int:
    return item.first if isinstance(item, SegmentFile) else item.sequence_num  # type: ignore[attr-defined]


def _ids(ring: Sequence[str]) -> tuple[str, ...]:
    return tuple(text.rpartition("@")[0] for text in ring)

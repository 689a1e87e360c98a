"""The events of an open log, one after another, and their position in the server's files."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from replicator.model.errors import FatalError
from replicator_source_mysql.binlog import InnerEvent, transaction_payload
from replicator_source_mysql.binlog.events import PARTIAL_UPDATE, RowsEvent, too_large
from replicator_source_mysql.coordinates import Progress
from replicator_source_mysql.events import IGNORED, Event
from replicator_source_mysql.log.dump import HEADER, HEADER_SIZE, Dump

# What is too large of it fails its table, or is left out anyway.
_MAY_BE_CUT: Final = frozenset(RowsEvent) | {PARTIAL_UPDATE} | IGNORED


class EventStream:
    """Takes events from a dump.

    Args:
        dump: Dump that was opened at the beginning of `progress`.
        progress: Records every event.
        size_max: Bytes that an event of a compressed transaction may have; of a larger one only the beginning is held.

    Attributes:
        queue: Events that have arrived, header included.
        cursor: The cursor of `progress`; it moves with every event.
    """

    def __init__(self, dump: Dump, progress: Progress, *, size_max: int) -> None:
        self.cursor = progress.cursor
        self._progress = progress
        self.queue: deque[bytes] = deque()
        self._dump = dump
        self._size_max = size_max
        self._inner: Iterator[InnerEvent] | None = None
        self._inner_events = 0
        self._put_back: Event | None = None

    @property
    def offset(self) -> int:
        """Offset that grows from event to event of a transaction; the events inside one compressed event are counted one by one."""
        return self.cursor.pos + self._inner_events

    @property
    def is_at_queue(self) -> bool:
        """Return whether the next event is the first of `queue`."""
        return self._inner is None and self._put_back is None

    def receive(self, wait_s: float) -> bool:
        """Put the events that have arrived into the queue, waiting at most `wait_s`; return whether there were any."""
        try:
            received = self._dump.events(wait_s)
        except FatalError as error:
            self._progress.refuse_begin(error)
            raise
        self.queue.extend(received)
        return bool(received)

    def next(self, *, in_transaction: bool) -> Event | None:
        """Take the next event that is here: the one that was put back, one of a compressed transaction, or from the queue."""
        if self._put_back is not None:
            event, self._put_back = self._put_back, None
            return event
        if self._inner is not None:
            inner = next(self._inner, None)
            if inner is not None:
                self._inner_events += 1
                if inner.cut and inner.type_code not in _MAY_BE_CUT:
                    what = f"An event of type {inner.type_code} in a compressed transaction"
                    raise too_large(what, inner.cut, self._size_max)
                body = memoryview(inner.body)
                return Event(inner.timestamp, inner.type_code, inner.server_id, inner.flags, body, inner.cut)
            self._inner = None
        cursor, progress = self.cursor, self._progress
        while self.queue:
            raw = self.queue.popleft()
            timestamp, kind, server_id, size, end, flags = HEADER.unpack_from(raw)
            body = memoryview(raw)[HEADER_SIZE:]
            cursor.move(kind, size, end, flags, in_transaction=in_transaction)
            if progress.take_event(raw, kind, size, end, flags, in_transaction=in_transaction):
                continue
            return Event(timestamp, kind, server_id, flags, body)
        return None

    def put_back(self, event: Event) -> None:
        """Give an event back: it comes again as the next one."""
        self._put_back = event

    def open_payload(self, body: memoryview) -> None:
        """Continue with the events inside a compressed transaction."""
        self._inner = transaction_payload(body, size_max=self._size_max)
        self._inner_events = 0

    def close(self) -> None:
        """Close the dump."""
        self._dump.close()

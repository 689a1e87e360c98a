"""Progress in one open log: the position in the server's files, and what is executed there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Generic, TypeVar, cast

from replicator.model.errors import FatalError
from replicator_source_mysql.coordinates.cursor import ReadPosition
from replicator_source_mysql.coordinates.prepared import PreparedTransactions
from replicator_source_mysql.events import Begin, Event
from replicator_source_mysql.positions.gtid_sets import GtidPosition, GtidSet
from replicator_source_mysql.positions.marks import LogEnd
from replicator_source_mysql.positions.position import Executed, Position

Gtids = TypeVar("Gtids", GtidSet, GtidPosition)


class Progress(ABC):
    """Progress in one open log. Used by the log's reader, in its thread.

    After a start before the durable position (`Position.restart`) what is durable is skipped until all of it has passed.

    Args:
        start: Position at which the log was opened.
        server: Name of the server in offsets.
        cursor: Position at which reading begins.

    Attributes:
        cursor: The reader's position in the server's files.
        prepared: XA transactions that are prepared and not decided.
    """

    def __init__(self, start: Position, server: str, cursor: ReadPosition) -> None:
        self.cursor = cursor
        self.prepared = PreparedTransactions(start.prepared)
        self._server = server
        self._last = start

    @property
    @abstractmethod
    def executed(self) -> Executed:
        """Everything that is executed up to here."""

    def is_reached(self, end: LogEnd) -> bool:
        """Return whether everything before this end of the log has been read."""
        return end.is_reached(self.cursor.position, self.executed)

    def take_new_position(self) -> Position | None:
        """The position of the last transaction that was committed; None if it is the one that was taken last."""
        position, last = self._position(), self._last
        if (position.executed, position.prepared) == (last.executed, last.prepared):
            return None
        self._last = position
        return position

    @property
    def before_prepared(self) -> Executed:
        """Position at which reading begins so that a transaction that is prepared here comes again."""
        return self.executed

    # ---- transactions ----

    @abstractmethod
    def begin(self, event: Event) -> Begin:
        """Read the first event of a transaction, which the cursor has passed.

        Raises:
            FatalError: A transaction has no GTID where GTIDs say what is executed.
        """

    def transaction_id(self, begin: Begin) -> str:
        """The id of the transaction that begins here, by which `Visibility` judges it."""
        return begin.gtid

    def decision_id(self, id_: str, xid: str) -> str:  # noqa: ARG002 - most do not name it
        """The id of a transaction that commits or rolls back the prepared XA transaction `xid`; its own one is `id_`."""
        return id_

    @abstractmethod
    def is_skipped(self, begin: Begin) -> bool:
        """Return whether the transaction that begins here is durable already."""

    @abstractmethod
    def commit(self, begin: Begin) -> None:
        """Count the transaction, which ends here, as executed."""

    @abstractmethod
    def _position(self) -> Position: ...

    # ---- files ----

    def take_event(self, raw: bytes, kind: int, size: int, end: int, flags: int, *, in_transaction: bool) -> bool:  # noqa: ARG002
        """Record an event that the cursor has passed; True: it was read before this log was opened, and is left out."""
        return False

    def refuse_begin(self, error: FatalError) -> None:  # noqa: B027 - the error says it all
        """Raise an error that says more than the one with which the dump ended, if it is known."""

    def begin_file(self) -> None:  # noqa: B027
        """Record that a file's first event was read, outside transactions."""

    def enter(self, file: str, pos: int) -> bool:
        """Continue in this file at this byte; return whether it is another one."""
        return self.cursor.enter(file, pos)

    def heartbeat(self, file: str, pos: int | None) -> None:
        """Record that the server waits for changes, at this byte of this file."""
        self.cursor.heartbeat(file, pos)


class GtidProgress(Progress, Generic[Gtids]):
    """Progress where GTIDs say what is executed, and files are a hint."""

    def __init__(self, start: Position, server: str) -> None:
        # Unknown on another server, and where what is durable is skipped.
        is_known = start.server == server and start.restart is None
        super().__init__(start, server, ReadPosition(start.file, start.pos) if is_known else ReadPosition("", 0))
        # Without the GTIDs of the transactions since, which are added on demand.
        self._before: Gtids = cast("Gtids", start.begin)
        self._committed: list[str] = []
        self._skipping: Gtids | None = cast("Gtids", start.executed) if start.restart is not None else None

    @property
    def executed(self) -> Gtids:
        """See `Progress`."""
        if self._committed:
            self._before = self._before.with_gtids(self._committed)
            self._committed.clear()
        return self._before

    def is_skipped(self, begin: Begin) -> bool:
        """See `Progress`."""
        return self._skipping is not None and not self.prepared.is_pending(begin.gtid) and begin.gtid in self._skipping

    def commit(self, begin: Begin) -> None:
        """See `Progress`."""
        self.cursor.end_transaction()
        self._committed.append(begin.gtid)
        if self._skipping is not None and self.executed.covers(self._skipping):
            self._skipping = None

    def _position(self) -> Position:
        if self._skipping is not None:
            # What is prepared has not all been read again. A server that took over may have logged new transactions before
            # some that are skipped (MariaDB: of other domains); then no position in its files says what is durable.
            return replace(
                self._last,
                executed=self.executed.union(self._skipping),
                server=self._server,
                file="",
                pos=0,
                prepared=self.prepared.gtids_with_pending,
            )
        oldest = self.prepared.oldest
        return Position(
            executed=self.executed,
            server=self._server,
            file=self.cursor.boundary[0],
            pos=self.cursor.boundary[1],
            prepared=self.prepared.gtids,
            restart=oldest.before if oldest is not None else None,
        )

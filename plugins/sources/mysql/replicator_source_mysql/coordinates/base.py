"""Interface of a coordinate system. Code that needs a position, a mark or a view of a table asks here, not which server it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
from typing_extensions import override

from replicator.model.errors import Problem
from replicator.model.schema import TableId
from replicator.plugins.source import Seen, Visibility
from replicator_source_mysql.connecting.connection import Connection, Session
from replicator_source_mysql.coordinates.progress import Progress
from replicator_source_mysql.positions.marks import LogEnd, log_end
from replicator_source_mysql.positions.position import Executed, Position
from replicator_source_mysql.server import ServerFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpRequest:
    """The request by which a server sends its log.

    Attributes:
        statement: SQL that is run before; empty for none.
        command: Command byte of the client protocol.
        body: Bytes after the command's byte.
    """

    command: int
    body: bytes
    statement: str = ""


class SourceVisibility(Visibility):
    """Visibility of a read of this source."""

    @override
    def classify(self, transaction_ids: pa.StringArray) -> pa.Int8Array:
        answers = {text: int(self._judge(text)) for text in transaction_ids.unique().to_pylist()}
        return pa.array([answers[text] for text in transaction_ids.to_pylist()], pa.int8())

    @abstractmethod
    def _judge(self, text: str) -> Seen:
        """Return whether a read saw one transaction, by its id."""

    def waiting_for(self, watch: Session) -> Sequence[str]:  # noqa: ARG002 - most of them wait for nobody
        """Sessions whose transactions a later read waits for until it `is_beyond` this one, for people."""
        return ()


class ReadView(ABC):
    """Finds out what one read of one table sees. Call the methods in their order."""

    @abstractmethod
    def begin(self) -> None:
        """Prepare, just before the statement that reads."""

    @abstractmethod
    def visibility(self) -> Visibility:
        """Return what the statement saw; called once it has given its first row, or ended."""

    def release(self) -> None:  # noqa: B027 - most views hold nothing
        """Let the catalogue be read as it is now, not as the rows were; called after the last row."""

    def end(self) -> None:  # noqa: B027
        """Close all that the read holds open on the server."""


class SnapshotView(ReadView):
    """A consistent snapshot of MySQL's, opened by `begin`, which sets its visibility."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._visibility: SourceVisibility | None = None

    @override
    def visibility(self) -> Visibility:
        assert self._visibility is not None, "begin() comes first"
        return self._visibility

    @override
    def release(self) -> None:
        # MySQL keeps its catalogue in tables: the snapshot would show it as it was.
        self._connection.commit()

    @override
    def end(self) -> None:
        self._connection.commit()


class ReadViews(ABC):
    """Makes the views that say what reads see."""

    @abstractmethod
    def read_view(
        self, connection: Connection, watch: Session, table: TableId, *, is_whole: bool, is_exact: bool = True
    ) -> ReadView:
        """Return the view of a read of a table over this connection.

        Args:
            connection: Connection of the read.
            watch: Another session, for questions while the read runs.
            table: The table.
            is_whole: All of it is read in one snapshot, whose first row may be long in coming; else it is a chunk.
            is_exact: Of a whole table, a change that is neither seen nor unseen cannot be left to the log.
        """


class _UnseenView(ReadView):
    @override
    def begin(self) -> None:
        pass

    @override
    def visibility(self) -> Visibility:
        raise AssertionError("nobody asks what a sample saw")


class Unseen(ReadViews):
    """Views of reads whose visibility is not asked for: plain statements."""

    @override
    def read_view(
        self, connection: Connection, watch: Session, table: TableId, *, is_whole: bool, is_exact: bool = True
    ) -> ReadView:
        return _UnseenView()


class Coordinates(ReadViews):
    """One coordinate system. One instance belongs to one source object; `opened` and `delivered` come from its log's thread.

    A method that takes a connection uses it without an open transaction and leaves none.
    """

    names: ClassVar[str]
    """Name of a position of this system in messages."""

    # ---- positions ----

    @abstractmethod
    def current_position(self, connection: Connection, facts: ServerFacts) -> Position:
        """The end of the log now: every transaction that is not visible yet comes after it, or is waited for (`is_beyond`).

        Raises:
            ConfigError: The server's settings do not allow a new position.
        """

    @abstractmethod
    def start_at(self, connection: Connection, facts: ServerFacts, text: str) -> Position:
        """The position that a user gave as `source.start_at`.

        Raises:
            ValueError: The text is no position.
            FatalError: The server's log has no such position.
        """

    def assess(self, connection: Connection, account: str) -> Sequence[Problem]:  # noqa: ARG002 - most systems need nothing
        """Problems that would keep `prepare` from succeeding; changes nothing. `account` is ours, as the server names it."""
        return ()

    def prepare(self, connection: Connection) -> None:
        """Verify, before the first read of a new replicator, that the operations that reads need are possible.

        Raises:
            FatalError: They are not.
        """

    # ---- the log ----

    @abstractmethod
    def verify_joins(self, connection: Connection, facts: ServerFacts, position: Position) -> None:
        """Compare the server's history with our position, which is of this system and of this kind of server.

        Raises:
            OffsetExpiredError: The server's log begins after it.
            LogGapError: The server's history lacks what is durable here, or is another one.
            SourceLagsError: The server merely lags, as it seems.
        """

    def opened(self, facts: ServerFacts, position: Position) -> None:
        """Record that the log is opened at this position, which `verify_joins` accepted."""

    @abstractmethod
    def request(self, behind: Executed, server_id: int) -> DumpRequest:
        """The request for the log after a position, as the replica with this number."""

    @abstractmethod
    def progress(self, start: Position, server: str) -> Progress:
        """Follow the reading of a log that is opened at `start` on this server."""

    def delivered(self, executed: Executed) -> None:
        """Record that the log has delivered everything up to here."""

    # ---- marks and reads ----

    def end_of_log(self, connection: Connection) -> LogEnd:
        """The end of the log as a mark: it lies after every transaction that any read could have seen."""
        return log_end(connection)

    @abstractmethod
    def visibility(self, connection: Connection) -> Visibility:
        """The visibility of a read that began now."""

"""Marks: ends of the log, read while it grows.

A position that the server gives as the end of its log lies after every transaction that any read could have seen, so a
reader that has passed it has delivered them all. Nothing is written for it. (As the *beginning* of something such a
position is wrong: it may also lie after transactions that no read sees yet.)
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import UTC, datetime

from replicator_source_mysql.connecting.connection import Connection, flavor_of, rows_of
from replicator_source_mysql.flavors import version_of
from replicator_source_mysql.positions.file_position import LogPosition, file_number
from replicator_source_mysql.positions.position import Executed


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """The end of the log at a moment of the server's clock, and the transactions executed there, where the server says it."""

    position: LogPosition
    file: str
    moment: datetime
    executed: Executed | None = None

    def is_reached(self, position: LogPosition, executed: Executed) -> bool:
        """Return whether a reader at `position`, after these transactions, has delivered everything before this end.

        A reader that was opened at the end learns its position with the first heartbeat only; the transactions it was opened after say so
        at once.
        """
        return position >= self.position or (self.executed is not None and self.executed == executed)


def log_end(connection: Connection) -> LogEnd:
    """Ask for the end of the log. The moment is taken first, so that all that was committed by then lies before the end."""
    ((moment,),) = rows_of(connection, "SELECT UTC_TIMESTAMP(6)")
    rows = rows_of(connection, log_status_statement(connection))
    file, pos = rows[0][0], int(rows[0][1])
    return LogEnd(position=(file_number(file), pos), file=file, moment=moment.replace(tzinfo=UTC))


def log_status_statement(connection: Connection) -> str:
    """The statement that shows the end of the log."""
    return flavor_of(connection).log_status(version_of(connection.get_server_info()))


class AwaitedMarks:
    """The marks that wait for the log's reader. Thread-safe; shared by all that one source object does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[str, LogEnd]] = []
        self._count = 0

    def add(self, end: LogEnd, prefix: str) -> str:
        """Add a mark at this end; return its name."""
        with self._lock:
            self._count += 1
            text = f"{prefix}:{self._count}"
            self._waiting.append((text, end))
            return text

    @property
    def is_empty(self) -> bool:
        """Return whether no mark waits. Without the lock: it is called at every commit."""
        return not self._waiting

    def reached(self, position: LogPosition, executed: Executed) -> list[str]:
        """Take the marks that a reader has reached, in the order in which they were made.

        An earlier mark is reached with a later one: ends only grow.
        """
        with self._lock:
            count = 0
            for number, (_, end) in enumerate(self._waiting, start=1):
                if end.is_reached(position, executed):
                    count = number
            taken, self._waiting = self._waiting[:count], self._waiting[count:]
            return [text for text, _ in taken]

"""Marks: once the log's reader has reached one, everything that a read saw has been delivered.

With a mark table a mark is a token that is written into it, and comes back through its change table, in the order of commits. Without
one a mark is the end of the log (`logend`): everything that was visible by then has come once a commit, or an entry without one, comes
that is later. On a database where nothing is written such an entry comes about every five minutes.

Where the server does not say where its log ends, a mark is a time: it is reached with an entry that is a second younger. That is right as
long as the order of commits is that of their times, and so while nobody sets the server's clock back. What was committed before it
was set back has times that are still to come; such an entry reaches no mark. If the clock has caught up with it before it is read, it does.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import pyodbc

from replicator.model.schema import TableId
from replicator_source_sqlserver.cdc.pages import Commit
from replicator_source_sqlserver.connecting.connection import Connection
from replicator_source_sqlserver.connecting.errors import number_of
from replicator_source_sqlserver.names import quoted_table

TOKEN: Final = "token"  # noqa: S105 - a column's name
_DUPLICATE: Final = frozenset({2601, 2627})
_MARGIN: Final = timedelta(seconds=1)
"""Times of commits are rounded, and a moment may lie between that of a commit and its position in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Awaited:
    """A mark. It is a token, unless `lsn` or `moment` is given."""

    text: str
    lsn: bytes | None
    moment: datetime | None

    def is_reached(self, tokens: Collection[str], end: Commit, now: datetime | None) -> bool:
        if self.lsn is not None:
            return end.lsn >= self.lsn
        if self.moment is not None:
            return now is not None and self.moment + _MARGIN < end.moment <= now
        return self.text in tokens


class AwaitedMarks:
    """The marks that wait for the log's reader. Thread-safe; shared by all users of one source object."""

    def __init__(self, prefix: str) -> None:
        """Begin without marks. `prefix`: differs from that of every other object."""
        self._prefix = prefix
        self._lock = threading.Lock()
        self._count = 0
        self._waiting: list[_Awaited] = []

    def add(self, *, lsn: bytes | None = None, moment: datetime | None = None) -> str:
        """Return a new mark: a token that is about to be written, an end of the log, or a time of the server's clock."""
        with self._lock:
            self._count += 1
            text = f"{self._prefix}:{self._count}"
            self._waiting.append(_Awaited(text=text, lsn=lsn, moment=moment))
            return text

    def discard(self, text: str) -> None:
        """Forget a mark: its token was not written."""
        with self._lock:
            self._waiting = [mark for mark in self._waiting if mark.text != text]

    @property
    def tokens(self) -> frozenset[str]:
        """The tokens that are awaited."""
        with self._lock:
            return frozenset(mark.text for mark in self._waiting if mark.moment is None and mark.lsn is None)

    @property
    def has_times(self) -> bool:
        """Return whether a mark is a time."""
        with self._lock:
            return any(mark.moment is not None for mark in self._waiting)

    def reached(self, tokens: Collection[str], end: Commit, now: datetime | None) -> list[str]:
        """Take the marks that are reached, in the order in which they were made.

        Args:
            tokens: The tokens that were written into the mark table.
            end: The commit up to which everything was read.
            now: The server's clock, for marks that are times.
        """
        with self._lock:
            taken = [mark for mark in self._waiting if mark.is_reached(tokens, end, now)]
            self._waiting = [mark for mark in self._waiting if mark not in taken]
            return [mark.text for mark in taken]


def write_token(connection: Connection, mark_table: TableId, token: str) -> None:
    """Write a token into the mark table: into its one row, which is made if it is missing."""
    table = quoted_table(mark_table)
    update = f"UPDATE {table} SET {TOKEN} = ? WHERE id = 1"
    if connection.changed(update, [token]) > 0:
        return
    try:
        connection.execute(f"INSERT INTO {table} (id, {TOKEN}) VALUES (1, ?)", [token])
    except pyodbc.Error as error:
        if number_of(error) not in _DUPLICATE:
            raise
        # Another session made it in between.
        connection.changed(update, [token])


def read_token(connection: Connection, mark_table: TableId) -> str | None:
    """Read the token in the mark table; None if there is none."""
    rows = connection.rows(f"SELECT {TOKEN} FROM {quoted_table(mark_table)} WHERE id = 1")
    return rows[0][0] if rows else None


def server_moment(connection: Connection) -> datetime:
    """Read the server's clock, without a zone, as change data capture has times."""
    moment = connection.rows("SELECT GETDATE()")[0][0]
    assert isinstance(moment, datetime)
    return moment

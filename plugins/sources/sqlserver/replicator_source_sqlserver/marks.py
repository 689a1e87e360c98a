"""Marks: what the log's reader waits for so that everything that a read saw has been delivered.

With a signal table a mark is a token that is written into it, and comes back through its change table, in the order of commits. Without
one a mark is a time: commits are in the order of their times, so everything that was visible by then has come once a commit, or an entry
without one, comes that is a second younger. On a database where nothing is written such an entry comes about every five minutes.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import pyodbc

from replicator.model.schema import TableId
from replicator_source_sqlserver.connection import Connection
from replicator_source_sqlserver.errors import number_of
from replicator_source_sqlserver.names import quoted_table

TOKEN: Final = "token"  # noqa: S105 - a column's name
_DUPLICATE: Final = frozenset({2601, 2627})
_MARGIN: Final = timedelta(seconds=1)
"""Times of commits are rounded, and a moment may lie between that of a commit and its position in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Awaited:
    text: str
    moment: datetime | None


class AwaitedMarks:
    """The marks that wait for the log's reader. Thread-safe; shared by all that one source object does."""

    def __init__(self, prefix: str) -> None:
        """Begin without any. `prefix`: differs from that of every other object."""
        self._prefix = prefix
        self._lock = threading.Lock()
        self._count = 0
        self._waiting: list[_Awaited] = []

    def add(self, moment: datetime | None = None) -> str:
        """A new mark: a token that is about to be written, or a time of the server's clock."""
        with self._lock:
            self._count += 1
            text = f"{self._prefix}:{self._count}"
            self._waiting.append(_Awaited(text=text, moment=moment))
            return text

    def discard(self, text: str) -> None:
        """Forget a mark: its token was not written."""
        with self._lock:
            self._waiting = [mark for mark in self._waiting if mark.text != text]

    @property
    def tokens(self) -> frozenset[str]:
        """The tokens that are awaited."""
        with self._lock:
            return frozenset(mark.text for mark in self._waiting if mark.moment is None)

    def reached(self, tokens: Collection[str], moment: datetime) -> list[str]:
        """Take the marks that are reached with these tokens, and at a commit of this time; in the order in which they were made."""
        with self._lock:
            taken = [
                mark
                for mark in self._waiting
                if (mark.text in tokens if mark.moment is None else moment - mark.moment > _MARGIN)
            ]
            self._waiting = [mark for mark in self._waiting if mark not in taken]
            return [mark.text for mark in taken]


def write_token(connection: Connection, signal: TableId, token: str) -> None:
    """Write a token into the signal table: into its one row, which is made if it is missing."""
    table = quoted_table(signal)
    update = f"UPDATE {table} SET {TOKEN} = ? WHERE id = 1"
    if connection.changed(update, [token]):
        return
    try:
        connection.execute(f"INSERT INTO {table} (id, {TOKEN}) VALUES (1, ?)", [token])
    except pyodbc.Error as error:
        if number_of(error) not in _DUPLICATE:
            raise
        # Another session made it in between.
        connection.changed(update, [token])


def server_moment(connection: Connection) -> datetime:
    """The server's clock, without a zone, as change data capture has times."""
    moment = connection.rows("SELECT GETDATE()")[0][0]
    assert isinstance(moment, datetime)
    return moment

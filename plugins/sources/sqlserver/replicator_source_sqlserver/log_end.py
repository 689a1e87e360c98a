"""The end of the server's log: a mark in the order of commits that needs no write.

A transaction that somebody has seen was committed, so its record was in the log; every commit that comes later is after the position where
the log ended then. The server's clock is not needed, and may be set to any time.
"""

from __future__ import annotations

import re
from typing import Final

import pyodbc

from replicator_source_sqlserver.connecting.connection import Connection
from replicator_source_sqlserver.connecting.errors import is_unknowable

# By the manual "the last log record in the transaction log"; NULL on a secondary replica. It needs VIEW SERVER STATE. Where durability
# may be delayed, a commit is seen before its record is there.
_END: Final = """
SELECT s.log_end_lsn FROM sys.dm_db_log_stats(DB_ID()) s
WHERE EXISTS (SELECT * FROM sys.databases d WHERE d.database_id = DB_ID() AND d.delayed_durability = 0)
"""
_TEXT: Final = re.compile(r"(?:0x)?([0-9A-Fa-f]{8}):([0-9A-Fa-f]{8}):([0-9A-Fa-f]{4})")


def log_end(connection: Connection) -> bytes | None:
    """Read a position after everything that was committed before; None if the server does not say, or our account may not know."""
    try:
        rows = connection.rows(_END)
    except pyodbc.Error as error:
        if not is_unknowable(error):
            raise
        return None
    return parsed(rows[0][0]) if rows else None


class LogEndShown:
    """Remembers, for each connection, whether the server shows our account the end of its log: permissions seldom change."""

    def __init__(self) -> None:
        """Begin without an answer."""
        self._asked: Connection | None = None
        self._is_shown = False

    def on(self, connection: Connection) -> bool:
        """Return the answer of this connection."""
        if self._asked is not connection:
            self._is_shown, self._asked = log_end(connection) is not None, connection
        return self._is_shown


def parsed(text: str | None) -> bytes | None:
    """Parse a position as such views spell it: three numbers in hexadecimal, of 4, 4 and 2 bytes. None if it is spelled otherwise."""
    match = _TEXT.fullmatch(text.strip()) if text else None
    return bytes.fromhex("".join(match.groups())) if match else None

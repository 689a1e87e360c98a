"""A server's history, compared with what was read: shared by the coordinate systems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pymysql

from replicator.model.errors import LogGapError, SourceLagsError
from replicator_source_mysql.connecting.connection import Connection, literal, rows_of
from replicator_source_mysql.connecting.errors import RESTART_ACTION, number_of
from replicator_source_mysql.positions.file_position import file_number
from replicator_source_mysql.positions.marks import log_end
from replicator_source_mysql.positions.position import Position
from replicator_source_mysql.server import ServerFacts

NO_EVENT: Final = 1220
"""Error: no event begins there. Or one is being written: `SHOW BINLOG EVENTS` reads past the end that the server states (MySQL 9.7)."""
_SHOWN_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """An event as SHOW BINLOG EVENTS has it."""

    kind: str
    info: str


def event_at(connection: Connection, file: str, pos: int) -> LoggedEvent | None:
    """The event that begins at a byte of a file; None at the file's end, also where the next one is being written.

    Raises:
        LogGapError: `other_history`: none begins there.
    """
    end = log_end(connection)
    if (end.file, end.position[1]) == (file, pos):
        return None
    try:
        rows = rows_of(connection, f"SHOW BINLOG EVENTS IN {literal(file)} FROM {pos} LIMIT 1")
    except pymysql.err.OperationalError as error:
        if number_of(error) != NO_EVENT:
            raise
        raise other_history(f"no event begins at byte {pos} of {file}") from error
    return LoggedEvent(rows[0][2], rows[0][5]) if rows else None


def file_sizes(connection: Connection) -> Mapping[str, int]:
    """The files of the log, in their order."""
    return {row[0]: int(row[1]) for row in rows_of(connection, "SHOW BINARY LOGS")}


def has_file(connection: Connection, position: Position) -> bool:
    """Return whether the file that was read last is still there.

    Raises:
        LogGapError: `other_history`: it never was.
    """
    if not position.file:
        return False
    sizes = file_sizes(connection)
    if position.file not in sizes:
        # Purged, which the server itself judges by GTID; but names beyond its last file are of another history.
        if file_number(position.file) > max(map(file_number, sizes), default=0):
            raise other_history(f"its log ends before {position.file}, which was read")
        return False
    if position.pos > sizes[position.file]:
        raise other_history(f"{position.file} ends before byte {position.pos}, up to which it was read")
    return True


def missing_transactions(facts: ServerFacts, position: Position, missing: str) -> LogGapError | SourceLagsError:
    """The error for transactions of our position that the server has not executed."""
    if facts.server == position.server:
        return other_history(f"it has not executed {shortened(missing)}, which it did before")
    return SourceLagsError(
        f"The server {facts.server} has not executed {shortened(missing)}, which {position.server} had: it lags, or has another history.",
        code="source_lags",
        action="Name a server that has caught up; if none has these transactions: " + RESTART_ACTION,
    )


def other_history(what: str) -> LogGapError:
    """The error for a server's log that is not the one that was read."""
    return LogGapError(
        f"The server's history is not the one that was read: {what}.", code="other_history", action=RESTART_ACTION
    )


def shortened(text: str) -> str:
    """A text, shortened for a message."""
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "…"

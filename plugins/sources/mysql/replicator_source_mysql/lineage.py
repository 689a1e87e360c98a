"""Whether the server's log joins at our position: the same history, and not purged. The server itself may be another one."""

from __future__ import annotations

import re
from typing import Final, cast

import pymysql

from replicator.model.errors import ConfigError, LogGapError, OffsetExpiredError, SourceLagsError
from replicator_source_mysql.connection import Connection, literal, rows_of
from replicator_source_mysql.errors import RESTART_ACTION, number_of
from replicator_source_mysql.gtid import GtidPosition, GtidSet
from replicator_source_mysql.marks import log_end
from replicator_source_mysql.position import Position, executed_of, file_number
from replicator_source_mysql.server import ServerFacts

_GTID_NEXT: Final = re.compile(r"GTID_NEXT\s*=\s*'([^']+)'")
# What may stand between transactions.
_BETWEEN: Final = frozenset({"Rotate", "Stop", "Anonymous_Gtid", "View_change"})
_NO_EVENT: Final = 1220


def current_position(connection: Connection, facts: ServerFacts) -> Position:
    """Where the log is now: everything that is not in it comes behind it.

    MySQL: GTIDs count as executed once their transactions are visible; what is still being committed comes. MariaDB: the
    position is that of the end of the log; what lies before it and is not visible yet is waited for (`is_beyond`).

    Raises:
        ConfigError: There is no log, or it has no GTIDs.
    """
    if not facts.is_on("log_bin"):
        raise ConfigError("the server has no binary log.", code="log_bin_off", action="Start it with log_bin.")
    if facts.flavor == "mysql":
        if facts.variables.get("gtid_mode", "OFF") != "ON":
            raise ConfigError(
                "the server's gtid_mode is not ON.",
                code="gtid_off",
                action="Switch it on, step by step: SET GLOBAL enforce_gtid_consistency = ON; SET GLOBAL gtid_mode = …",
            )
        # Without a place: the end of the log lies behind transactions that are being committed, and come.
        ((executed,),) = rows_of(connection, "SELECT @@GLOBAL.gtid_executed")
        return Position(flavor="mysql", executed=GtidSet.of(executed), server=facts.server)
    end = log_end(connection, is_mariadb=True)
    ((text,),) = rows_of(connection, "SELECT BINLOG_GTID_POS(%s, %s)", [end.file, end.place[1]])
    return Position(
        flavor="mariadb", executed=GtidPosition.of(text or ""), server=facts.server, file=end.file, pos=end.place[1]
    )


def verify_joins(connection: Connection, facts: ServerFacts, position: Position) -> None:
    """Compare the server's history with our position.

    Raises:
        OffsetExpiredError: The server's log begins behind it.
        LogGapError: The server's history lacks what is durable here, or is another one.
        SourceLagsError: The server merely lags, as it seems.
    """
    if facts.flavor != position.flavor:
        raise LogGapError(
            f"the source was {position.flavor} and is {facts.name} now.", code="other_flavor", action=RESTART_ACTION
        )
    if facts.flavor == "mysql":
        _verify_mysql(connection, facts, position)
    else:
        _verify_mariadb(connection, facts, position)


def _verify_mysql(connection: Connection, facts: ServerFacts, position: Position) -> None:
    ((executed_text, purged_text),) = rows_of(connection, "SELECT @@GLOBAL.gtid_executed, @@GLOBAL.gtid_purged")
    executed, purged = GtidSet.of(executed_text), GtidSet.of(purged_text)
    ours = cast("GtidSet", position.executed)
    if missing := ours.without(executed):
        _refuse_missing(facts, position, str(missing))
    start = cast("GtidSet", position.restart if position.restart is not None else position.executed)
    if lost := purged.without(start):
        raise OffsetExpiredError(
            f"the server has purged transactions that were not read: {_short(str(lost))}.",
            code="log_removed",
            action=RESTART_ACTION,
        )
    if facts.server == position.server and _is_there(connection, position):
        _verify_next(connection, position, ours)


def _verify_next(connection: Connection, position: Position, ours: GtidSet) -> None:
    """At our place a transaction must begin that is not ours: after a RESET the same GTIDs come again, at other places."""
    try:
        rows = rows_of(connection, f"SHOW BINLOG EVENTS IN {literal(position.file)} FROM {position.pos} LIMIT 1")
    except pymysql.err.OperationalError as error:
        if number_of(error) != _NO_EVENT:
            raise
        raise _other_history(f"no event begins at byte {position.pos} of {position.file}") from error
    for _, _, kind, _, _, info in rows:
        found = _GTID_NEXT.search(info)
        if kind not in _BETWEEN and (found is None or found[1].lower() in ours):
            raise _other_history(f"byte {position.pos} of {position.file} is not where what was read ended")


def _verify_mariadb(connection: Connection, facts: ServerFacts, position: Position) -> None:
    ((text,),) = rows_of(connection, "SELECT @@GLOBAL.gtid_binlog_pos")
    executed = GtidPosition.of(text)
    ours = cast("GtidPosition", position.executed)
    if not executed.covers(ours):
        _refuse_missing(facts, position, str(ours))
    if facts.server == position.server:
        _verify_place(connection, position)


def _verify_place(connection: Connection, position: Position) -> None:
    """On the same server the place in the file must still have our GTIDs: after RESET MASTER the same names come again."""
    if not _is_there(connection, position):
        return
    ((text,),) = rows_of(connection, "SELECT BINLOG_GTID_POS(%s, %s)", [position.file, position.pos])
    if text is None or executed_of("mariadb", text) != position.executed:
        raise _other_history(f"byte {position.pos} of {position.file} is not where {position.executed} ended")


def _is_there(connection: Connection, position: Position) -> bool:
    """Whether the file that was read last is still there; LogGapError if it never was."""
    if not position.file:
        return False
    sizes = {row[0]: int(row[1]) for row in rows_of(connection, "SHOW BINARY LOGS")}
    if position.file not in sizes:
        # Purged, which the server itself judges by GTID; but names beyond its last file are of another life.
        if file_number(position.file) > max(map(file_number, sizes), default=0):
            raise _other_history(f"its log ends before {position.file}, which was read")
        return False
    if position.pos > sizes[position.file]:
        raise _other_history(f"{position.file} ends before byte {position.pos}, up to which it was read")
    return True


def _refuse_missing(facts: ServerFacts, position: Position, missing: str) -> None:
    if facts.server == position.server:
        raise _other_history(f"it has not executed {_short(missing)}, which it did before")
    raise SourceLagsError(
        f"the server {facts.server} has not executed {_short(missing)}, which came from {position.server}: it lags behind,"
        " or has another history.",
        code="source_lags",
        action="Name a server that has caught up; if none has these transactions: " + RESTART_ACTION,
    )


def _other_history(what: str) -> LogGapError:
    return LogGapError(
        f"the server's history is not the one that was read: {what}.", code="other_history", action=RESTART_ACTION
    )


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:200] + "…"  # noqa: PLR2004 - a message's length

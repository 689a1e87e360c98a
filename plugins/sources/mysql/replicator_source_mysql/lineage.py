"""Whether the server's log joins at our position: the same history, and not purged. The server itself may be another one."""

from __future__ import annotations

import re
from typing import Final, cast

import pymysql

from replicator.model.errors import ConfigError, LogGapError, OffsetExpiredError, SourceLagsError
from replicator_source_mysql.connection import Connection, literal, rows_of
from replicator_source_mysql.errors import RESTART_ACTION, gtids_are_off, number_of
from replicator_source_mysql.filepos import FilePosition, file_number
from replicator_source_mysql.gtid import GtidPosition, GtidSet
from replicator_source_mysql.marks import log_end
from replicator_source_mysql.position import Position, executed_of
from replicator_source_mysql.server import ServerFacts
from replicator_source_mysql.watermark import end_of_log

_GTID_NEXT: Final = re.compile(r"GTID_NEXT\s*=\s*'([^']+)'")
# What may stand between transactions.
_BETWEEN: Final = frozenset({"Rotate", "Stop", "Anonymous_Gtid", "View_change"})
# What may stand where a transaction ended, by file: the above, the beginnings of the next one and of a file.
_BOUNDARY: Final = _BETWEEN | {"Gtid", "Gtid_tagged", "Format_desc", "Previous_gtids"}
_NO_EVENT: Final = 1220
GTID_ACTION: Final = "Finish the change: SET GLOBAL gtid_mode = …, step by step, to ON (or to OFF: then source.watermark_table is needed)."


def current_position(connection: Connection, facts: ServerFacts) -> Position:
    """Where the log is now: everything that is not in it comes behind it.

    MySQL: GTIDs count as executed once their transactions are visible; what is still being committed comes. MariaDB, and
    MySQL without GTIDs: the position is that of the end of the log; what lies before it and is not visible yet is waited
    for (`is_beyond`).

    Raises:
        ConfigError: There is no log, or it has transactions with and without GTIDs.
    """
    if not facts.is_on("log_bin"):
        raise ConfigError("the server has no binary log.", code="log_bin_off", action="Start it with log_bin.")
    if facts.flavor == "mysql":
        if facts.is_by_file:
            return Position.at_file(end_of_log(connection), facts.server)
        if facts.gtid_mode != "ON":
            raise ConfigError(
                f"the server's gtid_mode is {facts.gtid_mode}: its log has transactions with and without GTIDs.",
                code="gtid_mode_between",
                action=GTID_ACTION,
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
    if isinstance(position.executed, FilePosition):
        _verify_file(connection, facts, position, position.executed)
    elif facts.flavor == "mysql":
        _verify_mysql(connection, facts, position)
    else:
        _verify_mariadb(connection, facts, position)


def verify_place(connection: Connection, at: FilePosition) -> None:
    """A place that nobody has read up to: a transaction must have ended there.

    Raises:
        OffsetExpiredError: The file was purged.
        LogGapError: The place is none in this server's log, or lies within a transaction.
    """
    _verify_size(connection, at)
    try:
        rows = rows_of(connection, f"SHOW BINLOG EVENTS IN {literal(at.file)} FROM {at.pos} LIMIT 1")
    except pymysql.err.OperationalError as error:
        if number_of(error) != _NO_EVENT:
            raise
        raise other_history(f"no event begins at byte {at.pos} of {at.file}") from error
    for _, _, kind, *_ in rows:
        if kind not in _BOUNDARY:
            raise other_history(f"byte {at.pos} of {at.file} is not where a transaction ended")


def _verify_file(connection: Connection, facts: ServerFacts, position: Position, executed: FilePosition) -> None:
    """Without GTIDs only the very server will do, and the files that it had then.

    The event that was read last is compared when the log is opened there (`BinlogReader`).
    """
    if facts.server != position.server:
        raise LogGapError(
            f"the server is {facts.server}, but the log was read from {position.server}: without GTIDs a log position is valid on "
            "one server only.",
            code="other_server",
            action=f"Name the server that was read; or: {RESTART_ACTION}",
        )
    start = position.begin
    assert isinstance(start, FilePosition)
    if start.crc is None:
        verify_place(connection, start)
    else:
        _verify_size(connection, start)
    _verify_size(connection, executed)


def _verify_size(connection: Connection, at: FilePosition) -> None:
    sizes = {row[0]: int(row[1]) for row in rows_of(connection, "SHOW BINARY LOGS")}
    if at.file not in sizes:
        first = next(iter(sizes), at.file)
        if file_number(at.file) < file_number(first) and _base(at.file) == _base(first):
            raise OffsetExpiredError(
                f"the server has purged {at.file}, which was not read to its end; its log begins with {first}.",
                code="log_removed",
                action=RESTART_ACTION,
            )
        raise other_history(f"it has no file {at.file}, which was read")
    if at.pos > sizes[at.file]:
        raise other_history(f"{at.file} ends before byte {at.pos}, up to which it was read")


def _base(file: str) -> str:
    return file.rpartition(".")[0]


def _verify_mysql(connection: Connection, facts: ServerFacts, position: Position) -> None:
    if facts.gtid_mode != "ON":
        raise gtids_are_off(f"the server's gtid_mode is {facts.gtid_mode}, but the log was read with GTIDs.")
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
        raise other_history(f"no event begins at byte {position.pos} of {position.file}") from error
    for _, _, kind, _, _, info in rows:
        found = _GTID_NEXT.search(info)
        if kind not in _BETWEEN and (found is None or found[1].lower() in ours):
            raise other_history(f"byte {position.pos} of {position.file} is not where what was read ended")


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
        raise other_history(f"byte {position.pos} of {position.file} is not where {position.executed} ended")


def _is_there(connection: Connection, position: Position) -> bool:
    """Whether the file that was read last is still there; LogGapError if it never was."""
    if not position.file:
        return False
    sizes = {row[0]: int(row[1]) for row in rows_of(connection, "SHOW BINARY LOGS")}
    if position.file not in sizes:
        # Purged, which the server itself judges by GTID; but names beyond its last file are of another life.
        if file_number(position.file) > max(map(file_number, sizes), default=0):
            raise other_history(f"its log ends before {position.file}, which was read")
        return False
    if position.pos > sizes[position.file]:
        raise other_history(f"{position.file} ends before byte {position.pos}, up to which it was read")
    return True


def _refuse_missing(facts: ServerFacts, position: Position, missing: str) -> None:
    if facts.server == position.server:
        raise other_history(f"it has not executed {_short(missing)}, which it did before")
    raise SourceLagsError(
        f"the server {facts.server} has not executed {_short(missing)}, which {position.server} had: it lags behind, or has "
        "another history.",
        code="source_lags",
        action="Name a server that has caught up; if none has these transactions: " + RESTART_ACTION,
    )


def other_history(what: str) -> LogGapError:
    """What is in the server's log is not what was read."""
    return LogGapError(
        f"the server's history is not the one that was read: {what}.", code="other_history", action=RESTART_ACTION
    )


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:200] + "…"  # noqa: PLR2004 - a message's length

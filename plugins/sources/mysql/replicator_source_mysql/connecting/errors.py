"""Translation of PyMySQL's errors to ours: by number, never by wording where a number exists."""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence
from typing import Final

import pymysql

from replicator.model.errors import (
    AccessDeniedError,
    FatalError,
    LogGapError,
    OffsetExpiredError,
    ReplicatorError,
    SchemaConflictError,
    SourceUnavailableError,
    TableError,
)
from replicator.model.schema import TableId

RESTART_ACTION: Final = (
    "Run `replicator snapshot NAME --changed-only`. It starts at a new log position, and reads only the rows again that differ. "
    "With --restart, it takes new snapshots of all tables instead."
)

# Number → our code: what may pass by itself.
_TRANSIENT: Final = {
    1021: "source_out_of_resources",
    1037: "source_out_of_resources",
    1038: "source_out_of_resources",
    1041: "source_out_of_resources",
    1114: "source_out_of_resources",
    1040: "too_many_connections",
    1053: "source_shutdown",
    1077: "source_shutdown",
    1180: "source_unavailable",
    1203: "too_many_connections",
    1205: "lock_timeout",
    1213: "deadlock",
    1290: "source_read_only",
    1317: "statement_interrupted",
    1412: "table_changed_under_snapshot",
    1613: "source_unavailable",
    1927: "connection_killed",
    1969: "statement_timeout",
    2002: "source_unavailable",
    2003: "source_unavailable",
    2005: "source_unavailable",
    2006: "source_unavailable",
    2013: "source_unavailable",
    2014: "source_unavailable",
    2026: "tls_refused",
    3024: "statement_timeout",
    4031: "source_unavailable",
    4052: "server_id_taken",
}
_ACCOUNT_REFUSED: Final = frozenset({1045, 1698, 1820, 1862, 3118})
_ACCESS_DENIED: Final = _ACCOUNT_REFUSED | {1044, 1095, 1142, 1143, 1227, 1370, 1396, 1410}
_CHECK_ACCOUNT: Final = (
    "Check source.user and source.password. Check that the account may connect from here, and is not locked."
)
_GRANT: Final = "Grant the privilege that the message names. docs/sources/mysql.md lists all that are needed."
_NO_SERVER: Final = frozenset({2002, 2003, 2005})
_CHECK_SERVER: Final = "Check that the server runs, and that source.host and source.port are right."
# A table, or one of its columns, is missing or another: it concerns this table only.
# 1176: its key was dropped, or a view has its name (`ReadPlan.source`).
_TABLE_CHANGED: Final = frozenset({1049, 1051, 1054, 1146, 1176, 1347, 1356})
# Of those that deny access: what is about the privileges on one table, and not about the account.
_TABLE_DENIED: Final = frozenset({1044, 1142, 1143, 1370})
# A row, or a value, is more than the server's max_allowed_packet.
_PACKET_TOO_LARGE: Final = frozenset({1153, 1162, 1301})
RAISE_PACKET: Final = "Raise max_allowed_packet on the server, to 1G at most."
PACKET_TOO_LARGE: Final = "max_allowed_packet"
# Measured on MySQL 9.7 and MariaDB 10.11: the server's max_allowed_packet does not bound what it sends of its log, 1 GiB does.
_BEHIND_EVENT: Final = (
    "No server sends an event of more than 1 GiB, whatever its max_allowed_packet is. Write less into one row; an UPDATE logs it"
    f" twice. To continue after the event: {RESTART_ACTION}"
)
_TIMED_OUT: Final = frozenset({1969, 3024})
_UNTRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"
# The log is not there any more, or does not join: only the text of 1236 says which.
_LOG_ERROR: Final = frozenset({1236, 1789, 1371, 1373})
_PURGED: Final = ("purged", "could not find first log file", "could not find gtid state", "missing")
_WITHOUT_GTIDS: Final = ("auto_position", "anonymous transaction")
_TOO_LARGE: Final = "max_allowed_packet"
_SAME_ID: Final = ("same server_uuid", "same server_id")
# What these say in quotes may be a value.
_NUMBERS_WITH_VALUES: Final = frozenset({1062, 1264, 1265, 1292, 1366, 1406, 1411, 1525})
_QUOTED: Final = re.compile(r"['\"`].*['\"`]", re.DOTALL)


def number_of(error: BaseException) -> int | None:
    """The server's or the client's error number, if it has one."""
    first = error.args[0] if error.args else None
    return first if isinstance(first, int) else None


def translate(error: Exception, *, doing: str, table: str | None = None) -> ReplicatorError:
    """The error of ours that says who acts.

    Args:
        error: From PyMySQL or the socket.
        doing: The attempted action, for the message.
        table: The table that was being read; errors about missing tables and columns then concern it alone.
    """
    number = number_of(error)
    message = f"{doing}: {facts_of(error)}"
    if _UNTRUSTED in str(error) or isinstance(error, ssl.SSLCertVerificationError):
        return AccessDeniedError(
            message,
            code="tls_untrusted",
            action="Set `source.tls_ca` to the authority of the server's certificate, or choose another `source.tls`.",
        )
    if number in _ACCESS_DENIED:
        return AccessDeniedError(
            message,
            code="access_denied",
            table=table if number in _TABLE_DENIED else None,
            action=_CHECK_ACCOUNT if number in _ACCOUNT_REFUSED else _GRANT,
        )
    if table is not None and number in _TABLE_CHANGED:
        return SchemaConflictError(message, code="table_changed", table=table)
    if number in _TIMED_OUT:
        action = "Raise source.statement_timeout" + (", or lower snapshot.chunk_rows." if table is not None else ".")
        return SourceUnavailableError(message, code=_TRANSIENT[number], table=table, action=action)
    if number in _TRANSIENT:
        action_of = _CHECK_SERVER if number in _NO_SERVER else None
        return SourceUnavailableError(message, code=_TRANSIENT[number], table=table, action=action_of)
    if isinstance(error, OSError | pymysql.err.InterfaceError):
        return SourceUnavailableError(message, code="source_unavailable", table=table)
    return _final(message, number, table)


def _final(message: str, number: int | None, table: str | None) -> ReplicatorError:
    """The error for a condition that does not pass by itself: of the table that was being read, if there is one."""
    then = "Then run `replicator snapshot NAME TABLE`."
    if number in _PACKET_TOO_LARGE:
        if table is None:
            return FatalError(message, code=PACKET_TOO_LARGE, action=RAISE_PACKET)
        return TableError(message, code=PACKET_TOO_LARGE, table=table, action=f"{RAISE_PACKET} {then}")
    if table is None:
        return FatalError(message, code="source_error")
    return TableError(message, code="source_error", table=table, action=f"Fix it on the server. {then}")


def translate_log(number: int, text: str, *, doing: str) -> ReplicatorError:
    """Translate an error that the server sends instead of an event; otherwise as `translate`."""
    message = f"{doing}: ({number}) {text}"
    lowered = text.lower()
    if number in _LOG_ERROR:
        if _TOO_LARGE in lowered:
            return FatalError(message, code=PACKET_TOO_LARGE, action=_BEHIND_EVENT)
        if any(word in lowered for word in _WITHOUT_GTIDS):
            return gtids_are_off(message)
        if any(word in lowered for word in _SAME_ID):
            return SourceUnavailableError(message, code="server_id_taken")
        if any(word in lowered for word in _PURGED):
            return OffsetExpiredError(message, code="log_removed", action=RESTART_ACTION)
        return LogGapError(message, code="other_history", action=RESTART_ACTION)
    return translate(pymysql.err.OperationalError(number, text), doing=doing)


def event_too_large(error: FatalError, transaction: str, tables: Sequence[TableId]) -> FatalError:
    """The server's error with what is known of the event that it does not send: the log cannot be read past it, for no table.

    Args:
        error: The server's answer.
        transaction: The event's transaction.
        tables: Tables of one of which it has rows; empty if it is none of rows.
    """
    rows = f"rows of {' or '.join(map(str, tables))}" if tables else "no rows, or compressed ones,"
    message = f"{error.message} The event has more than 1 GiB and {rows} in the transaction {transaction}."
    return FatalError(message, code=PACKET_TOO_LARGE, action=error.action)


def gtids_are_off(message: str) -> LogGapError:
    """The error for GTIDs that were on when the replicator began, and are off now."""
    return LogGapError(
        message,
        code="gtid_off",
        action=f"Switch gtid_mode to ON again. If transactions were committed without GTIDs meanwhile: {RESTART_ACTION}",
    )


def facts_of(error: Exception) -> str:
    """The server's own words and number, without values."""
    number = number_of(error)
    if number is None:
        return " ".join(str(error).split()) or type(error).__name__
    text = str(error.args[1]) if len(error.args) > 1 else ""
    if number in _NUMBERS_WITH_VALUES:
        text = _QUOTED.sub("…", text)
    return f"({number}) {text}"

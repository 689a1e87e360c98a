"""Translation of PyMySQL's errors to ours: by number, never by wording where a number exists."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping, Sequence
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
from replicator.model.rules import Rule, capital, sources
from replicator.model.schema import TableId
from replicator_source_mysql import rules

# Number → our rule: what may pass by itself.
_TRANSIENT: Final[Mapping[int, Rule]] = {
    1021: sources.SOURCE_OUT_OF_RESOURCES,
    1037: sources.SOURCE_OUT_OF_RESOURCES,
    1038: sources.SOURCE_OUT_OF_RESOURCES,
    1041: sources.SOURCE_OUT_OF_RESOURCES,
    1114: sources.SOURCE_OUT_OF_RESOURCES,
    1040: sources.TOO_MANY_CONNECTIONS,
    1053: sources.SOURCE_SHUTDOWN,
    1077: sources.SOURCE_SHUTDOWN,
    1180: sources.SOURCE_UNAVAILABLE,
    1203: sources.TOO_MANY_CONNECTIONS,
    1205: sources.LOCK_TIMEOUT,
    1213: sources.DEADLOCK,
    1290: sources.SOURCE_READ_ONLY,
    1317: sources.STATEMENT_INTERRUPTED,
    1412: sources.TABLE_CHANGED_UNDER_SNAPSHOT,
    1613: sources.SOURCE_UNAVAILABLE,
    1927: sources.CONNECTION_KILLED,
    1969: sources.STATEMENT_TIMEOUT,
    2002: sources.SOURCE_UNAVAILABLE,
    2003: sources.SOURCE_UNAVAILABLE,
    2005: sources.SOURCE_UNAVAILABLE,
    2006: sources.SOURCE_UNAVAILABLE,
    2013: sources.SOURCE_UNAVAILABLE,
    2014: sources.SOURCE_UNAVAILABLE,
    2026: rules.TLS_REFUSED,
    3024: sources.STATEMENT_TIMEOUT,
    4031: sources.SOURCE_UNAVAILABLE,
    4052: rules.SERVER_ID_TAKEN,
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
PACKET_TOO_LARGE: Final = rules.PACKET_TOO_LARGE.code
_TIMED_OUT: Final = frozenset({1969, 3024})
_UNTRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"
# The log is not there any more, or does not join: only the text of 1236 says which.
_LOG_ERROR: Final = frozenset({1236, 1789, 1371, 1373})
_PURGED: Final = ("purged", "could not find first log file", "could not find gtid state", "missing")
_WITHOUT_GTIDS: Final = ("auto_position", "anonymous transaction")
_TOO_LARGE: Final = rules.PACKET_TOO_LARGE.code
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
    message = f"{capital(doing)}: {facts_of(error)}"
    if _UNTRUSTED in str(error) or isinstance(error, ssl.SSLCertVerificationError):
        return rules.TLS_UNTRUSTED.error(AccessDeniedError, message=message)
    if number in _ACCESS_DENIED:
        return rules.ACCESS_DENIED.error(
            AccessDeniedError,
            table=table if number in _TABLE_DENIED else None,
            message=message,
            action=_CHECK_ACCOUNT if number in _ACCOUNT_REFUSED else _GRANT,
        )
    if table is not None and number in _TABLE_CHANGED:
        return rules.TABLE_CHANGED.error(SchemaConflictError, table=table, message=message)
    if number is not None and number in _TIMED_OUT:
        action = "Raise source.statement_timeout" + (", or lower snapshot.chunk_rows." if table is not None else ".")
        return _TRANSIENT[number].error(SourceUnavailableError, table=table, message=message, action=action)
    if number is not None and number in _TRANSIENT:
        action_of = _CHECK_SERVER if number in _NO_SERVER else None
        return _TRANSIENT[number].error(SourceUnavailableError, table=table, message=message, action=action_of)
    if isinstance(error, OSError | pymysql.err.InterfaceError):
        return rules.CONNECTION_LOST.error(SourceUnavailableError, table=table, message=message)
    return _final(message, number, table)


def _final(message: str, number: int | None, table: str | None) -> ReplicatorError:
    """The error for a condition that does not pass by itself: of the table that was being read, if there is one."""
    then = "Then run `replicator snapshot NAME TABLE`."
    if number in _PACKET_TOO_LARGE:
        if table is None:
            return rules.PACKET_TOO_LARGE.error(FatalError, message=message)
        return rules.PACKET_OF_TABLE_TOO_LARGE.error(TableError, table=table, message=message, then=then)
    if table is None:
        return rules.STATEMENT_FAILED.error(FatalError, message=message)
    return rules.STATEMENT_FAILED_FOR_TABLE.error(TableError, table=table, message=message, then=then)


def translate_log(number: int, text: str, *, doing: str) -> ReplicatorError:
    """Translate an error that the server sends instead of an event; otherwise as `translate`."""
    message = f"{capital(doing)}: ({number}) {text}"
    lowered = text.lower()
    if number in _LOG_ERROR:
        if _TOO_LARGE in lowered:
            return rules.EVENT_TOO_LARGE.error(FatalError, message=message)
        if any(word in lowered for word in _WITHOUT_GTIDS):
            return gtids_are_off(message)
        if any(word in lowered for word in _SAME_ID):
            return rules.SERVER_ID_TAKEN.error(SourceUnavailableError, message=message)
        if any(word in lowered for word in _PURGED):
            return rules.LOG_NOT_SENT.error(OffsetExpiredError, message=message)
        return rules.POSITION_UNKNOWN.error(LogGapError, message=message)
    return translate(pymysql.err.OperationalError(number, text), doing=doing)


def event_too_large(error: FatalError, transaction: str, tables: Sequence[TableId]) -> FatalError:
    """The server's error with what is known of the event that it does not send: the log cannot be read past it, for no table.

    Args:
        error: The server's answer.
        transaction: The event's transaction.
        tables: Tables of one of which it has rows; empty if it is none of rows.
    """
    rows = f"rows of {' or '.join(map(str, tables))}" if tables else "no rows, or compressed ones,"
    return rules.EVENT_OF_TABLES_TOO_LARGE.error(
        FatalError, message=error.message, rows=rows, transaction=transaction, action=error.action
    )


def gtids_are_off(message: str) -> LogGapError:
    """The error for GTIDs that were on when the replicator began, and are off now."""
    return rules.GTID_OFF.error(LogGapError, message=message)


def facts_of(error: Exception) -> str:
    """The server's own words and number, without values."""
    number = number_of(error)
    if number is None:
        return " ".join(str(error).split()) or type(error).__name__
    text = str(error.args[1]) if len(error.args) > 1 else ""
    if number in _NUMBERS_WITH_VALUES:
        text = _QUOTED.sub("…", text)
    return f"({number}) {text}"

"""Where PyMySQL's errors become ours: by number, never by wording where a number exists."""

from __future__ import annotations

import ssl
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
)

RESTART_ACTION: Final = (
    "Run `replicator snapshot NAME --restart`: a new place in the log, and a new snapshot of every table, in place."
)

# Number → our code: what may pass by itself.
_TRANSIENT: Final = {
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
_ACCESS_DENIED: Final = frozenset({1044, 1045, 1095, 1142, 1143, 1227, 1370, 1396, 1410, 1698, 1820, 1862, 3118})
# A table, or one of its columns, is gone or another: it concerns this table only.
_TABLE_CHANGED: Final = frozenset({1049, 1051, 1054, 1146, 1347, 1356})
_UNTRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"
# The log is not there any more, or does not join: only the text of 1236 says which.
_LOG_ERROR: Final = frozenset({1236, 1789, 1371, 1373})
_PURGED: Final = ("purged", "could not find first log file", "could not find gtid state", "missing")
_WITHOUT_GTIDS: Final = ("auto_position", "anonymous transaction")
_TOO_LARGE: Final = "max_allowed_packet"
_NUMBERS_WITH_VALUES: Final = frozenset({1062, 1264, 1292, 1366, 1406})


def number_of(error: BaseException) -> int | None:
    """The server's or the client's error number, if it has one."""
    first = error.args[0] if error.args else None
    return first if isinstance(first, int) else None


def translate(error: Exception, *, doing: str, table: str | None = None) -> ReplicatorError:
    """The error of ours that says who acts.

    Args:
        error: From PyMySQL or the socket.
        doing: What was attempted, for the message.
        table: The table that was being read; errors about missing tables and columns then concern it alone.
    """
    number = number_of(error)
    message = f"{doing}: {_facts(error)}"
    if _UNTRUSTED in str(error) or isinstance(error, ssl.SSLCertVerificationError):
        return AccessDeniedError(
            message,
            code="tls_untrusted",
            action="Name the authority of the server's certificate under `source.tls_ca`, or another mode under `source.tls`.",
        )
    if number in _ACCESS_DENIED:
        return AccessDeniedError(
            message,
            code="access_denied",
            table=table,
            action="Grant the privilege or mend the credential; `replicator validate` names it.",
        )
    if table is not None and number in _TABLE_CHANGED:
        return SchemaConflictError(message, code="table_changed", table=table)
    if number in _TRANSIENT:
        return SourceUnavailableError(message, code=_TRANSIENT[number], table=table)
    if isinstance(error, OSError | pymysql.err.InterfaceError):
        return SourceUnavailableError(message, code="source_unavailable", table=table)
    return FatalError(message, code="source_error", table=table)


def translate_log(number: int, text: str, *, doing: str) -> ReplicatorError:
    """As `translate`, for an error that the server sends instead of an event."""
    message = f"{doing}: ({number}) {text}"
    lowered = text.lower()
    if number in _LOG_ERROR:
        if _TOO_LARGE in lowered:
            return FatalError(
                message, code="max_allowed_packet", action="Raise max_allowed_packet on the server, to 1G at most."
            )
        if any(word in lowered for word in _WITHOUT_GTIDS):
            return gtids_are_off(message)
        if any(word in lowered for word in _PURGED):
            return OffsetExpiredError(message, code="log_removed", action=RESTART_ACTION)
        return LogGapError(message, code="other_history", action=RESTART_ACTION)
    return translate(pymysql.err.OperationalError(number, text), doing=doing)


def gtids_are_off(message: str) -> LogGapError:
    """GTIDs were on when the replicator began, and are not any more."""
    return LogGapError(
        message,
        code="gtid_off",
        action=f"Switch gtid_mode to ON again. If transactions were committed without GTIDs meanwhile: {RESTART_ACTION}",
    )


def _facts(error: Exception) -> str:
    number = number_of(error)
    if number in _NUMBERS_WITH_VALUES:
        return f"error {number}"
    if number is not None:
        return f"({number}) {error.args[1] if len(error.args) > 1 else ''}"
    return " ".join(str(error).split()) or type(error).__name__

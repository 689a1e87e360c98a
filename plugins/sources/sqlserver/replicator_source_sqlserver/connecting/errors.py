"""Translation of the driver's errors into ours: by SQL Server's own number, never by wording, which is in the server's language."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from replicator.model.errors import (
    AccessDeniedError,
    FatalError,
    ReplicatorError,
    SchemaConflictError,
    SourceUnavailableError,
    TableError,
    UnsupportedTypeError,
)
from replicator.plugins.kit.relational import TlsMode

# SQL Server's number → our code: errors that may pass by themselves.
_TRANSIENT: Final = {
    -2: "statement_timeout",
    596: "connection_killed",
    601: "source_unavailable",
    701: "source_out_of_resources",
    802: "source_out_of_resources",
    921: "source_unavailable",
    922: "source_unavailable",
    923: "source_unavailable",
    924: "source_unavailable",
    945: "source_unavailable",
    976: "source_unavailable",
    978: "source_unavailable",
    983: "source_unavailable",
    1204: "source_out_of_resources",
    1205: "deadlock",
    1221: "lock_timeout",
    1222: "lock_timeout",
    # SNAPSHOT transactions are not allowed, not yet, or not any more.
    3952: "snapshot_isolation_off",
    3956: "snapshot_isolation_off",
    3957: "snapshot_isolation_off",
    3960: "table_changed_under_snapshot",
    3961: "table_changed_under_snapshot",
    3966: "source_out_of_resources",
    6005: "source_shutdown",
    8645: "source_out_of_resources",
    8651: "source_out_of_resources",
    9002: "source_out_of_resources",
    10053: "source_unavailable",
    10054: "source_unavailable",
    10060: "source_unavailable",
    10928: "too_many_connections",
    10929: "too_many_connections",
    17830: "source_unavailable",
    17809: "too_many_connections",
    18401: "source_unavailable",
    18451: "source_shutdown",
    # FreeTDS's own numbers: reading and writing failed, no connection, the server ended it, nonsense came, it is lost.
    20004: "source_unavailable",
    20006: "source_unavailable",
    20009: "source_unavailable",
    20017: "source_unavailable",
    20020: "source_unavailable",
    20047: "source_unavailable",
    40197: "source_unavailable",
    40501: "source_unavailable",
    40613: "source_unavailable",
    49918: "source_out_of_resources",
    49919: "source_out_of_resources",
    49920: "source_out_of_resources",
}
_ACCOUNT_REFUSED: Final = frozenset({4060, 4064, 18452, 18456, 18486, 18487, 18488, 40532})
DENIED: Final = frozenset({229, 230, 262, 297, 300, 371, 15247, 22904})
"""Errors of a missing permission."""
# There is no such object, or no such database, for this account: also said of those that it may not see.
# 40515: Azure SQL Database, of what is in another database.
_UNSEEN: Final = frozenset({208, 911, 916, 40515})
TABLE_CHANGED: Final = frozenset({207, 208, 4413, 4502})
"""Errors of a table, or one of its columns, that is missing or another."""
_BLOCKED: Final = frozenset({1205, 1222})
NO_SUCH_VALUE: Final = frozenset({220, 235, 241, 242, 244, 245, 248, 293, 295, 6522, 8114, 8115, 8169})
"""Errors of a text that is no value of the type that it is cast to. 6522: of a type of .NET."""
_CHECK_ACCOUNT: Final = "Check source.user, source.password and source.database, and that the account is not locked."
_GRANT: Final = "Grant the permission that the message names. docs/sources/sqlserver.md lists all that are needed."
# FreeTDS's: nothing answers there.
_NO_SERVER: Final = 20009
_CHECK_SERVER: Final = "Check that the server runs, and that source.host and source.port are right."
_TLS_NEEDS: Final[Mapping[TlsMode, str]] = {
    "require": "that the server offers TLS",
    "verify-ca": "that the server offers TLS, and that source.tls_ca has the authority of its certificate",
    "verify-full": "that the server offers TLS, that source.tls_ca (without it: the system) has the authority of its certificate, and"
    " that the certificate is for the name in source.host",
}
NO_DRIVER: Final = (
    "Install FreeTDS (Debian, Ubuntu: `apt-get install tdsodbc unixodbc`), or Microsoft's driver from Microsoft's own package"
    " repository (`ACCEPT_EULA=Y apt-get install msodbcsql18`). Then name it in `source.driver`: `FreeTDS` or `ODBC Driver 18 for"
    " SQL Server`."
)
# States of ODBC, for what no server has said.
_NO_SUCH_DRIVER: Final = frozenset({"IM002", "IM003", "IM004", "01000"})
# FreeTDS says HY000 without a number of a connection that is lost.
_CONNECTION_STATES: Final = ("08", "HY106", "HY000")
_CONNECTING: Final = "(SQLDriverConnect)"
# No connection. FreeTDS says it of an unknown host and of whatever is wrong about TLS; of a port where nothing answers it has 08S01.
_NOT_CONNECTED: Final = "08001"
CANCELLED: Final = "HY008"
"""The state of a statement that was cancelled from our side."""
_TIME_STATES: Final = ("HYT",)
_NUMBER: Final = re.compile(r"\((-?\d+)\)(?: \(SQL\w+\)|$)")
# From the first to the last one: a value may have a quotation mark itself.
_QUOTED: Final = re.compile(r"['\"].*['\"]", re.DOTALL)
# What these say in quotes may be a value.
_NUMBERS_WITH_VALUES: Final = frozenset({220, 241, 242, 244, 245, 248, 2601, 2627, 2628, 6522, 8114, 8115, 8152})


def number_of(error: BaseException) -> int | None:
    """Return SQL Server's number of an error; None where only the driver has spoken.

    Both drivers write `[state] [maker][…]text (number) (function)`, several times if the server had more to say. The first is the cause.
    """
    found = _NUMBER.search(_text_of(error))
    number = int(found[1]) if found else 0
    return number if number not in (0, -1) else None


def state_of(error: BaseException) -> str:
    """Return ODBC's state of five characters; empty if there is none."""
    first = error.args[0] if error.args else ""
    return first if isinstance(first, str) else ""


def is_unknowable(error: BaseException) -> bool:
    """Return whether the server says that our account may not know something, or that there is no such thing to ask."""
    return number_of(error) in DENIED | _UNSEEN


def is_blocked(error: BaseException) -> bool:
    """Return whether a statement gave up on a lock: it waited for too long, or was the victim of a deadlock."""
    return number_of(error) in _BLOCKED


def translate_connect(error: Exception, *, doing: str, tls: TlsMode) -> ReplicatorError:
    """Translate as `translate` does, where a connection was opened. `tls`: the configured mode, which may be what failed."""
    needs = _TLS_NEEDS.get(tls)
    if needs is None or state_of(error) != _NOT_CONNECTED or _CONNECTING not in _text_of(error):
        return translate(error, doing=doing)
    action = f"{_CHECK_SERVER} It may also be TLS: check {needs}, as `source.tls: {tls}` demands."
    return SourceUnavailableError(f"{doing}: {facts_of(error)}", code="source_unavailable", action=action)


def translate(error: Exception, *, doing: str, table: str | None = None) -> ReplicatorError:
    """Return the error of ours that says who acts.

    Args:
        error: From pyodbc: one of its own, or that a text which came is none.
        doing: The operation that was attempted, for the message.
        table: The table that was being read; errors about missing tables and columns then concern it alone.
    """
    if isinstance(error, UnicodeDecodeError):
        return _no_text(doing, table)
    message = f"{doing}: {facts_of(error)}"
    number = number_of(error)
    # HY000 is anything; where a server has given a number, the state says no more.
    state = "" if number is not None and state_of(error) == "HY000" else state_of(error)
    is_connecting = _CONNECTING in _text_of(error)
    found = _of_number(number, message, table) or _of_state(state, message, table, is_connecting=is_connecting)
    if found is not None:
        return found
    if table is None:
        return FatalError(message, code="source_error")
    action = "Fix it on the server. Then run `replicator snapshot NAME TABLE`."
    return TableError(message, code="source_error", table=table, action=action)


def _no_text(doing: str, table: str | None) -> ReplicatorError:
    """The error of a text that is no text. The driver's error has the value in its attributes: nothing of them is told."""
    message = (
        f"{doing}: a text is not valid UTF-16. Columns of nvarchar, nchar and ntext may hold half of a surrogate pair."
    )
    action = "Fix the values, or exclude the table."
    if table is None:
        return FatalError(message, code="source_error")
    return UnsupportedTypeError(message, code="unrepresentable_value", table=table, action=action)


def _of_number(number: int | None, message: str, table: str | None) -> ReplicatorError | None:
    if number in _ACCOUNT_REFUSED:
        return AccessDeniedError(message, code="access_denied", action=_CHECK_ACCOUNT)
    if number in DENIED:
        return AccessDeniedError(message, code="access_denied", table=table, action=_GRANT)
    if number in TABLE_CHANGED and table is not None:
        return SchemaConflictError(message, code="table_changed", table=table)
    if number is not None and number in _TRANSIENT:
        action = _CHECK_SERVER if number == _NO_SERVER else None
        return SourceUnavailableError(message, code=_TRANSIENT[number], table=table, action=action)
    return None


def _of_state(state: str, message: str, table: str | None, *, is_connecting: bool) -> ReplicatorError | None:
    if state in _NO_SUCH_DRIVER:
        return FatalError(message, code="driver_missing", action=NO_DRIVER)
    if state == CANCELLED:
        return SourceUnavailableError(message, code="statement_interrupted", table=table)
    if state.startswith(_TIME_STATES) and not is_connecting:
        action = "Raise source.statement_timeout" + (", or lower snapshot.chunk_rows." if table is not None else ".")
        return SourceUnavailableError(message, code="statement_timeout", table=table, action=action)
    if state.startswith((*_CONNECTION_STATES, *_TIME_STATES)):
        return SourceUnavailableError(message, code="source_unavailable", table=table, action=_CHECK_SERVER)
    return None


def facts_of(error: BaseException) -> str:
    """Return the server's own words and number, without values."""
    text = " ".join(_text_of(error).split()) or type(error).__name__
    return _QUOTED.sub("…", text) if number_of(error) in _NUMBERS_WITH_VALUES else text


def _text_of(error: BaseException) -> str:
    return str(error.args[1]) if len(error.args) > 1 else str(error)

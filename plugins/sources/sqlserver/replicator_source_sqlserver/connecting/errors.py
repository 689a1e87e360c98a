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
from replicator.model.rules import Rule, capital, sources
from replicator.plugins.kit.relational import TlsMode
from replicator_source_sqlserver import rules

# SQL Server's number → our rule: errors that may pass by themselves.
_TRANSIENT: Final[Mapping[int, Rule]] = {
    -2: sources.STATEMENT_TIMEOUT,
    596: sources.CONNECTION_KILLED,
    601: sources.SOURCE_UNAVAILABLE,
    701: sources.SOURCE_OUT_OF_RESOURCES,
    802: sources.SOURCE_OUT_OF_RESOURCES,
    921: sources.SOURCE_UNAVAILABLE,
    922: sources.SOURCE_UNAVAILABLE,
    923: sources.SOURCE_UNAVAILABLE,
    924: sources.SOURCE_UNAVAILABLE,
    945: sources.SOURCE_UNAVAILABLE,
    976: sources.SOURCE_UNAVAILABLE,
    978: sources.SOURCE_UNAVAILABLE,
    983: sources.SOURCE_UNAVAILABLE,
    1204: sources.SOURCE_OUT_OF_RESOURCES,
    1205: sources.DEADLOCK,
    1221: sources.LOCK_TIMEOUT,
    1222: sources.LOCK_TIMEOUT,
    # SNAPSHOT transactions are not allowed, not yet, or not any more.
    3952: rules.SNAPSHOT_ISOLATION_LOST,
    3956: rules.SNAPSHOT_ISOLATION_LOST,
    3957: rules.SNAPSHOT_ISOLATION_LOST,
    3960: sources.TABLE_CHANGED_UNDER_SNAPSHOT,
    3961: sources.TABLE_CHANGED_UNDER_SNAPSHOT,
    3966: sources.SOURCE_OUT_OF_RESOURCES,
    6005: sources.SOURCE_SHUTDOWN,
    8645: sources.SOURCE_OUT_OF_RESOURCES,
    8651: sources.SOURCE_OUT_OF_RESOURCES,
    9002: sources.SOURCE_OUT_OF_RESOURCES,
    10053: sources.SOURCE_UNAVAILABLE,
    10054: sources.SOURCE_UNAVAILABLE,
    10060: sources.SOURCE_UNAVAILABLE,
    10928: sources.TOO_MANY_CONNECTIONS,
    10929: sources.TOO_MANY_CONNECTIONS,
    17830: sources.SOURCE_UNAVAILABLE,
    17809: sources.TOO_MANY_CONNECTIONS,
    18401: sources.SOURCE_UNAVAILABLE,
    18451: sources.SOURCE_SHUTDOWN,
    # FreeTDS's own numbers: reading and writing failed, no connection, the server ended it, nonsense came, it is lost.
    20004: sources.SOURCE_UNAVAILABLE,
    20006: sources.SOURCE_UNAVAILABLE,
    20009: sources.SOURCE_UNAVAILABLE,
    20017: sources.SOURCE_UNAVAILABLE,
    20020: sources.SOURCE_UNAVAILABLE,
    20047: sources.SOURCE_UNAVAILABLE,
    40197: sources.SOURCE_UNAVAILABLE,
    40501: sources.SOURCE_UNAVAILABLE,
    40613: sources.SOURCE_UNAVAILABLE,
    49918: sources.SOURCE_OUT_OF_RESOURCES,
    49919: sources.SOURCE_OUT_OF_RESOURCES,
    49920: sources.SOURCE_OUT_OF_RESOURCES,
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
# FreeTDS's: nothing answers there.
_NO_SERVER: Final = 20009
_TLS_NEEDS: Final[Mapping[TlsMode, str]] = {
    "require": "that the server offers TLS",
    "verify-ca": "that the server offers TLS, and that source.tls_ca has the authority of its certificate",
    "verify-full": "that the server offers TLS, that source.tls_ca (without it: the system) has the authority of its certificate, and"
    " that the certificate is for the name in source.host",
}
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
    return rules.NO_ANSWER.error(
        SourceUnavailableError, doing=capital(doing), facts=facts_of(error), needs=needs, tls=tls
    )


def translate(error: Exception, *, doing: str, table: str | None = None) -> ReplicatorError:
    """Return the error of ours that says who acts.

    Args:
        error: From pyodbc: one of its own, or that a text which came is none.
        doing: The operation that was attempted, for the message.
        table: The table that was being read; errors about missing tables and columns then concern it alone.
    """
    if isinstance(error, UnicodeDecodeError):
        return _no_text(doing, table)
    message = f"{capital(doing)}: {facts_of(error)}"
    number = number_of(error)
    # HY000 is anything; where a server has given a number, the state says no more.
    state = "" if number is not None and state_of(error) == "HY000" else state_of(error)
    is_connecting = _CONNECTING in _text_of(error)
    found = _of_number(number, message, table) or _of_state(state, message, table, is_connecting=is_connecting)
    if found is not None:
        return found
    if table is None:
        return rules.STATEMENT_FAILED.error(FatalError, message=message)
    return rules.STATEMENT_FAILED_FOR_TABLE.error(TableError, table=table, message=message)


def _no_text(doing: str, table: str | None) -> ReplicatorError:
    """The error of a text that is no text. The driver's error has the value in its attributes: nothing of them is told."""
    message = f"{capital(doing)}: a text is not valid UTF-16. Columns of nvarchar, nchar and ntext may hold half of a surrogate pair."
    if table is None:
        return rules.STATEMENT_FAILED.error(FatalError, message=message)
    return rules.INVALID_TEXT_IN_TABLE.error(UnsupportedTypeError, table=table, message=message)


def _of_number(number: int | None, message: str, table: str | None) -> ReplicatorError | None:
    if number in _ACCOUNT_REFUSED:
        return rules.ACCOUNT_DENIED.error(AccessDeniedError, message=message)
    if number in DENIED:
        return rules.PRIVILEGE_DENIED.error(AccessDeniedError, table=table, message=message)
    if number in TABLE_CHANGED and table is not None:
        return rules.TABLE_CHANGED.error(SchemaConflictError, table=table, message=message)
    if number is not None and number in _TRANSIENT:
        action = rules.CHECK_SERVER if number == _NO_SERVER else None
        return _TRANSIENT[number].error(SourceUnavailableError, table=table, message=message, action=action)
    return None


def _of_state(state: str, message: str, table: str | None, *, is_connecting: bool) -> ReplicatorError | None:
    if state in _NO_SUCH_DRIVER:
        return rules.DRIVER_NOT_LOADED.error(FatalError, message=message)
    if state == CANCELLED:
        return rules.STATEMENT_INTERRUPTED.error(SourceUnavailableError, table=table, message=message)
    if state.startswith(_TIME_STATES) and not is_connecting:
        return rules.STATEMENT_TIMEOUT.error(
            SourceUnavailableError,
            table=table,
            message=message,
            fact=", or lower snapshot.chunk_rows." if table is not None else ".",
        )
    if state.startswith((*_CONNECTION_STATES, *_TIME_STATES)):
        return rules.CONNECTION_LOST.error(SourceUnavailableError, table=table, message=message)
    return None


def facts_of(error: BaseException) -> str:
    """Return the server's own words and number, without values."""
    text = " ".join(_text_of(error).split()) or type(error).__name__
    return _QUOTED.sub("…", text) if number_of(error) in _NUMBERS_WITH_VALUES else text


def _text_of(error: BaseException) -> str:
    return str(error.args[1]) if len(error.args) > 1 else str(error)

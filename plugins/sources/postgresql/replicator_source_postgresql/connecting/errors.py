"""Translation of psycopg's errors into ours: by SQLSTATE, never by wording where a code exists.

The server's own words and its SQLSTATE are always passed on; of the classes whose messages quote values, the quoted parts are hidden.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping, Sequence
from typing import Final

import psycopg

from replicator.model.errors import (
    AccessDeniedError,
    ConfigError,
    FatalError,
    LogGapError,
    OffsetExpiredError,
    ReplicatorError,
    SchemaConflictError,
    SourceUnavailableError,
    TableError,
)
from replicator.model.schema import TableId
from replicator.plugins import get_logger

_log = get_logger(__name__)

RESTART_ACTION: Final = (
    "Run `replicator snapshot NAME --changed-only`. It starts at a new log position, and reads only the rows again that differ. "
    "With --restart, it takes new snapshots of all tables instead."
)
ROW_TOO_LARGE: Final = "row_too_large"

# Messages of these classes may quote values of rows; those of P0 are an application's own words.
_CLASSES_WITH_VALUES: Final = ("21", "22", "23", "44")
_CLASS_OF_APPLICATIONS: Final = "P0"
_QUOTED: Final = re.compile(r'["\'«„“].*["\'»”“]', re.DOTALL)
# The server refuses to make a text of 1 GB or more.
_TOO_LARGE: Final = re.compile(
    r"invalid memory alloc request size|string buffer exceeds|cannot enlarge string buffer", re.IGNORECASE
)
# An expression is spelled with what the catalogue has by now: a function or type of it may be dropped since the statement began.
_DROPPED_SINCE: Final = "cache lookup failed for "
_POSITION: Final = re.compile(r"\b([0-9A-F]{1,8}/[0-9A-F]{1,8})\b")

# SQLSTATE → (code, next step for an operator). What these report may pass by itself.
_TRANSIENT: Final[Mapping[str, tuple[str, str | None]]] = {
    "55006": (
        "slot_active",
        "Another process still reads the slot; if it is not one of ours, find it in pg_stat_replication.",
    ),
    "55P03": ("lock_timeout", None),
    "57014": ("statement_timeout", None),
    "40001": ("serialization_failure", None),
    "40P01": ("deadlock", None),
    "25006": ("source_read_only", "Name the primary server as host."),
    "25P03": ("idle_in_transaction_timeout", None),
}
_TRANSIENT_CLASSES: Final = ("08", "53", "57", "58")
_ACCESS_DENIED: Final = ("28000", "28P01", "42501")
# A table, or one of its columns, no longer exists, or a view has its name: it concerns this table only.
_TABLE_CHANGED: Final = ("42P01", "42703", "42809", "42846", "42883", "55000")


def translate(error: psycopg.Error, *, doing: str, table: str | None = None) -> ReplicatorError:
    """Return the error of ours that says who acts, for a connection that was open.

    Args:
        error: From psycopg; one without SQLSTATE means that the connection was lost.
        doing: The operation that was attempted, for the message.
        table: The table that the statement was about; a refusal of the server then concerns it alone. None for several.
    """
    state = error.sqlstate
    message = f"{doing}: {_facts(error)}"
    if state is None:
        return SourceUnavailableError(message, code="source_unavailable", table=table)
    if state in _TRANSIENT:
        code, action = _TRANSIENT[state]
        return SourceUnavailableError(message, code=code, table=table, action=action)
    if state == "3D000":
        return ConfigError(
            message, code="database_missing", action="Name an existing database under `source.database`."
        )
    if state in _ACCESS_DENIED:
        return _access_denied(message, state, table)
    if _is_too_large(error):
        return _too_large(message, table)
    if state.startswith(_TRANSIENT_CLASSES) or _names_something_dropped(error):
        return SourceUnavailableError(message, code="source_unavailable", table=table)
    return FatalError(message, code="source_error") if table is None else _table_error(message, state, table)


def translate_connect(error: psycopg.Error, *, doing: str) -> ReplicatorError:
    """Translate as `translate` does, for a connection that could not be made. libpq gives text alone then, also for a server's answer."""
    if error.sqlstate is not None:
        return translate(error, doing=doing)
    text = str(error)
    message = f"{doing}: {' '.join(text.split()) or type(error).__name__}"
    if any(refusal in text for refusal in _REFUSALS):
        return AccessDeniedError(
            message, code="access_denied", action="Check user, password, certificate and the server's pg_hba.conf."
        )
    if "role" in text and "does not exist" in text:
        return AccessDeniedError(
            message, code="access_denied", action="Create the role, or name another under `source.user`."
        )
    if "database" in text and "does not exist" in text:
        return ConfigError(
            message, code="database_missing", action="Name an existing database under `source.database`."
        )
    if any(denied in text for denied in _DENIED):
        return AccessDeniedError(
            message,
            code="access_denied",
            action="Grant LOGIN and REPLICATION to the role, and CONNECT on the database.",
        )
    if _POOLER in text:
        return ConfigError(
            f"{message}. Only a connection pooler, such as PgBouncer, says that.",
            code=CONNECTION_POOLER,
            action=POOLER_ACTION,
        )
    if any(words in text for words in _FULL):
        action = "Close unused connections, or raise the server's, the database's or the role's limit."
    elif _ANSWER.search(text) or "SSL" in text:
        action = "The server answered; see its message."
    else:
        action = "Check that the server runs and that host and port are right."
    return SourceUnavailableError(message, code="source_unavailable", action=action)


def translate_log(error: psycopg.Error, *, doing: str, slot: str) -> ReplicatorError:
    """Translate as `translate` does, for the replication connection, where some codes say what became of the slot."""
    message = f"{doing}: {_facts(error)}"
    match error.sqlstate:
        case "58P01":
            return OffsetExpiredError(message, code="log_removed", action=RESTART_ACTION)
        case "42704":
            # The slot itself, or the publication as it was at the position that is being decoded.
            return LogGapError(message, code="slot_or_publication_missing", action=RESTART_ACTION)
        case "55000" | "0A000":
            # The slot was invalidated, or is none of pgoutput's.
            return LogGapError(f"slot {slot}: {message}", code="slot_unusable", action=RESTART_ACTION)
        case _:
            return translate(error, doing=doing)


CONNECTION_POOLER: Final = "connection_pooler"
POOLER_ACTION: Final = (
    "Set `source.host` and `source.port` to the PostgreSQL server itself: replication does not work through a pooler."
)
NOT_UTF8_ACTION: Final = "Rename it in the source, or exclude the table (tables.exclude)."


def not_utf8(table: TableId, names: Sequence[str]) -> TableError:
    """The error of a table that needs something from the catalogue that is not UTF-8."""
    return TableError(
        f"this is not UTF-8: {', '.join(names)}.", code="not_utf8", table=str(table), action=NOT_UTF8_ACTION
    )


def corrupt_rows(table: TableId, what: str, error: Exception | None = None) -> TableError:
    """The error of a table whose rows in the log cannot be read.

    Args:
        table: The table concerned.
        what: Column and type, or the fault of the row; no value.
        error: Its traceback goes to the log, without its text, which may hold a value.
    """
    if error is not None:
        frames = "".join(traceback.format_tb(error.__traceback__))
        kind = type(error).__name__
        _log.error("corrupt_rows", table=str(table), reason=what, traceback=f"Traceback:\n{frames}{kind}")
    return TableError(
        f"its rows in the log cannot be read: {what}.",
        code="corrupt_rows",
        table=str(table),
        action="Run `replicator snapshot NAME TABLE`; if it fails again, exclude the table and report its CREATE TABLE.",
    )


# Some refusals reach libpq as plain text, without a SQLSTATE: before 9.5's protocol fields are read, or from libpq itself.
_REFUSALS: Final = (
    "password authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "certificate verify failed",
    "does not match host name",
    "server does not support SSL",
)
_DENIED: Final = ("permission denied", "must be superuser or replication role", "is not permitted to log in")
_POOLER: Final = "unsupported startup parameter"
_FULL: Final = ("too many clients", "too many connections", "connection slots are reserved")
# Severity, colon and two spaces is how libpq prints what a server answered, in every language.
_ANSWER: Final = re.compile(r"(?:^|failed: |\n)\s*[^\s:]+:  \S")


def _access_denied(message: str, state: str, table: str | None) -> ReplicatorError:
    if table is not None and state == "42501":
        return TableError(
            message,
            code="access_denied",
            table=table,
            action="Grant SELECT on the table (with row-level security: BYPASSRLS) to the role;"
            " then run `replicator snapshot NAME TABLE`.",
        )
    return AccessDeniedError(
        message,
        code="access_denied",
        action="Grant the privilege or fix the credential; `replicator validate` names it.",
    )


def _table_error(message: str, state: str, table: str) -> TableError:
    if state in _TABLE_CHANGED:
        return SchemaConflictError(message, code="table_changed", table=table)
    action = "Fix what the server reports; then run `replicator snapshot NAME TABLE`."
    return TableError(message, code="source_error", table=table, action=action)


def _is_too_large(error: psycopg.Error) -> bool:
    if error.sqlstate == "54000":
        return True
    return error.sqlstate == "XX000" and bool(_TOO_LARGE.search(error.diag.message_primary or ""))


def _names_something_dropped(error: psycopg.Error) -> bool:
    return error.sqlstate == "XX000" and _DROPPED_SINCE in (error.diag.message_primary or "")


def _too_large(message: str, table: str | None) -> ReplicatorError:
    if table is not None:
        return TableError(
            f"{message}. A row of the table has 1 GB or more as text, which PostgreSQL cannot send.",
            code=ROW_TOO_LARGE,
            table=table,
            action="Make the value smaller, then run `replicator snapshot NAME TABLE`; or exclude the table.",
        )
    return FatalError(
        f"{message}. A changed row has 1 GB or more as text (bytea takes two characters a byte), which PostgreSQL cannot send.",
        code=ROW_TOO_LARGE,
        action=f"Make the value smaller in the source, or exclude the table. {RESTART_ACTION}",
    )


def _facts(error: psycopg.Error) -> str:
    """Return the server's message with its SQLSTATE, or libpq's if the server said nothing."""
    state = error.sqlstate
    if state is None:
        return " ".join(str(error).split()) or type(error).__name__
    if state.startswith(_CLASS_OF_APPLICATIONS):
        return f"SQLSTATE {state}"
    text = error.diag.message_primary or ""
    if state.startswith(_CLASSES_WITH_VALUES):
        text = _QUOTED.sub('"…"', text)
    elif state.startswith("55") and error.diag.message_detail:
        text = f"{text}: {error.diag.message_detail.rstrip('.')}"
    position = _POSITION.search(error.diag.context or "")
    at = f", at log position {position[1]}" if position else ""
    return f"{text} (SQLSTATE {state}{at})"

"""Where psycopg's errors become ours: by SQLSTATE, never by wording where a code exists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
)

RESTART_ACTION: Final = (
    "Run `replicator snapshot NAME --restart`: a new place in the log, and a new snapshot of every table, in place."
)

# Messages of these classes may quote values of rows: only the code is passed on.
_CLASSES_WITH_VALUES: Final = ("21", "22", "23", "44", "P0")

# SQLSTATE → (code, what an operator can do). What these report may pass by itself.
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
# A table, or one of its columns, is gone: it concerns this table only.
_TABLE_CHANGED: Final = ("42P01", "42703", "42809", "42846", "42883")


@contextmanager
def translated(doing: str, *, table: str | None = None) -> Iterator[None]:
    """Raise psycopg's errors as ours; `doing` says what was attempted (`reading the log`)."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(error, doing=doing, table=table) from error


def translate(error: psycopg.Error, *, doing: str, table: str | None = None) -> ReplicatorError:
    """The error of ours that says who acts.

    Args:
        error: From psycopg; one without SQLSTATE means that the connection failed or was lost.
        doing: What was attempted, for the message.
        table: The table that was being read; errors about missing tables and columns then concern it alone.
    """
    state = error.sqlstate
    message = f"{doing}: {_facts(error)}"
    if state is None:
        return _connection_error(error, message)
    if state in _ACCESS_DENIED:
        return AccessDeniedError(
            message,
            code="access_denied",
            table=table,
            action="Grant the privilege or mend the credential; `replicator validate` names it.",
        )
    if state in _TRANSIENT:
        code, action = _TRANSIENT[state]
        return SourceUnavailableError(message, code=code, table=table, action=action)
    if table is not None and state in _TABLE_CHANGED:
        return SchemaConflictError(message, code="table_changed", table=table)
    if state == "3D000":
        return ConfigError(
            message, code="database_missing", action="Name an existing database under `source.database`."
        )
    if state.startswith(_TRANSIENT_CLASSES):
        return SourceUnavailableError(message, code="source_unavailable", table=table)
    return FatalError(message, code="source_error", table=table)


def translate_log(error: psycopg.Error, *, doing: str, slot: str) -> ReplicatorError:
    """As `translate`, for the replication connection, where some codes say what became of the slot."""
    message = f"{doing}: {_facts(error)}"
    match error.sqlstate:
        case "58P01":
            return OffsetExpiredError(message, code="log_removed", action=RESTART_ACTION)
        case "42704":
            # The slot itself, or the publication as it was at the place that is being decoded.
            return LogGapError(message, code="slot_or_publication_missing", action=RESTART_ACTION)
        case "55000" | "0A000":
            # The slot was invalidated, or is none of pgoutput's.
            return LogGapError(f"slot {slot}: {message}", code="slot_unusable", action=RESTART_ACTION)
        case _:
            return translate(error, doing=doing)


# Some refusals reach libpq as plain text, without a SQLSTATE: before 9.5's protocol fields are read, or from libpq itself.
_REFUSALS: Final = (
    "password authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "certificate verify failed",
    "does not match host name",
)


def _connection_error(error: psycopg.Error, message: str) -> ReplicatorError:
    text = str(error)
    if any(refusal in text for refusal in _REFUSALS):
        return AccessDeniedError(
            message, code="access_denied", action="Mend user, password, certificate or the server's pg_hba.conf."
        )
    if "role" in text and "does not exist" in text:
        return AccessDeniedError(
            message, code="access_denied", action="Create the role, or name another under `source.user`."
        )
    if "database" in text and "does not exist" in text:
        return ConfigError(
            message, code="database_missing", action="Name an existing database under `source.database`."
        )
    if "permission denied" in text or "must be superuser or replication role" in text:
        return AccessDeniedError(
            message,
            code="access_denied",
            action="Grant LOGIN and REPLICATION to the role, and CONNECT on the database.",
        )
    return SourceUnavailableError(
        message, code="source_unavailable", action="Check that the server runs and that host and port are right."
    )


def _facts(error: psycopg.Error) -> str:
    if error.sqlstate is not None and error.sqlstate.startswith(_CLASSES_WITH_VALUES):
        return f"SQLSTATE {error.sqlstate}"
    return error.diag.message_primary or " ".join(str(error).split()) or type(error).__name__

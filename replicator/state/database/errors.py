"""Translates errors of the state store's drivers into ours; nothing else does."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy import exc

from replicator.model.errors import (
    AccessDeniedError,
    CorruptStreamError,
    FatalError,
    ReplicatorError,
    StateUnavailableError,
)

_CORRUPT_ACTION: Final = (
    "Restore it from a backup; or move it away, set `target.adopt: replace` and run every replicator again."
)
_SQLITE_CORRUPT: Final = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_FORMAT")
_SQLITE_BUSY: Final = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL")
_SQLITE_TRANSIENT: Final = {
    "SQLITE_FULL": ("state_disk_full", "Free some space on its disk."),
    "SQLITE_READONLY": ("state_read_only", "Make the file and its folder writable."),
    "SQLITE_CANTOPEN": ("state_unavailable", "Check that the file and its folder exist and are writable."),
    "SQLITE_PERM": ("state_unavailable", "Check the permissions of the file and its folder."),
    "SQLITE_IOERR": ("state_unavailable", "Check its disk."),
}
# SQLSTATE classes and codes, https://www.postgresql.org/docs/current/errcodes-appendix.html
_POSTGRES_DENIED: Final = ("28", "42501")
_POSTGRES_MISSING: Final = ("3D000", "3F000", "42P01", "42703")
_POSTGRES_PASSING: Final = ("08", "25006", "25P03", "25P04", "40", "53", "55", "57", "58")
_TLS: Final = re.compile(r"certificate|does not support SSL|TLS is demanded")
_TLS_ACTION: Final = (
    "Give the server a certificate that this host trusts, or name its authority with `sslrootcert=` in REPLICATOR_STATE_URL."
    " docs/connections.md has the other ways."
)
_LIBPQ_DENIED: Final = (
    "authentication failed",
    "no pg_hba.conf entry",
    "no password supplied",
    "permission denied for",
)


class DamagedValueError(ValueError):
    """A value in the store does not fit its column. Becomes `corrupt_state` in `translated`."""


def corrupt_state(location: str, fact: str) -> CorruptStreamError:
    """Return the error for a store that is damaged or is not ours."""
    return CorruptStreamError(
        f"The state store {location} cannot be used: {fact}.", code="corrupt_state", action=_CORRUPT_ACTION
    )


@contextmanager
def translated(location: str) -> Iterator[None]:
    """Run a block of statements; an error of the driver becomes one of ours.

    Args:
        location: The store's name in messages; without secrets.

    Raises:
        StateUnavailableError: Locked, unreachable, full or read-only: may pass.
        CorruptStreamError: `corrupt_state`.
        AccessDeniedError: The server refuses the credentials or a privilege.
        FatalError: `state_missing`: the database named by the URL does not exist. `state_failed`: any other error, with its text.
    """
    try:
        yield
    except DamagedValueError as error:
        raise corrupt_state(location, str(error)) from error
    except exc.TimeoutError as error:
        raise StateUnavailableError(
            f"No connection to the state store {location} became free in time.", code="state_unavailable"
        ) from error
    except exc.IntegrityError:
        raise  # the caller knows what exists twice
    except exc.DBAPIError as error:
        known = (
            _of_sqlite(location, error) if isinstance(error.orig, sqlite3.Error) else _of_postgresql(location, error)
        )
        # Never an unknown exception: it would be blamed on whatever table was being worked on.
        raise known or FatalError(
            f"The state store {location} failed with an unexpected error: {_words(error)}.",
            code="state_failed",
            action="Report it with the log, which has the traceback; then start again.",
        ) from error


def _of_sqlite(location: str, error: exc.DBAPIError) -> ReplicatorError | None:
    assert isinstance(error.orig, sqlite3.Error)
    name = getattr(error.orig, "sqlite_errorname", "")
    if name.startswith(_SQLITE_CORRUPT):
        return corrupt_state(location, str(error.orig))
    if name.startswith(_SQLITE_BUSY):
        return StateUnavailableError(
            f"The state store {location} stayed locked by another process.",
            code="state_locked",
            action="Find the process that holds it (`fuser` or `lsof` on the file).",
        )
    for prefix, (code, action) in _SQLITE_TRANSIENT.items():
        if name.startswith(prefix):
            return StateUnavailableError(f"The state store {location}: {error.orig}.", code=code, action=action)
    if name == "SQLITE_ERROR" and str(error.orig).startswith(("no such table", "no such column")):
        return corrupt_state(location, str(error.orig))
    return None


def _of_postgresql(location: str, error: exc.DBAPIError) -> ReplicatorError | None:
    state = getattr(error.orig, "sqlstate", None) or ""
    fact = _fact(error)
    if state.startswith(_POSTGRES_DENIED) or (not state and any(text in fact for text in _LIBPQ_DENIED)):
        return AccessDeniedError(
            f"The state store {location}: {fact}",
            code="state_access_denied",
            action="Correct the credentials in REPLICATOR_STATE_URL or grant the privilege.",
        )
    if state == "3D000" or (not state and "database" in fact and "does not exist" in fact):
        return FatalError(
            f"The state store {location}: {fact}",
            code="state_missing",
            action="Create the database, or correct REPLICATOR_STATE_URL.",
        )
    if state.startswith(_POSTGRES_MISSING):
        return corrupt_state(location, fact)
    if state.startswith(_POSTGRES_PASSING) or isinstance(error, exc.OperationalError | exc.InterfaceError):
        return StateUnavailableError(
            f"The state store {location}: {fact}",
            code="state_unavailable",
            action=_TLS_ACTION if _TLS.search(fact) else None,
        )
    return None


def _words(error: exc.DBAPIError) -> str:
    """Return the database's text of an error, with its own code."""
    code = getattr(error.orig, "sqlite_errorname", None) or getattr(error.orig, "sqlstate", None)
    return f"{_fact(error)} ({code or type(error.orig).__name__})"


def _fact(error: exc.DBAPIError) -> str:
    """Return only the first line of an error: DETAIL may quote values."""
    return next(iter(str(error.orig).splitlines()), type(error.orig).__name__).strip()

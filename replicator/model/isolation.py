"""Decides whose failure an error is: one table's, or the whole replicator's. Pure.

Work for one table alone is done inside `of_table`. Any error there is that table's, expected or not, unless it says
something about all tables: see `table_error`.
"""

from __future__ import annotations

import errno
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from replicator.model.errors import (
    THEN_BY_ITSELF,
    AccessDeniedError,
    CurableError,
    FencedError,
    PluginError,
    ReplicatorError,
    TableError,
    TransientError,
)
from replicator.model.schema import TableId

INTERNAL: Final = "internal_error"

_OF_THE_REPLICATOR: Final = frozenset({"ledger_ahead", "unexplained_change"})
"""Codes that name a table and concern all: a restored state store, and a policy by which the operator wants a stop."""

_OF_THE_MACHINE: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
)
"""The machine has run out of something: the next table would fail, too."""

_NO_THREAD: Final = "can't start new thread"
"""Message of the RuntimeError that Python raises where the system refuses a thread."""

_AGAIN: Final = "Then run `replicator snapshot NAME TABLE`."


class TableFailedError(Exception):
    """Work for one table failed. `error` is the error that the table is shown with; its cause is the original one."""

    def __init__(self, table: TableId, error: TableError) -> None:
        super().__init__(str(error))
        self.table = table
        self.error = error


@contextmanager
def of_table(table: TableId, doing: str) -> Iterator[None]:
    """Run a block of work for one table alone; `doing` describes it for the message ("writing its changes").

    Raises:
        TableFailedError: The work failed, and the failure is the table's. Every other error passes unchanged.
    """
    try:
        yield
    except TableFailedError:
        raise
    except Exception as error:
        ours = table_error(error, table, doing)
        if ours is None:
            raise
        raise TableFailedError(table, ours) from error


def failed_table(error: Exception) -> TableFailedError | None:
    """Return the table that an error names, with the error that it is shown with; None if the error is the replicator's."""
    if isinstance(error, TableFailedError):
        return error
    if not isinstance(error, ReplicatorError) or error.table is None:
        return None
    try:
        table = TableId.parse(error.table)
    except ValueError:
        return None
    ours = table_error(error, table, "")
    return None if ours is None else TableFailedError(table, ours)


def table_error(error: BaseException, table: TableId, doing: str, *, is_narrowed: bool = False) -> TableError | None:
    """Return the table's error for one that work for it raised; None if the error is not the table's.

    `is_narrowed`: it came from a question that can be about many tables, was asked about this one, and did not come for others.

    Not the table's: a newer holder of the lease, errors that pass by themselves (source, target, state store, journal), memory and disk
    that are used up, and a ReplicatorError that names no table: it concerns more than one, unless it `is_narrowed`.
    """
    match error:
        case TableError():
            return error
        case FencedError() | TransientError():
            return None
        case _ if is_exhausted(error):
            return None
        case ReplicatorError():
            is_of_table = is_narrowed or error.table is not None or isinstance(error, PluginError)
            return _confined(error, table) if is_of_table and error.code not in _OF_THE_REPLICATOR else None
        case Exception():
            return _unforeseen(error, table, doing)
        case _:
            return None


def is_exhausted(error: BaseException) -> bool:
    """Return whether the machine has run out of something that it may have again: disk, memory, open files, processes."""
    match error:
        case MemoryError():
            return True
        case OSError():
            return error.errno in _OF_THE_MACHINE
        case RuntimeError():
            return _NO_THREAD in str(error)
        case _:
            return False


def _confined(error: ReplicatorError, table: TableId) -> TableError:
    action = error.action or "Fix the cause."
    # A privilege may be granted again, and the source's check sees it.
    is_curable = isinstance(error, AccessDeniedError)
    if "replicator snapshot" not in action:
        again = THEN_BY_ITSELF if is_curable else _AGAIN
        action = f"{action}{'' if action.endswith(('.', ';', '!')) else '.'} {again}"
    kind = CurableError if is_curable else TableError
    ours = kind(error.message, code=error.code, table=str(table), action=action)
    ours.__cause__ = error
    return ours


def _unforeseen(error: Exception, table: TableId, doing: str) -> TableError:
    """Return an error with class and code line only: the text of an unknown exception may contain values of rows."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f" (at {frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno})" if frames else ""
    ours = TableError(
        f"unexpected {type(error).__name__}{f' while {doing}' if doing else ''}{at}: this is a bug.",
        code=INTERNAL,
        table=str(table),
        action="Report it with the log, which has the traceback. To retry the table, run `replicator snapshot NAME TABLE`.",
    )
    ours.__cause__ = error
    return ours

"""Errors of PostgreSQL as the errors that SQL Server would report."""

from __future__ import annotations

from typing import Final

import psycopg

from replicator_testbed.sqlserver.outcomes import SqlError

MODEL_STATE: Final = "MS000"
"""SQLSTATE of errors that the model's own functions raise; the hint has the number."""
_OUT_OF_RANGE: Final = "22003"
_ENDS_TRANSACTION: Final = frozenset({1205, 3960})
_CONTINUES_BATCH: Final = frozenset({515, 547, 1222, 2601, 2627, 2628})

_NUMBERS: Final = {
    "55P03": (1222, "Lock request time out period exceeded.", 51),
    "40001": (
        3960,
        "Snapshot isolation transaction aborted due to update conflict. You cannot use snapshot isolation to access this table"
        " directly or indirectly in this database to update, delete, or insert the row that has been modified or deleted by"
        " another transaction. Retry the transaction or change the isolation level for the update/delete statement.",
        2,
    ),
    "40P01": (
        1205,
        "Transaction was deadlocked on lock resources with another process and has been chosen as the deadlock victim."
        " Rerun the transaction.",
        51,
    ),
    "23502": (
        515,
        "Cannot insert the value NULL into a column that does not allow nulls; the statement has been terminated.",
        2,
    ),
    "23514": (547, "The statement conflicted with a CHECK constraint.", 0),
    "22001": (2628, "String or binary data would be truncated in a column of the table.", 1),
    "22003": (8115, "Arithmetic overflow error converting expression to the column's data type.", 2),
    "22012": (8134, "Divide by zero error encountered.", 1),
    # A year that is negative reads as an offset.
    "22009": (241, "Conversion failed when converting date and/or time from character string.", 1),
    "22007": (241, "Conversion failed when converting date and/or time from character string.", 1),
    "22008": (242, "The conversion resulted in an out-of-range value.", 3),
    "22P02": (245, "Conversion failed when converting the value to the data type.", 1),
    "42P07": (2714, "There is already an object with that name in the database.", 6),
    "42P01": (208, "Invalid object name.", 1),
    "42703": (207, "Invalid column name.", 1),
    "42883": (
        195,
        "This is not a recognized built-in function name, or there is no such operator for these types.",
        10,
    ),
    "42601": (102, "Incorrect syntax.", 1),
    "42501": (229, "The permission was denied.", 5),
    "42701": (2705, "Column names in each table must be unique.", 4),
}
"""Number, text and state by SQLSTATE; the texts begin as SQL Server's do, and end in what PostgreSQL says."""


def from_postgresql(error: psycopg.Error) -> SqlError:
    """The error that SQL Server would report; 50000 where the model knows none."""
    said = error.diag.message_primary or str(error)
    # psycopg says without a state what Python has no value for, such as a date behind the year 9999.
    state = error.sqlstate or ("22008" if isinstance(error, psycopg.DataError) else "")
    if state == MODEL_STATE:
        return SqlError(int(error.diag.message_hint or 50000), said)
    if state == "23505":
        return _duplicate(error, said)
    if state == "23514" and error.diag.datatype_name is not None:
        # The range of a type of SQL Server is that of a domain.
        state = _OUT_OF_RANGE
    number, text, error_state = _NUMBERS.get(state, (50000, "The model's PostgreSQL refused this:", 1))
    severity = 13 if number in _ENDS_TRANSACTION else 14 if number == 229 else 16
    return SqlError(
        number, f"{text} ({said})", state=error_state, severity=severity, ends_batch=number not in _CONTINUES_BATCH
    )


def ends_transaction(error: SqlError) -> bool:
    """Whether SQL Server has rolled the whole transaction back."""
    return error.number in _ENDS_TRANSACTION


def _duplicate(error: psycopg.Error, said: str) -> SqlError:
    name = error.diag.constraint_name or ""
    if name.lower().startswith(("ix", "ux", "uix")):
        return SqlError(
            2601, f"Cannot insert duplicate key row with unique index '{name}'. ({said})", severity=14, ends_batch=False
        )
    return SqlError(2627, f"Violation of PRIMARY KEY constraint '{name}'. ({said})", severity=14, ends_batch=False)

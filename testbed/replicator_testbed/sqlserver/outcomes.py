"""What a statement comes to: rows, a count, or an error of SQL Server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from replicator_testbed.sqlserver.sqltypes import SqlType
from replicator_testbed.sqlserver.tds.tokens import Column, Command


class SqlError(Exception):
    """An error as SQL Server reports it.

    Attributes:
        number: What tells errors apart: `sys.messages.message_id`.
        severity: 11 to 16 are the user's, above that the server's.
        ends_batch: Whether the rest of the batch is not run.
    """

    def __init__(self, number: int, text: str, *, state: int = 1, severity: int = 16, ends_batch: bool = True) -> None:
        """Describe an error."""
        super().__init__(text)
        self.number = number
        self.text = text
        self.state = state
        self.severity = severity
        self.ends_batch = ends_batch


@dataclass(frozen=True, slots=True)
class Rows:
    """A result."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Count:
    """A statement that returns no rows; `count` is None where SQL Server counts nothing."""

    count: int | None = None
    command: Command = Command.NONE


@dataclass(frozen=True, slots=True)
class Status:
    """A procedure's return status."""

    status: int = 0


@dataclass(frozen=True, slots=True)
class Notice:
    """A message that is no error: `PRINT`, or a warning."""

    text: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """A statement that failed, in a batch that continues or ends here."""

    error: SqlError


@dataclass(frozen=True, slots=True)
class TransactionChanged:
    """A transaction began (`descriptor`), or ended."""

    descriptor: int
    is_begun: bool
    is_committed: bool = False


Outcome = Rows | Count | Status | Notice | Failed | TransactionChanged


@dataclass(frozen=True, slots=True)
class Bound:
    """A parameter of a batch: its name with the at sign, its declared type if it has one, and its value."""

    name: str
    type: SqlType | None
    value: Any

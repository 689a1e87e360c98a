"""What SET changes in a session."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag, StrEnum
from typing import Final

from replicator_testbed.sqlserver.outcomes import SqlError

LOCK_TIMEOUT_NONE: Final = -1
TEXT_BYTES_MAX: Final = 2147483647
WITHOUT_EFFECT: Final = frozenset(
    [
        "ANSI_NULLS",
        "QUOTED_IDENTIFIER",
        "ANSI_PADDING",
        "ANSI_WARNINGS",
        "ARITHABORT",
        "CONCAT_NULL_YIELDS_NULL",
        "ANSI_NULL_DFLT_ON",
        "ANSI_DEFAULTS",
        "CURSOR_CLOSE_ON_COMMIT",
        "NUMERIC_ROUNDABORT",
        "NO_BROWSETABLE",
        "DATEFORMAT",
        "LANGUAGE",
        "DATEFIRST",
        "FMTONLY",
        "NOEXEC",
        "ROWCOUNT",
        "STATISTICS",
        "ARITHIGNORE",
        "FORCEPLAN",
    ]
)
"""Settings whose other values would change something that the model does not show: only the usual value is accepted."""
USUAL: Final = {"NOEXEC": "OFF", "FMTONLY": "OFF", "ROWCOUNT": "0", "STATISTICS": "", "NUMERIC_ROUNDABORT": "OFF"}


class Isolation(StrEnum):
    """The isolation levels of SQL Server."""

    READ_UNCOMMITTED = "READ UNCOMMITTED"
    READ_COMMITTED = "READ COMMITTED"
    REPEATABLE_READ = "REPEATABLE READ"
    SERIALIZABLE = "SERIALIZABLE"
    SNAPSHOT = "SNAPSHOT"

    @property
    def postgresql(self) -> str:
        """PostgreSQL's level: SNAPSHOT is its REPEATABLE READ."""
        return {
            Isolation.READ_UNCOMMITTED: "READ COMMITTED",
            Isolation.READ_COMMITTED: "READ COMMITTED",
            Isolation.REPEATABLE_READ: "REPEATABLE READ",
            Isolation.SERIALIZABLE: "SERIALIZABLE",
            Isolation.SNAPSHOT: "REPEATABLE READ",
        }[self]


class UserOption(IntFlag):
    """What `user options` gives every new session [DOC: configure the user options server configuration option]."""

    IMPLICIT_TRANSACTIONS = 2
    NOCOUNT = 512
    XACT_ABORT = 16384


@dataclass(slots=True)
class Settings:
    """The settings of one session."""

    isolation: Isolation = Isolation.READ_COMMITTED
    lock_timeout_ms: int = LOCK_TIMEOUT_NONE
    deadlock_priority: int = 0
    text_bytes: int = TEXT_BYTES_MAX
    no_count: bool = False
    aborts: bool = False
    implicit_transactions: bool = False
    identity_insert: str = ""

    @classmethod
    def of(cls, options: int) -> Settings:
        """Those that a session begins with."""
        return cls(
            no_count=bool(options & UserOption.NOCOUNT),
            aborts=bool(options & UserOption.XACT_ABORT),
            implicit_transactions=bool(options & UserOption.IMPLICIT_TRANSACTIONS),
        )

    @property
    def postgresql_lock_timeout_ms(self) -> int:
        """PostgreSQL's lock_timeout, where 0 means without end, as -1 does in SQL Server."""
        return 0 if self.lock_timeout_ms < 0 else max(self.lock_timeout_ms, 1)

    @property
    def postgresql_deadlock_timeout_ms(self) -> int:
        """PostgreSQL cancels the session that finds the deadlock: the lower the priority, the earlier it looks."""
        return max(100, 1000 + 90 * self.deadlock_priority)


def priority(text: str) -> int:
    """DEADLOCK_PRIORITY as a number [DOC: -10 to 10; LOW is -5, HIGH is 5].

    Raises:
        SqlError: It is none.
    """
    named = {"LOW": -5, "NORMAL": 0, "HIGH": 5}
    if text.upper() in named:
        return named[text.upper()]
    try:
        number = int(text)
    except ValueError:
        raise SqlError(102, f"Incorrect syntax near '{text}'.", severity=15) from None
    return min(max(number, -10), 10)

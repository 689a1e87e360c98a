"""Every public error, grouped by who acts on it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from replicator.model.redaction import redact

_COMMAND: Final = re.compile(r"\b(replicator [a-z]+(?: [a-z]+)?) NAME\b( TABLE\b)?")

THEN_BY_ITSELF: Final = (
    "Then a new snapshot begins by itself within a minute, or at once by `replicator snapshot NAME TABLE`."
)
"""Sentence after the fix in the action of a `CurableError`."""


_LISTED_MAX: Final = 5
"""Problems that a message of one line names."""


class ReplicatorError(Exception):
    """An error with a stable code and, where an operator can act, the next step. Registered secrets are masked in both.

    Servers and drivers may quote their input, and an error goes everywhere: to terminals, logs, the state store and its readers.

    Args:
        message: Facts: what was expected, what was found, and where. Never row values or secrets.
        code: Stable, documented in `docs/errors.md`; lower_snake_case.
        table: The table concerned, as `schema.table`; None when it concerns the whole replicator.
        action: One sentence that tells the operator what to do.
    """

    def __init__(self, message: str, *, code: str, table: str | None = None, action: str | None = None) -> None:
        self.message = redact(message)
        super().__init__(self.message)
        self.code = code
        self.table = table
        self.action = None if action is None else redact(action)

    def __str__(self) -> str:
        prefix = f"{self.table}: " if self.table else ""
        if not self.action:
            return f"{prefix}{self.message}"
        return f"{prefix}{self.message}{'' if self.message.endswith(('.', '?', '!', ':')) else '.'} {self.action}"


def with_names(text: str, replicator: str, table: str | None) -> str:
    """Fill the real names into commands of an error's text or action: `replicator snapshot NAME TABLE` can then be pasted."""

    def named(command: re.Match[str]) -> str:
        of_table = command[2] if command[2] is None or table is None else f" {shlex.quote(table)}"
        return f"{command[1]} {replicator}{of_table or ''}"

    return _COMMAND.sub(named, text)


class ConfigError(ReplicatorError):
    """Refused before a run, every problem at once. Exit 2.

    Args:
        message: The headline.
        problems: Every problem found, each with its location.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "invalid_configuration",
        table: str | None = None,
        action: str | None = None,
        problems: tuple[Problem, ...] = (),
    ) -> None:
        super().__init__(message, code=code, table=table, action=action)
        self.problems = problems

    def __str__(self) -> str:
        return str(in_full(self)) if self.problems else super().__str__()


class RequestError(ReplicatorError):
    """A request over HTTP is refused.

    Args:
        status: HTTP status of the answer.
        retry_after_s: Seconds until a retry is useful; None: a retry would not change anything.
    """

    def __init__(
        self, message: str, *, status: int, code: str, action: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message, code=code, action=action)
        self.status = status
        self.retry_after_s = retry_after_s


class PluginError(ReplicatorError):
    """A plugin cannot load, or broke its contract."""


class TransientError(ReplicatorError):
    """Retried with back-off from the last durable point."""


class SourceUnavailableError(TransientError):
    """The source cannot be reached, or ended the connection."""


class SourceLagsError(SourceUnavailableError):
    """A server that answers lacks some of what was captured from another: waited for, and once given up a `LogGapError`."""


class TargetUnavailableError(TransientError):
    """The target cannot be reached, or cannot take data now.

    With a `table` the problem may be of that table alone: it waits while the target takes others.
    """


class TargetCrashedError(TargetUnavailableError):
    """The target's engine ended while it worked, perhaps because of its work: a table that causes this repeatedly fails."""


class ThrottledError(TargetUnavailableError):
    """The target cannot accept a table's data now: only that table waits, the others continue.

    Args:
        rest_s: Seconds that the target asks to be left alone with the table; the host may wait longer.
        is_limit: The target works and counts: a rate, a quota, a budget. That is no failure, however long it lasts, and
            is waited for without a time limit. Otherwise the table fails once it has been tried for as long as the retry
            budget allows.
        may_halve: A smaller batch may be taken at once, and is tried first.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str,
        table: str | None = None,
        action: str | None = None,
        rest_s: float = 0.0,
        is_limit: bool = False,
        may_halve: bool = False,
    ) -> None:
        super().__init__(message, code=code, table=table, action=action)
        self.rest_s = rest_s
        self.is_limit = is_limit
        self.may_halve = may_halve


class MachineExhaustedError(TransientError):
    """The host has run out of disk, memory, open files or processes."""


class StateUnavailableError(TransientError):
    """The state store is locked or cannot be reached."""


class JournalUnavailableError(TransientError):
    """The journal's file system refuses writes: full, read-only, or away."""


class TableError(ReplicatorError):
    """This table fails; the others continue."""


class BatchTooLargeError(TableError):
    """The target cannot take this many changes in one batch: smaller ones are tried, and only one that cannot be split fails the table."""


class UnsupportedTypeError(TableError):
    """A column's type, or a value in it, cannot be replicated."""


class SchemaConflictError(TableError):
    """Source and target disagree on the table's schema, or the change has no policy."""


class TargetDamagedError(TableError):
    """The target's table cannot be read any more. The table fails also if upkeep or an audit finds it."""


class ImpossibleKeyError(TableError):
    """A key of requested rows has a value that no key of the table can have."""


class KeyMissingError(TableError):
    """A change cannot be attributed to a row."""


class RefusedError(TableError):
    """A blocking problem of one table. The next start checks it again, and resumes the table if it is fixed."""


class CurableError(RefusedError):
    """A blocking problem of one table whose cause is in the source, where `SourceCatalogue.check` finds it while it exists.

    It is also checked while the replicator runs, and the table gets a new snapshot, in place, once nothing is found.
    """


class FatalError(ReplicatorError):
    """The replicator stops; a person acts."""


class OffsetExpiredError(FatalError):
    """The source no longer has its log after our position."""


class LogGapError(FatalError):
    """The source's log and our record of it do not join."""


class CorruptStreamError(FatalError):
    """Bytes from the source, the journal or the state store are not what they must be."""


class AccessDeniedError(FatalError):
    """A privilege is missing or a credential is refused."""


class FencedError(FatalError):
    """A newer epoch holds the lease; this process must end."""


def in_full(error: ReplicatorError) -> ReplicatorError:
    """Return the error as it is kept, logged and sent to other processes: a message that counts problems names them, too."""
    found = [one for one in getattr(error, "problems", ()) if one.severity is Severity.BLOCKING]
    named = [one for one in found if one.message != error.message]
    if not named:
        return ConfigError(error.message, code=error.code, table=error.table, action=error.action) if found else error
    listed = [f"{one.location}: {one.message}" if one.location else one.message for one in named[:_LISTED_MAX]]
    more = [f"And {len(named) - _LISTED_MAX} more."] if len(named) > _LISTED_MAX else []
    head = error.message.rstrip(".")
    action = error.action or next((one.action for one in named if one.action), None)
    return ConfigError(f"{head}: {' '.join([*listed, *more])}", code=error.code, table=error.table, action=action)


def given_up(error: ReplicatorError) -> FatalError:
    """Return the error that ends the replicator once an attempt was repeated for as long as the retry budget allows."""
    kind = LogGapError if isinstance(error, SourceLagsError) else FatalError
    return kind(
        f"gave up after retry.give_up_after: {error.message}",
        code=error.code,
        table=error.table,
        action=error.action or "Fix the cause, then start the replicator again.",
    )


class Severity(StrEnum):
    """Severity of a finding."""

    BLOCKING = "blocking"
    WARNING = "warning"
    NOTICE = "notice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One finding of an assessment.

    `location` says where (`shop.yaml:12`, `source.host`, `public.customers.id`; left out, it is the table), `action` the fix; left out, it
    is `sql`.
    `sql`: statements after which the source is found in order, each complete with its semicolon, in the order in which a superuser can run
    them; what they need has its statements in findings before. Empty where SQL cannot fix it, or where a statement would take something
    away that may be wanted: rows, a constraint, a filter. A comment after a statement says what else is to be done.
    `table`: of a problem of one table, as `schema.table`. If it is blocking it fails that table whenever it is found.
    `applies`: a blocking problem without a table refuses a start; with `always` it also stops a replicator that runs: only for what makes
    the log untrustworthy, and never for what the replicator's own slot, connection or reader causes.
    `is_access`: a privilege of ours is missing. Nothing can be read, but the log holds everything all the same.
    """

    code: str
    message: str
    location: str | None = None
    table: str | None = None
    action: str | None = None
    sql: tuple[str, ...] = ()
    severity: Severity = Severity.BLOCKING
    applies: Literal["start", "always"] = "start"
    is_access: bool = False

    def __post_init__(self) -> None:
        """Set the location and the fix of a table's problem where they are missing; registered secrets are masked."""
        if self.location is None and self.table is not None:
            object.__setattr__(self, "location", self.table)
        if self.action is None and self.sql:
            object.__setattr__(self, "action", " ".join(self.sql))
        for name in ("message", "location", "action"):
            if (text := getattr(self, name)) is not None:
                object.__setattr__(self, name, redact(text))

    @classmethod
    def of(cls, error: TableError) -> Problem:
        """Return the finding that a table would fail with this error."""
        return cls(code=error.code, message=error.message, table=error.table, action=error.action)

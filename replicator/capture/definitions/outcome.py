"""The fate of one table, as the judges of this package return it. `applying.py` carries it out, and nothing else does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from replicator.model.alteration import Change
from replicator.model.errors import TableError
from replicator.model.events import DDLEvent
from replicator.model.identity import TableIdentity
from replicator.model.schema import TableId
from replicator.state.records import Decision, TableRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """An entry of the history.

    Attributes:
        event: The change, with the shapes as the source has them.
        decision: Of the policies.
        changes: Its kinds.
        reason: Given where the decision does not follow from the policy alone.
        number: Where it stands in the log; None if the log does not show it.
    """

    event: DDLEvent
    decision: Decision
    changes: tuple[Change, ...] = ()
    reason: str | None = None
    number: int | None = None


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """An event for the journal, with its number; None takes the next one."""

    event: DDLEvent
    number: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a table stops. `stopped_at`: as `TableRecord.stopped_at`."""

    error: TableError
    stopped_at: Change | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOutcome:
    """The fate of one table. Its parts are carried out in the order in which they stand here.

    Attributes:
        notes: For the history.
        entries: For the journal.
        record: The table's record from here on; None leaves it.
        accepts: The identity that the source is told to be accepted.
        altered_by: The transaction of the log that altered the table.
        is_undecoded: The open log does not hand out the table's changes under its name.
        source_name: The table's name in the source from here on.
        is_outdated: Earlier answers of the catalogue do not know something that is known of the table by now.
        is_suspicious: Its catalogue entry is compared soon.
        recreates: Its next snapshot begins a new incarnation.
        failure: It stops, and nothing of it is written.
        needs_snapshot: Nothing of it is written until a new snapshot begins; a table that stops continues with that.
        reads_again: Rows that were read of it, and are not written yet, are read again.
        repeats_snapshot: Its snapshot that runs is repeated once it is complete.
        reopens: The log is opened again, because it was opened for another shape or name.
    """

    notes: tuple[Note, ...] = ()
    entries: tuple[JournalEntry, ...] = ()
    record: TableRecord | None = None
    accepts: TableIdentity | None = None
    altered_by: str | None = None
    is_undecoded: bool = False
    source_name: TableId | None = None
    is_outdated: bool = False
    is_suspicious: bool = False
    recreates: bool = False
    failure: Failure | None = None
    needs_snapshot: bool = False
    reads_again: bool = False
    repeats_snapshot: bool = False
    reopens: bool = False

    @property
    def continues(self) -> bool:
        """Return whether the table is replicated on."""
        return self.failure is None

    def reopening(self) -> TableOutcome:
        """The same; unless the table stops, the log is opened again."""
        return replace(self, reopens=self.continues)


TableOutcomes = Sequence[tuple[TableId, TableOutcome]]
"""Of several tables, in the order in which they are carried out."""


def failed(error: TableError, *notes: Note, stopped_at: Change | None = None) -> TableOutcome:
    """Return the outcome of a table that stops."""
    return TableOutcome(notes=notes, failure=Failure(error, stopped_at))

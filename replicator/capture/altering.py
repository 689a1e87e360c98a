"""Brings captured tables to their new columns: the journal says so, and what was read with the old ones is dropped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from replicator.capture.alterations import Altered, decide
from replicator.capture.catalogue import CatalogChange, judge
from replicator.capture.snapshots import SnapshotRunner
from replicator.capture.tables import TrackedTable, TrackedTables
from replicator.config import DDLConfig
from replicator.model.alteration import kinds
from replicator.model.events import DDLEvent
from replicator.model.identity import Truncated
from replicator.model.schema import TableId
from replicator.plugins.source import SourceLog, TableDescription
from replicator.state import table_life
from replicator.state.records import Decision, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Altering:
    """Called by the loop's thread alone.

    Each method returns whether the table needs a new snapshot, in place, and raises SchemaConflictError where the table must fail.

    Attributes:
        policies: Those of a table.
    """

    source: SourceLog
    tables: TrackedTables
    snapshots: SnapshotRunner
    policies: Callable[[TableId], DDLConfig]

    def by_log(self, tracked: TrackedTable, event: DDLEvent, number: int) -> bool:
        """The log says that the table has other columns from this number on."""
        assert event.schema is not None, "it says which"
        policies = self.policies(tracked.table)
        altered = decide(tracked.schema, event.schema, policies, before=event.before, fill=event.fill)
        told = altered.event(event)
        self.tables.note(
            tracked, told, decision_of(altered), changes=kinds(altered.before, altered.schema), number=number
        )
        self.tables.alter(tracked, altered, event, number)
        if not altered.needs_snapshot:
            self._read_again(tracked)
            # It may have another identity, which chunks and comparisons are to know soon.
            self.snapshots.suspicious.add(tracked.table)
        return altered.needs_snapshot

    def by_catalogue(self, tracked: TrackedTable, found: TableDescription) -> bool:
        """The catalogue shows other columns, and the log does not say how they came."""
        storage = tracked.record.identity.storage if tracked.record.identity is not None else None
        altered = self._found(tracked, found)
        change = judge(altered.schema, tracked.record.identity, found, truncates_since=0)
        if altered.needs_snapshot or change not in (CatalogChange.NONE, CatalogChange.EXPLAINED):
            return True
        if isinstance(storage, Truncated):
            # What the catalogue says of rows, it says of those in a storage that is known.
            return True
        self.tables.put(table_life.accepted(tracked.record, found.identity))
        self.source.accept({tracked.table: found.identity})
        self._read_again(tracked)
        return False

    def before_snapshot(self, tracked: TrackedTable, found: TableDescription) -> None:
        """Its snapshot begins, in place, and tells what its rows have in new columns."""
        self._found(tracked, found)

    def _found(self, tracked: TrackedTable, found: TableDescription) -> Altered:
        policies = self.policies(tracked.table)
        altered = decide(tracked.schema, found.schema, policies, before=None, fill=found.fill)
        self.tables.alter(tracked, altered, None)
        return altered

    def _read_again(self, tracked: TrackedTable) -> None:
        if tracked.record.stage is Stage.SNAPSHOT:
            # What was read, and is not written yet, has the old columns.
            self.snapshots.begin(tracked)


def decision_of(altered: Altered) -> Decision:
    """What happens, in a word."""
    if altered.needs_snapshot:
        return Decision.SNAPSHOT
    return Decision.KEEP if len(altered.schema.kept) > len(altered.before.kept) else Decision.APPLY

"""Carries out what the judges of this package return: nothing else changes the definition of a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from replicator.capture.definitions.names import SourceNames
from replicator.capture.definitions.outcome import TableOutcome
from replicator.capture.definitions.seen import Alterations
from replicator.capture.snapshots.driver import SnapshotRunner
from replicator.capture.tables import TrackedTable, TrackedTables
from replicator.model.events import DDLOperation
from replicator.model.schema import TableId
from replicator.observability import get_logger
from replicator.plugins.source import SourceLog
from replicator.state import table_life
from replicator.state.records import Stage, TableRecord

_log = get_logger(__name__)


class Applied(NamedTuple):
    """Next steps once outcomes were carried out.

    Attributes:
        starting: Tables whose snapshots are to begin.
        outdated: Tables of which earlier answers of the catalogue do not know something.
        reopens: The log is to be opened again.
    """

    starting: tuple[TableId, ...]
    outdated: frozenset[TableId]
    reopens: bool


@dataclass(slots=True, kw_only=True)
class Definitions:
    """The definitions of all tables of one open log. Called by the loop's thread alone.

    Attributes:
        source: Is told the identities that are accepted.
        tables: All of them.
        snapshots: Those that run.
        names: Under which the source has the tables.
        alterations: Those that the open log has delivered.
        decoded: The tables whose changes the open log hands out, under the names that they have in the source.
        to_recreate: Tables whose next snapshot begins a new incarnation, whatever their shape. What makes it durable: until a captured
            table's snapshot begins, the request for it stays open; the record of one that is not captured says so (`is_recreated`).
    """

    source: SourceLog
    tables: TrackedTables
    snapshots: SnapshotRunner
    names: SourceNames
    alterations: Alterations
    decoded: set[TableId]
    to_recreate: set[TableId] = field(default_factory=set)

    def apply(self, outcomes: Iterable[tuple[TableId, TableOutcome]]) -> Applied:
        """Carry out outcomes, one after the other."""
        starting: list[TableId] = []
        outdated: set[TableId] = set()
        reopens = False
        for table, outcome in outcomes:
            tracked = self.tables.get(table)
            if tracked is None:
                continue
            self._apply(tracked, outcome)
            if outcome.needs_snapshot and table not in starting:
                starting.append(table)
            if outcome.is_outdated:
                outdated.add(table)
            reopens = reopens or outcome.reopens
        return Applied(tuple(starting), frozenset(outdated), reopens)

    def recreate(self, tables: Iterable[TableId]) -> None:
        """Have the next snapshots of these tables begin new incarnations."""
        for table in tables:
            self.to_recreate.add(table)
            tracked = self.tables.get(table)
            if tracked is not None and not tracked.is_captured:
                self.tables.put(self._uncaptured(tracked.record))

    def _apply(self, tracked: TrackedTable, outcome: TableOutcome) -> None:
        self._write(tracked, outcome)
        self._note(tracked, outcome)
        table = tracked.table
        if outcome.failure is not None:
            self.snapshots.drop(table)
            self.tables.put(self._uncaptured(tracked.record))
            self.tables.fail(tracked, outcome.failure.error, stopped_at=outcome.failure.stopped_at)
        elif outcome.needs_snapshot:
            # Also after a restart.
            self.snapshots.drop(table)
            self.tables.put(table_life.suspended(self._uncaptured(tracked.record)))
        elif outcome.reads_again and table_life.is_reading(tracked.record):
            self.snapshots.begin(tracked)
        elif outcome.repeats_snapshot:
            self.tables.put_progress(tracked, replace(self.tables.progress(tracked), is_outdated=True))

    def _write(self, tracked: TrackedTable, outcome: TableOutcome) -> None:
        """Write the parts that become durable with the next commit."""
        for note in outcome.notes:
            self.tables.note(
                tracked, note.event, note.decision, changes=note.changes, reason=note.reason, number=note.number
            )
        for entry in outcome.entries:
            self.tables.event(tracked, entry.event, entry.number)
        if outcome.record is not None:
            self.tables.put(table_life.protected(tracked.record, outcome.record, self.tables.next_number))
        if any(entry.event.operation is DDLOperation.ALTER_TABLE for entry in outcome.entries):
            _log.info("table_altered", table=str(tracked.table), incarnation=tracked.record.incarnation)

    def _note(self, tracked: TrackedTable, outcome: TableOutcome) -> None:
        """Take over the parts that only this process knows."""
        table = tracked.table
        if outcome.accepts is not None:
            self.source.accept({table: outcome.accepts})
        if outcome.altered_by is not None:
            self.alterations.delivered(table, outcome.altered_by)
        if outcome.is_undecoded:
            self.decoded.discard(table)
        if outcome.source_name is not None:
            self._name(tracked, outcome.source_name)
        if outcome.is_suspicious:
            self.snapshots.suspicious.add(table)
        if outcome.recreates:
            self.to_recreate.add(table)

    def _name(self, tracked: TrackedTable, source: TableId) -> None:
        """Give the table this name in the source from here on."""
        if self.names.source(tracked.table) == source:
            return
        self.tables.put(table_life.renamed(tracked.record, source))
        self.names.put(tracked.table, source)
        if tracked.record.identity is not None and tracked.record.stage is not Stage.FAILED:
            self.source.accept({tracked.table: tracked.record.identity})
        _log.info("table_renamed", table=str(tracked.table), source_table=str(source))

    def _uncaptured(self, record: TableRecord) -> TableRecord:
        return table_life.recreated(record) if record.table in self.to_recreate else record

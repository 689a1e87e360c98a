"""What becomes of tables that are renamed in the source.

A tracked table is the table of its name. If its table gets another name, it goes with it, until another table gets the name. So a table
that is renamed continues, and a table that was swapped for another one (`RENAME TABLE a TO a_old, a_new TO a`) is the new one: it gets a
snapshot in place. What follows from that depends on the names alone, not on how many statements, or transactions, led to them.

Durable with the commit that holds what was delivered up to the renaming. A crash before it reads the log again under the names before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from replicator.capture.definitions.catalogue import renamed, renamed_by_policy
from replicator.capture.definitions.names import SourceNames
from replicator.capture.definitions.seen import Alterations
from replicator.capture.settings import CaptureSettings
from replicator.capture.snapshots.driver import SnapshotRunner
from replicator.capture.tables import TrackedTable, TrackedTables
from replicator.config.model import DDLConfig
from replicator.model.alteration import Change
from replicator.model.errors import TableError
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.schema import TableId
from replicator.observability import get_logger
from replicator.plugins.source import SourceLog, Visibility
from replicator.state import table_life
from replicator.state.records import Decision, Stage, TableRecord

TAKEN: Final = "Another table has its name now."
_log = get_logger(__name__)


class Fate(StrEnum):
    """What becomes of a tracked table whose table has another name in the source."""

    CONTINUES = "continues"
    """It continues under the name under which it is tracked."""
    LOST = "lost"
    """As dropped: its new name is not replicated, or is replicated as a table of its own."""
    TAKEN = "taken"
    """As dropped: its new name is that of another tracked table, which it is from here on."""
    STOPPED = "stopped"
    """The policy is `stop`."""


def fate_of(record: TableRecord, new: TableId, tables: TrackedTables, settings: CaptureSettings) -> Fate:
    """What becomes of a table that is called `new` in the source now."""
    other = tables.get(new)
    if new == record.table:
        return Fate.CONTINUES
    if other is not None and table_life.is_replicated(other.record) and not is_unknown(other.record):
        return Fate.TAKEN
    policies = settings.ddl(record.table)
    if policies.rename_table == "stop":
        return Fate.STOPPED
    follows_name = settings.rename_starts_new_table(record.table)
    return Fate.LOST if why_lost(policies, selects=settings.selects(new), follows_name=follows_name) else Fate.CONTINUES


def why_lost(policies: DDLConfig, *, selects: bool, follows_name: bool) -> str | None:
    """Return why a table is not followed to its new name, in a sentence; None if it is.

    Args:
        policies: Of the table.
        selects: The configuration selects the new name.
        follows_name: The setting rename_starts_new_table of the table.
    """
    if not selects:
        return "No pattern of `tables.include` matches that name."
    if policies.rename_table == "ignore":
        return "The policy ddl.rename_table is `ignore`."
    if follows_name:
        return "The setting rename_starts_new_table is `true`: the target table keeps its rows, and the new name is a table of its own."
    return None


def is_unknown(record: TableRecord) -> bool:
    """Whether nothing of a table is there yet but its name, which the catalogue showed before the log told where it comes from."""
    return table_life.waits(record) and not table_life.has_begun(record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What the source was asked about the configuration's patterns. It waits for a mark: the log may bring the names that it saw.

    Attributes:
        selected: The tables that the configuration selects, under the names that they have in the source. Those that were `unnamed` only
            if they are `taken`.
        taken: The names of tables that were `unnamed` when it was asked, and that existed.
        seen: Taken before it was asked.
    """

    selected: Sequence[TableId]
    taken: frozenset[TableId]
    seen: Visibility | None


@dataclass(slots=True, kw_only=True)
class Renaming:
    """Called by the loop's thread alone.

    Attributes:
        decoded: As `CatalogTracker.decoded`: under the names that the tables have in the source.
        fail: The table stops.
        suspend: Nothing of the table is written until its new snapshot begins.
        start: Have snapshots of tables begin.
        outdate: What the catalogue was asked about the table under another name is of no use.
    """

    names: SourceNames
    source: SourceLog
    tables: TrackedTables
    snapshots: SnapshotRunner
    settings: CaptureSettings
    alterations: Alterations
    decoded: set[TableId]
    fail: Callable[[TrackedTable, TableError], None]
    suspend: Callable[[TrackedTable], None]
    start: Callable[[Sequence[TableId]], None]
    outdate: Callable[[TableId], None]

    def by_log(self, tracked: TrackedTable, event: DDLEvent, number: int) -> bool:
        """Act on an event if it is about names; whether it was. Also for a table that is not captured now."""
        if event.operation is DDLOperation.RENAME_TABLE:
            self._renamed(tracked, event, number)
            return True
        if event.operation is DDLOperation.CREATE_TABLE and table_life.is_dropped(tracked.record):
            self.rebind(tracked, event, number)
            return True
        return False

    def by_catalogue(self, tracked: TrackedTable, new: TableId) -> bool:
        """The catalogue shows the table under another name, and the log does not: nothing was written into it since.

        Returns whether it is followed.
        """
        fate = fate_of(tracked.record, new, self.tables, self.settings)
        if fate is Fate.CONTINUES or not table_life.is_dropped(tracked.record):
            event = DDLEvent(operation=DDLOperation.RENAME_TABLE, table=tracked.table, new_table=new)
            self._renamed(tracked, event, None)
        return fate is Fate.CONTINUES

    def unnamed(self) -> Sequence[TableId]:
        """The tables that do not have their names in the source, as far as is known."""
        tracked = self.tables.all(*table_life.REPLICATED)
        return [f.table for f in tracked if self.names.source(f.table) != f.table or table_life.is_dropped(f.record)]

    def take_selected(self, selection: Selection) -> Sequence[TableId]:
        """Take in which tables of the source the configuration selected, once the log has caught up with the answer.

        Returns:
            Those that are to be tracked, under the names by which they are.
        """
        for table in self.unnamed():
            tracked = self.tables.get(table)
            is_taken = table in selection.taken and not self.alterations.hides(table, selection.seen)
            if tracked is not None and is_taken:
                # Its name exists, and not for its table: another one has it.
                self.rebind(tracked, DDLEvent(operation=DDLOperation.CREATE_TABLE, table=table), None)
        return self.wanted(selection)

    def wanted(self, selection: Selection) -> Sequence[TableId]:
        """Those that are to be tracked, under the names by which they are now."""
        return [table for table in map(self.names.tracked, selection.selected) if table is not None]

    def release(self, tracked: TrackedTable) -> None:
        """The table is not in the source any more: a table that gets the name which it had last is a new one."""
        if self.names.source(tracked.table) != tracked.table:
            self.decoded.discard(tracked.table)
        self._name(tracked, tracked.table)

    def rebind(self, tracked: TrackedTable, event: DDLEvent, number: int | None) -> None:
        """Another table has the name: from here on the tracked one is that."""
        self.alterations.delivered(tracked.table, event.transaction_id)
        self.release(tracked)
        is_waiting = table_life.waits(tracked.record)
        if is_waiting or (table_life.has_failed(tracked.record) and not table_life.is_dropped(tracked.record)):
            return
        self._read_again(tracked, event, number, TAKEN)

    def _read_again(self, tracked: TrackedTable, event: DDLEvent, number: int | None, reason: str) -> None:
        self.tables.note(tracked, event, Decision.SNAPSHOT, changes=[Change.RENAME_TABLE], reason=reason, number=number)
        self.suspend(tracked)
        self.start([tracked.table])

    def _renamed(self, tracked: TrackedTable, event: DDLEvent, number: int | None) -> None:
        new = event.new_table
        if new is None:
            self.fail(tracked, renamed(tracked.table, None))
            return
        fate = fate_of(tracked.record, new, self.tables, self.settings)
        had_failed = table_life.has_failed(tracked.record)
        if fate is Fate.CONTINUES:
            self._make_way(tracked, new)
        if fate is not Fate.CONTINUES or number is None:
            self.decoded.discard(tracked.table)
        selects = fate is Fate.CONTINUES or (fate is Fate.STOPPED and self.settings.selects(new))
        self._name(tracked, new if selects else tracked.table)
        if not had_failed:
            self._act_on(fate, tracked, event, new, number)
        elif fate is Fate.CONTINUES and table_life.is_dropped(tracked.record):
            # The catalogue had shown that it does not have the name before; the log tells which one it has.
            self._read_again(tracked, event, number, "It exists again, under this name.")

    def _act_on(self, fate: Fate, tracked: TrackedTable, event: DDLEvent, new: TableId, number: int | None) -> None:
        decision, cause = _DECISIONS[fate], self._cause(tracked, new, fate)
        self.tables.note(tracked, event, decision, changes=[Change.RENAME_TABLE], reason=cause, number=number)
        match fate:
            case Fate.CONTINUES:
                if tracked.is_captured:
                    self.snapshots.suspicious.add(tracked.table)
            case Fate.STOPPED:
                self.fail(tracked, renamed_by_policy(tracked.table, new))
            case Fate.LOST | Fate.TAKEN:
                self.fail(tracked, renamed(tracked.table, new, cause))
                # Another table may have taken its name already.
                self.start([tracked.table])
        taken = self.tables.get(new) if fate is Fate.TAKEN else None
        if taken is not None:
            self.rebind(taken, event, number)

    def _cause(self, tracked: TrackedTable, new: TableId, fate: Fate) -> str | None:
        """Why the table is not followed; None if it is, or stops."""
        if fate is Fate.TAKEN:
            return "Another replicated table has that name."
        if fate is not Fate.LOST:
            return None
        table, settings = tracked.table, self.settings
        return why_lost(
            settings.ddl(table), selects=settings.selects(new), follows_name=settings.rename_starts_new_table(table)
        )

    def _make_way(self, tracked: TrackedTable, new: TableId) -> None:
        """No two tracked tables are the same one of the source."""
        other = self.tables.get(new)
        if other is not None and other is not tracked and table_life.is_replicated(other.record):
            self.tables.put(table_life.removed(other.record))
        before = self.names.tracked(new)
        stale = None if before in (None, new, tracked.table) else self.tables.get(before)
        if stale is not None:
            self.decoded.discard(stale.table)
            self._name(stale, stale.table)
            if stale.is_captured:
                self.suspend(stale)
                self.start([stale.table])

    def _name(self, tracked: TrackedTable, source: TableId) -> None:
        """The table has this name in the source from here on."""
        self.outdate(tracked.table)
        if self.names.source(tracked.table) == source:
            return
        self.tables.put(table_life.renamed(tracked.record, source))
        self.names.put(tracked.table, source)
        if tracked.record.identity is not None and tracked.record.stage is not Stage.FAILED:
            self.source.accept({tracked.table: tracked.record.identity})
        _log.info("table_renamed", table=str(tracked.table), source_table=str(source))


_DECISIONS = {
    Fate.CONTINUES: Decision.RECORD,
    Fate.LOST: Decision.IGNORE,
    Fate.TAKEN: Decision.IGNORE,
    Fate.STOPPED: Decision.STOP,
}

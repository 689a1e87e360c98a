"""Judges renamings in the source. Pure: tables and names are read.

A tracked table is the table of its name. If its table gets another name, it goes with it, until another table gets the name. So a table
that is renamed continues, and a table that was swapped for another one (`RENAME TABLE a TO a_old, a_new TO a`) is the new one: it gets a
snapshot in place. What follows from that depends on the names alone, not on how many statements, or transactions, led to them.

Durable with the commit that holds what was delivered up to the renaming. A crash before it reads the log again under the names before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from replicator.capture.definitions.catalogue import renamed, renamed_by_policy
from replicator.capture.definitions.names import SourceNames
from replicator.capture.definitions.outcome import Note, TableOutcome, TableOutcomes, failed
from replicator.capture.definitions.seen import Alterations
from replicator.capture.settings import CaptureSettings
from replicator.capture.tables import TrackedTables
from replicator.config.model import DDLConfig
from replicator.model.alteration import Change
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.schema import TableId
from replicator.plugins.source import Visibility
from replicator.state import table_life
from replicator.state.records import Decision, TableRecord

TAKEN: Final = "Another table has its name now."


class Fate(StrEnum):
    """The fate of a tracked table whose table has another name in the source."""

    CONTINUES = "continues"
    """It continues under the name under which it is tracked."""
    LOST = "lost"
    """As dropped: its new name is not replicated, or is replicated as a table of its own."""
    TAKEN = "taken"
    """As dropped: its new name is that of another tracked table, which it is from here on."""
    STOPPED = "stopped"
    """The policy is `stop`."""


def fate_of(record: TableRecord, new: TableId, tables: TrackedTables, settings: CaptureSettings) -> Fate:
    """Return the fate of a table that is called `new` in the source now."""
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
    """Return why a table does not continue under its new name, in a sentence; None if it is.

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
    """Return whether nothing of a table is there yet but its name, which the catalogue showed before the log told where it comes from."""
    return table_life.waits(record) and not table_life.has_begun(record)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionAnswer:
    """The source's answer about the configuration's patterns. It waits for a mark: the log may bring the names that it saw.

    Attributes:
        selected: The tables that the configuration selects, under the names that they have in the source. Those that were `unnamed` only
            if they are `taken`.
        taken: The names of tables that were `unnamed` when it was asked, and that existed.
        seen: Taken before it was asked.
    """

    selected: Sequence[TableId]
    taken: frozenset[TableId]
    seen: Visibility | None


@dataclass(frozen=True, slots=True)
class Renaming:
    """Judges names of tables: what the log or the catalogue says of them comes in, outcomes go out.

    Attributes:
        names: Those that tables have in the source.
        tables: All of them.
        settings: Of capture.
        alterations: What the open log has delivered.
    """

    names: SourceNames
    tables: TrackedTables
    settings: CaptureSettings
    alterations: Alterations

    def by_log(self, record: TableRecord, event: DDLEvent, number: int) -> TableOutcomes | None:
        """Judge an event of the log, also about a table that is not captured now; None if it is not about names."""
        if event.operation is DDLOperation.RENAME_TABLE:
            return self._renamed(record, event, number)
        if event.operation is DDLOperation.CREATE_TABLE and table_life.is_dropped(record):
            return self.rebound(record, event, number)
        return None

    def by_catalogue(self, record: TableRecord, new: TableId) -> TableOutcomes:
        """Judge a table that the catalogue shows under another name, and the log does not: nothing was written into it since."""
        fate = self._fate(record, new)
        if fate is not Fate.CONTINUES and table_life.is_dropped(record):
            return ()
        event = DDLEvent(operation=DDLOperation.RENAME_TABLE, table=record.table, new_table=new)
        return self._renamed(record, event, None)

    def continues_as(self, record: TableRecord, new: TableId) -> bool:
        """Return whether the table continues under this name."""
        return self._fate(record, new) is Fate.CONTINUES

    def unnamed(self) -> Sequence[TableId]:
        """Return the tables that do not have their names in the source, as far as is known."""
        tracked = self.tables.all(*table_life.REPLICATED)
        return [f.table for f in tracked if self.names.source(f.table) != f.table or table_life.is_dropped(f.record)]

    def taken(self, selection: SelectionAnswer) -> TableOutcomes:
        """Judge tables whose names exist in the source, and not for them: others have the names. The log has caught up with the answer."""
        return [
            outcome
            for table in self.unnamed()
            if table in selection.taken and not self.alterations.hides(table, selection.seen)
            if (tracked := self.tables.get(table)) is not None
            for outcome in self.rebound(
                tracked.record, DDLEvent(operation=DDLOperation.CREATE_TABLE, table=table), None
            )
        ]

    def wanted(self, selection: SelectionAnswer) -> Sequence[TableId]:
        """Return the tables that are to be tracked, under the names by which they are now."""
        return [table for table in map(self.names.tracked, selection.selected) if table is not None]

    def released(self, record: TableRecord) -> TableOutcome:
        """The table is not in the source any more: a table that gets the name which it had last is a new one."""
        return TableOutcome(
            is_undecoded=self.names.source(record.table) != record.table, source_name=record.table, is_outdated=True
        )

    def rebound(self, record: TableRecord, event: DDLEvent, number: int | None) -> TableOutcomes:
        """Another table has the name: from here on the tracked one is that."""
        released = replace(self.released(record), altered_by=event.transaction_id)
        is_waiting = table_life.waits(record)
        if is_waiting or (table_life.has_failed(record) and not table_life.is_dropped(record)):
            return [(record.table, released)]
        return [(record.table, released), (record.table, _read_again(event, number, TAKEN))]

    def _fate(self, record: TableRecord, new: TableId) -> Fate:
        return fate_of(record, new, self.tables, self.settings)

    def _renamed(self, record: TableRecord, event: DDLEvent, number: int | None) -> TableOutcomes:
        table, new = record.table, event.new_table
        if new is None:
            return [(table, failed(renamed(table, None)))]
        fate = self._fate(record, new)
        follows = fate is Fate.CONTINUES
        selects = follows or (fate is Fate.STOPPED and self.settings.selects(new))
        named = TableOutcome(
            is_undecoded=not follows or number is None, source_name=new if selects else table, is_outdated=True
        )
        found = [*(self._make_way(record, new) if follows else ()), (table, named)]
        if not table_life.has_failed(record):
            return [*found, *self._judged(fate, record, event, new, number)]
        if follows and table_life.is_dropped(record):
            # The catalogue had shown that it does not have the name before; the log tells which one it has.
            found.append((table, _read_again(event, number, "It exists again, under this name.")))
        return found

    def _judged(
        self, fate: Fate, record: TableRecord, event: DDLEvent, new: TableId, number: int | None
    ) -> TableOutcomes:
        table, cause = record.table, self._cause(record.table, new, fate)
        note = Note(event=event, decision=_DECISIONS[fate], changes=(Change.RENAME_TABLE,), reason=cause, number=number)
        match fate:
            case Fate.CONTINUES:
                outcome = TableOutcome(notes=(note,), is_suspicious=table_life.is_captured(record))
            case Fate.STOPPED:
                outcome = failed(renamed_by_policy(table, new), note)
            case _:
                # LOST or TAKEN. Another table may have taken its name already.
                outcome = replace(failed(renamed(table, new, cause), note), needs_snapshot=True)
        taken = self.tables.get(new) if fate is Fate.TAKEN else None
        return [(table, outcome), *(self.rebound(taken.record, event, number) if taken is not None else ())]

    def _cause(self, table: TableId, new: TableId, fate: Fate) -> str | None:
        """Return why the table does not continue; None if it does, or stops."""
        if fate is Fate.TAKEN:
            return "Another replicated table has that name."
        if fate is not Fate.LOST:
            return None
        settings = self.settings
        return why_lost(
            settings.ddl(table), selects=settings.selects(new), follows_name=settings.rename_starts_new_table(table)
        )

    def _make_way(self, record: TableRecord, new: TableId) -> TableOutcomes:
        """No two tracked tables are the same one of the source."""
        found: list[tuple[TableId, TableOutcome]] = []
        other = self.tables.get(new)
        if other is not None and other.table != record.table and table_life.is_replicated(other.record):
            found.append((new, TableOutcome(record=table_life.removed(other.record))))
        before = self.names.tracked(new)
        stale = None if before in (None, new, record.table) else self.tables.get(before)
        if stale is not None:
            freed = TableOutcome(is_undecoded=True, source_name=stale.table, is_outdated=True)
            found.append((stale.table, replace(freed, needs_snapshot=stale.is_captured)))
        return found


def _read_again(event: DDLEvent, number: int | None, reason: str) -> TableOutcome:
    note = Note(event=event, decision=Decision.SNAPSHOT, changes=(Change.RENAME_TABLE,), reason=reason, number=number)
    return TableOutcome(notes=(note,), needs_snapshot=True)


_DECISIONS = {
    Fate.CONTINUES: Decision.RECORD,
    Fate.LOST: Decision.IGNORE,
    Fate.TAKEN: Decision.IGNORE,
    Fate.STOPPED: Decision.STOP,
}

"""Keeps the captured tables in line with the source's catalogue, and begins snapshots at positions in the log.

Every step asks the source in the control thread, then has a mark written, and acts when the mark is delivered: by
then everything that the answer could know of has been delivered. Nothing here is durable before the commit that holds
what it led to; a crash in between asks again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from replicator.capture.asking import Answer
from replicator.capture.definitions import altering
from replicator.capture.definitions.applying import Applied, Definitions
from replicator.capture.definitions.catalogue import UNEXPLAINED, CatalogChange, same_shape
from replicator.capture.definitions.comparison import Comparison, ComparisonMark, Different
from replicator.capture.definitions.outcome import TableOutcome, TableOutcomes, failed
from replicator.capture.definitions.renaming import Renaming, SelectionAnswer
from replicator.capture.definitions.unlogged import Unlogged, undecoded
from replicator.capture.settings import CaptureSettings
from replicator.capture.snapshots.beginning import Beginnings
from replicator.capture.snapshots.driver import SnapshotRunner
from replicator.capture.snapshots.starting import StartingMark
from replicator.capture.tables import TrackedTable, TrackedTables
from replicator.capture.window import Window
from replicator.model.alteration import Change
from replicator.model.errors import TableError
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.isolation import of_table
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import TableDescription
from replicator.state import table_life
from replicator.state.records import Stage


@dataclass(slots=True, kw_only=True)
class CatalogTracker:
    """Catalogue, DDL and requests for snapshots. Called by the loop's thread alone.

    Attributes:
        window: Knows from which number on reads see transactions.
        tables: All of them.
        snapshots: Those that run.
        settings: Of capture.
        definitions: Carries out what becomes of tables.
        comparison: Compares tables with the catalogue.
        beginnings: Snapshots that are to begin.
        renaming: Judges names.
        unlogged: Judges rows that may have changed without a trace in the log.
        done_requests: Requests that the next commit closes.
        needs_reopening: A snapshot waits that can only begin behind a log that is opened again, because this one skips its table.
    """

    window: Window
    tables: TrackedTables
    snapshots: SnapshotRunner
    settings: CaptureSettings
    definitions: Definitions
    comparison: Comparison
    beginnings: Beginnings
    renaming: Renaming
    unlogged: Unlogged
    done_requests: list[int] = field(default_factory=list)
    needs_reopening: bool = False
    _missed: set[TableId] = field(default_factory=set)
    """Altered while nothing of them was written: the open log may number their columns in another way."""

    # --- driven by the loop -------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Take in the answers of the control thread; raise what it raised."""
        self.refuse(self.beginnings.poll())
        self.refuse(self.comparison.poll())

    def take_mark(self, mark: StartingMark | ComparisonMark) -> None:
        """Take in that the log delivered a mark, and no transaction is open."""
        match mark:
            case StartingMark():
                self.beginnings.take_mark(mark, self.tables.next_number)
            case ComparisonMark():
                self._act_on(self.comparison.take_mark())

    def begin_due(self) -> None:
        """Between transactions: begin the snapshots for which reads see enough, and that wait for no transaction."""
        for starting in self.beginnings.take_due():
            hides = self.definitions.alterations.hides
            outdated = [t for t in starting.tables if t in starting.outdated or hides(t, starting.asked)]
            for table in starting.tables:
                with of_table(table, "starting its snapshot"):
                    if table in outdated:
                        self._wait_again(table)
                    else:
                        self._begin(table, starting.found.get(table), starting.moved.get(table))
            self.done_requests.extend(starting.requests)
            if outdated:
                self.start(outdated)
        self.beginnings.look_again()

    # --- snapshots that begin -----------------------------------------------------------------------------------------

    def start(self, tables: Sequence[TableId], *, found: Answer | None = None, requests: Sequence[int] = ()) -> None:
        """Begin snapshots of these tables at a coming position in the log; arguments as `Beginnings.start`."""
        self.beginnings.start(tables, found=found, requests=requests)

    def refuse(self, refused: Mapping[TableId, TableError]) -> None:
        """Stop these tables, each for its reason."""
        for table, error in refused.items():
            tracked = self.tables.get(table)
            if tracked is not None and table_life.is_replicated(tracked.record):
                self._apply([(table, failed(error))])

    def _begin(self, table: TableId, found: TableDescription | None, moved: TableId | None) -> None:
        tracked = self.tables.get(table)
        if tracked is None or not table_life.is_replicated(tracked.record):
            return
        if found is None:
            continues = moved is not None and self.renaming.continues_as(tracked.record, moved)
            self._apply(self._not_found(tracked, moved))
            if continues:
                self._suspend(table)
            return
        if not self._follows_constraints(tracked, found):
            return
        if table not in self.definitions.decoded:
            if altering.is_asked_for_as_it_is(tracked.record, found):
                self.definitions.to_recreate.add(table)
            self._suspend(table)
            self.needs_reopening = True
            return
        self.snapshots.drop(table)
        has_begun = table_life.has_begun(tracked.record)
        # The log was opened with the shape before: behind one opened with this, nothing looks like a change of it again.
        is_reshaped = has_begun and not same_shape(tracked.schema, found.schema)
        self.needs_reopening = self.needs_reopening or table in self._missed or is_reshaped
        shaped = self._shaped(tracked, found) if has_begun else TableOutcome()
        self._apply([(table, replace(shaped, recreates=False, accepts=found.identity))])
        if not shaped.continues:
            return
        incarnation = tracked.record.incarnation + shaped.recreates
        if not has_begun or shaped.recreates:
            mode = "initial" if shaped.recreates else self.settings.snapshot_mode
            self.tables.begin_incarnation(tracked, found, incarnation=incarnation, mode=mode)
        else:
            # A read of a table without a key counts only if it saw all that was delivered before it: none of that may stay, or
            # what was written in between would be there twice.
            number = self.tables.next_number
            self.tables.begin_again(tracked, found, self.window.start_number(number) if found.schema.key else number)
        self._apply([(table, self.unlogged.begun(tracked, self.window.start_number(self.tables.next_number)))])
        if tracked.record.stage is Stage.SNAPSHOT:
            self.snapshots.begin(tracked)

    def _shaped(self, tracked: TrackedTable, found: TableDescription) -> TableOutcome:
        """Judge the shape in which a snapshot finds a table whose incarnation has begun; `recreates` begins another one."""
        is_asked_for = tracked.table in self.definitions.to_recreate or tracked.record.is_recreated
        self.definitions.to_recreate.discard(tracked.table)
        return (
            TableOutcome(recreates=True)
            if is_asked_for
            else altering.before_snapshot(tracked.record, found, self.settings)
        )

    def _suspend(self, table: TableId) -> None:
        """Write nothing of the table until its next snapshot begins, also after a restart; that begins when something else asks."""
        self.definitions.apply([(table, TableOutcome(needs_snapshot=True))])

    def _wait_again(self, table: TableId) -> None:
        """Have the table's snapshot wait until the catalogue was asked once more, also after a restart: its answer is out of date."""
        tracked = self.tables.get(table)
        if (
            tracked is not None
            and table_life.is_replicated(tracked.record)
            and not table_life.is_dropped(tracked.record)
        ):
            self._suspend(table)

    # --- the catalogue ------------------------------------------------------------------------------------------------

    def compare(self) -> bool:
        """Ask the catalogue for every captured table, unless an answer is on its way; return whether it was asked."""
        if not self.comparison.is_idle:
            return False
        self.snapshots.suspicious.clear()
        if captured := self.tables.captured():
            self.comparison.ask(captured)
        return True

    def compare_with(self, tables: Sequence[TableId], found: Answer) -> None:
        """Compare these tables with an answer that is there already."""
        self.comparison.take_answer(tables, found)

    def _act_on(self, different: Sequence[Different]) -> None:
        again: list[TableId] = []
        for one in different:
            with of_table(one.tracked.table, "comparing it with the catalogue"):
                again += self._carry_out(self._outcomes_of(*one)).starting
        if again:
            self.start(again)

    def _outcomes_of(
        self, tracked: TrackedTable, change: CatalogChange, found: TableDescription | None, moved: TableId | None
    ) -> TableOutcomes:
        """Judge a table that differs from what was accepted of it."""
        if change is CatalogChange.ASK_AGAIN:
            return [(tracked.table, TableOutcome(is_suspicious=True))]
        if change is CatalogChange.DROPPED or found is None:
            return self._not_found(tracked, moved)
        if not self._follows_constraints(tracked, found):
            return []
        record = tracked.record
        if change is CatalogChange.EXPLAINED:
            outcome = altering.explained_in_catalogue(record, found)
        elif change in (CatalogChange.COLUMNS, CatalogChange.KEY):
            outcome = altering.altered_in_catalogue(record, found, self.settings)
        elif change in UNEXPLAINED:
            outcome = altering.unexplained_in_catalogue(record, change, self.settings)
        else:
            return []
        return [(tracked.table, outcome)]

    def _follows_constraints(self, tracked: TrackedTable, found: TableDescription) -> bool:
        """Follow what may be NULL and defaults; return whether the table continues."""
        is_recreated = tracked.table in self.definitions.to_recreate
        outcome = altering.other_constraints(tracked.record, found, self.settings, is_recreated=is_recreated)
        self._apply([(tracked.table, outcome)])
        return outcome.continues

    def _not_found(self, tracked: TrackedTable, moved: TableId | None) -> TableOutcomes:
        """Judge a table of which everything is delivered, and that the source has not, but perhaps under another name (`moved`)."""
        if moved is not None:
            outcomes = self.renaming.by_catalogue(tracked.record, moved)
            # The log was opened for another name.
            continues = self.renaming.continues_as(tracked.record, moved)
            return [(table, replace(one, reopens=continues)) for table, one in outcomes]
        return [] if table_life.is_dropped(tracked.record) else self._dropped(tracked)

    def _dropped(
        self, tracked: TrackedTable, event: DDLEvent | None = None, number: int | None = None
    ) -> TableOutcomes:
        record = tracked.record
        return [
            (record.table, altering.dropped(record, event, number, self.settings)),
            (record.table, self.renaming.released(record)),
        ]

    # --- changes of tables in the log ---------------------------------------------------------------------------------

    def ddl(self, event: DDLEvent, number: int) -> None:
        """Judge a DDL event of the log at its position, and carry out what becomes of the table."""
        if event.operation in (DDLOperation.ALTER_TABLE, DDLOperation.RENAME_TABLE, DDLOperation.DROP_TABLE):
            self.definitions.alterations.delivered(event.table, event.transaction_id)
        tracked = self.tables.get(event.table)
        if tracked is not None and table_life.is_replicated(tracked.record):
            with of_table(event.table, "following its name"):
                renamed = self.renaming.by_log(tracked.record, event, number)
                if renamed is not None:
                    self._apply(renamed)
                    return
        if tracked is None or not tracked.is_captured:
            self._missed.update([event.table] if event.operation is DDLOperation.ALTER_TABLE else [])
        else:
            with of_table(event.table, f"processing its {event.operation.value}"):
                self._ddl(tracked, event, number)

    def _ddl(self, tracked: TrackedTable, event: DDLEvent, number: int) -> None:
        record, settings = tracked.record, self.settings
        match event.operation:
            case DDLOperation.TRUNCATE_TABLE:
                tracked.truncates += 1
                self._apply([(record.table, altering.truncated_by_log(record, event, number, settings))])
            case DDLOperation.DROP_TABLE:
                self._apply(self._dropped(tracked, event, number))
            case DDLOperation.ALTER_TABLE:
                self._apply([(record.table, altering.altered_by_log(record, event, number, settings))])
            case DDLOperation.CREATE_TABLE:
                self._apply([(record.table, altering.replaced(record, event, number))])
            case _:
                pass  # The rest concerns no captured table.

    def unlogged_rows(self, table: TableId, number: int, error: TableError | None) -> None:
        """Take in that rows of the table may have changed without a trace in the log. `error` as `LogBatch.unlogged_errors`."""
        self._apply([(table, self.unlogged.judge(table, number, error))])

    def repeat_outdated(self, tables: Sequence[TableId]) -> None:
        """Repeat those of these complete snapshots that were outdated before."""
        self._apply(self.unlogged.repeated(tables))

    def take_selected(self, selection: SelectionAnswer) -> Sequence[TableId]:
        """Take in which tables the configuration selects, once the log has caught up; return those to track, by their tracked names."""
        self._apply(self.renaming.taken(selection))
        return self.renaming.wanted(selection)

    def follow_settings(self) -> None:
        """Follow settings of columns that are others than those that captured tables go by."""
        for tracked in self.tables.all(*table_life.CAPTURED):
            with of_table(tracked.table, "following the settings of its columns"):
                outcome = altering.other_settings(tracked.record, self.settings)
                if outcome != TableOutcome():
                    self._apply([(tracked.table, outcome)])

    def accept(self, tracked: TrackedTable) -> bool:
        """Somebody accepts the change at which the table stopped; return whether a snapshot is to begin for that."""
        self.tables.put(table_life.change_accepted(tracked.record))
        is_dropped = tracked.record.stopped_at is Change.DROP_TABLE
        if is_dropped:
            self._apply(self._dropped(tracked))
        return not is_dropped

    def undecoded(self, tracked: TrackedTable, error: TableError) -> None:
        """Take in that the log does not hand out the changes of the table any more."""
        self._apply([(tracked.table, undecoded(tracked.record, error))])

    def reshaped(self, tracked: TrackedTable, schema: TableSchema | None) -> None:
        """Take in that the log brings another shape and does not say how it came."""
        self._apply([(tracked.table, altering.reshaped(tracked.record, schema))])

    # --- what becomes of tables ---------------------------------------------------------------------------------------

    def _apply(self, outcomes: TableOutcomes) -> None:
        """Carry out outcomes, and have the snapshots begin that follow from them."""
        if starting := self._carry_out(outcomes).starting:
            self.start(starting)

    def _carry_out(self, outcomes: TableOutcomes) -> Applied:
        applied = self.definitions.apply(outcomes)
        for table in applied.outdated:
            # Answers of the catalogue that are on their way do not know its name, or its constraints.
            self.beginnings.outdate(table)
            self.comparison.outdate(table)
        self.needs_reopening = self.needs_reopening or applied.reopens
        return applied

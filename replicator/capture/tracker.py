"""Keeps the captured tables in line with the source's catalogue, and begins snapshots at positions in the log.

Every step asks the source in the control thread, then has a mark written, and acts when the mark is delivered: by
then everything that the answer could know of has been delivered. Nothing here is durable before the commit that holds
what it led to; a crash in between asks again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from replicator.capture.asking import Answer
from replicator.capture.checks import Checks, prepare_and_describe
from replicator.capture.definitions.altering import Altering
from replicator.capture.definitions.catalogue import UNEXPLAINED, CatalogChange, same_columns, same_shape, unexplained
from replicator.capture.definitions.comparison import Comparison, ComparisonMark, Different
from replicator.capture.definitions.constraints import Constraints
from replicator.capture.definitions.names import SourceNames
from replicator.capture.definitions.policies import Effect, effect_of
from replicator.capture.definitions.renaming import Renaming
from replicator.capture.definitions.seen import Alterations
from replicator.capture.definitions.unlogged import Unlogged
from replicator.capture.marks import MarkBoard
from replicator.capture.settings import CaptureSettings
from replicator.capture.snapshots.driver import SnapshotRunner
from replicator.capture.snapshots.starting import (
    Delivered,
    Described,
    Inquiry,
    Looked,
    LookedFirst,
    Question,
    Reads,
    Starting,
    StartingMark,
    Step,
    advance,
    question,
)
from replicator.capture.tables import TrackedTable, TrackedTables
from replicator.capture.window import Window
from replicator.journal.writer import JournalWriter
from replicator.model.alteration import Change
from replicator.model.errors import SchemaConflictError, TableError
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.isolation import of_table
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import DeltaSource, TableDescription, Visibility
from replicator.state import table_life
from replicator.state.records import Decision, Stage, TableRecord


@dataclass(slots=True, kw_only=True)
class CatalogTracker:
    """Catalogue, DDL and requests for snapshots. Called by the loop's thread alone.

    Attributes:
        submit: Runs a call in the control thread.
        configured: The tables that the configuration selects.
        checks: What a table must pass before its snapshot.
        decoded: The tables whose changes the open log hands out; one leaves it when its changes cannot be decoded.
        alterations: Those that the open log has delivered.
        names: Under which the source has the tables.
        done_requests: Requests that the next commit closes.
        to_recreate: Tables whose next snapshot begins a new incarnation, whatever their shape. What makes it durable: until a captured
            table's snapshot begins, the request for it stays open; the record of one that is not captured says so (`is_recreated`).
        needs_reopening: A snapshot waits that can only begin behind a log that is opened again, because this one skips its table.
    """

    source: DeltaSource[Any]
    submit: Callable[..., Future[Any]]
    writer: JournalWriter
    window: Window
    marks: MarkBoard[Any]
    tables: TrackedTables
    snapshots: SnapshotRunner
    settings: CaptureSettings
    configured: Sequence[TableId]
    checks: Checks
    decoded: set[TableId]
    alterations: Alterations
    names: SourceNames
    done_requests: list[int] = field(default_factory=list)
    to_recreate: set[TableId] = field(default_factory=set)
    needs_reopening: bool = False
    _starting: dict[int, Starting] = field(default_factory=dict)
    _ids: Iterator[int] = field(default_factory=itertools.count)
    _inquiries: tuple[Inquiry, ...] = ()
    _missed: set[TableId] = field(default_factory=set)
    """Altered while nothing of them was written: the open log may number their columns in another way."""
    _comparison: Comparison = field(init=False)
    _altering: Altering = field(init=False)
    _constraints: Constraints = field(init=False)
    renaming: Renaming = field(init=False)
    unlogged: Unlogged = field(init=False)

    def __post_init__(self) -> None:
        """Nothing is compared yet."""
        self._altering = Altering(
            source=self.source, tables=self.tables, snapshots=self.snapshots, policies=self.settings.ddl,
            widens=self.settings.widens,
        )  # fmt: skip
        self._constraints = Constraints(
            tables=self.tables, settings=self.settings, to_recreate=self.to_recreate, fail=self.fail, outdate=self._outdate,
        )  # fmt: skip
        self._comparison = Comparison(
            source=self.source, submit=self.submit, marks=self.marks, tables=self.tables, alterations=self.alterations
        )
        self.unlogged = Unlogged(self.settings, self.tables, self._suspend, self.start, self.fail_undecoded)
        self.renaming = Renaming(
            names=self.names, source=self.source, tables=self.tables, snapshots=self.snapshots, settings=self.settings,
            alterations=self.alterations, decoded=self.decoded, fail=self.fail, suspend=self._suspend, start=self.start,
            outdate=self._outdate,
        )  # fmt: skip

    # --- driven by the loop -------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Take in the answers of the control thread, looking once at each, as it may come at any time; raises what it raised."""
        due = [inquiry for inquiry in self._inquiries if inquiry.future.done()]
        self._inquiries = tuple(inquiry for inquiry in self._inquiries if inquiry not in due)
        for inquiry in due:
            answer = inquiry.future.result()
            for id_ in inquiry.ids:
                if id_ in self._starting:
                    self._take_answer(self._starting[id_], answer)
        self.refuse(self._comparison.poll())

    def take_mark(self, mark: StartingMark | ComparisonMark) -> None:
        """The log delivered a mark, and no transaction is open."""
        match mark:
            case StartingMark():
                delivered = Delivered(next_number=self.writer.next_sequence_num)
                self._starting[mark.id] = advance(self._starting[mark.id], delivered)
            case ComparisonMark():
                self._act_on(self._comparison.take_mark())

    def begin_due(self) -> None:
        """Between transactions: begin the snapshots for which reads see enough, and that wait for no transaction."""
        for starting in list(self._starting.values()):
            if starting.step is not Step.SETTLING:
                continue
            starting = advance(starting, Reads(see_below=self.window.start_number(starting.floor)))  # noqa: PLW2901
            if starting.step is Step.SETTLING:
                self._starting[starting.id] = starting
                continue
            del self._starting[starting.id]
            outdated = [
                t for t in starting.tables if t in starting.outdated or self.alterations.hides(t, starting.asked)
            ]
            for table in starting.tables:
                with of_table(table, "starting its snapshot"):
                    if table in outdated:
                        self._wait_again(table)
                    else:
                        self._begin(table, starting.found.get(table), starting.moved.get(table))
            self.done_requests.extend(starting.requests)
            if outdated:
                self.start(outdated)
        self._look_again()

    @property
    def is_settling(self) -> bool:
        """Whether snapshots wait for transactions to become visible: the ring wants pruning."""
        return any(starting.step is Step.SETTLING for starting in self._starting.values())

    @property
    def since(self) -> Visibility | None:
        """The next snapshot waits for the transactions that had begun by then; None if none waits."""
        return next((s.waits_for for s in self._starting.values() if s.waits_for is not None), None)

    def step_of(self, table: TableId) -> Step | None:
        """At which step the next snapshot of the table is; None if none is to begin."""
        return next((s.step for s in self._starting.values() if table in s.tables), None)

    def captured(self) -> Sequence[TableId]:
        """The tables whose changes are written."""
        return [f.table for f in self.tables.all(*table_life.CAPTURED)]

    # --- snapshots that are to begin ----------------------------------------------------------------------------------

    def start(self, tables: Sequence[TableId], *, found: Answer | None = None, requests: Sequence[int] = ()) -> None:
        """Begin snapshots of these tables at a coming position in the log.

        Args:
            tables: That need a snapshot.
            found: What the catalogue says, if it was asked after the tables were last prepared; else they are prepared
                again and it is asked.
            requests: What is done once they have begun.
        """
        starting = Starting(id=next(self._ids), tables=tuple(tables), requests=tuple(requests))
        if found is not None:
            told = Described(tables=starting.tables, found=found.found, asked=found.seen, moved=found.moved)
            starting = advance(starting, told)
        self._put(starting)

    def recreate(self, tables: Sequence[TableId]) -> None:
        """Have the next snapshots of these tables begin new incarnations."""
        self.to_recreate.update(tables)
        for tracked in map(self.tables.get, tables):
            if tracked is not None and not tracked.is_captured:
                self.tables.put(self._uncaptured(tracked.record))

    def refuse(self, refused: Mapping[TableId, TableError]) -> None:
        """These tables stop, each for its reason."""
        for table, error in refused.items():
            tracked = self.tables.get(table)
            if tracked is not None and table_life.is_replicated(tracked.record):
                self.fail(tracked, error)

    def _put(self, starting: Starting) -> None:
        """Keep it, and ask what it waits for."""
        self._starting[starting.id] = starting
        match question(starting):
            case Question.CATALOGUE:
                asked = (self.source, self.configured, self.captured(), starting.tables, self.checks)
                self._ask((starting.id,), prepare_and_describe, *asked)
            case Question.VISIBILITY:
                self._ask((starting.id,), self.source.visibility)
            case Question.MARK:
                self.marks.expect(self.submit(self.source.mark), StartingMark(starting.id))
            case Question.NOTHING:
                pass

    def _take_answer(self, starting: Starting, answer: Any) -> None:
        match starting.step:
            case Step.PREPARING:
                self.refuse(answer.refused)
                fit = tuple(t for t in starting.tables if t not in answer.refused)
                told = Described(tables=fit, found=answer.found, asked=answer.seen, moved=answer.moved)
                self._put(advance(starting, told))
            case Step.LOOKING:
                may_lack = not all(self._is_tracked_as(t, starting.found.get(t)) for t in starting.tables)
                self._put(advance(starting, LookedFirst(since=answer, may_lack=may_lack)))
            case _:
                self._starting[starting.id] = advance(starting, Looked(seen=answer))

    def _look_again(self) -> None:
        """Ask once for all that wait for transactions."""
        asked = {id_ for inquiry in self._inquiries for id_ in inquiry.ids}
        settling = [s for s in self._starting.values() if s.step is Step.SETTLING and s.id not in asked]
        ids = tuple(s.id for s in settling if question(s) is Question.VISIBILITY)
        if ids:
            self._ask(ids, self.source.visibility)

    def _ask(self, ids: tuple[int, ...], call: Callable[..., Any], *arguments: Any) -> None:
        self._inquiries = (*self._inquiries, Inquiry(self.submit(call, *arguments), ids))

    def _is_tracked_as(self, table: TableId, found: TableDescription | None) -> bool:
        """Whether the log has left out nothing of the table as it is now."""
        tracked = self.tables.get(table)
        is_captured = tracked is not None and tracked.is_captured
        return is_captured and self._comparison.change_of(table, found) in (CatalogChange.NONE, CatalogChange.EXPLAINED)

    def _begin(self, table: TableId, found: TableDescription | None, moved: TableId | None) -> None:
        tracked = self.tables.get(table)
        if tracked is None or not table_life.is_replicated(tracked.record):
            return
        if found is None:
            if self._not_found(tracked, moved):
                self._suspend(tracked)
            return
        if not self._constraints.follow(tracked, found):
            return
        if table not in self.decoded:
            if self._altering.is_asked_for_as_it_is(tracked, found):
                self.to_recreate.add(table)
            self._suspend(tracked)
            self.needs_reopening = True
            return
        self.source.accept({table: found.identity})
        self.snapshots.drop(table)
        has_begun = table_life.has_begun(tracked.record)
        # The log was opened with the shape before: behind one opened with this, nothing looks like a change of it again.
        is_reshaped = has_begun and not same_shape(tracked.schema, found.schema)
        self.needs_reopening = self.needs_reopening or table in self._missed or is_reshaped
        try:
            is_recreated = has_begun and self._is_recreated(tracked, found)
        except SchemaConflictError as error:
            self.fail(tracked, error)
            return
        incarnation = tracked.record.incarnation + is_recreated
        if not has_begun or is_recreated:
            mode = "initial" if is_recreated else self.settings.snapshot_mode
            self.tables.begin_incarnation(tracked, found, incarnation=incarnation, mode=mode)
        else:
            # A read of a table without a key counts only if it saw all that was delivered before it: none of that may stay, or
            # what was written in between would be there twice.
            number = self.writer.next_sequence_num
            self.tables.begin_again(tracked, found, self.window.start_number(number) if found.schema.key else number)
        self.unlogged.begun(tracked, self.window.start_number(self.writer.next_sequence_num))
        if tracked.record.stage is Stage.SNAPSHOT:
            self.snapshots.begin(tracked)

    def _is_recreated(self, tracked: TrackedTable, found: TableDescription) -> bool:
        """Whether a snapshot that begins is a new incarnation's. Otherwise the target follows to the shape that it has."""
        is_asked_for = tracked.table in self.to_recreate or tracked.record.is_recreated
        self.to_recreate.discard(tracked.table)
        return is_asked_for or self._altering.before_snapshot(tracked, found) is Decision.REBUILD

    def _wait_again(self, table: TableId) -> None:
        """What the catalogue said of the table is out of date: its snapshot waits until it was asked once more, also after a restart."""
        tracked = self.tables.get(table)
        if (
            tracked is not None
            and table_life.is_replicated(tracked.record)
            and not table_life.is_dropped(tracked.record)
        ):
            self._suspend(tracked)

    def _outdate(self, table: TableId) -> None:
        """Something is known of the table by now that answers of the catalogue do not know: its name, or its constraints."""
        for id_, starting in self._starting.items():
            if table in starting.tables:
                self._starting[id_] = replace(starting, outdated=starting.outdated | {table})
        self._comparison.outdate(table)

    # --- the catalogue ------------------------------------------------------------------------------------------------

    def compare(self) -> bool:
        """Ask the catalogue for every captured table, unless an answer is on its way; whether it was asked."""
        if not self._comparison.is_idle:
            return False
        self.snapshots.suspicious.clear()
        if captured := self.captured():
            self._comparison.ask(captured)
        return True

    def compare_with(self, tables: Sequence[TableId], found: Answer) -> None:
        """The same with an answer that is there already."""
        self._comparison.take_answer(tables, found)

    def _act_on(self, different: Sequence[Different]) -> None:
        again: list[TableId] = []
        for table in different:
            with of_table(table.tracked.table, "comparing it with the catalogue"):
                again += self._act_on_one(*table)
        if again:
            self.start(again)

    def _act_on_one(
        self, tracked: TrackedTable, change: CatalogChange, found: TableDescription | None, moved: TableId | None
    ) -> Sequence[TableId]:
        """Act on what became of a table; return it if it needs a new snapshot."""
        if change is CatalogChange.ASK_AGAIN:
            self.snapshots.suspicious.add(tracked.table)
        elif change is CatalogChange.DROPPED or found is None:
            self._not_found(tracked, moved)
        elif not self._constraints.follow(tracked, found):
            return []
        elif change is CatalogChange.EXPLAINED:
            self.tables.put(table_life.accepted(tracked.record, found.identity))
            self.source.accept({tracked.table: found.identity})
        elif change in (CatalogChange.COLUMNS, CatalogChange.KEY):
            return self._found_altered(tracked, found)
        elif change in UNEXPLAINED:
            return [self._unexplained(tracked, change)]
        return []

    def _unexplained(self, tracked: TrackedTable, change: CatalogChange) -> TableId:
        if self.settings.unexplained_change == "stop" and not tracked.record.is_altered:
            raise unexplained(tracked.table, change)
        self._altering.note_unexplained(tracked, change)
        self._suspend(tracked)
        return tracked.table

    # --- changes of tables in the log ---------------------------------------------------------------------------------

    def ddl(self, event: DDLEvent, number: int) -> None:
        """Apply the policy for a DDL event of the log at its position."""
        if event.operation in (DDLOperation.ALTER_TABLE, DDLOperation.RENAME_TABLE, DDLOperation.DROP_TABLE):
            self.alterations.delivered(event.table, event.transaction_id)
        tracked = self.tables.get(event.table)
        if tracked is not None and table_life.is_replicated(tracked.record):
            with of_table(event.table, "following its name"):
                if self.renaming.by_log(tracked, event, number):
                    return
        if tracked is None or not tracked.is_captured:
            self._missed.update([event.table] if event.operation is DDLOperation.ALTER_TABLE else [])
        else:
            with of_table(event.table, f"processing its {event.operation.value}"):
                self._ddl(tracked, event, number)

    def _ddl(self, tracked: TrackedTable, event: DDLEvent, number: int) -> None:
        match event.operation:
            case DDLOperation.TRUNCATE_TABLE:
                self.snapshots.suspicious.add(tracked.table)
                if (stop := self._altering.truncated(tracked, event, number)) is not None:
                    self.fail(tracked, stop, stopped_at=Change.TRUNCATE_TABLE)
            case DDLOperation.DROP_TABLE:
                self.drop_missing(tracked, event, number)
            case DDLOperation.ALTER_TABLE:
                self._alter(tracked, event, number)
            case DDLOperation.CREATE_TABLE:
                # Another object took the name, or rows came or went that the log does not name.
                self._altering.note_replaced(tracked, event, number)
                self.tables.put(replace(tracked.record, identity=None))
                self._suspend(tracked)
                self.start([tracked.table])
            case _:
                pass  # The rest concerns no captured table.

    def _not_found(self, tracked: TrackedTable, moved: TableId | None) -> bool:
        """Everything is delivered, and the source has no table of this name, but perhaps the table under another one (`moved`).

        Returns whether the table continues.
        """
        if moved is None:
            if not table_life.is_dropped(tracked.record):
                self.drop_missing(tracked)
            return False
        continues = self.renaming.by_catalogue(tracked, moved)
        # The log was opened for another name.
        self.needs_reopening = self.needs_reopening or continues
        return continues

    def drop_missing(self, tracked: TrackedTable, event: DDLEvent | None = None, number: int | None = None) -> None:
        """The table is not in the source any more."""
        dropped = self._altering.dropped(tracked, event, number)
        self.to_recreate.update([tracked.table] if dropped.is_in_target else [])
        self.fail(tracked, dropped.error, stopped_at=dropped.stopped_at)
        self.renaming.release(tracked)

    def accept(self, tracked: TrackedTable) -> bool:
        """Somebody accepts the change at which the table stopped; whether a snapshot is to begin for that."""
        self.tables.put(table_life.change_accepted(tracked.record))
        is_dropped = tracked.record.stopped_at is Change.DROP_TABLE
        if is_dropped:
            self.drop_missing(tracked)
        return not is_dropped

    def fail(self, tracked: TrackedTable, error: TableError, *, stopped_at: Change | None = None) -> None:
        """The table stops; the others continue."""
        self.snapshots.drop(tracked.table)
        self.tables.put(self._uncaptured(tracked.record))
        self.tables.fail(tracked, error, stopped_at=stopped_at)

    def fail_undecoded(self, tracked: TrackedTable, error: TableError) -> None:
        """The log does not hand out the changes of the table any more."""
        if error.code in table_life.ACCEPTABLE:
            self._altering.note_unknown(tracked, error)
        self.fail(tracked, error)

    def reshaped(self, tracked: TrackedTable, schema: TableSchema | None) -> None:
        """The log brings another shape and does not say how it came: another key is looked up, other columns fail the table."""
        if schema is not None and same_shape(tracked.schema, schema):
            self.tables.respell(tracked, schema)
        elif schema is None or not same_columns(tracked.schema, schema):
            self.fail(tracked, self._altering.contradicted(tracked, schema))
        else:
            self._suspend(tracked)
            self.start([tracked.table])

    def _alter(self, tracked: TrackedTable, event: DDLEvent, number: int) -> None:
        """The log says that the table was altered."""
        effect = effect_of(tracked.schema, event)
        try:
            if effect is Effect.COLUMNS:
                decision = self._altering.by_log(tracked, event, number)
            else:
                decision = self._altering.note_rows(tracked, event, number, are_others=effect is Effect.ROWS)
        except SchemaConflictError as error:
            self.fail(tracked, error)
            return
        if effect is Effect.OTHER:
            self.reshaped(tracked, event.schema)
        elif again := self._again(tracked, decision):
            self.start(again)

    def _found_altered(self, tracked: TrackedTable, found: TableDescription) -> Sequence[TableId]:
        """The catalogue shows other columns, or another key; return the table if it needs a new snapshot."""
        try:
            decision = self._altering.by_catalogue(tracked, found)
        except SchemaConflictError as error:
            self.fail(tracked, error)
            return []
        # The log was opened with the shape before.
        self.needs_reopening = True
        return self._again(tracked, decision)

    def _again(self, tracked: TrackedTable, decision: Decision) -> Sequence[TableId]:
        """The table, if it needs a new snapshot: in place, or as a new incarnation. Until that begins nothing of it is written."""
        if decision not in (Decision.SNAPSHOT, Decision.REBUILD):
            return []
        if decision is Decision.REBUILD:
            self.to_recreate.add(tracked.table)
        self._suspend(tracked)
        return [tracked.table]

    def _suspend(self, tracked: TrackedTable) -> None:
        """Write nothing of the table until its new snapshot begins, also after a restart."""
        self.snapshots.drop(tracked.table)
        self.tables.put(table_life.suspended(self._uncaptured(tracked.record)))

    def _uncaptured(self, record: TableRecord) -> TableRecord:
        return table_life.recreated(record) if record.table in self.to_recreate else record

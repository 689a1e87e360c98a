"""Keeps what is followed in line with the source's catalogue, and begins snapshots at places in the log.

Every step asks the source in the control thread, then has a mark written, and acts when the mark is delivered: by
then everything that the answer could know of has been delivered. Nothing here is durable before the commit that holds
what it led to; a crash in between asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from replicator.capture.asking import Answer, Descriptions, describe, prepare
from replicator.capture.catalogue import Change, judge, same_columns, same_shape, truncated
from replicator.capture.checks import Checks
from replicator.capture.copying import Copying
from replicator.capture.marks import MarkBoard
from replicator.capture.settings import CaptureSettings
from replicator.capture.tables import Followed, Tables
from replicator.capture.window import Window
from replicator.journal.writer import JournalWriter
from replicator.model.errors import FatalError, SchemaConflictError, TableError
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.isolation import of_table
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import DeltaSource, TableDescription, Visibility
from replicator.state import table_life
from replicator.state.records import Stage, TableRecord

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class _Beginning:
    """Copies that begin as soon as every transaction numbered below `floor` is seen by reads.

    None of their rows can be mistaken for a stale one then.

    `since`: taken once the tables were published as `found` has them, where the log may have left out changes made
        before; then also every transaction that had begun by then must have ended. What such a transaction wrote
        before is not in the log, so the copy must see it.
    `by`: taken once the floor was known; whoever keeps it from being reached had begun by then.
    """

    tables: Sequence[TableId]
    found: Descriptions
    floor: int
    requests: Sequence[int]
    since: Visibility | None
    by: Visibility | None = None

    def note(self, by: Visibility) -> None:
        """The answer for `by`."""
        self.by = by


@dataclass(slots=True, kw_only=True)
class Follow:
    """Catalogue, DDL and requests for snapshots. Called by the loop's thread alone.

    Attributes:
        submit: Runs a call in the control thread.
        configured: The tables that the configuration selects.
        checks: What a table must pass before it is copied.
        decoded: The tables whose changes the open log hands out; one leaves it when its changes cannot be decoded.
        done_requests: Requests that the next commit closes.
        anew: Tables whose next copy begins a new incarnation, whatever their shape. What makes it durable: until a captured
            table's copy begins, the request for it stays open; the record of one that is not captured says so (`is_recreated`).
        changed_at: Of tables whose copy waits to begin: the number of the last change that the log does not have.
        needs_reopening: A copy waits that can only begin behind a log opened anew, because this one skips its table.
    """

    source: DeltaSource[Any]
    submit: Callable[[Callable[[], Any]], Future[Any]]
    writer: JournalWriter
    window: Window
    marks: MarkBoard
    tables: Tables
    copying: Copying
    settings: CaptureSettings
    configured: Sequence[TableId]
    checks: Checks
    decoded: set[TableId]
    done_requests: list[int] = field(default_factory=list)
    anew: set[TableId] = field(default_factory=set)
    changed_at: dict[TableId, int] = field(default_factory=dict)
    _calls: list[tuple[Future[Any], Callable[[Any], None]]] = field(default_factory=list)
    _beginnings: list[_Beginning] = field(default_factory=list)
    needs_reopening: bool = False
    _is_comparing: bool = False
    _is_looking: bool = False
    _seen: Visibility | None = None

    # --- driven by the loop -------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Act on answers of the control thread; raises what it raised."""
        due = [(future, act) for future, act in self._calls if future.done()]
        self._calls = [(future, act) for future, act in self._calls if not future.done()]
        for future, act in due:
            act(future.result())

    def begin_due(self) -> None:
        """Between transactions: begin the copies whose floor is reached, and that wait for nobody."""
        waiting = []
        for beginning in self._beginnings:
            if self._is_hidden(beginning) or self._is_early(beginning.since):
                waiting.append(beginning)
                continue
            for table in beginning.tables:
                with of_table(table, "beginning its copy"):
                    self._begin(table, beginning.found.get(table))
            self.done_requests.extend(beginning.requests)
        self._beginnings = waiting

    @property
    def is_waiting(self) -> bool:
        """Whether copies wait for transactions to become visible: the ring wants pruning."""
        return bool(self._beginnings)

    @property
    def since(self) -> Visibility | None:
        """By when whoever keeps the first copy from beginning had begun; None if none waits for anybody."""
        return next((since for since in map(self._waits_for, self._beginnings) if since is not None), None)

    def _waits_for(self, beginning: _Beginning) -> Visibility | None:
        if self._is_early(beginning.since):
            return beginning.since
        return beginning.by if self._is_hidden(beginning) else None

    def _is_hidden(self, beginning: _Beginning) -> bool:
        """Whether reads may not see a transaction below its floor."""
        return self.window.start_number(beginning.floor) < beginning.floor

    def _is_early(self, since: Visibility | None) -> bool:
        """Whether somebody who had begun then has not ended; looks again meanwhile."""
        if since is None or (self._seen is not None and self._seen.is_beyond(since)):
            return False
        if not self._is_looking:
            self._is_looking = True
            self._ask(self.source.visibility, self._look)
        return True

    def _look(self, seen: Visibility) -> None:
        self._is_looking, self._seen = False, seen

    # --- beginnings ---------------------------------------------------------------------------------------------------

    def copy(
        self, tables: Sequence[TableId], *, found: Descriptions | None = None, requests: Sequence[int] = ()
    ) -> None:
        """Begin copies of these tables at a coming place in the log.

        Args:
            tables: To be copied.
            found: What the catalogue says, if it was asked after the tables were last prepared; else they are prepared
                again and it is asked.
            requests: What is done once they have begun.
        """
        if found is not None:
            self._ask(self.source.visibility, lambda since: self._await_mark(tables, found, requests, since))
            return

        captured = self.captured()

        def ask() -> Answer:
            refused = prepare(self.source, self.configured, is_first=False, captured=captured).refused
            answer = describe(self.source, [t for t in tables if t not in refused])
            unfit = self.checks.of_copies(list(answer.found))
            found = {t: d for t, d in answer.found.items() if t not in unfit}
            return Answer(found=found, refused={**refused, **answer.refused, **unfit})

        self._ask(ask, lambda answer: self._copy_fit(tables, answer, requests))

    def renew(self, tables: Sequence[TableId]) -> None:
        """Have the next copies of these tables begin new incarnations."""
        self.anew.update(tables)
        for followed in map(self.tables.get, tables):
            if followed is not None and not followed.is_captured:
                self.tables.put(self._uncaptured(followed.record))

    def _copy_fit(self, tables: Sequence[TableId], answer: Answer, requests: Sequence[int]) -> None:
        self.refuse(answer.refused)
        self.copy([t for t in tables if t not in answer.refused], found=answer.found, requests=requests)

    def refuse(self, refused: Mapping[TableId, TableError]) -> None:
        """These tables stop, each for its reason."""
        for table, error in refused.items():
            followed = self.tables.get(table)
            if followed is not None and table_life.is_replicated(followed.record):
                self.set_aside(followed, error)

    def _await_mark(
        self, tables: Sequence[TableId], found: Descriptions, requests: Sequence[int], since: Visibility
    ) -> None:
        bound = None if all(self._is_followed_as(t, found.get(t)) for t in tables) else since
        self._mark(lambda: self._await_floor(tables, found, requests, bound))

    def _is_followed_as(self, table: TableId, found: TableDescription | None) -> bool:
        """Whether the log has left out nothing of the table as it is now."""
        followed = self.tables.get(table)
        is_captured = followed is not None and followed.is_captured
        return is_captured and self._change(table, found, 0) in (Change.NONE, Change.EXPLAINED)

    def _await_floor(
        self, tables: Sequence[TableId], found: Descriptions, requests: Sequence[int], since: Visibility | None
    ) -> None:
        beginning = _Beginning(tables, found, self.writer.next_sequence_num, requests, since)
        self._beginnings.append(beginning)
        if self._is_hidden(beginning):
            self._ask(self.source.visibility, beginning.note)

    def _begin(self, table: TableId, found: TableDescription | None) -> None:
        followed = self.tables.get(table)
        if followed is None or not table_life.is_replicated(followed.record):
            return
        if found is None:
            self.gone(followed)
            return
        if table not in self.decoded:
            self._suspend(followed)
            self.needs_reopening = True
            return
        self.source.accept({table: found.identity})
        record = followed.record
        self.copying.drop(table)
        is_anew = table in self.anew or record.is_recreated
        self.anew.discard(table)
        if record.schema is None:
            self.tables.begin_copy(followed, found, incarnation=record.incarnation, mode=self.settings.snapshot_mode)
        elif same_shape(record.schema, found.schema) and not is_anew:
            # A read of a table without a key counts only if it saw all that was delivered before it: none of that may stay, or
            # what was written in between would be there twice.
            number = self.writer.next_sequence_num
            self.tables.begin_in_place(
                followed, found, self.window.start_number(number) if found.schema.key else number
            )
        else:
            self.tables.begin_copy(followed, found, incarnation=record.incarnation + 1, mode="initial")
            # The log was opened with the shape before: behind one opened with this, nothing looks like a change of it again.
            self.needs_reopening = self.needs_reopening or not same_shape(record.schema, found.schema)
        changed_at = self.changed_at.pop(table, None)
        if followed.record.stage is Stage.SNAPSHOT:
            if changed_at is not None and changed_at >= self.window.start_number(self.writer.next_sequence_num):
                # Its transaction may be one that the reads do not see.
                self.outdate(followed)
            self.copying.begin(followed)

    # --- the catalogue ------------------------------------------------------------------------------------------------

    def compare(self) -> None:
        """Ask the catalogue for every captured table, unless an answer is on its way."""
        if self._is_comparing:
            return
        self.copying.suspicious.clear()
        captured = self.captured()
        if not captured:
            return
        self._is_comparing = True
        before = {t: self._truncates(t) for t in captured}
        self._ask(lambda: describe(self.source, captured), lambda answer: self._compare(captured, answer, before))

    def _compare(self, tables: Sequence[TableId], answer: Answer, before: Mapping[TableId, int]) -> None:
        self.refuse(answer.refused)
        self.compared([t for t in tables if t not in answer.refused], answer.found, before)

    def compared(self, tables: Sequence[TableId], found: Descriptions, before: Mapping[TableId, int]) -> None:
        """Judge an answer of the catalogue once the log has caught up with it.

        `before`: TRUNCATEs delivered when it was asked.
        """
        different = [t for t in tables if self._change(t, found.get(t), before.get(t, 0)) is not Change.NONE]
        self._is_comparing = bool(different)
        if different:
            self._mark(lambda: self._judge(different, found, before))

    def _judge(self, tables: Sequence[TableId], found: Descriptions, before: Mapping[TableId, int]) -> None:
        self._is_comparing = False
        again: list[TableId] = []
        for table in tables:
            followed = self.tables.get(table)
            if followed is not None and followed.is_captured:
                with of_table(table, "comparing it with the catalogue"):
                    again += self._judge_one(followed, found.get(table), before.get(table, 0))
        if again:
            self.copy(again)

    def _judge_one(self, followed: Followed, found: TableDescription | None, before: int) -> Sequence[TableId]:
        """Act on what became of a table; return it if it must be copied again."""
        change = self._change(followed.table, found, before)
        if change is Change.GONE or found is None:
            self.gone(followed)
        elif change is Change.EXPLAINED:
            self.tables.put(replace(followed.record, identity=dict(found.identity)))
        elif change is Change.ASK_AGAIN:
            self.copying.suspicious.add(followed.table)
        elif change is Change.COLUMNS:
            self.set_aside(followed, _columns_changed(followed.schema, found.schema))
        elif change in (Change.OBJECT, Change.KEY):
            return [self._unexplained(followed, change)]
        return []

    def _change(self, table: TableId, found: TableDescription | None, before: int) -> Change:
        followed = self.tables.get(table)
        if followed is None or not followed.is_captured:
            return Change.NONE
        identity = followed.record.identity or {}
        with of_table(table, "comparing it with the catalogue"):
            return judge(followed.schema, identity, found, truncates_since=followed.truncates - before)

    def _unexplained(self, followed: Followed, change: Change) -> TableId:
        if change is Change.OBJECT and self.settings.unexplained_change == "stop":
            raise FatalError(
                "the table became another object, or is published in another way, without a trace in the log.",
                code="unexplained_change",
                table=str(followed.table),
                action="Take a new snapshot of it (`replicator snapshot NAME TABLE`), or let the configuration do so by itself.",
            )
        self._suspend(followed)
        return followed.table

    # --- changes of tables in the log ---------------------------------------------------------------------------------

    def ddl(self, event: DDLEvent, number: int) -> None:
        """Apply the policy for a DDL event of the log at its place."""
        followed = self.tables.get(event.table)
        if followed is not None and followed.is_captured:
            with of_table(event.table, f"following its {event.operation.value}"):
                self._ddl(followed, event, number)

    def _ddl(self, followed: Followed, event: DDLEvent, number: int) -> None:
        match event.operation:
            case DDLOperation.TRUNCATE_TABLE:
                followed.truncates += 1
                identity = truncated(followed.record.identity or {}, event.transaction_id)
                self.tables.put(replace(followed.record, identity=identity))
                self.copying.suspicious.add(followed.table)
                self._by_policy(followed, event, number, self.settings.truncate)
            case DDLOperation.DROP_TABLE:
                self.gone(followed, event, number)
            case DDLOperation.ALTER_TABLE:
                self._alter(followed, event.schema)
            case DDLOperation.RENAME_TABLE:
                self.set_aside(
                    followed,
                    SchemaConflictError(
                        f"it was renamed to {event.new_table}." if event.new_table else "it was renamed.",
                        code="table_renamed",
                        table=str(followed.table),
                        action="Name the table as it is called now in `tables.include`.",
                    ),
                )
            case DDLOperation.CREATE_TABLE:
                # Another object took the name, or rows came or went that the log does not name.
                self._suspend(followed)
                self.copy([followed.table])
            case _:
                pass  # The rest concerns no table that is being followed.

    def unlogged(self, table: TableId, number: int) -> None:
        """Rows of the table may have changed without a trace in the log: it is copied again.

        One copy answers for all such changes up to its beginning. Those that come while it runs do not disturb it: one
        more follows when it is complete.
        """
        followed = self.tables.get(table)
        if followed is None:
            return
        match followed.record.stage:
            case Stage.STREAMING:
                self.changed_at[table] = number
                self._suspend(followed)
                self.copy([table])
            case Stage.PENDING:
                self.changed_at[table] = number
            case Stage.SNAPSHOT:
                self.outdate(followed)
            case _:
                pass  # It is copied anew before anybody reads it again, or never.

    def outdate(self, followed: Followed) -> None:
        """Another copy must follow the one that runs."""
        self.tables.put_progress(followed, replace(self.tables.progress(followed), is_outdated=True))

    def copy_outdated(self, tables: Sequence[TableId]) -> None:
        """Copy those of the tables again whose last copy was outdated before it was complete."""
        again = [f for f in map(self.tables.get, tables) if f is not None and _is_outdated(f)]
        for followed in again:
            self._suspend(followed)
        if again:
            self.copy([f.table for f in again])

    def fits(self, followed: Followed, schema: TableSchema) -> bool:
        """Whether rows of this shape can be written; sets the table aside, or begins it anew, if not."""
        if schema is followed.record.schema or same_shape(followed.schema, schema):
            return True
        self._alter(followed, schema)
        return False

    def gone(self, followed: Followed, event: DDLEvent | None = None, number: int | None = None) -> None:
        """The table is not in the source any more."""
        if followed.is_captured:
            event = event or DDLEvent(operation=DDLOperation.DROP_TABLE, table=followed.table)
            self._by_policy(followed, event, number, self.settings.drop_table)
            if self.settings.drop_table == "apply":
                self.anew.add(followed.table)
        self.set_aside(
            followed,
            SchemaConflictError(
                "the table does not exist in the source.",
                code="table_missing",
                table=str(followed.table),
                action="Exclude it in `tables.exclude`; or create it again and run `replicator snapshot NAME TABLE`.",
            ),
        )

    def set_aside(self, followed: Followed, error: TableError) -> None:
        """The table stops; the others go on."""
        self.copying.drop(followed.table)
        self.tables.put(self._uncaptured(followed.record))
        self.tables.fail(followed, error)

    def _alter(self, followed: Followed, schema: TableSchema | None) -> None:
        if schema is not None and same_shape(followed.schema, schema):
            return
        if schema is not None and same_columns(followed.schema, schema):
            self._suspend(followed)
            self.copy([followed.table])
            return
        self.set_aside(followed, _columns_changed(followed.schema, schema))

    def _suspend(self, followed: Followed) -> None:
        """Write nothing of the table until its new copy begins, also after a restart."""
        self.copying.drop(followed.table)
        self.tables.put(table_life.suspended(self._uncaptured(followed.record)))

    def _uncaptured(self, record: TableRecord) -> TableRecord:
        return table_life.recreated(record) if record.table in self.anew else record

    def _by_policy(self, followed: Followed, event: DDLEvent, number: int | None, policy: str) -> None:
        if policy == "stop":
            raise FatalError(
                f"{event.operation.value} reached a table whose policy for it is `stop`.",
                code="ddl_stop",
                table=str(followed.table),
                action="Change the policy in `ddl:` to `apply` or `ignore`.",
            )
        if policy == "apply":
            self.tables.event(followed, event, number)

    # --- inside -------------------------------------------------------------------------------------------------------

    def captured(self) -> Sequence[TableId]:
        """The tables whose changes are written."""
        return [f.table for f in self.tables.all(*table_life.CAPTURED)]

    def _truncates(self, table: TableId) -> int:
        followed = self.tables.get(table)
        return followed.truncates if followed else 0

    def _ask(self, call: Callable[[], T], act: Callable[[T], None]) -> None:
        self._calls.append((self.submit(call), act))

    def _mark(self, act: Callable[[], None]) -> None:
        self.marks.expect(self.submit(self.source.mark), act)


def _is_outdated(followed: Followed) -> bool:
    snapshot = followed.record.snapshot
    return followed.record.stage is Stage.STREAMING and snapshot is not None and snapshot.is_outdated


def _columns_changed(before: TableSchema, after: TableSchema | None) -> SchemaConflictError:
    return SchemaConflictError(
        f"its columns changed: {_difference(before, after)}." if after else "its columns changed.",
        code="schema_changed",
        table=str(before.table),
        action="Run `replicator snapshot NAME TABLE`: the table is copied anew in its new shape.",
    )


def _difference(before: TableSchema, after: TableSchema) -> str:
    old = {c.name: c.source_type for c in before.columns}
    new = {c.name: c.source_type for c in after.columns}
    parts = [f"{n} added" for n in new if n not in old] + [f"{n} dropped" for n in old if n not in new]
    parts += [f"{n} was {old[n]} and is {new[n]}" for n in old if n in new and old[n] != new[n]]
    return ", ".join(parts) or "their order or Arrow types"

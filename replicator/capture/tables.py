"""The tables of one capture, and how what happens to them becomes numbered entries of the journal."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from replicator.capture.definitions.altering import is_other_object
from replicator.capture.definitions.catalogue import same_shape
from replicator.capture.definitions.policies import bare, project_whole
from replicator.journal.writer import JournalWriter
from replicator.model.alteration import Change
from replicator.model.errors import ReplicatorError
from replicator.model.events import (
    SEQUENCE_NUM,
    DDLEvent,
    DDLOperation,
    JournalEvent,
    SnapshotEvent,
    SnapshotKind,
    SnapshotPhase,
    change_schema,
)
from replicator.model.isolation import INTERNAL
from replicator.model.schema import TableId, TableSchema
from replicator.observability import get_logger
from replicator.plugins.source import Cursor, TableDescription
from replicator.projection.rows import project
from replicator.projection.rules import NO_RULES, ColumnRules
from replicator.state import table_life
from replicator.state.records import Decision, ErrorRecord, HistoryEntry, SnapshotProgress, Stage, TableRecord

_log = get_logger(__name__)
_TELL_EVERY_S: Final = 30.0


@dataclass(eq=False, slots=True)
class TrackedTable:
    """A table and what is known of it. `record` is what the next commit makes durable.

    `truncates`: TRUNCATEs delivered to this process.
    """

    record: TableRecord
    truncates: int = 0

    @property
    def table(self) -> TableId:
        """Its name."""
        return self.record.table

    @property
    def schema(self) -> TableSchema:
        """Its shape; only once its snapshot has begun."""
        assert self.record.schema is not None, "the snapshot has not begun"
        return self.record.schema

    @property
    def target_schema(self) -> TableSchema:
        """Its shape as the target has it."""
        return self.record.projection.in_target(self.schema)

    def matches(self, schema: TableSchema) -> bool:
        """Return whether rows of this shape can be written as they are."""
        return schema is self.record.schema or same_shape(self.schema, schema)

    @property
    def is_captured(self) -> bool:
        """Return whether its changes are written."""
        return table_life.is_captured(self.record)


class TrackedTables:
    """All tables of one capture, and the way of their changes into the journal.

    Every change of a record is made durable by the commit that holds the entries which it stands for (`take_changed`).
    """

    def __init__(
        self,
        writer: JournalWriter,
        records: Iterable[TableRecord],
        now: Callable[[], datetime],
        rules: Callable[[TableId], ColumnRules] = lambda _: NO_RULES,
    ) -> None:
        self._writer = writer
        self._now = now
        self._rules = rules
        self._tracked = {r.table: TrackedTable(r) for r in records}
        self._changed: set[TableId] = set()
        self._told_at: dict[TableId, float] = {}
        self._history: list[HistoryEntry] = []

    def get(self, table: TableId) -> TrackedTable | None:
        """The table, if capture knows it."""
        return self._tracked.get(table)

    def all(self, *stages: Stage) -> Sequence[TrackedTable]:
        """Return the tables in one of these stages (none given: all), by name."""
        return [
            self._tracked[t] for t in sorted(self._tracked) if not stages or self._tracked[t].record.stage in stages
        ]

    def captured(self) -> Sequence[TableId]:
        """Return the tables whose changes are written."""
        return [f.table for f in self.all(*table_life.CAPTURED)]

    @property
    def next_number(self) -> int:
        """The sequence number that the next change or event gets."""
        return self._writer.next_sequence_num

    def put(self, record: TableRecord) -> TrackedTable:
        """Replace a record, or add one. Texts that the source has about protected columns are not kept."""
        record = _without_texts(record)
        self._changed.add(record.table)
        tracked = self._tracked.setdefault(record.table, TrackedTable(record))
        tracked.record = record
        return tracked

    def adopt(self, record: TableRecord) -> None:
        """Replace a record by one that is stored already."""
        self._tracked.setdefault(record.table, TrackedTable(record)).record = record

    @property
    def has_changed(self) -> bool:
        """Return whether records, or what was noted for the history, wait for a commit."""
        return bool(self._changed or self._history)

    def take_changed(self) -> Sequence[TableRecord]:
        """The records that the commit must hold."""
        changed = [self._tracked[t].record for t in sorted(self._changed)]
        self._changed.clear()
        return changed

    # --- entries of the journal ---------------------------------------------------------------------------------------

    def event(self, tracked: TrackedTable, event: JournalEvent, number: int | None = None) -> int:
        """Write an event of the table; return its number."""
        number = self._writer.take(1) if number is None else number
        if isinstance(event, DDLEvent) and self._hides(tracked):
            event = replace(event, statement=None, shown=None)
        self._writer.event(number, tracked.table, tracked.record.incarnation, event)
        return number

    def rows(
        self, tracked: TrackedTable, rows: pa.RecordBatch, base: int, *, is_plain: bool = False, is_net: bool = False
    ) -> None:
        """Write changes whose ordinals count from `base`.

        `is_plain`: they come from one plain pass of the incarnation's first snapshot. `is_net`: as `TableChanges.is_net`.
        """
        if rows.num_rows:
            self.write(tracked, self.projected(tracked, rows), base, is_plain=is_plain, is_net=is_net)

    def projected(self, tracked: TrackedTable, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return changes as they may be written, on whatever disk: in the layout of the target's shape."""
        rows = renumbered(rows, tracked.schema, 0)
        projection = tracked.record.projection
        return project(rows, tracked.schema, projection, self._rules(tracked.table)) if projection else rows

    def write(
        self, tracked: TrackedTable, rows: pa.RecordBatch, base: int, *, is_plain: bool = False, is_net: bool = False
    ) -> None:
        """Write changes that are projected already; arguments as those of `rows`."""
        if not rows.num_rows:
            return
        if is_net and not tracked.record.is_net:
            self.put(replace(tracked.record, is_net=True))
        numbered = renumbered(rows, tracked.target_schema, base)
        if not is_plain:
            first, known = numbered.column(SEQUENCE_NUM)[0].as_py(), tracked.record.first_change
            # Lower than known: the keys that a pull sends back to the list are noted before the pull's rows are written.
            if known is None or first < known:
                self.put(replace(tracked.record, first_change=first))
        self._writer.append(tracked.target_schema, tracked.record.incarnation, numbered)

    def take_rows(self, tracked: TrackedTable, rows: pa.RecordBatch, *, is_plain: bool = False) -> None:
        """Give the rows (numbered from 0) the next numbers and write them."""
        if rows.num_rows:
            self.rows(tracked, rows, self._writer.take(rows.num_rows), is_plain=is_plain)

    def take_projected(self, tracked: TrackedTable, rows: pa.RecordBatch, *, is_plain: bool = False) -> None:
        """The same for rows that are projected already."""
        if rows.num_rows:
            self.write(tracked, rows, self._writer.take(rows.num_rows), is_plain=is_plain)

    def _hides(self, tracked: TrackedTable) -> bool:
        """Return whether texts of statements may hold values that must not be written."""
        return bool(tracked.record.projection.protected) or self._rules(tracked.table).protects

    def _without_comments(self, tracked: TrackedTable, schema: TableSchema | None) -> TableSchema | None:
        """Return a shape for the history, without comments of columns that are protected, or would be."""
        if schema is None or not self._hides(tracked):
            return schema
        rules, protected = self._rules(tracked.table), tracked.record.projection.protected
        known = set() if tracked.record.schema is None else {column.name for column in tracked.schema.columns}
        hidden = {
            name
            for name in (column.name for column in schema.columns)
            if name in protected or rules.protects_name(name) or (name not in known and rules.hides(name))
        }
        return _uncommented(schema, hidden)

    # --- changes of state ---------------------------------------------------------------------------------------------

    def begin_incarnation(
        self,
        tracked: TrackedTable,
        found: TableDescription,
        *,
        incarnation: int,
        mode: str,
    ) -> None:
        """Begin an incarnation, in an empty target table: CREATE_TABLE, then the snapshot unless the mode is `never`.

        Raises:
            SchemaConflictError: Its columns cannot be projected as the settings say.
        """
        is_streaming = mode == "never"
        record, schema, identity = tracked.record, found.schema, found.identity
        known = record.schema
        if known is not None and is_other_object(record, identity):
            # The numbers of another table's columns are its own.
            known = bare(known)
        projected = project_whole(known, schema, record.projected, self._rules(tracked.table))
        if is_streaming:
            self.put(
                table_life.begun_without_snapshot(
                    record, schema, identity, incarnation=incarnation, projected=projected
                )
            )
        else:
            progress = self._fresh_progress(found, SnapshotKind.FIRST)
            self.put(
                table_life.begun(
                    record, schema, identity, incarnation=incarnation, snapshot=progress, projected=projected
                )
            )
        self.put(table_life.protected(record, tracked.record, self.next_number))
        created = DDLEvent(operation=DDLOperation.CREATE_TABLE, table=tracked.table, schema=found.schema)
        number = self.event(tracked, replace(created, schema=tracked.target_schema))
        self.note(tracked, created, Decision.APPLY, changes=(Change.CREATE_TABLE,), number=number)
        if not is_streaming:
            self._tell("snapshot_started", tracked, in_place=False)
            self.event(tracked, SnapshotEvent(phase=SnapshotPhase.STARTED, table=tracked.table))
        elif incarnation > 1:
            # Readers may see an older one, which this replaces as it is.
            completed = SnapshotEvent(phase=SnapshotPhase.COMPLETED, table=tracked.table, kind=SnapshotKind.NONE)
            self.event(tracked, completed)

    def begin_again(self, tracked: TrackedTable, found: TableDescription, start_number: int) -> None:
        """Begin a snapshot in place of a table that the target holds; or its comparison, which finds the rows to be read."""
        # No comparison finds what changed in masked columns.
        if tracked.record.is_changed_only and not tracked.record.projection.masked:
            self._begin_comparing(tracked, found)
            return
        event = SnapshotEvent(
            phase=SnapshotPhase.STARTED, table=tracked.table, kind=SnapshotKind.IN_PLACE, start_number=start_number
        )
        number = self.event(tracked, event)
        self._as_found(tracked, found)
        progress = self._fresh_progress(found, SnapshotKind.IN_PLACE, start_number)
        self.put(table_life.begun_in_place(tracked.record, found.identity, snapshot=progress, number=number))
        self._tell("snapshot_started", tracked, in_place=True)

    def _begin_comparing(self, tracked: TrackedTable, found: TableDescription) -> None:
        """Write the changes of a table that the target holds again, and leave it to a comparison to find what it lacks besides."""
        event = SnapshotEvent(phase=SnapshotPhase.STARTED, table=tracked.table, kind=SnapshotKind.CHANGED)
        number = self.event(tracked, event)
        self._as_found(tracked, found)
        progress = replace(self._fresh_progress(found, SnapshotKind.CHANGED), ranges=())
        self.put(table_life.begun_comparing(tracked.record, found.identity, snapshot=progress, number=number))
        _log.info("comparison_started", table=str(tracked.table), incarnation=tracked.record.incarnation)

    def _as_found(self, tracked: TrackedTable, found: TableDescription) -> None:
        """The same shape, with what the catalogue says of it besides."""
        self.respell(tracked, found.schema)

    def respell(self, tracked: TrackedTable, schema: TableSchema) -> None:
        """The source calls types of this shape, which is the tracked one, by other names; nothing else is different."""
        record = table_life.respelled(tracked.record, schema)
        if record != tracked.record:
            self.put(record)

    def note(
        self,
        tracked: TrackedTable,
        event: DDLEvent | None,
        decision: Decision,
        *,
        changes: Sequence[Change] = (),
        reason: str | None = None,
        number: int | None = None,
    ) -> None:
        """Keep for the history what was decided about a change of the table's definition, or about a table that had failed.

        Args:
            tracked: The table.
            event: The change, with the shapes as the source has them; None: nothing was done to the table.
            decision: What becomes of it in the target.
            changes: Its kinds.
            reason: Where the decision does not follow from the policy alone.
            number: At which it stands in the log; None: the log does not show it.
        """
        self._history.append(
            HistoryEntry(
                sequence_num=self._writer.next_sequence_num if number is None else number,
                table=tracked.table,
                incarnation=tracked.record.incarnation,
                operation=None if event is None else event.operation,
                changes=tuple(change.value for change in changes),
                decision=decision,
                reason=reason,
                statement=None if event is None or self._hides(tracked) else event.statement,
                before=None if event is None else self._without_comments(tracked, event.before),
                after=None if event is None else self._without_comments(tracked, event.schema),
                new_table=None if event is None else event.new_table,
                at=(None if event is None else event.source_timestamp) or self._now(),
            )
        )

    def take_history(self) -> Sequence[HistoryEntry]:
        """Return the entries that the commit must hold."""
        taken, self._history = self._history, []
        return taken

    def resume(self, tracked: TrackedTable) -> None:
        """Have the table wait for a new snapshot, by itself: the cause of its failure is found in order in the source."""
        error = tracked.record.error
        assert error is not None, "it says why"
        self.note(tracked, None, Decision.SNAPSHOT, reason=f"{error.code}, by which it failed, is found in order.")
        self.put(table_life.resumed(tracked.record, self._now()))
        _log.info("table_resumed", table=str(tracked.table), code=error.code, failed_at=error.at.isoformat())

    def complete(self, tracked: TrackedTable) -> None:
        """The snapshot is complete, or the rows are read again that were to be."""
        progress = self.progress(tracked)
        if progress.kind is SnapshotKind.KEYS:
            _log.info(
                "rows_reread", table=str(tracked.table), incarnation=tracked.record.incarnation, rows=progress.rows
            )
            self.put(table_life.rows_reread(tracked.record))
            return
        event = SnapshotEvent(
            phase=SnapshotPhase.COMPLETED, table=tracked.table, kind=progress.kind, start_number=progress.start_number
        )
        self.event(tracked, event)
        if progress.kind is SnapshotKind.IN_PLACE and tracked.record.incarnation > 1:
            # It may make up for the first snapshot of the incarnation, which readers do not see before that is complete.
            self.event(tracked, SnapshotEvent(phase=SnapshotPhase.COMPLETED, table=tracked.table))
        self._tell("snapshot_complete", tracked)
        self.put(table_life.completed(tracked.record, self._now()))

    def progress(self, tracked: TrackedTable) -> SnapshotProgress:
        """Return the progress of its snapshot, or of the rows that are read again."""
        progress = table_life.progress_of(tracked.record)
        assert progress is not None, "nothing is being read"
        return progress

    def put_progress(self, tracked: TrackedTable, progress: SnapshotProgress) -> None:
        """The snapshot advanced, or begins again; likewise the rows that are read again."""
        before = table_life.progress_of(tracked.record)
        if progress == before:
            return
        first_change = tracked.record.first_change
        if first_change is None and (progress.keys or _went_back(before, progress)):
            first_change = self._writer.next_sequence_num
        self.put(replace(table_life.advanced(tracked.record, progress), first_change=first_change))
        if time.monotonic() - self._told_at.get(tracked.table, -math.inf) >= _TELL_EVERY_S:
            self._tell("snapshot_progress", tracked)

    def forget_plain(self, table: TableId) -> None:
        """The journal has no values of the table any more that its settings protect."""
        tracked = self.get(table)
        if tracked is not None and tracked.record.plain_before is not None:
            self.put(table_life.without_plain(tracked.record))

    def read_again(self, tracked: TrackedTable, keys: Sequence[Cursor]) -> None:
        """These rows of a table that streams are to be read again."""
        self.put(table_life.rereading(tracked.record, keys, self._now()))

    def fail(self, tracked: TrackedTable, error: ReplicatorError, *, stopped_at: Change | None = None) -> None:
        """The table stops: its changes are no longer written until a new snapshot begins. `stopped_at`: as `TableRecord.stopped_at`."""
        tell_failed(tracked.table, error)
        self.put(table_life.failed(tracked.record, ErrorRecord.of(error, self._now()), stopped_at=stopped_at))

    def _tell(self, event: str, tracked: TrackedTable, **more: bool) -> None:
        """A line of the log about a snapshot."""
        self._told_at[tracked.table] = time.monotonic()
        progress = self.progress(tracked)
        of = {"rows": progress.rows, "estimated_rows": progress.estimated_rows}
        _log.info(event, table=str(tracked.table), incarnation=tracked.record.incarnation, **of, **more)

    def _fresh_progress(
        self, found: TableDescription, kind: SnapshotKind, start_number: int | None = None
    ) -> SnapshotProgress:
        return SnapshotProgress(
            kind=kind, start_number=start_number, estimated_rows=found.estimated_rows, started_at=self._now()
        )


def tell_failed(table: TableId, error: ReplicatorError) -> None:
    """Say in the log that a table stops, and why: with the traceback if the error is unexpected."""
    traceback = {"exc_info": error.__cause__} if error.code == INTERNAL and error.__cause__ is not None else {}
    _log.error("table_failed", table=str(table), code=error.code, reason=str(error), **traceback)


def _without_texts(record: TableRecord) -> TableRecord:
    """Return a record without comments and defaults of protected columns, which may quote values."""
    protected, schema, identity = record.projection.protected, record.schema, record.identity
    if not protected or schema is None:
        return record
    if identity is not None:
        ids = {str(column.id) for column in schema.columns if column.name in protected}
        constraints = {i: replace(one, default=None) if i in ids else one for i, one in identity.constraints.items()}
        identity = replace(identity, constraints=constraints)
    return replace(record, schema=_uncommented(schema, protected), identity=identity)


def _uncommented(schema: TableSchema, names: Collection[str]) -> TableSchema:
    columns = (replace(column, comment=None) if column.name in names else column for column in schema.columns)
    return replace(schema, columns=tuple(columns))


def _went_back(before: SnapshotProgress | None, after: SnapshotProgress) -> bool:
    if before is None:
        return False
    pairs = zip(before.ranges, after.ranges, strict=True)
    return any((a.is_done and not b.is_done) or (a.after is not None and b.after is None) for a, b in pairs)


def renumbered(rows: pa.RecordBatch, schema: TableSchema, base: int) -> pa.RecordBatch:
    """The same changes with `base` added to their ordinals, in the layout of `schema`, which has their shape."""
    numbers = rows.column(SEQUENCE_NUM)
    columns = [pc.add(numbers, pa.scalar(base, pa.int64())) if base else numbers, *rows.columns[1:]]
    return pa.RecordBatch.from_arrays(columns, schema=change_schema(schema))

"""Snapshots: chunks and whole reads from the reader's thread through the window into the journal.

Also rows of a table that streams which somebody wants to be read again (`TableRecord.reread`): a chunk by their keys.

Keyed tables: chunk by chunk, each emitted at its mark, with its cursor, between transactions.

Tables without a key: read in one statement into a spool. From the moment the read is asked for, the table's log rows
go into a second spool. At the mark, one commit takes the read's rows, then those spooled log rows that the read did
not see, then COMPLETED. It is one commit because nothing in rows without a key tells a second emission from a first:
cut short before it, nothing happened, and the read begins again; after it, everything did. The writer keeps such a
commit's memory bounded; other tables wait for as long as writing from local disk takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from replicator.capture.marks import MarkBoard
from replicator.capture.settings import CaptureSettings
from replicator.capture.snapshots.chunks import ChunkJob, ChunkRead, ChunkReader, JobEnded, TableRead, WholeVisible
from replicator.capture.snapshots.progress import (
    Reading,
    ReadingKind,
    after_chunk,
    is_complete,
    next_reading,
    start_over,
    with_moves,
)
from replicator.capture.snapshots.running import (
    AtMark,
    ChunkAtMark,
    ChunkTaken,
    Emitted,
    Ended,
    Event,
    Failed,
    Lost,
    Refused,
    Running,
    Scheduled,
    WholeBegan,
    WholeGood,
    WholeTaken,
    advance,
)
from replicator.capture.snapshots.spool import Spool
from replicator.capture.tables import TrackedTable, TrackedTables
from replicator.capture.window import Bools, Move, Read, RowVerdict, Window, snapshot_changes
from replicator.model.errors import SchemaConflictError, TableError, TransientError
from replicator.model.events import TRANSACTION_ID, change_schema
from replicator.model.isolation import of_table, table_error
from replicator.model.processes.reports import RunningStep, WaitingReport
from replicator.model.schema import TableId
from replicator.observability import get_logger
from replicator.plugins.source import Seen

_log = get_logger(__name__)


@dataclass(frozen=True, eq=False, slots=True)
class WholeDue:
    """A request to the loop: seal what there is, have the whole read written (`put_whole`), and seal that alone."""

    result: TableRead


@dataclass(slots=True, kw_only=True)
class SnapshotRunner:
    """Runs the snapshots of all tables, one piece at a time. Called by the loop's thread alone.

    It drives the records of `running.py`, and frees what a record no longer holds.

    Attributes:
        suspicious: Tables whose identity was not as accepted when they were read: their catalogue entry wants
            comparing.
    """

    window: Window
    reader: ChunkReader
    marks: MarkBoard[Any]
    tables: TrackedTables
    settings: CaptureSettings
    clock: Callable[[], float]
    suspicious: set[TableId] = field(default_factory=set)
    _completed: list[TableId] = field(default_factory=list)
    _running: dict[TableId, Running] = field(default_factory=dict)
    _job: ChunkJob | None = None

    # --- what the loop tells ------------------------------------------------------------------------------------------

    def begin(self, tracked: TrackedTable) -> None:
        """Read the table from where its progress says; also after a restart."""
        self.drop(tracked.table)
        self._running[tracked.table] = Running(tracked=tracked)
        if tracked.schema.key:
            self.window.watch(tracked.schema)

    def drop(self, table: TableId) -> None:
        """End the table's snapshot here, if one runs."""
        running = self._running.pop(table, None)
        if running is not None:
            self._free(running)
        self.window.unwatch(table)

    def delivered(self, moves: Mapping[TableId, Sequence[Move]]) -> None:
        """Note the keys of a batch that must be read once more, and drop the reads that the batch made useless."""
        for table, its in moves.items():
            running = self._running.get(table)
            if running is not None:
                with of_table(table, "noting keys to be read again"):
                    self._note_moves(running, its)
        self._drop_lost()

    def is_held_back(self, tracked: TrackedTable) -> bool:
        """Return whether log rows of the table must not be written now: it has no key and its snapshot is not complete."""
        return tracked.table in self._running and not tracked.schema.key

    def hold_back(self, tracked: TrackedTable, rows: pa.RecordBatch) -> None:
        """Keep log rows that must not be written now, if the read may need them."""
        log = self._running[tracked.table].log
        if log is not None:
            log.append(self.tables.projected(tracked, rows))

    def take_mark(self, due: AtMark) -> WholeDue | None:
        """The log delivered the mark of a read, and no transaction is open: write a chunk, or ask for a commit for a whole read."""
        running = self._running.get(due_table(due))
        if running is None or due not in running.at_mark or running.step is RunningStep.FAILED:
            return None
        if isinstance(due, ChunkAtMark):
            with of_table(running.table, "writing a chunk of it"):
                self._put_chunk(running, due)
            return None
        with of_table(running.table, "comparing a chunk of it with its changes"):
            return self._judge_whole(running, due)

    def put_whole(self, due: WholeDue) -> None:
        """Write a whole read, and what the log brought that it did not see."""
        running = self._running[due_table(due.result)]
        with of_table(running.table, "writing a chunk of it"):
            self._put_whole(running, due.result)

    def collect(self) -> None:
        """Take in what the reader's thread has done. Raises what is not one table's error."""
        while (result := self.reader.next_result()) is not None:
            table = result.job.reading.schema.table
            running = None if result.job.is_cancelled else self._running.get(table)
            if isinstance(result, JobEnded):
                self._end(result, running)
                continue
            with of_table(table, "processing a chunk of it"):
                self._take(result, running)

    def schedule(self) -> None:
        """Between transactions: start to read the next piece, if the reader is idle and something is due."""
        if self._job is not None:
            return
        now = self.clock()
        for table, running in sorted(self._running.items()):
            if not running.is_due(now):
                continue
            with of_table(table, "starting to read it"):
                tracked, chunk_rows = running.tracked, self.settings.chunk_rows
                reading = next_reading(self.tables.progress(tracked), tracked.schema, chunk_rows)
                if reading is not None:
                    self._start(running, reading)
                    return

    def take_completed(self) -> Sequence[TableId]:
        """The tables whose snapshots were completed since it was asked last."""
        completed, self._completed = self._completed, []
        return completed

    @property
    def failed(self) -> Mapping[TableId, TableError]:
        """Tables that could not be read, for the loop to fail."""
        return {table: running.error for table, running in self._running.items() if running.error is not None}

    def step_of(self, table: TableId) -> RunningStep | None:
        """At which step the snapshot of the table is; None if none runs."""
        running = self._running.get(table)
        return None if running is None else running.step

    def waiting(self, table: TableId) -> WaitingReport | None:
        """Why the source does not let a table be read now, and when it is tried again."""
        running = self._running.get(table)
        if running is None or running.refusal is None:
            return None
        retry_in_s = round(max(0.0, running.not_before - self.clock()), 1)
        return WaitingReport(retry_in_s=retry_in_s, code=running.refusal.code, message=running.refusal.message)

    @property
    def is_busy(self) -> bool:
        """Return whether the snapshot of any table runs."""
        return bool(self._running)

    # --- results ------------------------------------------------------------------------------------------------------

    def _advance(self, running: Running, event: Event) -> Running:
        self._running[running.table] = advanced = advance(running, event)
        return advanced

    def _start(self, running: Running, reading: Reading) -> None:
        tracked, log = running.tracked, None
        schema, layout = tracked.schema, change_schema(tracked.target_schema)
        if not schema.key:
            self.window.unwatch(running.table)
            self.window.watch(schema)
            log = Spool(self.settings.spool, layout)
        projected = self.tables.projected
        self._job = ChunkJob(
            reading,
            self.window.begin_reading(),
            layout,
            lambda rows: projected(tracked, snapshot_changes(schema, rows)),
        )
        self._advance(running, Scheduled(job=self._job, log=log))
        self.reader.start(self._job)

    def _take(self, result: ChunkRead | WholeVisible | TableRead, running: Running | None) -> None:
        match result:
            case ChunkRead() if running is None:
                self.reader.release()
            case TableRead() if running is None:
                result.rows.close()
            case _ if running is None:
                pass
            case ChunkRead():
                asked = result.reading.keys if result.reading.deletes_missing else ()
                read = self.window.add_chunk(
                    result.reading.schema,
                    result.chunk.rows,
                    result.chunk.visibility,
                    reader=result.job.reader,
                    asked=asked,
                )
                chunk = ChunkAtMark(result, read)
                self._advance(running, ChunkTaken(chunk))
                self.marks.expect(result.mark, chunk)
                self._drop_lost()
            case WholeVisible():
                if running.whole is not None:
                    self.window.drop(running.whole)
                read = self.window.add_whole(result.job.reading.schema, result.visibility, reader=result.job.reader)
                self._advance(running, WholeBegan(read))
                self._drop_lost()
            case TableRead():
                self._advance(running, WholeTaken(result))
                self.marks.expect(result.mark, result)

    def _end(self, result: JobEnded, running: Running | None) -> None:
        assert result.job is self._job, "jobs end in their order"
        self._job = None
        self.window.end_reading(result.job.reader)
        if running is None:
            return
        if result.error is None:
            self._advance(running, Ended())
        elif isinstance(result.error, TransientError) and result.error.table is not None:
            # A lock, a time limit. If it is the source that is away, the log says so, too.
            self._refuse(running, result.error)
        elif isinstance(result.error, SchemaConflictError):
            # It has other columns, or is no more: the log or the catalogue tell what became of it.
            self.suspicious.add(running.table)
            self._refuse(running, result.error)
        else:
            error = table_error(result.error, running.table, "reading it")
            if error is None:
                raise result.error
            self._advance(running, Failed(error))

    # --- emission -----------------------------------------------------------------------------------------------------

    def _put_chunk(self, running: Running, due: ChunkAtMark) -> None:
        tracked, result, read = running.tracked, due.result, due.read
        if result.chunk.identity is None or tracked.record.identity != result.chunk.identity:
            self._lose(running)
            self.suspicious.add(tracked.table)
            return
        rows = self.window.emit(read)
        self.tables.take_rows(tracked, rows, is_plain=result.reading.kind is ReadingKind.RANGE)
        progress = after_chunk(
            self.tables.progress(tracked),
            result.reading,
            cursor=result.chunk.cursor,
            is_last=result.is_last,
            rows=rows.num_rows,
            unsettled=read.unsettled,
        )
        self.tables.put_progress(tracked, progress)
        self.reader.release()
        is_settled = set(progress.keys).isdisjoint(result.reading.keys)
        again_at = None if is_settled else self._read_again_at(running)
        self._emitted(running, Emitted(read=due, is_complete=is_complete(progress), read_again_at=again_at))

    def _judge_whole(self, running: Running, result: TableRead) -> WholeDue | None:
        """Ask for a whole read to be written if it is good; it is lost if not."""
        assert running.whole is not None
        assert running.log is not None
        is_same = result.identity is not None and running.tracked.record.identity == result.identity
        if is_same and not any(_has_unknown(running.whole, batch) for batch in running.log.batches()):
            self._advance(running, WholeGood())
            return WholeDue(result)
        self._lose(running)
        if not is_same:
            self.suspicious.add(running.table)
        return None

    def _put_whole(self, running: Running, result: TableRead) -> None:
        assert running.whole is not None
        assert running.log is not None
        tracked, count = running.tracked, 0
        for batch in result.rows.batches():
            self.tables.take_projected(tracked, batch, is_plain=True)
            count += batch.num_rows
        for batch in running.log.batches():
            unseen = batch.filter(pa.array(_unseen_rows(running.whole, batch)))
            ordinals = pa.array(np.arange(unseen.num_rows, dtype=np.int64))
            fresh = pa.RecordBatch.from_arrays([ordinals, *unseen.columns[1:]], schema=unseen.schema)
            self.tables.take_projected(tracked, fresh)
        progress = self.tables.progress(tracked)
        ranges = tuple(replace(part, is_done=True) for part in progress.ranges)
        self.tables.put_progress(tracked, replace(progress, ranges=ranges, rows=count))
        result.rows.close()
        self._emitted(running, Emitted(read=result, is_complete=True))

    def _emitted(self, running: Running, event: Emitted) -> None:
        running = self._advance(running, event)
        if running.step is RunningStep.COMPLETED:
            if running.tracked.record.reread is None:
                self._completed.append(running.table)
            self.tables.complete(running.tracked)
            # Its job needs no cancelling, and nothing of it waits.
            del self._running[running.table]
            if running.log is not None:
                running.log.close()
            self.window.unwatch(running.table)

    # --- lost reads ---------------------------------------------------------------------------------------------------

    def _note_moves(self, running: Running, moves: Sequence[Move]) -> None:
        before = self.tables.progress(running.tracked)
        progress = with_moves(before, moves, self.settings.keys_max)
        if progress is before:
            return
        self.tables.put_progress(running.tracked, progress)
        if not progress.keys and running.step in (RunningStep.READING, RunningStep.MARKING):
            # Too many keys: every range begins again, and what was read behind the old beginnings would be taken for their progress.
            self._lose(running)

    def _drop_lost(self) -> None:
        lost: dict[TableId, RowVerdict] = {}
        for read in self.window.reads:
            if read.verdict is not RowVerdict.GOOD and lost.get(read.schema.table) is not RowVerdict.START_OVER:
                lost[read.schema.table] = read.verdict
        for table, verdict in lost.items():
            running = self._running[table]
            if running.step is RunningStep.FAILED:
                continue
            with of_table(table, "discarding a chunk of it"):
                if verdict is RowVerdict.START_OVER:
                    self.tables.put_progress(running.tracked, start_over(self.tables.progress(running.tracked)))
                self._lose(running)

    def _lose(self, running: Running) -> None:
        """Read again, after a while: what the read did not see must become visible."""
        self._free(running)
        self._advance(running, Lost(self._read_again_at(running)))

    def _refuse(self, running: Running, error: TransientError | SchemaConflictError) -> None:
        """Leave a table alone that cannot be read now, others are read meanwhile; fail it once it was tried for long enough."""
        now, since = self.clock(), running.refused_since
        if since is not None and now - since >= self.settings.give_up_after_s:
            self._advance(running, Failed(_exhausted(error)))
            return
        self._free(running)
        again_at = self._read_again_at(running)
        self._advance(running, Refused(error=error, at=now, not_before=again_at))
        _log.warning(
            "table_waits",
            table=str(running.table),
            code=error.code,
            reason=error.message,
            retry_in_ms=round((again_at - now) * 1000),
        )

    def _read_again_at(self, running: Running) -> float:
        settings = self.settings
        return self.clock() + running.pause_s(settings.chunk_backoff_s, settings.chunk_backoff_max_s)

    def _free(self, running: Running) -> None:
        """Drop the table's reads that wait, and what the reader reads of it."""
        for read in self.window.reads:
            if read.schema.table == running.table:
                self.window.drop(read)
        for waiting in running.at_mark:
            if isinstance(waiting, ChunkAtMark):
                self.reader.release()
            else:
                waiting.rows.close()
        self.marks.drop(running.at_mark)
        if running.job is not None:
            self.reader.cancel(running.job)
        if running.log is not None:
            running.log.close()


def due_table(due: AtMark) -> TableId:
    """Of which table a read was."""
    result = due.result if isinstance(due, ChunkAtMark) else due
    return result.job.reading.schema.table


def _exhausted(error: TransientError | SchemaConflictError) -> TableError:
    return TableError(
        f"gave up after retry.give_up_after: {error.message}",
        code=error.code,
        table=error.table,
        action=f"{(error.action or 'Fix the cause').rstrip('.')}. Then run `replicator snapshot NAME TABLE`.",
    )


def _has_unknown(read: Read, batch: pa.RecordBatch) -> bool:
    ids = pc.unique(batch.column(TRANSACTION_ID))
    return bool((read.visibility.classify(ids).to_numpy(zero_copy_only=False) == int(Seen.UNKNOWN)).any())


def _unseen_rows(read: Read, batch: pa.RecordBatch) -> Bools:
    ids = pc.dictionary_encode(batch.column(TRANSACTION_ID))
    unseen = read.unseen(ids.dictionary)
    rows: Bools = unseen[ids.indices.to_numpy()]
    return rows

"""Snapshots: chunks and whole reads from the reader's thread through the window into the journal.

Keyed tables: chunk by chunk, each emitted at its mark, with its cursor, between transactions.

Tables without a key: read in one statement into a spool. From the moment the read is asked for, the table's log rows
go into a second spool. At the mark, one commit takes the read's rows, then those spooled log rows that the read did
not see, then COMPLETED. It is one commit because nothing in rows without a key tells a second emission from a first:
cut short before it, nothing happened, and the read begins again; after it, everything did. The writer keeps such a
commit's memory bounded; other tables wait for as long as copying from local disk takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from replicator.capture.chunks import ChunkRead, ChunkReader, Ended, Job, WholeBegan, WholeRead
from replicator.capture.marks import MarkBoard
from replicator.capture.progress import (
    Reading,
    ReadingKind,
    after_chunk,
    is_complete,
    next_reading,
    start_over,
    with_keys,
)
from replicator.capture.settings import CaptureSettings
from replicator.capture.spool import Spool
from replicator.capture.tables import Followed, Tables, renumbered
from replicator.capture.window import Bools, Read, Verdict, Window, snapshot_changes
from replicator.model.errors import TableError, TransientError
from replicator.model.events import TRANSACTION_ID, change_schema
from replicator.model.isolation import of_table, table_error
from replicator.model.reports import WaitingReport
from replicator.model.schema import TableId
from replicator.observability import get_logger
from replicator.plugins.source import Cursor, Seen

_log = get_logger(__name__)


@dataclass(frozen=True, eq=False, slots=True)
class ChunkAtMark:
    """A chunk that waits for its mark."""

    result: ChunkRead
    read: Read


@dataclass(frozen=True, eq=False, slots=True)
class WholeDue:
    """A request to the loop: seal what there is, have the whole read written (`put_whole`), and seal that alone."""

    result: WholeRead


@dataclass(eq=False, slots=True)
class _Copy:
    """A table's snapshot in this process."""

    followed: Followed
    job: Job | None = None
    waiting: list[ChunkAtMark | WholeRead] = field(default_factory=list)
    log: Spool | None = None
    rows: Spool | None = None
    whole: Read | None = None
    lost: int = 0
    not_before: float = 0.0
    waits_for: TransientError | None = None
    waits_since: float | None = None


@dataclass(slots=True, kw_only=True)
class SnapshotRunner:
    """Runs the snapshots of all tables, one piece at a time. Called by the loop's thread alone.

    Attributes:
        suspicious: Tables whose identity was not as accepted when they were read: their catalogue entry wants
            comparing.
        failed: Tables that could not be read, for the loop to fail.
    """

    window: Window
    reader: ChunkReader
    marks: MarkBoard[Any]
    tables: Tables
    settings: CaptureSettings
    clock: Callable[[], float]
    suspicious: set[TableId] = field(default_factory=set)
    failed: list[tuple[TableId, TableError]] = field(default_factory=list)
    _completed: list[TableId] = field(default_factory=list)
    _copies: dict[TableId, _Copy] = field(default_factory=dict)
    _job: Job | None = None

    # --- what the loop tells ------------------------------------------------------------------------------------------

    def begin(self, followed: Followed) -> None:
        """The table is to be copied from where its progress says; also after a restart."""
        self.drop(followed.table)
        self._copies[followed.table] = _Copy(followed)
        if followed.schema.key:
            self.window.watch(followed.schema)

    def drop(self, table: TableId) -> None:
        """The table is no longer copied here."""
        copy = self._copies.pop(table, None)
        if copy is not None:
            self._abandon(copy)
        self.window.unwatch(table)

    def delivered(self, moved: Mapping[TableId, Sequence[Cursor]]) -> None:
        """The window took note of a batch: keep the keys that must be read once more, and see which reads are lost."""
        for table, keys in moved.items():
            copy = self._copies.get(table)
            if copy is not None:
                with of_table(table, "noting keys to be read again"):
                    progress = with_keys(self.tables.progress(copy.followed), keys, self.settings.keys_max)
                    self.tables.put_progress(copy.followed, progress)
        self._see_verdicts()

    def is_held_back(self, followed: Followed) -> bool:
        """Whether log rows of the table must not be written now: it has no key and its snapshot is not complete."""
        return followed.table in self._copies and not followed.schema.key

    def hold_back(self, followed: Followed, rows: pa.RecordBatch) -> None:
        """Keep log rows that must not be written now, if the read may need them."""
        copy = self._copies[followed.table]
        if copy.log is not None:
            copy.log.append(renumbered(rows, followed.schema, 0))

    def take_mark(self, due: ChunkAtMark | WholeRead) -> WholeDue | None:
        """The log delivered the mark of a read, and no transaction is open: write a chunk, or say that a whole read wants writing."""
        copy = self._copies.get(due_table(due))
        if copy is None or due not in copy.waiting:
            return None
        if isinstance(due, ChunkAtMark):
            with of_table(copy.followed.table, "writing a chunk of it"):
                self._put_chunk(copy, due)
            return None
        with of_table(copy.followed.table, "comparing a chunk of it with its changes"):
            return self._judge_whole(copy, due)

    def put_whole(self, due: WholeDue) -> None:
        """Write a whole read, and what the log brought that it did not see."""
        copy = self._copies[due_table(due.result)]
        with of_table(copy.followed.table, "writing a chunk of it"):
            self._put_whole(copy, due.result)

    def collect(self) -> None:
        """Take in what the reader's thread has done. Raises what it could not cope with."""
        while (result := self.reader.next_result()) is not None:
            if isinstance(result, Ended):
                self._end(result)
                continue
            with of_table(result.job.reading.schema.table, "processing a chunk of it"):
                match result:
                    case ChunkRead():
                        self._take_chunk(result)
                    case WholeBegan():
                        self._take_beginning(result)
                    case WholeRead():
                        self._take_whole(result)

    def schedule(self) -> None:
        """Between transactions: start to read the next piece, if the reader is idle and something is due."""
        if self._job is not None:
            return
        now = self.clock()
        for table in sorted(self._copies):
            copy = self._copies[table]
            if copy.waiting or copy.not_before > now:
                continue
            with of_table(table, "starting to read it"):
                followed, chunk_rows = copy.followed, self.settings.chunk_rows
                reading = next_reading(self.tables.progress(followed), followed.schema, chunk_rows)
                if reading is not None:
                    self._start(copy, reading)
                    return

    def take_completed(self) -> Sequence[TableId]:
        """The tables whose snapshots were completed since it was asked last."""
        completed, self._completed = self._completed, []
        return completed

    def waiting(self, table: TableId) -> WaitingReport | None:
        """Why a table that is to be copied cannot be read now, and when it is tried again."""
        copy = self._copies.get(table)
        if copy is None or copy.waits_for is None:
            return None
        retry_in_s = round(max(0.0, copy.not_before - self.clock()), 1)
        return WaitingReport(retry_in_s=retry_in_s, code=copy.waits_for.code, message=copy.waits_for.message)

    @property
    def is_busy(self) -> bool:
        """Whether any table is being copied."""
        return bool(self._copies)

    # --- results ------------------------------------------------------------------------------------------------------

    def _start(self, copy: _Copy, reading: Reading) -> None:
        if not reading.schema.key:
            self.window.unwatch(copy.followed.table)
            self.window.watch(copy.followed.schema)
            copy.log = Spool(self.settings.spool, change_schema(copy.followed.schema))
        self._job = copy.job = Job(reading)
        self.window.begin_reading()
        self.reader.start(self._job)

    def _take_chunk(self, result: ChunkRead) -> None:
        copy = self._copies.get(result.reading.schema.table)
        if result.job.is_cancelled or copy is None:
            self.reader.release()
            return
        copy.waits_for = copy.waits_since = None
        read = self.window.add_chunk(result.reading.schema, result.chunk.rows, result.chunk.visibility)
        waiting = ChunkAtMark(result, read)
        copy.waiting.append(waiting)
        self.marks.expect(result.mark, waiting)
        self._see_verdicts()

    def _take_beginning(self, result: WholeBegan) -> None:
        copy = self._copies.get(result.job.reading.schema.table)
        if result.job.is_cancelled or copy is None:
            return
        copy.waits_for = None
        if copy.whole is not None:
            self.window.drop(copy.whole)
        copy.whole = self.window.add_whole(result.job.reading.schema, result.visibility)
        self._see_verdicts()

    def _take_whole(self, result: WholeRead) -> None:
        copy = self._copies.get(result.job.reading.schema.table)
        if result.job.is_cancelled or copy is None:
            result.rows.close()
            return
        copy.waits_since = None
        copy.rows = result.rows
        copy.waiting.append(result)
        self.marks.expect(result.mark, result)

    def _end(self, result: Ended) -> None:
        assert result.job is self._job, "jobs end in their order"
        self._job = None
        self.window.end_reading()
        if result.error is None or result.job.is_cancelled:
            return
        table = result.job.reading.schema.table
        copy = self._copies.get(table)
        if isinstance(result.error, TransientError) and result.error.table is not None and copy is not None:
            # A lock, a time limit. If it is the source that is away, the log says so, too.
            self._put_off(copy, result.error)
            return
        error = table_error(result.error, table, "reading it")
        if error is None:
            raise result.error
        self.failed.append((table, error))

    # --- emission -----------------------------------------------------------------------------------------------------

    def _put_chunk(self, copy: _Copy, due: ChunkAtMark) -> None:
        followed, result, read = copy.followed, due.result, due.read
        if result.chunk.identity is None or followed.record.identity != result.chunk.identity:
            self._lose(copy, Verdict.READ_AGAIN)
            self.suspicious.add(followed.table)
            return
        rows = self.window.emit(read)
        self.tables.take_rows(followed, rows, is_plain=result.reading.kind is ReadingKind.RANGE)
        progress = after_chunk(
            self.tables.progress(followed),
            result.reading,
            cursor=result.chunk.cursor,
            is_last=result.is_last,
            rows=rows.num_rows,
            unsettled=read.unsettled,
        )
        self.tables.put_progress(followed, progress)
        copy.waiting.remove(due)
        self.reader.release()
        if read.unsettled:
            self._wait(copy)
        else:
            copy.lost = 0
        if is_complete(progress):
            self._complete(copy)

    def _judge_whole(self, copy: _Copy, result: WholeRead) -> WholeDue | None:
        """Ask for a whole read to be written if it is good; it is lost if not."""
        assert copy.whole is not None
        assert copy.log is not None
        is_same = result.identity is not None and copy.followed.record.identity == result.identity
        if is_same and not any(_has_unknown(copy.whole, batch) for batch in copy.log.batches()):
            return WholeDue(result)
        self._lose(copy, Verdict.READ_AGAIN)
        if not is_same:
            self.suspicious.add(copy.followed.table)
        return None

    def _put_whole(self, copy: _Copy, result: WholeRead) -> None:
        assert copy.whole is not None
        assert copy.log is not None
        followed, count = copy.followed, 0
        for batch in result.rows.batches():
            self.tables.take_rows(followed, snapshot_changes(followed.schema, batch), is_plain=True)
            count += batch.num_rows
        for batch in copy.log.batches():
            unseen = batch.filter(pa.array(_unseen_rows(copy.whole, batch)))
            ordinals = pa.array(np.arange(unseen.num_rows, dtype=np.int64))
            fresh = pa.RecordBatch.from_arrays([ordinals, *unseen.columns[1:]], schema=unseen.schema)
            self.tables.take_rows(followed, fresh)
        progress = self.tables.progress(followed)
        ranges = tuple(replace(part, is_done=True) for part in progress.ranges)
        self.tables.put_progress(followed, replace(progress, ranges=ranges, rows=count))
        self._complete(copy)

    def _complete(self, copy: _Copy) -> None:
        self.tables.complete(copy.followed)
        table = copy.followed.table
        self._completed.append(table)
        del self._copies[table]
        self._close_spools(copy)
        self.window.unwatch(table)

    # --- lost reads ---------------------------------------------------------------------------------------------------

    def _see_verdicts(self) -> None:
        for read in self.window.reads:
            if read.verdict is not Verdict.GOOD:
                copy = self._copies.get(read.schema.table)
                if copy is not None:
                    with of_table(read.schema.table, "discarding a chunk of it"):
                        self._lose(copy, read.verdict)

    def _lose(self, copy: _Copy, verdict: Verdict) -> None:
        """Read again, after a while: what the read did not see must become visible."""
        self._abandon(copy)
        if verdict is Verdict.START_OVER:
            self.tables.put_progress(copy.followed, start_over(self.tables.progress(copy.followed)))
        self._wait(copy)

    def _put_off(self, copy: _Copy, error: TransientError) -> None:
        """Leave a table alone that cannot be read now, others are read meanwhile; fail it once it was tried for long enough."""
        now = self.clock()
        if copy.waits_since is None:
            copy.waits_since = now
        if now - copy.waits_since >= self.settings.give_up_after_s:
            self.failed.append((copy.followed.table, _exhausted(error)))
            return
        self._abandon(copy)
        self._wait(copy)
        copy.waits_for = error
        wait_s = copy.not_before - self.clock()
        _log.warning(
            "table_waits",
            table=str(copy.followed.table),
            code=error.code,
            reason=error.message,
            retry_in_ms=round(wait_s * 1000),
        )

    def _wait(self, copy: _Copy) -> None:
        wait_s = min(self.settings.chunk_backoff_s * 2 ** min(copy.lost, 20), self.settings.chunk_backoff_max_s)
        copy.lost += 1
        copy.not_before = self.clock() + wait_s

    def _abandon(self, copy: _Copy) -> None:
        """Drop the reads of the table that wait, and what the reader is at."""
        table = copy.followed.table
        for read in self.window.reads:
            if read.schema.table == table:
                self.window.drop(read)
        for waiting in copy.waiting:
            if isinstance(waiting, ChunkAtMark):
                self.reader.release()
        self.marks.drop(copy.waiting)
        copy.waiting.clear()
        if copy.job is not None:
            self.reader.cancel(copy.job)
        copy.job = None
        self._close_spools(copy)

    def _close_spools(self, copy: _Copy) -> None:
        for spool in (copy.log, copy.rows):
            if spool is not None:
                spool.close()
        copy.log, copy.rows, copy.whole = None, None, None


def due_table(due: ChunkAtMark | WholeRead) -> TableId:
    """Of which table a read was."""
    result = due.result if isinstance(due, ChunkAtMark) else due
    return result.job.reading.schema.table


def _exhausted(error: TransientError) -> TableError:
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

"""The thread that reads chunks, ahead of the loop that emits them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from replicator.capture.settings import CaptureSettings
from replicator.capture.snapshots.progress import Reading, ReadingKind
from replicator.capture.snapshots.spool import Spool
from replicator.model.crash import crash_point
from replicator.model.errors import ImpossibleKeyError, PluginError, TransientError
from replicator.model.identity import TableIdentity
from replicator.plugins.source import Chunk, SourceChunks, Visibility


@dataclass(eq=False, slots=True)
class ChunkJob:
    """One piece of a snapshot being read, chunk after chunk.

    Attributes:
        reading: Which one.
        reader: Its number in the window.
        layout: The layout of a whole table's rows on disk; `project` gives it to what was read: no other values are written there.
        is_cancelled: What still comes of it is of no use.
    """

    reading: Reading
    reader: int
    layout: pa.Schema
    project: Callable[[pa.RecordBatch], pa.RecordBatch]
    is_cancelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRead:
    """A chunk was read and its mark is being written."""

    job: ChunkJob
    reading: Reading
    chunk: Chunk
    mark: Future[str]
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeVisible:
    """A read of a table without a key has begun: what it sees is known."""

    job: ChunkJob
    visibility: Visibility


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class TableRead:
    """A table without a key was read; its rows are in the spool."""

    job: ChunkJob
    rows: Spool
    identity: TableIdentity | None
    mark: Future[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded:
    """Nothing more comes of the job. `error` is why it ended early."""

    job: ChunkJob
    error: Exception | None = None


Result = ChunkRead | WholeVisible | TableRead | JobEnded


@dataclass(eq=False, slots=True)
class _Shared:
    """Guarded by `changed`."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    job: ChunkJob | None = None
    free: int = 0
    results: deque[Result] = field(default_factory=deque)
    is_closed: bool = False


class ChunkReader:
    """Reads one job at a time in a thread of its own; the only caller of `read_chunk` and `read_whole`.

    At most `chunks_ahead` chunks are read and not yet released. A chunk that fails for a passing reason is read again,
    so often as the settings say; any other error ends the job and comes with `JobEnded`.
    """

    def __init__(self, source: SourceChunks, settings: CaptureSettings, write_mark: Callable[[], Future[str]]) -> None:
        self._source = source
        self._settings = settings
        self._write_mark = write_mark
        self._shared = _Shared(free=settings.chunks_ahead)
        self._thread = threading.Thread(target=self._run, name="chunks", daemon=True)
        self._thread.start()

    def start(self, job: ChunkJob) -> None:
        """Read this; the job before must have ended."""
        with self._shared.changed:
            assert self._shared.job is None, "one job at a time"
            self._shared.job = job
            self._shared.changed.notify_all()

    def cancel(self, job: ChunkJob) -> None:
        """Drop the results of the job, which are of no use any more; `JobEnded` still comes."""
        with self._shared.changed:
            job.is_cancelled = True
            self._shared.changed.notify_all()

    def release(self) -> None:
        """A chunk was emitted or dropped: there is room for another."""
        with self._shared.changed:
            self._shared.free += 1
            self._shared.changed.notify_all()

    def next_result(self) -> Result | None:
        """Return the next result, in order; None if nothing has come since. `close` drops results that are not taken."""
        with self._shared.changed:
            return self._shared.results.popleft() if self._shared.results else None

    def close(self) -> None:
        """End the thread once the statement it is in returns; does not wait for it longer than a moment."""
        with self._shared.changed:
            self._shared.is_closed = True
            self._shared.changed.notify_all()
        self._thread.join(timeout=5)
        while (result := self.next_result()) is not None:
            if isinstance(result, TableRead):
                result.rows.close()

    def _run(self) -> None:
        while (job := self._next_job()) is not None:
            error: Exception | None = None
            try:
                if job.reading.schema.key:
                    self._read_chunks(job)
                else:
                    self._read_whole(job)
            except Exception as caught:  # noqa: BLE001 (handed to the loop, which raises it)
                error = caught
            with self._shared.changed:
                self._shared.job = None
                self._shared.results.append(JobEnded(job=job, error=error))

    def _next_job(self) -> ChunkJob | None:
        with self._shared.changed:
            self._shared.changed.wait_for(lambda: self._shared.is_closed or self._shared.job is not None)
            return None if self._shared.is_closed else self._shared.job

    def _read_chunks(self, job: ChunkJob) -> None:
        reading, is_last = job.reading, False
        while not is_last and self._reserve(job):
            at = reading
            try:
                chunk = self._patiently(job, lambda at=at: self._read_chunk(at))  # type: ignore[misc]
            except BaseException:
                # Whatever ended the read, its share of the memory is returned.
                self.release()
                raise
            if chunk is None:
                self.release()
                return
            crash_point("capture.chunk_read")
            if chunk.is_cut and len(reading.keys) > 1:
                # Half of the keys are read in this chunk, the rest in a later one.
                self.release()
                reading = replace(reading, keys=reading.keys[: len(reading.keys) // 2])
                continue
            is_last = reading.kind is ReadingKind.KEYS or (chunk.rows.num_rows < reading.limit and not chunk.is_cut)
            if (chunk.rows.num_rows or chunk.is_cut) and (
                chunk.cursor is None or (reading.kind is ReadingKind.RANGE and chunk.cursor == reading.after)
            ):
                raise PluginError(
                    "reading a chunk did not advance its cursor.", code="cursor_stuck", table=str(reading.schema.table)
                )
            self._put(ChunkRead(job=job, reading=reading, chunk=chunk, mark=self._write_mark(), is_last=is_last))
            reading = replace(reading, after=chunk.cursor)

    def _read_chunk(self, reading: Reading) -> Chunk:
        """Of keys of which one is impossible nothing is read, as if they were too many. One alone has no row."""
        request = reading.request()
        try:
            return self._source.read_chunk(request)
        except ImpossibleKeyError:
            if not reading.deletes_missing:
                raise
            nothing = self._source.read_chunk(replace(request, keys=()))
            return replace(nothing, is_cut=len(reading.keys) > 1)

    def _read_whole(self, job: ChunkJob) -> None:
        self._patiently(job, lambda: self._spool_whole(job))

    def _spool_whole(self, job: ChunkJob) -> bool:
        schema = job.reading.schema
        rows = Spool(self._settings.spool, job.layout)
        try:
            with self._source.read_whole(schema) as read:
                self._put(WholeVisible(job=job, visibility=read.visibility))
                for batch in read.batches:
                    if self._is_useless(job):
                        rows.close()
                        return True
                    rows.append(job.project(batch))
                identity = read.identity()
        except BaseException:
            # Whatever ended the read, its files are deleted.
            rows.close()
            raise
        crash_point("capture.chunk_read")
        self._put(TableRead(job=job, rows=rows, identity=identity, mark=self._write_mark()))
        return True

    def _patiently(self, job: ChunkJob, read: Callable[[], Any]) -> Any:
        """Read again after a passing error, with longer and longer waits; None if the job is cancelled meanwhile."""
        wait_s = self._settings.chunk_backoff_s
        for attempt in range(self._settings.chunk_retries + 1):
            try:
                return None if self._is_useless(job) else read()
            except TransientError:
                if attempt == self._settings.chunk_retries:
                    raise
            with self._shared.changed:
                self._shared.changed.wait_for(lambda: self._shared.is_closed or job.is_cancelled, timeout=wait_s)
            wait_s = min(2 * wait_s, self._settings.chunk_backoff_max_s)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _reserve(self, job: ChunkJob) -> bool:
        with self._shared.changed:
            self._shared.changed.wait_for(lambda: self._shared.is_closed or job.is_cancelled or self._shared.free > 0)
            if self._shared.is_closed or job.is_cancelled:
                return False
            self._shared.free -= 1
            return True

    def _is_useless(self, job: ChunkJob) -> bool:
        with self._shared.changed:
            return job.is_cancelled or self._shared.is_closed

    def _put(self, result: Result) -> None:
        with self._shared.changed:
            self._shared.results.append(result)

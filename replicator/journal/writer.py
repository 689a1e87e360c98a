"""Writes the journal: numbered changes into Parquet files, sealed into the index in one transaction."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

import pyarrow as pa

from replicator.config import JournalConfig
from replicator.journal.location import epoch_of, open_folder, segment_name
from replicator.journal.table_file import TableFile
from replicator.model.crash import crash_point
from replicator.model.errors import ConfigError, FencedError, JournalUnavailableError, PluginError
from replicator.model.events import JournalEvent
from replicator.model.isolation import TableFailedError, of_table
from replicator.model.offset import Offset
from replicator.model.schema import TableId, TableSchema
from replicator.state.records import EventEntry, HistoryEntry, Segment, SegmentFile, TableRecord
from replicator.state.store import StateStore

_UNUSABLE: Final = "a writer that failed or was closed is not used again"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterLimits:
    """Limits at which a segment is closed in the midst of much data. Sealing (`commit`) is capture's decision.

    Attributes:
        segment_rows: Rows of all tables in a segment; soft: rows numbered by one `take` stay together.
        segment_bytes: Arrow bytes of all tables in a segment; soft likewise.
        row_group_rows: Rows that a table gathers before they are encoded.
        buffer_bytes: Arrow bytes that all tables together gather before the largest is encoded.
        bytes_max: Bytes of all files of the journal.
    """

    segment_rows: int
    segment_bytes: int
    row_group_rows: int
    buffer_bytes: int
    bytes_max: int

    @classmethod
    def of(cls, config: JournalConfig) -> WriterLimits:
        """Return the limits of a configuration; what users cannot set has its one value here."""
        return cls(
            segment_rows=config.segment_rows,
            segment_bytes=config.segment_bytes,
            row_group_rows=100_000,
            buffer_bytes=64 << 20,
            bytes_max=config.bytes_max,
        )


@dataclass(slots=True, kw_only=True)
class _Draft:
    """A segment that is not sealed yet; open while it is the last one. `open_files` is empty once it is closed."""

    first: int
    open_files: dict[TableId, TableFile] = field(default_factory=dict)
    files: list[SegmentFile] = field(default_factory=list)
    events: list[EventEntry] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0


class JournalWriter:
    """The only writer of a replicator's journal under an epoch. Used from one thread.

    Steps: `append` and `event` fill the open segment, whose files have the epoch and a name that was never used; `take` and `event` close
    it and open the next where limits and barriers require it; `commit` makes all of them durable (files, then the folder), then seals them
    together. A crash before the seal leaves orphans, which `sweep` (by the next holder of the lease) removes; after it everything is there.

    Rows numbered by one `take` are appended before the next `take`: segments then cover contiguous ranges.

    After an error the writer is unusable (only `close` may follow), and a new one starts from the index. Its files are deleted unless they
    may have been sealed. A TableFailedError, where the rows of one table cannot be written, is different: as after `discard`, everything
    since the last commit is dropped, of every table, and the writer continues.

    Raises (on opening): as `open_folder`; ConfigError (`unknown_replicator`).
    """

    def __init__(self, store: StateStore, *, name: str, epoch: int, uri: str, limits: WriterLimits) -> None:
        record = store.replicator(name)
        if record is None:
            raise ConfigError(f"There is no replicator named {name}.", code="unknown_replicator")
        self._store, self._name, self._epoch, self._limits = store, name, epoch, limits
        self._folder = open_folder(uri, record.uuid)
        self._token = secrets.token_hex(8)
        self._files_named = 0
        newest = store.journal.last_segment(name)
        self._last_id, self._next = (newest.id, newest.last + 1) if newest else (0, 0)
        self._offset = newest.offset if newest else None
        self._source_time = newest.source_time if newest else None
        self._ring = newest.ring if newest else ()
        self._sealed_bytes = store.journal.total_bytes(name)
        self._stored_schemas: set[tuple[TableId, str]] = set()
        self._is_usable = True
        self._begin()

    @property
    def next_sequence_num(self) -> int:
        """Return the number that the next `take` assigns first."""
        return self._next

    @property
    def pending_rows(self) -> int:
        """Return the rows and events since the last commit."""
        return self._pending_rows

    @property
    def pending_bytes(self) -> int:
        """Return the Arrow bytes since the last commit."""
        return self._pending_bytes

    def take(self, count: int) -> int:
        """Assign `count` numbers; return the first. Gaps are allowed: numbers need not all be used."""
        assert self._is_usable, _UNUSABLE
        assert count >= 0, "a count of numbers"
        draft = self._drafts[-1]
        if draft.rows >= self._limits.segment_rows or draft.bytes >= self._limits.segment_bytes:
            with self._guarded():
                self._rotate(self._next)
        first = self._next
        self._next += count
        return first

    def append(self, schema: TableSchema, incarnation: int, rows: pa.RecordBatch) -> None:
        """Add numbered changes (`change_schema(schema)`, ascending, above every number of that table so far).

        May write row groups; bounded memory.

        Raises:
            TableFailedError: The rows cannot be written, or are of another schema (`wrong_layout`).
            JournalUnavailableError: Also `journal_full`: `bytes_max` is reached.
        """
        if rows.num_rows == 0:
            return
        with self._guarded():
            draft = self._drafts[-1]
            with of_table(schema.table, "writing its changes"):
                file = self._file(draft, schema, incarnation)
                if not rows.schema.equals(file.arrow_schema):
                    raise PluginError(
                        f"A batch of changes has another layout than its table ({rows.schema}).",
                        code="wrong_layout",
                        table=str(schema.table),
                    )
                nbytes = file.append(rows)
            self._used(file.last)
            draft.rows += rows.num_rows
            draft.bytes += nbytes
            self._pending_rows += rows.num_rows
            self._pending_bytes += nbytes
            self._buffered_bytes += nbytes
            if file.buffered_rows >= self._limits.row_group_rows:
                self._flush(file)
            while self._buffered_bytes >= self._limits.buffer_bytes:
                self._flush(max(draft.open_files.values(), key=lambda f: f.buffered_bytes))

    def event(self, sequence_num: int, table: TableId, incarnation: int, event: JournalEvent) -> None:
        """Add an event: a barrier for its table. Every lower number has been appended."""
        with self._guarded():
            if table in self._drafts[-1].open_files:
                assert sequence_num > self._highest, "an event comes after what was numbered before it"
                self._rotate(sequence_num)
            self._used(sequence_num)
            entry = EventEntry(sequence_num=sequence_num, table=table, incarnation=incarnation, event=event)
            self._drafts[-1].events.append(entry)
            self._pending_rows += 1

    def commit(
        self,
        *,
        offset: Offset | None,
        source_time: datetime | None,
        ring: Sequence[str] = (),
        tables: Sequence[TableRecord] = (),
        history: Sequence[HistoryEntry] = (),
        done_requests: Sequence[int] = (),
        barriers: Sequence[int] = (),
    ) -> Sequence[Segment]:
        """Make everything since the last commit durable and visible together.

        Args:
            offset: Position to resume from after this commit; None keeps the last one.
            source_time: Time on the source's clock before which everything committed is in the journal now; None keeps the last one.
            ring: Ids of transactions that a read of the source might not see yet.
            tables: Records of tables that changed.
            history: Changes of tables' definitions.
            done_requests: Ids of requests that this commit completes.
            barriers: Ids of requests for a barrier that end here.

        Returns:
            The sealed segments; at least one, which may be empty.

        Raises:
            FencedError, JournalUnavailableError, StateUnavailableError, TableFailedError.
        """
        with self._guarded():
            self._close_files(self._drafts[-1])
            crash_point("journal.files_written")
            if self._created:
                self._check_space()
                self._folder.sync()
            segments = self._segments(offset or self._offset, source_time or self._source_time, ring)
            crash_point("journal.before_index")
            schemas = list(self._schemas.values())
            try:
                self._store.seal(
                    self._name,
                    self._epoch,
                    segments,
                    schemas=schemas,
                    tables=tables,
                    history=history,
                    done_requests=done_requests,
                    barriers=barriers,
                    changes=self._changes,
                )
            except FencedError:
                raise
            except BaseException:
                # Perhaps the transaction was committed and only the answer was lost: the files must stay.
                self._created.clear()
                raise
            crash_point("journal.after_index")
        newest = segments[-1]
        self._last_id, self._offset, self._source_time, self._ring = (
            newest.id,
            newest.offset,
            newest.source_time,
            newest.ring,
        )
        self._sealed_bytes += sum(file.bytes for segment in segments for file in segment.files)
        self._stored_schemas.update(self._schemas)
        self._begin()
        return segments

    def discard(self) -> None:
        """Drop everything since the last commit: the files too, and the numbers will be assigned again."""
        assert self._is_usable, _UNUSABLE
        self._delete_created()
        self._next = self._drafts[0].first
        self._begin()

    def sweep(self) -> int:
        """Delete files of older epochs that no index row names; return their number. Only the lease's holder calls it, at start.

        Files of newer epochs are left alone: they would mean that this process is the one that is out of date.
        """
        self._store.leases.check_epoch(self._name, self._epoch)
        # Listed before the index is read: what is sealed in between is then in the index.
        old = [name for name in self._folder.sizes() if (epoch := epoch_of(name)) is not None and epoch < self._epoch]
        indexed = self._store.journal.uris(self._name)
        orphans = [name for name in old if self._folder.uri_of(name) not in indexed]
        for name in orphans:
            self._folder.delete(name)
        return len(orphans)

    def close(self) -> None:
        """Drop everything that was not committed. May be called twice."""
        if self._is_usable:
            self._is_usable = False
            self._delete_created()

    def _begin(self) -> None:
        self._drafts = [_Draft(first=self._next)]
        self._created: list[str] = []
        self._schemas: dict[tuple[TableId, str], TableSchema] = {}
        self._changes: Counter[str] = Counter()
        self._highest = self._next - 1
        self._pending_rows = self._pending_bytes = self._buffered_bytes = self._closed_bytes = 0

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        assert self._is_usable, _UNUSABLE
        try:
            yield
        except TableFailedError:
            self.discard()
            raise
        except BaseException:
            # A half-written segment cannot be continued.
            self.close()
            raise

    def _file(self, draft: _Draft, schema: TableSchema, incarnation: int) -> TableFile:
        file = draft.open_files.get(schema.table)
        if file is not None:
            is_same = file.schema is schema or file.schema.fingerprint == schema.fingerprint
            if is_same and file.incarnation == incarnation:
                return file
            self._finish(draft, file)
        self._files_named += 1
        name = segment_name(self._epoch, self._token, self._files_named, str(schema.table))
        file = TableFile(self._folder, name, schema, incarnation, self._limits.row_group_rows)
        self._created.append(name)
        draft.open_files[schema.table] = file
        key = (schema.table, schema.fingerprint)
        if key not in self._stored_schemas:
            self._schemas[key] = schema
        return file

    def _used(self, number: int) -> None:
        assert self._drafts[-1].first <= number < self._next, f"{number} was not given out for the open segment"
        self._highest = max(self._highest, number)

    def _flush(self, file: TableFile) -> None:
        self._buffered_bytes -= file.buffered_bytes
        with of_table(file.schema.table, "writing its journal file"):
            file.flush()
        self._check_space()

    def _rotate(self, first: int) -> None:
        """Close the open segment below `first` and open the next."""
        self._close_files(self._drafts[-1])
        self._drafts.append(_Draft(first=first))
        crash_point("journal.segment_closed")

    def _close_files(self, draft: _Draft) -> None:
        for file in list(draft.open_files.values()):
            self._finish(draft, file)

    def _finish(self, draft: _Draft, file: TableFile) -> None:
        self._buffered_bytes -= file.buffered_bytes
        with of_table(file.schema.table, "writing its journal file"):
            done = file.finish()
        draft.files.append(done)
        self._changes += file.changes
        self._closed_bytes += done.bytes
        del draft.open_files[file.schema.table]

    def _check_space(self) -> None:
        pending = self._closed_bytes + sum(file.written_bytes for file in self._drafts[-1].open_files.values())
        if self._sealed_bytes + pending < self._limits.bytes_max:
            return
        self._sealed_bytes = self._store.journal.total_bytes(self._name)  # retention may have made room since
        if self._sealed_bytes + pending >= self._limits.bytes_max:
            raise JournalUnavailableError(
                f"The journal {self._folder.uri} is full: it holds {self._sealed_bytes} bytes, {pending} more are waiting,"
                f" and journal.bytes_max is {self._limits.bytes_max}.",
                code="journal_full",
                action="Wait until the target catches up, or raise `journal.bytes_max`. Until then the source keeps its log.",
            )

    def _segments(self, offset: Offset | None, source_time: datetime | None, ring: Sequence[str]) -> Sequence[Segment]:
        sealed_at = self._store.now()
        newest_id = self._last_id + len(self._drafts)
        ends = [draft.first - 1 for draft in self._drafts[1:]] + [self._next - 1]
        segments = [
            Segment(
                id=self._last_id + position,
                first=draft.first,
                last=end,
                epoch=self._epoch,
                offset=self._offset,
                source_time=self._source_time,
                ring=self._ring,
                files=tuple(replace(file, seal=newest_id) for file in draft.files),
                events=tuple(draft.events),
                sealed_at=sealed_at,
            )
            for position, (draft, end) in enumerate(zip(self._drafts, ends, strict=True), start=1)
        ]
        segments[-1] = replace(segments[-1], offset=offset, source_time=source_time, ring=tuple(ring))
        return segments

    def _delete_created(self) -> None:
        """Abandon and delete the files since the last commit. A file that cannot be deleted now is an orphan: a later sweep deletes it."""
        for file in self._drafts[-1].open_files.values():
            file.abandon()
        for name in self._created:
            try:
                self._folder.delete(name)
            except JournalUnavailableError:
                break
        self._created.clear()

"""Writes the journal: numbered changes into Parquet files, sealed into the index in one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import pyarrow as pa

from replicator.journal.location import epoch_of, open_folder
from replicator.journal.pending import NewFiles, Pending, Space, WriterLimits
from replicator.model.crash import crash_point
from replicator.model.errors import ConfigError, FencedError
from replicator.model.events import JournalEvent
from replicator.model.isolation import TableFailedError
from replicator.model.offset import Offset
from replicator.model.schema import TableId, TableSchema
from replicator.state.records import HistoryEntry, Segment, TableRecord
from replicator.state.store import StateStore

_UNUSABLE: Final = "a writer that failed or was closed is not used again"


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """The end of the index: the newest segment's id, and what the next commit keeps unless it brings newer."""

    id: int = 0
    offset: Offset | None = None
    source_time: datetime | None = None
    ring: Sequence[str] = ()

    @classmethod
    def of(cls, newest: Segment | None) -> _End:
        """Return the end that a segment is."""
        if newest is None:
            return cls()
        return cls(id=newest.id, offset=newest.offset, source_time=newest.source_time, ring=newest.ring)


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
        self._files = NewFiles(self._folder, epoch)
        self._space = Space(store, name, self._folder.uri, limits.bytes_max)
        newest = store.journal.last_segment(name)
        self._end = _End.of(newest)
        self._stored_schemas: set[tuple[TableId, str]] = set()
        self._is_usable = True
        self._pending = self._begun(newest.last + 1 if newest else 0)

    @property
    def next_sequence_num(self) -> int:
        """Return the number that the next `take` assigns first."""
        return self._pending.next

    @property
    def pending_rows(self) -> int:
        """Return the rows and events since the last commit."""
        return self._pending.rows

    @property
    def pending_bytes(self) -> int:
        """Return the Arrow bytes since the last commit."""
        return self._pending.bytes

    def take(self, count: int) -> int:
        """Assign `count` numbers; return the first. Gaps are allowed: numbers need not all be used."""
        assert self._is_usable, _UNUSABLE
        assert count >= 0, "a count of numbers"
        if self._pending.is_full:
            with self._guarded():
                self._pending.rotate(self._pending.next)
        return self._pending.take(count)

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
            self._pending.append(schema, incarnation, rows)

    def event(self, sequence_num: int, table: TableId, incarnation: int, event: JournalEvent) -> None:
        """Add an event: a barrier for its table. Every lower number has been appended."""
        with self._guarded():
            self._pending.event(sequence_num, table, incarnation, event)

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
        pending = self._pending
        with self._guarded():
            pending.close()
            crash_point("journal.files_written")
            if self._files.created:
                pending.check_space()
                self._folder.sync()
            segments = self._segments(offset, source_time, ring)
            crash_point("journal.before_index")
            try:
                self._store.seal(
                    self._name,
                    self._epoch,
                    segments,
                    schemas=[schema for key, schema in pending.schemas.items() if key not in self._stored_schemas],
                    tables=tables,
                    history=history,
                    done_requests=done_requests,
                    barriers=barriers,
                    changes=pending.changes,
                )
            except FencedError:
                raise
            except BaseException:
                # Perhaps the transaction was committed and only the answer was lost: the files must stay.
                self._files.created.clear()
                raise
            crash_point("journal.after_index")
        self._end = _End.of(segments[-1])
        self._space.add(sum(file.bytes for segment in segments for file in segment.files))
        self._stored_schemas.update(pending.schemas)
        self._files.created.clear()
        self._pending = self._begun(pending.next)
        return segments

    def discard(self) -> None:
        """Drop everything since the last commit: the files too, and the numbers will be assigned again."""
        assert self._is_usable, _UNUSABLE
        self._pending.abandon()
        self._pending = self._begun(self._pending.drafts[0].first)

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
            self._pending.abandon()

    def _begun(self, first: int) -> Pending:
        return Pending(self._files, self._space, self._limits, first)

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

    def _segments(self, offset: Offset | None, source_time: datetime | None, ring: Sequence[str]) -> Sequence[Segment]:
        sealed_at, before, pending = self._store.now(), self._end, self._pending
        newest_id = before.id + len(pending.drafts)
        ends = [draft.first - 1 for draft in pending.drafts[1:]] + [pending.next - 1]
        segments = [
            Segment(
                id=before.id + position,
                first=draft.first,
                last=end,
                epoch=self._epoch,
                offset=before.offset,
                source_time=before.source_time,
                ring=before.ring,
                files=tuple(replace(file, seal=newest_id) for file in draft.files),
                events=tuple(draft.events),
                sealed_at=sealed_at,
            )
            for position, (draft, end) in enumerate(zip(pending.drafts, ends, strict=True), start=1)
        ]
        segments[-1] = replace(
            segments[-1],
            offset=offset or before.offset,
            source_time=source_time or before.source_time,
            ring=tuple(ring),
        )
        return segments

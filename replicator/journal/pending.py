"""Everything that a writer was given since its last commit: segments that are not sealed yet, and their files."""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import dataclass, field

import pyarrow as pa

from replicator.config import JournalConfig
from replicator.journal.files import JournalFolder
from replicator.journal.location import segment_name
from replicator.journal.table_file import TableFile
from replicator.model.crash import crash_point
from replicator.model.errors import JournalUnavailableError, PluginError
from replicator.model.events import JournalEvent
from replicator.model.isolation import of_table
from replicator.model.schema import TableId, TableSchema
from replicator.state.records import EventEntry, SegmentFile
from replicator.state.store import StateStore


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterLimits:
    """Limits at which a segment is closed in the midst of much data. Sealing (`JournalWriter.commit`) is capture's decision.

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
class UnsealedSegment:
    """A segment that is not sealed yet; open while it is the last one. `open_files` is empty once it is closed."""

    first: int
    open_files: dict[TableId, TableFile] = field(default_factory=dict)
    files: list[SegmentFile] = field(default_factory=list)
    events: list[EventEntry] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0

    def finish(self, table: TableId) -> Counter[str]:
        """End the open file of a table; return the changes of the source's log in it, by operation."""
        file = self.open_files[table]
        with of_table(table, "writing its journal file"):
            self.files.append(file.finish())
        del self.open_files[table]
        return file.changes

    @property
    def written_bytes(self) -> int:
        """Return the bytes of its files so far."""
        return sum(f.bytes for f in self.files) + sum(f.written_bytes for f in self.open_files.values())


class NewFiles:
    """The files that one writer makes, under names that were never used: the epoch, a random part, a count.

    Attributes:
        created: Names of those since the last commit.
    """

    def __init__(self, folder: JournalFolder, epoch: int) -> None:
        self._folder, self._epoch = folder, epoch
        self._token = secrets.token_hex(8)
        self._count = 0
        self.created: list[str] = []

    def make(self, schema: TableSchema, incarnation: int, row_group_rows: int) -> TableFile:
        """Begin a file of one table version."""
        self._count += 1
        name = segment_name(self._epoch, self._token, self._count, str(schema.table))
        file = TableFile(self._folder, name, schema, incarnation, row_group_rows)
        self.created.append(name)
        return file

    def delete(self) -> None:
        """Delete those since the last commit. One that cannot be deleted now is an orphan: a later sweep deletes it."""
        for name in self.created:
            try:
                self._folder.delete(name)
            except JournalUnavailableError:
                break
        self.created.clear()


class Space:
    """The room that a journal has for files."""

    def __init__(self, store: StateStore, name: str, uri: str, bytes_max: int) -> None:
        self._store, self._name, self._uri, self._bytes_max = store, name, uri, bytes_max
        self._sealed_bytes = store.journal.total_bytes(name)

    def add(self, nbytes: int) -> None:
        """Take in that so many bytes were sealed."""
        self._sealed_bytes += nbytes

    def check(self, pending: int) -> None:
        """Check that the bytes that wait for a seal have room.

        Raises:
            JournalUnavailableError: `journal_full`.
        """
        if self._sealed_bytes + pending < self._bytes_max:
            return
        self._sealed_bytes = self._store.journal.total_bytes(self._name)  # retention may have made room since
        if self._sealed_bytes + pending >= self._bytes_max:
            raise JournalUnavailableError(
                f"The journal {self._uri} is full: it holds {self._sealed_bytes} bytes, {pending} more are waiting,"
                f" and journal.bytes_max is {self._bytes_max}.",
                code="journal_full",
                action="Wait until the target catches up, or raise `journal.bytes_max`. Until then the source keeps its log.",
            )


class Pending:
    """Segments since the last commit, of contiguous numbers: the last one is open, the others are closed.

    Errors as those of `JournalWriter`. After one, only `abandon` may follow.

    Args:
        files: Makes the files.
        space: The room that they have.
        limits: See `WriterLimits`.
        first: The number that the first `take` assigns first.

    Attributes:
        drafts: The segments.
        next: The number that the next `take` assigns first.
        schemas: Versions of tables in the files.
        changes: Changes of the source's log in the files that are finished, by operation.
        rows: Rows and events.
        bytes: Arrow bytes.
    """

    def __init__(self, files: NewFiles, space: Space, limits: WriterLimits, first: int) -> None:
        self._files, self._space, self._limits = files, space, limits
        self.drafts = [UnsealedSegment(first=first)]
        self.next = first
        self.schemas: dict[tuple[TableId, str], TableSchema] = {}
        self.changes: Counter[str] = Counter()
        self.rows = self.bytes = 0
        self._highest = first - 1
        self._buffered_bytes = 0

    @property
    def is_full(self) -> bool:
        """Return whether the next rows belong into another segment."""
        draft, limits = self.drafts[-1], self._limits
        return draft.rows >= limits.segment_rows or draft.bytes >= limits.segment_bytes

    def take(self, count: int) -> int:
        """Assign `count` numbers; return the first."""
        first = self.next
        self.next += count
        return first

    def append(self, schema: TableSchema, incarnation: int, rows: pa.RecordBatch) -> None:
        """See `JournalWriter.append`; there are rows."""
        draft, limits = self.drafts[-1], self._limits
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
        self.rows += rows.num_rows
        self.bytes += nbytes
        self._buffered_bytes += nbytes
        if file.buffered_rows >= limits.row_group_rows:
            self._flush(file)
        while self._buffered_bytes >= limits.buffer_bytes:
            self._flush(max(draft.open_files.values(), key=lambda f: f.buffered_bytes))

    def event(self, sequence_num: int, table: TableId, incarnation: int, event: JournalEvent) -> None:
        """See `JournalWriter.event`."""
        if table in self.drafts[-1].open_files:
            assert sequence_num > self._highest, "an event comes after what was numbered before it"
            self.rotate(sequence_num)
        self._used(sequence_num)
        entry = EventEntry(sequence_num=sequence_num, table=table, incarnation=incarnation, event=event)
        self.drafts[-1].events.append(entry)
        self.rows += 1

    def rotate(self, first: int) -> None:
        """Close the open segment below `first` and open the next."""
        self.close()
        self.drafts.append(UnsealedSegment(first=first))
        crash_point("journal.segment_closed")

    def close(self) -> None:
        """End the open segment's files."""
        draft = self.drafts[-1]
        for table in list(draft.open_files):
            self._finish(draft, table)

    def check_space(self) -> None:
        """Check that all files have room; JournalUnavailableError (`journal_full`) if not."""
        self._space.check(sum(draft.written_bytes for draft in self.drafts))

    def abandon(self) -> None:
        """Delete the files."""
        for file in self.drafts[-1].open_files.values():
            file.abandon()
        self._files.delete()

    def _file(self, draft: UnsealedSegment, schema: TableSchema, incarnation: int) -> TableFile:
        file = draft.open_files.get(schema.table)
        if file is not None:
            is_same = file.schema is schema or file.schema.fingerprint == schema.fingerprint
            if is_same and file.incarnation == incarnation:
                return file
            self._finish(draft, schema.table)
        file = self._files.make(schema, incarnation, self._limits.row_group_rows)
        draft.open_files[schema.table] = file
        self.schemas[schema.table, schema.fingerprint] = schema
        return file

    def _used(self, number: int) -> None:
        assert self.drafts[-1].first <= number < self.next, f"{number} was not given out for the open segment"
        self._highest = max(self._highest, number)

    def _flush(self, file: TableFile) -> None:
        self._buffered_bytes -= file.buffered_bytes
        with of_table(file.schema.table, "writing its journal file"):
            file.flush()
        self.check_space()

    def _finish(self, draft: UnsealedSegment, table: TableId) -> None:
        self._buffered_bytes -= draft.open_files[table].buffered_bytes
        self.changes += draft.finish(table)

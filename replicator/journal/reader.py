"""Reads the journal: for apply, and for subscribers to changes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from replicator.journal.files import journal_io, resolve
from replicator.journal.table_file import METADATA_KEY, file_schema
from replicator.model.errors import CorruptStreamError, OffsetExpiredError
from replicator.model.events import ABSENT, IS_SNAPSHOT, OPERATION, SEQUENCE_NUM, DMLOperation
from replicator.model.schema import TableId, TableSchema
from replicator.state.records import EventEntry, Segment, SegmentFile
from replicator.state.store import StateStore

_READ_BYTES = 1 << 20
_SEGMENTS_PER_READ = 200


class JournalReader:
    """Reads what is sealed. Thread-safe; holds nothing open between calls.

    Raises (all methods): those of the state store. Those that open files also CorruptStreamError (`corrupt_segment`) for a file that is
    missing or not as it was sealed, and JournalUnavailableError.
    """

    def __init__(self, store: StateStore, name: str) -> None:
        self._store = store
        self._name = name
        self._schemas: dict[tuple[TableId, str], TableSchema] = {}

    def feed(self, table: TableId, after: int, limit: int) -> Sequence[SegmentFile | EventEntry]:
        """What happened to a table after a sequence number, in order, over all incarnations.

        The first file may begin at or below `after`. Ask `is_lost` first: what retention has dropped is simply not there.
        """
        return self._store.feed(self._name, table, after, limit)

    def is_lost(self, table: TableId, incarnation: int, after: int) -> bool:
        """Whether the journal no longer holds everything that happened to this incarnation of a table after a sequence number.

        True after the table was given up at `bytes_max`, and for a target that was set back: the table then needs a new snapshot.
        """
        dropped = self._store.dropped(self._name).get(table)
        return dropped is not None and dropped[0] == incarnation and dropped[1] > after

    def schema(self, file: SegmentFile) -> TableSchema:
        """The shape of a file's rows (cached)."""
        key = (file.table, file.schema_fingerprint)
        if key not in self._schemas:
            self._schemas[key] = self._store.schema(self._name, *key)
        return self._schemas[key]

    def check(self, file: SegmentFile) -> None:
        """Raise CorruptStreamError (`corrupt_segment`, naming the file and the remedy) unless size and checksum are as sealed.

        Cost: reads the file, about 1 s per GiB.
        """
        digest, size = hashlib.sha256(), 0
        file_system, path = resolve(file.uri)
        with journal_io(file.uri):
            try:
                with file_system.open_input_stream(path) as stream:
                    while chunk := stream.read(_READ_BYTES):
                        digest.update(chunk)
                        size += len(chunk)
            except FileNotFoundError as error:
                raise self._corrupt(file, "it does not exist") from error
        if size != file.bytes:
            raise self._corrupt(file, f"it has {size} bytes, {file.bytes} were sealed")
        if digest.hexdigest() != file.sha256:
            raise self._corrupt(file, "its checksum is not the one that was sealed")

    def rows(self, file: SegmentFile) -> Iterator[pa.RecordBatch]:
        """The file's changes in order, checked; for subscribers and tests."""
        self.check(file)
        expected = file_schema(self.schema(file), file.incarnation)
        file_system, path = resolve(file.uri)
        with journal_io(file.uri), file_system.open_input_file(path) as stream:
            try:
                parquet = pq.ParquetFile(stream)
                found = parquet.schema_arrow
                if (
                    not found.equals(expected)
                    or (found.metadata or {}).get(METADATA_KEY) != expected.metadata[METADATA_KEY]
                ):
                    raise self._corrupt(file, "its columns are not those of its table")
                yield from parquet.iter_batches()
            except pa.ArrowInvalid as error:
                raise self._corrupt(file, "it is not a Parquet file") from error

    def partial_inserts(self, file: SegmentFile) -> int:
        """How many changes of a file are an INSERT of the log that lacks columns."""
        columns = [OPERATION, IS_SNAPSHOT, ABSENT]
        file_system, path = resolve(file.uri)
        count = 0
        with journal_io(file.uri), file_system.open_input_file(path) as stream:
            for batch in pq.ParquetFile(stream).iter_batches(columns=columns):
                is_insert = pc.and_not(
                    pc.equal(batch.column(OPERATION), DMLOperation.INSERT.value), batch.column(IS_SNAPSHOT)
                )
                lacks = pc.greater(pc.fill_null(pc.list_value_length(batch.column(ABSENT)), 0), 0)
                count += pc.sum(pc.and_(is_insert, lacks)).as_py() or 0
        return count

    def changes(
        self, after: int = -1, tables: Sequence[TableId] | None = None
    ) -> Iterator[EventEntry | tuple[TableSchema, pa.RecordBatch]]:
        """Everything sealed after a sequence number, in order of segments: events, and rows per table; for subscribers.

        The items of each table are in order of their numbers. Over tables, order holds between segments only.

        Args:
            after: The last number that the subscriber has; -1: from the oldest that is kept.
            tables: Only these; None: all.

        Raises:
            OffsetExpiredError: `journal_expired`: something after `after` was dropped by retention.
        """
        wanted = None if tables is None else frozenset(tables)
        self._check_kept(after, wanted)
        last_id = 0
        while segments := self._store.segments(self._name, last_id, _SEGMENTS_PER_READ, above=after):
            last_id = segments[-1].id
            for segment in segments:
                if segment.last > after:
                    yield from self._changes_of(segment, after, wanted)

    def _changes_of(
        self, segment: Segment, after: int, wanted: frozenset[TableId] | None
    ) -> Iterator[EventEntry | tuple[TableSchema, pa.RecordBatch]]:
        items: list[tuple[int, SegmentFile | EventEntry]] = [(file.first, file) for file in segment.files]
        items += [(entry.sequence_num, entry) for entry in segment.events]
        for number, item in sorted(items, key=lambda pair: pair[0]):
            if wanted is not None and item.table not in wanted:
                continue
            if isinstance(item, EventEntry):
                if number > after:
                    yield item
            elif item.last > after:
                schema = self.schema(item)
                for batch in self.rows(item):
                    rows = batch if number > after else batch.filter(pc.greater(batch.column(SEQUENCE_NUM), after))
                    if rows.num_rows:
                        yield schema, rows

    def _check_kept(self, after: int, wanted: frozenset[TableId] | None) -> None:
        if after < 0:
            return
        dropped = self._store.dropped(self._name)
        missed = [str(t) for t, (_, last) in dropped.items() if last > after and (wanted is None or t in wanted)]
        if missed:
            raise OffsetExpiredError(
                f"The journal of {self._name} no longer has every change after number {after} ({', '.join(sorted(missed)[:3])}).",
                code="journal_expired",
                action="Subscribe again from the beginning; a longer `journal.keep` leaves subscribers more time.",
            )

    def _corrupt(self, file: SegmentFile, fact: str) -> CorruptStreamError:
        return CorruptStreamError(
            f"The journal file {file.uri} cannot be used: {fact}.",
            code="corrupt_segment",
            table=str(file.table),
            action=f"Restore it from a backup, or run `replicator snapshot {self._name} --restart`.",
        )

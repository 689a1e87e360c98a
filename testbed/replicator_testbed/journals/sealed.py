"""Reads what the journal holds, row by row: what a capture made durable, for tests to compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from replicator.journal import JournalReader
from replicator.journal.files import journal_io, resolve
from replicator.journal.table_file import METADATA_KEY, file_schema
from replicator.model.events import SEQUENCE_NUM
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.opening import open_seekable
from replicator.state.records import EventEntry, Segment, SegmentFile
from replicator.state.store import StateStore

_SEGMENTS_PER_READ = 200


class SealedReader(JournalReader):
    """Reads rows, too, not only files."""

    def __init__(self, store: StateStore, name: str) -> None:
        super().__init__(store, name)
        self._segments = store, name

    def rows(self, file: SegmentFile) -> Iterator[pa.RecordBatch]:
        """The file's changes in order, checked."""
        self.check(file)
        expected = file_schema(self.schema(file), file.incarnation)
        file_system, path = resolve(file.uri)
        with journal_io(file.uri), open_seekable(file_system, path) as stream:
            try:
                parquet = pq.ParquetFile(stream)
                found = parquet.schema_arrow
                if (
                    not found.equals(expected)
                    or (found.metadata or {}).get(METADATA_KEY) != expected.metadata[METADATA_KEY]
                ):
                    raise self.corrupt(file, "its columns are not those of its table")
                yield from parquet.iter_batches()
            except pa.ArrowInvalid as error:
                raise self.corrupt(file, "it is not a Parquet file") from error

    def changes(
        self, after: int = -1, tables: Sequence[TableId] | None = None
    ) -> Iterator[EventEntry | tuple[TableSchema, pa.RecordBatch]]:
        """Everything sealed after a sequence number, in order of segments: events, and rows per table.

        The items of each table are in order of their numbers. Over tables, order holds between segments only.

        Args:
            after: The last number that is known; -1: from the oldest that is kept.
            tables: Only these; None: all.
        """
        wanted = None if tables is None else frozenset(tables)
        store, name = self._segments
        last_id = 0
        while segments := store.journal.segments(name, last_id, _SEGMENTS_PER_READ):
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

"""Finds the rows that the journal says were changed: between a barrier and what a read of the source saw, or since some time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from replicator.journal.files import journal_io, resolve
from replicator.journal.reader import JournalReader
from replicator.model.events import BEFORE, ROW, TRANSACTION_ID
from replicator.model.schema import TableSchema
from replicator.plugins.kit.canonical import digest_of, key_texts, row_texts
from replicator.plugins.kit.opening import open_seekable
from replicator.plugins.source import Seen, Visibility
from replicator.state.records import SegmentFile

_PAGE: Final = 1_000


class TableChangedError(Exception):
    """The table's definition, or all its rows, changed in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moving:
    """Reads one table's part of the journal. `schema`: as the target has it; `columns`: the target's names of the columns compared."""

    reader: JournalReader
    schema: TableSchema
    columns: Collection[str]

    def ids(self, after: int, upto: int, visibility: Visibility | None = None) -> frozenset[str]:
        """Return the ids of the rows that a transaction touched after `after`, up to `upto`, and which the read saw or may have seen.

        Without a visibility: those that any transaction touched.

        Raises:
            TableChangedError: The table's definition, or all its rows, changed in between.
        """
        return frozenset(self.each(after, upto, visibility))

    def each(self, after: int, upto: int, visibility: Visibility | None = None) -> Iterator[str]:
        """Yield the same ids one by one as they are found, an id perhaps several times."""
        for file in self._files(after, upto):
            yield from self._touched(file, after, upto, visibility)

    def _files(self, after: int, upto: int) -> Iterator[SegmentFile]:
        while True:
            page = self.reader.feed(self.schema.table, after, _PAGE)
            for item in page:
                if not isinstance(item, SegmentFile):
                    if item.sequence_num <= upto:
                        raise TableChangedError
                    return
                if item.first > upto:
                    return
                yield item
                after = item.last
            if len(page) < _PAGE:
                return

    def _touched(self, file: SegmentFile, after: int, upto: int, visibility: Visibility | None) -> Iterator[str]:
        if self.reader.schema(file).fingerprint != self.schema.fingerprint:
            raise TableChangedError
        file_system, path = resolve(file.uri)
        with journal_io(file.uri), open_seekable(file_system, path) as stream:
            for batch in pq.ParquetFile(stream).iter_batches():
                numbers = batch.column("_sequence_num")
                chosen = pc.and_(pc.greater(numbers, after), pc.less_equal(numbers, upto))
                if visibility is not None:
                    chosen = pc.and_(chosen, _may_be_seen(batch.column(TRANSACTION_ID), visibility))
                rows = batch.filter(chosen)
                for name in (BEFORE, ROW):
                    yield from self._ids_of(rows.column(name))

    def _ids_of(self, rows: pa.StructArray) -> Sequence[str]:
        rows = rows.filter(rows.is_valid())
        names = self.schema.key or [c.name for c in self.schema.columns if c.name in self.columns]
        fields = [self.schema.fields[name] for name in names]
        batch = pa.RecordBatch.from_arrays([rows.field(field) for field in fields], names=fields)
        return [digest_of(text) for text in (key_texts(batch) if self.schema.key else row_texts(batch))]


def _may_be_seen(ids: pa.StringArray, visibility: Visibility) -> pa.BooleanArray:
    """Mark the rows that a read may have seen. Rows of snapshots have no transaction: they may be as new as any."""
    known = ids.filter(ids.is_valid())
    unseen = np.zeros(len(ids), np.bool_)
    if len(known):
        seen = visibility.classify(known).to_numpy(zero_copy_only=False)
        unseen[ids.is_valid().to_numpy(zero_copy_only=False)] = seen == int(Seen.UNSEEN)
    return pa.array(~unseen)

"""Reads the journal, for apply."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pyarrow.compute as pc
import pyarrow.parquet as pq

from replicator.journal.files import journal_io, resolve
from replicator.model.errors import CorruptStreamError
from replicator.model.events import ABSENT, IS_SNAPSHOT, OPERATION, DMLOperation
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.opening import open_seekable
from replicator.state.records import EventEntry, SegmentFile
from replicator.state.store import StateStore

_READ_BYTES = 1 << 20


class JournalReader:
    """Reads what is sealed. Thread-safe; keeps nothing open between calls.

    Raises (all methods): those of the state store. Those that open files also CorruptStreamError (`corrupt_segment`) for a file that is
    missing or not as it was sealed, and JournalUnavailableError.
    """

    def __init__(self, store: StateStore, name: str) -> None:
        self._store = store
        self._name = name
        self._schemas: dict[tuple[TableId, str], TableSchema] = {}

    def feed(self, table: TableId, after: int, limit: int) -> Sequence[SegmentFile | EventEntry]:
        """Return a table's files and events after a sequence number, in order, over all incarnations.

        The first file may begin at or below `after`. Ask `is_lost` first: what retention has dropped is missing without an error.
        """
        return self._store.journal.feed(self._name, table, after, limit)

    def is_lost(self, table: TableId, incarnation: int, after: int) -> bool:
        """Return whether the journal no longer has everything of this incarnation of a table after a sequence number.

        True after the table was given up at `bytes_max`, and for a target that was set back: the table then needs a new snapshot.
        """
        dropped = self._store.journal.dropped(self._name, table)
        return dropped is not None and dropped[0] == incarnation and dropped[1] > after

    def schema(self, file: SegmentFile) -> TableSchema:
        """Return the schema of a file's rows (cached)."""
        key = (file.table, file.schema_fingerprint)
        if key not in self._schemas:
            self._schemas[key] = self._store.journal.schema(self._name, *key)
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
                raise self.corrupt(file, "it does not exist") from error
        if size != file.bytes:
            raise self.corrupt(file, f"it has {size} bytes, {file.bytes} were sealed")
        if digest.hexdigest() != file.sha256:
            raise self.corrupt(file, "its checksum is not the one that was sealed")

    def partial_inserts(self, file: SegmentFile) -> int:
        """Count the INSERTs of the log in a file that lack columns."""
        columns = [OPERATION, IS_SNAPSHOT, ABSENT]
        file_system, path = resolve(file.uri)
        count = 0
        with journal_io(file.uri), open_seekable(file_system, path) as stream:
            for batch in pq.ParquetFile(stream).iter_batches(columns=columns):
                is_insert = pc.and_not(
                    pc.equal(batch.column(OPERATION), DMLOperation.INSERT.value), batch.column(IS_SNAPSHOT)
                )
                lacks = pc.greater(pc.fill_null(pc.list_value_length(batch.column(ABSENT)), 0), 0)
                count += pc.sum(pc.and_(is_insert, lacks)).as_py() or 0
        return count

    def corrupt(self, file: SegmentFile, fact: str) -> CorruptStreamError:
        """Return the error for a file that cannot be used."""
        return CorruptStreamError(
            f"The journal file {file.uri} cannot be used: {fact}.",
            code="corrupt_segment",
            table=str(file.table),
            action=f"Restore it from a backup, or run `replicator snapshot {self._name} --restart`.",
        )

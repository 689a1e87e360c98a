"""Part of a segment with one table's changes: gathered into row groups of one Parquet file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from replicator.journal.files import JournalFolder, SegmentSink, journal_io
from replicator.model.events import (
    ABSENT,
    BEFORE,
    IS_SNAPSHOT,
    OPERATION,
    ROW,
    SEQUENCE_NUM,
    SOURCE_TIMESTAMP,
    TRANSACTION_ID,
    DMLOperation,
    change_schema,
)
from replicator.model.schema import TableSchema
from replicator.state.records import SegmentFile

METADATA_KEY: Final = b"replicator"
FILE_FORMAT: Final = 1
# Batches of fewer rows are joined, so many at a time, before they are encoded: Parquet and Arrow pay per batch and column.
_SMALL_BATCH_ROWS: Final = 8192
_SMALL_BATCHES: Final = 500
# The cheap measure counts whole buffers, which is too much for a slice of something larger.
_MEASURE_CLOSELY_BYTES: Final = 64 << 10


def file_schema(schema: TableSchema, incarnation: int) -> pa.Schema:
    """Return the Arrow schema of a file; its metadata has the table, the incarnation, and the column of each field."""
    document = {
        "format": FILE_FORMAT,
        "table": [schema.table.namespace, schema.table.name],
        "incarnation": incarnation,
        "fingerprint": schema.fingerprint,
        "columns": dict(schema.fields),
        "key": list(schema.key),
    }
    return change_schema(schema).with_metadata({METADATA_KEY: json.dumps(document, ensure_ascii=False)})


class _Buffer:
    """Rows that are not encoded yet."""

    def __init__(self) -> None:
        self.rows = self.bytes = 0
        self._batches: list[pa.RecordBatch] = []
        self._small: list[pa.RecordBatch] = []

    def add(self, rows: pa.RecordBatch) -> int:
        """Add a batch; return its Arrow bytes."""
        if rows.num_rows >= _SMALL_BATCH_ROWS or len(self._small) >= _SMALL_BATCHES:
            self._join_small()
        (self._small if rows.num_rows < _SMALL_BATCH_ROWS else self._batches).append(rows)
        nbytes: int = rows.get_total_buffer_size()
        if nbytes > _MEASURE_CLOSELY_BYTES:
            nbytes = rows.nbytes
        self.rows += rows.num_rows
        self.bytes += nbytes
        return nbytes

    def take(self) -> list[pa.RecordBatch]:
        """Return all batches, and be empty."""
        self._join_small()
        taken, self._batches, self.rows, self.bytes = self._batches, [], 0, 0
        return taken

    def _join_small(self) -> None:
        if self._small:
            self._batches.append(pa.concat_batches(self._small))
            self._small = []


@dataclass(slots=True)
class _Statistics:
    """Facts about encoded rows, for the index. `changes`: of the source's log, by operation."""

    rows: int = 0
    snapshot_rows: int = 0
    has_absent: bool = False
    has_key_changes: bool = False
    changes: Counter[str] = field(default_factory=Counter)

    def add(self, rows: pa.RecordBatch, schema: TableSchema) -> None:
        """Take rows in."""
        self.rows += rows.num_rows
        self.snapshot_rows += rows.column(IS_SNAPSHOT).true_count
        self.changes += operations(rows)
        self.has_absent = self.has_absent or has_absent(rows)
        self.has_key_changes = self.has_key_changes or has_key_changes(rows, schema)


class _Upload:
    """The Parquet file in the journal's folder. Nothing is created before the first `write`."""

    def __init__(self, folder: JournalFolder, name: str, layout: pa.Schema) -> None:
        self.uri = folder.uri_of(name)
        self._folder, self._name, self._layout = folder, name, layout
        self._sink: SegmentSink | None = None
        self._parquet: pq.ParquetWriter | None = None

    @property
    def size(self) -> int:
        """Return the bytes so far."""
        return self._sink.size if self._sink else 0

    def write(self, batches: Sequence[pa.RecordBatch], row_group_rows: int) -> None:
        """Encode rows."""
        table = pa.Table.from_batches(batches).replace_schema_metadata(self._layout.metadata)
        with journal_io(self.uri):
            if self._parquet is None:
                self._sink = self._folder.create(self._name)
                self._parquet = _writer(self._sink, self._layout)
            self._parquet.write_table(table, row_group_size=row_group_rows)

    def finish(self) -> str:
        """Make the file durable; return its digest."""
        assert self._parquet is not None, "a file has rows"
        assert self._sink is not None, "a file has rows"
        with journal_io(self.uri):
            self._parquet.close()
            return self._sink.finish()

    def abandon(self) -> None:
        """Close the file without finishing it."""
        if self._sink is not None:
            self._sink.abandon()
        if self._parquet is not None and self._parquet.is_open:
            # The rest that it writes is discarded; after an error it may not be able to end the file, which is not read.
            with suppress(pa.ArrowException, OSError):
                self._parquet.close()


class TableFile:
    """An unfinished file of one table version.

    Not thread-safe. Errors: JournalUnavailableError, after which only `abandon` may be called.

    Args:
        folder: The journal's folder.
        name: A name that was never used before.
        schema: The version of the table.
        incarnation: Incarnation of the table.
        row_group_rows: Rows per row group at most.
    """

    def __init__(
        self, folder: JournalFolder, name: str, schema: TableSchema, incarnation: int, row_group_rows: int
    ) -> None:
        self.schema = schema
        self.incarnation = incarnation
        self.arrow_schema = file_schema(schema, incarnation)
        self.last = -1
        self._first: int | None = None
        self._row_group_rows = row_group_rows
        self._buffer, self._statistics = _Buffer(), _Statistics()
        self._upload = _Upload(folder, name, self.arrow_schema)

    @property
    def buffered_rows(self) -> int:
        """Return the number of rows that are not encoded yet."""
        return self._buffer.rows

    @property
    def buffered_bytes(self) -> int:
        """Return their Arrow bytes."""
        return self._buffer.bytes

    @property
    def written_bytes(self) -> int:
        """Return the bytes of the file so far."""
        return self._upload.size

    @property
    def changes(self) -> Counter[str]:
        """Return the encoded changes of the source's log, by operation."""
        return self._statistics.changes

    def append(self, rows: pa.RecordBatch) -> int:
        """Take rows (not empty, ascending, above all earlier ones) into the buffer; return their Arrow bytes."""
        numbers = rows.column(SEQUENCE_NUM)
        first, last = numbers[0].as_py(), numbers[-1].as_py()
        assert self.last < first <= last, (
            f"numbers {first}…{last} of {self.schema.table} do not ascend from {self.last}"
        )
        self._first = first if self._first is None else self._first
        self.last = last
        return self._buffer.add(rows)

    def flush(self) -> None:
        """Encode the buffered rows."""
        batches = self._buffer.take()
        for batch in batches:
            self._statistics.add(batch, self.schema)
        if batches:
            self._upload.write(batches, self._row_group_rows)

    def finish(self) -> SegmentFile:
        """Encode the rest, make the file durable and describe it."""
        self.flush()
        assert self._first is not None, "a file has rows"
        digest, found = self._upload.finish(), self._statistics
        return SegmentFile(
            table=self.schema.table,
            incarnation=self.incarnation,
            schema_fingerprint=self.schema.fingerprint,
            uri=self._upload.uri,
            rows=found.rows,
            bytes=self._upload.size,
            sha256=digest,
            first=self._first,
            last=self.last,
            snapshot_rows=found.snapshot_rows,
            has_absent=found.has_absent,
            has_key_changes=found.has_key_changes,
        )

    def abandon(self) -> None:
        """Close the file without finishing it. The caller deletes it."""
        self._buffer = _Buffer()
        self._upload.abandon()


def encoded_bytes(rows: pa.RecordBatch, schema: TableSchema) -> int:
    """Return the size of a file that holds these changes alone. Nothing is written to a disk."""
    sink = pa.BufferOutputStream()
    layout = file_schema(schema, 1)
    with _writer(sink, layout) as writer:
        writer.write_table(pa.Table.from_batches([rows]).replace_schema_metadata(layout.metadata))
    size: int = sink.tell()
    return size


def _writer(sink: Any, layout: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        sink,
        layout,
        compression="zstd",
        compression_level=1,
        # Values that repeat; elsewhere dictionaries cost more than they save. Other columns' statistics are not used for filters.
        use_dictionary=[OPERATION, SOURCE_TIMESTAMP, TRANSACTION_ID],
        write_statistics=[SEQUENCE_NUM],
    )


def operations(rows: pa.RecordBatch) -> Counter[str]:
    """Count the changes of the source's log by operation; rows of snapshots do not count."""
    is_snapshot, operation = rows.column(IS_SNAPSHOT), rows.column(OPERATION)
    if is_snapshot.true_count == len(is_snapshot):
        return Counter()
    if is_snapshot.true_count:
        operation = operation.filter(pc.invert(is_snapshot))
    return Counter({one["values"]: one["counts"] for one in pc.value_counts(operation).to_pylist()})


def has_absent(rows: pa.RecordBatch) -> bool:
    """Return whether some row lacks columns."""
    absent = rows.column(ABSENT)
    if absent.null_count == len(absent):
        return False
    return bool(pc.any(pc.greater(pc.list_value_length(absent), 0)).as_py())


def has_key_changes(rows: pa.RecordBatch, schema: TableSchema) -> bool:
    """Return whether some UPDATE changes the key; in doubt (a key type that cannot be compared) yes. False for tables without a key."""
    before, row = rows.column(BEFORE), rows.column(ROW)
    if not schema.key or before.null_count == len(before):
        return False
    updates = pc.and_(before.is_valid(), pc.equal(rows.column(OPERATION), DMLOperation.UPDATE.value))
    if not updates.true_count:
        return False
    try:
        return any(_differs(before.field(name), row.field(name), updates) for name in schema.key_fields)
    except pa.ArrowNotImplementedError:
        return True


def _differs(old: pa.Array, new: pa.Array, where: pa.BooleanArray) -> bool:
    is_other = pc.or_(pc.fill_null(pc.not_equal(old, new), fill_value=False), pc.xor(old.is_null(), new.is_null()))
    return bool(pc.and_(where, is_other).true_count)

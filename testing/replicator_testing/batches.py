"""Journal files as a test writes them: changes as Python objects, Parquet on disk, a `Batch` that names them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

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
from replicator.plugins.target import Batch, BatchFile

_COMMITTED_AT = datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=UTC)
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """One change; rows are mappings by column name, `absent` names columns of `row`. Without a time, `write_batch` gives it one."""

    sequence_num: int
    operation: DMLOperation
    before: Row | None = None
    row: Row | None = None
    absent: frozenset[str] = frozenset()
    is_snapshot: bool = False
    source_timestamp: datetime | None = None


def insert(sequence_num: int, row: Row, *, absent: Sequence[str] = (), is_snapshot: bool = False) -> RowChange:
    """Return the change for a new row, or one that a snapshot read."""
    return RowChange(
        sequence_num=sequence_num,
        operation=DMLOperation.INSERT,
        row=row,
        absent=frozenset(absent),
        is_snapshot=is_snapshot,
    )


def update(sequence_num: int, row: Row, *, before: Row | None = None, absent: Sequence[str] = ()) -> RowChange:
    """Return the change for a changed row; `before` when the key changed, or when the table has no key."""
    return RowChange(
        sequence_num=sequence_num, operation=DMLOperation.UPDATE, before=before, row=row, absent=frozenset(absent)
    )


def delete(sequence_num: int, before: Row, *, is_snapshot: bool = False) -> RowChange:
    """Return the change for a deleted row, or a key without a row when it was read again; of a table with a key only the key is used."""
    return RowChange(sequence_num=sequence_num, operation=DMLOperation.DELETE, before=before, is_snapshot=is_snapshot)


def record_batch(schema: TableSchema, changes: Sequence[RowChange]) -> pa.RecordBatch:
    """Return changes in the journal's layout."""
    return pa.RecordBatch.from_pylist([_record(schema, change) for change in changes], schema=change_schema(schema))


def write_batch(
    folder: Path,
    schema: TableSchema,
    changes: Sequence[RowChange],
    *,
    skip_to: int = -1,
    last: int | None = None,
    is_append: bool = False,
    expects_rows: bool = False,
    files: int = 1,
) -> Batch:
    """Write changes into journal files and return the batch that apply would give to a target.

    Args:
        folder: Folder for the files; names are never used twice.
        schema: Schema of the rows.
        changes: Changes, at least one, ascending by sequence number.
        skip_to: The ledger before the batch; changes at or below it are in the files all the same.
        last: The ledger after it; by default the last change's number.
        is_append: See `Batch`.
        expects_rows: See `Batch`.
        files: Number of files over which the changes are spread, at most one each.
    """
    parts = _spread(changes, files)
    return Batch(
        schema=schema,
        files=[_write_file(folder, schema, part) for part in parts],
        last=changes[-1].sequence_num if last is None else last,
        skip_to=skip_to,
        rows=len(changes),
        is_append=is_append,
        has_absent=any(c.absent for c in changes),
        has_key_changes=any(c.operation is DMLOperation.UPDATE and c.before is not None for c in changes),
        expects_rows=expects_rows,
    )


def read_batch(batch: Batch) -> Iterator[RowChange]:
    """Yield the changes of a batch in the order of its files, without those that were applied before."""
    names = {field: name for name, field in batch.schema.fields.items()}
    for file in batch.files:
        filesystem, path = FileSystem.from_uri(file.uri)
        with filesystem.open_input_file(path) as stream:
            for found in pq.read_table(stream).to_pylist():
                if found[SEQUENCE_NUM] > batch.skip_to:
                    yield _change(found, names)


def _spread(changes: Sequence[RowChange], files: int) -> list[Sequence[RowChange]]:
    size = -(-len(changes) // files)
    return [changes[start : start + size] for start in range(0, len(changes), size)]


def _write_file(folder: Path, schema: TableSchema, changes: Sequence[RowChange]) -> BatchFile:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{uuid.uuid4().hex}.parquet"
    pq.write_table(pa.Table.from_batches([record_batch(schema, changes)]), path)
    return BatchFile(
        uri=path.resolve().as_uri(),
        rows=len(changes),
        bytes=path.stat().st_size,
        first=changes[0].sequence_num,
        last=changes[-1].sequence_num,
    )


def _record(schema: TableSchema, change: RowChange) -> dict[str, Any]:
    fields = schema.fields
    before_names = schema.key or tuple(fields)
    return {
        SEQUENCE_NUM: change.sequence_num,
        OPERATION: change.operation.value,
        IS_SNAPSHOT: change.is_snapshot,
        SOURCE_TIMESTAMP: change.source_timestamp or (None if change.is_snapshot else _COMMITTED_AT),
        TRANSACTION_ID: None if change.is_snapshot else f"tx-{change.sequence_num}",
        ABSENT: sorted(fields[n] for n in change.absent) or None,
        BEFORE: None if change.before is None else {fields[n]: change.before.get(n) for n in before_names},
        ROW: None
        if change.row is None
        else {f: None if n in change.absent else change.row.get(n) for n, f in fields.items()},
    }


def _change(found: Mapping[str, Any], names: Mapping[str, str]) -> RowChange:
    before, row = found[BEFORE], found[ROW]
    return RowChange(
        sequence_num=found[SEQUENCE_NUM],
        operation=DMLOperation(found[OPERATION]),
        before=None if before is None else {names[field]: value for field, value in before.items()},
        row=None if row is None else {names[field]: value for field, value in row.items()},
        absent=frozenset(names[field] for field in found[ABSENT] or ()),
        is_snapshot=found[IS_SNAPSHOT],
        source_timestamp=found[SOURCE_TIMESTAMP],
    )

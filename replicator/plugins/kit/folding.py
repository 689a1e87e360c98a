"""Folds a batch's changes, as Python objects, to the final state of each row.

For targets that take rows one by one. It holds a batch's rows in memory; a target with an engine of its own (Spark, a warehouse)
folds there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from replicator.model.errors import KeyMissingError
from replicator.model.events import (
    ABSENT,
    BEFORE,
    IS_DELETED,
    IS_SNAPSHOT,
    OPERATION,
    ROW,
    SEQUENCE_NUM,
    SOURCE_TIMESTAMP,
    DMLOperation,
)
from replicator.model.merged import Merged
from replicator.model.schema import TableSchema
from replicator.plugins.kit.opening import open_seekable
from replicator.plugins.target import Batch, TableOptions

Key = tuple[Any, ...]
_OWN = {SEQUENCE_NUM: "sequence_num", IS_DELETED: "is_deleted", SOURCE_TIMESTAMP: "source_timestamp"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """One change. Values are by column name.

    Attributes:
        before: The old key, or the whole old row of a table without a key.
        row: The new row without the columns that the source did not send; None: the row is deleted.
    """

    sequence_num: int
    operation: DMLOperation
    is_snapshot: bool
    source_timestamp: datetime | None
    before: Mapping[str, Any] | None
    row: Mapping[str, Any] | None

    def keys(self, schema: TableSchema) -> tuple[Key, Key | None]:
        """Return the key of the row before the change, and after it (None: deleted)."""
        old = None if self.before is None else tuple(self.before[name] for name in schema.key)
        if self.row is None:
            if old is None:
                raise KeyMissingError("A DELETE has no key.", code="key_missing", table=str(schema.table))
            return old, None
        new = tuple(self.row[n] if n in self.row else (self.before or {})[n] for n in schema.key)
        return (new if old is None else old), new


class RowFate(StrEnum):
    """Final state of the row of one key after a batch."""

    WRITTEN = "written"
    DELETED = "deleted"
    MOVED = "moved"
    """No row has the key any more: the row has another key now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedRow:
    """Final state of the row of one key after a batch.

    Attributes:
        values: The last value of each column that was sent; of a deleted row those that were sent before that.
        origin: Key of the row in the target that has all other values, if it is there and not marked as deleted; else they are NULL.
        expects_row: The first change expects a row of this key in the target (`Batch.expects_rows`).
    """

    key: Key
    outcome: RowFate
    values: Mapping[str, Any]
    origin: Key | None
    expects_row: bool
    sequence_num: int
    source_timestamp: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRow:
    """A row of the target, with all columns that it holds (`TableSchema.held`); a row that a batch adds may lack kept ones."""

    values: Mapping[str, Any]
    sequence_num: int
    is_deleted: bool = False
    source_timestamp: datetime | None = None

    @classmethod
    def of(cls, schema: TableSchema, options: TableOptions, found: Sequence[Any]) -> StoredRow:
        """Make a row that was read with the columns of `stored_columns`."""
        values = dict(zip((column.name for column in schema.held), found, strict=False))
        own = dict(zip(own_columns(options), found[len(values) :], strict=True))
        return cls(values=values, **{_OWN[name]: value for name, value in own.items()})

    def key(self, schema: TableSchema) -> Key:
        """Return the row's key."""
        return tuple(self.values[name] for name in schema.key)

    def in_order(self, schema: TableSchema, options: TableOptions) -> Sequence[Any]:
        """Return the values for the columns of `stored_columns`."""
        own = [getattr(self, _OWN[name]) for name in own_columns(options)]
        return [*(self.values.get(column.name) for column in schema.held), *own]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMerge:
    """Changes of a target's rows: first every row of a folded key is removed, then `rows` are added."""

    rows: Sequence[StoredRow]
    merged: Merged


def own_columns(options: TableOptions) -> Sequence[str]:
    """Return the columns that are added to the source's."""
    is_wanted = {IS_DELETED: options.deletes == "soft", SOURCE_TIMESTAMP: options.source_timestamp}
    return [name for name in _OWN if is_wanted.get(name, True)]


def stored_columns(schema: TableSchema, options: TableOptions) -> Sequence[str]:
    """Return all columns of a target's table."""
    return [*(column.name for column in schema.held), *own_columns(options)]


def read_changes(batch: Batch) -> Iterator[RowChange]:
    """Yield the batch's changes in order, without those that were applied before."""
    names = {field: name for name, field in batch.schema.fields.items()}
    for file in batch.files:
        system, path = FileSystem.from_uri(file.uri)
        with open_seekable(system, path) as stream:
            for part in pq.ParquetFile(stream).iter_batches():
                for found in part.to_pylist():
                    if found[SEQUENCE_NUM] > batch.skip_to:
                        yield _change(found, names)


def fold(schema: TableSchema, changes: Iterable[RowChange]) -> Sequence[FoldedRow]:
    """Return the last state of each key that the changes touch; a changed key is deleted under the old one, written under the new one."""
    rows: dict[Key, FoldedRow] = {}
    for change in changes:
        old, new = change.keys(schema)
        is_expected = not change.is_snapshot and change.operation is not DMLOperation.INSERT
        number, time = change.sequence_num, change.source_timestamp
        was = rows.get(old)
        if was is None:
            was = FoldedRow(
                key=old,
                outcome=RowFate.WRITTEN,
                values={},
                origin=old,
                expects_row=is_expected,
                sequence_num=number,
                source_timestamp=time,
            )
        values, origin = (was.values, was.origin) if was.outcome is RowFate.WRITTEN else ({}, None)
        if new is None or change.row is None:
            outcome = RowFate.MOVED if was.outcome is RowFate.MOVED else RowFate.DELETED
            rows[old] = replace(was, outcome=outcome, sequence_num=number, source_timestamp=time)
            continue
        if new != old:
            rows[old] = replace(was, outcome=RowFate.MOVED, values={}, origin=None)
        there = was if new == old else rows.get(new)
        rows[new] = FoldedRow(
            key=new,
            outcome=RowFate.WRITTEN,
            values={**values, **change.row},
            origin=origin,
            expects_row=there is not None and there.expects_row,
            sequence_num=number,
            source_timestamp=time,
        )
    return list(rows.values())


def merge_rows(
    batch: Batch, folded: Sequence[FoldedRow], stored: Mapping[Key, StoredRow], options: TableOptions
) -> RowMerge:
    """Merge the folded rows into the target's.

    Args:
        batch: The batch that was folded.
        folded: All its rows.
        stored: The target's rows of the folded keys, as they are before the batch.
        options: Options of the table: say whether deleted rows are kept and marked.
    """
    rows: list[StoredRow] = []
    matched = inserted = deleted = not_found = 0
    for row in folded:
        before = stored.get(row.key)
        is_found = before is not None and not before.is_deleted
        not_found += batch.expects_rows and row.expects_row and not is_found
        after = _after(batch.schema, row, stored, is_soft=options.deletes == "soft")
        if after is not None:
            rows.append(after)
        matched += before is not None and after is not None
        inserted += before is None and after is not None
        deleted += before is not None and after is None
    return RowMerge(rows=rows, merged=Merged(matched=matched, inserted=inserted, deleted=deleted, not_found=not_found))


def fold_multiset(
    schema: TableSchema, changes: Iterable[RowChange]
) -> tuple[Sequence[StoredRow], Sequence[tuple[Mapping[str, Any], int]]]:
    """Return, for a table without a key, the rows to add, and the rows to remove, each with the number of rows equal to it.

    Of equal rows the newest is removed first, so a row that the batch itself adds is removed before one that is in the target.
    """
    added: defaultdict[str, list[StoredRow]] = defaultdict(list)
    removed: dict[str, tuple[Mapping[str, Any], int]] = {}
    for change in changes:
        if change.before is not None:
            value = _text(change.before)
            if added[value]:
                added[value].pop()
            else:
                removed[value] = (change.before, removed.get(value, (change.before, 0))[1] + 1)
        if change.row is not None:
            row = StoredRow(
                values={name: change.row.get(name) for name in schema.fields},
                sequence_num=change.sequence_num,
                source_timestamp=change.source_timestamp,
            )
            added[_text(row.values)].append(row)
    rows = sorted((row for equal in added.values() for row in equal), key=lambda row: row.sequence_num)
    return rows, list(removed.values())


def _after(schema: TableSchema, row: FoldedRow, stored: Mapping[Key, StoredRow], *, is_soft: bool) -> StoredRow | None:
    """Return the row of a key after a batch; None if there is none."""
    if row.outcome is RowFate.MOVED or (row.outcome is RowFate.DELETED and not is_soft):
        return None
    is_deleted = row.outcome is RowFate.DELETED
    origin = None if row.origin is None else stored.get(row.origin)
    if is_deleted and not row.values and origin is None:
        return None
    kept = {} if origin is None or (origin.is_deleted and not is_deleted) else origin.values
    sent = {**row.values, **dict(zip(schema.key, row.key, strict=True))}
    before = stored.get(row.key)
    dropped = {column.name: None if before is None else before.values.get(column.name) for column in schema.kept}
    return StoredRow(
        values={name: sent[name] if name in sent else kept.get(name) for name in schema.fields} | dropped,
        sequence_num=row.sequence_num,
        is_deleted=is_deleted,
        source_timestamp=row.source_timestamp,
    )


def _text(row: Mapping[str, Any]) -> str:
    """Return a text that is the same for equal rows: NaN equals itself, and 0.0 is not -0.0."""
    return repr(sorted(row.items()))


def _change(found: Mapping[str, Any], names: Mapping[str, str]) -> RowChange:
    absent, before, row = set(found[ABSENT] or ()), found[BEFORE], found[ROW]
    return RowChange(
        sequence_num=found[SEQUENCE_NUM],
        operation=DMLOperation(found[OPERATION]),
        is_snapshot=found[IS_SNAPSHOT],
        source_timestamp=found[SOURCE_TIMESTAMP],
        before=None if before is None else {names[field]: value for field, value in before.items()},
        row=None if row is None else {names[field]: value for field, value in row.items() if field not in absent},
    )

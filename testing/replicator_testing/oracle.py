"""The oracle of all folds: a table to which changes are applied one by one, in plain Python.

It folds nothing, so it is right about a batch exactly if it is right about each change. Every executor of the fold, every target and
the in-memory target are judged by it: rows, marks of deleted rows, numbers, times, kept columns and counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from replicator.model.errors import KeyMissingError
from replicator.model.events import DMLOperation
from replicator.model.merged import Merged
from replicator.model.schema import TableSchema
from replicator.plugins.target import TableOptions
from replicator_testing.batches import RowChange

Key = tuple[Any, ...]


@dataclass(slots=True)
class StoredRow:
    """A row of a target; `values` by column name."""

    values: dict[str, Any]
    sequence_num: int
    is_deleted: bool = False
    source_timestamp: datetime | None = None


@dataclass
class Oracle:
    """A table of a target.

    Attributes:
        schema: Its schema.
        options: Say whether deleted rows stay, marked as deleted.
        rows: Its rows, with all columns that it holds (`TableSchema.held`).
    """

    schema: TableSchema
    options: TableOptions = field(default_factory=TableOptions)
    rows: list[StoredRow] = field(default_factory=list)

    @property
    def live(self) -> list[Mapping[str, Any]]:
        """Return the rows that are not deleted."""
        return [row.values for row in self.rows if not row.is_deleted]

    def apply(self, changes: Iterable[RowChange], *, expects_rows: bool = False) -> Merged:
        """Apply a batch, change by change; return the counts of `Batch`."""
        table = _Keyed(self) if self.schema.key else _Keyless(self)
        for change in changes:
            table.apply(change)
        self.rows, merged = table.rows(), table.merged()
        return merged if expects_rows else replace(merged, not_found=0)


def keys_of(schema: TableSchema, change: RowChange) -> tuple[Key, Key | None]:
    """Return the key of the row before a change, and after it (None: deleted).

    An unchanged key column may be absent: the old key then has it.
    """
    old = None if change.before is None else tuple(change.before[name] for name in schema.key)
    if change.row is None:
        if old is None:
            raise KeyMissingError("A DELETE has no key.", code="key_missing", table=str(schema.table))
        return old, None
    sent = {name: value for name, value in change.row.items() if name not in change.absent}
    new = tuple(sent[n] if n in sent else (change.before or change.row)[n] for n in schema.key)
    return (new if old is None or change.operation is DMLOperation.INSERT else old), new


class _Keyed:
    """A table with a key during a batch."""

    def __init__(self, table: Oracle) -> None:
        self._schema, self._is_soft = table.schema, table.options.deletes == "soft"
        self._before: dict[Key, StoredRow] = {}
        # A target that somebody else changed may have a key twice.
        self._others = [row for row in table.rows if self._before.setdefault(self._key(row), row) is not row]
        self._rows = dict(self._before)
        self._expects: dict[Key, bool] = {}

    def apply(self, change: RowChange) -> None:
        """A row that loses its key is deleted there."""
        old, new = keys_of(self._schema, change)
        is_insert = change.operation is DMLOperation.INSERT
        is_expected = not is_insert and not change.is_snapshot
        self._expects.setdefault(old, is_expected)
        there = self._rows.get(old)
        if new != old:
            self._delete(old, change)
        if new is None or change.row is None:
            return
        self._expects.setdefault(new, False)
        is_whole = not change.absent or (is_insert and not change.is_snapshot)
        values = {} if is_whole or there is None or there.is_deleted else there.values
        sent = {name: value for name, value in change.row.items() if name not in change.absent}
        self._rows[new] = StoredRow(
            {n: sent[n] if n in sent else values.get(n) for n in self._schema.fields}
            | dict(zip(self._schema.key, new, strict=True)),
            change.sequence_num,
            source_timestamp=change.source_timestamp,
        )

    def _delete(self, key: Key, change: RowChange) -> None:
        row = self._rows.pop(key, None)
        if row is not None and self._is_soft:
            self._rows[key] = StoredRow(
                row.values, change.sequence_num, is_deleted=True, source_timestamp=change.source_timestamp
            )

    def rows(self) -> list[StoredRow]:
        """Return the rows after the batch. Kept columns stay with the key, whatever happened to the row."""
        if names := [column.name for column in self._schema.kept]:
            for key, row in self._rows.items():
                kept = self._before[key].values if key in self._before else {}
                row.values = {**row.values, **{name: kept.get(name) for name in names}}
        return [*self._others, *self._rows.values()]

    def merged(self) -> Merged:
        """Count by key: what was there before the batch, what is there after it, and what the first change expected."""
        touched, before, after = self._expects.keys(), self._before.keys(), self._rows.keys()
        expected = {key for key, is_expected in self._expects.items() if is_expected}
        return Merged(
            matched=len(touched & before & after),
            inserted=len(touched & after - before),
            deleted=len(touched & before - after),
            not_found=len(expected - {key for key, row in self._before.items() if not row.is_deleted}),
        )

    def _key(self, row: StoredRow) -> Key:
        return tuple(row.values[name] for name in self._schema.key)


class _Keyless:
    """A table without a key during a batch: equal rows are a stack, of which the newest is taken away first."""

    def __init__(self, table: Oracle) -> None:
        self._schema = table.schema
        self._stacks: dict[str, list[StoredRow]] = {}
        for row in sorted(table.rows, key=lambda row: row.sequence_num):
            self._stack(row.values).append(row)
        self._before = {row.sequence_num for row in table.rows}
        self._missing = 0

    def apply(self, change: RowChange) -> None:
        """An UPDATE takes a row away and adds one. A column that was not sent is as it was before."""
        if change.before is not None:
            stack = self._stack(change.before)
            if stack:
                stack.pop()
            else:
                self._missing += 1
        if change.row is not None:
            before = change.before or {}
            values = {n: (before if n in change.absent else change.row).get(n) for n in self._schema.fields}
            values |= {column.name: None for column in self._schema.kept}
            row = StoredRow(values, change.sequence_num, source_timestamp=change.source_timestamp)
            self._stack(values).append(row)

    def rows(self) -> list[StoredRow]:
        """Return the rows after the batch."""
        return [row for stack in self._stacks.values() for row in stack]

    def merged(self) -> Merged:
        """Count by number."""
        after = {row.sequence_num for row in self.rows()}
        return Merged(inserted=len(after - self._before), deleted=len(self._before - after), not_found=self._missing)

    def _stack(self, values: Mapping[str, Any]) -> list[StoredRow]:
        """Return the rows with the same bits: NaN equals itself, and 0.0 is not -0.0. Kept columns do not distinguish rows."""
        return self._stacks.setdefault(repr([values.get(name) for name in self._schema.fields]), [])

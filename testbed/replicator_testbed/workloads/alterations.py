"""Random alterations between random batches, and what a table holds behind them.

The table is that of `workloads`. Its columns get other names and another order; columns go, with and without being kept, and others come
instead, with and without a value in the rows that are there.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.schema import Column, TableSchema
from replicator.plugins.target import Batch
from replicator_testbed.workloads.changes import SCHEMA, Change, Key, Replay, Values, Workloads
from replicator_testing.batches import RowChange, write_batch

_NAMES: Final = ("workload", "id", "a", "b", "c", "d e", "select", "f`g", "h.i", "j")
_KEY: Final = 2
"""So many of the columns are the key."""


class AlteredWorkloads:
    """A source whose table is altered, and what a target must have of it.

    Args:
        seed: Of all that is drawn by lot.
        workloads: How many that a database could make, and as many that it could not.
        first: The first sequence number.
        deletes: As `TableOptions.deletes`.
        absent: Some rows lack columns.
    """

    def __init__(self, seed: int, workloads: int, first: int, *, deletes: str = "hard", absent: bool = True) -> None:
        self._random = random.Random(seed)
        self._is_soft = deletes == "soft"
        self.numbers = itertools.count(first)
        self._valid = Workloads(seed, range(workloads), self.numbers, valid=True, absent=absent)
        self._any = Workloads(seed + 1, range(workloads, 2 * workloads), self.numbers, valid=False, absent=absent)
        self._replay = Replay()
        self._ids = itertools.count(1)
        # The key, then a column for each of the values of a change.
        self._columns = [replace(column, id=next(self._ids)) for column in SCHEMA.columns]
        self._order = list(range(len(self._columns)))
        self._kept: dict[Column, dict[Key, str | None]] = {}

    @property
    def schema(self) -> TableSchema:
        """The table's shape now."""
        return TableSchema(
            table=SCHEMA.table,
            columns=tuple(self._columns[i] for i in self._order),
            key=tuple(column.name for column in self._columns[:_KEY]),
            kept=tuple(self._kept),
        )

    def alter(self, *, may_fill: bool = True) -> DDLEvent:
        """Change the table's columns; `may_fill`: new ones may have a value in the rows that are there."""
        before, fill = self.schema, dict[str, str]()
        for _ in range(self._random.randint(1, 3)):
            kinds = ["rename", "swap", "order", "replace", "replace", *(["forget"] if self._kept else [])]
            match self._random.choice(kinds):
                case "rename":
                    at = self._random.randrange(len(self._columns))
                    old = self._columns[at].name
                    self._columns[at] = replace(self._columns[at], name=self._free_name())
                    fill = {self._columns[at].name if name == old else name: value for name, value in fill.items()}
                case "swap":
                    one, two = self._random.sample(range(_KEY, len(self._columns)), 2)
                    first, second = self._columns[one].name, self._columns[two].name
                    names = {first: second, second: first}
                    for at in (one, two):
                        self._columns[at] = replace(self._columns[at], name=names[self._columns[at].name])
                    fill = {names.get(name, name): value for name, value in fill.items()}
                case "order":
                    self._random.shuffle(self._order)
                case "forget":
                    del self._kept[self._random.choice(list(self._kept))]
                case _:
                    self._replace(self._random.randrange(_KEY, len(self._columns)), before, fill, may_fill=may_fill)
        row = pa.RecordBatch.from_pylist([fill], pa.schema([(name, pa.string()) for name in fill]))
        return DDLEvent(
            operation=DDLOperation.ALTER_TABLE, table=SCHEMA.table, before=before, schema=self.schema, fill=row
        )

    def _replace(self, at: int, before: TableSchema, fill: dict[str, str], *, may_fill: bool) -> None:
        old = self._columns[at]
        fill.pop(old.name, None)
        # What came in the same alteration was never in the target.
        is_known = any(column.id == old.id for column in before.columns)
        if is_known and self._random.random() < 0.5:
            rows = {**(self._replay.graves if self._is_soft else {}), **self._replay.rows}
            self._kept[old] = {key: values[at - _KEY] for key, values in rows.items()}
            name = self._free_name()
        else:
            name = self._random.choice([old.name, self._free_name()])
        self._columns[at] = Column(name=name, type=pa.string(), source_type="text", id=next(self._ids))
        value = f"filled {next(self._ids)}" if may_fill and self._random.random() < 0.5 else None
        if value is not None:
            fill[name] = value
        for rows in (self._replay.rows, self._replay.graves, self._valid.source, self._any.source):
            for key, values in rows.items():
                rows[key] = (*values[: at - _KEY], value, *values[at - _KEY + 1 :])

    def _free_name(self) -> str:
        used = {column.name for column in (*self._columns, *self._kept)}
        free = [name for name in _NAMES if name not in used]
        return self._random.choice(free) if free else f"x{next(self._ids)}"

    def batch(self, folder: Path, most: int, *, expects_rows: bool = False) -> Batch:
        """Up to `most` changes of each workload, as journal files."""
        changes: list[Change] = []
        while not changes:
            changes = self._valid.round(most) + self._any.round(most)
        there = self._keys()
        for change in changes:
            self._replay.apply(change)
        # What is written at a key keeps what stands there; where nothing stood, it is NULL.
        for values in self._kept.values():
            held = {key: values[key] for key in there}
            values.clear()
            values.update({key: held.get(key) for key in self._keys()})
        return write_batch(folder, self.schema, [self._row_change(c) for c in changes], expects_rows=expects_rows)

    def _keys(self) -> set[Key]:
        return {*self._replay.rows, *(self._replay.graves if self._is_soft else ())}

    def _row_change(self, change: Change) -> RowChange:
        names = [column.name for column in self._columns]
        absent = frozenset(names[_KEY + "abc".index(name)] for name in change.absent)
        return RowChange(
            sequence_num=change.sequence_num,
            operation=change.operation,
            before=None if change.before is None else dict(zip(names, change.before, strict=False)),
            row=None if change.key is None else dict(zip(names, (*change.key, *change.values), strict=True)),
            absent=absent,
            is_snapshot=change.is_snapshot,
        )

    @property
    def names(self) -> list[str]:
        """The columns of `wanted`, without whether the row is deleted."""
        return [column.name for column in (*self._columns, *self._kept)]

    def wanted(self) -> set[tuple[Any, ...]]:
        """The rows that a target must have; with soft deletes also whether each is deleted."""
        alive, dead = self._replay.rows, self._replay.graves if self._is_soft else {}
        return {
            *(self._row(key, values, is_deleted=False) for key, values in alive.items()),
            *(self._row(key, values, is_deleted=True) for key, values in dead.items()),
        }

    def _row(self, key: Key, values: Values, *, is_deleted: bool) -> tuple[Any, ...]:
        kept = [held[key] for held in self._kept.values()]
        return (*key, *values, *kept, *([is_deleted] if self._is_soft else []))

"""Alterations as a test makes them: the next shape of a table, a process that dies in one, and random ones with a reference."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from replicator.model import crash
from replicator.model.schema import Column, TableSchema
from replicator_testing.batches import RowChange, delete, insert, update
from replicator_testing.oracle import Oracle, StoredRow


def text_column(name: str, id_: int, type_: pa.DataType | None = None) -> Column:
    """Return a column that the source adds."""
    return Column(name=name, type=type_ or pa.string(), source_type="text", id=id_)


def numbered(schema: TableSchema) -> TableSchema:
    """Return the schema with the numbers 1, 2, … for its columns."""
    return replace(schema, columns=tuple(replace(c, id=n) for n, c in enumerate(schema.columns, start=1)))


def evolved(
    schema: TableSchema,
    *,
    add: Sequence[Column] = (),
    drop: Sequence[str] = (),
    keep: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
) -> TableSchema:
    """Return the table's next schema. `keep` are columns that the source drops and the target keeps; they may be renamed, too."""
    names = rename or {}

    def named(column: Column) -> Column:
        return replace(column, name=names.get(column.name, column.name))

    kept = [c for c in schema.held if c.name not in drop and (c in schema.kept or c.name in keep)]
    return replace(
        schema,
        columns=(*(named(c) for c in schema.columns if c.name not in {*drop, *keep}), *add),
        kept=tuple(replace(named(c), nullable=True) for c in kept),
        key=tuple(names.get(name, name) for name in schema.key),
    )


class Killed(BaseException):
    """Stands for the end of the process at a crash point."""


@contextmanager
def killed_at(points: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make crash points raise `Killed`: like `REPLICATOR_CRASH_AT`, but this process lives on, so code that unwinds the stack runs."""

    def kill(entry: str) -> bool:
        raise Killed(entry)

    with monkeypatch.context() as patch:
        patch.setenv(crash.POINTS, points)
        patch.setattr(crash, "_record", kill)
        crash._hits.clear()  # noqa: SLF001 - the passes of this block are counted
        yield


@dataclass(kw_only=True)
class AlteredTable:
    """The reference: a table in a source whose columns are added and dropped, and the table that a target must have then."""

    schema: TableSchema
    rows: list[dict[str, Any]]
    draw: random.Random
    renames_keys: bool = True
    ids: int = 4
    names: Sequence[str] = field(default=("name", "amount", "note", "p", "q", "r", "s"))

    def alter(self) -> Mapping[str, Any]:
        """Make several changes to the columns at once; return the new columns' values in existing rows."""
        draw, schema = self.draw, self.schema
        fates = {c.id: draw.choice(("stays", "stays", "stays", "renamed", "goes", "kept")) for c in schema.columns}
        fate = "renamed" if self.renames_keys and draw.random() < 0.5 else "stays"
        fates |= {c.id: fate for c in schema.columns if c.name in schema.key}
        staying = [c for c in schema.columns if fates[c.id] in {"stays", "renamed"}]
        taken = {c.name for c in staying if fates[c.id] == "stays"}
        free = [name for name in (*self.names, "key") if name not in taken]
        draw.shuffle(free)
        columns = [c if fates[c.id] == "stays" else replace(c, name=free.pop()) for c in staying]
        for _ in range(draw.choice((0, 1, 2)) if len(free) > 1 else 0):
            self.ids += 1
            columns.append(text_column(free.pop(), self.ids, draw.choice((pa.string(), pa.int64()))))
        if draw.random() < 0.3:
            draw.shuffle(columns)
        taken = {c.name for c in columns}
        kept = [c for c in schema.kept if draw.random() < 0.8] + [c for c in schema.columns if fates[c.id] == "kept"]
        renamed = [replace(c, name=f"dropped_{c.id}") if c.name in taken else c for c in kept]
        by_id = {c.id: c.name for c in columns}
        key = tuple(by_id[schema.column(name).id] for name in schema.key)
        held = tuple(replace(c, nullable=True) for c in renamed)
        wanted = replace(schema, columns=tuple(columns), kept=held, key=key)
        was = {c.id: c.name for c in schema.held}
        fill = {c.name: self._value(c) for c in columns if c.id not in was and draw.random() < 0.6}
        self.rows = [
            {c.name: row[was[c.id]] if c.id in was else fill.get(c.name) for c in wanted.held} for row in self.rows
        ]
        self.schema = wanted
        return fill

    def change(self, last: int, count: int) -> list[RowChange]:
        """Change rows as a source would: no row exists twice, and only existing rows are deleted."""
        (key,), changes = self.schema.key, []
        before = [StoredRow(row, -1) for row in self.rows]
        table, done = Oracle(self.schema, rows=before), Oracle(self.schema, rows=before)
        for number in range(last + 1, last + count + 1):
            change = self._change(number, key, [row[key] for row in table.live])
            table.apply([change])
            changes.append(change)
        # As one batch: kept columns stay with the key of a row that went away and came back in it.
        done.apply(changes)
        self.rows = [dict(row) for row in done.live]
        return changes

    def _change(self, number: int, key: str, there: Sequence[int]) -> RowChange:
        draw = self.draw
        free = [n for n in range(1, 9) if n not in there]
        row = {c.name: self._value(c) for c in self.schema.columns}
        absent = [name for name in row if name != key and draw.random() < 0.3]
        kind = draw.choice(("insert", "update", "update", "move", "delete"))
        if not there or (kind == "insert" and free):
            return insert(number, {**row, key: draw.choice(free)})
        old = draw.choice(there)
        if kind == "delete":
            return delete(number, {key: old})
        if kind == "move" and free:
            return update(number, {**row, key: draw.choice(free)}, before={key: old}, absent=absent)
        return update(number, {**row, key: old}, absent=absent)

    def _value(self, column: Column) -> Any:
        if self.draw.random() < 0.2:
            return None
        number = self.draw.randrange(100)
        if column.type == pa.string():
            return f"v{number}"
        return Decimal(number).quantize(Decimal("1.00")) if pa.types.is_decimal(column.type) else number

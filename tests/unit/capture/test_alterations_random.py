"""Random alterations amid random changes, late visibility, snapshots, and errors that end the capture.

Seeded. What is sealed must fold to the source, columns by their numbers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from replicator.config import DDLConfig
from replicator.model.errors import SourceUnavailableError
from replicator.model.schema import Column, TableId, TableSchema
from replicator.state.records import RequestKind, Stage
from replicator_testing.memory import LockedError, MemorySource, MemoryTransaction

if TYPE_CHECKING:
    from tests.unit.capture.conftest import Bench

CALLS = ("mark", "acknowledge", "pull", "read_chunk", "read_chunk.after", "read_whole.batch", "visibility", "describe")
NAMES = ("a", "b", "c", "d")


@dataclass
class Work:
    """Changes and alters a table with a key and one without."""

    bench: Bench
    rng: random.Random
    count: int = 0
    ids: int = 3
    tables: list[TableId] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, key in (("t", ("id",)), ("bag", ())):
            schema = self.bench.schema(name, key=key)
            columns = tuple(replace(c, id=id_) for id_, c in enumerate(schema.columns, start=1))
            self.tables.append(self.bench.create(replace(schema, columns=columns)))
            self.bench.fill(self.tables[-1], 12)

    def transaction(self) -> None:
        transaction = self.bench.database.begin()
        schemas = {table: self.bench.database.table(table).schema for table in self.tables}
        for _ in range(self.rng.randint(1, 4)):
            table = self.rng.choice(self.tables)
            try:
                if self.rng.random() < 0.3:
                    schemas[table] = self.alter(transaction, schemas[table])
                else:
                    self.change(transaction, schemas[table])
            except (LockedError, ValueError, KeyError):
                continue  # Somebody else holds it, or the row is not there: the work continues without this change.
        transaction.commit(visible=self.rng.random() < 0.5)
        hidden = list(self.bench.database.invisible())
        self.rng.shuffle(hidden)
        for id_ in hidden[: self.rng.randint(0, 2)]:
            self.bench.database.make_visible(id_)

    def alter(self, transaction: MemoryTransaction, schema: TableSchema) -> TableSchema:
        """One statement of one to three actions."""
        columns, fill = list(schema.columns), dict[str, Any]()
        for _ in range(self.rng.randint(1, 3)):
            free = [name for name in NAMES if name not in {c.name for c in columns}]
            others = [i for i, c in enumerate(columns) if c.name != "id"]
            action = self.rng.choice(["add", "drop", "rename", "swap", "again", "move"])
            if action == "add" and free:
                columns.insert(self.rng.randint(1, len(columns)), self.column(self.rng.choice(free), fill))
            elif action == "drop" and others:
                del columns[self.rng.choice(others)]
            elif action == "rename" and others and free:
                index, name = self.rng.choice(others), self.rng.choice(free)
                fill.pop(columns[index].name, None)
                columns[index] = replace(columns[index], name=name)
            elif action == "swap" and len(others) > 1:
                i, j = self.rng.sample(others, 2)
                fill.pop(columns[i].name, None), fill.pop(columns[j].name, None)
                columns[i], columns[j] = (
                    replace(columns[i], name=columns[j].name),
                    replace(columns[j], name=columns[i].name),
                )
            elif action == "again" and others:
                index = self.rng.choice(others)
                columns[index] = self.column(columns[index].name, fill)
            elif action == "move" and others:
                column = columns.pop(self.rng.choice(others))
                columns.insert(self.rng.randint(1, len(columns)), column)
        new = replace(schema, columns=tuple(columns))
        fill = {name: value for name, value in fill.items() if name in new.fields}
        transaction.alter(new, fill=fill, is_known=self.rng.random() < 0.8)
        return new

    def column(self, name: str, fill: dict[str, Any]) -> Column:
        self.ids += 1
        fill.pop(name, None)
        if self.rng.random() < 0.5:
            fill[name] = f"fill{self.ids}"
        return Column(name=name, type=pa.string(), source_type="text", id=self.ids)

    def change(self, transaction: MemoryTransaction, schema: TableSchema) -> None:
        rng, self.count = self.rng, self.count + 1
        key = rng.randint(1, 14)
        row = {c.name: key if c.name == "id" else f"v{self.count}" for c in schema.columns}
        if not schema.key:
            transaction.insert(schema.table, {**row, **{name: "same" for name in row if name != "id"}})
            return
        match rng.choice(["insert", "update", "move", "delete"]):
            case "insert":
                transaction.insert(schema.table, row)
            case "update":
                transaction.update(schema.table, (key,), row)
            case "move":
                transaction.update(schema.table, (key,), {**row, "id": rng.randint(1, 14)})
            case _:
                transaction.delete(schema.table, (key,))

    def settle(self) -> None:
        for id_ in list(self.bench.database.invisible()):
            self.bench.database.make_visible(id_)


def _disturbed(work: Work, call: str, actions: Sequence[Callable[[], None] | None]) -> Callable[[MemorySource], None]:
    def prepare(source: MemorySource) -> None:
        source.faults.script("read_chunk", *[work.transaction] * 3)
        source.faults.script(call, *actions, SourceUnavailableError("away", code="source_unavailable"))

    return prepare


def _has_come(bench: Bench, counts: Any, call: str, after: int) -> bool:
    return counts[call] > after or (call != "pull" and counts["pull"] > 60)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(s, marks=pytest.mark.matrix) for s in range(4, 600))])
def test_what_is_sealed_folds_to_the_altered_source(bench: Bench, seed: int) -> None:
    rng = random.Random(seed)
    bench.settings = replace(
        bench.settings,
        seal_rows=rng.choice([1, 5, 1000]),
        pull_rows=rng.choice([1, 3, 1000]),
        chunk_retries=rng.choice([0, 3]),
        pull_wait_s=0.002,
        ddl=lambda _: DDLConfig(drop_column="apply" if seed % 2 else "keep"),
    )
    work = Work(bench, rng)
    for round_ in range(6):
        if round_ == 3:
            bench.store.requests.add("test", RequestKind.SNAPSHOT, {"tables": []})
        call, after = rng.choice(CALLS), rng.randint(0, 12)
        actions = [work.transaction if rng.random() < 0.7 else None for _ in range(after)]
        try:
            with bench.running(_disturbed(work, call, actions)) as capture:
                capture.until(partial(_has_come, bench, capture.source.faults.counts, call, after))
        except SourceUnavailableError:
            continue
    work.settle()
    with bench.running() as capture:
        capture.until(
            lambda: (
                bench.is_at(Stage.STREAMING)()
                and all(bench.holds(table)() for table in work.tables)
                and not bench.store.requests.open("test")
            )
        )
    assert [bench.known(table).incarnation for table in work.tables] == [1, 1]

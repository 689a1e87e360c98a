"""Random changes of whole definitions: types, keys, columns, truncates, stops that somebody accepts, snapshots, and ends of the capture.

Seeded. In the end what is sealed folds to the source, and so does what a target makes of it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from replicator.apply import Apply
from replicator.config import DDLConfig
from replicator.journal import JournalReader
from replicator.model.errors import SourceUnavailableError
from replicator.model.schema import Column, TableId, TableSchema
from replicator.state import table_life
from replicator.state.records import RequestKind, Stage
from replicator_testbed.journals.applied import Control as ApplyControl
from replicator_testing.defaults import AT_ONCE, apply_settings, target_context
from replicator_testing.memory import LockedError, MemorySource, MemoryTarget, MemoryTransaction, MemoryWarehouse
from replicator_testing.memory.target import MemoryTargetConfig

if TYPE_CHECKING:
    from tests.unit.capture.conftest import Bench

CALLS: Final = ("mark", "acknowledge", "pull", "read_chunk", "read_chunk.after", "read_whole.batch", "describe")
NAMES: Final = ("a", "b", "c", "d")
INT, BIG, FLOAT, TEXT = pa.int32(), pa.int64(), pa.float64(), pa.string()
NEXT: Final = {INT: (BIG, BIG, FLOAT, TEXT), BIG: (TEXT,), FLOAT: (TEXT,), TEXT: ()}
"""Into what types of columns may be changed, so that every value can be cast."""
KEYS: Final = (("id",), ("id", "k"), ())


@dataclass
class Work:
    """Changes tables and their definitions, and accepts what has stopped."""

    bench: Bench
    rng: random.Random
    count: int = 0
    ids: int = 10
    tables: list[TableId] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, key in (("t", ("id",)), ("bag", ()), ("pair", ("id", "k"))):
            columns = [
                Column(name="id", type=INT, source_type="int32", nullable=False, id=1),
                Column(name="k", type=INT, source_type="int32", nullable=False, id=2),
                Column(name="a", type=INT, source_type="int32", id=3),
                Column(name="b", type=TEXT, source_type="text", id=4),
            ]
            table = TableId("public", name)
            self.tables.append(self.bench.create(TableSchema(table=table, columns=tuple(columns), key=key)))
            self.bench.write(table, *({"id": i, "k": i, "a": i, "b": f"{i}"} for i in range(1, 10)))

    def transaction(self) -> None:
        transaction = self.bench.database.begin()
        schemas = {table: self.bench.database.table(table).schema for table in self.tables}
        for _ in range(self.rng.randint(1, 4)):
            table, roll = self.rng.choice(self.tables), self.rng.random()
            try:
                if roll < 0.25:
                    schemas[table] = self.alter(transaction, schemas[table])
                elif roll < 0.3:
                    transaction.truncate(table)
                else:
                    self.change(transaction, schemas[table])
            except (LockedError, ValueError, KeyError):
                continue  # Somebody else holds it, or the row is not there: the work continues without this change.
        transaction.commit(visible=self.rng.random() < 0.5)
        hidden = list(self.bench.database.invisible())
        self.rng.shuffle(hidden)
        for id_ in hidden[: self.rng.randint(0, 2)]:
            self.bench.database.make_visible(id_)
        if self.rng.random() < 0.3:
            self.accept()

    def accept(self) -> None:
        stopped = [r.table for r in self.bench.store.tables("test") if table_life.waits_for_acceptance(r)]
        asked = {name for request in self.bench.store.requests.open("test") for name in request.payload["tables"]}
        for table in stopped:
            if str(table) not in asked:
                self.bench.store.requests.add("test", RequestKind.ACCEPT, {"tables": [str(table)]})

    def alter(self, transaction: MemoryTransaction, schema: TableSchema) -> TableSchema:
        """One statement of one to two actions."""
        columns, key, fill = list(schema.columns), schema.key, dict[str, Any]()
        for _ in range(self.rng.randint(1, 2)):
            free = [name for name in NAMES if name not in {c.name for c in columns}]
            others = [i for i, c in enumerate(columns) if c.name not in ("id", "k")]
            action = self.rng.choice(["add", "drop", "rename", "type", "type", "key type", "key", "nullable"])
            if action == "add" and free:
                columns.append(self.column(self.rng.choice(free), fill))
            elif action == "drop" and others:
                del columns[self.rng.choice(others)]
            elif action == "rename" and others and free:
                index = self.rng.choice(others)
                columns[index] = replace(columns[index], name=self.rng.choice(free))
            elif action == "key type" or (action == "type" and others):
                index = self.rng.choice(others) if action == "type" else self.rng.randint(0, 1)
                allowed = [type_ for type_ in NEXT[columns[index].type] if action == "type" or type_ == BIG]
                if allowed and columns[index].name not in fill:
                    columns[index] = retyped(columns[index], self.rng.choice(allowed))
            elif action == "key":
                key = self.rng.choice(KEYS)
            elif action == "nullable" and others:
                index = self.rng.choice(others)
                columns[index] = replace(columns[index], nullable=not columns[index].nullable)
        new = replace(schema, columns=tuple(columns), key=key)
        if key and key != schema.key and not self.is_unique(schema.table, key):
            raise ValueError("the key would not be unique")
        fill = {name: value for name, value in fill.items() if name in new.fields}
        transaction.alter(new, fill=fill, is_known=self.rng.random() < 0.8)
        return new

    def is_unique(self, table: TableId, key: Sequence[str]) -> bool:
        """Only where nothing is under way in the table."""
        held = self.bench.database.table(table)
        if held.writers:
            return False
        found = Counter(tuple(row[name] for name in key) for row in held.rows.values())
        return all(count == 1 for count in found.values())

    def column(self, name: str, fill: dict[str, Any]) -> Column:
        self.ids += 1
        type_ = self.rng.choice([INT, TEXT])
        fill.pop(name, None)
        if self.rng.random() < 0.5:
            fill[name] = self.value(type_)
        return Column(name=name, type=type_, source_type=str(type_), id=self.ids)

    def value(self, type_: pa.DataType) -> Any:
        self.count += 1
        return {INT: self.count, BIG: (1 << 40) + self.count, FLOAT: self.count + 0.5, TEXT: f"v{self.count}"}[type_]

    def change(self, transaction: MemoryTransaction, schema: TableSchema) -> None:
        rng = self.rng
        row = {c.name: rng.randint(1, 12) if c.name in ("id", "k") else self.value(c.type) for c in schema.columns}
        if not schema.key:
            transaction.insert(schema.table, row)
            return
        at = tuple(rng.randint(1, 12) for _ in schema.key)
        match rng.choice(["insert", "update", "move", "delete"]):
            case "insert":
                transaction.insert(schema.table, row)
            case "update":
                transaction.update(schema.table, at, {**row, **dict(zip(schema.key, at, strict=True))})
            case "move":
                transaction.update(schema.table, at, row)
            case _:
                transaction.delete(schema.table, at)

    def settle(self) -> None:
        for id_ in list(self.bench.database.invisible()):
            self.bench.database.make_visible(id_)


def retyped(column: Column, type_: pa.DataType) -> Column:
    return replace(column, type=type_, source_type=str(type_))


def _disturbed(work: Work, call: str, actions: Sequence[Callable[[], None] | None]) -> Callable[[MemorySource], None]:
    def prepare(source: MemorySource) -> None:
        source.faults.script("read_chunk", *[work.transaction] * 3)
        source.faults.script(call, *actions, SourceUnavailableError("away", code="source_unavailable"))

    return prepare


def _has_come(counts: Any, call: str, after: int) -> bool:
    return counts[call] > after or (call != "pull" and counts["pull"] > 60)


def _is_equal(bench: Bench, work: Work) -> bool:
    """Everything is followed; what stopped last is accepted."""
    work.accept()
    if bench.store.requests.open("test") or not bench.is_at(Stage.STREAMING)():
        return False
    return all(bench.holds(table)() for table in work.tables)


def applied(bench: Bench) -> MemoryWarehouse:
    """What a target makes of what was sealed."""
    lease, record = bench.store.leases.current("test"), bench.store.replicator("test")
    assert lease is not None
    assert record is not None
    context = target_context(replicator="test", uuid=record.uuid, epoch=lease.epoch)
    target = MemoryTarget(MemoryTargetConfig(database=bench.database.name), context)
    settings = apply_settings(AT_ONCE, tables_parallel=1, maintain_every=1000, maintain_idle=1000)
    reader = JournalReader(bench.store, "test")
    apply = Apply(target, bench.store, reader, name="test", uuid=record.uuid, epoch=lease.epoch, settings=settings)

    def is_done() -> bool:
        done = bench.store.applied("test")
        numbers = bench.store.journal.feed_tables("test").items()
        return all(t in done and (done[t].has_failed or done[t].last_applied >= n) for t, n in numbers)

    apply.run(ApplyControl(is_done))
    assert not [record.error for record in bench.store.applied("test").values() if record.has_failed]
    return target.warehouse


def policies(rng: random.Random) -> DDLConfig:
    return DDLConfig(
        drop_column=rng.choice(["keep", "apply", "stop"]),
        add_column=rng.choice(["apply", "apply", "stop"]),
        rename_column=rng.choice(["apply", "apply", "stop"]),
        widen_type=rng.choice(["apply", "apply", "stop"]),
        change_type=rng.choice(["apply", "stop"]),
        change_key=rng.choice(["apply", "stop"]),
        change_nullability=rng.choice(["apply", "apply", "stop"]),
        truncate_table=rng.choice(["apply", "apply", "stop"]),
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(s, marks=pytest.mark.matrix) for s in range(3, 520))])
def test_what_is_sealed_and_applied_is_the_source_as_it_was_redefined(bench: Bench, seed: int) -> None:
    rng = random.Random(seed)
    chosen = policies(rng)
    bench.settings = replace(
        bench.settings,
        seal_rows=rng.choice([1, 5, 1000]),
        pull_rows=rng.choice([1, 3, 1000]),
        chunk_retries=rng.choice([0, 3]),
        pull_wait_s=0.002,
        ddl=lambda _: chosen,
        widens=lambda before, after: pa.types.is_integer(before) and pa.types.is_integer(after),
    )
    work = Work(bench, rng)
    for round_ in range(5):
        if round_ == 3:
            bench.store.requests.add("test", RequestKind.SNAPSHOT, {"tables": []})
        call, after = rng.choice(CALLS), rng.randint(0, 12)
        actions = [work.transaction if rng.random() < 0.7 else None for _ in range(after)]
        try:
            with bench.running(_disturbed(work, call, actions)) as capture:
                capture.until(partial(_has_come, capture.source.faults.counts, call, after))
        except SourceUnavailableError:
            continue
    work.settle()
    with bench.running() as capture:
        capture.until(lambda: _is_equal(bench, work))
    warehouse = applied(bench)
    for table in work.tables:
        stored, schema = warehouse.tables[table], bench.database.table(table).schema
        assert stored.shown is None
        rows = Counter(tuple(row[column.name] for column in schema.columns) for row in stored.live())
        assert rows == Counter(dict(bench.database.state(table)))

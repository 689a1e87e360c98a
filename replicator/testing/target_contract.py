"""What every target must do.

A plugin's tests begin by subclassing `TargetContract`:

    class TestDeltaTarget(TargetContract): @pytest.fixture def harness(self, tmp_path): return DeltaHarness(tmp_path)

Commits are dear on many targets, so where a rule must hold for many histories they all go into one table: each
history lives in a `world`, the first column of the key.
"""

from __future__ import annotations

import itertools
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pytest

from replicator.model.errors import FencedError, Problem, Severity, TableError
from replicator.model.events import DDLEvent, DDLOperation, DMLOperation
from replicator.model.merged import Merged
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.target import EMPTY_LEDGER, BatchResult, Claim, DeltaTarget, Ledger, TableOptions, TargetTable
from replicator.testing.batches import Row, RowChange, delete, insert, update, write_batch

UUID = "6f1d2a34-0000-4000-8000-000000000001"
STRANGER = "6f1d2a34-0000-4000-8000-00000000beef"
ITEMS = TableId("shop", "items")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRow:
    """A row as it stands in the target; `values` by the source's column names, bookkeeping columns apart."""

    values: Mapping[str, Any]
    sequence_num: int
    is_deleted: bool = False


class TargetHarness(ABC):
    """One empty place where a target keeps tables, and a way to look at it that does not go through the target."""

    @abstractmethod
    def target(
        self, *, uuid: str = UUID, epoch: int = 1, adopt: Literal["refuse", "replace"] = "refuse"
    ) -> DeltaTarget[Any]:
        """A new target object over the same place, as another process would make it."""

    @abstractmethod
    def rows(self, table: TargetTable, schema: TableSchema) -> Sequence[TargetRow]:
        """What the table holds now, deleted rows included; empty if it is not there."""

    @abstractmethod
    def exists(self, table: TargetTable) -> bool:
        """Whether there is such a table."""


def items_schema(*, key: Sequence[str] = ("id",), with_world: bool = False, table: TableId = ITEMS) -> TableSchema:
    """The contract's table: `id bigint, name text, amount decimal(12,2), note text`, perhaps behind a `world bigint` that leads the key."""
    columns = [
        Column(name="id", type=pa.int64(), source_type="bigint", nullable=not key),
        Column(name="name", type=pa.string(), source_type="text"),
        Column(name="amount", type=pa.decimal128(12, 2), source_type="numeric(12,2)"),
        Column(name="note", type=pa.string(), source_type="text"),
    ]
    if with_world:
        columns.insert(0, Column(name="world", type=pa.int64(), source_type="bigint", nullable=not key))
    return TableSchema(table=table, columns=tuple(columns), key=(("world", *key) if with_world and key else tuple(key)))


def item(
    id_: int | None, name: str | None = None, amount: str | None = None, note: str | None = None, **more: Any
) -> dict[str, Any]:
    """A row of the contract's table."""
    return {"id": id_, "name": name, "amount": None if amount is None else Decimal(amount), "note": note, **more}


@dataclass(kw_only=True)
class Copy:
    """A table that a test keeps in a target, with the ledger as apply would remember it."""

    harness: TargetHarness
    folder: Path
    schema: TableSchema
    table: TargetTable
    target: DeltaTarget[Any]
    ledger: int = EMPTY_LEDGER
    merged: Merged = field(default_factory=Merged)
    audited_to: str | None = None

    def claim(self) -> Claim:
        """Claim the table."""
        return self.target.claim(self.table)

    def audit(self) -> Merged:
        """What the target counted in this incarnation, asked for as apply asks; nobody else has changed anything."""
        audit = self.target.audit(self.table, self.audited_to)
        assert list(audit.changed_by_others) == []
        self.merged, self.audited_to = audit.merged, audit.position
        return self.merged

    def create(self, sequence_num: int = 0) -> None:
        """Claim the table and create it."""
        self.claim()
        self.audit()
        self.ddl(DDLOperation.CREATE_TABLE, sequence_num)

    def ddl(self, operation: DDLOperation, sequence_num: int) -> None:
        """Apply a schema change."""
        self.target.apply_ddl(
            self.table, DDLEvent(operation=operation, table=self.schema.table, schema=self.schema), sequence_num
        )
        self.ledger = sequence_num

    def apply(
        self,
        *changes: RowChange,
        files: int = 1,
        is_append: bool = False,
        skip_to: int | None = None,
        expects_rows: bool = False,
    ) -> BatchResult:
        """Apply changes as one batch."""
        batch = write_batch(
            self.folder,
            self.schema,
            changes,
            skip_to=self.ledger if skip_to is None else skip_to,
            files=min(files, len(changes)),
            is_append=is_append,
            expects_rows=expects_rows,
        )
        result = self.target.apply_batch(self.table, batch)
        self.ledger = batch.last
        return result

    def restart(self, epoch: int | None = None) -> Claim:
        """Go on as another process, under the same epoch or a newer one."""
        self.table = replace(self.table, epoch=self.table.epoch if epoch is None else epoch)
        self.target = self.harness.target(uuid=self.table.uuid, epoch=self.table.epoch)
        claim = self.claim()
        self.ledger = claim.last_applied
        return claim

    def stored(self) -> Sequence[TargetRow]:
        """Everything in the table, deleted rows included."""
        return self.harness.rows(self.table, self.schema)

    def live(self) -> list[tuple[Any, ...]]:
        """The rows that are not deleted, as sorted tuples."""
        return as_tuples(self.schema, [row.values for row in self.stored() if not row.is_deleted])


def wrong(problems: Sequence[Problem]) -> list[Problem]:
    """Findings that are more than something to know."""
    return [problem for problem in problems if problem.severity is not Severity.NOTICE]


def as_tuples(schema: TableSchema, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    """Rows as tuples in column order, sorted, so that lists of them compare as multisets."""
    return sorted((tuple(row[c.name] for c in schema.columns) for row in rows), key=repr)


@dataclass
class Replay:
    """The reference: a table to which changes are applied one by one."""

    schema: TableSchema
    rows: list[dict[str, Any]] = field(default_factory=list)

    def apply(self, change: RowChange) -> None:
        """Apply one change."""
        old = change.before if change.before is not None else change.row
        origin = None
        if change.operation is not DMLOperation.INSERT or self.schema.key:
            assert old is not None
            origin = self._take(old)
        if change.row is None:
            return
        if self.schema.key:
            self._take(change.row)
        self.rows.append(
            {n: (origin or {}).get(n) if n in change.absent else change.row.get(n) for n in self.schema.fields}
        )

    def _take(self, like: Row) -> dict[str, Any] | None:
        names = self.schema.key or tuple(self.schema.fields)
        for index, row in enumerate(self.rows):
            if all(row[n] == like.get(n) for n in names):
                return self.rows.pop(index)
        return None


def cuts(count: int) -> list[list[int]]:
    """Every way to cut `count` changes into batches: for each way, the number of the batch that each change falls into."""
    borders = itertools.product((0, 1), repeat=count - 1)
    return [list(itertools.accumulate(border, initial=0)) for border in borders]


History = Callable[[], Sequence[RowChange]]
"""Changes of one world; numbers are 0, 1, 2, … and are replaced."""


def worked_example() -> Sequence[RowChange]:
    """The example of CDAP's design: `INSERT 0 alice; 0→1; 1→2; DELETE 2; INSERT 0 Alice, 1 blob; UPDATE 1 Bob`."""
    return [
        insert(0, item(0, "alice")),
        update(1, item(1, "alice"), before=item(0)),
        update(2, item(2, "alice"), before=item(1)),
        delete(3, item(2)),
        insert(4, item(0, "Alice")),
        insert(5, item(1, "blob")),
        update(6, item(1, "Bob")),
    ]


def key_chain() -> Sequence[RowChange]:
    """0→1→2 of a row that is there."""
    return [
        insert(0, item(0, "alice")),
        update(1, item(1, "alice"), before=item(0)),
        update(2, item(2, "alice"), before=item(1)),
    ]


def key_swap() -> Sequence[RowChange]:
    """1 and 2 swap their keys by way of 99."""
    return [
        insert(0, item(1, "a")),
        insert(1, item(2, "b")),
        update(2, item(99, "a"), before=item(1)),
        update(3, item(1, "b"), before=item(2)),
        update(4, item(2, "a"), before=item(99)),
    ]


def key_reuse() -> Sequence[RowChange]:
    """The key of a row that moved away is used again."""
    return [
        insert(0, item(0, "alice")),
        update(1, item(5, "alice"), before=item(0)),
        insert(2, item(0, "bob")),
        update(3, item(0, "bob2")),
    ]


def move_and_delete() -> Sequence[RowChange]:
    """A row moves and is deleted under its new key."""
    return [insert(0, item(0, "alice")), update(1, item(1, "alice"), before=item(0)), delete(2, item(1))]


def absent_through_a_swap() -> Sequence[RowChange]:
    """Rows swap keys while a column is never sent: each keeps its own."""
    return [
        insert(0, item(1, "a", "1.00", "note of a")),
        insert(1, item(2, "b", "2.00", "note of b")),
        update(2, item(99, "a", "1.50"), before=item(1), absent=["note"]),
        update(3, item(1, "b", "2.50"), before=item(2), absent=["note"]),
        update(4, item(2, "a", "1.75"), before=item(99), absent=["note"]),
        update(5, item(2, "a2"), absent=["note", "amount"]),
    ]


def absent_then_reused() -> Sequence[RowChange]:
    """A new row under an old key never gets what the old row held."""
    return [
        insert(0, item(1, "a", "1.00", "old")),
        update(1, item(1, "a2", "1.00"), absent=["note"]),
        delete(2, item(1)),
        insert(3, item(1, "b", None, None)),
        update(4, item(1, "b2"), absent=["note", "amount"]),
    ]


def absent_column_by_column() -> Sequence[RowChange]:
    """Each column has the last value that was sent for it, NULL being a value."""
    return [
        insert(0, item(1, "a", "1.00", "n1")),
        update(1, item(1, None, None, "n2"), absent=["name", "amount"]),
        update(2, item(1, None, None, None), absent=["amount", "note"]),
        update(3, item(1, "c", "3.00", None), absent=["note"]),
        update(4, item(1, None, None, None), absent=["name", "note"]),
    ]


def partial_snapshot_row() -> Sequence[RowChange]:
    """The log knew a row but for one column; the snapshot's chunk brings that column."""
    return [
        update(0, item(1, "a", "1.00", None), absent=["note"]),
        insert(1, item(1, None, None, "from the chunk"), absent=["name", "amount"], is_snapshot=True),
        update(2, item(1, "b", "2.00", None), absent=["note"]),
    ]


HISTORIES: Sequence[History] = (
    worked_example,
    key_chain,
    key_swap,
    key_reuse,
    move_and_delete,
    absent_through_a_swap,
    absent_then_reused,
    absent_column_by_column,
    partial_snapshot_row,
)


def spread_over_worlds(history: Sequence[RowChange]) -> tuple[TableSchema, list[list[RowChange]]]:
    """One world for each way to cut a history into batches; the batches, numbered through, in which all worlds go forward together."""
    ways = cuts(len(history))
    numbers = itertools.count(1)
    batches = []
    for batch in range(len(history)):
        rows = []
        for world, way in enumerate(ways):
            rows += [in_world(c, world, next(numbers)) for c, b in zip(history, way, strict=True) if b == batch]
        batches.append(rows)
    return items_schema(with_world=True), batches


def in_world(change: RowChange, world: int, sequence_num: int) -> RowChange:
    """The same change of a row of another world."""
    return replace(
        change,
        sequence_num=sequence_num,
        before=None if change.before is None else {"world": world, **change.before},
        row=None if change.row is None else {"world": world, **change.row},
    )


def random_history(rng: random.Random, length: int) -> list[RowChange]:
    """A history that a source could have: keys move, chain and swap; columns stay absent; rows come back."""
    content: dict[int, Row] = {}
    changes: list[RowChange] = []
    texts = itertools.count()

    def values(id_: int) -> dict[str, Any]:
        filled = next(texts)
        return item(
            id_, rng.choice([None, f"n{filled}"]), rng.choice([None, f"{filled}.25"]), rng.choice([None, f"t{filled}"])
        )

    def change_of(row: Row) -> tuple[dict[str, Any], list[str]]:
        absent = rng.sample(["name", "amount", "note"], rng.choice([0, 0, 1, 2, 3]))
        return {n: row[n] if n in absent else v for n, v in values(row["id"]).items()}, absent

    while len(changes) < length:
        number = len(changes)
        kind = rng.choice(["insert", "insert", "update", "update", "move", "move", "delete", "upsert"])
        free = [k for k in range(4) if k not in content]
        if kind == "insert" and free:
            id_ = rng.choice(free)
            content[id_] = values(id_)
            changes.append(insert(number, content[id_]))
        elif kind == "upsert" and content:
            id_ = rng.choice(list(content))
            content[id_] = values(id_)
            changes.append(insert(number, content[id_], is_snapshot=True))
        elif kind == "update" and content:
            row, absent = change_of(content[rng.choice(list(content))])
            content[row["id"]] = row
            changes.append(update(number, row, absent=absent))
        elif kind == "move" and content and free:
            old = rng.choice(list(content))
            row, absent = change_of(content.pop(old))
            row["id"] = rng.choice(free)
            content[row["id"]] = row
            changes.append(update(number, row, before=item(old), absent=absent))
        elif kind == "delete" and content:
            id_ = rng.choice(list(content))
            del content[id_]
            changes.append(delete(number, item(id_)))
    return changes


def random_batches(seed: int, *, worlds: int, length: int, batches: int) -> list[list[RowChange]]:
    """Random histories, one per world, cut at random into batches."""
    rng = random.Random(seed)
    buckets: list[list[RowChange]] = [[] for _ in range(batches)]
    for world in range(worlds):
        borders = sorted(rng.choices(range(batches), k=length))
        for change, batch in zip(random_history(rng, length), borders, strict=True):
            buckets[batch].append(in_world(change, world, 0))
    # Worlds are mixed with each other; inside a world the order stays.
    numbers = itertools.count(1)
    mixed = [sorted(bucket, key=_shuffled_worlds(rng)) for bucket in buckets if bucket]
    return [[replace(c, sequence_num=next(numbers)) for c in bucket] for bucket in mixed]


def _shuffled_worlds(rng: random.Random) -> Callable[[RowChange], float]:
    clocks: dict[int, float] = {}

    def position(change: RowChange) -> float:
        world = (change.row or change.before or {})["world"]
        clocks[world] = clocks.get(world, 0.0) + rng.random()
        return clocks[world]

    return position


class TargetContract(ABC):
    """The suite. `fuzz_worlds` histories of `fuzz_length` changes are played in each of `fuzz_rounds` rounds of `fuzz_batches` commits."""

    fuzz_worlds: ClassVar[int] = 250
    fuzz_rounds: ClassVar[int] = 4
    fuzz_length: ClassVar[int] = 12
    fuzz_batches: ClassVar[int] = 4

    @pytest.fixture
    @abstractmethod
    def harness(self, tmp_path: Path) -> TargetHarness:
        """An empty place for tables."""

    def copy(
        self,
        harness: TargetHarness,
        folder: Path,
        schema: TableSchema | None = None,
        *,
        options: TableOptions | None = None,
    ) -> Copy:
        """A table that is not there yet."""
        schema = schema or items_schema()
        table = TargetTable(table=schema.table, uuid=UUID, incarnation=1, epoch=1, options=options or TableOptions())
        return Copy(harness=harness, folder=folder / "journal", schema=schema, table=table, target=harness.target())

    # -- ledger

    def test_identity_is_the_same_for_every_object(self, harness: TargetHarness) -> None:
        assert harness.target().identity() == harness.target(epoch=2).identity()

    def test_a_table_claimed_for_the_first_time_is_empty(self, harness: TargetHarness, tmp_path: Path) -> None:
        assert self.copy(harness, tmp_path).claim() == Claim(last_applied=EMPTY_LEDGER)

    def test_a_created_table_is_there_without_rows(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create(3)
        assert harness.exists(copy.table)
        assert copy.stored() == []
        assert copy.restart() == Claim(last_applied=3)

    def test_the_ledger_follows_batches_and_outlives_the_process(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(insert(1, item(1, "a")), insert(4, item(2, "b")))
        assert copy.restart().last_applied == 4
        assert {row.values["id"]: row.sequence_num for row in copy.stored()} == {1: 1, 2: 4}

    def test_a_replayed_batch_changes_nothing(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path, items_schema(key=()))
        copy.create()
        changes = [insert(1, item(1, "a")), insert(2, item(1, "a"))]
        assert not copy.apply(*changes, skip_to=0).was_skipped
        before = copy.stored()
        assert copy.apply(*changes, skip_to=0).was_skipped
        copy.restart()
        assert copy.apply(*changes, skip_to=0).was_skipped
        assert copy.restart().last_applied == 2
        assert sorted(r.sequence_num for r in copy.stored()) == sorted(r.sequence_num for r in before)

    def test_a_batch_that_begins_below_the_ledger_applies_only_the_rest(
        self, harness: TargetHarness, tmp_path: Path
    ) -> None:
        copy = self.copy(harness, tmp_path, items_schema(key=()))
        copy.create()
        copy.apply(insert(1, item(1, "a")), insert(2, item(2, "b")))
        copy.apply(insert(1, item(1, "a")), insert(2, item(2, "b")), insert(3, item(3, "c")), skip_to=2, files=2)
        assert copy.live() == as_tuples(copy.schema, [item(1, "a"), item(2, "b"), item(3, "c")])

    def test_advance_moves_the_ledger_and_nothing_else(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(insert(1, item(1, "a")))
        for _ in range(2):
            copy.target.advance(copy.table, 9)
        copy.target.advance(copy.table, 5)
        assert copy.restart().last_applied == 9
        assert copy.live() == as_tuples(copy.schema, [item(1, "a")])

    def test_replayed_ddl_changes_nothing(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(insert(1, item(1, "a")))
        copy.ddl(DDLOperation.CREATE_TABLE, 0)
        assert copy.restart().last_applied == 1
        copy.ddl(DDLOperation.TRUNCATE_TABLE, 2)
        copy.apply(insert(3, item(2, "b")))
        copy.restart()
        copy.ddl(DDLOperation.TRUNCATE_TABLE, 2)
        assert copy.live() == as_tuples(copy.schema, [item(2, "b")])
        assert copy.restart().last_applied == 3

    # -- merge

    @pytest.mark.parametrize("history", HISTORIES, ids=lambda h: h.__name__)
    def test_every_way_to_cut_a_history_into_batches_gives_the_same_rows(
        self, harness: TargetHarness, tmp_path: Path, history: History
    ) -> None:
        changes = history()
        schema, batches = spread_over_worlds(changes)
        copy = self.copy(harness, tmp_path, schema)
        copy.create()
        for batch in batches:
            # In a snapshot's middle an UPDATE may come before its row.
            copy.apply(*batch, expects_rows=history is not partial_snapshot_row)
        assert copy.audit().not_found == 0
        reference = Replay(items_schema())
        for change in changes:
            reference.apply(change)
        worlds = range(len(cuts(len(changes))))
        assert copy.live() == as_tuples(schema, [{"world": w, **row} for w in worlds for row in reference.rows])

    def test_the_worked_example_ends_as_its_design_says(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(*[replace(c, sequence_num=c.sequence_num + 1) for c in worked_example()])
        assert copy.live() == as_tuples(copy.schema, [item(0, "Alice"), item(1, "Bob")])

    def test_an_insert_of_an_existing_key_replaces_the_row(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(insert(1, item(1, "a", "1.00", "x")))
        copy.apply(insert(2, item(1, "b")))
        assert copy.live() == as_tuples(copy.schema, [item(1, "b")])

    def test_a_delete_of_an_unknown_key_does_nothing(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(delete(1, item(7)))
        copy.apply(insert(2, item(8)), delete(3, item(8)))
        assert copy.live() == []
        assert copy.restart().last_applied == 3

    def test_several_files_are_one_batch(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(*[replace(c, sequence_num=c.sequence_num + 1) for c in key_swap()], files=5)
        assert copy.live() == as_tuples(copy.schema, [item(2, "a"), item(1, "b")])

    def test_an_appended_batch_adds_its_rows(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        for first in (1, 11):
            rows = [insert(n, item(n, f"n{n}"), is_snapshot=True) for n in range(first, first + 10)]
            copy.apply(*rows, is_append=True, files=2)
        assert copy.live() == as_tuples(copy.schema, [item(n, f"n{n}") for n in range(1, 21)])
        assert copy.restart().last_applied == 20
        assert copy.apply(insert(1, item(1, "n1")), skip_to=0).was_skipped

    def test_keys_are_compared_byte_by_byte(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path, items_schema(key=("name",)))
        copy.create()
        names = ["a", "A", "a ", "", "é", "e\u0301"]
        copy.apply(*[insert(n, item(n, name)) for n, name in enumerate(names, start=1)])
        copy.apply(*[update(n + 10, item(n, name, "1.00")) for n, name in enumerate(names, start=1)])
        copy.apply(update(30, item(1, "b", "1.00"), before=item(None, "A")))
        expected = [item(n, name, "1.00") for n, name in enumerate(names, start=1) if name != "A"]
        assert copy.live() == as_tuples(copy.schema, [*expected, item(1, "b", "1.00")])

    def test_names_that_need_care_are_kept(self, harness: TargetHarness, tmp_path: Path) -> None:
        names = ["select", "a b", "back`tick", 'dou"ble', "per%cent", "dot.ted", "ключ", "c3", "row", "before"]
        columns = [Column(name=n, type=pa.int64(), source_type="bigint", nullable=n != "select") for n in names]
        schema = TableSchema(table=TableId("My Shop", "order.items%é"), columns=tuple(columns), key=("select",))
        copy = self.copy(harness, tmp_path, schema)
        copy.create()
        row = {n: i for i, n in enumerate(names)}
        copy.apply(insert(1, row), update(2, {**row, "a b": 100, "dot.ted": None}, absent=["dot.ted"]))
        copy.apply(update(3, {**row, "select": 5, "ключ": 200, "a b": None}, before=row, absent=["a b"]))
        assert copy.live() == as_tuples(schema, [{**row, "select": 5, "ключ": 200, "a b": 100}])

    @pytest.mark.parametrize("deletes", ["hard", "soft"])
    def test_random_histories_equal_a_plain_replay(
        self, harness: TargetHarness, tmp_path: Path, deletes: Literal["hard", "soft"]
    ) -> None:
        schema = items_schema(with_world=True)
        for seed in range(self.fuzz_rounds):
            schema = replace(schema, table=TableId("shop", f"fuzz{seed}"))
            copy = self.copy(harness, tmp_path, schema, options=TableOptions(deletes=deletes))
            copy.create()
            reference: dict[int, Replay] = {}
            for batch in random_batches(
                seed, worlds=self.fuzz_worlds, length=self.fuzz_length, batches=self.fuzz_batches
            ):
                for change in batch:
                    world = (change.row or change.before or {})["world"]
                    reference.setdefault(world, Replay(schema)).apply(change)
                before = copy.ledger
                copy.apply(*batch, files=3, expects_rows=True)
                assert copy.apply(*batch, skip_to=before).was_skipped
                assert copy.live() == as_tuples(schema, [row for world in reference.values() for row in world.rows]), (
                    f"seed {seed}"
                )
            assert copy.audit().not_found == 0

    # -- soft deletes

    def test_a_soft_delete_marks_the_row_and_keeps_its_values(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path, options=TableOptions(deletes="soft"))
        copy.create()
        copy.apply(insert(1, item(1, "a", "1.00")), insert(2, item(2, "b")))
        copy.apply(delete(3, item(1)))
        rows = {r.values["id"]: r for r in copy.stored()}
        assert (rows[1].is_deleted, rows[1].values["name"], rows[1].sequence_num) == (True, "a", 3)
        assert not rows[2].is_deleted

    def test_a_row_that_comes_back_is_no_longer_marked(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path, options=TableOptions(deletes="soft"))
        copy.create()
        copy.apply(insert(1, item(1, "a", "1.00", "x")))
        copy.apply(delete(2, item(1)))
        copy.apply(insert(3, item(1, "b")))
        assert [(r.is_deleted, dict(r.values)) for r in copy.stored()] == [(False, item(1, "b"))]
        copy.apply(delete(4, item(1)), insert(5, item(1, "c")))
        assert [(r.is_deleted, dict(r.values)) for r in copy.stored()] == [(False, item(1, "c"))]

    def test_a_row_whose_key_changed_lives_only_under_its_new_key(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path, options=TableOptions(deletes="soft"))
        copy.create()
        copy.apply(insert(1, item(0, "alice")), insert(2, item(1, "bob")))
        copy.apply(update(3, item(2, "alice"), before=item(0)), delete(4, item(1)))
        assert copy.live() == as_tuples(copy.schema, [item(2, "alice")])
        assert {r.values["id"] for r in copy.stored() if r.is_deleted} - {0} == {1}

    def test_a_soft_truncate_marks_every_row(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path, options=TableOptions(deletes="soft"))
        copy.create()
        copy.apply(insert(1, item(1, "a")), insert(2, item(2, "b")))
        copy.ddl(DDLOperation.TRUNCATE_TABLE, 3)
        copy.apply(insert(4, item(2, "c")))
        assert {r.values["id"]: (r.is_deleted, r.values["name"]) for r in copy.stored()} == {
            1: (True, "a"),
            2: (False, "c"),
        }

    # -- tables without a key

    def test_equal_rows_without_a_key_are_counted(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path, items_schema(key=()))
        copy.create()
        copy.apply(
            *[insert(n, item(1, "a")) for n in (1, 2, 3)], insert(4, item(None, None)), insert(5, item(None, None))
        )
        copy.apply(
            delete(6, item(1, "a")),
            update(7, item(2, "b"), before=item(1, "a")),
            delete(8, item(None, None)),
            insert(9, item(2, "b")),
        )
        assert copy.live() == as_tuples(copy.schema, [item(1, "a"), item(2, "b"), item(2, "b"), item(None, None)])

    def test_the_newest_of_equal_rows_goes_first(self, harness: TargetHarness, tmp_path: Path) -> None:
        """Else a snapshot taken anew would delete the last copy when it is complete."""
        copy = self.copy(harness, tmp_path, items_schema(key=()))
        copy.create()
        copy.apply(*[insert(n, item(1, "a")) for n in (1, 2)])
        copy.apply(*[insert(n, item(1, "a"), is_snapshot=True) for n in (10, 11)])
        copy.apply(delete(12, item(1, "a")))
        copy.target.complete_snapshot(copy.table, 10, 13)
        assert copy.live() == as_tuples(copy.schema, [item(1, "a")])

    def test_random_histories_without_a_key_equal_a_plain_replay(self, harness: TargetHarness, tmp_path: Path) -> None:
        rng = random.Random(7)
        schema = items_schema(key=(), with_world=True)
        copy = self.copy(harness, tmp_path, schema)
        copy.create()
        numbers = itertools.count(1)
        content: Counter[tuple[int, int | None]] = Counter()

        def row(value: tuple[int, int | None]) -> dict[str, Any]:
            return item(value[1], None if value[1] is None else f"n{value[1]}", world=value[0])

        for _ in range(self.fuzz_batches):
            batch = []
            for world in [rng.randrange(self.fuzz_worlds) for _ in range(self.fuzz_worlds * 3)]:
                new = (world, rng.choice([None, 1, 2]))
                there = [v for v in content.elements() if v[0] == world] if rng.random() < 0.6 else []
                old = rng.choice(there) if there else None
                kind = rng.choice(["delete", "update"]) if old else "insert"
                content[new] += kind != "delete"
                if old is None:
                    batch.append(insert(next(numbers), row(new)))
                    continue
                content[old] -= 1
                batch.append(
                    delete(next(numbers), row(old))
                    if kind == "delete"
                    else update(next(numbers), row(new), before=row(old))
                )
            copy.apply(*batch, files=2, expects_rows=True)
            assert copy.live() == as_tuples(schema, [row(v) for v in content.elements()])
        assert copy.audit().not_found == 0

    # -- counts

    def test_merges_are_counted_whatever_process_asks(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        assert copy.audit() == Merged()
        copy.apply(*[insert(n, item(n, "a"), is_snapshot=True) for n in (1, 2, 3)], is_append=True)
        changes = [
            insert(4, item(4)),
            update(5, item(1, "b"), absent=["note"]),
            delete(6, item(2)),
            update(7, item(5), before=item(3)),
            insert(8, item(6)),
            delete(9, item(6)),
        ]
        copy.apply(*changes, expects_rows=True)
        assert copy.apply(*changes, skip_to=3, expects_rows=True).was_skipped
        counted = Merged(matched=1, inserted=5, deleted=2)
        # The process ended before anybody asked.
        copy.restart(epoch=2)
        assert copy.audit() == counted
        assert copy.audit() == counted
        copy.target.advance(copy.table, 20)
        copy.restart()
        assert copy.audit() == counted
        copy.table = replace(copy.table, incarnation=2)
        copy.audited_to = None
        copy.create(30)
        assert copy.audit() == Merged()

    def test_rows_that_are_missing_are_counted_and_the_changes_applied(
        self, harness: TargetHarness, tmp_path: Path
    ) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(insert(1, item(1, "a")), insert(2, item(2, "b")))
        changes = [
            update(3, item(11, "new")),
            update(4, item(12, "part"), absent=["note"]),
            delete(5, item(13)),
            update(6, item(24), before=item(14)),
            update(7, item(25, "part"), before=item(15), absent=["note"]),
            delete(8, item(16)),
            insert(9, item(16)),
            # These find what they expect.
            insert(10, item(1, "replaced")),
            insert(11, item(17)),
            delete(12, item(17)),
            update(13, item(28), before=item(2)),
            update(14, item(2), before=item(28)),
            insert(15, item(19), is_snapshot=True),
        ]
        copy.apply(*changes, expects_rows=True)
        copy.restart()
        assert copy.audit().not_found == 6
        expected = [item(1, "replaced"), item(2), item(11, "new"), item(12, "part"), item(16), item(19), item(24)]
        assert copy.live() == as_tuples(copy.schema, [*expected, item(25, "part")])
        copy.apply(update(20, item(1)), delete(21, item(2)), expects_rows=True)
        assert copy.audit().not_found == 6
        copy.apply(delete(22, item(2)))
        assert copy.audit().not_found == 6

    def test_a_row_that_is_marked_as_deleted_is_missing(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path, options=TableOptions(deletes="soft"))
        copy.create()
        copy.apply(*[insert(n, item(n, "a")) for n in (1, 2, 3)])
        copy.apply(delete(4, item(1)), delete(5, item(2)), delete(6, item(3)), expects_rows=True)
        copy.apply(insert(7, item(1)), insert(8, item(4)), delete(9, item(4)), expects_rows=True)
        assert copy.audit() == Merged(matched=4, inserted=4)
        copy.apply(update(10, item(2, "b"), absent=["note"]), delete(11, item(3)), expects_rows=True)
        assert copy.audit().not_found == 2
        assert copy.live() == as_tuples(copy.schema, [item(1), item(2, "b")])

    def test_missing_copies_of_equal_rows_are_counted(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path, items_schema(key=()))
        copy.create()
        copy.apply(*[insert(n, item(1, "a")) for n in (1, 2)], insert(3, item(None)))
        copy.apply(
            *[delete(n, item(1, "a")) for n in (4, 5, 6)],
            update(7, item(2), before=item(9)),
            delete(8, item(None)),
            insert(9, item(3)),
            delete(10, item(3)),
            expects_rows=True,
        )
        assert copy.audit() == Merged(inserted=4, deleted=3, not_found=2)
        assert copy.live() == as_tuples(copy.schema, [item(2)])
        copy.apply(delete(11, item(9)))
        copy.apply(delete(12, item(2)), expects_rows=True)
        copy.restart()
        assert copy.audit() == Merged(inserted=4, deleted=4, not_found=2)

    # -- truncate, drop, snapshots in place

    def test_truncate_leaves_an_empty_table_that_works(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.ddl(DDLOperation.TRUNCATE_TABLE, 1)
        copy.apply(insert(2, item(1, "a")), insert(3, item(2, "b")))
        copy.ddl(DDLOperation.TRUNCATE_TABLE, 4)
        assert harness.exists(copy.table)
        assert copy.stored() == []
        copy.apply(insert(5, item(1, "c")), update(6, item(1, "d"), absent=["note"]))
        assert copy.live() == as_tuples(copy.schema, [item(1, "d")])
        assert copy.restart().last_applied == 6

    def test_a_dropped_table_is_gone_and_can_be_made_again(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(insert(1, item(1, "a")))
        copy.ddl(DDLOperation.DROP_TABLE, 2)
        assert not harness.exists(copy.table)
        copy.ddl(DDLOperation.DROP_TABLE, 2)
        copy.table = replace(copy.table, incarnation=2)
        copy.create(3)
        copy.apply(insert(4, item(2, "b")))
        assert copy.live() == as_tuples(copy.schema, [item(2, "b")])

    @pytest.mark.parametrize("deletes", ["hard", "soft"])
    def test_a_snapshot_in_place_ends_with_what_it_read_and_what_came_since(
        self, harness: TargetHarness, tmp_path: Path, deletes: Literal["hard", "soft"]
    ) -> None:
        copy = self.copy(harness, tmp_path, options=TableOptions(deletes=deletes))
        copy.create()
        copy.apply(*[insert(n, item(n, "old")) for n in (1, 2, 3, 4)])
        copy.apply(
            update(10, item(2, "delivered, unseen")),
            insert(11, item(1, "new"), is_snapshot=True),
            insert(12, item(5, "new"), is_snapshot=True),
        )
        for _ in range(2):
            copy.target.complete_snapshot(copy.table, 10, 13)
        assert copy.live() == as_tuples(copy.schema, [item(1, "new"), item(2, "delivered, unseen"), item(5, "new")])
        assert {r.values["id"] for r in copy.stored() if r.is_deleted} == ({3, 4} if deletes == "soft" else set())
        assert copy.restart().last_applied == 13

    def test_completing_a_snapshot_again_later_changes_nothing(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(insert(1, item(1, "a"), is_snapshot=True))
        copy.target.complete_snapshot(copy.table, 1, 2)
        copy.ledger = 2
        copy.apply(insert(3, item(2, "b")))
        copy.restart()
        copy.target.complete_snapshot(copy.table, 3, 2)
        assert copy.live() == as_tuples(copy.schema, [item(1, "a"), item(2, "b")])

    # -- incarnations, epochs, owners

    def test_a_new_incarnation_begins_with_an_empty_ledger_and_replaces_the_table(
        self, harness: TargetHarness, tmp_path: Path
    ) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(insert(1, item(1, "old")))
        copy.table = replace(copy.table, incarnation=2)
        copy.schema = TableSchema(
            table=ITEMS,
            columns=(
                Column(name="id", type=pa.string(), source_type="text", nullable=False),
                Column(name="more", type=pa.int64(), source_type="bigint"),
            ),
            key=("id",),
        )
        assert copy.claim() == Claim(last_applied=EMPTY_LEDGER)
        copy.create(5)
        copy.apply(insert(6, {"id": "x", "more": 1}))
        assert copy.live() == [("x", 1)]
        assert copy.restart() == Claim(last_applied=6)

    def test_claiming_again_gives_the_same_answer(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(insert(1, item(1, "a")))
        assert copy.claim() == copy.claim() == copy.restart(epoch=2) == Claim(last_applied=1)

    def test_the_ledger_is_read_without_a_claim(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        assert copy.target.read_ledger(copy.table) is None
        copy.create()
        copy.apply(insert(1, item(1, "a")))
        later = replace(copy.table, epoch=7)
        written = Ledger(incarnation=copy.table.incarnation, epoch=copy.table.epoch, last_applied=1)
        for _ in range(2):
            assert copy.target.read_ledger(later) == written
        copy.apply(insert(2, item(2, "b")))
        written = replace(written, last_applied=2)
        assert copy.target.read_ledger(later) == copy.target.read_ledger(replace(later, incarnation=9)) == written
        assert copy.target.read_ledger(replace(later, uuid=STRANGER)) is None
        copy.restart(epoch=7)
        assert copy.target.read_ledger(copy.table) == replace(written, epoch=7)
        copy.table = replace(copy.table, incarnation=copy.table.incarnation + 1)
        copy.create(3)
        made = Ledger(incarnation=copy.table.incarnation, epoch=7, last_applied=3)
        assert copy.target.read_ledger(later) == copy.target.read_ledger(copy.table) == made

    def test_a_writer_of_an_older_epoch_changes_nothing(self, harness: TargetHarness, tmp_path: Path) -> None:
        zombie = self.copy(harness, tmp_path)
        zombie.create()
        zombie.apply(insert(1, item(1, "a")))
        heir = replace(zombie)
        heir.restart(epoch=2)
        heir.apply(insert(2, item(2, "b")))
        for act in (
            lambda: zombie.apply(insert(2, item(2, "zombie")), insert(9, item(9, "zombie")), skip_to=1),
            lambda: zombie.ddl(DDLOperation.TRUNCATE_TABLE, 10),
            lambda: zombie.target.complete_snapshot(zombie.table, 9, 11),
            lambda: zombie.target.advance(zombie.table, 12),
            lambda: zombie.ddl(DDLOperation.DROP_TABLE, 13),
        ):
            with suppress(FencedError):
                act()
            assert heir.live() == as_tuples(heir.schema, [item(1, "a"), item(2, "b")])
        assert heir.claim().last_applied == 2
        heir.apply(insert(3, item(3, "c")))
        assert len(heir.live()) == 3

    def test_an_older_epoch_cannot_claim(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.restart(epoch=3)
        with pytest.raises(FencedError):
            copy.restart(epoch=2)

    def test_a_claim_alone_fences_the_older_epoch(self, harness: TargetHarness, tmp_path: Path) -> None:
        zombie = self.copy(harness, tmp_path)
        zombie.create()
        heir = replace(zombie)
        assert heir.restart(epoch=2).last_applied == 0
        with suppress(FencedError):
            zombie.apply(insert(1, item(1, "zombie")))
        assert heir.claim() == Claim(last_applied=0)
        assert heir.live() == []

    def test_a_table_of_another_replicator_is_refused(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(insert(1, item(1, "a")))
        stranger = replace(copy.table, uuid=STRANGER)
        target = harness.target(uuid=STRANGER)
        assert {p.code for p in target.check([copy.schema])} == {"not_ours"}
        with pytest.raises(TableError) as refused:
            target.claim(stranger)
        assert (refused.value.code, refused.value.table) == ("not_ours", str(ITEMS))
        target.drop(stranger)
        assert copy.live() == as_tuples(copy.schema, [item(1, "a")])
        assert copy.claim().last_applied == 1

    def test_a_table_of_another_replicator_is_replaced_on_demand(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(insert(1, item(1, "a")))
        heir = replace(
            copy, table=replace(copy.table, uuid=STRANGER), target=harness.target(uuid=STRANGER, adopt="replace")
        )
        assert wrong(heir.target.check([copy.schema])) == []
        assert heir.claim() == Claim(last_applied=EMPTY_LEDGER)
        heir.create()
        heir.apply(insert(1, item(2, "b")))
        assert heir.live() == as_tuples(copy.schema, [item(2, "b")])
        assert copy.target.read_ledger(copy.table) is None
        with pytest.raises(TableError) as refused:
            copy.restart(epoch=2)
        assert refused.value.code == "not_ours"

    def test_check_finds_nothing_wrong_with_tables_of_our_own_and_leaves_nothing(
        self, harness: TargetHarness, tmp_path: Path
    ) -> None:
        copy = self.copy(harness, tmp_path)
        assert wrong(copy.target.check([copy.schema])) == []
        assert not harness.exists(copy.table)
        copy.create()
        assert wrong(copy.target.check([copy.schema])) == []

    def test_drop_removes_the_table_and_its_ledger_and_can_be_repeated(
        self, harness: TargetHarness, tmp_path: Path
    ) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(insert(1, item(1, "a")))
        other = self.copy(harness, tmp_path, items_schema(table=TableId("shop", "others")))
        other.create()
        for _ in range(2):
            copy.target.drop(copy.table)
        assert not harness.exists(copy.table)
        assert harness.exists(other.table)
        assert copy.restart() == Claim(last_applied=EMPTY_LEDGER)

    def test_maintenance_changes_no_row(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(*[insert(n, item(n, "a")) for n in range(1, 6)])
        copy.apply(delete(6, item(3)))
        copy.target.maintain(copy.table)
        assert copy.live() == as_tuples(copy.schema, [item(n, "a") for n in (1, 2, 4, 5)])
        assert copy.restart().last_applied == 6

    def test_close_may_be_called_twice(self, harness: TargetHarness) -> None:
        target = harness.target()
        target.close()
        target.close()

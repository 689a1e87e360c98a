"""Random changes rich in key chains, swaps and absent columns, and a plain replay to compare with.

Thousands of small workloads travel as one table whose key is (workload, id), so that one batch on a slow engine tests
them all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from replicator.model.events import DMLOperation, change_schema
from replicator.model.schema import Column, TableId, TableSchema

Key = tuple[int, str]
Values = tuple[str | None, ...]

COLUMNS = ("a", "b", "c")
IDS = ("0", "1", "2", "3", "x", "X", "x ")

SCHEMA = TableSchema(
    table=TableId("fuzz", "workloads"),
    columns=(
        Column(name="workload", type=pa.int64(), source_type="bigint", nullable=False),
        Column(name="id", type=pa.string(), source_type="text", nullable=False),
        *(Column(name=name, type=pa.string(), source_type="text") for name in COLUMNS),
    ),
    key=("workload", "id"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change: `before` the old key of a DELETE or a key change, `key` and `values` the row afterwards, `absent` what it lacks."""

    sequence_num: int
    operation: DMLOperation
    before: Key | None = None
    key: Key | None = None
    values: Values = ()
    absent: tuple[str, ...] = ()
    is_snapshot: bool = False


@dataclass(slots=True)
class Replay:
    """A target that applies one change after the other. `rows` are alive, `graves` the last rows of deleted keys."""

    rows: dict[Key, Values] = field(default_factory=dict)
    graves: dict[Key, Values] = field(default_factory=dict)

    def apply(self, change: Change) -> None:
        """Do what the change says to a plain table."""
        if change.key is None:
            assert change.before is not None
            self._bury(change.before)
            return
        whole = not change.absent or (change.operation is DMLOperation.INSERT and not change.is_snapshot)
        moves = change.operation is DMLOperation.UPDATE and change.before is not None and change.before != change.key
        base = self.rows.get(change.before if moves and change.before else change.key)
        if whole or base is None:
            base = (None,) * len(COLUMNS)
        if moves and change.before:
            self._bury(change.before)
        self.graves.pop(change.key, None)
        self.rows[change.key] = tuple(
            old if name in change.absent and not (whole) else new
            for name, old, new in zip(COLUMNS, base, change.values, strict=True)
        )

    def _bury(self, key: Key) -> None:
        row = self.rows.pop(key, None)
        if row is not None:
            self.graves[key] = row


class Workloads:
    """A stream of changes of many workloads, in rounds, each change under the next of `numbers`.

    With `valid`, each change is one that a database could make, and the replay equals the database at every position
    (`source`). Without, they are arbitrary: changes of rows that are not there, arrivals at keys that are taken.
    """

    def __init__(
        self,
        seed: int,
        workloads: range,
        numbers: Iterator[int],
        *,
        valid: bool,
        absent: bool = True,
        moves: bool = True,
    ) -> None:
        self._random = random.Random(seed)
        self._workloads = workloads
        self._valid = valid
        self._absent = absent
        self._moves = moves
        self._numbers = numbers
        self.source: dict[Key, Values] = {}

    def round(self, most: int) -> list[Change]:
        """Up to `most` further changes of each workload, interleaved."""
        changes: list[Change] = []
        steps = [w for w in self._workloads for _ in range(self._random.randint(0, most))]
        self._random.shuffle(steps)
        for workload in steps:
            changes.extend(self._step(workload))
        return changes

    def _step(self, workload: int) -> Iterator[Change]:
        keys: list[Key] = [(workload, i) for i in IDS]
        live = [k for k in keys if k in self.source]
        free = [k for k in keys if k not in self.source]
        choices: list[Callable[[], Iterator[Change]]] = []
        anything = not self._valid
        if free or anything:
            choices.append(lambda: self._insert(self._random.choice(keys if anything else free)))
        if live or anything:
            some = keys if anything else live
            choices += [lambda: self._update(self._random.choice(some))] * 2
            choices.append(lambda: self._delete(self._random.choice(some)))
            choices.append(lambda: self._snapshot(self._random.choice(some)))
            if self._moves and (free or anything):
                choices += [
                    lambda: self._move(self._random.choice(some), self._random.choice(keys if anything else free))
                ] * 3
        if self._moves and len(live) > 1 and free:
            choices.append(lambda: self._swap(live, free))
        yield from self._random.choice(choices)()

    def _insert(self, key: Key) -> Iterator[Change]:
        yield self._write(DMLOperation.INSERT, None, key, self._values(), ())

    def _update(self, key: Key) -> Iterator[Change]:
        before = key if self._random.random() < 0.3 else None
        yield self._write(DMLOperation.UPDATE, before, key, self._values(), self._lacking())

    def _delete(self, key: Key) -> Iterator[Change]:
        self.source.pop(key, None)
        yield Change(sequence_num=self._number(), operation=DMLOperation.DELETE, before=key)

    def _move(self, old: Key, new: Key) -> Iterator[Change]:
        yield self._write(DMLOperation.UPDATE, old, new, self._values(), self._lacking())

    def _swap(self, live: Sequence[Key], free: Sequence[Key]) -> Iterator[Change]:
        one, two = self._random.sample(list(live), 2)
        spare = self._random.choice(list(free))
        yield from self._move(one, spare)
        yield from self._move(two, one)
        yield from self._move(spare, two)

    def _snapshot(self, key: Key) -> Iterator[Change]:
        """A row read from the table: what it is, perhaps only in part."""
        values = self.source.get(key) if self._valid else self._values()
        assert values is not None
        yield self._write(DMLOperation.INSERT, None, key, values, self._lacking(), is_snapshot=True)

    def _write(
        self,
        operation: DMLOperation,
        old: Key | None,
        new: Key,
        values: Values,
        absent: tuple[str, ...],
        *,
        is_snapshot: bool = False,
    ) -> Change:
        base = self.source.get(old or new, (None,) * len(COLUMNS))
        if old is not None:
            self.source.pop(old, None)
        self.source[new] = tuple(o if n in absent else v for n, o, v in zip(COLUMNS, base, values, strict=True))
        sent = tuple(None if n in absent else v for n, v in zip(COLUMNS, values, strict=True))
        return Change(
            sequence_num=self._number(),
            operation=operation,
            before=old,
            key=new,
            values=sent,
            absent=absent,
            is_snapshot=is_snapshot,
        )

    def _values(self) -> Values:
        return tuple(None if self._random.random() < 0.2 else f"{n}{self._random.randrange(1000)}" for n in COLUMNS)

    def _lacking(self) -> tuple[str, ...]:
        if not self._absent or self._random.random() < 0.3:
            return ()
        return tuple(n for n in COLUMNS if self._random.random() < 0.6)

    def _number(self) -> int:
        return next(self._numbers)


def change_table(changes: Sequence[Change]) -> pa.Table:
    """The changes in the journal's layout."""
    return pa.Table.from_pylist(
        [
            {
                "_sequence_num": c.sequence_num,
                "_operation": c.operation.value,
                "_is_snapshot": c.is_snapshot,
                "_source_timestamp": None,
                "_transaction_id": None,
                "_absent": list(c.absent) or None,
                "before": {"workload": c.before[0], "id": c.before[1]} if c.before else None,
                "row": {"workload": c.key[0], "id": c.key[1], **dict(zip(COLUMNS, c.values, strict=True))}
                if c.key
                else None,
            }
            for c in changes
        ],
        schema=change_schema(SCHEMA),
    )


def worked_example(first: int) -> list[list[Change]]:
    """The example of CDAP's replication design, once for each of the 64 ways to cut its seven changes into batches.

    `CREATE; INSERT 0 alice; 0→1; 1→2; DELETE 2; INSERT 0 Alice, 1 blob; UPDATE 1 Bob`, of which (0, Alice) and (1,
    Bob) are left. Numbers stand for the order alone: each round is to be renumbered.

    Args:
        first: Number of the first workload.

    Returns:
        Seven rounds; the workload that is not cut after its n-th change continues in the same round.
    """
    rounds: list[list[Change]] = [[] for _ in range(7)]
    for cuts in range(64):
        w = first + cuts
        steps: list[tuple[DMLOperation, str | None, str | None, str | None]] = [
            (DMLOperation.INSERT, None, "0", "alice"),
            (DMLOperation.UPDATE, "0", "1", "alice"),
            (DMLOperation.UPDATE, "1", "2", "alice"),
            (DMLOperation.DELETE, "2", None, None),
            (DMLOperation.INSERT, None, "0", "Alice"),
            (DMLOperation.INSERT, None, "1", "blob"),
            (DMLOperation.UPDATE, None, "1", "Bob"),
        ]
        round_ = 0
        for number, (operation, old, new, name) in enumerate(steps):
            rounds[round_].append(
                Change(
                    sequence_num=0,
                    operation=operation,
                    before=(w, old) if old is not None else None,
                    key=(w, new) if new is not None else None,
                    values=(name, None, None) if new is not None else (),
                )
            )
            round_ += cuts >> number & 1
    return rounds


def renumbered(changes: Sequence[Change], numbers: Iterator[int]) -> list[Change]:
    """The same changes in the same order under the next of `numbers`."""
    return [replace(change, sequence_num=next(numbers)) for change in changes]

"""Histories of changes that targets apply, cut into batches in every way: worked examples and random ones."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from replicator.model.schema import TableSchema
from replicator_testing.batches import Row, RowChange, delete, insert, update
from replicator_testing.target_harness import item, items_schema


def cuts(count: int) -> list[list[int]]:
    """Return every way to cut `count` changes into batches: for each way, the number of the batch that each change falls into."""
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
    """The log had a row without one column; the snapshot's chunk brings that column."""
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
    """Return the same change of a row of another world."""
    return replace(
        change,
        sequence_num=sequence_num,
        before=None if change.before is None else {"world": world, **change.before},
        row=None if change.row is None else {"world": world, **change.row},
    )


def random_history(rng: random.Random, length: int) -> list[RowChange]:
    """Return a history that a source could have: keys move, chain and swap; columns stay absent; rows are inserted again."""
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


def random_rows(seed: int, *, length: int, batches: int) -> list[list[RowChange]]:
    """Return random changes of a table without a key, with few values, some of rows that are not there, cut into batches."""
    rng, numbers = random.Random(seed), itertools.count(1)

    def row() -> dict[str, Any]:
        return item(rng.choice([None, 1, 2]), rng.choice([None, "a"]))

    def change() -> RowChange:
        match rng.choice(["insert", "insert", "update", "delete"]):
            case "insert":
                return insert(next(numbers), row())
            case "delete":
                return delete(next(numbers), row())
        return update(next(numbers), row(), before=row(), absent=rng.choice([[], [], ["name"]]))

    return [[change() for _ in range(length)] for _ in range(batches)]


def random_batches(seed: int, *, worlds: int, length: int, batches: int) -> list[list[RowChange]]:
    """Return random histories, one per world, cut at random into batches."""
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

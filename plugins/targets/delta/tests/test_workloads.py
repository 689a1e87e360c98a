"""Real merges against a plain replay."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from replicator.model.events import DMLOperation
from replicator.plugins.target import TableOptions
from replicator_testbed.workloads.changes import (
    SCHEMA,
    Change,
    Replay,
    Workloads,
    change_table,
    renumbered,
    worked_example,
)

if TYPE_CHECKING:
    from plugins.targets.delta.tests.conftest import Lake

EXAMPLES = range(2000, 2064)


def scenarios() -> list[list[Change]]:
    """Rounds of CDAP's acceptance scenarios A2 to A4."""

    def write(w: int, old: str | None, new: str, name: str, operation: DMLOperation = DMLOperation.UPDATE) -> Change:
        return Change(
            sequence_num=0,
            operation=operation,
            before=(w, old) if old else None,
            key=(w, new),
            values=(name, None, None),
        )

    def insert(w: int, new: str, name: str) -> Change:
        return write(w, None, new, name, DMLOperation.INSERT)

    first = [
        insert(3000, "0", "alice"),
        insert(3001, "1", "a"),
        insert(3001, "2", "b"),
        insert(3002, "0", "alice"),
        insert(3003, "0", "alice"),
    ]
    second = [
        write(3000, "0", "1", "alice"), write(3000, "1", "2", "alice"),
        write(3001, "1", "99", "a"), write(3001, "2", "1", "b"), write(3001, "99", "2", "a"),
        write(3002, "0", "5", "alice"), insert(3002, "0", "bob"), write(3002, None, "0", "bob2"),
        write(3003, "0", "1", "alice"), Change(sequence_num=0, operation=DMLOperation.DELETE, before=(3003, "1")),
    ]  # fmt: skip
    return [first, second, [], [], [], [], []]


@pytest.mark.matrix
@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_merged_batches_equal_a_plain_replay(new_lake: Callable[..., Lake], deletes: str) -> None:
    lake = new_lake(SCHEMA, TableOptions(deletes=deletes))
    numbers = itertools.count(lake.next)
    possible = Workloads(17, range(500), numbers, valid=True)
    arbitrary = Workloads(18, range(500, 1000), numbers, valid=False)
    replay = Replay()
    rounds = list(zip(worked_example(EXAMPLES.start), scenarios(), strict=True))
    for position, (example, scenario) in enumerate(rounds):
        changes = renumbered(example + scenario, numbers)
        if position in {0, 2, 4}:
            changes += possible.round(8) + arbitrary.round(8)
        for change in changes:
            replay.apply(change)
        lake.target.apply_batch(lake.table, lake.batch_of(change_table(changes)))
    wanted: set[tuple[Any, ...]] = {(*key, *values, False) for key, values in replay.rows.items()}
    assert {(*key, *values, False) for key, values in replay.rows.items() if key[0] >= 2000} == {
        *(row for w in EXAMPLES for row in ((w, "0", "Alice", None, None, False), (w, "1", "Bob", None, None, False))),
        (3000, "2", "alice", None, None, False),
        (3001, "1", "b", None, None, False), (3001, "2", "a", None, None, False),
        (3002, "5", "alice", None, None, False), (3002, "0", "bob2", None, None, False),
    }  # fmt: skip
    if deletes == "hard":
        assert {(*row, False) for row in lake.rows()} == wanted
    else:
        wanted |= {(*key, *values, True) for key, values in replay.graves.items()}
        assert lake.rows("workload", "id", "a", "b", "c", "_is_deleted") == wanted

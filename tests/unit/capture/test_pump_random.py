"""Random work on the source, with transactions that become visible late and errors that end the capture, while tables are copied.

Seeded.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from replicator.model.errors import SourceUnavailableError
from replicator.state.records import RequestKind, Stage
from replicator_testing.memory import LockedError, MemorySource, MemoryTransaction

if TYPE_CHECKING:
    from tests.unit.capture.conftest import Bench

CALLS = ("mark", "acknowledge", "pull", "read_chunk", "read_chunk.after", "read_whole.batch", "visibility", "describe")


class Work:
    """Changes one keyed table and one without a key."""

    def __init__(self, bench: Bench, rng: random.Random) -> None:
        self.bench, self.rng = bench, rng
        self.keyed, self.bag = bench.create(bench.schema("t"), toasted=["b"]), bench.create(bench.schema("bag", key=()))
        self.count = 0
        bench.fill(self.keyed, 12)
        bench.fill(self.bag, 12)

    def transaction(self) -> None:
        transaction = self.bench.database.begin()
        for _ in range(self.rng.randint(1, 4)):
            try:
                self.change(transaction)
            except (LockedError, ValueError, KeyError):
                continue  # Somebody else holds the row, or it is not there: the work continues without this change.
        transaction.commit(visible=self.rng.random() < 0.5)
        hidden = list(self.bench.database.invisible())
        self.rng.shuffle(hidden)
        for id_ in hidden[: self.rng.randint(0, 2)]:
            self.bench.database.make_visible(id_)

    def change(self, transaction: MemoryTransaction) -> None:
        rng, self.count = self.rng, self.count + 1
        key, value = rng.randint(1, 14), f"v{self.count}"
        match rng.choice(["insert", "update", "partial", "move", "delete", "bag", "bag delete", "bag update"]):
            case "insert":
                transaction.insert(self.keyed, {"id": key, "a": value, "b": value})
            case "update":
                transaction.update(self.keyed, (key,), {"a": value, "b": value})
            case "partial":
                transaction.update(self.keyed, (key,), {"a": value})
            case "move":
                transaction.update(self.keyed, (key,), {"id": rng.randint(1, 14), "a": value})
            case "delete":
                transaction.delete(self.keyed, (key,))
            case "bag":
                transaction.insert(self.bag, {"id": key, "a": "same", "b": None})
            case "bag delete":
                transaction.delete(self.bag, {"id": key, "a": "same", "b": None})
            case _:
                transaction.update(self.bag, {"id": key, "a": "same", "b": None}, {"a": value})

    def settle(self) -> None:
        for id_ in list(self.bench.database.invisible()):
            self.bench.database.make_visible(id_)


def _disturbed(work: Work, call: str, actions: Sequence[Callable[[], None] | None]) -> Callable[[MemorySource], None]:
    """Transactions amid the first reads and before the call, which then fails."""

    def prepare(source: MemorySource) -> None:
        source.faults.script("read_chunk", *[work.transaction] * 3)
        source.faults.script(call, *actions, SourceUnavailableError("away", code="source_unavailable"))

    return prepare


def _has_come(counts: Mapping[str, int], call: str, after: int) -> bool:
    """Whether the call has failed, or so many pulls went by that it does not come."""
    return counts[call] > after or (call != "pull" and counts["pull"] > 60)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(s, marks=pytest.mark.matrix) for s in range(4, 200))])
def test_what_is_sealed_folds_to_the_source(bench: Bench, seed: int) -> None:
    rng = random.Random(seed)
    bench.settings = replace(
        bench.settings,
        seal_rows=rng.choice([1, 5, 1000]),
        pull_rows=rng.choice([1, 3, 1000]),
        chunk_retries=rng.choice([0, 3]),
        pull_wait_s=0.002,
    )
    work = Work(bench, rng)
    for round_ in range(6):
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
        capture.until(
            lambda: (
                bench.is_at(Stage.STREAMING)()
                and bench.holds(work.keyed)()
                and bench.holds(work.bag)()
                and not bench.store.requests.open("test")
            )
        )

"""Random journals, applied by processes that are killed between any two steps.

Every copy ends equal, and shows nothing that was never there.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from replicator.apply import Apply, BatchLimits
from replicator.apply import table as apply_table
from replicator.journal import JournalReader
from replicator.model.errors import FencedError, TargetUnavailableError
from replicator.model.processes.reports import Report
from replicator.model.schema import TableId
from replicator.state.records import AppliedRecord, TargetCopy
from replicator.state.store import StateStore
from replicator_testbed.journals.scripted import START, ScriptedJournal
from replicator_testbed.yielding import yields_at_random
from replicator_testing.defaults import apply_settings, target_context
from replicator_testing.memory import MemoryTarget, MemoryTargetConfig, MemoryWarehouse

NAME = "random"
ACTIONS = ("claim", "apply_batch", "apply_ddl", "complete_snapshot", "advance", "audit")


class Killed(BaseException):
    """The process ends here."""


class Soon:
    """Tries again at once, without end."""

    def delay(self, now: float) -> float | None:
        return 0.0

    def delay_at_limit(self) -> float:
        return 0.0


class Control:
    """Lets the journal grow whenever apply waits, and stops when everything is applied."""

    def __init__(self, world: World, commits: int) -> None:
        self._world = world
        self._commits = commits
        self._progress = threading.Event()

    def should_stop(self) -> bool:
        return self._commits <= 0 and self._world.is_applied()

    def wait(self, timeout_s: float) -> None:
        if self._commits > 0:
            self._commits -= 1
            self._world.journal.commit()
            return
        if timeout_s > 0:
            self._progress.wait(0.01)
            self._progress.clear()

    def announce(self, event: str, **fields: Any) -> None:
        self._progress.set()

    def report(self, report: Report) -> None:
        self._world.check_freshness()


class World:
    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.rng = rng
        self.store = StateStore(f"sqlite:///{folder}/state.db")
        uri = (folder / "journal").as_uri()
        self.uuid = self.store.create_replicator(NAME, "name: random", uri).uuid
        self.journal = ScriptedJournal(self.store, NAME, uri, rng)
        self.warehouse_name = str(folder)
        self.warehouse = MemoryWarehouse.open(self.warehouse_name)
        self.epoch = 0
        self.next_epoch()

    def next_epoch(self) -> int:
        lease = self.store.leases.acquire(NAME, "host:1:boot", 60)
        assert lease is not None
        self.epoch = lease.epoch
        self.journal.open(lease.epoch)
        return lease.epoch

    def apply(self) -> tuple[Apply, MemoryTarget]:
        rng = self.rng
        context = target_context(replicator=NAME, uuid=self.uuid, epoch=self.epoch)
        target = MemoryTarget(MemoryTargetConfig(database=self.warehouse_name), context)
        settings = apply_settings(
            tables_parallel=rng.randint(1, 2),
            batch=BatchLimits(rows=rng.choice([1, 3, 10, 1000]), bytes=1 << 30),
            feed_items=rng.choice([1, 2, 3, 5, 1000]),
            maintain_every=3,
            maintain_idle=1,
            patience=Soon,
        )
        reader = JournalReader(self.store, NAME)
        return Apply(target, self.store, reader, name=NAME, uuid=self.uuid, epoch=self.epoch, settings=settings), target

    def is_applied(self) -> bool:
        applied = self.store.applied(NAME)
        return all(
            t in applied and applied[t].last_applied >= n for t, n in self.store.journal.feed_tables(NAME).items()
        )

    def check_freshness(self) -> None:
        before = self.store.applied(NAME)
        reached = self.store.reached.of(NAME)  # before the records: apply continues meanwhile
        for table, record in self.store.applied(NAME).items():
            if (time := reached.get(str(table))) is None:
                continue
            if table not in before or before[table].incarnation != record.incarnation:
                # A new incarnation began in between, and begins with nothing applied.
                continue
            covered = (time - START) / timedelta(seconds=1)
            left = self.store.journal.feed(NAME, table, record.last_applied, 1)
            for item in left:
                first = item.first if hasattr(item, "first") else item.sequence_num
                assert first >= covered, f"{table} is called fresh up to {covered} and lacks {first}"

    def check_history(self) -> None:
        for table in self.journal.tables:
            self.journal.check(table, self.warehouse.history(table))

    def check_end(self) -> None:
        self.check_history()
        applied = self.store.applied(NAME)
        for table, scripted in self.journal.tables.items():
            assert self.warehouse.state(table) == scripted.state_at(1 << 60), str(table)
            assert applied[table].last_applied == self.warehouse.tables[table].ledger
            assert self.store.reached.of(NAME)[str(table)] is not None
            assert not applied[table].has_failed
            assert (applied[table].alarms, applied[table].merged.not_found) == ((), 0)
            assert (applied[table].copy, applied[table].merged) == (
                TargetCopy.WHOLE,
                self.warehouse.tables[table].merged,
            )


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[[int], World]]:
    worlds: list[World] = []

    def make(seed: int) -> World:
        folder = tmp_path / str(seed)
        folder.mkdir()
        worlds.append(World(folder, random.Random(seed)))
        return worlds[-1]

    yield make
    for world in worlds:
        world.store.close()


def _gone(table: str | None = None) -> TargetUnavailableError:
    return TargetUnavailableError("gone", code="target_unavailable", table=table)


def _plant_faults(world: World, target: MemoryTarget, monkeypatch: pytest.MonkeyPatch, rate: float) -> None:
    rng = world.rng

    def crash_point(_: str) -> None:
        if rng.random() < rate:
            raise Killed

    monkeypatch.setattr(apply_table, "crash_point", crash_point)
    for action in ACTIONS:
        for call in ("", ".after"):
            actions = [
                None if rng.random() > rate else rng.choice([Killed(), _gone(), _gone("of one of them")])
                for _ in range(50)
            ]
            target.faults.script(f"{action}{call}", *actions)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(15))
def test_killed_anywhere_every_copy_ends_equal(
    make_world: Callable[[int], World], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """One thread does everything, so that a seed is one schedule."""
    world = make_world(seed)
    for _ in range(14):
        world.next_epoch()
        apply, target = world.apply()
        _plant_faults(world, target, monkeypatch, rate=0.1)
        with suppress(Killed, TargetUnavailableError):
            _run_alone(world, apply, commits=world.rng.randint(0, 4))
        world.check_history()
    world.journal.finish()
    apply, _ = world.apply()
    monkeypatch.undo()
    _run_alone(world, apply, commits=0)
    world.check_end()
    apply._poll()
    assert all(p.last_applied == p.highest and p.is_complete for p in apply.progress().values())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(300, 304))
def test_threads_next_to_each_other_end_equal_too(
    make_world: Callable[[int], World], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    world = make_world(seed)
    for life in range(6):
        world.next_epoch()
        apply, target = world.apply()
        _plant_faults(world, target, monkeypatch, rate=0.1 if life < 5 else 0)
        with suppress(Killed, TargetUnavailableError), yields_at_random(seed):
            apply.run(Control(world, commits=4))
        world.check_history()
    world.journal.finish()
    apply, _ = world.apply()
    monkeypatch.undo()
    apply.run(Control(world, commits=0))
    world.check_end()


def _run_alone(world: World, apply: Apply, commits: int) -> None:
    """What `Apply.run` does, in one thread: looks, turns and commits of the journal in a random order."""
    control = Control(world, commits)
    apply._remember()
    while not control.should_stop():
        if world.rng.random() < 0.3:
            control.wait(0)
        if world.rng.random() < 0.5:
            apply._poll()
            apply._report()
        turn = apply._schedule.take(0.0)
        if turn is not None:
            apply._take_turn(turn, control)
            apply._end_turn(turn)
        world.check_freshness()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(100, 106))
def test_the_rows_do_not_depend_on_how_batches_are_cut(make_world: Callable[[int], World], seed: int) -> None:
    world = make_world(seed)
    for _ in range(12):
        world.journal.commit()
    world.journal.finish()
    for _ in range(2):
        world.warehouse.tables.clear()
        world.store.put_applied(NAME, world.epoch, [_nothing(t) for t in world.journal.tables])
        apply, _ = world.apply()
        apply.run(Control(world, commits=0))
        world.check_end()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(200, 206))
def test_a_process_that_slept_through_its_lease_changes_nothing(make_world: Callable[[int], World], seed: int) -> None:
    world = make_world(seed)
    for _ in range(8):
        world.journal.commit()
    world.journal.finish()
    sleeper, target = world.apply()

    def take_over() -> None:
        world.next_epoch()
        for _ in range(3):
            world.journal.commit()
        world.journal.finish()
        heir, _ = world.apply()
        heir.run(Control(world, commits=0))
        world.check_end()

    target.faults.script("apply_batch", *[None] * world.rng.randint(0, 3), take_over)
    with pytest.raises(FencedError):
        sleeper.run(Control(world, commits=0))
    world.check_end()


def _nothing(table: TableId) -> Any:
    return AppliedRecord(table=table, incarnation=0)

"""What `delete` says that it removed and kept, whether it does that itself or the replicator's worker does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicator.model.deletion import Deletion, DeletionRequest
from replicator.model.schema import TableId
from replicator.plugins.registry import Registry
from replicator.runtime.home import Home
from replicator.runtime.supervisor import End, RunOutcome
from replicator.service import lifecycle
from replicator.state import holder_id, table_life
from replicator.state.records import Desired, Preparation, RequestKind
from replicator.state.store import StateStore
from replicator_testbed.present import present
from replicator_testing.memory import MemoryDatabase, MemorySource, MemoryTarget
from replicator_testing.memory.database import Slot
from replicator_testing.waiting import wait_until

NAME = "shop"
REGISTRY = Registry.of(sources=[MemorySource], targets=[MemoryTarget])


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(folder=tmp_path, state_url=f"sqlite:///{tmp_path / 'state.db'}")
    home.ensure()
    return home


@pytest.fixture
def store(home: Home, tmp_path: Path) -> Iterator[StateStore]:
    """With a replicator of two tables that has a slot in its source."""
    store, database = StateStore(home.state_url), str(tmp_path)
    document = f"name: {NAME}\nsource: {{type: memory, database: {database}}}\ntarget: {{type: memory, database: a}}\n"
    store.create_replicator(NAME, document, home.journal_uri(NAME))
    lease = present(store.leases.acquire(NAME, holder_id(), 60))
    store.put_tables(NAME, lease.epoch, [table_life.added(TableId("public", name)) for name in ("log", "orders")])
    store.set_preparation(lease, Preparation.READY)
    store.leases.release(lease)
    MemoryDatabase.open(database).slots[NAME] = Slot(confirmed=0)
    yield store
    store.close()


def expected(home: Home, *, drop_target: bool) -> Deletion:
    tables = ("2 target tables (public.log, public.orders)",)
    removed = ["its slot in the source", f"journal {home.journal_uri(NAME)}", "its state and logs"]
    if drop_target:
        removed[1:1] = tables
    return Deletion(removed=tuple(removed), kept=() if drop_target else tables)


@pytest.mark.parametrize("drop_target", [False, True])
def test_a_replicator_without_a_worker_is_deleted_by_the_command(
    store: StateStore, home: Home, drop_target: bool
) -> None:
    done = lifecycle.delete(store, home, REGISTRY, NAME, drop_target=drop_target, force=False)
    assert done == expected(home, drop_target=drop_target)
    assert store.replicator(NAME) is None


def test_the_command_says_what_the_worker_removed_and_kept(store: StateStore, home: Home) -> None:
    record = present(store.replicator(NAME))
    lease = present(store.leases.acquire(NAME, "elsewhere:1:1", 3600))
    ended: list[RunOutcome] = []

    def work() -> None:
        wait_until(lambda: present(store.replicator(NAME)).desired is Desired.DELETED, "it is to be deleted")
        ended.append(lifecycle.supervise(store, home, REGISTRY, record, threading.Event(), lease=lease))

    worker = threading.Thread(target=work)
    worker.start()
    done = lifecycle.delete(store, home, REGISTRY, NAME, drop_target=False, force=False)
    worker.join()
    assert done == expected(home, drop_target=False)
    assert [outcome.end for outcome in ended] == [End.DELETED]
    assert store.replicator(NAME) is None


def test_a_worker_does_not_wait_for_a_command_that_was_killed(
    store: StateStore, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "_ANSWER_S", 0.0)
    asked = DeletionRequest(is_awaited=True)
    store.requests.add(NAME, RequestKind.DELETE, asked.model_dump(mode="json"))
    store.set_desired(NAME, Desired.DELETED)
    outcome = lifecycle.supervise(store, home, REGISTRY, present(store.replicator(NAME)), threading.Event())
    assert outcome.end is End.DELETED
    assert store.replicator(NAME) is None

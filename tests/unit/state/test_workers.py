"""What workers say of themselves, and for how long it counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicator.state import holder_id
from replicator.state.store import StateStore
from replicator.state.workers import WorkerRefusal

if TYPE_CHECKING:
    from tests.unit.state.conftest import FakeClock

ELSEWHERE = "elsewhere:1:boot/1/1"
REFUSED = {"shop": WorkerRefusal(code="journal_missing", message="not there")}


def announce(store: StateStore, holder: str, *, is_draining: bool = False) -> None:
    store.workers.announce(holder, capacity=7, is_draining=is_draining, version="0.1.0", refusals=REFUSED)


def test_the_last_word_counts_and_the_first_one_dates_the_start(store: StateStore, clock: FakeClock) -> None:
    began = clock.time
    announce(store, ELSEWHERE)
    clock.advance(30)
    announce(store, ELSEWHERE, is_draining=True)
    (worker,) = store.workers.scene().workers
    assert (worker.started_at, worker.seen_at, worker.is_draining) == (began, clock.time, True)
    assert (worker.capacity, worker.refusals) == (7, REFUSED)


def test_a_worker_that_is_silent_or_dead_does_not_count(store: StateStore, clock: FakeClock) -> None:
    announce(store, ELSEWHERE)
    announce(store, holder_id())
    announce(store, holder_id().rpartition("/")[0] + "/1")  # its pid belongs to a later process
    scene = store.workers.scene()
    heard = [worker.holder for worker in scene.workers if scene.is_heard(worker, 6)]
    assert sorted(heard) == sorted([ELSEWHERE, holder_id()])
    clock.advance(7)
    scene = store.workers.scene()
    assert not any(scene.is_heard(worker, 6) for worker in scene.workers)


def test_workers_are_forgotten_when_they_end_or_after_an_hour(store: StateStore, clock: FakeClock) -> None:
    announce(store, ELSEWHERE)
    clock.advance(3601)
    announce(store, holder_id())
    assert [worker.holder for worker in store.workers.scene().workers] == [holder_id()]
    store.workers.remove(holder_id())
    assert store.workers.scene().workers == ()


def test_a_lease_that_is_over_has_no_holder(store: StateStore, clock: FakeClock) -> None:
    store.create_replicator("shop", "", "/j")
    store.leases.acquire("shop", ELSEWHERE, 10)
    assert store.workers.scene().holders == {"shop": ELSEWHERE}
    clock.advance(11)
    assert store.workers.scene().holders == {}

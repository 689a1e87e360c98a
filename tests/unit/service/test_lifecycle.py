"""Who holds the lease of a replicator: `delete` for as long as it takes, one worker at a time, and how that is said."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from replicator.model.deletion import Deletion
from replicator.model.errors import ConfigError, FencedError, StateUnavailableError
from replicator.model.schema import TableId
from replicator.plugins.registry import Registry
from replicator.runtime import leases
from replicator.runtime.home import Home
from replicator.runtime.supervisor import End
from replicator.service import lifecycle
from replicator.state import table_life
from replicator.state.records import Lease, RequestKind
from replicator.state.store import StateStore
from replicator_testing.memory import MemorySource, MemoryTarget
from replicator_testing.waiting import PATIENCE

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def test_the_lease_is_renewed_while_a_replicator_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = StateStore(f"sqlite:///{tmp_path / 'state.db'}")
    store.create_replicator("shop", "name: shop", "/j")
    renew, renewals = store.leases.renew, threading.Semaphore(0)

    def count(lease: Lease, ttl_s: float) -> Lease:
        renewed = renew(lease, ttl_s)
        renewals.release()
        return renewed

    def tear_down(*_: object) -> Deletion:
        assert all(renewals.acquire(timeout=30 * PATIENCE) for _ in range(2))
        return Deletion(notes=("left behind",))

    monkeypatch.setattr(leases, "RENEW_S", 0.01)
    monkeypatch.setattr(store.leases, "renew", count)
    monkeypatch.setattr(lifecycle, "tear_down", tear_down)
    home = Home.from_environment()
    done = lifecycle.delete(store, home, Registry.discover(), "shop", drop_target=False, force=False)
    store.close()
    assert done.notes == ("left behind",)


def test_no_log_of_a_deleted_replicator_stays(tmp_path: Path) -> None:
    store = StateStore(f"sqlite:///{tmp_path / 'state.db'}")
    home = Home(folder=tmp_path, state_url="")
    home.ensure()
    store.create_replicator("shop", "name: shop", home.journal_uri("shop"))
    for name in ("shop.jsonl", "shop.jsonl.1", "shop.spark.log", "shop2.spark.log"):
        (home.logs / name).touch()
    # The stored configuration names no source and no target.
    done = lifecycle.delete(store, home, Registry.discover(), "shop", drop_target=False, force=True)
    store.close()
    assert [log.name for log in home.logs.iterdir()] == ["shop2.spark.log"]
    assert len(done.notes) == 1


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_replicator_that_its_worker_deletes_meanwhile_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_made_again: bool
) -> None:
    store = StateStore(f"sqlite:///{tmp_path / 'state.db'}")
    record = store.create_replicator("shop", "name: shop", "/j")
    assert store.leases.acquire("shop", "elsewhere:1:1", 3600)

    def delete_meanwhile(_: float) -> None:
        store.delete_replicator("shop", record.uuid)
        if is_made_again:
            store.create_replicator("shop", "name: shop", "/j")

    monkeypatch.setattr(time, "sleep", delete_meanwhile)
    home = Home.from_environment()
    done = lifecycle.delete(store, home, Registry.discover(), "shop", drop_target=False, force=False)
    assert done == Deletion()
    assert (store.replicator("shop") is not None) is is_made_again
    assert store.leases.current("shop") is None
    store.close()


def test_a_second_worker_is_told_which_process_of_which_host_runs_it_and_since_when(tmp_path: Path) -> None:
    store = StateStore(f"sqlite:///{tmp_path / 'state.db'}", clock=lambda: NOW)
    record = store.create_replicator("shop", "name: shop", "/j")
    lease = store.leases.acquire("shop", "shop-1:4711:0b5e/4026531836/99", 3600)
    assert lease is not None
    told = []
    for begun in (lambda: None, lambda: store.runs.start(lease)):
        begun()
        with pytest.raises(ConfigError) as refused:
            lifecycle.supervise(store, Home.from_environment(), Registry.discover(), record, threading.Event())
        told.append((refused.value.code, refused.value.message))
    store.close()
    since = f"{NOW.astimezone():%Y-%m-%d %H:%M:%S %Z}"
    assert told == [
        ("already_running", "shop is already run by process 4711 on host shop-1."),
        ("already_running", f"shop is already run by process 4711 on host shop-1 since {since}."),
    ]


@pytest.mark.parametrize(
    ("asked", "action"),
    [
        ("orders", "Did you mean public.orders? Its tables: public.log, public.orders."),
        ("log", "Did you mean public.log? Its tables: public.log, public.orders."),
        ("public.ordrs", "Did you mean public.orders? Its tables: public.log, public.orders."),
        ("zzz", "Its tables: public.log, public.orders."),
    ],
)
def test_a_table_that_is_not_replicated_is_answered_with_the_one_that_was_meant(
    tmp_path: Path, asked: str, action: str
) -> None:
    store = StateStore(f"sqlite:///{tmp_path / 'state.db'}")
    store.create_replicator("shop", "name: shop", "/j")
    lease = store.leases.acquire("shop", "host:1:boot", 60)
    assert lease is not None
    tables = [table_life.added(TableId("public", name)) for name in ("orders", "log")]
    store.put_tables("shop", lease.epoch, tables)
    with pytest.raises(ConfigError) as refused:
        lifecycle.snapshot(store, "shop", [asked])
    store.close()
    assert (refused.value.code, refused.value.action) == ("unknown_table", action)


def test_a_state_store_that_takes_the_lease_and_then_nothing_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a disk that has room for a few pages only."""
    store, stop = StateStore(f"sqlite:///{tmp_path / 'state.db'}"), threading.Event()
    document = "name: shop\nsource: {type: memory, database: a}\ntarget: {type: memory, database: a}\n"
    record = store.create_replicator("shop", f"{document}retry: {{backoff_initial: 10ms}}\n", "/j")
    begin, tries = store.runs.start, list[int]()

    def start_run(lease: Lease) -> int:
        tries.append(lease.epoch)
        if len(tries) < 3:
            raise StateUnavailableError("database or disk is full", code="state_disk_full")
        stop.set()
        return begin(lease)

    monkeypatch.setattr(store.runs, "start", start_run)
    registry = Registry.of(sources=[MemorySource], targets=[MemoryTarget])
    home = Home(folder=tmp_path, state_url=f"sqlite:///{tmp_path / 'state.db'}")
    outcome = lifecycle.supervise(store, home, registry, record, stop)
    store.close()
    assert (outcome.end, len(tries)) == (End.STOPPED, 3)


def test_a_worker_that_was_asleep_ends_however_it_learns_that_its_lease_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may notice that its time is over before the store tells it who has the lease now."""
    at, asleep = [NOW], [True]
    store, stop = StateStore(f"sqlite:///{tmp_path / 'state.db'}", clock=lambda: at[0]), threading.Event()
    document = "name: shop\nsource: {type: memory, database: a}\ntarget: {type: memory, database: a}\n"
    record = store.create_replicator("shop", f"{document}retry: {{backoff_initial: 10ms}}\n", "/j")

    def wake_up(lease: Lease) -> int:
        at[0] += timedelta(hours=1)
        assert store.leases.acquire("shop", "elsewhere:1:1", 3600)
        assert asleep.pop()
        raise StateUnavailableError("The state store has not answered for 10 s.", code="state_unavailable")

    monkeypatch.setattr(store.runs, "start", wake_up)
    registry = Registry.of(sources=[MemorySource], targets=[MemoryTarget])
    home = Home(folder=tmp_path, state_url=f"sqlite:///{tmp_path / 'state.db'}")
    outcome = lifecycle.supervise(store, home, registry, record, stop)
    store.close()
    assert outcome.end is End.FAILED
    assert isinstance(outcome.error, FencedError)
    assert "process 1 on host elsewhere" in outcome.error.message


def test_only_what_changed_is_asked_for_of_all_tables_at_a_new_position(tmp_path: Path) -> None:
    store = StateStore(f"sqlite:///{tmp_path / 'state.db'}")
    store.create_replicator("shop", "name: shop", "/j")
    lease = store.leases.acquire("shop", "test:1:1", 3600)
    assert lease is not None
    table = TableId("public", "orders")
    store.put_tables("shop", lease.epoch, [table_life.added(table)])
    for code, tables, recreate in (
        ("restart_with_tables", [str(table)], False),
        ("restart_with_recreate", [], True),
    ):
        with pytest.raises(ConfigError, match="--changed-only") as raised:
            lifecycle.snapshot(store, "shop", tables, changed_only=True, recreate=recreate)
        assert raised.value.code == code
    assert store.requests.open("shop") == []
    assert lifecycle.snapshot(store, "shop", [], restart=True, changed_only=True) == [table]
    lifecycle.snapshot(store, "shop", [], restart=True)
    asked = [(request.kind, request.payload.get("changed_only", False)) for request in store.requests.open("shop")]
    assert asked == [(RequestKind.RESTART, True), (RequestKind.RESTART, False)]
    store.close()

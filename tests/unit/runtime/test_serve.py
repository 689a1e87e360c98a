"""`serve` outlives a store that is away, records what ends a supervisor, and shares the replicators with other workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from replicator.model.errors import ConfigError, StateUnavailableError
from replicator.model.schema import TableId
from replicator.runtime import serve as module
from replicator.runtime.home import Home
from replicator.runtime.serve import serve
from replicator.runtime.supervisor import End, RunOutcome
from replicator.state.records import Lease, ReplicatorRecord, SnapshotProgress, Stage, TableRecord
from replicator.state.store import StateStore
from replicator_testbed.present import present
from replicator_testing.waiting import PATIENCE

NAME = "shop"
OTHERS = ("a", "b", "c")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StateStore]:
    monkeypatch.setattr(module, "_LOOK_S", 0.01)
    store = StateStore(f"sqlite:///{tmp_path / 'state.db'}")
    store.create_replicator(NAME, f"name: {NAME}", f"file://{tmp_path}/journal")
    yield store
    store.close()


def test_a_store_that_is_away_is_asked_again(
    store: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, stop, asked = store.replicators, threading.Event(), []

    def replicators() -> Sequence[ReplicatorRecord]:
        asked.append(1)
        if len(asked) == 1:
            raise StateUnavailableError("stayed locked", code="state_locked")
        return ask()

    def supervise(*_: object) -> RunOutcome:
        stop.set()
        return RunOutcome(end=End.STOPPED)

    monkeypatch.setattr(store, "replicators", replicators)
    home = Home(folder=tmp_path, state_url="")
    beats = []

    def beat() -> None:
        # At every look, also at the one after the store did not answer; and a folder that cannot be written ends nothing.
        home.beat()
        beats.append((tmp_path / "alive").stat().st_mtime_ns)
        raise OSError(30, "Read-only file system")

    serve(store, supervise, stop, beat=beat)
    assert len(asked) == len(beats) == 2
    assert beats == sorted(beats)


def test_a_store_that_is_damaged_ends_every_supervisor(store: StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, stop, asked, ended = store.replicators, threading.Event(), [], []

    def replicators() -> Sequence[ReplicatorRecord]:
        asked.append(1)
        if len(asked) == 2:
            raise RuntimeError("damaged")
        return ask()

    def supervise(_: ReplicatorRecord, __: Lease, stop: threading.Event) -> RunOutcome:
        ended.append(stop.wait(30 * PATIENCE))
        return RunOutcome(end=End.STOPPED)

    monkeypatch.setattr(store, "replicators", replicators)
    with pytest.raises(RuntimeError):
        serve(store, supervise, stop)
    assert ended == [True]


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConfigError("no such plugin", code="unknown_plugin"), "unknown_plugin"), (ValueError("x"), "internal_error")],
)
def test_what_ends_a_supervisor_is_recorded(store: StateStore, error: Exception, code: str) -> None:
    stop, tries = threading.Event(), []

    def supervise(*_: object) -> RunOutcome:
        tries.append(1)
        threading.Timer(0.2, stop.set).start()
        raise error

    serve(store, supervise, stop)
    record = store.replicator(NAME)
    assert record is not None
    assert record.error is not None
    assert (record.error.code, len(tries), store.leases.current(NAME)) == (code, 1, None)


Joining = Callable[..., module._Server]


@pytest.fixture
def join(store: StateStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Joining]:
    """Makes workers, each of a host of its own, whose supervisors wait until they are told to end. All look when the test says so."""
    for name in OTHERS:
        store.create_replicator(name, f"name: {name}", "/j")
    monkeypatch.setattr(module, "_SETTLE_S", 0.0)
    monkeypatch.setattr(module, "_PATIENCE_S", 3600.0)
    monkeypatch.setattr(module, "_ANNOUNCE_S", 0.0)
    joined = []

    def supervise(_: ReplicatorRecord, lease: Lease, stop: threading.Event) -> RunOutcome:
        stop.wait()
        store.leases.release(lease)
        return RunOutcome(end=End.STOPPED)

    def make(host: str, capacity: int = 10, refused: Sequence[str] = ()) -> module._Server:
        def refuses(record: ReplicatorRecord) -> ConfigError | None:
            return ConfigError("no such variable", code="unresolved") if record.name in refused else None

        server = module._Server(
            store=store, supervise=supervise, capacity=capacity, refuses=refuses, holder=f"{host}:1:boot/1/1"
        )
        joined.append(server)
        return server

    yield make
    for server in joined:
        server._drain()


def held(store: StateStore) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, holder in sorted(store.workers.scene().holders.items()):
        found.setdefault(holder[0], []).append(name)
    return found


def look(*servers: module._Server, times: int = 1) -> None:
    for _ in range(times):
        for server in servers:
            server._look()
            for one in server._running.values():
                if one.stop.is_set():
                    one.thread.join()


def test_a_worker_that_joins_takes_its_share_and_then_nothing_moves(store: StateStore, join: Joining) -> None:
    first = join("1")
    look(first)
    assert held(store) == {"1": ["a", "b", "c", "shop"]}
    second = join("2")
    look(second, first, times=10)
    shared = held(store)
    assert (shared["1"], shared["2"]) == (["c", "shop"], ["a", "b"])
    look(second, first, times=10)
    assert held(store) == shared


def test_what_runs_stays_where_it_is_while_its_snapshot_runs(store: StateStore, join: Joining) -> None:
    first, second = join("1"), join("2")
    look(first)
    table = TableId("public", "a")
    for name in OTHERS:
        progress = SnapshotProgress(started_at=store.now())
        record = TableRecord(table=table, incarnation=1, stage=Stage.SNAPSHOT, snapshot=progress)
        store.put_tables(name, present(store.leases.current(name)).epoch, [record])
    look(second, first, times=5)
    assert held(store) == {"1": list(OTHERS), "2": [NAME]}


def test_a_worker_that_ends_leaves_all_to_others_at_once(store: StateStore, join: Joining) -> None:
    first, second = join("1"), join("2")
    look(first, second)
    first._drain()
    look(second)
    assert held(store) == {"2": ["a", "b", "c", "shop"]}
    assert [worker.holder[0] for worker in store.workers.scene().workers] == ["2"]


def test_what_a_host_cannot_run_is_left_to_others_and_said(store: StateStore, join: Joining) -> None:
    weak, strong = join("1", refused=OTHERS), join("2")
    look(weak)
    assert held(store) == {"1": [NAME]}
    look(weak)
    (said,) = store.workers.scene().workers
    assert {name: refusal.code for name, refusal in said.refusals.items()} == dict.fromkeys(OTHERS, "unresolved")
    assert all(record.error is None for record in store.replicators())
    look(strong, weak, times=3)
    assert held(store) == {"1": [NAME], "2": list(OTHERS)}


def test_no_worker_runs_more_than_its_capacity(
    store: StateStore, join: Joining, caplog: pytest.LogCaptureFixture
) -> None:
    small = join("1", capacity=3)
    look(small, times=3)
    assert held(store) == {"1": ["a", "b", "c"]}
    assert caplog.text.count("capacity_reached") == 1
    look(join("2", capacity=1), small)
    assert held(store) == {"1": ["a", "b", "c"], "2": [NAME]}


def test_what_the_best_worker_does_not_take_another_takes(
    store: StateStore, join: Joining, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, other = join("1", capacity=100), join("2")
    slow._announce()
    look(other, times=2)
    assert held(store) == {}
    monkeypatch.setattr(module, "_PATIENCE_S", 0.0)
    look(other)
    assert held(store) == {"2": ["a", "b", "c", "shop"]}

"""`serve` outlives a store that is away, and records what ends a supervisor."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from replicator.model.errors import ConfigError, StateUnavailableError
from replicator.runtime import serve as module
from replicator.runtime.serve import serve
from replicator.runtime.supervisor import End, RunOutcome
from replicator.state.records import Lease, ReplicatorRecord
from replicator.state.store import StateStore

NAME = "shop"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StateStore]:
    monkeypatch.setattr(module, "_LOOK_S", 0.01)
    store = StateStore(f"sqlite:///{tmp_path / 'state.db'}")
    store.create_replicator(NAME, f"name: {NAME}", f"file://{tmp_path}/journal")
    yield store
    store.close()


def test_a_store_that_is_away_is_asked_again(store: StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
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
    serve(store, supervise, stop)
    assert len(asked) == 2


def test_a_store_that_is_damaged_ends_every_supervisor(store: StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, stop, asked, ended = store.replicators, threading.Event(), [], []

    def replicators() -> Sequence[ReplicatorRecord]:
        asked.append(1)
        if len(asked) == 2:
            raise RuntimeError("damaged")
        return ask()

    def supervise(_: ReplicatorRecord, __: Lease, stop: threading.Event) -> RunOutcome:
        ended.append(stop.wait(30))
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
    assert (record.error.code, len(tries), store.lease(NAME)) == (code, 1, None)

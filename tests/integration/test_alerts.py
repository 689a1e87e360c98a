"""Alerts of real processes: `serve` and `alert watch`, killed at any time, and an HTTP server that gets what they send."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from replicator.model.counts import CounterName
from replicator.runtime.watch_process import LOOK_VARIABLE
from replicator.state.records import ErrorRecord
from replicator.state.store import StateStore
from replicator.state.watches import WatchJob
from replicator_testbed.network.receiver import Receiver, receiving
from replicator_testbed.network.rest import command
from replicator_testbed.present import present
from replicator_testbed.processes import kill_all
from replicator_testing.waiting import PATIENCE, wait_until

CONFIG = """\
name: shop
alerts:
  after: 0s
  webhooks:
    ops: {url: "${env:TEST_HOOK}"}
"""
ERROR = ErrorRecord(code="log_gap", message="The slot is lost.", action=None, at=datetime(2026, 1, 31, tzinfo=UTC))


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with receiving() as receiver:
        monkeypatch.setenv("TEST_HOOK", receiver.url)
        yield receiver


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    """With a replicator that has failed, so that no worker takes it."""
    store = StateStore(f"sqlite:///{tmp_path}/state.db")
    store.create_replicator("shop", CONFIG, str(tmp_path / "journal"))
    store.set_error("shop", ERROR)
    yield store
    store.close()


@contextmanager
def started(home: Path, *arguments: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """A command that runs until the block ends."""
    process = subprocess.Popen(
        command(*arguments),
        env={**os.environ, "REPLICATOR_HOME": str(home), LOOK_VARIABLE: "0.1", **environ},
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            kill_all(process)


def told(receiver: Receiver) -> tuple[str, list[tuple[str, str]]]:
    """The id and the alerts of the next message."""
    received = receiver.next()
    return received.headers["webhook-id"], [(one["event"], one["kind"]) for one in received.document["alerts"]]


def noted(store: StateStore, number: int) -> None:
    """Wait until the store says that so many messages were delivered."""
    wait_until(lambda: store.counters("shop")[CounterName.ALERTS_SENT, ("ops",)] == number, f"{number} are delivered")


def nothing_more(receiver: Receiver) -> None:
    with pytest.raises(queue.Empty):
        receiver.received.get_nowait()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("point", ["alerts.stored", "alerts.delivered"])
def test_a_sender_that_is_killed_loses_no_alert_and_sends_none_under_another_id(
    point: str, tmp_path: Path, store: StateStore, receiver: Receiver
) -> None:
    with started(tmp_path, "alert", "watch", REPLICATOR_CRASH_AT=point) as process:
        assert process.wait(120 * PATIENCE) == -signal.SIGKILL
    first = [told(receiver)] if point == "alerts.delivered" else []
    with started(tmp_path, "alert", "watch"):
        again = told(receiver)
        assert again[1] == [("opened", "replicator_failed")]
        assert first in ([], [again]), "what is delivered again has the id that it had"
        noted(store, 1)
        store.set_error("shop", None)
        assert told(receiver)[1] == [("opened", "no_worker"), ("recovered", "replicator_failed")]
        noted(store, 2)
    nothing_more(receiver)


@pytest.mark.matrix
def test_serve_sends_alerts_and_starts_their_process_again(
    tmp_path: Path, store: StateStore, receiver: Receiver
) -> None:
    with started(tmp_path, "serve") as serve:
        assert told(receiver)[1] == [("opened", "replicator_failed")]
        noted(store, 1)

        def watcher() -> psutil.Process | None:
            for child in psutil.Process(serve.pid).children():
                # One that has just ended has no command line any more.
                with suppress(psutil.NoSuchProcess):
                    if "replicator.service.watching" in child.cmdline():
                        return child
            return None

        first = present(watcher())
        first.kill()
        wait_until(lambda: not first.is_running(), "it has ended")
        second = wait_until(watcher, "it is started again")
        pid = str(second.pid)
        wait_until(lambda: pid in str(store.watches.holder("shop", WatchJob.ALERTS)), "it has the job")
        nothing_more(receiver)

        # Its own end: the configuration has no alerts any more, and the process is not needed.
        store.set_config("shop", "name: shop\n")
        wait_until(lambda: watcher() is None, "it ends")
        store.set_config("shop", CONFIG)
        third = wait_until(watcher, "it is started again")
        serve.kill()
        wait_until(lambda: not third.is_running(), "it ends with the process that started it")
    nothing_more(receiver)


@pytest.mark.matrix
def test_a_watcher_on_its_own_notices_that_no_worker_runs(
    tmp_path: Path, store: StateStore, receiver: Receiver
) -> None:
    store.set_error("shop", None)
    with started(tmp_path, "alert", "watch", "shop") as process:
        assert told(receiver)[1] == [("opened", "no_worker")]
        noted(store, 1)
        process.terminate()
        assert process.wait(60 * PATIENCE) == 0
    assert store.watches.holder("shop", WatchJob.ALERTS) is None, "the next one need not wait"

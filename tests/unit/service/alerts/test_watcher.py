"""A state store, watchers of it, and a real HTTP server that gets what they send."""

from __future__ import annotations

import queue
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from replicator.cli.entry import main
from replicator.model.counts import CounterName
from replicator.model.documents.alerts import AlertKind
from replicator.service.alerts.watcher import TTL_S, AlertWatcher
from replicator.service.status.assemble import status
from replicator.state import holder_id
from replicator.state.records import ErrorRecord
from replicator.state.store import StateStore
from replicator.state.watches import WatchJob
from replicator_testbed.network.receiver import Received, Receiver, receiving, refuse
from replicator_testbed.present import present
from replicator_testing.waiting import wait_until

CONFIG = """\
name: shop
alerts:
  after: 0s
  webhooks:
    ops: {url: "${env:TEST_HOOK}", signing_key: "${env:TEST_KEY}"}
"""
ERROR = ErrorRecord(code="log_gap", message="The slot is lost.", action=None, at=datetime(2026, 1, 31, tzinfo=UTC))
OTHER_HOST = "elsewhere:1:boot/1/2"


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 31, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def passes(self, **times: float) -> None:
        self.now += timedelta(**times)


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with receiving() as receiver:
        monkeypatch.setenv("TEST_HOOK", receiver.url)
        monkeypatch.setenv("TEST_KEY", "a key of somebody's own")
        yield receiver


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[StateStore]:
    store = StateStore(f"sqlite:///{tmp_path}/state.db", clock=clock)
    store.create_replicator("shop", CONFIG, str(tmp_path / "journal"))
    yield store
    store.close()


@pytest.fixture
def watcher_of(store: StateStore) -> Iterator[Callable[[str], AlertWatcher]]:
    made: list[AlertWatcher] = []

    def of(holder: str) -> AlertWatcher:
        made.append(AlertWatcher(store, holder))
        return made[-1]

    yield of
    for watcher in made:
        watcher.close()


def told(received: Received) -> list[tuple[str, str]]:
    return [(alert["event"], alert["kind"]) for alert in received.document["alerts"]]


def sent_by(watcher: AlertWatcher, receiver: Receiver) -> Received:
    """What comes when it looks; it may still be busy with the message before."""
    wait_until(lambda: watcher.look() or not receiver.received.empty(), "a message comes", every_s=0.02)
    return receiver.next()


def delivered(store: StateStore, number: int = 1) -> None:
    """Wait until the store says so."""
    key = (CounterName.ALERTS_SENT, ("ops",))
    wait_until(lambda: store.counters("shop")[key] == number, f"{number} messages are noted as delivered", every_s=0.01)


def nothing_more(receiver: Receiver) -> None:
    with pytest.raises(queue.Empty):
        receiver.received.get_nowait()


def test_a_change_is_sent_once_however_often_it_is_looked_at(
    store: StateStore, receiver: Receiver, clock: Clock, watcher_of: Callable[[str], AlertWatcher]
) -> None:
    watcher = watcher_of(holder_id())
    watcher.look()
    assert told(receiver.next()) == [("opened", "no_worker")]
    delivered(store)
    for _ in range(3):
        clock.passes(minutes=10)
        watcher.look()
    lease = present(store.leases.acquire("shop", holder_id(), 600))
    message = sent_by(watcher, receiver)
    assert told(message) == [("recovered", "no_worker")]
    assert message.document["alerts"][0]["ended_at"] is not None
    delivered(store, 2)
    store.leases.release(lease)
    nothing_more(receiver)


def test_the_next_process_continues_where_the_last_one_was(
    store: StateStore, receiver: Receiver, watcher_of: Callable[[str], AlertWatcher]
) -> None:
    first = watcher_of(holder_id())
    first.look()
    receiver.next()
    first.close()
    second = watcher_of(OTHER_HOST)
    store.set_error("shop", ERROR)
    second.look()
    assert told(receiver.next()) == [("recovered", "no_worker"), ("opened", "replicator_failed")]
    delivered(store, 2)
    nothing_more(receiver)


def test_of_two_processes_one_sends_until_it_gives_no_sign_of_life(
    store: StateStore, receiver: Receiver, clock: Clock, watcher_of: Callable[[str], AlertWatcher]
) -> None:
    first, second = watcher_of(OTHER_HOST), watcher_of(holder_id())
    for watcher in (first, second, second):
        watcher.look()
    receiver.next()
    delivered(store)
    nothing_more(receiver)
    store.set_error("shop", ERROR)
    second.look()
    assert store.watches.holder("shop", WatchJob.ALERTS) == OTHER_HOST
    clock.passes(seconds=TTL_S + 1)
    second.look()
    assert told(receiver.next()) == [("recovered", "no_worker"), ("opened", "replicator_failed")]
    assert store.watches.holder("shop", WatchJob.ALERTS) == holder_id()
    store.set_error("shop", None)
    first.look()
    nothing_more(receiver)


def test_a_message_that_is_refused_is_repeated_with_its_id_and_in_its_order(
    store: StateStore, receiver: Receiver, clock: Clock, watcher_of: Callable[[str], AlertWatcher]
) -> None:
    receiver.answer = refuse(503, "busy")
    watcher = watcher_of(holder_id())
    watcher.look()
    first = receiver.next()
    failures = (CounterName.ALERT_FAILURES, ("ops",))
    wait_until(lambda: store.counters("shop")[failures] == 1, "the failure is noted", every_s=0.01)
    store.set_error("shop", ERROR)
    watcher.look()
    nothing_more(receiver)
    found = present(status(store, present(store.replicator("shop"))).alerts)
    assert [(one.kind, one.is_told) for one in found.open] == [(AlertKind.REPLICATOR_FAILED, True)]
    assert [(one.waiting, one.failures, one.error) for one in found.channels] == [
        (2, 1, "the server answered 503: busy")
    ]

    receiver.answer = refuse(200)
    clock.passes(seconds=5)
    again = sent_by(watcher, receiver)
    assert again.headers["webhook-id"] == first.headers["webhook-id"]
    assert again.headers["webhook-timestamp"] != first.headers["webhook-timestamp"]
    delivered(store)
    assert told(sent_by(watcher, receiver)) == [("recovered", "no_worker"), ("opened", "replicator_failed")]
    delivered(store, 2)
    found = present(status(store, present(store.replicator("shop"))).alerts)
    assert [(one.waiting, one.failures, one.error) for one in found.channels] == [(0, 0, None)]


def test_a_message_is_given_up_after_a_while_and_the_status_says_so(
    store: StateStore, receiver: Receiver, clock: Clock, watcher_of: Callable[[str], AlertWatcher]
) -> None:
    receiver.answer = refuse(500)
    watcher = watcher_of(holder_id())
    attempts = 0

    def look() -> bool:
        nonlocal attempts
        clock.passes(minutes=10)
        sent_by(watcher, receiver)
        attempts += 1
        key = (CounterName.ALERT_FAILURES, ("ops",))
        wait_until(lambda: store.counters("shop")[key] == attempts, "the failure is noted", every_s=0.01)
        return store.counters("shop")[CounterName.ALERTS_GIVEN_UP, ("ops",)] == 1

    wait_until(look, "it is given up", every_s=0.0)
    assert attempts == 7, "at once, and then every ten minutes for an hour"
    found = present(status(store, present(store.replicator("shop"))).alerts)
    assert [(one.waiting, one.given_up, one.error) for one in found.channels] == [(0, 1, "the server answered 500")]
    watcher.look()
    nothing_more(receiver)


def test_a_server_that_hangs_delays_neither_looks_nor_other_channels(
    store: StateStore,
    receiver: Receiver,
    clock: Clock,
    watcher_of: Callable[[str], AlertWatcher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with receiving() as other:
        monkeypatch.setenv("TEST_OTHER", other.url)
        store.set_config("shop", CONFIG.replace("}\n", ", timeout: 3s}\n") + '    other: {url: "${env:TEST_OTHER}"}\n')
        receiver.answer = receiver.hang
        watcher = watcher_of(holder_id())
        watcher.look()
        receiver.next()
        other.next()
        store.set_error("shop", ERROR)
        wait_until(
            lambda: watcher.look() or not other.received.empty(), "the other gets the next message", every_s=0.05
        )
        assert told(other.next()) == [("recovered", "no_worker"), ("opened", "replicator_failed")]
        nothing_more(receiver)


def test_messages_that_wait_are_bounded(
    store: StateStore, receiver: Receiver, clock: Clock, watcher_of: Callable[[str], AlertWatcher]
) -> None:
    store.set_config("shop", CONFIG.replace("after: 0s", "after: 0s\n  messages_max: 2"))
    receiver.answer = refuse(500)
    watcher = watcher_of(holder_id())
    for number in range(5):
        store.set_error("shop", ERROR if number % 2 else None)
        watcher.look()
    wait_until(lambda: not receiver.received.empty(), "one was tried", every_s=0.01)
    found = store.alerts.read("shop")
    assert len(found.messages) == 2
    assert store.counters("shop")[CounterName.ALERTS_GIVEN_UP, ("ops",)] == 3


def test_a_channel_that_is_configured_no_more_is_forgotten(
    store: StateStore, receiver: Receiver, watcher_of: Callable[[str], AlertWatcher]
) -> None:
    receiver.answer = refuse(500)
    watcher = watcher_of(holder_id())
    watcher.look()
    receiver.next()
    wait_until(lambda: store.alerts.read("shop").channels, "the failure is noted", every_s=0.01)
    store.set_config("shop", CONFIG.replace("ops:", "others:"))
    watcher.look()
    found = store.alerts.read("shop")
    assert (found.messages, found.channels) == ((), {})


def test_settings_that_lead_nowhere_here_leave_the_job_to_others(
    store: StateStore, receiver: Receiver, watcher_of: Callable[[str], AlertWatcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TEST_KEY")
    watcher = watcher_of(holder_id())
    watcher.look()
    assert store.watches.holder("shop", WatchJob.ALERTS) is None
    nothing_more(receiver)


def test_a_damaged_record_of_one_keeps_nobody_from_hearing_of_others(
    store: StateStore, tmp_path: Path, receiver: Receiver, watcher_of: Callable[[str], AlertWatcher]
) -> None:
    store.create_replicator("a-damaged-one", CONFIG.replace("name: shop", "name: a-damaged-one"), "/j")
    with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as state:
        state.execute("INSERT INTO alerts VALUES ('a-damaged-one', 'no_worker', '', '{}')")
    watcher_of(holder_id()).look()
    assert receiver.next().document["replicator"] == "shop"
    delivered(store)
    nothing_more(receiver)


def test_a_replicator_that_is_deleted_takes_its_alerts_with_it(
    store: StateStore, receiver: Receiver, watcher_of: Callable[[str], AlertWatcher]
) -> None:
    watcher = watcher_of(holder_id())
    watcher.look()
    receiver.next()
    delivered(store)
    store.delete_replicator("shop", present(store.replicator("shop")).uuid)
    watcher.look()
    assert store.alerts.read("shop").alerts == ()


@pytest.fixture
def home(store: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REPLICATOR_HOME", str(tmp_path))
    monkeypatch.delenv("REPLICATOR_STATE_URL", raising=False)
    return tmp_path


def test_a_test_message_shows_whether_a_channel_takes_it(home: Path, receiver: Receiver) -> None:
    done = CliRunner().invoke(main, ["alert", "test", "shop"])
    assert (done.exit_code, done.stdout) == (0, "ops: delivered.\n")
    message = receiver.next().document
    assert (message["is_test"], message["alerts"][0]["event"]) == (True, "test")
    receiver.answer = refuse(403, "wrong room")
    done = CliRunner().invoke(main, ["alert", "test", "shop", "ops"])
    assert done.exit_code == 1
    assert "ops: the server answered 403: wrong room" in done.stderr
    assert receiver.url not in done.output


@pytest.mark.parametrize(
    ("config", "arguments", "said"),
    [
        (CONFIG, ["shop", "opps"], "[unknown_channel] shop has no channel 'opps' for alerts. Its channels: ops."),
        ("name: shop", ["shop"], "[unknown_channel] shop has no channel for alerts."),
        (CONFIG, ["other"], "[unknown_replicator]"),
        (CONFIG.replace("TEST_KEY", "TEST_NO_KEY"), ["shop"], "[variable_not_set]"),
    ],
)
def test_a_test_that_cannot_be_made_is_refused(
    home: Path, store: StateStore, receiver: Receiver, config: str, arguments: list[str], said: str
) -> None:
    store.set_config("shop", config)
    done = CliRunner().invoke(main, ["alert", "test", *arguments])
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())


def test_status_shows_what_does_not_arrive(
    home: Path, store: StateStore, receiver: Receiver, clock: Clock, watcher_of: Callable[[str], AlertWatcher]
) -> None:
    clock.now = datetime.now(UTC)  # the command has the real clock
    assert "no process watches this replicator" in CliRunner().invoke(main, ["status", "shop"]).stdout
    receiver.answer = refuse(500, "no room")
    watcher_of(holder_id()).look()
    wait_until(lambda: store.alerts.read("shop").channels, "the failure is noted", every_s=0.01)
    shown = CliRunner().invoke(main, ["status", "shop"]).stdout
    assert "no process watches" not in shown
    assert "alerts to ops are not delivered (1 message waiting, 0 given up): the server answered 500: no room" in shown
    assert "replicator alert test shop ops" in shown

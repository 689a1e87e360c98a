"""Alerts on a state store that several hosts share: of many processes one sends, and none of them waits for another."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest

from replicator.config.alerts import ChannelConfig
from replicator.model.documents.alerts import AlertMessage
from replicator.service.alerts.watcher import AlertWatcher
from replicator.state import Desired, StateStore
from replicator.state.watches import WatchJob
from replicator_testbed.postgresql.servers import PostgresServer

CONFIG = "name: shop\nalerts: {after: 0s, commands: {ops: {argv: ['true']}}}\n"
HOLDERS = [f"host-{number}:1:boot/1/2" for number in range(8)]


@pytest.fixture
def store(postgres: PostgresServer) -> Iterator[StateStore]:
    with postgres.database() as database:
        store = StateStore(f"postgresql://{postgres.user}@{postgres.host}:{postgres.port}/{database.name}")
        store.create_replicator("shop", CONFIG, "s3://bucket/journal")
        yield store
        store.close()


def test_of_hosts_that_come_at_once_one_gets_the_job(store: StateStore) -> None:
    with ThreadPoolExecutor(len(HOLDERS)) as pool:
        held = list(pool.map(lambda holder: store.watches.hold("shop", WatchJob.ALERTS, holder, 60), HOLDERS))
    assert sum(held) == 1
    winner = HOLDERS[held.index(True)]
    assert store.watches.holder("shop", WatchJob.ALERTS) == winner
    store.watches.release("shop", WatchJob.ALERTS, HOLDERS[held.index(False)])
    assert store.watches.holder("shop", WatchJob.ALERTS) == winner, "others cannot give it away"
    store.watches.release("shop", WatchJob.ALERTS, winner)
    assert store.watches.holder("shop", WatchJob.ALERTS) is None


def test_many_watchers_send_each_alert_once(store: StateStore) -> None:
    sent: list[tuple[str, list[str]]] = []

    def deliver(_: ChannelConfig, message: AlertMessage, message_id: str, __: datetime) -> None:
        sent.append((message_id, [f"{one.event} {one.kind}" for one in message.alerts]))

    watchers = [AlertWatcher(store, holder, deliver=deliver) for holder in HOLDERS]
    with ThreadPoolExecutor(len(watchers)) as pool:
        for desired in (Desired.RUNNING, Desired.PAUSED, Desired.RUNNING):
            store.set_desired("shop", desired)
            for _ in range(3):
                list(pool.map(AlertWatcher.look, watchers))
    for watcher in watchers:
        watcher.close()
    # What was not delivered by then is delivered by the next one.
    last = AlertWatcher(store, "host-9:1:boot/1/2", deliver=deliver)
    while store.alerts.read("shop").messages:
        last.look()
    last.close()
    assert [alerts for _, alerts in sent] == [["opened no_worker"], ["recovered no_worker"], ["opened no_worker"]]
    assert len({message_id for message_id, _ in sent}) == 3
    store.delete_replicator("shop", store.replicators()[0].uuid)
    assert store.alerts.read("shop").alerts == ()

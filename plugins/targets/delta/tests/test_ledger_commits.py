"""Ledger commits are put into the log without a transaction: races, unknown outcomes, and what is left to Delta's transaction."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JError

from replicator.model.errors import FencedError, TableError, TargetUnavailableError
from replicator.model.schema import TableId
from replicator.plugins.target import TargetTable
from replicator_target_delta.errors import is_concurrent
from replicator_target_delta.ledger import Entry, Transaction, exists
from replicator_target_delta.log import store as logstore
from replicator_target_delta.log.store import obstacle
from replicator_target_delta.log.table import TableLog, read_log
from replicator_testbed.present import present
from replicator_testing.waiting import wait_until

if TYPE_CHECKING:
    from plugins.targets.delta.tests.conftest import Lake

OURS = "Replicator"
At = Callable[[str, Callable[[], object]], None]


def newest(lake: Lake) -> dict[str, Any]:
    """The actions of the newest version, by kind."""
    file = max((lake.path / "_delta_log").glob("*.json"))
    return {kind: value for line in file.read_text().splitlines() for kind, value in json.loads(line).items()}


def names_in(folder: Path) -> list[str]:
    """Files that are seen by readers, sorted."""
    return sorted(file.name for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))


def ledger(lake: Lake) -> Entry | None:
    log = read_log(lake.target._storage, str(lake.path))
    assert log is not None
    return Entry.of(log.transactions.get(lake.table.ledger_name))


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> At:
    """Does something at a crash point, the first time that it is reached."""

    def at(point: str, action: Callable[[], object]) -> None:
        waiting = {point: action}

        def crash_point(name: str) -> None:
            if act := waiting.pop(name, None):
                act()

        monkeypatch.setattr(logstore, "crash_point", crash_point)

    return at


def test_a_claim_and_an_advance_are_put_and_change_nothing_else(lake: Lake) -> None:
    lake.apply(lake.insert(id=1, name="a", note="x"))
    successor, table = lake.process(), lake.owned(epoch=2)
    for act, last in ((lambda: successor.claim(table), 1), (lambda: successor.advance(table, 7), 7)):
        version = lake.version()
        act()
        assert lake.version() == version + 1
        commit = newest(lake)
        assert set(commit) == {"commitInfo", "txn"}
        assert commit["commitInfo"]["engineInfo"] == OURS
        assert commit["commitInfo"]["readVersion"] == version
        assert (commit["txn"]["appId"], commit["txn"]["version"]) == (table.ledger_name, Entry(2, last).version)
    lake.next = 8
    successor.apply_batch(table, lake.batch([lake.insert(id=2, name="b", note="y")]))
    assert lake.rows() == {(1, "a", "x"), (2, "b", "y")}


@pytest.mark.matrix
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("statement", "rows"),
    [
        ("DELETE FROM {} WHERE id = 1", {(2, "b", "y")}),
        ("ALTER TABLE {} SET TBLPROPERTIES (mine = 'yes')", {(1, "a", "x"), (2, "b", "y")}),
        ("UPDATE {} SET name = 'c'", {(1, "c", "x"), (2, "c", "y")}),
    ],
)
def test_a_version_that_a_user_took_is_read_before_the_next_is_tried(
    lake: Lake, at: At, statement: str, rows: set[tuple[int, str, str]]
) -> None:
    lake.apply(lake.insert(id=1, name="a", note="x"), lake.insert(id=2, name="b", note="y"))
    version = lake.version()
    at("target.before_put", partial(lake.spark.sql, statement.format(f"delta.`{lake.path}`")))
    lake.table = lake.owned(epoch=2)
    assert lake.process().claim(lake.table).last_applied == 2
    assert lake.version() == version + 2
    assert newest(lake)["commitInfo"]["readVersion"] == version + 1
    assert ledger(lake) == Entry(2, 2)
    assert lake.rows() == rows


@pytest.mark.matrix
def test_a_feature_that_a_user_switched_on_in_between_is_left_to_the_transaction(lake: Lake, at: At) -> None:
    statement = f"ALTER TABLE delta.`{lake.path}` SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')"
    at("target.before_put", lambda: lake.spark.sql(statement))
    lake.table = lake.owned(epoch=2)
    successor = lake.process()
    successor.claim(lake.table)
    assert newest(lake)["commitInfo"]["engineInfo"] != OURS
    assert "inCommitTimestamp" in newest(lake)["commitInfo"]
    successor.advance(lake.table, 5)
    assert "inCommitTimestamp" in newest(lake)["commitInfo"]
    assert ledger(lake) == Entry(2, 5)
    with pytest.raises(FencedError):
        lake.target.advance(lake.owned(), 6)


def test_a_successor_that_claims_in_between_fences(lake: Lake, at: At) -> None:
    lake.apply(lake.insert(id=1, name="a", note="x"))
    paused = lake.target
    at("target.before_put", lambda: lake.process().claim(lake.owned(epoch=2)))
    with pytest.raises(FencedError):
        paused.advance(lake.table, 1000)
    assert ledger(lake) == Entry(2, 1)
    late = lake.process()
    at("target.before_put", lambda: lake.process().claim(lake.owned(epoch=4)))
    with pytest.raises(FencedError):
        late.claim(lake.owned(epoch=3))
    assert ledger(lake) == Entry(4, 1)


def test_a_claim_that_a_zombies_batch_overtakes_counts_the_batch(lake: Lake, at: At) -> None:
    zombie, batch = lake.target, lake.batch([lake.insert(id=1, name="a", note="x")])
    at("target.before_put", lambda: zombie.apply_batch(lake.table, batch))
    successor, table = lake.process(), lake.owned(epoch=2)
    assert successor.claim(table).last_applied == batch.last
    assert successor.apply_batch(table, batch).was_skipped
    with pytest.raises(FencedError):
        zombie.apply_batch(lake.table, lake.batch([lake.insert(id=9, name="zombie", note="")]))
    assert lake.rows() == {(1, "a", "x")}


def test_a_zombies_transaction_that_a_claim_overtakes_fails(lake: Lake) -> None:
    """The claim comes after the transaction has read the table, and before it commits."""
    lake.apply(lake.insert(id=1, name="a", note="x"))
    zombie = Transaction(lake.spark, str(lake.path))
    successor, table = lake.process(), lake.owned(epoch=2)
    successor.claim(table)
    with pytest.raises(Py4JError) as caught:
        zombie.empty({}, {table.ledger_name: Entry(1, 9).version})
    assert is_concurrent(caught.value)
    assert lake.rows() == {(1, "a", "x")}
    assert ledger(lake) == Entry(2, 1)


def test_an_unknown_outcome_is_settled_by_what_stands_in_the_log(lake: Lake, at: At) -> None:
    def fail() -> None:
        raise OSError("the connection was lost")

    version = lake.version()
    at("target.after_put", fail)
    successor, table = lake.process(), lake.owned(epoch=2)
    assert successor.claim(table).last_applied == 0
    assert lake.version() == version + 1
    at("target.after_put", fail)
    successor.advance(table, 5)
    assert lake.version() == version + 2
    assert ledger(lake) == Entry(2, 5)


def test_a_put_that_failed_leaves_nothing(lake: Lake, at: At) -> None:
    log = lake.path / "_delta_log"

    def fail() -> None:
        log.rename(lake.path / "gone")

    version = lake.version()
    at("target.before_put", fail)
    present(lake.spark._jvm).org.apache.spark.sql.delta.DeltaLog.clearCache()
    with pytest.raises((TableError, TargetUnavailableError)):
        lake.target.advance(lake.table, 5)
    for file in log.glob("*"):
        file.unlink()
    if log.exists():
        log.rmdir()
    (lake.path / "gone").rename(log)
    assert lake.version() == version
    lake.target.advance(lake.table, 5)
    assert ledger(lake) == Entry(1, 5)


def test_of_many_claims_at_once_the_newest_epoch_holds(lake: Lake) -> None:
    lake.apply(lake.insert(id=1, name="a", note="x"))
    epochs, start = range(2, 10), threading.Barrier(8)

    def claim(epoch: int) -> bool:
        process = lake.process()
        start.wait()
        try:
            return process.claim(lake.owned(epoch=epoch)).last_applied == 1
        except FencedError:
            return False

    with ThreadPoolExecutor(8) as pool:
        held = dict(zip(epochs, pool.map(claim, epochs), strict=True))
    assert held[9]
    log = lake.path / "_delta_log"
    commits = [json.loads(line) for file in sorted(log.glob("*.json")) for line in file.read_text().splitlines()]
    claimed = [present(Entry.of(commit["txn"]["version"])).epoch for commit in commits if "txn" in commit]
    assert claimed == sorted(claimed)
    assert [epoch for epoch in epochs if held[epoch]] == sorted(set(claimed) - {1})
    assert ledger(lake) == Entry(9, 1)


@pytest.mark.matrix
def test_a_log_of_puts_alone_gets_checkpoints_and_outlives_its_json_files(lake: Lake) -> None:
    for number in range(10, 25):
        lake.target.advance(lake.table, number)
    log = lake.path / "_delta_log"
    assert [name for name in names_in(log) if "checkpoint" in name] == [
        f"{10:020}.checkpoint.parquet",
        "_last_checkpoint",
    ]
    for name in names_in(log):
        if "checkpoint" not in name and int(name[:20]) <= 10:
            (log / name).unlink()
    present(lake.spark._jvm).org.apache.spark.sql.delta.DeltaLog.clearCache()
    lake.table = lake.owned(epoch=2)
    successor = lake.process()
    assert successor.claim(lake.table).last_applied == 24
    assert newest(lake)["commitInfo"]["engineInfo"] == OURS
    lake.next = 25
    successor.apply_batch(lake.table, lake.batch([lake.insert(id=1, name="a", note="x")]))
    assert lake.rows() == {(1, "a", "x")}


@pytest.mark.parametrize(
    ("others", "is_there"),
    [
        ({}, True),
        ({"replicator.uuid": "another's"}, False),
        ({"replicator.incarnation": "2"}, False),
        ({"replicator.state": "dropped"}, False),
    ],
)
def test_a_table_is_there_if_it_is_ours_of_this_incarnation_and_was_not_dropped(
    others: dict[str, str], is_there: bool
) -> None:
    table = TargetTable(table=TableId("shop", "items"), uuid="ours", incarnation=3, epoch=1)
    assert exists(table, {"replicator.uuid": "ours", "replicator.incarnation": "3"} | others) is is_there


LINES = ['{"commitInfo":{"txnId":"x"}}', '{"txn":{"appId":"größe"}}']


def test_a_version_on_a_local_disk_is_linked_as_deltas_own_store_writes_it(lake: Lake) -> None:
    log, version = lake.path / "_delta_log", lake.version()
    mine, deltas = logstore.LogStore(lake.spark, str(lake.path)), logstore.LogStore(lake.spark, str(lake.path))
    assert mine._is_linked
    deltas._is_linked = False
    assert mine.put(version + 1, LINES)
    assert deltas.put(version + 2, LINES)
    first, second = (log / f"{version + added:020}.json" for added in (1, 2))
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_mode == second.stat().st_mode
    for store in (mine, deltas):
        for taken in (1, 2):
            assert not store.put(version + taken, ['{"another":{}}'])
    assert first.read_bytes() == second.read_bytes()
    assert not list(log.glob("*.tmp"))


def test_a_link_waits_for_the_lock_of_deltas_transactions(lake: Lake) -> None:
    """They look whether there is a version, and rename onto it then: a link in between would be replaced."""
    store, version = logstore.LogStore(lake.spark, str(lake.path)), lake.version() + 1
    file = lake.path / "_delta_log" / f"{version:020}.json"
    lock = store._log().snapshotLock()
    with ThreadPoolExecutor(1) as pool:
        lock.lock()
        try:
            put = pool.submit(store.put, version, LINES)
            wait_until(lock.hasQueuedThreads, "it waits")
            assert not file.exists()
        finally:
            lock.unlock()
        assert put.result()
    assert file.exists()


def test_of_many_puts_of_a_version_one_succeeds(lake: Lake) -> None:
    stores = [logstore.LogStore(lake.spark, str(lake.path)) for _ in range(4)]
    stores[0]._is_linked = False
    with ThreadPoolExecutor(len(stores)) as pool:
        for version in range(lake.version() + 1, lake.version() + 31):
            lines = [f'{{"commitInfo":{{"txnId":"{number}"}}}}' for number in range(len(stores))]
            puts = [pool.submit(s.put, version, [line]) for s, line in zip(stores, lines, strict=True)]
            won = [number for number, put in enumerate(puts) if put.result()]
            assert len(won) == 1
            assert (lake.path / "_delta_log" / f"{version:020}.json").read_text() == f"{lines[won[0]]}\n"


@pytest.mark.parametrize("setting", ["spark.delta.logStore.class", "spark.delta.logStore.file.impl"])
def test_a_log_store_that_the_user_has_chosen_writes_the_versions(
    lake: Lake, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is chosen when Spark starts; a session has its settings."""
    monkeypatch.setattr(os, "link", None)
    session, version = lake.spark.newSession(), lake.version() + 1
    session.conf.set(setting, "io.delta.storage.LocalLogStore")
    assert logstore.LogStore(session, str(lake.path)).put(version, LINES)
    assert (lake.path / "_delta_log" / f"{version:020}.json").exists()


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_where_there_are_no_links_deltas_store_writes_the_versions(
    lake: Lake, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    for last in (10, 11):
        lake.target.advance(lake.table, last)
    assert ledger(lake) == Entry(1, 11)
    assert not list((lake.path / "_delta_log").glob("*.tmp"))


def log_of(**parts: Any) -> TableLog:
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["columnMapping", "deletionVectors", "timestampNtz"],
        "writerFeatures": ["columnMapping", "deletionVectors", "domainMetadata", "clustering", "timestampNtz"],
    }
    defaults: dict[str, Any] = {
        "version": 3,
        "properties": {"delta.columnMapping.mode": "name", "replicator.uuid": "u-1", "mine": "yes"},
        "transactions": {},
        "created": datetime.now(UTC),
        "protocol": protocol,
        "unknown": frozenset(),
    }
    return TableLog(**{**defaults, **parts})


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({}, None),
        ({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, None),
        ({"protocol": {}}, "protocol None, None"),
        ({"protocol": {"minReaderVersion": 4, "minWriterVersion": 7}}, "protocol 4, 7"),
        ({"protocol": {"minReaderVersion": 3, "minWriterVersion": 8}}, "protocol 3, 8"),
        *(
            (
                {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": [name]}},
                f"feature {name}",
            )
            for name in ("inCommitTimestamp", "catalogManaged", "coordinatedCommits-preview", "rowTracking", "icebergCompatV2")
        ),
        ({"properties": {"delta.setTransactionRetentionDuration": "1 day"}}, "property delta.setTransactionRetentionDuration"),
        ({"properties": {"delta.universalFormat.enabledFormats": "iceberg"}}, "property delta.universalFormat.enabledFormats"),
        ({"properties": {"DELTA.appendOnly": "false", "delta.constraints.x": "id > 0"}}, None),
        ({"unknown": frozenset({"rowsAsTheyWere"})}, "action rowsAsTheyWere"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_left_to_the_transaction(parts: dict[str, Any], expected: str | None) -> None:
    assert obstacle(log_of(**parts)) == expected

"""Whose state store the journal's folder was last used with."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from replicator.journal import JournalClaim, check_claim, claim, open_folder, remove_journal
from replicator.journal.claim import CLAIM
from replicator.journal.files import JournalFolder
from replicator.journal.location import MARKER
from replicator.model.errors import ConfigError, CorruptStreamError, FencedError, ReplicatorError
from replicator.state.records import Lease
from replicator.state.store import StateStore
from replicator_testbed.present import present
from replicator_testing.waiting import wait_until

HOLDERS = "original:1:boot", "standby:2:boot", "copy:3:boot"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    store = StateStore(f"sqlite:///{tmp_path}/state.db")
    store.create_replicator("shop", "config", str(tmp_path / "journal"))
    yield store
    store.close()


@pytest.fixture(params=["local", "object store"])
def uri(tmp_path: Path, store: StateStore, request: pytest.FixtureRequest) -> str:
    """Of the folder; `memory://` stands for an object store."""
    folder = str(tmp_path / "journal") if request.param == "local" else f"memory://bucket{tmp_path}"
    return open_folder(folder, present(store.replicator("shop")).uuid).uri


@pytest.fixture
def copy(tmp_path: Path, store: StateStore, uri: str) -> Iterator[StateStore]:
    """Of the store, made when the original had claimed the folder once."""
    claimed(store, uri)
    with (
        closing(sqlite3.connect(tmp_path / "state.db")) as old,
        closing(sqlite3.connect(tmp_path / "copy.db")) as new,
    ):
        old.backup(new)
    copy = StateStore(f"sqlite:///{tmp_path}/copy.db")
    yield copy
    copy.close()


def leased(store: StateStore, holder: str = HOLDERS[0]) -> Lease:
    lease = store.leases.acquire("shop", holder, 0.0)
    assert lease is not None
    return lease


def claimed(store: StateStore, uri: str, holder: str = HOLDERS[0]) -> JournalClaim:
    claim = JournalClaim(store=store, lease=leased(store, holder), uri=uri)
    claim.renew()
    return claim


def test_a_worker_a_later_one_and_a_standby_with_the_same_store_claim_the_folder(store: StateStore, uri: str) -> None:
    for holder in (HOLDERS[0], HOLDERS[0], HOLDERS[1]):
        worker = claimed(store, uri, holder)
        worker.renew()
        check_claim(store, "shop", uri)


def test_a_copy_is_refused_once_the_original_has_claimed_the_folder_again(
    store: StateStore, uri: str, copy: StateStore
) -> None:
    check_claim(copy, "shop", uri)
    claimed(store, uri, HOLDERS[1])
    before = JournalFolder(uri).get(CLAIM)
    with pytest.raises(ConfigError) as caught:
        claimed(copy, uri, HOLDERS[2])
    assert caught.value.code == "home_copied"
    assert "process 2 on host standby" in caught.value.message
    assert f"{uri}/{CLAIM}" in present(caught.value.action)
    assert JournalFolder(uri).get(CLAIM) == before
    check_claim(store, "shop", uri)


def test_a_copy_is_refused_when_the_process_that_ran_as_it_was_made_has_claimed_the_folder_again(
    tmp_path: Path, store: StateStore, uri: str
) -> None:
    worker = claimed(store, uri)
    with closing(sqlite3.connect(tmp_path / "state.db")) as old, closing(sqlite3.connect(tmp_path / "c.db")) as new:
        old.backup(new)
    worker.renew()
    copy = StateStore(f"sqlite:///{tmp_path}/c.db")
    with pytest.raises(ConfigError):
        check_claim(copy, "shop", uri)
    copy.close()


def test_the_original_is_refused_once_a_copy_has_claimed_the_folder(
    store: StateStore, uri: str, copy: StateStore
) -> None:
    claimed(copy, uri, HOLDERS[2])
    with pytest.raises(ConfigError) as caught:
        claimed(store, uri)
    assert caught.value.code == "home_copied"


def test_a_backup_may_be_used_once_the_claim_is_deleted(store: StateStore, uri: str, copy: StateStore) -> None:
    claimed(store, uri)
    JournalFolder(uri).delete(CLAIM)
    claimed(copy, uri, HOLDERS[2]).renew()
    check_claim(copy, "shop", uri)


def test_a_crash_before_the_claim_is_in_the_folder_changes_nothing(store: StateStore, uri: str) -> None:
    claimed(store, uri)
    for _ in range(3):
        store.leases.claim_journal("shop", leased(store).epoch, "never written", 1)
        check_claim(store, "shop", uri)


def test_what_a_worker_of_an_older_epoch_writes_late_is_known(store: StateStore, uri: str) -> None:
    late = claimed(store, uri)
    content = present(JournalFolder(uri).get(CLAIM))
    newer = claimed(store, uri, HOLDERS[1])
    for _ in range(100):
        store.leases.claim_journal("shop", newer.lease.epoch, "newer", 1)
    JournalFolder(uri).put(CLAIM, content)
    newer.renew()
    with pytest.raises(FencedError):
        late.renew()


def test_only_the_latest_tokens_are_kept(store: StateStore) -> None:
    epoch = leased(store).epoch
    for number in range(40):
        store.leases.claim_journal("shop", epoch, f"t{number}", number)
    store.leases.claim_journal("shop", epoch, "t30", 99)
    kept = store.leases.journal_claims("shop")
    assert len(kept) == 16
    assert list(kept.items())[-2:] == [("t39", 39), ("t30", 99)]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff"])
def test_a_damaged_claim_is_corruption(
    store: StateStore, uri: str, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "_LOOK_S", 0.0)
    JournalFolder(uri).put(CLAIM, content)
    with pytest.raises(CorruptStreamError) as caught:
        check_claim(store, "shop", uri)
    assert caught.value.code == "corrupt_journal"
    assert CLAIM in str(caught.value)


def test_the_claim_is_renewed_until_somebody_else_has_the_folder(
    store: StateStore, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "RENEW_S", 0.02)
    monkeypatch.setattr(claim, "_LOOK_S", 0.0)
    lost: list[ReplicatorError] = []
    is_lost = threading.Event()

    def lose(error: ReplicatorError) -> None:
        lost.append(error)
        is_lost.set()

    def count() -> int:
        return int(json.loads(present(JournalFolder(uri).get(CLAIM)))["count"])

    worker = claimed(store, uri)
    with worker.renewed(lose):
        wait_until(lambda: count() > 3, "it is renewed", timeout_s=30, every_s=0.01)
        assert not lost
    with worker.renewed(lose):
        others = {"token": "of a copy", "count": 1, "holder": HOLDERS[2], "at": "2026-01-31T12:00:00+00:00"}
        while not is_lost.wait(0.05):
            JournalFolder(uri).put(CLAIM, json.dumps(others).encode())
    assert [error.code for error in lost] == ["home_copied"]


def test_workers_that_write_at_once_leave_a_whole_file(tmp_path: Path) -> None:
    folder, contents = JournalFolder(str(tmp_path)), [f"{number}".encode() * 5000 for number in range(4)]
    folder.put(CLAIM, contents[0])

    def write(content: bytes) -> None:
        for _ in range(50):
            folder.put(CLAIM, content)
            assert folder.get(CLAIM) in contents

    with ThreadPoolExecutor(len(contents)) as pool:
        for written in [pool.submit(write, content) for content in contents]:
            written.result()
    assert list(folder.sizes()) == [CLAIM]


def test_removing_the_journal_removes_the_claim(store: StateStore, uri: str) -> None:
    claimed(store, uri)
    folder = JournalFolder(uri)
    for small in (CLAIM, MARKER):
        folder.put(f"{small}.0123abcd.new", b"of a crash")
    remove_journal(uri, present(store.replicator("shop")).uuid)
    assert folder.sizes() == {}

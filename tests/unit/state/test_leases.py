"""Leases: one holder at a time, and who held it before is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from replicator.model.errors import ConfigError, FencedError
from replicator.model.offset import Offset
from replicator.model.schema import TableId
from replicator.state import leases
from replicator.state.leases import holder_id, is_dead
from replicator.state.records import Preparation, Stage, TableRecord
from replicator.state.store import StateStore
from replicator_testbed.present import present

if TYPE_CHECKING:
    from tests.unit.state.conftest import FakeClock

TTL_S = 10.0
ELSEWHERE = "otherhost:1:boot/1/1"
TABLE = TableRecord(table=TableId("public", "a"), incarnation=1, stage=Stage.PENDING)

ACQUIRE = """
import sys
from replicator.state import StateStore, holder_id
store = StateStore(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
lease = store.leases.acquire("a", holder_id(), 60)
print("none" if lease is None else lease.epoch, flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def _replicator(store: StateStore) -> None:
    store.create_replicator("a", "config", "/j")


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def tell(child: subprocess.Popen[str]) -> str:
    present(child.stdin).write("go\n")
    present(child.stdin).flush()
    return present(child.stdout).readline().strip()


def test_each_new_holder_gets_the_next_epoch(store: StateStore, clock: FakeClock) -> None:
    assert store.leases.current("a") is None
    first = store.leases.acquire("a", holder_id(), TTL_S)
    assert first is not None
    assert first.epoch == 1
    assert store.leases.current("a") == first
    assert store.leases.acquire("a", ELSEWHERE, TTL_S) is None
    store.leases.release(first)
    assert store.leases.current("a") is None
    second = store.leases.acquire("a", ELSEWHERE, TTL_S)
    assert second is not None
    assert second.epoch == 2
    assert store.leases.acquire("a", holder_id(), TTL_S) is None
    clock.advance(TTL_S)
    assert store.leases.current("a") is None
    assert present(store.leases.acquire("a", holder_id(), TTL_S)).epoch == 3


def test_taking_ones_own_lease_again_fences_ones_older_self(store: StateStore) -> None:
    first = store.leases.acquire("a", holder_id(), TTL_S)
    assert first is not None
    second = store.leases.acquire("a", holder_id(), TTL_S)
    assert second is not None
    assert second.epoch == first.epoch + 1
    with pytest.raises(FencedError):
        store.leases.check_epoch("a", first.epoch)
    store.leases.check_epoch("a", second.epoch)


def test_a_renewed_lease_lasts(store: StateStore, clock: FakeClock) -> None:
    lease = store.leases.acquire("a", ELSEWHERE, TTL_S)
    assert lease is not None
    for _ in range(3):
        clock.advance(TTL_S - 1)
        lease = store.leases.renew(lease, TTL_S)
    assert store.leases.acquire("a", holder_id(), TTL_S) is None
    assert lease.epoch == 1


def test_a_store_that_is_set_back_beneath_its_holder_ends_the_lease(store: StateStore, clock: FakeClock) -> None:
    lease = store.leases.acquire("a", ELSEWHERE, TTL_S)
    assert lease is not None
    clock.advance(1)
    renewed = store.leases.renew(lease, TTL_S)
    assert store.leases.renew(lease, TTL_S) == renewed  # whose answer was lost
    clock.advance(1)
    older = replace(renewed, expires_at=renewed.expires_at + timedelta(seconds=1))
    with pytest.raises(FencedError, match="restored from a backup"):
        store.leases.renew(older, TTL_S)
    store.leases.release(renewed)
    assert present(store.leases.acquire("a", ELSEWHERE, TTL_S)).epoch == lease.epoch + 1


def test_an_expired_lease_that_nobody_took_can_be_renewed(store: StateStore, clock: FakeClock) -> None:
    lease = store.leases.acquire("a", ELSEWHERE, TTL_S)
    assert lease is not None
    clock.advance(10 * TTL_S)
    assert store.leases.renew(lease, TTL_S).epoch == lease.epoch


def test_a_holder_that_lost_the_lease_is_refused_everywhere(store: StateStore, clock: FakeClock) -> None:
    old = store.leases.acquire("a", ELSEWHERE, TTL_S)
    assert old is not None
    clock.advance(TTL_S)
    new = store.leases.acquire("a", holder_id(), TTL_S)
    for refused in (
        lambda: store.leases.renew(old, TTL_S),
        lambda: store.leases.check_epoch("a", old.epoch),
        lambda: store.seal("a", old.epoch, []),
        lambda: store.put_tables("a", old.epoch, [TABLE]),
        lambda: store.put_applied("a", old.epoch, []),
        lambda: store.drop_segments("a", old.epoch, [1]),
        lambda: store.set_preparation(old, Preparation.READY, Offset.of({"lsn": 1})),
        lambda: store.runs.start(old),
    ):
        with pytest.raises(FencedError) as caught:
            refused()
        assert caught.value.code == "fenced"
    store.leases.release(old)
    assert store.leases.current("a") == new
    assert store.tables("a") == []
    assert present(store.replicator("a")).preparation is Preparation.NONE


def test_a_released_lease_cannot_be_renewed(store: StateStore) -> None:
    lease = store.leases.acquire("a", holder_id(), TTL_S)
    assert lease is not None
    store.leases.release(lease)
    store.leases.release(lease)
    with pytest.raises(FencedError):
        store.leases.renew(lease, TTL_S)


def test_epochs_outlive_a_deleted_replicator(store: StateStore) -> None:
    last = [present(store.leases.acquire("a", holder_id(), TTL_S)).epoch for _ in range(3)][-1]
    store.delete_replicator("a", present(store.replicator("a")).uuid)
    with pytest.raises(FencedError):
        store.leases.check_epoch("a", last)
    store.create_replicator("a", "config", "/j")
    assert present(store.leases.acquire("a", holder_id(), TTL_S)).epoch == 4


def test_an_unknown_replicator_has_no_lease(store: StateStore) -> None:
    with pytest.raises(ConfigError) as caught:
        store.leases.acquire("b", holder_id(), TTL_S)
    assert caught.value.code == "unknown_replicator"
    assert store.leases.current("b") is None


def test_one_of_many_processes_gets_the_lease(store: StateStore, url: str) -> None:
    children = [start(ACQUIRE, url) for _ in range(3)]
    for child in children:
        assert present(child.stdout).readline() == "ready\n"
    for child in children:
        present(child.stdin).write("go\n")
        present(child.stdin).flush()
    answers = [present(child.stdout).readline().strip() for child in children]
    for child in children:
        child.communicate("end\n")
    assert sorted(answers) == ["1", "none", "none"]


def test_a_dead_holder_is_followed_at_once(url: str) -> None:
    real = StateStore(url)
    child = start(ACQUIRE, url)
    assert present(child.stdout).readline() == "ready\n"
    assert tell(child) == "1"
    assert real.leases.acquire("a", holder_id(), TTL_S) is None
    child.kill()
    child.communicate()
    assert real.leases.current("a") is None
    assert present(real.leases.acquire("a", holder_id(), TTL_S)).epoch == 2
    real.close()


def test_a_process_that_lives_is_not_dead() -> None:
    assert not is_dead(holder_id())
    assert not is_dead(holder_id(os.getppid()))


def test_a_later_process_with_the_same_pid_is_another() -> None:
    mine = holder_id()
    assert is_dead(mine[: mine.rindex("/")] + "/1")


@pytest.mark.parametrize("holder", ["", "x", "a:b:c", ELSEWHERE, "host:1:", ":::"])
def test_what_cannot_be_known_is_not_dead(holder: str) -> None:
    assert not is_dead(holder)


def test_a_process_of_another_boot_or_namespace_is_not_known_dead() -> None:
    host, _, rest = holder_id().partition(":")
    _, _, world = rest.partition(":")
    boot, namespace, started = world.split("/")
    assert not is_dead(f"{host}:999999:other/{namespace}/{started}")
    assert not is_dead(f"{host}:999999:{boot}/1/{started}")
    assert is_dead(f"{host}:999999:{boot}/{namespace}/{started}")


def test_a_zombie_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    holder = holder_id(child.pid)
    assert not is_dead(holder)
    present(child.stdin).close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_dead(holder)
    child.wait()


def test_without_proc_nobody_is_known_dead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(leases, "_PROC", tmp_path)
    assert not is_dead(holder_id(999_999))

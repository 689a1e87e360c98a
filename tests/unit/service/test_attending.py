"""What commands say of who does what was asked, in every state of a replicator and its workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from replicator.cli.entry import main
from replicator.model.errors import ConfigError
from replicator.model.schema import TableId
from replicator.service import attending, ddl, lifecycle
from replicator.state import holder_id, table_life
from replicator.state.records import Desired, ErrorRecord, RequestKind, Stage, TableRecord
from replicator.state.store import StateStore
from replicator.state.workers import WorkerRefusal
from replicator_testbed.present import present

ERROR = ErrorRecord(code="log_gap", message="The slot is lost.", action=None, at=datetime(2026, 1, 31, tzinfo=UTC))
STOPPED = ErrorRecord(code="ddl_stop", message="It stops.", action=None, at=ERROR.at)
SERVE = "elsewhere:1:boot/1/2"
NOBODY = "No worker is running. To start one: replicator serve (or run FILE)"
SOON = "A worker takes it within seconds."
FULL = "No worker has room for another replicator. To start one: replicator serve (or run FILE)"
CANNOT = "Process 1 on host elsewhere cannot run it: No PASSWORD. To see all workers: replicator workers"
PAUSED = "It is paused. To continue: replicator resume shop"
FAILED = "It has failed: [log_gap]. To start it again: replicator resume shop"
ORDERS = TableId("public", "orders")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StateStore]:
    """With a replicator that nobody runs, one of whose tables waits for `ddl accept`."""
    monkeypatch.setenv("REPLICATOR_HOME", str(tmp_path))
    monkeypatch.delenv("REPLICATOR_STATE_URL", raising=False)
    store = StateStore(f"sqlite:///{tmp_path}/state.db")
    store.create_replicator("shop", "name: shop", str(tmp_path / "journal"))
    lease = present(store.leases.acquire("shop", holder_id(), 60))
    stopped = TableRecord(table=ORDERS, incarnation=1, stage=Stage.FAILED, error=STOPPED)
    assert table_life.waits_for_acceptance(stopped)
    store.put_tables("shop", lease.epoch, [stopped])
    store.leases.release(lease)
    yield store
    store.close()


def serves(store: StateStore, *, capacity: int = 9, refuses: bool = False, is_draining: bool = False) -> None:
    refusals = {"shop": WorkerRefusal(code="variable_not_set", message="No PASSWORD.")} if refuses else {}
    store.workers.announce(SERVE, capacity=capacity, is_draining=is_draining, version="1", refusals=refusals)


def is_full(store: StateStore) -> None:
    store.create_replicator("till", "name: till", "/t")
    assert store.leases.acquire("till", SERVE, 60)
    serves(store, capacity=1)


def is_run(store: StateStore) -> None:
    assert store.leases.acquire("shop", SERVE, 60)


WORKERS: list[tuple[str, Callable[[StateStore], object], str]] = [
    ("no worker", lambda _: None, NOBODY),
    ("serve idle", serves, SOON),
    ("serve ends", lambda store: serves(store, is_draining=True), NOBODY),
    ("serve full", is_full, FULL),
    ("serve cannot", lambda store: serves(store, refuses=True), CANNOT),
    ("run by a worker", is_run, ""),
]


@pytest.mark.parametrize(("arrange", "said"), [case[1:] for case in WORKERS], ids=[case[0] for case in WORKERS])
def test_commands_say_who_does_it(store: StateStore, arrange: Callable[[StateStore], object], said: str) -> None:
    arrange(store)
    store.set_error("shop", ERROR)
    for command in (
        ("resume", "shop"),
        ("snapshot", "shop", "public.orders"),
        ("ddl", "accept", "shop", "public.orders"),
    ):
        printed = CliRunner().invoke(main, command)
        assert printed.exit_code == 0, printed.output
        assert printed.stdout.rstrip().endswith(said or ("To watch it: replicator status shop", "is set to run."))


@pytest.mark.parametrize("has_worker", [True, False])
def test_what_is_asked_of_a_paused_one_waits_for_its_resume(store: StateStore, has_worker: bool) -> None:
    if has_worker:
        is_run(store)
    store.set_desired("shop", Desired.PAUSED)
    for command in (("snapshot", "shop", "public.orders"), ("ddl", "accept", "shop", "public.orders")):
        assert CliRunner().invoke(main, command).stdout.rstrip().endswith(PAUSED)


def test_a_failed_one_is_to_be_resumed(store: StateStore) -> None:
    serves(store)
    store.set_error("shop", ERROR)
    assert attending.next_step(store, "shop") == FAILED
    printed = CliRunner().invoke(main, ["pause", "shop", "--apply"]).stdout
    assert printed == f"shop is paused (writes to the target only). To continue: replicator resume shop {FAILED}\n"
    assert CliRunner().invoke(main, ["pause", "shop"]).stdout.endswith("To continue: replicator resume shop\n")


def test_nothing_is_asked_of_one_that_was_deleted_half_way(store: StateStore) -> None:
    lifecycle.request_delete(store, "shop", drop_target=False, force=False)
    for ask in (
        lambda: lifecycle.pause(store, "shop", apply_only=True),
        lambda: lifecycle.resume(store, "shop"),
        lambda: lifecycle.snapshot(store, "shop", ()),
        lambda: ddl.accept(store, "shop", "public.orders"),
        lambda: attending.next_step(store, "shop"),
    ):
        with pytest.raises(ConfigError, match="Wait, or run: replicator delete shop --yes"):
            ask()
    assert [request.kind for request in store.requests.open("shop")] == [RequestKind.DELETE]
    assert present(store.replicator("shop")).desired is Desired.DELETED


def test_a_run_of_what_another_worker_holds_says_so_and_nothing_else(store: StateStore) -> None:
    is_run(store)
    with pytest.raises(ConfigError, match="shop is already run by process 1 on host elsewhere"):
        lifecycle.take(store, "shop")

"""What is said of workers, and which replicators a host leaves to others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from replicator.cli import show
from replicator.journal import JournalClaim, open_folder
from replicator.plugins.registry import Registry
from replicator.runtime.home import Home
from replicator.service import eligibility
from replicator.service.eligibility import refusal
from replicator.service.workers import workers
from replicator.state import holder_id
from replicator.state.records import Desired, RequestKind
from replicator.state.store import StateStore
from replicator.state.workers import WorkerRefusal
from replicator_testbed.present import present

CONFIG = "name: shop\nsource: {type: memory, password: '${env:SHOP_PASSWORD}'}\ntarget: {type: memory}\n"
ELSEWHERE = "north:77:boot/1/1"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    store = StateStore(f"sqlite:///{tmp_path / 'state.db'}")
    yield store
    store.close()


def test_each_worker_is_shown_with_what_it_runs_and_what_it_cannot(
    store: StateStore, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, holder in (("shop", ELSEWHERE), ("crm", ELSEWHERE), ("erp", holder_id())):
        store.create_replicator(name, "", "/j")
        store.leases.acquire(name, holder, 60)
    refusals = {"erp": WorkerRefusal(code="journal_missing", message="[not] there")}
    store.workers.announce(ELSEWHERE, capacity=5, is_draining=True, version="0.1.0", refusals=refusals)
    found = {one.host: one for one in workers(store)}
    north = found.pop("north")
    (here,) = found.values()
    assert (north.pid, north.state, north.replicators, north.capacity) == (77, "draining", ("crm", "shop"), 5)
    assert [(one.replicator, one.code) for one in north.refuses] == [("erp", "journal_missing")]
    assert (here.state, here.replicators, here.capacity) == ("running", ("erp",), None)
    show.workers(workers(store), as_json=False)
    shown = capsys.readouterr().out
    assert "crm, shop" in shown
    assert "2 of 5" in shown
    assert "north cannot run erp: [not] there [journal_missing]" in shown


def test_a_host_refuses_what_it_has_no_secret_or_no_journal_for(
    store: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, registry = Home(folder=tmp_path, state_url="postgresql://127.0.0.1/state"), Registry.discover()
    journal = tmp_path / "mount" / "journal"
    text = CONFIG.replace("memory, password", "postgresql, host: db, user: u, database: d, password").replace(
        "target: {type: memory}", f"target: {{type: delta, path: {tmp_path}}}"
    )
    record = store.create_replicator("shop", f"{text}journal: {{uri: {journal}}}\n", str(journal))
    monkeypatch.delenv("SHOP_PASSWORD", raising=False)
    assert present(refusal(store, home, registry, record)).code == "invalid_configuration"
    monkeypatch.setenv("SHOP_PASSWORD", "a-secret-of-the-test")
    assert refusal(store, home, registry, record) is None, (
        "nothing was captured yet: its folder is made by the first capture"
    )

    lease = present(store.leases.acquire("shop", ELSEWHERE, 60))
    JournalClaim(store=store, lease=lease, uri=open_folder(str(journal), record.uuid).uri).renew()
    assert refusal(store, home, registry, record) is None
    journal.rename(tmp_path / "not mounted")
    assert present(refusal(store, home, registry, record)).code == "journal_missing"
    store.requests.add("shop", RequestKind.RESTART, {"tables": []})
    assert refusal(store, home, registry, record) is None, "a new position of the log needs no old journal"

    monkeypatch.setattr(eligibility, "check_present", None)
    away = replace(home, state_url="postgresql://db.internal/state")
    assert present(refusal(store, away, registry, record)).code == "journal_not_shared"
    assert refusal(store, away, registry, replace(record, desired=Desired.DELETED)) is None
    assert refusal(store, replace(home, state_url="sqlite:////x/state.db"), registry, record) is None

"""`freshness` and `status --check`, on a real state store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from replicator.cli.entry import main
from replicator.model.events import SnapshotKind
from replicator.model.schema import TableId
from replicator.service.status.assemble import status
from replicator.service.status.objectives import BreachKind, breaches
from replicator.state import holder_id
from replicator.state.records import (
    AppliedRecord,
    ApplyState,
    Desired,
    ErrorRecord,
    Lease,
    Segment,
    SnapshotProgress,
    Stage,
    TableRecord,
    TargetCopy,
)
from replicator.state.store import StateStore
from replicator_testbed.present import present

NOW = datetime.now(UTC)
ERROR = ErrorRecord(code="schema_changed", message="no", action=None, at=NOW)
MISSING = ErrorRecord(code="table_missing", message="no", action=None, at=NOW)
ORDERS, LOGS = TableId("public", "orders"), TableId("public", "logs")
OBJECTIVE = """\
name: shop
freshness: 5m
tables:
  settings:
    public.*: {freshness: 1h}
    public.logs: {freshness: null}
    public.late: {freshness: 2m}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REPLICATOR_HOME", str(tmp_path))
    monkeypatch.delenv("REPLICATOR_STATE_URL", raising=False)
    return tmp_path


@pytest.fixture
def store(home: Path) -> Iterator[StateStore]:
    store = StateStore(f"sqlite:///{home}/state.db")
    yield store
    store.close()


def streaming(table: TableId, **values: Any) -> TableRecord:
    return TableRecord(table=table, incarnation=1, **{"stage": Stage.STREAMING, **values})


def applied(table: TableId, **values: Any) -> AppliedRecord:
    return AppliedRecord(table=table, incarnation=1, **{"copy": TargetCopy.WHOLE, **values})


def stored(
    store: StateStore,
    config: str = "name: shop\nfreshness: 5m\n",
    *,
    table: TableRecord | None = None,
    record: AppliedRecord | None = None,
    age: timedelta | None = timedelta(seconds=1),
) -> Lease:
    """A replicator that a worker runs, with one table that is so far behind."""
    store.create_replicator("shop", config, "/j")
    lease = present(store.leases.acquire("shop", holder_id(), 60))
    segment = Segment(
        id=1, first=0, last=-1, epoch=lease.epoch, offset=None, source_time=None if age is None else datetime.now(UTC) - age, ring=(),
        files=(), events=(), sealed_at=NOW,
    )  # fmt: skip
    store.seal("shop", lease.epoch, [segment], tables=[table or streaming(ORDERS)])
    store.put_applied("shop", lease.epoch, [record or applied(ORDERS)])
    return lease


def found(store: StateStore) -> list[tuple[BreachKind, str | None]]:
    return [(b.kind, b.table) for b in breaches(status(store, present(store.replicator("shop"))))]


def check(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["status", *arguments, "--check"])


def test_a_table_that_meets_its_objective_passes(store: StateStore) -> None:
    stored(store)
    (table,) = status(store, present(store.replicator("shop"))).tables
    assert (table.freshness_objective_s, table.is_objective_met) == (300.0, True)
    assert check("shop").exit_code == 0


def test_a_stale_table_exits_4_and_is_named(store: StateStore) -> None:
    stored(store, age=timedelta(minutes=6))
    assert found(store) == [(BreachKind.STALE, "public.orders")]
    done = check("shop")
    assert done.exit_code == 4
    assert "public.orders does not meet its objective (5m)" in done.stderr


def test_json_is_printed_and_the_check_still_decides(store: StateStore) -> None:
    stored(store, age=timedelta(minutes=6))
    done = check("shop", "--json")
    assert done.exit_code == 4
    assert json.loads(done.stdout)["tables"][0]["is_objective_met"] is False


def test_the_check_of_all_replicators_fails_for_one(store: StateStore) -> None:
    stored(store, age=timedelta(minutes=6))
    store.create_replicator("till", "name: till", "/t")
    assert store.leases.acquire("till", holder_id(), 60)
    assert (check("till").exit_code, check().exit_code, check("--json").exit_code) == (0, 4, 4)


def test_unknown_freshness_does_not_meet_an_objective(store: StateStore) -> None:
    stored(store, age=None)
    assert found(store) == [(BreachKind.UNKNOWN, "public.orders")]


def test_a_snapshot_in_place_makes_freshness_unknown(store: StateStore) -> None:
    progress = SnapshotProgress(kind=SnapshotKind.IN_PLACE, start_number=3)
    stored(store, table=streaming(ORDERS, stage=Stage.SNAPSHOT, snapshot=progress))
    assert found(store) == [(BreachKind.UNKNOWN, "public.orders")]


def test_the_first_snapshot_breaches_nothing(store: StateStore) -> None:
    record = applied(ORDERS, copy=TargetCopy.SNAPSHOT)
    lease = stored(store, table=streaming(ORDERS, stage=Stage.SNAPSHOT, snapshot=SnapshotProgress()), record=record)
    (table,) = status(store, present(store.replicator("shop"))).tables
    assert (table.freshness_objective_s, table.is_objective_met) == (300.0, None)
    assert found(store) == []
    # Captured, but not in the target yet.
    whole = SnapshotProgress(completed_at=NOW)
    store.put_tables("shop", lease.epoch, [streaming(ORDERS, snapshot=whole)])
    assert found(store) == []


@pytest.mark.parametrize("config", ["name: shop", "name: shop\nfreshness: 5m\n"])
def test_failures_count_with_and_without_an_objective(store: StateStore, config: str) -> None:
    lease = stored(store, config, table=streaming(ORDERS, stage=Stage.FAILED, error=ERROR))
    assert found(store) == [(BreachKind.TABLE_FAILED, "public.orders")]
    assert check("shop").exit_code == 4
    store.put_tables("shop", lease.epoch, [streaming(ORDERS, stage=Stage.FAILED, error=MISSING)])
    assert found(store) == [(BreachKind.TABLE_FAILED, "public.orders")]
    failed = applied(ORDERS, state=ApplyState.FAILED, error=ERROR)
    store.put_tables("shop", lease.epoch, [streaming(ORDERS)])
    store.put_applied("shop", lease.epoch, [failed])
    assert found(store) == [(BreachKind.TABLE_FAILED, "public.orders")]


def test_without_an_objective_nothing_is_stale(store: StateStore) -> None:
    stored(store, "name: shop", age=timedelta(days=6))
    assert found(store) == []


def test_no_worker_is_a_breach_whatever_is_wanted(store: StateStore) -> None:
    lease = stored(store, "name: shop")
    store.leases.release(lease)
    assert found(store) == [(BreachKind.NO_WORKER, None)]
    assert check("shop").exit_code == 4
    store.set_desired("shop", Desired.PAUSED)
    assert found(store) == [(BreachKind.NO_WORKER, None)]


def test_a_replicator_that_has_failed_is_a_breach(store: StateStore) -> None:
    stored(store, "name: shop")
    store.set_error("shop", ERROR)
    assert found(store) == [(BreachKind.FAILED, None)]


def test_an_unknown_name_exits_2(store: StateStore) -> None:
    assert check("nobody").exit_code == 2


def test_later_patterns_win_and_null_is_no_objective(store: StateStore) -> None:
    lease = stored(store, OBJECTIVE)
    others = [TableId("public", "late"), LOGS, TableId("audit", "trail")]
    store.put_tables("shop", lease.epoch, [streaming(table) for table in others])
    document = status(store, present(store.replicator("shop")))
    assert {table.table: table.freshness_objective_s for table in document.tables} == {
        "public.orders": 3600.0,
        "public.late": 120.0,
        "public.logs": None,
        "audit.trail": 300.0,
    }


def test_a_reference_is_resolved_and_one_that_leads_nowhere_is_refused(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(store, "name: shop\nfreshness: ${env:FRESH}\nsource: {password: '${env:NOT_ASKED_FOR}'}\n")
    monkeypatch.setenv("FRESH", "90s")
    (table,) = status(store, present(store.replicator("shop"))).tables
    assert table.freshness_objective_s == 90.0
    monkeypatch.delenv("FRESH")
    (table,) = status(store, present(store.replicator("shop"))).tables
    assert table.freshness_objective_s is None
    done = check("shop")
    assert done.exit_code == 2
    assert "FRESH is not set" in done.stderr
    assert "NOT_ASKED_FOR" not in done.stderr

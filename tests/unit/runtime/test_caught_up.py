"""Caught up is judged after what was asked for has begun, and never by a failure that a new copy has overtaken."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from replicator.model.schema import TableId
from replicator.runtime.caught_up import CatchUp, CaughtUp
from replicator.state.records import AppliedRecord, ErrorRecord, SnapshotProgress, Stage, TableRecord
from replicator.state.store import StateStore

NAME = "shop"
TABLE = TableId("public", "t")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    store = StateStore(f"sqlite:///{tmp_path / 'state.db'}")
    store.create_replicator(NAME, f"name: {NAME}", f"file://{tmp_path}/journal")
    yield store
    store.close()


def _put(store: StateStore, *, copied_at: datetime, failed_at: datetime, copied_in: int = 1) -> None:
    lease = store.acquire_lease(NAME, "test", 60)
    assert lease is not None
    progress = SnapshotProgress(started_at=copied_at, completed_at=copied_at)
    store.put_tables(
        NAME, lease.epoch, [TableRecord(table=TABLE, incarnation=copied_in, stage=Stage.STREAMING, snapshot=progress)]
    )
    error = ErrorRecord(code="schema_conflict", message="other columns", action=None, at=failed_at)
    applied = AppliedRecord(table=TABLE, incarnation=1, is_failing=True, error=error)
    store.put_applied(NAME, lease.epoch, [applied])


@pytest.mark.parametrize(("copied_after_s", "set_aside"), [(-60, (TABLE,)), (60, ())])
def test_a_failure_counts_until_a_copy_has_begun_after_it(
    store: StateStore, copied_after_s: int, set_aside: tuple[TableId, ...]
) -> None:
    _put(store, copied_at=NOON + timedelta(seconds=copied_after_s), failed_at=NOON)
    assert CatchUp(store=store, name=NAME, _asked=0, _place=0).check() == CaughtUp(set_aside=set_aside)


def test_a_failure_of_an_earlier_run_counts_at_once_where_nothing_is_left_to_try(store: StateStore) -> None:
    _put(store, copied_at=NOON - timedelta(minutes=2), failed_at=NOON - timedelta(minutes=1))
    catch_up = CatchUp(store=store, name=NAME, since=NOON, _asked=0, _place=0)
    assert catch_up.check() == CaughtUp(set_aside=(TABLE,))


def test_a_table_that_is_made_anew_is_waited_for_although_the_old_one_was_refused_once_more(store: StateStore) -> None:
    _put(store, copied_at=NOON, failed_at=NOON + timedelta(minutes=1), copied_in=2)
    assert CatchUp(store=store, name=NAME, _asked=0, _place=0).check() is None


def test_a_snapshot_that_was_asked_for_is_waited_for(store: StateStore) -> None:
    _put(store, copied_at=NOON, failed_at=NOON + timedelta(minutes=1))
    store.add_request(NAME, "snapshot", {"tables": [str(TABLE)]})
    assert CatchUp(store=store, name=NAME, _asked=0, _place=0).check() is None

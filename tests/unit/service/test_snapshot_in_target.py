"""How much of a snapshot the status says is in the target, apart from what is captured, and what it counts as changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from replicator.model.documents.status import TableState, TableStatus
from replicator.model.events import SnapshotKind
from replicator.model.schema import TableId
from replicator.service.status.assemble import status, statuses
from replicator.state import holder_id
from replicator.state.records import (
    AppliedRecord,
    Lease,
    Segment,
    SegmentFile,
    SnapshotProgress,
    Stage,
    TableRecord,
    TargetCopy,
)
from replicator.state.store import StateStore
from replicator_testbed.present import present

A = TableId("shop", "a")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    store = StateStore(f"sqlite:///{tmp_path}/state.db")
    store.create_replicator("shop", "name: shop\n", "/j")
    yield store
    store.close()


def file(first: int, *, rows: int, snapshot_rows: int) -> SegmentFile:
    return SegmentFile(
        table=A, incarnation=1, schema_fingerprint="0" * 16, uri=f"/j/{first}.parquet", rows=rows, bytes=100, sha256="ab" * 32,
        first=first, last=first + rows - 1, snapshot_rows=snapshot_rows, has_absent=False, has_key_changes=False,
    )  # fmt: skip


def capture(store: StateStore, lease: Lease, progress: SnapshotProgress, *, stage: Stage = Stage.SNAPSHOT) -> None:
    """40 rows of a snapshot, with 10 changes in between."""
    files = [
        file(0, rows=20, snapshot_rows=20),
        file(20, rows=10, snapshot_rows=0),
        file(30, rows=20, snapshot_rows=20),
    ]
    segments = [
        Segment(
            id=number, first=one.first, last=one.last, epoch=lease.epoch, offset=None, source_time=None, ring=(), files=(one,),
            events=(), sealed_at=store.now(),
        )
        for number, one in enumerate(files, start=1)
    ]  # fmt: skip
    table = TableRecord(table=A, incarnation=1, stage=stage, snapshot=progress)
    store.seal("shop", lease.epoch, segments, tables=[table])


def shown(store: StateStore) -> TableStatus:
    (table,) = status(store, present(store.replicator("shop"))).tables
    return table


def test_rows_are_in_the_target_once_their_files_are_applied(store: StateStore) -> None:
    lease = present(store.leases.acquire("shop", holder_id(), 60))
    progress = SnapshotProgress(rows=40, estimated_rows=100)
    capture(store, lease, progress)
    applied = AppliedRecord(table=A, incarnation=1, snapshot_rows=0)
    files = [
        file(0, rows=20, snapshot_rows=20),
        file(20, rows=10, snapshot_rows=0),
        file(30, rows=20, snapshot_rows=20),
    ]
    found = []
    for step in range(4):
        store.put_applied("shop", lease.epoch, [applied])
        table = shown(store)
        held = present(table.snapshot).rows_in_target
        found.append((held, table.changes_applied - table.snapshot_rows_applied))
        if step < len(files):
            applied = applied.applied([files[step]], last=files[step].last)
    assert found == [(0, 0), (20, 0), (20, 10), (40, 10)]


def test_a_table_is_not_streaming_before_its_snapshot_is_in_the_target(store: StateStore) -> None:
    lease = present(store.leases.acquire("shop", holder_id(), 60))
    capture(store, lease, SnapshotProgress(rows=40, completed_at=store.now()), stage=Stage.STREAMING)
    applied = AppliedRecord(table=A, incarnation=1, last_applied=19, rows=20, snapshot_rows=20)
    store.put_applied("shop", lease.epoch, [applied])
    table = shown(store)
    assert (table.state, present(table.snapshot).rows_in_target) == (TableState.SNAPSHOT, 20)
    store.put_applied("shop", lease.epoch, [replace(applied, last_applied=49, copy=TargetCopy.WHOLE)])
    table = shown(store)
    assert (table.state, present(table.snapshot).rows_in_target) == (TableState.STREAMING, 40)


def test_of_a_snapshot_in_place_only_its_own_rows_count(store: StateStore) -> None:
    """The first file is of the snapshot before."""
    lease = present(store.leases.acquire("shop", holder_id(), 60))
    progress = SnapshotProgress(kind=SnapshotKind.IN_PLACE, start_number=30, rows=20)
    capture(store, lease, progress)
    store.put_applied("shop", lease.epoch, [AppliedRecord(table=A, incarnation=1, copy=TargetCopy.WHOLE)])
    assert present(shown(store).snapshot).rows_in_target == 0


def test_tables_and_replicators_come_in_natural_order(store: StateStore) -> None:
    for name in ("shop-10", "shop-2"):
        store.create_replicator(name, f"name: {name}\n", "/j")
    lease = present(store.leases.acquire("shop", holder_id(), 60))
    tables = [TableRecord(table=TableId("shop", t), incarnation=1, stage=Stage.STREAMING) for t in ("t10", "t2", "a")]
    store.put_tables("shop", lease.epoch, tables)
    (shop,) = statuses(store, "shop")
    assert [table.table for table in shop.tables] == ["shop.a", "shop.t2", "shop.t10"]
    assert [one.name for one in statuses(store)] == ["shop", "shop-2", "shop-10"]

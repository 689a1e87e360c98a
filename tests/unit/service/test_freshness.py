"""Freshness is that of the position up to which everything is applied: through pauses and restarts, of idle tables, too."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from replicator.config.alerts import AlertsConfig
from replicator.model.events import SnapshotKind
from replicator.model.processes.reports import ApplyReport
from replicator.model.schema import TableId
from replicator.service.alerts.conditions import JournalRoom, look
from replicator.service.metrics import exposition
from replicator.service.status.assemble import status
from replicator.service.status.objectives import breaches
from replicator.state import holder_id
from replicator.state.records import (
    AppliedRecord,
    Desired,
    Lease,
    Segment,
    SegmentFile,
    SnapshotProgress,
    Stage,
    TableRecord,
    TargetCopy,
)
from replicator.state.store import StateStore
from replicator.web.recording import freshness_of
from replicator_testbed.present import present

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
IDLE, BUSY = TableId("public", "idle"), TableId("public", "busy")
HOUR = timedelta(hours=1)


class Clock:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


class Shop:
    """A replicator that a worker runs, and its state store."""

    def __init__(self, folder: Path) -> None:
        self.url, self.clock = f"sqlite:///{folder}/state.db", Clock()
        self.store = StateStore(self.url, clock=self.clock)
        self.store.create_replicator("shop", "name: shop\nfreshness: 30s\n", "/j")
        self.lease = self.take()
        self._segments, self._numbers = 0, 0

    def take(self) -> Lease:
        return present(self.store.leases.acquire("shop", holder_id(), 1_000_000))

    def restart(self) -> None:
        """Forget everything that this process knew."""
        self.store.close()
        self.store = StateStore(self.url, clock=self.clock)
        self.lease = self.take()

    def seal(self, *changed: TableId) -> None:
        """What capture does now: one change per table, or none at all (a heartbeat)."""
        files = [self._file(table, self._numbers + n) for n, table in enumerate(changed)]
        segment = Segment(
            id=self._segments + 1, first=self._numbers, last=self._numbers + len(files) - 1, epoch=self.lease.epoch, offset=None,
            source_time=self.clock.now, ring=(), files=tuple(files), events=(), sealed_at=self.clock.now,
        )  # fmt: skip
        self.store.seal("shop", self.lease.epoch, [segment], tables=[streaming(IDLE), streaming(BUSY)])
        self._segments, self._numbers = segment.id, segment.last + 1

    def apply(self, table: TableId, **values: Any) -> None:
        """What apply does now: everything that the journal has of the table."""
        last = self.store.journal.feed_tables("shop").get(table, -1)
        record = {"incarnation": 1, "last_applied": last, "copy": TargetCopy.WHOLE, **values}
        self.store.put_applied("shop", self.lease.epoch, [AppliedRecord(table=table, **record)])

    def found(self) -> dict[str, float | None]:
        document = status(self.store, present(self.store.replicator("shop")))
        return {row.table.removeprefix("public."): row.freshness_s for row in document.tables}

    @staticmethod
    def _file(table: TableId, number: int) -> SegmentFile:
        return SegmentFile(
            table=table, incarnation=1, schema_fingerprint="0" * 16, uri=f"file:///j/{number}.parquet", rows=1, bytes=100,
            sha256="ab" * 32, first=number, last=number, snapshot_rows=0, has_absent=False, has_key_changes=False,
        )  # fmt: skip


def streaming(table: TableId, **values: Any) -> TableRecord:
    return TableRecord(table=table, incarnation=1, **{"stage": Stage.STREAMING, **values})


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    shop.store.close()


def idle_for_an_hour(shop: Shop) -> None:
    """Both tables changed at noon and are applied; then an hour of heartbeats alone."""
    shop.seal(IDLE, BUSY)
    shop.apply(IDLE)
    shop.apply(BUSY)
    shop.clock.now += HOUR
    shop.seal()


def test_an_idle_table_is_as_old_as_the_last_heartbeat_through_a_pause_and_restarts(shop: Shop) -> None:
    idle_for_an_hour(shop)
    assert shop.found() == {"idle": 0, "busy": 0}
    # Paused: from here on it is as old as the pause.
    shop.store.set_desired("shop", Desired.PAUSED)
    shop.store.leases.release(shop.lease)
    shop.clock.now += timedelta(seconds=14)
    assert shop.found() == {"idle": 14, "busy": 14}
    shop.clock.now += HOUR
    assert shop.found() == {"idle": 3614, "busy": 3614}
    # Resumed: so it stays until the source has told a newer time; what apply says of itself is not asked.
    shop.restart()
    shop.store.set_desired("shop", Desired.RUNNING)
    assert shop.found() == {"idle": 3614, "busy": 3614}
    shop.store.put_report("shop", ApplyReport())
    shop.clock.now += timedelta(seconds=1)
    shop.seal()
    assert shop.found() == {"idle": 0, "busy": 0}


def test_a_backlog_counts_from_before_its_first_change_though_the_heartbeats_are_gone(shop: Shop) -> None:
    idle_for_an_hour(shop)
    shop.clock.now += timedelta(seconds=2)
    shop.seal(BUSY)
    assert shop.store.journal.segments("shop", 0, 10)[0].id == 1
    assert len(shop.store.journal.segments("shop", 0, 10)) == 2, "that of the heartbeat made room"
    shop.clock.now += timedelta(seconds=3)
    shop.seal(BUSY, IDLE)
    assert shop.found() == {"idle": 3, "busy": 5}, "each counts from what the journal had before"
    shop.restart()
    shop.apply(BUSY)
    shop.clock.now += timedelta(seconds=1)
    assert shop.found() == {"idle": 4, "busy": 1}


def test_while_apply_alone_is_paused_a_table_without_changes_stays_fresh(shop: Shop) -> None:
    idle_for_an_hour(shop)
    shop.store.set_desired("shop", Desired.RUNNING, apply_paused=True)
    shop.seal(BUSY)
    shop.clock.now += HOUR
    shop.seal()
    assert shop.found() == {"idle": 0, "busy": 3600}


def test_alerts_metrics_the_check_and_the_chart_have_the_same_figure(shop: Shop) -> None:
    idle_for_an_hour(shop)
    shop.clock.now += timedelta(seconds=20)
    record = present(shop.store.replicator("shop"))
    document = status(shop.store, record)
    assert breaches(document) == []
    assert look(document, AlertsConfig.model_validate({}), JournalRoom(bytes_max=1 << 30, disk=None)).conditions == {}
    assert (freshness_of(document).worst_s, freshness_of(document).late) == (20, 0)
    text = exposition(shop.store).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert {s.value for s in samples if s.name == "replicator_freshness_seconds"} == {20}


@pytest.mark.parametrize(
    ("table", "applied"),
    [
        ({"stage": Stage.FAILED}, {}),
        ({"snapshot": SnapshotProgress(kind=SnapshotKind.IN_PLACE, start_number=9)}, {}),
        ({}, {"copy": TargetCopy.SNAPSHOT}),
        ({"incarnation": 2}, {}),
    ],
    ids=["failed in capture", "snapshot not applied", "snapshot begun in the target", "to be begun again"],
)
def test_a_target_that_is_at_no_moment_of_the_source_has_none(
    shop: Shop, table: dict[str, Any], applied: dict[str, Any]
) -> None:
    idle_for_an_hour(shop)
    shop.store.put_tables(
        "shop", shop.lease.epoch, [TableRecord(**{"table": IDLE, "incarnation": 1, "stage": Stage.STREAMING, **table})]
    )
    shop.apply(IDLE, **applied)
    assert shop.found()["idle"] is None


def test_what_the_journal_dropped_unapplied_is_not_taken_for_applied(shop: Shop) -> None:
    idle_for_an_hour(shop)
    shop.seal(IDLE)
    shop.seal(BUSY)
    shop.store.drop_segments("shop", shop.lease.epoch, [3])
    assert shop.found() == {"idle": None, "busy": 0}

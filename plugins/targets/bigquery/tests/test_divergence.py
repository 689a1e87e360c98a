"""Rows that somebody removes in BigQuery are noticed when the source changes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from replicator.model.merged import Merged
from replicator_testbed.journals.applied import A, Shop
from replicator_testing.batches import delete, insert, update
from replicator_testing.target_harness import item

if TYPE_CHECKING:
    from plugins.targets.bigquery.tests.conftest import Warehouse


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    shop.store.close()


@pytest.mark.matrix
def test_a_row_that_somebody_deleted_is_an_alarm_until_a_snapshot_is_complete(shop: Shop, warehouse: Warehouse) -> None:
    def run() -> None:
        shop.new_epoch()
        shop.run(warehouse.target(uuid=shop.uuid, epoch=shop.epoch))

    shop.copy(A, 1, 2, 3)
    shop.rows(A, insert(0, item(4)), update(0, item(1, "x")), delete(0, item(3)))
    run()
    assert (shop.applied(A).merged, shop.applied(A).alarms) == (Merged(inserted=4, matched=1, deleted=1), ())
    warehouse.query(f"DELETE FROM `{warehouse.names.path(A)}` WHERE id = 2")
    shop.rows(A, update(0, item(2, "x", "1.00"), absent=["note"]), update(0, item(1, "y")))
    run()
    (alarm,) = shop.applied(A).alarms
    assert (alarm.code, alarm.count) == ("target_diverged", 1)
    assert shop.applied(A).merged == Merged(inserted=5, matched=2, deleted=1, not_found=1)
    start = shop.start_in_place(A)
    shop.rows(A, *[insert(0, item(i), is_snapshot=True) for i in (1, 2, 4)], commit=False)
    shop.complete(A, start)
    run()
    assert shop.applied(A).alarms == ()

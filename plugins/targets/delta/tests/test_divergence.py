"""What others do to a Delta table of ours is noticed; what changes no data is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from replicator.model.merged import Merged
from replicator_target_delta.config import DeltaLakeConfig
from replicator_target_delta.target import DeltaLakeTarget
from replicator_testbed.journals.applied import NAME, A, B, Shop
from replicator_testing.batches import delete, insert, update
from replicator_testing.defaults import target_context
from replicator_testing.target_harness import item, items_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    shop.store.close()


@pytest.fixture
def run(shop: Shop, spark: SparkSession, tmp_path: Path) -> Callable[[], None]:
    """Applies everything, as a new process."""

    def run() -> None:
        shop.new_epoch()
        context = target_context(replicator=NAME, uuid=shop.uuid, epoch=shop.epoch, spark=lambda: spark)
        shop.run(DeltaLakeTarget(DeltaLakeConfig(path=str(tmp_path / "lake")), context))

    return run


@pytest.mark.matrix
def test_what_others_change_is_an_alarm_until_a_snapshot_is_complete(
    shop: Shop, run: Callable[[], None], spark: SparkSession, tmp_path: Path
) -> None:
    path = f"delta.`{tmp_path}/lake/shop/a`"

    def alarms() -> dict[str, tuple[int, str]]:
        return {a.code: (a.count, a.message) for a in shop.applied(A).alarms}

    shop.copy(A, 1, 2, 3)
    shop.schemas[B] = items_schema(key=(), table=B)
    shop.begin(B, commit=False)
    last = shop.rows(B, *[insert(0, item(1), is_snapshot=True) for _ in range(3)], commit=False)
    shop.complete(B)
    shop.rows(A, insert(0, item(4)), update(0, item(1, "x")), delete(0, item(3)))
    run()
    assert (shop.applied(A).merged, alarms()) == (Merged(inserted=4, matched=1, deleted=1), {})
    # Upkeep by somebody else.
    spark.sql(f"OPTIMIZE {path}")
    spark.sql(f"REORG TABLE {path} APPLY (PURGE)")
    spark.sql(f"VACUUM {path}")
    shop.rows(A, update(0, item(1, "y")))
    run()
    assert (shop.applied(A).merged.matched, alarms()) == (2, {})

    spark.sql(f"DELETE FROM {path} WHERE id IN (2, 4)")
    spark.sql(f"DELETE FROM delta.`{tmp_path}/lake/shop/b` WHERE _sequence_num = {last}")
    shop.rows(A, update(0, item(2, "z", "1.00"), absent=["note"]), delete(0, item(4)), update(0, item(1, "z")))
    shop.rows(B, *[delete(0, item(1)) for _ in range(3)])
    run()
    assert {code: count for code, (count, _) in alarms().items()} == {"target_changed": 1, "target_diverged": 2}
    assert ": DELETE." in alarms()["target_changed"][1]
    assert shop.applied(A).merged == Merged(inserted=5, matched=3, deleted=1, not_found=2)
    assert {a.code: a.count for a in shop.applied(B).alarms} == {"target_changed": 1, "target_diverged": 1}
    assert shop.applied(B).merged == Merged(inserted=3, deleted=2, not_found=1)

    start = shop.start_in_place(A)
    shop.rows(A, *[insert(0, item(i), is_snapshot=True) for i in (1, 2)], commit=False)
    shop.complete(A, start)
    run()
    assert alarms() == {}
    spark.sql(f"RESTORE TABLE {path} TO VERSION AS OF 2")
    shop.rows(A, update(0, item(1, "after")))
    run()
    assert list(alarms()) == ["target_changed"]
    assert ": RESTORE." in alarms()["target_changed"][1]

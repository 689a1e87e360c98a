"""Tables that are recreated: because their settings changed, with kills amid it, and by one of two workers of one home."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import pytest

from replicator.model.documents.status import ReplicatorStatus
from replicator_testbed.demo.shop import ShopWriter
from replicator_testbed.present import present
from replicator_testbed.processes import kill_all
from replicator_testbed.rig import Rig, has_snapshots
from replicator_testbed.target_tables import TargetTables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.matrix  # three Sparks; its parts are tested with capture and with the target
def test_changed_settings_of_a_table_take_effect_when_it_is_recreated(
    rig: Rig, writer: ShopWriter, target_tables: TargetTables, spark: SparkSession
) -> None:
    rig.tables = ("products", "customers")
    rig.write_yaml()
    rig.catch_up()
    rig.write_yaml(settings={"public.products": {"deletes": "soft"}})
    rig.catch_up(check=1)
    error = rig.table("products").error
    assert error is not None
    assert error.code == "schema_conflict"
    fix = "replicator snapshot rig public.products --recreate"
    assert fix in present(error.action)
    rig.command(*fix.split()[1:])
    rig.database.execute("DELETE FROM products WHERE sku = 'SKU-7'")
    writer.stop()
    rig.catch_up()
    products_path = str(rig.lake / "public" / "products")
    live = spark.read.format("delta").load(products_path).where("NOT _is_deleted")
    skus = {row[0] for row in rig.database.execute("SELECT sku FROM products")}
    assert {row.sku for row in live.select("sku").collect()} == skus
    assert rig.differences(target_tables, but="products") == {}


@pytest.mark.matrix  # several runs of the command; what is durable of a rebuilding is tested with the pumps
@pytest.mark.parametrize("target", ["duckdb"])
def test_a_recreation_that_is_killed_is_completed(rig: Rig, writer: ShopWriter, target_tables: TargetTables) -> None:
    process = rig.start()
    rig.wait_for_status(has_snapshots, process)

    def incarnations() -> list[int]:
        return [table.incarnation for table in present(rig.status()).tables]

    def are_later(are: Callable[[Iterable[bool]], bool], before: list[int]) -> Callable[[ReplicatorStatus], bool]:
        return lambda _: are(now > then for now, then in zip(incarnations(), before, strict=True))

    for is_begun in (False, True, True):
        before = incarnations()
        rig.command("snapshot", rig.name, *map(rig.full_name, rig.tables), "--recreate")
        if is_begun:
            rig.wait_for_status(are_later(any, before), process)
        kill_all(process)
        process = rig.start()
        rig.wait_for_status(are_later(all, before), process)
    rig.wait_for_status(has_snapshots, process)
    writer.stop()
    rig.settle(process)
    assert rig.stop(process) == 0, rig.output()
    assert rig.differences(target_tables) == {}


@pytest.mark.matrix  # two programs wait for a lease; `test_several_hosts.py` has the same between hosts
@pytest.mark.parametrize("target", ["duckdb"])
def test_of_two_serves_on_one_home_one_works_and_the_other_takes_over(
    rig: Rig, writer: ShopWriter, target_tables: TargetTables
) -> None:
    rig.command("start", str(rig.file))
    first = rig.start("serve")
    rig.wait_for_status(has_snapshots, first)
    second = rig.start("serve")
    rig.settle(first)
    assert second.poll() is None, rig.output()
    before = present(present(rig.status()).worker)
    kill_all(first)
    rig.wait_for_status(lambda status: status.worker is not None and status.worker.epoch > before.epoch, second)
    writer.stop()
    rig.settle(second)
    assert rig.stop(second) == 0, rig.output()
    assert rig.differences(target_tables) == {}

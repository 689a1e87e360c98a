"""A table whose settings changed fails with the fix, and the fix recreates it while the others continue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from replicator_testbed.demo.shop import ShopWriter
from replicator_testbed.present import present
from replicator_testbed.rig import Rig
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

"""A table whose settings changed is set aside with the cure, and the cure makes it anew while the others go on."""

from __future__ import annotations

from typing import Any

import pytest

from replicator_testbed.copies import Copies
from replicator_testbed.demo.sources import Writer
from replicator_testbed.rig import Rig


@pytest.mark.slow  # three Sparks; its parts are tested with capture and with the target
def test_changed_settings_of_a_table_take_effect_when_it_is_recreated(
    rig: Rig, writer: Writer, copies: Copies, spark: Any
) -> None:
    rig.tables = ("products", "customers")
    rig.write_yaml()
    rig.catch_up()
    rig.write_yaml(settings={"public.products": {"deletes": "soft"}})
    rig.catch_up(check=1)
    error = rig.table("products").error
    assert error.code == "schema_conflict"
    cure = "replicator snapshot rig public.products --recreate"
    assert cure in error.action
    rig.command(*cure.split()[1:])
    rig.database.execute("DELETE FROM products WHERE sku = 'SKU-7'")
    writer.stop()
    rig.catch_up()
    products_path = str(rig.lake / "public" / "products")
    live = spark.read.format("delta").load(products_path).where("NOT _is_deleted")
    skus = {row[0] for row in rig.database.execute("SELECT sku FROM products")}
    assert {row.sku for row in live.select("sku").collect()} == skus
    assert rig.differences(copies, but="products") == {}

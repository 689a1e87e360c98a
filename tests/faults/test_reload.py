"""`reload` of a file that has a table more, and then one less, while everything is written to."""

from __future__ import annotations

import pytest

from replicator.model.documents.status import ReplicatorStatus, TableState
from replicator_testbed.demo.shop import ShopWriter
from replicator_testbed.rig import Rig, is_streaming, is_worker
from replicator_testbed.target_tables import TargetTables


def described(status: ReplicatorStatus) -> dict[str, tuple[int, object]]:
    """What a new snapshot or a new target table would change."""
    return {
        table.table: (table.incarnation, table.snapshot and (table.snapshot.rows, table.snapshot.is_in_place))
        for table in status.tables
    }


@pytest.mark.matrix
@pytest.mark.parametrize(("kind", "target"), [("postgresql", "duckdb"), ("postgresql", "delta"), ("mysql", "delta")])
def test_a_table_that_is_added_starts_and_the_others_continue(
    rig: Rig, writer: ShopWriter, target_tables: TargetTables
) -> None:
    process = rig.start()
    before = described(rig.wait_for_status(is_streaming, process))
    products, orders = (rig.full_name(name) for name in ("products", "orders"))

    rig.tables = [*rig.tables, "products"]
    rig.write_yaml()
    told = rig.command("reload", str(rig.file)).stdout
    assert f"  added: {products}, which gets a snapshot while the others continue" in told
    found = rig.wait_for_status(lambda s: is_streaming(s) and products in described(s), process)
    assert {table: told for table, told in described(found).items() if table != products} == before
    assert is_worker(found, process), "the same worker holds the lease"

    rig.tables = [name for name in rig.tables if name != "page_views"]
    rig.write_yaml()
    rig.command("reload", str(rig.file))
    removed = rig.full_name("page_views")
    found = rig.wait_for_status(lambda s: is_streaming(s) and removed not in described(s), process)
    assert described(found)[products][0] == 1
    assert orders not in described(found)

    writer.stop()
    rig.settle(process)
    assert rig.stop(process) == 0, rig.output()
    assert rig.differences(target_tables) == {}
    assert all(table.state is TableState.STREAMING for table in found.tables)

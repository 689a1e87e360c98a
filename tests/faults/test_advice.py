"""What `status` says of tables that others changed in the target is done as it stands there: the tables continue."""

from __future__ import annotations

import shlex

import duckdb
import pytest

from replicator.model.documents.status import TableState
from replicator_testbed.demo.shop import ShopWriter
from replicator_testbed.present import present
from replicator_testbed.rig import Rig
from replicator_testbed.target_tables import TargetTables

DONE = {
    "customers": [f"ALTER TABLE {{t}} RENAME COLUMN {one}" for one in ("name TO z", "email TO name", "z TO email")],
    "order_items": ["DROP TABLE {t}", "CREATE VIEW {t} AS SELECT 1 AS id"],
    "orders": ["DELETE FROM _replicator.ledger WHERE table_name = '{t}'"],
}
"""What somebody does to tables."""
BEFORE = {"order_items": ["DROP VIEW {t}"], "orders": ["DROP TABLE {t}"]}
"""What the advice says is to be done by hand first."""
CODES = {"customers": "schema_conflict", "order_items": "target_occupied", "orders": "not_ours"}


@pytest.mark.matrix  # the target's own test follows the advice of every code
@pytest.mark.parametrize("target", ["duckdb"])
def test_tables_continue_after_the_advice_of_the_status_was_followed(
    rig: Rig, writer: ShopWriter, target_tables: TargetTables
) -> None:
    rig.tables = ("customers", "order_items", "orders", "products")
    rig.write_to("duckdb")
    rig.catch_up()
    run(rig, DONE)
    writer.stop()
    for table, change in (("customers", "name = 'x'"), ("orders", "state = 'x'"), ("order_items", "quantity = 7")):
        rig.database.execute(f"UPDATE {table} SET {change}")
    rig.catch_up(check=1)
    failed = {
        one.table.partition(".")[2]: one for one in present(rig.status()).tables if one.state is TableState.FAILED
    }
    assert {name: present(one.error).code for name, one in failed.items()} == CODES
    run(rig, BEFORE)
    for name in failed:
        rig.command(*shlex.split(f"snapshot rig public.{name} --recreate"))
    rig.catch_up()
    assert rig.differences(target_tables) == {}


def run(rig: Rig, statements: dict[str, list[str]]) -> None:
    with duckdb.connect(str(rig.duckdb)) as connection:
        for table, texts in statements.items():
            for text in texts:
                connection.execute(text.format(t=f"public.{table}"))

"""What happens to a table behind our back, in between, and next to us."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from google.cloud import bigquery

from replicator.model.errors import FatalError, FencedError, TableError
from replicator.model.events import DDLOperation
from replicator.model.schema import TableId
from replicator.plugins.target import EMPTY_LEDGER, Claim, TargetTable
from replicator_target_bigquery.ledger import FORMAT
from replicator_target_bigquery.target import BigQueryTarget
from replicator_testing.batches import insert, write_batch
from replicator_testing.target_harness import STRANGER, UUID, Copy, as_tuples, item, items_schema

if TYPE_CHECKING:
    from plugins.targets.bigquery.tests.conftest import Warehouse


@pytest.fixture
def copy(warehouse: Warehouse, tmp_path: Path) -> Copy:
    schema = items_schema()
    table = TargetTable(table=schema.table, uuid=UUID, incarnation=1, epoch=1)
    copy = Copy(harness=warehouse, folder=tmp_path, schema=schema, table=table, target=warehouse.target())
    copy.create()
    copy.apply(insert(1, item(1, "a")))
    return copy


def make_table(warehouse: Warehouse, table: TableId, **labels: str) -> None:
    made = bigquery.Table(warehouse.names.path(table), [bigquery.SchemaField("x", "INT64")])
    made.labels = labels
    warehouse.client.create_table(made)


def test_the_ledger_is_one_row_that_says_everything(copy: Copy, warehouse: Warehouse) -> None:
    row = dict(warehouse.ledger(copy.table.table))
    assert row.pop("updated_at") is not None
    assert abs(row.pop("batch_at_ms") - time.time() * 1000) < 600_000
    ((_, batches, load_jobs, _, _),) = json.loads(row.pop("used"))
    assert (batches, load_jobs) == (1, 1)
    assert [name for name, *_ in json.loads(row.pop("table_columns"))][-2:] == ["note", "_sequence_num"]
    assert json.loads(row.pop("merged")) == {"matched": 0, "inserted": 1, "deleted": 0, "not_found": 0}
    made = warehouse.client.get_table(warehouse.names.path(copy.table.table)).created
    assert row == {
        "uuid": UUID, "table_name": "shop.items", "incarnation": 1, "epoch": 1, "sequence_num": 1, "made_in": 1,
        "made_at_ms": round(made.timestamp() * 1000), "shape": row["shape"], "state": "live", "format": 4,
        "source_position": None,
    }  # fmt: skip


@pytest.mark.matrix
def test_a_table_that_somebody_dropped_fails(copy: Copy, warehouse: Warehouse) -> None:
    warehouse.client.delete_table(warehouse.names.path(copy.table.table))
    with pytest.raises(TableError) as found:
        copy.restart()
    assert found.value.code == "target_replaced"
    copy.table = replace(copy.table, incarnation=2)
    assert copy.claim() == Claim(last_applied=EMPTY_LEDGER)
    copy.create(2)
    copy.apply(insert(3, item(3, "c")))
    assert copy.live() == as_tuples(copy.schema, [item(3, "c")])


def test_a_table_that_somebody_recreated_fails(copy: Copy, warehouse: Warehouse) -> None:
    warehouse.client.delete_table(warehouse.names.path(copy.table.table))
    make_table(warehouse, copy.table.table)
    with pytest.raises(TableError) as found:
        copy.restart()
    assert found.value.code == "target_replaced"
    copy.table = replace(copy.table, incarnation=2)
    with pytest.raises(TableError) as foreign:
        copy.claim()
    assert foreign.value.code == "not_ours"


@pytest.mark.matrix
def test_a_table_that_is_replaced_while_we_run_fails_before_the_next_batch(copy: Copy, warehouse: Warehouse) -> None:
    path = warehouse.names.path(copy.table.table)
    before = warehouse.client.get_table(path)
    warehouse.client.delete_table(path)
    restored = bigquery.Table(path, before.schema)
    restored.labels = before.labels
    warehouse.client.create_table(restored)
    for change in (lambda: copy.apply(insert(3, item(3, "c"))), lambda: copy.ddl(DDLOperation.TRUNCATE_TABLE, 4)):
        with pytest.raises(TableError) as found:
            change()
        assert found.value.code == "target_replaced"
    assert copy.live() == as_tuples(copy.schema, [])


@pytest.mark.matrix
def test_two_tables_of_one_name_never_share_a_ledger(copy: Copy, warehouse: Warehouse) -> None:
    """The second came while the first was replicated, so that nobody compared their names before."""
    other = TableId("shop", "items")
    assert warehouse.names.path(other) == warehouse.names.path(copy.table.table)
    ledger_path = warehouse.names.ledger(copy.table.table)
    warehouse.query(f"UPDATE `{ledger_path}` SET table_name = 'shop.it-ems' WHERE TRUE")
    with pytest.raises(TableError) as found:
        copy.restart()
    assert found.value.code == "table_names_clash"
    assert warehouse.ledger(other)["table_name"] == "shop.it-ems"
    copy.target.forget(copy.table)
    copy.target.drop(copy.table)
    assert warehouse.ledger(other)["table_name"] == "shop.it-ems", "it is the other's"
    warehouse.client.get_table(warehouse.names.path(other))


@pytest.mark.matrix
def test_staging_of_two_replicators_is_apart(copy: Copy, warehouse: Warehouse) -> None:
    other = replace(copy.table, uuid="11111111-2222-3333-4444-555555555555")
    assert warehouse.names.staging(copy.table, 1, 2) != warehouse.names.staging(other, 1, 2)
    assert not warehouse.names.staging_prefix(other).startswith(warehouse.names.staging_prefix(copy.table))


def test_a_table_whose_ledger_is_missing_fails(copy: Copy, warehouse: Warehouse) -> None:
    warehouse.client.delete_table(warehouse.names.ledger(copy.table.table))
    with pytest.raises(TableError) as found:
        copy.restart()
    assert found.value.code == "target_replaced"
    copy.table = replace(copy.table, incarnation=2)
    copy.create(2)
    copy.target.publish(copy.table, 3)
    assert copy.stored() == []


def test_a_second_row_in_the_ledger_fails_the_table(copy: Copy, warehouse: Warehouse) -> None:
    path = warehouse.names.ledger(copy.table.table)
    warehouse.query(f"INSERT INTO `{path}` SELECT * FROM `{path}`")
    with pytest.raises(TableError) as found:
        copy.apply(insert(2, item(2, "b")))
    assert found.value.code == "ledger_damaged"
    assert copy.live() == as_tuples(copy.schema, [item(1, "a")])


@pytest.mark.matrix
@pytest.mark.parametrize(("number", "code"), [(FORMAT + 1, "newer_ledger"), (FORMAT - 1, "older_ledger")])
def test_a_ledger_of_another_format_is_not_touched(copy: Copy, warehouse: Warehouse, number: int, code: str) -> None:
    path = warehouse.names.ledger(copy.table.table)
    warehouse.query(f"UPDATE `{path}` SET format = {number} WHERE TRUE")
    with pytest.raises(FatalError) as found:
        copy.restart()
    assert found.value.code == code


@pytest.mark.matrix
def test_the_ledger_knows_the_source_position_of_the_last_batch(copy: Copy, warehouse: Warehouse) -> None:
    position = '{"lsn":"0/16B3748","note":"it\'s"}'
    batch = write_batch(copy.folder, copy.schema, [insert(2, item(2, "b"))], skip_to=1)
    copy.target.apply_batch(copy.table, replace(batch, source_position=position))
    assert warehouse.ledger(copy.table.table)["source_position"] == position
    copy.target.advance(copy.table, 3)
    assert warehouse.ledger(copy.table.table)["source_position"] == position


@pytest.mark.matrix
def test_a_table_rests_and_a_budget_counts_across_a_restart(
    new_warehouse: Callable[..., Warehouse], tmp_path: Path
) -> None:
    warehouse = new_warehouse(budget={"load_jobs_per_day": 4})
    warehouse.max_wait_s = 3600.0
    schema = items_schema()
    table = TargetTable(table=schema.table, uuid=UUID, incarnation=1, epoch=1)
    copy = Copy(harness=warehouse, folder=tmp_path, schema=schema, table=table, target=warehouse.target())
    copy.create()
    assert copy.target.rest_s(schema.table, is_behind=False) == 0
    copy.apply(insert(1, item(1, "a")))
    assert 3000 < copy.target.rest_s(schema.table, is_behind=False) <= 3600
    copy.restart(epoch=2)
    assert 3000 < copy.target.rest_s(schema.table, is_behind=False) <= 3600
    assert copy.target.rest_s(schema.table, is_behind=True) == 0
    for number in (2, 3, 4):
        copy.apply(insert(number, item(number, "a")))
        copy.restart(epoch=number + 1)
    assert copy.target.rest_s(schema.table, is_behind=True) > 80_000, "the day's load jobs are used up"


def test_a_view_of_the_name_is_never_replaced(warehouse: Warehouse, tmp_path: Path) -> None:
    schema = items_schema()
    warehouse.client.create_dataset(warehouse.names.dataset(schema.table))
    view = bigquery.Table(warehouse.names.path(schema.table))
    view.view_query = "SELECT 1 AS x"
    warehouse.client.create_table(view)
    target = warehouse.target(adopt="replace")
    with pytest.raises(TableError) as found:
        target.claim(TargetTable(table=schema.table, uuid=UUID, incarnation=1, epoch=1))
    assert found.value.code == "target_occupied"
    assert "target_occupied" in {p.code for p in target.check([schema])}


@pytest.mark.matrix
def test_a_foreign_table_is_replaced_on_demand(warehouse: Warehouse, tmp_path: Path) -> None:
    schema = items_schema()
    warehouse.client.create_dataset(warehouse.names.dataset(schema.table))
    make_table(warehouse, schema.table, team="others")
    table = TargetTable(table=schema.table, uuid=UUID, incarnation=1, epoch=1)
    copy = Copy(harness=warehouse, folder=tmp_path, schema=schema, table=table, target=warehouse.target())
    with pytest.raises(TableError) as refused:
        copy.claim()
    assert refused.value.code == "not_ours"
    copy.target = warehouse.target(adopt="replace")
    copy.create()
    copy.apply(insert(1, item(1, "a")))
    assert copy.live() == as_tuples(schema, [item(1, "a")])


@pytest.mark.matrix
def test_a_replicator_whose_table_was_adopted_is_shut_out(copy: Copy, warehouse: Warehouse) -> None:
    heir = replace(
        copy, table=replace(copy.table, uuid=STRANGER), target=warehouse.target(uuid=STRANGER, adopt="replace")
    )
    heir.create(5)
    with pytest.raises(TableError) as refused:
        copy.apply(insert(2, item(2, "b")))
    assert refused.value.code == "not_ours"
    assert heir.live() == []


@pytest.mark.matrix
def test_a_zombie_of_an_older_incarnation_cannot_drop_what_the_newer_one_made(copy: Copy, warehouse: Warehouse) -> None:
    heir = replace(copy, table=replace(copy.table, incarnation=2, epoch=2), target=warehouse.target(epoch=2))
    heir.create(5)
    heir.apply(insert(6, item(6, "new")))
    for act in (
        lambda: copy.ddl(DDLOperation.DROP_TABLE, 2),
        lambda: copy.ddl(DDLOperation.CREATE_TABLE, 3),
        lambda: copy.apply(insert(4, item(4, "zombie"))),
    ):
        with pytest.raises((FencedError, TableError)):
            act()
    heir.target.publish(heir.table, 7)
    assert heir.live() == as_tuples(heir.schema, [item(6, "new")])
    assert heir.restart() == Claim(last_applied=7)


def test_a_crash_in_the_middle_of_a_drop_is_no_loss(copy: Copy, warehouse: Warehouse) -> None:
    """The intent is recorded, the table was dropped, the ledger has not moved yet."""
    path = warehouse.names.ledger(copy.table.table)
    warehouse.query(f"UPDATE `{path}` SET state = 'dropping' WHERE TRUE")
    warehouse.client.delete_table(warehouse.names.path(copy.table.table))
    assert copy.restart() == Claim(last_applied=1)
    copy.ddl(DDLOperation.DROP_TABLE, 2)
    assert copy.restart() == Claim(last_applied=2)


@pytest.mark.matrix
def test_upkeep_removes_what_older_processes_left_in_staging(copy: Copy, warehouse: Warehouse) -> None:
    names = warehouse.names
    assert isinstance(copy.target, BigQueryTarget)
    store = copy.target._store
    left = names.staging(copy.table, 5, 9)
    warehouse.client.create_table(bigquery.Table(left, [bigquery.SchemaField("x", "INT64")]))
    prefix = warehouse.values["staging"]["prefix"]
    with (copy.folder / "x").open("wb+") as file:
        file.write(b"x")
        store.put(f"{prefix}/{UUID}/{left.rpartition('.')[2]}/x.parquet", file)
    assert copy.target.maintain(copy.table) is None
    assert len(warehouse.leftovers()) == 2
    copy.restart(epoch=2)
    assert copy.target.maintain(copy.table) == {"removed": 2}
    assert copy.target.maintain(copy.table) is None
    assert warehouse.leftovers() == []


@pytest.mark.matrix
def test_a_forgotten_table_keeps_its_rows(copy: Copy, warehouse: Warehouse) -> None:
    for _ in range(2):
        copy.target.forget(copy.table)
    assert copy.live() == as_tuples(copy.schema, [item(1, "a")])
    assert [t.table_id for t in warehouse.client.list_tables(names_of(warehouse))] == []


def names_of(warehouse: Warehouse) -> str:
    return warehouse.names.own_dataset

"""A new incarnation is built out of readers' sight, and replaces the older one when it is complete."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from google.api_core.exceptions import GoogleAPICallError
from google.cloud import bigquery

from replicator.model import crash
from replicator.model.errors import FencedError, TableError, TargetUnavailableError
from replicator.model.events import DDLOperation
from replicator.model.schema import Column, TableSchema
from replicator.plugins.target import EMPTY_LEDGER, Claim, TargetTable
from replicator_target_bigquery import statements
from replicator_testing.alterations import Killed, evolved, killed_at, numbered, text_column
from replicator_testing.batches import delete, insert, update
from replicator_testing.target_harness import UUID, Copy, as_tuples, item, items_schema

from .service import Fault, Service, job, request

if TYPE_CHECKING:
    from plugins.targets.bigquery.tests.conftest import Warehouse
    from replicator_testbed.bigquery.emulator import BigQueryEmulator

OLD = [(1, "old", None, None)]


def schema_of(key: tuple[str, ...] = ("id",)) -> TableSchema:
    """The second incarnation's: another type of `amount`, comments, perhaps another key."""
    columns = [
        replace(
            c,
            type=pa.string() if c.name == "amount" else c.type,
            comment="It's the key" if c.name == "id" else None,
            nullable=c.name not in key,
        )
        for c in items_schema().columns
    ]
    return numbered(replace(items_schema(), columns=tuple(columns), key=key, comment="Items\nof 'the' shop"))


def first(warehouse: Warehouse, folder: Path) -> Copy:
    """A table of the first incarnation with one row."""
    schema = numbered(items_schema())
    table = TargetTable(table=schema.table, uuid=UUID, incarnation=1, epoch=1)
    copy = Copy(harness=warehouse, folder=folder, schema=schema, table=table, target=warehouse.target())
    copy.create()
    copy.apply(insert(1, item(1, "old")))
    copy.target.publish(copy.table, 2)
    copy.ledger = 2
    return copy


@pytest.fixture
def copy(warehouse: Warehouse, tmp_path: Path) -> Copy:
    return first(warehouse, tmp_path)


@pytest.fixture
def service(emulator: BigQueryEmulator) -> Iterator[Service]:
    with Service(upstream=emulator.endpoint, storage=emulator.storage) as service:
        yield service


def begin(copy: Copy, *, key: tuple[str, ...] = ("id",), incarnation: int = 2) -> None:
    """The next incarnation, with a snapshot of two rows that is not complete."""
    copy.table = replace(copy.table, incarnation=incarnation)
    copy.schema = schema_of(key)
    copy.create(10)
    copy.apply(insert(11, row(1, "a")), insert(12, row(2, "b")), is_append=True)


def row(id_: int, name: str) -> dict[str, Any]:
    return {"id": id_, "name": name, "amount": f"{id_} EUR", "note": None}


def publish(copy: Copy, sequence_num: int = 20) -> None:
    copy.target.publish(copy.table, sequence_num)
    copy.ledger = max(copy.ledger, sequence_num)


def read(warehouse: Warehouse) -> list[tuple[Any, ...]]:
    """What readers have."""
    found = warehouse.query(f"SELECT id, name, amount, note FROM `{warehouse.names.path(items_schema().table)}`")
    return sorted(tuple(r.values()) for r in found)


NEW = [(1, "a", "1 EUR", None), (2, "b", "2 EUR", None)]


def built(warehouse: Warehouse) -> list[str]:
    tables = warehouse.client.list_tables(warehouse.names.own_dataset)
    return sorted(t.table_id.rpartition("_")[2] for t in tables if t.table_id.startswith("building_"))


@pytest.mark.matrix
def test_publishing_a_first_incarnation_moves_the_ledger_alone(copy: Copy, warehouse: Warehouse) -> None:
    assert copy.restart() == Claim(last_applied=2)
    assert read(warehouse) == OLD
    publish(copy)
    publish(copy)
    assert copy.restart() == Claim(last_applied=20)
    assert read(warehouse) == OLD


def test_readers_have_the_older_table_until_the_new_one_is_complete(copy: Copy, warehouse: Warehouse) -> None:
    begin(copy)
    assert (read(warehouse), built(warehouse)) == (OLD, ["2"])
    copy.apply(update(13, row(1, "c")), delete(14, {"id": 2}), insert(15, row(3, "d")), expects_rows=True)
    assert copy.restart() == Claim(last_applied=15)
    assert read(warehouse) == OLD
    publish(copy)
    assert (read(warehouse), built(warehouse)) == ([(1, "c", "1 EUR", None), (3, "d", "3 EUR", None)], [])
    publish(copy)
    assert copy.restart(epoch=2) == Claim(last_applied=20)
    copy.apply(update(21, row(1, "e"), absent=["amount"]), delete(22, {"id": 3}), expects_rows=True)
    assert read(warehouse) == [(1, "e", "1 EUR", None)]
    assert copy.audit().not_found == 0


@pytest.mark.matrix
def test_the_published_table_is_described_in_full(copy: Copy, warehouse: Warehouse) -> None:
    begin(copy)
    publish(copy)
    path = warehouse.names.path(copy.table.table)
    table = warehouse.client.get_table(path)
    assert table.labels == {
        "replicator_uuid": UUID, "replicator_incarnation": "2", "replicator_shape": table.labels["replicator_shape"],
    }  # fmt: skip
    assert table.description == "Items\nof 'the' shop"
    assert [(f.name, f.mode, f.description) for f in table.schema][:2] == [
        ("id", "REQUIRED", "It's the key"), ("name", "NULLABLE", None),
    ]  # fmt: skip
    assert table.clustering_fields == ["id"]
    ledger = warehouse.ledger(copy.table.table)
    assert (ledger["state"], ledger["made_in"], ledger["incarnation"]) == ("live", 2, 2)
    assert ledger["made_at_ms"] == round(table.created.timestamp() * 1000)
    assert ledger["shape"] == table.labels["replicator_shape"]


@pytest.mark.matrix
@pytest.mark.parametrize(("key", "is_dropped"), [("name", False), ("amount", True)])
def test_a_table_that_is_clustered_otherwise_is_replaced(
    service: Service, new_warehouse: Callable[..., Warehouse], tmp_path: Path, key: str, is_dropped: bool
) -> None:
    """BigQuery refuses to replace one by the other. It lets the older one be clustered by a column that both have, in the same type."""
    warehouse = new_warehouse(endpoint=service.endpoint)
    copy = first(warehouse, tmp_path)
    begin(copy, key=(key,))
    assert read(warehouse) == OLD
    drop = Fault("fail_job", job(r"DROP TABLE IF EXISTS `[^`]*_shop\.items`"))
    service.faults.append(drop)
    if is_dropped:
        with pytest.raises(TargetUnavailableError):
            publish(copy)
        assert read(warehouse) == OLD
    publish(copy)
    assert (read(warehouse), drop.times) == (NEW, 0 if is_dropped else 1)
    assert warehouse.client.get_table(warehouse.names.path(copy.table.table)).clustering_fields == [key]
    copy.apply(update(21, {**row(3, "a"), "amount": "1 EUR"}), expects_rows=True)
    assert [r[0] for r in read(warehouse)] == [2, 3]


@pytest.mark.matrix
def test_a_clustering_that_bigquery_does_not_change_is_replaced(
    service: Service, new_warehouse: Callable[..., Warehouse], tmp_path: Path
) -> None:
    warehouse = new_warehouse(endpoint=service.endpoint)
    copy = first(warehouse, tmp_path)
    begin(copy, key=("name",))
    refused = Fault("refuse", request("PATCH", "/tables/items$"), status=400, reason="invalid")
    service.faults.append(refused)
    publish(copy)
    assert (read(warehouse), refused.times) == (NEW, 0)


@pytest.mark.matrix
def test_a_publication_between_the_drop_and_its_replacement_is_completed(copy: Copy, warehouse: Warehouse) -> None:
    begin(copy, key=("name",))
    warehouse.client.delete_table(warehouse.names.path(copy.table.table))
    assert copy.restart(epoch=2) == Claim(last_applied=12)
    publish(copy)
    assert read(warehouse) == NEW


@pytest.mark.matrix
@pytest.mark.sampled(1)
@pytest.mark.parametrize("key", [("id",), ("amount",)])
def test_a_new_incarnation_that_was_killed_anywhere_is_completed(
    copy: Copy, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, key: tuple[str, ...]
) -> None:
    """Each process dies one step later, and each time readers have one table or the other, whole."""

    def work(epoch: int) -> None:
        copy.schema, copy.table = schema_of(key), replace(copy.table, incarnation=2)
        last = copy.restart(epoch=epoch).last_applied
        if last < 10:
            copy.ddl(DDLOperation.CREATE_TABLE, 10)
        if last < 12:
            copy.ledger = 10
            copy.apply(insert(11, row(1, "a")), insert(12, row(2, "b")), is_append=True)
        publish(copy)

    points = [
        "target.claimed", "target.table_made", "target.after_ddl", "target.loaded", "target.merged", "target.replaced",
        "target.building_dropped",
    ]  # fmt: skip
    for epoch, point in enumerate([*points, *points[-2:]], start=2):
        with killed_at(point, monkeypatch), suppress(Killed):
            work(epoch)
            passed = crash._hits[point]
            assert not passed, point
        assert read(warehouse) in (OLD, NEW), point
        is_in_place = point in {"target.replaced", "target.building_dropped"}
        assert (read(warehouse) == NEW) is is_in_place, point
    work(20)
    assert (read(warehouse), built(warehouse)) == (NEW, [])
    assert copy.restart(epoch=21) == Claim(last_applied=20)
    copy.apply(delete(21, row(1, "a")), expects_rows=True)
    assert read(warehouse) == NEW[1:]


@pytest.mark.matrix
def test_an_incarnation_that_never_was_complete_is_swept_by_the_next(copy: Copy, warehouse: Warehouse) -> None:
    begin(copy)
    stale = replace(copy)
    copy.target = warehouse.target(epoch=2)
    copy.table = replace(copy.table, epoch=2)
    begin(copy, incarnation=3)
    assert (read(warehouse), built(warehouse)) == (OLD, ["3"])
    for act in (lambda: publish(stale), lambda: stale.apply(insert(13, row(9, "z"))), stale.create):
        with pytest.raises(FencedError):
            act()
    assert (read(warehouse), built(warehouse)) == (OLD, ["3"])
    publish(copy)
    assert (read(warehouse), built(warehouse)) == (NEW, [])
    with pytest.raises(FencedError):
        publish(stale)
    assert read(warehouse) == NEW


@pytest.mark.matrix
def test_what_an_older_epoch_still_sends_changes_nothing(copy: Copy, warehouse: Warehouse) -> None:
    """Its ledger check has passed, and then it slept."""
    begin(copy)
    zombie = replace(copy)
    built_at, published = warehouse.names.building(copy.table), warehouse.names.path(copy.table.table)
    late = statements.replaced_by(published, built_at, labels={}, description=None, kms_key=None, is_replaceable=True)
    copy.restart(epoch=2)
    publish(copy)
    copy.apply(delete(21, {"id": 1}), expects_rows=True)
    with pytest.raises(GoogleAPICallError, match="building_"):
        warehouse.query(late)
    with pytest.raises(FencedError):
        publish(zombie)
    assert read(warehouse) == NEW[1:]
    copy.apply(delete(22, {"id": 2}), expects_rows=True)
    assert read(warehouse) == []


@pytest.mark.matrix
def test_changes_of_the_table_go_where_it_is_built(copy: Copy, warehouse: Warehouse) -> None:
    begin(copy)
    before = copy.schema
    wanted = evolved(before, rename={"note": "remark"}, add=[text_column("extra", 9)])
    copy.alter(wanted, {"extra": "e"})
    copy.ddl(DDLOperation.TRUNCATE_TABLE, 14)
    copy.apply(insert(15, {**row(5, "x"), "remark": "r", "extra": "f"}))
    copy.alter(evolved(wanted, drop=["extra"]), sequence_num=16)
    copy.target.complete_snapshot(copy.table, 15, 17)
    assert read(warehouse) == OLD
    publish(copy)
    assert copy.live() == as_tuples(copy.schema, [{**row(5, "x"), "remark": "r"}])
    assert copy.restart() == Claim(last_applied=20)
    copy.alter(evolved(copy.schema, rename={"remark": "note"}))
    assert read(warehouse) == [(5, "x", "5 EUR", "r")]


@pytest.mark.matrix
def test_a_dropped_table_leaves_neither_of_the_two(copy: Copy, warehouse: Warehouse) -> None:
    begin(copy)
    copy.ddl(DDLOperation.DROP_TABLE, 13)
    assert not warehouse.exists(copy.table)
    assert built(warehouse) == []
    assert copy.restart(epoch=2) == Claim(last_applied=13)
    copy.table = replace(copy.table, incarnation=3)
    assert copy.claim() == Claim(last_applied=EMPTY_LEDGER)
    copy.create(14)
    copy.apply(insert(15, row(1, "a")))
    assert (read(warehouse), built(warehouse)) == (NEW[:1], []), "readers had none: there is nothing to build"


@pytest.mark.matrix
def test_a_drop_that_was_interrupted_is_completed(copy: Copy, warehouse: Warehouse) -> None:
    begin(copy)
    warehouse.query(f"UPDATE `{warehouse.names.ledger(copy.table.table)}` SET state = 'dropping' WHERE TRUE")
    assert copy.restart() == Claim(last_applied=12)
    copy.ddl(DDLOperation.DROP_TABLE, 13)
    assert (warehouse.exists(copy.table), built(warehouse)) == (False, [])


@pytest.mark.matrix
@pytest.mark.parametrize("is_dropped", [True, False])
def test_a_forgotten_table_leaves_nothing_that_was_built(copy: Copy, warehouse: Warehouse, is_dropped: bool) -> None:
    begin(copy)
    (copy.target.drop if is_dropped else copy.target.forget)(copy.table)
    assert list(warehouse.client.list_tables(warehouse.names.own_dataset)) == []
    assert warehouse.exists(copy.table) is not is_dropped


@pytest.mark.matrix
def test_what_was_built_and_is_missing_fails_the_table(copy: Copy, warehouse: Warehouse) -> None:
    begin(copy)
    warehouse.client.delete_table(warehouse.names.building(copy.table))
    acts: list[Callable[[], object]] = [
        lambda: publish(copy),
        lambda: copy.apply(insert(13, row(3, "c"))),
        copy.restart,
    ]
    for act in acts:
        with pytest.raises(TableError) as found:
            act()
        assert found.value.code == "target_replaced"
    assert read(warehouse) == OLD
    begin(copy, incarnation=3)
    publish(copy)
    assert read(warehouse) == NEW


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["table", "view"])
def test_a_table_or_view_of_somebody_else_is_not_replaced(copy: Copy, warehouse: Warehouse, kind: str) -> None:
    begin(copy)
    path = warehouse.names.path(copy.table.table)
    warehouse.client.delete_table(path)
    theirs = bigquery.Table(path, [bigquery.SchemaField("x", "INT64")] if kind == "table" else None)
    if kind == "view":
        theirs.view_query = "SELECT 1 AS x"
    warehouse.client.create_table(theirs)
    acts: list[Callable[[], object]] = [lambda: publish(copy), lambda: copy.ddl(DDLOperation.DROP_TABLE, 20)]
    for act in acts:
        with pytest.raises(TableError) as found:
            act()
        assert found.value.code == ("not_ours" if kind == "table" else "target_occupied")
    assert [field.name for field in warehouse.client.get_table(path).schema][:1] in (["x"], [])
    assert copy.restart() == Claim(last_applied=12)


@pytest.mark.matrix
def test_a_table_that_hides_rows_is_not_replaced(copy: Copy, warehouse: Warehouse) -> None:
    path = warehouse.names.path(copy.table.table)
    policy = f"ROW ACCESS POLICY p ON `{path}`"
    statement = f"CREATE {policy} GRANT TO ('allAuthenticatedUsers') FILTER USING (id = 1)"
    warehouse.query(statement)
    with pytest.raises(TableError) as refused:
        begin(copy)
    assert refused.value.code == "readers_restricted"
    assert built(warehouse) == []
    warehouse.query(f"DROP {policy}")
    begin(copy)
    warehouse.query(statement)
    with pytest.raises(TableError) as refused:
        publish(copy)
    assert refused.value.code == "readers_restricted"
    assert built(warehouse) == ["2"]
    warehouse.query(f"DROP {policy}")
    assert read(warehouse) == OLD
    copy.restart()
    publish(copy)
    assert read(warehouse) == NEW


def resource(path: str) -> str:
    project, dataset, table = path.split(".")
    return f"/bigquery/v2/projects/{project}/datasets/{dataset}/tables/{table}"


@pytest.mark.matrix
def test_a_table_with_policy_tags_is_not_replaced(
    service: Service, new_warehouse: Callable[..., Warehouse], tmp_path: Path
) -> None:
    warehouse = new_warehouse(endpoint=service.endpoint)
    copy = first(warehouse, tmp_path)
    tags = {"names": ["projects/p/locations/eu/taxonomies/1/policyTags/2"]}
    fields = [{"name": "id", "type": "INT64", "policyTags": tags}]
    service.resources[resource(warehouse.names.path(copy.table.table))] = {"schema": {"fields": fields}}
    with pytest.raises(TableError) as refused:
        begin(copy)
    assert refused.value.code == "readers_restricted"
    assert read(warehouse) == OLD


@pytest.mark.matrix
def test_publishing_outlives_lost_answers_and_says_the_key_again(
    service: Service, new_warehouse: Callable[..., Warehouse], tmp_path: Path
) -> None:
    """No statement of it is DDL in a transaction, which the proxy refuses as the service does."""
    warehouse = new_warehouse(endpoint=service.endpoint)
    copy = first(warehouse, tmp_path)
    begin(copy)
    key = {"tableConstraints": {"primaryKey": {"columns": ["id"]}}}
    service.resources[resource(warehouse.names.building(copy.table))] = key
    patterns = [" COPY ", "ADD PRIMARY KEY", "DROP TABLE IF EXISTS .*building_", "_publish_"]
    service.faults += [
        Fault(kind, job(pattern)) for pattern in patterns for kind in ("break_before", "fail_job", "break_after")
    ]
    for _ in range(100):
        try:
            publish(copy)
        except TargetUnavailableError:
            assert read(warehouse) in (OLD, NEW)
            continue
        break
    assert [fault.times for fault in service.faults] == [0] * len(service.faults)
    assert (read(warehouse), built(warehouse)) == (NEW, [])
    assert copy.restart() == Claim(last_applied=20)


@pytest.mark.matrix
def test_a_published_table_with_other_columns_is_told(
    service: Service, new_warehouse: Callable[..., Warehouse], tmp_path: Path
) -> None:
    """For example with a collation of the dataset, by which keys would be compared."""
    warehouse = new_warehouse(endpoint=service.endpoint)
    copy = first(warehouse, tmp_path)
    begin(copy)
    path = resource(warehouse.names.path(copy.table.table))
    fields = [f.to_api_repr() for f in warehouse.client.get_table(warehouse.names.building(copy.table)).schema]
    service.resources[path] = {"schema": {"fields": [{**f, "collation": "und:ci"} for f in fields]}}
    for _ in range(2):
        with pytest.raises(TableError) as found:
            publish(copy)
        assert found.value.code == "schema_conflict"
    assert (built(warehouse), copy.restart()) == (["2"], Claim(last_applied=12))


@pytest.mark.matrix
def test_a_ledger_that_is_missing_fails_the_table_that_is_built(copy: Copy, warehouse: Warehouse) -> None:
    """Its rows would come twice."""
    begin(copy)
    warehouse.client.delete_table(warehouse.names.ledger(copy.table.table))
    with pytest.raises(TableError) as found:
        copy.restart()
    assert found.value.code == "target_replaced"
    begin(copy, incarnation=3)
    assert (read(warehouse), built(warehouse)) == (OLD, ["3"])
    publish(copy)
    assert read(warehouse) == NEW


@pytest.mark.matrix
def test_a_partitioned_table_stays_partitioned(new_warehouse: Callable[..., Warehouse], tmp_path: Path) -> None:
    warehouse = new_warehouse(tables={"shop.items": {"partition_by": "day", "partition_unit": "month"}})
    day = Column(name="day", type=pa.date32(), source_type="date")
    schema = numbered(replace(items_schema(), columns=(*items_schema().columns, day)))
    table = TargetTable(table=schema.table, uuid=UUID, incarnation=1, epoch=1)
    copy = Copy(harness=warehouse, folder=tmp_path, schema=schema, table=table, target=warehouse.target())
    copy.create()
    copy.table = replace(table, incarnation=2)
    copy.create(10)
    copy.apply(insert(11, item(1, "a", day=None)))
    publish(copy)
    made = warehouse.client.get_table(warehouse.names.path(schema.table))
    assert (made.time_partitioning.type_, made.time_partitioning.field) == ("MONTH", "day")
    assert len(copy.live()) == 1

"""CDAP Replication's acceptance list for its BigQuery target, each test named after its number.

Not here, because they are the host's or the source's: A11 (a policy of ours: `ddl.drop_table`), A12 (sources without an
order), A14 to A17, A19, A20. A13 and the errors of A10 stand in `test_service_answers.py`, which has a service that knows
job ids; A1's cuts into batches stand in the contract.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from replicator.model.errors import TableError
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.target import EMPTY_LEDGER, Claim, TableOptions, TargetTable
from replicator_target_bigquery.config import BigQueryConfig
from replicator_target_bigquery.names import Names, column_problems
from replicator_testbed.bigquery.emulator import BigQueryEmulator
from replicator_testing.batches import delete, insert, update
from replicator_testing.histories import worked_example
from replicator_testing.target_harness import UUID, Copy, as_tuples

from .service import Service

if TYPE_CHECKING:
    from plugins.targets.bigquery.tests.conftest import Warehouse

PEOPLE = TableSchema(
    table=TableId("shop", "people"),
    columns=(
        Column(name="id", type=pa.int64(), source_type="bigint", nullable=False),
        Column(name="name", type=pa.string(), source_type="text"),
        Column(name="bday", type=pa.date32(), source_type="date"),
    ),
    key=("id",),
)


def person(id_: int, name: str | None = None) -> dict[str, Any]:
    return {"id": id_, "name": name, "bday": None}


def people(*rows: tuple[int, str]) -> list[tuple[Any, ...]]:
    return as_tuples(PEOPLE, [person(*row) for row in rows])


@pytest.fixture
def new_copy(warehouse: Warehouse, tmp_path: Path) -> Callable[..., Copy]:
    """Makes tables that are claimed and created."""

    def make(schema: TableSchema = PEOPLE, *, is_created: bool = True, **options: Any) -> Copy:
        table = TargetTable(table=schema.table, uuid=UUID, incarnation=1, epoch=1, options=TableOptions(**options))
        copy = Copy(
            harness=warehouse,
            folder=tmp_path / schema.table.name,
            schema=schema,
            table=table,
            target=warehouse.target(),
        )
        copy.claim()
        if is_created:
            copy.create()
        return copy

    return make


@pytest.mark.matrix
def test_a01_the_worked_example_of_the_design(new_copy: Callable[..., Copy]) -> None:
    copy = new_copy()
    changes = [
        replace(
            change,
            sequence_num=change.sequence_num + 1,
            row=None if change.row is None else person(change.row["id"], change.row["name"]),
            before=None if change.before is None else person(change.before["id"]),
        )
        for change in worked_example()
    ]
    copy.apply(*changes)
    assert copy.live() == people((0, "Alice"), (1, "Bob"))


@pytest.mark.matrix
def test_a02_a_chain_of_keys_in_one_batch(new_copy: Callable[..., Copy]) -> None:
    copy = new_copy()
    copy.apply(insert(1, person(0, "alice")))
    copy.apply(update(2, person(1, "alice"), before=person(0)), update(3, person(2, "alice"), before=person(1)))
    assert copy.live() == people((2, "alice"))


@pytest.mark.matrix
def test_a03_a_swap_of_keys(new_copy: Callable[..., Copy]) -> None:
    copy = new_copy()
    copy.apply(insert(1, person(1, "a")), insert(2, person(2, "b")))
    copy.apply(
        update(3, person(99, "a"), before=person(1)),
        update(4, person(1, "b"), before=person(2)),
        update(5, person(2, "a"), before=person(99)),
    )
    assert copy.live() == people((1, "b"), (2, "a"))


@pytest.mark.matrix
def test_a04_a_key_that_is_used_again(new_copy: Callable[..., Copy]) -> None:
    copy = new_copy()
    copy.apply(insert(1, person(0, "alice")))
    copy.apply(
        update(2, person(5, "alice"), before=person(0)), insert(3, person(0, "bob")), update(4, person(0, "bob2"))
    )
    assert copy.live() == people((5, "alice"), (0, "bob2"))
    copy.apply(update(5, person(1, "bob2"), before=person(0)), delete(6, person(1)), delete(7, person(5)))
    assert copy.live() == []


def test_a05_a_replay_with_other_bounds_after_a_crash_between_merge_and_record(
    new_copy: Callable[..., Copy], warehouse: Warehouse
) -> None:
    copy = new_copy(replace(PEOPLE, key=()))
    changes = [insert(n, person(n, "x")) for n in range(1, 6)]
    copy.apply(*changes)
    assert copy.restart().last_applied == 5
    copy.apply(*changes, insert(6, person(6, "y")), skip_to=5, files=2)
    assert len(copy.stored()) == 6
    assert warehouse.ledger(PEOPLE.table)["sequence_num"] == 6


def test_a06_a_replay_stages_nothing_and_starts_no_job(
    new_copy: Callable[..., Copy], emulator: BigQueryEmulator, new_warehouse: Callable[..., Warehouse], tmp_path: Path
) -> None:
    with Service(upstream=emulator.endpoint, storage=emulator.storage) as service:
        warehouse = new_warehouse(endpoint=service.endpoint)
        table = TargetTable(table=PEOPLE.table, uuid=UUID, incarnation=1, epoch=1)
        copy = Copy(harness=warehouse, folder=tmp_path, schema=PEOPLE, table=table, target=warehouse.target())
        copy.create()
        changes = [insert(n, person(n), is_snapshot=True) for n in range(1, 11)]
        copy.apply(*changes)
        copy.restart()
        before = len(service.sent)
        assert copy.apply(*changes, skip_to=0).was_skipped
        assert len(service.sent) == before


@pytest.mark.matrix
def test_a07_a_snapshot_over_rows_that_are_there_doubles_none(new_copy: Callable[..., Copy]) -> None:
    copy = new_copy()
    copy.apply(insert(500, person(1, "a")), insert(501, person(2, "b")))
    copy.apply(*[insert(n + 600, person(n, "new"), is_snapshot=True) for n in (1, 2, 3)])
    assert copy.live() == people((1, "new"), (2, "new"), (3, "new"))
    assert copy.restart().last_applied == 603


@pytest.mark.matrix
@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_a08_three_tables_side_by_side(new_copy: Callable[..., Copy], warehouse: Warehouse, deletes: str) -> None:
    copies = [new_copy(replace(PEOPLE, table=TableId("shop", f"t{n}")), deletes=deletes) for n in range(3)]
    for copy in copies:
        copy.apply(insert(1, person(0, "alice")), insert(2, person(1, "bob")))
        assert copy.live() == people((0, "alice"), (1, "bob"))
    assert warehouse.leftovers() == []
    for copy in copies:
        copy.apply(update(3, person(2, "alice"), before=person(0)), delete(4, person(1)))
        assert copy.live() == people((2, "alice"))
        marked = {(r.values["id"], r.values["name"]) for r in copy.stored() if r.is_deleted}
        assert marked == ({(0, "alice"), (1, "bob")} if deletes == "soft" else set())


@pytest.mark.matrix
def test_a09_truncate_keeps_the_table_and_later_inserts_work(new_copy: Callable[..., Copy]) -> None:
    copy = new_copy()
    copy.apply(insert(1, person(1)), insert(2, person(2)))
    copy.ddl(DDLOperation.TRUNCATE_TABLE, 3)
    assert copy.stored() == []
    copy.apply(insert(4, person(3, "c")))
    assert copy.live() == people((3, "c"))


def test_a09_truncate_of_a_table_that_was_never_made_does_no_harm(
    new_copy: Callable[..., Copy], warehouse: Warehouse
) -> None:
    copy = new_copy(is_created=False)
    copy.ddl(DDLOperation.TRUNCATE_TABLE, 1)
    assert not warehouse.exists(copy.table)
    copy.ddl(DDLOperation.CREATE_TABLE, 2)
    assert copy.stored() == []


@pytest.mark.matrix
def test_a10_a_column_is_added(new_copy: Callable[..., Copy]) -> None:
    copy = new_copy()
    copy.apply(insert(1, person(1, "a")))
    columns = (*PEOPLE.columns, Column(name="age", type=pa.int32(), source_type="int"))
    copy.alter(replace(PEOPLE, columns=columns), sequence_num=2)
    copy.apply(insert(3, {**person(2, "b"), "age": 7}))
    assert copy.live() == as_tuples(copy.schema, [{**person(1, "a"), "age": None}, {**person(2, "b"), "age": 7}])


@pytest.mark.matrix
@pytest.mark.parametrize("operation", [DDLOperation.ALTER_TABLE, DDLOperation.RENAME_TABLE])
def test_a10_a_change_that_is_not_carried_out_fails_the_table(
    new_copy: Callable[..., Copy], operation: DDLOperation
) -> None:
    copy = new_copy()
    copy.apply(insert(1, person(1, "a")))
    with pytest.raises(TableError) as refused:
        copy.target.apply_ddl(copy.table, DDLEvent(operation=operation, table=PEOPLE.table), 2)
    assert refused.value.code == "ddl_not_supported"
    assert copy.restart().last_applied == 1
    assert copy.live() == people((1, "a"))


def test_a11_dropping_what_is_not_there_succeeds(new_copy: Callable[..., Copy]) -> None:
    copy = new_copy(is_created=False)
    copy.ddl(DDLOperation.DROP_TABLE, 1)
    copy.ddl(DDLOperation.DROP_DATABASE, 2)
    assert copy.restart() == Claim(last_applied=2)


def test_a18_names_are_made_safe_and_collisions_are_reported() -> None:
    settings = {"project": "p", "location": "EU", "staging": {"bucket": "bucket"}}
    names = Names(BigQueryConfig.model_validate(settings))
    given = ["field-with-dash", "1970-01-01", "ab?/c", "x" * 302]
    assert [names.column(name) for name in given] == ["field_with_dash", "_1970_01_01", "ab_c", "x" * 300]
    columns = [Column(name=n, type=pa.int64(), source_type="int") for n in ("a-b", "a+b")]
    (problem,) = column_problems(names, TableSchema(table=PEOPLE.table, columns=tuple(columns)))
    assert (problem.code, problem.message) == (
        "column_names_clash",
        "The columns a+b and a-b would both be called a_b.",
    )


def test_a21_an_empty_source_table_is_an_empty_table(new_copy: Callable[..., Copy], warehouse: Warehouse) -> None:
    copy = new_copy()
    copy.target.advance(copy.table, 3)
    assert warehouse.exists(copy.table)
    assert copy.stored() == []


@pytest.mark.matrix
def test_a22_tables_of_one_name_in_two_schemas_are_two_tables(new_copy: Callable[..., Copy]) -> None:
    first, second = new_copy(), new_copy(replace(PEOPLE, table=TableId("other", "people")))
    first.apply(insert(1, person(1, "first")))
    second.apply(insert(2, person(1, "second")))
    first.apply(insert(3, person(3, "first")))
    assert first.live() == people((1, "first"), (3, "first"))
    assert second.live() == people((1, "second"))
    assert (first.restart().last_applied, second.restart().last_applied) == (3, 2)


@pytest.mark.matrix
def test_a23_a_restart_continues_and_a_deleted_replicator_begins_again(
    new_copy: Callable[..., Copy], warehouse: Warehouse
) -> None:
    copy = new_copy()
    copy.apply(insert(1, person(1, "a")))
    assert copy.restart(epoch=2) == Claim(last_applied=1)
    copy.target.drop(copy.table)
    assert not warehouse.exists(copy.table)
    assert copy.restart(epoch=3) == Claim(last_applied=EMPTY_LEDGER)

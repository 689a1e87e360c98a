"""Alterations step by step: names that change hands, processes that die in between, and what BigQuery does not do."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from replicator.model.alteration import steps
from replicator.model.errors import TableError, TargetUnavailableError
from replicator.model.naming import folded
from replicator.model.schema import Column, TableSchema
from replicator.plugins.target import TableOptions, TargetContext, TargetTable
from replicator_target_bigquery.alteration import TEMPORARY, Plan, planned
from replicator_target_bigquery.config import BigQueryConfig
from replicator_target_bigquery.names import Names
from replicator_target_bigquery.shape import Shape, shape_of
from replicator_target_bigquery.target import BigQueryTarget
from replicator_testing.alterations import AlteredTable, Killed, evolved, killed_at, numbered, text_column
from replicator_testing.batches import delete, insert, update
from replicator_testing.target_harness import UUID, Copy, as_tuples, item, items_schema

from .service import Fault, Service, job

if TYPE_CHECKING:
    from plugins.targets.bigquery.tests.conftest import Warehouse
    from replicator_testbed.bigquery.emulator import BigQueryEmulator

CONFIG = BigQueryConfig.model_validate({"project": "demo-project", "location": "EU", "staging": {"bucket": "staging"}})
NAMES = Names(CONFIG)


@dataclass
class Table:
    """Columns by name: number in the source, and type. Does what a statement of a plan says, or fails as BigQuery would."""

    columns: dict[str, tuple[int, str]]

    @property
    def types(self) -> dict[str, str]:
        return {name: type_ for name, (_, type_) in self.columns.items()}

    def run(self, statement: str) -> None:
        _, _, action = statement.partition("`p.d.t` ")
        names = action.split("`")[1::2]
        kind = " ".join(action.split()[:2])
        there = {folded(name): name for name in self.columns}
        if kind == "RENAME COLUMN":
            old, new = names
            assert folded(new) not in there
            self.columns[new] = self.columns.pop(there[folded(old)])
        elif kind == "DROP COLUMN":
            assert names[0].startswith(TEMPORARY)
            del self.columns[there[folded(names[0])]]
        elif kind == "ALTER COLUMN":
            id_, before = self.columns[there[folded(names[0])]]
            after = action.rpartition(" SET DATA TYPE ")[2]
            assert (before, after) in {("INT64", "NUMERIC"), ("INT64", "FLOAT64"), ("NUMERIC", "BIGNUMERIC")}
            self.columns[there[folded(names[0])]] = (id_, after)
        else:
            assert kind == "ADD COLUMN"
            assert folded(names[0]) not in there
            self.columns[names[0]] = (0, action.split()[-1])


def shape(schema: TableSchema) -> Shape:
    return shape_of(schema, TableOptions(), NAMES, "string")


def wider(before: TableSchema, schema: TableSchema, draw: random.Random) -> TableSchema:
    """Some columns outside of the key that were there get a wider type."""
    there = {c.id for c in before.held}
    wider = {pa.int64(): pa.decimal128(25, 2), pa.decimal128(12, 2): pa.decimal128(38, 10)}
    columns = [
        c
        if c.name in schema.key or c.id not in there or draw.random() < 0.3
        else replace(c, type=wider.get(c.type, c.type))
        for c in schema.columns
    ]
    return replace(schema, columns=tuple(columns))


def carried_out(table: Table, plan: Plan, ends: Callable[[], bool]) -> Plan | None:
    """The plan done, as the target does it, with what a process knows that dies where `ends` says; None: it died."""
    while True:
        for statement in list(plan.statements("p.d.t", table.types)):
            table.run(statement)
            if ends():
                return None
        if plan.is_freed:
            return plan
        plan = plan.freed_all()


def test_an_alteration_ends_the_same_wherever_processes_die() -> None:
    """Random alterations; after each statement the process may die, and the next one continues from the ledger's plan."""
    draw = random.Random(4)
    world = AlteredTable(schema=numbered(items_schema()), rows=[], draw=draw, names=("name", "Name", "amount", "p"))
    deaths = widened = 0
    for number in range(400):
        before = world.schema
        table = Table({c.name: (c.column.id or 0, c.type) for c in shape(before).held})
        world.alter()
        world.schema = wider(before, world.schema, draw)
        after = shape(world.schema)
        if len({folded(c.name) for c in after.held}) < len(after.held):
            # Refused: two columns would have one name.
            world.schema = before
            continue
        todo = steps(before, world.schema)
        plan = planned(NAMES, shape(before), after, todo, number)
        widened += len(plan.retyped)
        in_ledger = plan.to_text()
        while True:
            read = Plan.of(in_ledger)
            assert read is not None
            # The first stage is recorded as done when all of it is.
            if not read.is_freed and not list(read.statements("p.d.t", table.types)) and draw.random() < 0.5:
                in_ledger = read.freed_all().to_text()
                continue
            staged = replace(read, renamed=(), retyped=(), added=(), dropped=()) if not read.is_freed else read
            if carried_out(table, staged, lambda: draw.random() < 0.3) is None:
                deaths += 1
                continue
            if read.is_freed:
                break
            in_ledger = read.freed_all().to_text()
        added = {NAMES.column(name) for name in todo.added}
        assert table.columns == {c.name: (0 if c.name in added else c.column.id, c.type) for c in after.held}, number
    assert deaths > 100
    assert widened > 30


def test_a_plan_is_no_mark_and_a_mark_is_no_plan() -> None:
    schema = numbered(items_schema())
    plan = planned(NAMES, shape(schema), shape(schema), steps(schema, schema), 1)
    assert plan.is_empty
    assert Plan.of(plan.to_text()) == plan
    assert Plan.of(plan.to) is None
    assert Plan.of(None) is None


def test_names_that_nobody_else_gets_need_no_stage_of_their_own() -> None:
    schema = numbered(items_schema())
    wanted = evolved(schema, rename={"name": "title"}, drop=["note"], add=[text_column("extra", 5)])
    plan = planned(NAMES, shape(schema), shape(wanted), steps(schema, wanted), 7)
    assert plan.is_freed
    there = {"id": "INT64", "name": "STRING", "amount": "NUMERIC", "note": "STRING"}
    assert list(plan.statements("p.d.t", there)) == [
        "ALTER TABLE `p.d.t` RENAME COLUMN `name` TO `title`",
        "ALTER TABLE `p.d.t` RENAME COLUMN `note` TO `_replicator_tmp_7_1`",
        "ALTER TABLE `p.d.t` ADD COLUMN IF NOT EXISTS `extra` STRING",
        "ALTER TABLE `p.d.t` DROP COLUMN IF EXISTS `_replicator_tmp_7_1`",
    ]


def made(warehouse: Warehouse, folder: Path, schema: TableSchema | None = None) -> Copy:
    schema = numbered(schema or items_schema())
    table = TargetTable(table=schema.table, uuid=UUID, incarnation=1, epoch=1)
    copy = Copy(harness=warehouse, folder=folder, schema=schema, table=table, target=warehouse.target())
    copy.create()
    return copy


@pytest.fixture
def copy(warehouse: Warehouse, tmp_path: Path) -> Copy:
    copy = made(warehouse, tmp_path)
    copy.apply(insert(1, item(1, "a", "1.00", "x")))
    return copy


def columns(warehouse: Warehouse, copy: Copy) -> list[str]:
    assert isinstance(copy.target, BigQueryTarget)
    return list(copy.target._tables.columns(warehouse.names.path(copy.table.table)))


@pytest.mark.matrix
def test_the_table_has_exactly_the_columns_that_are_wanted(copy: Copy, warehouse: Warehouse) -> None:
    comment = 'it\'s a \\ "comment"\nwith é 🙂 and `ticks`'
    column = replace(text_column("a b", 5), comment=comment)
    copy.alter(evolved(copy.schema, drop=["amount"], keep=["note"], add=[column]))
    assert columns(warehouse, copy) == ["id", "name", "note", "_sequence_num", "a_b"]
    copy.apply(insert(3, {"id": 2, "name": "b", "a b": "c"}))
    assert copy.held() == [(1, "a", None, "x"), (2, "b", "c", None)]


@pytest.mark.matrix
def test_a_name_may_change_its_case(copy: Copy, warehouse: Warehouse) -> None:
    """BigQuery takes both for the same name."""
    copy.alter(evolved(copy.schema, rename={"name": "Name"}))
    assert columns(warehouse, copy) == ["id", "Name", "amount", "note", "_sequence_num"]
    copy.apply(update(3, {"id": 1, "Name": "A", "amount": None}, absent=["note"]))
    assert copy.live() == [(1, "A", None, "x")]


@pytest.mark.matrix
def test_a_rename_that_makes_no_other_name_does_nothing(copy: Copy, warehouse: Warehouse) -> None:
    copy.alter(evolved(copy.schema, rename={"name": "the name"}))
    copy.alter(evolved(copy.schema, rename={"the name": "the-name"}))
    assert columns(warehouse, copy) == ["id", "the_name", "amount", "note", "_sequence_num"]
    assert copy.live() == as_tuples(copy.schema, [{"id": 1, "the-name": "a", "amount": copy.live()[0][2], "note": "x"}])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["Note", "note ", "_sequence_num"])
def test_a_column_that_would_have_the_name_of_another_is_refused(copy: Copy, warehouse: Warehouse, name: str) -> None:
    schema = evolved(copy.schema, rename={"note": "note_"}) if name == "note " else copy.schema
    if schema is not copy.schema:
        copy.alter(schema)
    before, last = columns(warehouse, copy), copy.ledger
    with pytest.raises(TableError) as refused:
        copy.alter(evolved(copy.schema, add=[text_column(name, 5)]))
    assert refused.value.code in {"column_names_clash", "column_name_reserved"}
    assert columns(warehouse, copy) == before
    assert copy.restart().last_applied == last
    copy.apply(delete(last + 1, item(1)))
    assert copy.live() == []


@pytest.mark.matrix
@pytest.mark.parametrize("layout", ["cluster_by", "partition_by"])
def test_a_column_of_the_layout_is_neither_renamed_nor_dropped(
    new_warehouse: Callable[..., Warehouse], tmp_path: Path, layout: str
) -> None:
    schema = replace(
        items_schema(),
        columns=(*items_schema().columns, Column(name="day", type=pa.date32(), source_type="date")),
    )
    value: Any = ["day"] if layout == "cluster_by" else "day"
    warehouse = new_warehouse(tables={str(schema.table): {layout: value}})
    copy = made(warehouse, tmp_path, schema)
    for wanted in (evolved(copy.schema, rename={"day": "date"}), evolved(copy.schema, drop=["day"])):
        with pytest.raises(TableError) as refused:
            copy.alter(wanted)
        assert refused.value.code == "ddl_not_supported"
        assert "day" in refused.value.message
        assert "--recreate" in (refused.value.action or "")
    assert copy.restart().last_applied == 0
    copy.alter(evolved(copy.schema, keep=["day"], rename={"note": "remark"}))
    copy.apply(insert(2, {"id": 1, "name": "a", "amount": None, "remark": "r"}))
    assert copy.held() == [(1, "a", None, "r", None)]


@pytest.mark.matrix
def test_text_that_becomes_json_is_refused(new_warehouse: Callable[..., Warehouse], tmp_path: Path) -> None:
    """To the source's Arrow type nothing happened; the target's would be another one."""
    copy = made(new_warehouse(tables={"shop.items": {"json_as": "json"}}), tmp_path)
    columns = [replace(c, source_type="jsonb") if c.name == "note" else c for c in copy.schema.columns]
    with pytest.raises(TableError) as refused:
        copy.alter(replace(copy.schema, columns=tuple(columns)))
    assert refused.value.code == "ddl_not_supported"
    assert copy.restart().last_applied == 0
    copy.apply(insert(1, item(1, "a", None, "text")))
    assert copy.live() == as_tuples(copy.schema, [item(1, "a", None, "text")])


def test_a_value_that_cannot_be_held_stops_the_table_before_it_is_altered(copy: Copy, warehouse: Warehouse) -> None:
    before = columns(warehouse, copy)
    with pytest.raises(TableError) as refused:
        copy.alter(
            evolved(copy.schema, add=[text_column("large", 5, pa.timestamp("us"))]),
            {"large": pa.scalar(2**60, pa.timestamp("us"))},
        )
    assert refused.value.code == "value_out_of_range"
    assert columns(warehouse, copy) == before
    assert copy.restart().last_applied == 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("what", ["ADD COLUMN extra STRING", "DROP COLUMN note"])
def test_a_table_that_somebody_altered_is_not_touched(copy: Copy, warehouse: Warehouse, what: str) -> None:
    warehouse.query(f"ALTER TABLE `{warehouse.names.path(copy.table.table)}` {what}")
    before = columns(warehouse, copy)
    with pytest.raises(TableError) as refused:
        copy.alter(evolved(copy.schema, add=[text_column("extra", 5)]))
    assert refused.value.code == "schema_conflict"
    assert columns(warehouse, copy) == before
    assert copy.restart().last_applied == 1


def test_no_batch_is_applied_to_a_table_that_is_half_altered(
    copy: Copy, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = evolved(copy.schema, rename={"name": "note", "note": "name"})
    before = copy.schema
    with monkeypatch.context() as patch:
        patch.setattr(BigQueryTarget, "_carry_out", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            copy.alter(wanted)
    copy.restart(epoch=2)
    for schema in (before, wanted):
        copy.schema = schema
        with pytest.raises(TableError) as refused:
            copy.apply(insert(2, item(2)))
        assert refused.value.code == "schema_conflict"
    copy.schema = before
    with pytest.raises(TableError) as refused:
        copy.alter(evolved(before, rename={"name": "another"}))
    assert refused.value.code == "schema_conflict"
    copy.alter(wanted)
    assert [(row[1], row[3]) for row in copy.live()] == [("a", "x")]


def test_rows_are_filled_with_what_a_load_would_store(new_warehouse: Callable[..., Warehouse], tmp_path: Path) -> None:
    """Lists as text, JSON, and values that BigQuery cannot hold."""
    warehouse = new_warehouse(unfit_values="null", tables={"shop.items": {"json_as": "json"}})
    copy = made(warehouse, tmp_path)
    copy.apply(insert(1, item(1, "a")))
    new: Mapping[str, tuple[Column, Any, Any]] = {
        "list": (text_column("list", 5, pa.list_(pa.string())), ["it's", None], '["it\'s",null]'),
        "json": (replace(text_column("json", 6), source_type="jsonb"), '{"a": ["\\n"]}', {"a": ["\n"]}),
        "large": (text_column("large", 7, pa.timestamp("us")), pa.scalar(2**60, pa.timestamp("us")), None),
        "wide": (text_column("wide", 8, pa.decimal256(60, 40)), 1, "1." + "0" * 40),
        "real": (text_column("real", 9, pa.float64()), float("-inf"), float("-inf")),
    }
    fill = {name: value for name, (_, value, _) in new.items()}
    copy.alter(evolved(copy.schema, add=[column for column, _, _ in new.values()]), fill)
    (row,) = warehouse.query(f"SELECT * FROM `{warehouse.names.path(copy.table.table)}`")
    assert {name: row[name] for name in new} == {name: value for name, (_, _, value) in new.items()}


WIDENED: Sequence[tuple[pa.DataType, pa.DataType, bool]] = [
    (pa.int16(), pa.int64(), True),
    (pa.int32(), pa.float64(), True),
    (pa.int64(), pa.decimal128(19, 0), True),
    (pa.int64(), pa.decimal128(38, 10), True),
    (pa.int32(), pa.decimal256(70, 40), False),
    (pa.float32(), pa.float64(), True),
    (pa.decimal128(10, 2), pa.decimal128(12, 2), True),
    (pa.decimal128(10, 2), pa.decimal128(38, 20), True),
    (pa.decimal128(38, 20), pa.decimal256(60, 30), True),
    (pa.decimal128(38, 20), pa.decimal256(70, 38), True),
    (pa.decimal128(38, 20), pa.decimal256(70, 40), False),
    (pa.decimal256(70, 40), pa.decimal256(76, 40), True),
    (pa.decimal256(70, 40), pa.decimal256(76, 42), False),
    (pa.date32(), pa.timestamp("us"), False),
    # Not wider.
    (pa.int64(), pa.float64(), False),
    (pa.int64(), pa.int32(), False),
    (pa.decimal128(12, 2), pa.decimal128(10, 2), False),
    (pa.int32(), pa.string(), False),
    (pa.int32(), pa.int32(), False),
]


@pytest.mark.parametrize(("before", "after", "does"), WIDENED, ids=str)
def test_a_type_is_widened_where_every_value_stays_what_it_is(
    before: pa.DataType, after: pa.DataType, does: bool
) -> None:
    context = TargetContext(replicator="r", uuid=UUID, epoch=1, max_wait_s=0.0)
    assert BigQueryTarget(CONFIG, context).widens(before, after) is does


def retyped(schema: TableSchema, **types: pa.DataType) -> TableSchema:
    columns = [replace(c, type=types.get(c.name, c.type)) for c in schema.columns]
    return replace(schema, columns=tuple(columns))


def numbers(*columns: tuple[str, pa.DataType]) -> TableSchema:
    more = [Column(name=name, type=type_, source_type=str(type_)) for name, type_ in columns]
    return replace(items_schema(), columns=(*items_schema().columns, *more))


@pytest.mark.matrix
def test_columns_get_wider_types_and_keep_their_values(warehouse: Warehouse, tmp_path: Path) -> None:
    schema = numbers(("small", pa.int32()), ("whole", pa.int64()), ("real", pa.float32()), ("near", pa.int16()))
    copy = made(warehouse, tmp_path, schema)
    # The emulator's SET DATA TYPE NUMERIC has room for 15 digits before the point and 3 behind it.
    row = item(1, "a", "1.00", small=-7, whole=2**40, real=0.5, near=3)
    copy.apply(insert(1, row))
    narrow = copy.schema
    wanted = retyped(
        narrow,
        small=pa.float64(), whole=pa.decimal128(25, 4), real=pa.float64(), near=pa.int64(), amount=pa.decimal128(20, 9),
    )  # fmt: skip
    wanted = evolved(wanted, rename={"small": "near", "near": "small"}, add=[text_column("extra", 9)])
    copy.alter(wanted, {"extra": "e"})
    assert isinstance(copy.target, BigQueryTarget)
    types = copy.target._tables.columns(warehouse.names.path(copy.table.table))
    assert [types[name] for name in ("near", "whole", "real", "small", "amount")] == [
        "FLOAT64", "NUMERIC", "FLOAT64", "INT64", "NUMERIC",
    ]  # fmt: skip
    values = {"id": 1, "name": "a", "amount": Decimal("1.00"), "note": None, "extra": "e"}
    values |= {"near": -7.0, "whole": Decimal(2**40), "real": 0.5, "small": 3}
    assert copy.live() == as_tuples(copy.schema, [values])
    more = {**values, "whole": Decimal("0.125"), "small": 2**40, "amount": Decimal("0.123456789"), "near": 0.25}
    copy.apply(update(3, more, absent=["extra"]), insert(4, {**more, "id": 2}), expects_rows=True)
    assert copy.live() == as_tuples(copy.schema, [more, {**more, "id": 2}])


@pytest.mark.matrix
def test_a_column_that_is_kept_may_have_been_widened(warehouse: Warehouse, tmp_path: Path) -> None:
    copy = made(warehouse, tmp_path, numbers(("small", pa.int32())))
    copy.apply(insert(1, item(1, "a", small=5)))
    copy.alter(retyped(copy.schema, small=pa.decimal128(20, 2)))
    copy.alter(evolved(copy.schema, keep=["small"]))
    assert copy.held() == as_tuples(copy.schema, [item(1, "a", small=Decimal(5))], with_kept=True)


@pytest.mark.matrix
def test_an_integer_of_the_key_is_the_same_type_in_bigquery(warehouse: Warehouse, tmp_path: Path) -> None:
    copy = made(warehouse, tmp_path, retyped(items_schema(), id=pa.int32()))
    copy.apply(insert(1, item(1, "a")))
    copy.alter(retyped(copy.schema, id=pa.int64()))
    copy.apply(insert(3, item(2**40, "b")))
    assert copy.live() == as_tuples(copy.schema, [item(1, "a"), item(2**40, "b")])


@pytest.mark.matrix
@pytest.mark.parametrize("layout", ["key", "cluster_by"])
def test_a_column_of_the_layout_gets_no_other_type(
    new_warehouse: Callable[..., Warehouse], tmp_path: Path, layout: str
) -> None:
    tables = {"shop.items": {"cluster_by": ["near"]}} if layout == "cluster_by" else {}
    copy = made(new_warehouse(tables=tables), tmp_path, numbers(("near", pa.int64())))
    name = "id" if layout == "key" else "near"
    before = copy.schema
    with pytest.raises(TableError) as refused:
        copy.alter(evolved(retyped(before, **{name: pa.decimal128(25, 0)}), rename={"note": "remark"}))
    assert refused.value.code == "ddl_not_supported"
    assert name in refused.value.message
    assert "--recreate" in (refused.value.action or "")
    assert copy.restart().last_applied == 0
    copy.schema = before
    copy.apply(insert(1, item(1, "a", near=1)))
    assert copy.live() == as_tuples(before, [item(1, "a", near=1)])


def test_widening_that_was_killed_anywhere_is_completed(
    warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a statement of it runs a second time."""
    copy = made(warehouse, tmp_path, numbers(("near", pa.int32()), ("far", pa.int64())))
    copy.apply(insert(1, item(1, "a", near=1, far=2)))
    before = copy.schema
    wanted = evolved(
        retyped(before, near=pa.float64(), far=pa.decimal128(20, 0)), rename={"near": "far", "far": "near"}
    )
    points = ["target.alter_planned", "target.column_altered", "target.names_freed"]
    points += [f"target.column_altered:{n}" for n in (2, 1, 1)]
    for epoch, point in enumerate(points, start=2):
        copy.schema = before
        copy.restart(epoch=epoch)
        with killed_at(point, monkeypatch), pytest.raises(Killed):
            copy.alter(wanted, sequence_num=2)
    copy.schema = before
    copy.restart(epoch=10)
    copy.alter(wanted, sequence_num=2)
    assert copy.live() == as_tuples(wanted, [{**item(1, "a"), "far": 1.0, "near": Decimal(2)}])


@pytest.fixture
def service(emulator: BigQueryEmulator) -> Iterator[Service]:
    with Service(upstream=emulator.endpoint, storage=emulator.storage) as service:
        yield service


@pytest.mark.matrix
def test_an_alteration_is_no_ddl_in_a_transaction_and_outlives_lost_answers(
    service: Service, new_warehouse: Callable[..., Warehouse], tmp_path: Path
) -> None:
    """The service refuses DDL in a transaction; the proxy does so, too."""
    warehouse = new_warehouse(endpoint=service.endpoint)
    copy = made(warehouse, tmp_path)
    copy.apply(insert(1, item(1, "a", "1.00", "x")))
    before = copy.schema
    wanted = evolved(before, rename={"name": "note", "note": "name"}, drop=["amount"], add=[text_column("extra", 5)])
    statements: Sequence[str] = ["_plan_", "_free_", "_altered_", "RENAME COLUMN .name.", "ADD COLUMN", "DROP COLUMN"]
    service.faults += [
        Fault(kind, job(pattern)) for pattern in statements for kind in ("break_before", "fail_job", "break_after")
    ]
    for _ in range(100):
        try:
            copy.schema = before
            copy.alter(wanted, {"extra": "e"}, sequence_num=2)
        except TargetUnavailableError:
            continue
        break
    assert [fault.times for fault in service.faults] == [0] * len(service.faults)
    assert copy.restart().last_applied == 2
    assert copy.live() == [(1, "a", "x", "e")]
    assert columns(warehouse, copy) == ["id", "note", "name", "_sequence_num", "extra"]

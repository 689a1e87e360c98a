"""Tables whose columns come, go and are renamed while they are captured."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from replicator.capture.alterations import Effect, decide, effect_of
from replicator.config import DDLConfig
from replicator.model.errors import SchemaConflictError
from replicator.model.events import DDLEvent, DDLOperation, SnapshotEvent, no_fill
from replicator.model.schema import Column, TableId, TableSchema
from replicator.state.records import Stage
from replicator_testbed.present import present

if TYPE_CHECKING:
    from tests.unit.capture.conftest import Bench

STREAMING = (Stage.STREAMING,)
KEEP, DROP = DDLConfig(), DDLConfig(drop_column="apply")


def numbered(schema: TableSchema) -> TableSchema:
    """The same shape with numbers."""
    return replace(schema, columns=tuple(replace(c, id=id_) for id_, c in enumerate(schema.columns, start=1)))


def shape(*columns: tuple[int, str]) -> TableSchema:
    made = tuple(Column(name=name, type=pa.string(), source_type="text", id=id_) for id_, name in ((1, "id"), *columns))
    return TableSchema(table=TableId("public", "t"), columns=made, key=("id",))


def held(schema: TableSchema) -> list[str]:
    return [column.name for column in schema.held]


# --- by policy --------------------------------------------------------------------------------------------------------


def test_a_dropped_column_is_kept_or_goes() -> None:
    before, after = shape((2, "a"), (3, "b")), shape((3, "b"))
    assert held(decide(before, after, KEEP, before=None, fill=no_fill()).schema) == ["id", "b", "a"]
    assert held(decide(before, after, DROP, before=None, fill=no_fill()).schema) == ["id", "b"]


def test_a_kept_column_gives_up_its_name() -> None:
    first = decide(shape((2, "a"), (3, "b")), shape((3, "b")), KEEP, before=None, fill=no_fill()).schema
    second = decide(first, shape((3, "b"), (4, "A")), KEEP, before=None, fill=no_fill()).schema
    assert held(second) == ["id", "b", "A", "a__dropped_1"]
    third = decide(second, shape((3, "b")), KEEP, before=None, fill=no_fill()).schema
    assert held(third) == ["id", "b", "a__dropped_1", "A"]
    fourth = decide(third, shape((3, "b"), (5, "a"), (6, "a__dropped_1")), KEEP, before=None, fill=no_fill()).schema
    assert held(fourth) == ["id", "b", "a", "a__dropped_1", "a__dropped_1__dropped_1", "A__dropped_2"]


def test_a_number_that_is_given_again_is_another_column() -> None:
    first = decide(shape((2, "a"), (3, "b")), shape((2, "a")), KEEP, before=None, fill=no_fill()).schema
    again = decide(first, shape((2, "a"), (3, "c")), KEEP, before=None, fill=no_fill())
    assert held(again.before) == ["id", "a", "b"]
    assert held(again.schema) == ["id", "a", "c", "b"]
    assert len({column.id for column in again.schema.held}) == 4


def test_only_new_columns_are_filled() -> None:
    fill = pa.RecordBatch.from_arrays([pa.array(["1"]), pa.array(["2"])], names=["a", "b"])
    found = decide(shape((2, "a")), shape((2, "a"), (3, "b")), KEEP, before=None, fill=fill)
    assert present(found.fill).to_pylist() == [{"b": "2"}]
    assert decide(shape(), shape((2, "a")), KEEP, before=None, fill=None).needs_snapshot


@pytest.mark.parametrize(
    ("policies", "after"),
    [
        (DDLConfig(add_column="stop"), shape((2, "a"), (3, "b"), (4, "c"))),
        (DDLConfig(drop_column="stop"), shape((2, "a"))),
        (DDLConfig(rename_column="stop"), shape((2, "a"), (3, "c"))),
    ],
    ids=["add", "drop", "rename"],
)
def test_a_policy_stops_the_table_and_says_which(policies: DDLConfig, after: TableSchema) -> None:
    (setting,) = policies.model_fields_set
    with pytest.raises(SchemaConflictError, match=rf"ddl\.{setting} is `stop`") as refused:
        decide(shape((2, "a"), (3, "b")), after, policies, before=None, fill=no_fill())
    assert refused.value.code == "ddl_stop"


def test_other_types_keys_and_names_of_ours_are_refused() -> None:
    before = shape((2, "a"))
    retyped = replace(before, columns=(before.columns[0], replace(before.columns[1], type=pa.int64())))
    for after in (
        retyped,
        replace(before, key=("id", "a")),
        shape((2, "a"), (3, "_sequence_num")),
        shape((2, "a"), (3, "A")),
    ):
        with pytest.raises(SchemaConflictError):
            decide(before, after, KEEP, before=None, fill=no_fill())


def test_a_source_that_went_by_another_shape_is_followed_by_names_with_a_snapshot() -> None:
    known, before, after = shape((2, "a"), (3, "b")), shape((2, "a")), shape((2, "x"), (3, "c"))
    found = decide(known, after, KEEP, before=before, fill=no_fill())
    assert found.needs_snapshot
    assert held(found.schema) == ["id", "x", "c", "a", "b"]
    assert [column.id for column in found.schema.columns] == [1, 2, 3]


def bare(schema: TableSchema) -> TableSchema:
    return replace(schema, columns=tuple(replace(column, id=None) for column in schema.columns))


def altered(before: TableSchema | None, after: TableSchema | None, fill: pa.RecordBatch | None) -> DDLEvent:
    table = TableId("public", "t")
    return DDLEvent(operation=DDLOperation.ALTER_TABLE, table=table, before=before, schema=after, fill=fill)


def test_an_alteration_that_ends_with_the_same_names_is_one() -> None:
    before, again, swapped = shape((2, "a"), (3, "b")), shape((2, "a"), (4, "b")), shape((3, "a"), (2, "b"))
    for known in (before, bare(before)):
        assert effect_of(known, altered(before, again, no_fill())) is Effect.COLUMNS
        assert effect_of(known, altered(before, swapped, no_fill())) is Effect.COLUMNS
        assert effect_of(known, altered(before, before, no_fill())) is Effect.OTHER


def test_rows_that_may_have_other_values_are_read_again() -> None:
    before = shape((2, "a"))
    assert effect_of(bare(before), altered(before, before, None)) is Effect.ROWS
    assert effect_of(before, altered(None, bare(before), None)) is Effect.ROWS
    assert effect_of(bare(before), altered(None, bare(before), None)) is Effect.OTHER


def test_names_alone_do_not_say_what_rows_have_in_a_column_that_may_be_renamed() -> None:
    known, found = bare(shape((2, "a"))), shape((2, "b"))
    assert decide(known, found, KEEP, before=None, fill=no_fill()).needs_snapshot
    assert not decide(shape((2, "a")), found, KEEP, before=None, fill=no_fill()).needs_snapshot
    assert not decide(known, found, KEEP, before=shape((2, "a")), fill=no_fill()).needs_snapshot


# --- while the table is captured --------------------------------------------------------------------------------------


def events(bench: Bench, table: TableId) -> list[str]:
    """What the journal has of the table besides rows."""
    items = [item for _, item in bench.items(table)]
    return [
        item.operation.value if isinstance(item, DDLEvent) else item.phase.value
        for item in items
        if isinstance(item, DDLEvent | SnapshotEvent)
    ]


def test_columns_come_go_and_are_renamed_each_at_its_position(bench: Bench) -> None:
    first = numbered(bench.schema("t"))
    id_, a, b = first.columns
    c = replace(a, name="c", id=4)
    table = bench.create(first)
    bench.fill(table, 3)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        with bench.database.begin() as changes:
            changes.insert(table, {"id": 10, "a": "x", "b": "y"})
            changes.alter(replace(first, columns=(id_, a, b, c)), fill={"c": "filled"})
            changes.insert(table, {"id": 11, "a": "x", "b": "y", "c": "z"})
            changes.alter(replace(first, columns=(id_, replace(a, name="b"), replace(b, name="a"), c)))
            changes.update(table, (11,), {"a": "was b"})
            changes.alter(replace(first, columns=(id_, replace(a, name="b"), c)))
        capture.until(bench.holds(table))
    assert events(bench, table) == ["CREATE_TABLE", "SNAPSHOT_STARTED", "SNAPSHOT_COMPLETED", *["ALTER_TABLE"] * 3]
    assert held(present(bench.known(table).schema)) == ["id", "b", "c", "a"]


def test_a_table_gets_a_snapshot_in_place_where_nobody_knows_what_its_rows_have(bench: Bench) -> None:
    table = bench.create(bench.schema("t"))
    bench.fill(table, 5)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        with bench.database.begin() as changes:
            changes.alter(bench.schema("t", extra=["c"]), fill={"c": "volatile"}, is_known=False)
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(table)())
    assert events(bench, table)[-3:] == ["ALTER_TABLE", "SNAPSHOT_STARTED", "SNAPSHOT_COMPLETED"]
    assert bench.known(table).incarnation == 1


@pytest.mark.parametrize("key", [("id",), ()], ids=["key", "no key"])
def test_a_snapshot_continues_with_the_new_columns(bench: Bench, key: tuple[str, ...]) -> None:
    schema = numbered(bench.schema("t", key=key))
    wider = replace(schema, columns=(*schema.columns, replace(schema.columns[1], name="c", id=4)))
    table = bench.create(schema)
    bench.fill(table, 9)

    def alter() -> None:
        with bench.database.begin() as changes:
            changes.alter(wider, fill={"c": "filled"})
            changes.insert(table, {"id": 50, "a": "x", "b": "y", "c": "z"})

    with bench.running(
        lambda source: source.faults.script(
            "read_chunk" if key else "read_whole.batch", *([None] if key else []), alter
        )
    ) as capture:
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(table)())
    assert bench.known(table).incarnation == 1


def test_a_column_that_goes_while_the_table_is_read_does_not_fail_it(bench: Bench) -> None:
    schema = numbered(bench.schema("t"))
    table = bench.create(schema)
    bench.fill(table, 9)

    def alter() -> None:
        with bench.database.begin() as changes:
            changes.alter(replace(schema, columns=schema.columns[:2]))

    with bench.running(lambda source: source.faults.script("read_chunk", None, alter)) as capture:
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(table)())
    assert (bench.known(table).incarnation, held(present(bench.known(table).schema))) == (1, ["id", "a", "b"])


def test_what_the_log_does_not_show_is_found_in_the_catalogue(bench: Bench) -> None:
    bench.settings = replace(bench.settings, compare_every_s=0.02)
    table = bench.create(bench.schema("t"))
    bench.fill(table, 4)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        with bench.database.changed:
            found = bench.database.table(table)
            found.schema = bench.schema("t", extra=["c"])
            found.rows = {i: {**row, "c": "silent"} for i, row in found.rows.items()}
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(table)())
    assert events(bench, table)[3:] == ["ALTER_TABLE", "SNAPSHOT_STARTED", "SNAPSHOT_COMPLETED"]


def test_a_table_that_waits_for_its_snapshot_takes_its_new_columns_with_it(bench: Bench) -> None:
    table = bench.create(bench.schema("t"))
    bench.fill(table, 4)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        blocker = bench.write(table, {"id": 60, "a": "x", "b": "y"}, visible=False)
        bench.database.make_visible(blocker)
        with bench.database.begin() as changes:
            changes.alter(bench.schema("t", extra=["c"]), is_known=False)
        with bench.database.begin() as changes:
            changes.alter(bench.schema("t", extra=["c", "d"]), fill={"d": "new"}, is_known=False)
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(table)())
    assert bench.known(table).incarnation == 1
    assert DDLOperation.ALTER_TABLE.value in events(bench, table)


def test_truncate_by_policy_stop_fails_its_table_alone(bench: Bench) -> None:
    bench.settings = replace(bench.settings, ddl=lambda _: DDLConfig(truncate_table="stop"))
    table, other = bench.create(bench.schema("t")), bench.create(bench.schema("other"))
    bench.fill(table, 4)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        with bench.database.begin() as changes:
            changes.truncate(table)
        bench.fill(other, 2)
        capture.until(lambda: bench.known(table).stage is Stage.FAILED and bench.holds(other)())
    assert bench.error_of(table).code == "ddl_stop"

"""Tables whose columns come, go and are renamed while they are captured."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from replicator.capture.definitions.altering import altered_by_log
from replicator.capture.definitions.policies import Effect, decide, effect_of
from replicator.config import DDLConfig
from replicator.model.errors import SchemaConflictError
from replicator.model.events import DDLEvent, DDLOperation, SnapshotEvent, no_fill
from replicator.model.schema import Column, TableId, TableSchema
from replicator.state import table_life
from replicator.state.records import Decision, ErrorRecord, RequestKind, Stage
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


def test_a_shape_that_a_source_derived_from_what_is_tracked_keeps_nothing() -> None:
    first = decide(shape((2, "a"), (3, "b")), shape((3, "b")), KEEP, before=None, fill=no_fill()).schema
    derived = replace(shape((3, "b"), (4, "a")), kept=first.kept)
    again = decide(first, derived, KEEP, before=None, fill=no_fill())
    assert again.error is None
    assert held(again.schema) == ["id", "b", "a", "a__dropped_1"]


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
    found = decide(shape((2, "a"), (3, "b")), after, policies, before=None, fill=no_fill())
    assert found.decision is Decision.STOP
    assert (present(found.error).code, f"ddl.{setting} is `stop`" in present(found.error).message) == ("ddl_stop", True)
    accepted = decide(shape((2, "a"), (3, "b")), after, policies, before=None, fill=no_fill(), is_accepted=True)
    assert (accepted.error, accepted.decision) == (None, Decision.KEEP if setting == "keep" else Decision.APPLY)


def typed(*types: pa.DataType, key: tuple[str, ...] = ("id",), nullable: bool = True) -> TableSchema:
    made = [
        Column(name=name, type=type_, source_type=str(type_), nullable=nullable, id=id_)
        for id_, (name, type_) in enumerate(zip(("id", "a", "b"), types, strict=False), start=1)
    ]
    return TableSchema(table=TableId("public", "t"), columns=tuple(made), key=key)


INT, BIG, TEXT, FLOAT = pa.int32(), pa.int64(), pa.string(), pa.float64()
ALL = DDLConfig(change_type="apply", change_key="apply")


@pytest.mark.parametrize(
    ("before", "after", "changes", "by_default", "if_applied"),
    [
        (typed(INT, INT), typed(INT, BIG), ["widen_type"], "apply", "apply"),
        (typed(INT, INT), typed(BIG, INT), ["widen_type"], "apply", "apply"),
        (typed(INT, INT), typed(INT, FLOAT), ["widen_type"], "rebuild", "rebuild"),
        (typed(INT, INT), typed(FLOAT, INT), ["change_type"], "stop", "rebuild"),
        (typed(INT, BIG), typed(INT, INT), ["change_type"], "stop", "rebuild"),
        (typed(INT, INT), typed(INT, TEXT), ["change_type"], "stop", "rebuild"),
        (typed(INT, INT), typed(INT, INT, key=("id", "a")), ["change_key"], "stop", "rebuild"),
        (typed(INT, INT), typed(INT, INT, key=()), ["change_key"], "stop", "rebuild"),
        (typed(INT, INT, key=()), typed(INT, INT), ["change_key"], "stop", "rebuild"),
        (typed(INT, INT), typed(INT, INT, nullable=False), ["change_nullability"], "record", "record"),
        (typed(INT, INT), typed(INT, BIG, INT), ["add_column", "widen_type"], "apply", "apply"),
        (typed(INT, INT), typed(INT, TEXT, INT), ["add_column", "change_type"], "stop", "rebuild"),
        (typed(INT, INT, INT), typed(INT, BIG), ["drop_column", "widen_type"], "apply", "apply"),
    ],
)
def test_the_strictest_kind_of_change_decides(
    before: TableSchema, after: TableSchema, changes: list[str], by_default: str, if_applied: str
) -> None:
    for policies, decision in ((KEEP, by_default), (ALL, if_applied)):
        found = decide(before, after, policies, before=before, fill=no_fill(), can_widen=widens_integers)
        assert (list(found.changes), found.decision) == (changes, decision)
        assert (found.error is None) == (decision != "stop")
    unknown = decide(before, after, ALL, before=before, fill=None, can_widen=widens_integers)
    assert unknown.decision == ("rebuild" if if_applied == "rebuild" else "snapshot")


def widens_integers(before: pa.DataType, after: pa.DataType) -> bool:
    return pa.types.is_integer(before) and pa.types.is_integer(after)


def test_a_type_that_only_the_catalogue_shows_says_nothing_of_values() -> None:
    found = decide(typed(INT, INT), typed(INT, BIG), KEEP, before=None, fill=no_fill(), can_widen=widens_integers)
    assert found.decision is Decision.SNAPSHOT


def test_a_key_column_that_is_renamed_is_the_same_key() -> None:
    before, renamed = typed(INT, INT), typed(INT, INT, key=("key",))
    after = replace(renamed, columns=(replace(renamed.columns[0], name="key"), renamed.columns[1]))
    assert decide(before, after, KEEP, before=before, fill=no_fill()).changes == ("rename_column",)


def test_kept_columns_are_not_lost_by_a_widening_that_nobody_asked_to_rebuild_for() -> None:
    kept = replace(typed(INT, INT), kept=(Column(name="old", type=TEXT, source_type="text"),))
    found = decide(kept, typed(INT, FLOAT), KEEP, before=typed(INT, INT), fill=no_fill())
    assert "would lose columns that it keeps: old" in present(found.error).message
    accepted = decide(kept, typed(INT, FLOAT), KEEP, before=typed(INT, INT), fill=no_fill(), is_accepted=True)
    assert accepted.decision is Decision.REBUILD


def test_names_of_ours_and_names_that_clash_are_refused() -> None:
    for after in (shape((2, "a"), (3, "_sequence_num")), shape((2, "a"), (3, "A"))):
        found = decide(shape((2, "a")), after, KEEP, before=None, fill=no_fill())
        assert (found.decision, isinstance(found.error, SchemaConflictError)) == (Decision.STOP, True)


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
        assert effect_of(known, altered(before, replace(before, key=()), no_fill())) is Effect.COLUMNS
    stricter = replace(before, columns=(before.columns[0], *(replace(c, nullable=False) for c in before.columns[1:])))
    assert effect_of(before, altered(before, stricter, None)) is Effect.COLUMNS


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


# --- types, keys, and what somebody accepts ---------------------------------------------------------------------------


def retyped(schema: TableSchema, name: str, type_: pa.DataType, *, key: tuple[str, ...] | None = None) -> TableSchema:
    columns = [replace(c, type=type_, source_type=str(type_)) if c.name == name else c for c in schema.columns]
    return replace(schema, columns=tuple(columns), key=schema.key if key is None else key)


def decisions(bench: Bench, table: TableId) -> list[str]:
    return [event for event in events(bench, table) if event in ("CREATE_TABLE", "ALTER_TABLE", "DROP_TABLE")]


def numbers(bench: Bench, table: TableId, *ids: int) -> None:
    bench.write(table, *({"id": id_, "a": id_, "b": "x"} for id_ in ids))


@pytest.mark.parametrize("can_widen", [True, False], ids=["in place", "rebuilt"])
def test_a_column_is_widened_at_its_position(bench: Bench, can_widen: bool) -> None:
    bench.settings = replace(bench.settings, widens=lambda _, __: can_widen)
    small = retyped(numbered(bench.schema("t")), "a", pa.int32())
    table = bench.create(small)
    numbers(bench, table, 1, 2)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        with bench.database.begin() as changes:
            changes.insert(table, {"id": 3, "a": 3, "b": "x"})
            changes.alter(retyped(small, "a", pa.int64()))
            changes.insert(table, {"id": 4, "a": 1 << 40, "b": "x"})
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(table)())
    assert bench.known(table).incarnation == (1 if can_widen else 2)
    assert decisions(bench, table) == ["CREATE_TABLE", "ALTER_TABLE" if can_widen else "CREATE_TABLE"]


@pytest.mark.parametrize("kind", ["change_type", "change_key"])
@pytest.mark.parametrize("is_down", [False, True], ids=["running", "down"])
def test_a_table_stops_at_a_change_until_somebody_accepts_it(bench: Bench, kind: str, is_down: bool) -> None:
    first = retyped(numbered(bench.schema("t")), "a", pa.int32())
    table = bench.create(first)
    other = bench.create(bench.schema("other"))
    numbers(bench, table, 1, 2)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        with bench.database.begin() as changes:
            changes.alter(retyped(first, "a", pa.string()) if kind == "change_type" else replace(first, key=("a",)))
        bench.fill(other, 2)
        capture.until(lambda: bench.known(table).stage is Stage.FAILED and bench.holds(other)())
        assert (bench.error_of(table).code, bench.known(table).incarnation) == ("ddl_stop", 1)
        if not is_down:
            bench.store.requests.add("test", RequestKind.ACCEPT, {"tables": [str(table)]})
            capture.until(lambda: bench.is_at(*STREAMING)() and not bench.store.requests.open("test"))
    if is_down:
        bench.store.requests.add("test", RequestKind.ACCEPT, {"tables": [str(table)]})
        with bench.running() as capture:
            capture.until(lambda: bench.is_at(*STREAMING)() and not bench.store.requests.open("test"))
    assert (bench.known(table).incarnation, bench.known(table).is_accepted) == (2, False)


def test_an_added_column_that_is_accepted_comes_in_place(bench: Bench) -> None:
    bench.settings = replace(bench.settings, ddl=lambda _: DDLConfig(add_column="stop"))
    table = bench.create(numbered(bench.schema("t")))
    bench.fill(table, 3)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        with bench.database.begin() as changes:
            wider = bench.schema("t", extra=["c"])
            changes.alter(numbered(wider), fill={"c": "filled"})
            changes.insert(table, {"id": 9, "a": "x", "b": "y", "c": "z"})
        capture.until(lambda: bench.known(table).stage is Stage.FAILED)
        bench.store.requests.add("test", RequestKind.ACCEPT, {"tables": [str(table)]})
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(table)())
        with bench.database.begin() as changes:
            changes.alter(numbered(bench.schema("t", extra=["c", "d"])))
        capture.until(lambda: bench.known(table).stage is Stage.FAILED)
    assert bench.known(table).incarnation == 1
    assert bench.error_of(table).code == "ddl_stop"


def test_a_truncate_that_is_accepted_is_read_again_in_place(bench: Bench) -> None:
    bench.settings = replace(bench.settings, ddl=lambda _: DDLConfig(truncate_table="stop"))
    table = bench.create(bench.schema("t"))
    bench.fill(table, 4)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        with bench.database.begin() as changes:
            changes.truncate(table)
        bench.fill(table, 2, first=20)
        capture.until(lambda: bench.known(table).stage is Stage.FAILED)
        bench.store.requests.add("test", RequestKind.ACCEPT, {"tables": [str(table)]})
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(table)())
    assert bench.known(table).incarnation == 1


def test_a_drop_that_stops_removes_nothing_until_it_is_accepted(bench: Bench) -> None:
    bench.settings = replace(bench.settings, compare_every_s=0.02, ddl=lambda _: DDLConfig(drop_table="stop"))
    table, other = bench.create(bench.schema("t")), bench.create(bench.schema("other"))
    bench.fill(table, 4)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        bench.database.drop_table(table)
        capture.until(lambda: bench.known(table).stage is Stage.FAILED)
        assert (bench.error_of(table).code, decisions(bench, table)) == ("ddl_stop", ["CREATE_TABLE"])
        bench.store.requests.add("test", RequestKind.ACCEPT, {"tables": [str(table)]})
        capture.until(lambda: bench.error_of(table).code == "table_missing")
        bench.fill(other, 2)
        capture.until(bench.holds(other))
    assert decisions(bench, table) == ["CREATE_TABLE", "DROP_TABLE"]


def test_nothing_is_accepted_of_a_table_that_waits_for_nothing(bench: Bench) -> None:
    table = bench.create(bench.schema("t"))
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        bench.store.requests.add("test", RequestKind.ACCEPT, {"tables": [str(table)]})
        capture.until(lambda: not bench.store.requests.open("test"))
    assert bench.known(table).incarnation == 1
    assert len(events(bench, table)) == 3


def test_a_policy_that_is_changed_rebuilds_nothing_by_itself(bench: Bench) -> None:
    table = bench.create(numbered(bench.schema("t")))
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        with bench.database.begin() as changes:
            changes.alter(numbered(bench.schema("t", key=("id", "a"))))
        capture.until(lambda: bench.known(table).stage is Stage.FAILED)
    bench.settings = replace(bench.settings, ddl=lambda _: DDLConfig(change_key="apply"))
    other = bench.create(bench.schema("other"))
    with bench.running() as capture:
        bench.fill(other, 3)
        capture.until(bench.holds(other))
    assert (bench.known(table).stage, bench.known(table).incarnation) == (Stage.FAILED, 1)


def test_a_table_that_changes_while_it_waits_for_its_snapshot_is_judged_as_it_begins(bench: Bench) -> None:
    small = retyped(numbered(bench.schema("t")), "a", pa.int32())
    table = bench.create(small)
    numbers(bench, table, 1)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        with bench.database.begin() as changes:
            wider = replace(small, columns=(*small.columns, replace(small.columns[2], name="c", id=4)))
            changes.alter(wider, is_known=False)
        with bench.database.begin() as changes:
            changes.alter(retyped(wider, "a", pa.string()))
        capture.until(lambda: bench.known(table).stage is Stage.FAILED)
    assert (bench.error_of(table).code, bench.known(table).incarnation) == ("ddl_stop", 1)


IGNORE = DDLConfig(add_column="ignore", rename_column="ignore", widen_type="ignore", change_type="ignore")


def rows_of(bench: Bench, table: TableId) -> list[dict[str, object]]:
    return [item["row"] for _, item in bench.items(table) if isinstance(item, dict) and item["row"]]


def test_the_target_keeps_what_policies_ignore_across_restarts_and_snapshots(bench: Bench) -> None:
    bench.settings = replace(bench.settings, ddl=lambda _: IGNORE)
    first = retyped(numbered(bench.schema("t")), "a", pa.int32())
    table = bench.create(first)
    numbers(bench, table, 1)
    big = retyped(first, "a", pa.int64())
    renamed = replace(big, columns=(*big.columns[:2], replace(big.columns[2], name="c")))
    more = replace(renamed, columns=(*renamed.columns, replace(first.columns[2], name="d", id=4)))
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        with bench.database.begin() as changes:
            changes.alter(more, fill={"d": "left out"})
            changes.insert(table, {"id": 2, "a": 2, "c": "x", "d": "y"})
        capture.until(lambda: len(rows_of(bench, table)) == 2)
    bench.store.requests.add("test", RequestKind.SNAPSHOT, {"tables": [str(table)]})
    with bench.running() as capture:
        capture.until(lambda: bench.is_at(*STREAMING)() and len(rows_of(bench, table)) == 4)
    assert rows_of(bench, table)[1:] == [
        {"id": 2, "a": 2, "b": "x"},
        {"id": 1, "a": 1, "b": "x"},
        {"id": 2, "a": 2, "b": "x"},
    ]
    assert present(bench.known(table).schema).fingerprint == more.fingerprint


@pytest.mark.parametrize("is_read", [False, True], ids=["by the log", "by a snapshot"])
def test_a_value_that_does_not_fit_fails_the_table_until_somebody_accepts_the_type(bench: Bench, is_read: bool) -> None:
    bench.settings = replace(bench.settings, ddl=lambda _: IGNORE)
    first = retyped(numbered(bench.schema("t")), "a", pa.int32())
    table, other = bench.create(first), bench.create(bench.schema("other"))
    numbers(bench, table, 1)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        with bench.database.begin() as changes:
            if is_read:
                changes.insert(table, {"id": 2, "a": 2, "b": "x"})
            changes.alter(retyped(first, "a", pa.int64()), is_known=not is_read)
        if is_read:
            with bench.database.changed:
                bench.database.table(table).rows = {
                    i: {**row, "a": 1 << 40} for i, row in bench.database.table(table).rows.items()
                }
        else:
            numbers(bench, table, 1 << 40)
        bench.fill(other, 2)
        capture.until(lambda: bench.known(table).stage is Stage.FAILED and bench.holds(other)())
        assert (bench.error_of(table).code, bench.known(table).incarnation) == ("value_does_not_fit", 1)
        bench.store.requests.add("test", RequestKind.ACCEPT, {"tables": [str(table)]})
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(table)())
    assert (bench.known(table).incarnation, bench.known(table).ignored) == (2, ())


@pytest.mark.parametrize("policy", ["apply", "stop"])
def test_what_may_be_null_is_recorded_or_stops_the_table(bench: Bench, policy: str) -> None:
    bench.settings = replace(bench.settings, ddl=lambda _: DDLConfig.model_validate({"change_nullability": policy}))
    first = numbered(bench.schema("t"))
    stricter = replace(first, columns=(*first.columns[:2], replace(first.columns[2], nullable=False)))
    table = bench.create(first)
    bench.fill(table, 2)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        with bench.database.begin() as changes:
            changes.alter(stricter)
        bench.fill(table, 2, first=20)
        stage = Stage.FAILED if policy == "stop" else Stage.STREAMING
        capture.until(lambda: bench.is_at(stage)() and (policy == "stop" or bench.holds(table)()))
    tracked = present(bench.known(table).schema)
    assert tracked.columns[2].nullable is (policy == "stop")
    assert policy != "stop" or "forbade NULL in b" in bench.error_of(table).message


@pytest.mark.parametrize(
    ("statement", "policy", "decision"),
    [
        ("ALTER TABLE t ALTER a SET DEFAULT 5", "apply", Decision.RECORD),
        ("ALTER TABLE t ALTER a SET DEFAULT 5", "stop", Decision.STOP),
        ("ALTER TABLE t ADD INDEX (a)", "stop", Decision.RECORD),
    ],
)
def test_a_default_is_recorded_or_stops_the_table(
    bench: Bench, statement: str, policy: str, decision: Decision
) -> None:
    settings = replace(bench.settings, ddl=lambda _: DDLConfig.model_validate({"change_default": policy}))
    schema = numbered(bench.schema("t"))
    record = replace(table_life.added(schema.table), schema=schema, stage=Stage.STREAMING)
    event = replace(altered(schema, schema, no_fill()), statement=statement)
    outcome = altered_by_log(record, event, 0, settings)
    assert [note.decision for note in outcome.notes] == [decision]
    assert (outcome.failure is None) is (decision is Decision.RECORD)
    assert outcome.failure is None or "change_default" in outcome.failure.error.message


@pytest.mark.parametrize("is_altered", [False, True], ids=["as it was", "altered"])
def test_a_statement_that_nobody_understood_is_accepted_with_a_snapshot_in_place(
    bench: Bench, is_altered: bool
) -> None:
    schema = numbered(bench.schema("t"))
    table = bench.create(schema)
    bench.fill(table, 3)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
    error = ErrorRecord(
        code="ddl_not_understood", message="What is it?", action=None, at=datetime(2026, 1, 1, tzinfo=UTC)
    )
    epoch = present(bench.store.leases.current("test")).epoch
    bench.store.put_tables("test", epoch, [table_life.failed(bench.known(table), error)])
    if is_altered:
        with bench.database.begin() as changes:
            changes.alter(replace(schema, columns=(*schema.columns[:2], replace(schema.columns[2], name="c"))))
    bench.store.requests.add("test", RequestKind.ACCEPT, {"tables": [str(table)]})
    with bench.running() as capture:
        capture.until(
            lambda: bench.is_at(*STREAMING)() and bench.holds(table)() and not bench.store.requests.open("test")
        )
    assert (bench.known(table).incarnation, bench.known(table).is_accepted) == (1, False)
    assert events(bench, table)[-2:] == ["SNAPSHOT_STARTED", "SNAPSHOT_COMPLETED"]


@pytest.mark.parametrize("kind", ["change_type", "change_key"])
@pytest.mark.parametrize("policy", ["stop", "apply"])
@pytest.mark.parametrize("is_down", [False, True], ids=["running", "down"])
def test_what_only_the_catalogue_shows_is_decided_by_the_same_policies(
    bench: Bench, kind: str, policy: str, is_down: bool
) -> None:
    bench.settings = replace(
        bench.settings, compare_every_s=0.02, ddl=lambda _: DDLConfig.model_validate({kind: policy})
    )
    first = retyped(numbered(bench.schema("t")), "a", pa.int32())
    table = bench.create(first)
    numbers(bench, table, 1, 2)

    def redefine() -> None:
        with bench.database.changed:
            found = bench.database.table(table)
            if kind == "change_key":
                found.schema = replace(first, key=("id", "a"))
            else:
                found.schema = retyped(first, "a", pa.string())
                found.rows = {i: {**row, "a": str(row["a"])} for i, row in found.rows.items()}

    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        if not is_down:
            redefine()
            capture.until(lambda: is_decided(bench, table, policy))
    if is_down:
        redefine()
        with bench.running() as capture:
            capture.until(lambda: is_decided(bench, table, policy))
    assert decisions(bench, table) == ["CREATE_TABLE"] * bench.known(table).incarnation


def is_decided(bench: Bench, table: TableId, policy: str) -> bool:
    record = bench.known(table)
    if policy == "stop":
        return record.stage is Stage.FAILED and bench.error_of(table).code == "ddl_stop" and record.incarnation == 1
    return record.incarnation == 2 and bench.is_at(*STREAMING)() and bench.holds(table)()


def test_a_table_that_was_dropped_and_created_again_is_rebuilt_whatever_its_columns_are_now(bench: Bench) -> None:
    bench.settings = replace(bench.settings, compare_every_s=3600.0)
    table = bench.create(numbered(bench.schema("t")))
    bench.fill(table, 3)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
    bench.database.drop_table(table)
    bench.create(retyped(numbered(bench.schema("t")), "a", pa.int32()))
    numbers(bench, table, 7)
    with bench.running() as capture:
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(table)())
    assert bench.known(table).incarnation == 2

"""What the target has where policies ignore changes of columns, and how rows become its rows."""

from __future__ import annotations

from datetime import date, datetime, time
from typing import Any

import pyarrow as pa
import pytest

from replicator.capture.definitions.policies import Altered, decide
from replicator.capture.definitions.policies import bare as bare_shape
from replicator.config import DDLConfig, TablesConfig
from replicator.model.errors import SchemaConflictError
from replicator.model.events import ABSENT, BEFORE, ROW, change_schema, no_fill
from replicator.model.schema import Column, TableId, TableSchema
from replicator.projection.columns import IgnoredColumn, Projection
from replicator.projection.rows import project
from replicator.projection.rules import ColumnRules, rules_for
from replicator.state.records import Decision

IGNORE = DDLConfig(add_column="ignore", rename_column="ignore", widen_type="ignore", change_type="ignore")


def shape(*columns: tuple[int, str, pa.DataType], key: tuple[str, ...] = ("id",)) -> TableSchema:
    made = [Column(name=name, type=type_, source_type=str(type_), id=id_) for id_, name, type_ in columns]
    return TableSchema(table=TableId("public", "t"), columns=tuple(made), key=key)


ID = (1, "id", pa.int64())
FIRST = shape(ID, (2, "a", pa.int32()), (3, "b", pa.string()))


def held(schema: TableSchema, ignored: tuple[IgnoredColumn, ...]) -> list[tuple[str, str]]:
    return [(column.name, str(column.type)) for column in Projection(ignored).in_target(schema).held]


def test_what_is_ignored_leaves_the_target_as_it_is_through_later_changes() -> None:
    second = shape(ID, (2, "a", pa.int64()), (3, "b2", pa.string()), (4, "c", pa.string()))
    found = decide(FIRST, second, IGNORE, before=FIRST, fill=no_fill())
    assert (found.decision, held(found.tracked, found.projection.ignored)) == (
        Decision.IGNORE,
        [("id", "int64"), ("a", "int32"), ("b", "string")],
    )
    assert found.before.fingerprint == found.schema.fingerprint
    third = shape(ID, (4, "c2", pa.string()), (2, "a2", pa.int64()), (5, "d", pa.string()))
    then = decide(found.tracked, third, DDLConfig(), before=second, fill=no_fill(), projection=found.projection)
    assert held(then.tracked, then.projection.ignored) == [
        ("id", "int64"),
        ("a2", "int32"),
        ("d", "string"),
        ("b", "string"),
    ]
    assert then.before.fingerprint == found.schema.fingerprint
    assert [column.name for column in then.schema.kept] == ["b"]


def test_a_type_that_was_ignored_is_widened_from_what_the_target_has() -> None:
    found = decide(FIRST, shape(ID, (2, "a", pa.int64()), FIRST_B), IGNORE, before=FIRST, fill=no_fill())
    wider = shape(ID, (2, "a", pa.decimal128(20, 0)), FIRST_B)
    then = decide(
        found.tracked,
        wider,
        DDLConfig(),
        before=None,
        fill=None,
        projection=found.projection,
        can_widen=lambda _, __: True,
    )
    assert (then.decision, then.projection.ignored) == (Decision.SNAPSHOT, ())
    assert (str(then.schema.column("a").type), then.schema.column("a").source_type) == ("decimal128(20, 0)",) * 2
    assert str(then.before.column("a").type) == "int32"


FIRST_B = (3, "b", pa.string())


@pytest.mark.parametrize(
    "other", [(2, "x", pa.int32()), (2, "a", pa.int64()), (2, "a", pa.string()), (2, "x", pa.string())], ids=str
)
def test_nothing_is_ignored_of_a_column_that_has_its_name_and_type_again(other: tuple[int, str, pa.DataType]) -> None:
    then, ignored = FIRST, tuple[IgnoredColumn, ...]()
    for shape_now in (shape(ID, other, FIRST_B), FIRST):
        found = decide(then, shape_now, IGNORE, before=then, fill=no_fill(), projection=Projection(ignored))
        assert held(found.tracked, found.projection.ignored) == held(FIRST, ())
        then, ignored = found.tracked, found.projection.ignored
    assert ignored == ()


def test_keys_are_not_ignored() -> None:
    renamed = shape((1, "key", pa.int64()), (2, "a", pa.int32()), FIRST_B, key=("key",))
    assert decide(FIRST, renamed, IGNORE, before=FIRST, fill=no_fill()).projection.ignored == ()
    retyped = shape((1, "id", pa.string()), (2, "a", pa.int32()), FIRST_B)
    assert decide(FIRST, retyped, IGNORE, before=FIRST, fill=no_fill()).decision is Decision.STOP


def test_a_name_that_the_target_keeps_is_not_given_to_another_column() -> None:
    second = shape(ID, (2, "a", pa.int32()), (3, "b2", pa.string()))
    found = decide(FIRST, second, IGNORE, before=FIRST, fill=no_fill())
    third = shape(ID, (2, "a", pa.int32()), (3, "b2", pa.string()), (4, "b", pa.string()))
    assert decide(found.tracked, third, DDLConfig(), before=second, fill=no_fill(), projection=found.projection).error


def changes(schema: TableSchema, *rows: dict[str, Any], absent: list[str] | None = None) -> pa.RecordBatch:
    layout = change_schema(schema)
    plain = {"_operation": "INSERT", "_is_snapshot": False, ABSENT: absent, "before": None}
    return pa.RecordBatch.from_pylist(
        [{**plain, "_sequence_num": number, ROW: row, **row.pop("changed", {})} for number, row in enumerate(rows)],
        schema=layout,
    )


def test_rows_are_as_the_target_has_them() -> None:
    source = shape(ID, (4, "an odd name", pa.string()), (2, "a", pa.int64()), (3, "b2", pa.string()))
    ignored = (
        IgnoredColumn(column="an odd name"),
        IgnoredColumn(column="a", name="a", type="int32", source_type="integer"),
        IgnoredColumn(column="b2", name="b", type="string", source_type="text"),
    )
    rows = changes(
        source,
        {"id": 1, "c2": "x", "a": 5, "b2": "y"},
        {"id": 2, "a": None, "changed": {BEFORE: {"id": 1}}},
        absent=["c2", "b2"],
    )
    rows = pa.concat_batches(
        [rows, changes(source, {"changed": {"_operation": "DELETE", BEFORE: {"id": 2}, ROW: None}})]
    )
    found = project(rows, source, Projection(ignored))
    assert found.column(ROW).to_pylist() == [{"id": 1, "a": 5, "b": "y"}, {"id": 2, "a": None, "b": None}, None]
    assert found.column(BEFORE).to_pylist() == [None, {"id": 1}, {"id": 2}]
    assert found.column(ABSENT).to_pylist() == [["b"], ["b"], None]
    assert found.schema.equals(change_schema(Projection(ignored).in_target(source)))


def test_rows_without_a_key_are_compared_as_the_target_has_them() -> None:
    source = shape(ID, (2, "a", pa.int64()), key=())
    row = {"id": 1, "a": 5, "changed": {BEFORE: {"id": 1, "a": 4}}}
    found = project(
        changes(source, row), source, Projection((IgnoredColumn(column="a", name="a", type="int32", source_type=""),))
    )
    assert found.column(BEFORE).to_pylist() == [{"id": 1, "a": 4}]


@pytest.mark.parametrize(
    ("source", "target", "value", "fits"),
    [
        (pa.int64(), "int32", 1 << 40, False),
        (pa.string(), "int32", "12", True),
        (pa.string(), "int32", "012", False),
        (pa.string(), "int32", "twelve", False),
        (pa.float64(), "float", 0.5, True),
        (pa.float64(), "float", 0.1, False),
        (pa.float64(), "float", float("nan"), True),
        (pa.string(), "int32", None, True),
        (pa.binary(), "string", b"\xff", False),
        (pa.timestamp("us", tz="UTC"), "bool", None, True),
        (pa.date32(), "int32", date(2024, 2, 29), False),
        (pa.int64(), "timestamp[us]", 0, False),
        (pa.timestamp("us"), "timestamp[us, tz=UTC]", datetime(2024, 2, 29), False),  # noqa: DTZ001 - it has none
        (pa.time64("us"), "int64", time(1), False),
        (pa.list_(pa.date32()), "list<int32>", [date(2024, 2, 29)], False),
        (pa.list_(pa.int32()), "list<int32>", [1], True),
        (pa.list_(pa.int64()), "string", [1], False),
        (pa.date32(), "string", date(2024, 2, 29), True),
        (pa.date32(), "timestamp[us]", date(2024, 2, 29), True),
    ],
)
def test_a_value_that_is_another_in_the_type_that_the_target_keeps_is_refused(
    source: pa.DataType, target: str, value: Any, fits: bool
) -> None:
    schema = shape(ID, (2, "a", source))
    rows = changes(schema, {"id": 1, "a": value}, {"id": 2, "a": None})
    entry = (IgnoredColumn(column="a", name="a", type=target, source_type=""),)
    if fits:
        assert project(rows, schema, Projection(entry)).num_rows == 2
        return
    with pytest.raises(SchemaConflictError) as refused:
        project(rows, schema, Projection(entry))
    assert refused.value.code == "value_does_not_fit"


# --- settings of columns -----------------------------------------------------------------------------------------------


def rules(**options: Any) -> ColumnRules:
    return rules_for(FIRST.table, TablesConfig(settings={"*.*": options}).settings)


def judged(
    known: TableSchema, found: TableSchema, now: ColumnRules, was: ColumnRules | None = None, **more: Any
) -> Altered:
    """The decision about a table that went by `was` (the same as now, by default) and is judged by `now`."""
    projection = Projection(columns=(now if was is None else was).project(known))
    return decide(known, found, DDLConfig(), before=known, fill=no_fill(), projection=projection, rules=now, **more)


def target(altered: Altered) -> list[tuple[str, str]]:
    return [(column.name, str(column.type)) for column in altered.schema.held]


def test_a_column_that_is_left_out_comes_and_goes_without_a_trace() -> None:
    found = judged(
        FIRST, shape(ID, (2, "a", pa.int32()), FIRST_B, (4, "x", pa.string())), rules(columns={"exclude": ["x"]})
    )
    assert (found.decision, found.changes, found.before.fingerprint == found.schema.fingerprint) == (
        Decision.RECORD,
        (),
        True,
    )
    then = judged(found.tracked, shape(ID, (2, "a", pa.int32()), FIRST_B), rules(columns={"exclude": ["x"]}))
    assert (then.decision, then.schema.kept) == (Decision.RECORD, ())


def test_no_policy_stops_at_a_column_that_is_left_out() -> None:
    policies = DDLConfig(add_column="stop", drop_column="stop", change_type="stop")
    now = rules(columns={"exclude": ["x"]})
    for known, found in (
        (FIRST, shape(ID, (2, "a", pa.int32()), FIRST_B, (4, "x", pa.string()))),
        (shape(ID, (4, "x", pa.string())), shape(ID)),
        (shape(ID, (4, "x", pa.string())), shape(ID, (4, "x", pa.int8()))),
    ):
        projection = Projection(columns=now.project(known))
        decided = decide(known, found, policies, before=known, fill=no_fill(), projection=projection, rules=now)
        assert (decided.decision, decided.error) == (Decision.RECORD, None)


def test_a_new_column_is_masked_before_its_first_value() -> None:
    fill = pa.RecordBatch.from_pydict({"mail": ["a@b"], "x": ["c"], "plain": ["d"]})
    found = shape(
        ID, (2, "a", pa.int32()), FIRST_B, (4, "mail", pa.string()), (5, "x", pa.string()), (6, "plain", pa.string())
    )
    now = rules(columns={"exclude": ["x"]}, mask={"*mail*": "redact"}, rename={"mail": "contact"})
    decided = decide(FIRST, found, DDLConfig(), before=FIRST, fill=fill, rules=now)
    assert decided.fill is not None
    assert decided.fill.to_pylist() == [{"contact": "***", "plain": "d"}]
    assert [name for name, _ in target(decided)] == ["id", "a", "b", "contact", "plain"]


@pytest.mark.parametrize("is_accepted", [False, True])
@pytest.mark.parametrize(
    ("block", "is_stopped"),
    [
        ({"mask": {"b": "redact"}}, True),
        ({"mask": {"b*": "redact"}}, False),
        ({"mask": {"b": "redact", "b2": "redact"}}, False),
        ({"mask": {"b": "redact", "b2": "clear"}}, False),
        ({"mask": {"b": "redact", "b2": "null"}}, False),
        ({"columns": {"exclude": ["b"]}}, True),
        ({"columns": {"exclude": ["b2"]}}, True),
        ({"columns": {"include": ["id", "a", "b"]}}, True),
        ({"columns": {"include": ["id", "a", "b*"]}}, False),
        ({"mask": {"a": "null"}}, False),
    ],
)
def test_a_rename_must_not_change_how_a_column_is_treated(
    block: dict[str, Any], is_stopped: bool, is_accepted: bool
) -> None:
    decided = judged(
        FIRST, shape(ID, (2, "a", pa.int32()), (3, "b2", pa.string())), rules(**block), is_accepted=is_accepted
    )
    assert (decided.error is not None and decided.error.code == "projection_lost") is is_stopped
    assert (decided.decision is Decision.STOP) is is_stopped


def test_where_the_source_has_no_numbers_a_protected_column_must_not_be_replaced() -> None:
    def bare(*names: str) -> TableSchema:
        return bare_shape(shape(ID, *((0, name, pa.string()) for name in names)))

    now = rules(mask={"b": "redact"})
    lost = decide(bare("b"), bare("b2"), DDLConfig(), before=None, fill=None, rules=now)
    assert lost.error is not None
    assert lost.error.code == "projection_lost"
    assert decide(bare("b"), bare(), DDLConfig(), before=None, fill=None, rules=now).error is None
    assert decide(bare("b"), bare("b", "b2"), DDLConfig(), before=None, fill=None, rules=now).error is None
    assert decide(bare("c"), bare("c2"), DDLConfig(), before=None, fill=None, rules=now).error is None


@pytest.mark.parametrize(
    ("was", "now", "decision", "needs_snapshot", "columns"),
    [
        ({}, {}, Decision.RECORD, False, "id a b"),
        ({}, {"columns": {"exclude": ["b"]}}, Decision.APPLY, False, "id a"),
        ({"columns": {"exclude": ["b"]}}, {}, Decision.SNAPSHOT, True, "id a b"),
        ({}, {"rename": {"b": "c"}}, Decision.APPLY, False, "id a c"),
        ({}, {"mask": {"b": "sha256"}}, Decision.SNAPSHOT, True, "id a b"),
        ({"mask": {"b": "redact"}}, {"mask": {"b": "sha256"}}, Decision.SNAPSHOT, True, "id a b"),
        ({"mask": {"b": "redact"}}, {}, Decision.SNAPSHOT, True, "id a b"),
        ({}, {"mask": {"a": "sha256"}}, Decision.REBUILD, True, "id a b"),
        ({"mask": {"b": "redact"}}, {"columns": {"exclude": ["b"]}}, Decision.APPLY, False, "id a"),
    ],
)
def test_other_settings_are_followed(
    was: dict[str, Any], now: dict[str, Any], decision: Decision, needs_snapshot: bool, columns: str
) -> None:
    decided = judged(FIRST, FIRST, rules(**now), rules(**was))
    assert (decided.decision, decided.needs_snapshot) == (decision, needs_snapshot)
    if decision is not Decision.REBUILD:
        assert [name for name, _ in target(decided)] == columns.split()


def test_masks_are_in_rows_and_in_the_rows_before() -> None:
    keyless = shape(ID, (2, "a", pa.int32()), FIRST_B, key=())
    now = rules(columns={"exclude": ["a"]}, mask={"b": "last(1)"}, rename={"id": "number"})
    projection = Projection(columns=now.project(keyless))
    row = {"id": 1, "a": 5, "b": "xyz"}
    changes_ = changes(keyless, row)
    found = project(changes_, keyless, projection, now)
    assert found.schema.equals(change_schema(projection.in_target(keyless)))
    assert found.column(ROW).to_pylist() == [{"number": 1, "b": "**z"}]
    with pytest.raises(SchemaConflictError, match="another function or key"):
        project(changes_, keyless, projection, rules(mask={"b": "last(2)"}))


def test_no_error_quotes_a_value_that_cannot_be_masked() -> None:
    """Arrow's own message does: a number that is too large for the mask's 64 bits."""
    known = shape(ID, (2, "a", pa.uint64()))
    now = rules(mask={"a": "bucket(10)"})
    with pytest.raises(SchemaConflictError, match="cannot be masked") as refused:
        project(changes(known, {"id": 1, "a": 2**64 - 1}), known, Projection(columns=now.project(known)), now)
    assert refused.value.code == "value_cannot_be_masked"
    assert str(2**64 - 1) not in f"{refused.value} {refused.value.__cause__}"


@pytest.mark.parametrize("is_accepted", [False, True])
def test_a_name_that_settings_give_is_not_that_of_a_new_column_too(is_accepted: bool) -> None:
    found = shape(ID, (2, "a", pa.int32()), FIRST_B, (4, "C", pa.string()))
    decided = judged(FIRST, found, rules(rename={"b": "c"}), is_accepted=is_accepted)
    assert decided.error is not None
    assert (decided.decision, decided.error.code) == (Decision.STOP, "column_names_clash")


def test_a_column_that_only_the_target_has_is_left_out_like_others() -> None:
    kept = decide(FIRST, shape(ID, (2, "a", pa.int32())), DDLConfig(), before=FIRST, fill=no_fill()).tracked
    assert [column.name for column in kept.kept] == ["b"]
    decided = judged(kept, kept, rules(columns={"exclude": ["B"]}))
    assert (decided.decision, decided.needs_snapshot, target(decided)) == (
        Decision.APPLY,
        False,
        [("id", "int64"), ("a", "int32")],
    )
    assert ("b", "string") in target(judged(kept, kept, rules(columns={"exclude": ["a"]})))

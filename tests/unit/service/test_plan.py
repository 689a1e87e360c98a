"""What a statement would become in the target, before anybody executes it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from replicator.model.difference import difference
from replicator.model.errors import ConfigError, SchemaConflictError
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.registry import Registry
from replicator.service.plan.ddl import PlannedTable, StatementPlan, document, plan_statement
from replicator.service.plan.rehearsal import Rehearsed
from replicator.state.records import Decision, ErrorRecord, Stage, TableRecord
from replicator_source_sqlite.source import SqliteSource
from replicator_testbed.present import present
from replicator_testing.memory import MemoryDatabase, MemorySource, MemoryTarget

TABLE: Final = TableId("public", "t")
SHAPE: Final = TableSchema(
    table=TABLE,
    columns=(
        Column(name="id", type=pa.int64(), source_type="bigint", nullable=False),
        Column(name="a", type=pa.string(), source_type="text"),
        Column(name="n", type=pa.int32(), source_type="int"),
    ),
    key=("id",),
)
ERROR: Final = ErrorRecord(code="ddl_stop", message="", action=None, at=datetime(2026, 1, 31, 12, tzinfo=UTC))
Ask = Callable[..., StatementPlan]


@pytest.fixture
def database(tmp_path: Path) -> MemoryDatabase:
    database = MemoryDatabase.open(f"plan-{tmp_path}")
    for name in ("t", "other"):
        database.create_table(replace(SHAPE, table=TableId("public", name)))
    with database.begin() as changes:
        changes.insert(TABLE, *({"id": i, "a": "x", "n": i} for i in range(3)))
    return database


@pytest.fixture
def ask(database: MemoryDatabase) -> Ask:
    def plan(
        statement: str,
        more: str = "",
        stored: tuple[TableRecord, ...] = (),
        source: type[MemorySource] = MemorySource,
    ) -> StatementPlan:
        registry = Registry.of(sources=[source], targets=[MemoryTarget])
        text = (
            f"name: shop\nsource: {{type: memory, database: {database.name}}}\n"
            f"target: {{type: memory, database: {database.name}-target}}\n{more}"
        )
        if "tables:" not in more:
            text += "tables: {include: [public.t, public.new*]}\n"
        return plan_statement(registry.load(text, origin="shop.yaml"), registry, statement, stored=stored)

    return plan


def of_table(plan: StatementPlan) -> tuple[PlannedTable, Rehearsed]:
    (table,) = plan.tables
    return table, present(table.rehearsed)


def test_columns_come_go_and_are_renamed(ask: Ask, database: MemoryDatabase) -> None:
    log, shape = list(database.log), database.table(TABLE).schema
    statement = "ALTER TABLE public.t ADD COLUMN b text DEFAULT x, DROP COLUMN n, RENAME COLUMN a TO c;"
    table, rehearsed = of_table(ask(statement))
    assert rehearsed.decision is Decision.APPLY
    assert rehearsed.effects == (
        "rename column a to c",
        "add column b (string); rows that are there get 'x'",
        "keep column n with its values; rows that come later have NULL there",
    )
    assert difference(table.before, rehearsed.after) == ["+ b text", "- n", "a → c", "kept in the target: n"]
    assert (rehearsed.is_read_again, rehearsed.is_rewritten, table.estimated_rows) == (False, True, 3)
    assert (database.log, database.table(TABLE).schema) == (log, shape), "nothing was executed"


def test_policies_are_told_with_the_setting_that_they_come_from(ask: Ask) -> None:
    more = (
        "ddl: {add_column: apply}\n"
        "tables:\n  include: [public.t]\n  settings:\n    public.*: {ddl: {drop_column: keep}}\n"
        "    '*.t': {ddl: {drop_column: apply}}\n    public.other: {ddl: {drop_column: stop}}\n"
    )
    table, rehearsed = of_table(
        ask("ALTER TABLE public.t ADD COLUMN b text, DROP COLUMN a, RENAME COLUMN n TO m", more)
    )
    assert {one.change.value: (one.policy, one.set_by) for one in table.policies} == {
        "add_column": ("apply", "ddl.add_column"),
        "drop_column": ("apply", "tables.settings.*.t.ddl.drop_column"),
        "rename_column": ("apply", "default"),
    }
    assert rehearsed.decision is Decision.APPLY
    assert "drop column a" in rehearsed.effects
    assert "add column b (string); rows that are there get NULL" in rehearsed.effects
    assert not rehearsed.is_rewritten


def test_values_that_nobody_knows_cost_a_snapshot(ask: Ask) -> None:
    _, rehearsed = of_table(ask("ALTER TABLE public.t ADD COLUMN b bigint DEFAULT random()"))
    assert rehearsed.decision is Decision.SNAPSHOT
    assert rehearsed.effects[0] == "add column b (int64); rows that are there get its values by the new snapshot"
    assert rehearsed.effects[1].startswith("a new snapshot of the table, in place")
    assert rehearsed.is_read_again
    assert rehearsed.is_rewritten


def test_a_policy_that_stops_the_table_is_told_with_its_error(ask: Ask) -> None:
    plan = ask("ALTER TABLE public.t DROP COLUMN a", "ddl: {drop_column: stop}\n")
    _, rehearsed = of_table(plan)
    assert rehearsed.decision is Decision.STOP
    assert present(rehearsed.error).code == "ddl_stop"
    assert not rehearsed.is_read_again
    (told,) = document(plan).tables
    assert present(told.error).code == "ddl_stop"
    assert "NAME" not in (present(told.error).action or "")


def test_another_type_stops_the_table_by_default(ask: Ask) -> None:
    table, rehearsed = of_table(ask("ALTER TABLE public.t ALTER COLUMN a TYPE int"))
    assert rehearsed.decision is Decision.STOP
    assert [(one.change.value, one.policy) for one in table.policies] == [("change_type", "stop")]


def test_a_type_that_holds_all_values_is_widened_in_place(ask: Ask) -> None:
    table, rehearsed = of_table(ask("ALTER TABLE public.t ALTER COLUMN n TYPE bigint"))
    assert [(one.change.value, one.policy) for one in table.policies] == [("widen_type", "apply")]
    assert rehearsed.decision is Decision.APPLY
    assert rehearsed.effects == ("widen column n from int32 to int64, in place",)
    assert (rehearsed.is_read_again, rehearsed.is_rewritten) == (False, False)


def test_what_no_alter_can_do_rebuilds_the_table_where_the_policy_says_so(ask: Ask) -> None:
    table, rehearsed = of_table(ask("ALTER TABLE public.t ALTER COLUMN a TYPE int", "ddl: {change_type: apply}\n"))
    assert [(one.change.value, one.set_by) for one in table.policies] == [("change_type", "ddl.change_type")]
    assert rehearsed.decision is Decision.REBUILD
    assert rehearsed.effects[0].startswith("the table is rebuilt from a new snapshot")
    assert (rehearsed.is_read_again, rehearsed.is_rewritten) == (True, True)
    assert difference(table.before, rehearsed.after) == ["a text → int"]


def test_columns_that_the_target_keeps_are_taken_into_account(ask: Ask) -> None:
    kept = replace(SHAPE, kept=(Column(name="old", type=pa.string(), source_type="text"),))
    record = TableRecord(table=TABLE, incarnation=1, stage=Stage.STREAMING, schema=kept)
    _, rehearsed = of_table(ask("ALTER TABLE public.t ADD COLUMN old text", stored=(record,)))
    assert "the kept column old is called old__dropped_1 from then on" in rehearsed.effects


def test_a_table_that_has_failed_follows_no_change(ask: Ask) -> None:
    record = TableRecord(table=TABLE, incarnation=1, stage=Stage.FAILED, schema=SHAPE, error=ERROR)
    table, _ = of_table(ask("ALTER TABLE public.t ADD COLUMN b text", stored=(record,)))
    assert present(table.note).startswith("the table has failed (ddl_stop)")


@pytest.mark.parametrize(
    ("statement", "more", "decision", "effect"),
    [
        ("TRUNCATE TABLE public.t", "", Decision.APPLY, "the target table is emptied"),
        ("TRUNCATE TABLE public.t", "truncate_table: ignore", Decision.IGNORE, "the target table keeps its rows"),
        ("TRUNCATE TABLE public.t", "truncate_table: stop", Decision.STOP, "the table stops at this statement"),
        ("DROP TABLE public.t", "", Decision.IGNORE, "the target table stays as it is"),
        ("DROP TABLE public.t", "drop_table: apply", Decision.APPLY, "the target table is dropped, too"),
        ("DROP TABLE public.t", "drop_table: stop", Decision.STOP, "the target table stays as it is"),
        ("CREATE TABLE public.new", "", Decision.APPLY, "the table is replicated within a minute"),
        ("CREATE TABLE public.new", "create_table: ignore", Decision.IGNORE, "the table is replicated from the next"),
        ("CREATE TABLE public.t", "", Decision.SNAPSHOT, "another table has the name from here on"),
        ("ALTER TABLE public.t RENAME TO public.new", "", Decision.RECORD, "public.new continues into the same"),
        ("ALTER TABLE public.t RENAME TO public.x", "", Decision.IGNORE, "the table is taken for dropped, because"),
        ("ALTER TABLE public.t RENAME TO public.new", "rename_table: ignore", Decision.IGNORE, "the table is taken"),
        ("ALTER TABLE public.t RENAME TO public.new", "rename_table: stop", Decision.STOP, "the table stops at this"),
        ("ALTER TABLE public.other RENAME TO public.new", "", Decision.APPLY, "the table is replicated within"),
    ],
)
def test_statements_about_whole_tables(ask: Ask, statement: str, more: str, decision: Decision, effect: str) -> None:
    table, rehearsed = of_table(ask(statement, f"ddl: {{{more}}}\n"))
    assert (rehearsed.decision, rehearsed.effects[0][: len(effect)]) == (decision, effect)
    assert {one.policy for one in table.policies} <= {"apply", "ignore", "stop"}
    assert document(ask(statement, f"ddl: {{{more}}}\n")).tables[0].decision is decision


def test_a_table_that_is_not_replicated_is_told(ask: Ask) -> None:
    for statement in ("DROP TABLE public.other", "CREATE TABLE public.x", "ALTER TABLE public.other DROP COLUMN a"):
        plan = ask(statement)
        assert not plan.is_replicated
        assert [table.rehearsed for table in plan.tables] == [None]
        assert [table.is_replicated for table in document(plan).tables] == [False]


@pytest.mark.parametrize("statement", ["SELECT 1", "ALTER TABLE public.t ADD COLUMN b hstore", "DROP TABLE public.z"])
def test_what_is_not_understood_is_refused_with_its_text(ask: Ask, statement: str) -> None:
    with pytest.raises(ConfigError, match=statement.split(maxsplit=1)[0]) as refused:
        ask(statement)
    assert refused.value.code == "ddl_not_understood"


class Unsure(MemorySource):
    """A source to which one table's statements are a riddle."""

    def rehearse(self, statement: str) -> Sequence[DDLEvent]:
        raise SchemaConflictError(f"What is {statement}?", code="ddl_not_understood", table="public.t")


def test_what_would_fail_a_table_in_the_log_is_refused_too(ask: Ask) -> None:
    with pytest.raises(ConfigError) as refused:
        ask("ALTER TABLE public.t FROB", source=Unsure)
    assert (refused.value.code, refused.value.table) == ("ddl_not_understood", "public.t")
    assert "ddl.unknown" in (refused.value.action or "")


class Silent(MemorySource):
    """A source that does not say what a statement leaves behind."""

    def rehearse(self, statement: str) -> Sequence[DDLEvent]:
        return [DDLEvent(operation=DDLOperation.ALTER_TABLE, table=TABLE, statement=statement)]


def test_an_alteration_without_its_outcome_is_not_understood(ask: Ask) -> None:
    with pytest.raises(ConfigError) as refused:
        ask("ALTER TABLE public.t FROB", source=Silent)
    assert refused.value.code == "ddl_not_understood"


class Stepwise(MemorySource):
    """A source whose log brings one event per clause."""

    def rehearse(self, statement: str) -> Sequence[DDLEvent]:
        extra = [Column(name=name, type=pa.string(), source_type="text") for name in ("b", "c")]
        shapes = [replace(SHAPE, columns=(*SHAPE.columns, *extra[:count])) for count in range(3)]
        return [
            DDLEvent(operation=DDLOperation.ALTER_TABLE, table=TABLE, before=before, schema=after, statement=statement)
            for before, after in itertools.pairwise(shapes)
        ]


def test_the_events_of_one_statement_follow_each_other(ask: Ask) -> None:
    first, second = ask("ALTER TABLE public.t ADD b, ADD c", source=Stepwise).tables
    assert [difference(t.before, present(t.rehearsed).after) for t in (first, second)] == [["+ b text"], ["+ c text"]]


def test_a_source_without_the_ability_says_so(tmp_path: Path) -> None:
    registry = Registry.of(sources=[SqliteSource], targets=[MemoryTarget])
    text = f"name: shop\nsource: {{type: sqlite, path: {tmp_path}/db}}\ntarget: {{type: memory, database: none}}\n"
    with pytest.raises(ConfigError, match="type sqlite") as refused:
        plan_statement(registry.load(text, origin="shop.yaml"), registry, "DROP TABLE main.t")
    assert refused.value.code == "rehearsal_not_supported"
    assert not (tmp_path / "db").exists()

"""The advice of errors of this target, followed literally: the table streams afterwards. Each code has a case, or a reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from google.cloud import bigquery

import replicator_target_bigquery
from replicator.model.errors import Problem, ReplicatorError, Severity
from replicator.model.schema import Column
from replicator.plugins.kit import ledger
from replicator.plugins.target import TableOptions, TargetTable
from replicator_target_bigquery.target import BigQueryTarget
from replicator_testbed.advice import Case, codes_in, ways_of
from replicator_testing.alterations import evolved, numbered
from replicator_testing.batches import RowChange, insert, update, write_batch
from replicator_testing.target_harness import STRANGER, UUID, Copy, as_tuples, item, items_schema

if TYPE_CHECKING:
    from plugins.targets.bigquery.tests.conftest import Warehouse

NOT_PROVOKED: Final = {
    "access_denied": "the emulator has no roles: test_a_missing_right_stops_the_replicator",
    "batch_too_large": "the emulator has no such limit: test_a10_what_is_refused_for_good_fails_the_table_with_the_reason",
    "bigquery_refused": "what nobody foresaw; the advice says what to do if it does not help",
    "billing_not_enabled": "the emulator bills nothing: test_reason_decides_who_acts",
    "bucket_elsewhere": "the emulator's bucket is a folder: test_validate_names_what_is_missing",
    "bucket_missing": "the emulator's bucket is a folder: test_validate_names_what_is_missing",
    "budget_used_up": "waits: test_a_budget_that_is_used_up_makes_the_table_wait_with_the_reason",
    "column_name_reserved": "about the source's names: test_settings",
    "column_names_clash": "about the source's names: test_settings",
    "credentials_refused": "the emulator asks for none: test_credentials",
    "daily_estimate": "a notice: nothing stops",
    "empty_file": "a bug: no advice",
    "fenced": "a newer worker has the table: this one ends (the contract)",
    "job_failed": "is retried: test_a10_what_passes_by_itself_is_tried_again_by_the_host",
    "job_stopped": "needs somebody who cancels jobs: test_a10_what_is_refused_for_good_fails_the_table_with_the_reason",
    "key_chain_too_long": "the emulator has no such limit: test_reason_decides_who_acts",
    "key_missing": "about a change of the source",
    "layout_impossible": "about the settings, before anything is written: test_settings",
    "ledger_moved": "is retried: test_an_earlier_attempt_that_went_further_is_continued",
    "merge_not_unique": "a bug: no advice but to report it",
    "newer_ledger": "needs a newer program: test_a_ledger_of_another_format_is_not_touched",
    "older_ledger": "needs an older program: test_a_ledger_of_another_format_is_not_touched",
    "partition_filter_required": "the emulator ignores it: test_validate_finds_what_hinders_merges_into_a_table_of_ours",
    "plan_budget": "a warning: nothing stops",
    "policy_tags": "a warning: nothing stops",
    "quota_exceeded": "is retried: test_a10_what_passes_by_itself_is_tried_again_by_the_host",
    "rights_missing": "the emulator has no roles: test_validate_names_what_is_missing",
    "soft_deletes_need_key": "a setting: tests/unit/config",
    "staging_incomplete": "is retried",
    "table_names_clash": "about the source's names: test_two_tables_of_one_name_never_share_a_ledger",
    "target_busy": "is retried: test_a_claim_and_a_batch_at_the_same_moment_leave_one_winner",
    "target_throttled": "is retried: test_a10_what_passes_by_itself_is_tried_again_by_the_host",
    "target_unreachable": "is retried: test_a_request_that_never_arrived_is_told_apart_from_one_that_did",
    "too_many_bytes_billed": "the emulator bills nothing: test_a_script_that_is_too_dear_makes_its_table_wait_and_loses_nothing",
    "unsupported_type": "about the source's types: test_settings",
}
"""Codes whose advice has no case here, and why."""

SCHEMA: Final = numbered(
    evolved(numbered(items_schema()), add=[Column(name="day", type=pa.date32(), source_type="date", id=5)])
)
OLD, NEW = item(1, "a", "1.00", "x", day=date(2020, 1, 1)), item(2, "d", "2.00", "z", day=None)


@dataclass
class World:
    """A table with one row, in a warehouse where others work, too."""

    copy: Copy
    warehouse: Warehouse
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def table(self) -> str:
        return self.warehouse.names.path(self.copy.table.table)

    @property
    def ledger(self) -> str:
        return self.warehouse.names.ledger(self.copy.table.table)

    def sql(self, *statements: str) -> None:
        """A statement of somebody else, with `{table}` and `{ledger}`."""
        for statement in statements:
            text = statement.format(table=f"`{self.table}`", ledger=f"`{self.ledger}`", away=f"`{self.table}_away`")
            # The emulator's history has what scripts did, but it knows policies only outside of scripts.
            self.warehouse.query(text if "POLIC" in text else f"SELECT 1; {text};")

    def write(self) -> None:
        """A batch."""
        self.copy.apply(update(self.copy.ledger + 1, {**OLD, "name": "b"}))

    def new_process(self) -> BigQueryTarget:
        return self.warehouse.target(uuid=self.copy.table.uuid, epoch=self.copy.table.epoch, **self.settings)

    def compare(self) -> None:
        """`verify`."""
        columns = {column.name: column.name for column in self.copy.schema.columns}
        assert isinstance(self.copy.target, BigQueryTarget)
        with self.copy.target.open_state(self.copy.table, self.copy.schema, columns=columns, at=self.copy.ledger):
            pass


@pytest.fixture
def world(warehouse: Warehouse, tmp_path: Path) -> World:
    table = TargetTable(table=SCHEMA.table, uuid=UUID, incarnation=1, epoch=1)
    copy = Copy(harness=warehouse, folder=tmp_path, schema=SCHEMA, table=table, target=warehouse.target())
    copy.create()
    copy.apply(insert(1, OLD))
    copy.publish()
    return World(copy, warehouse)


# -- what the advice tells to do --------------------------------------------------------------------------------------


def snapshot(world: World) -> None:
    """`snapshot`, of the one row that the source has."""
    first = world.copy.ledger + 1
    world.copy.apply(insert(first, OLD, is_snapshot=True))
    world.copy.target.complete_snapshot(world.copy.table, first, first + 1)
    world.copy.ledger = first + 1


def recreate(world: World) -> None:
    """`snapshot --recreate`."""
    world.copy.table = replace(world.copy.table, incarnation=world.copy.table.incarnation + 1)
    start(world)


def start(world: World) -> None:
    """A replicator's first steps with a table."""
    copy = world.copy
    assert blocking(world) == []
    copy.claim()
    copy.create(copy.ledger + 10)
    copy.apply(insert(copy.ledger + 1, OLD), is_append=True)
    copy.publish()


def blocking(world: World) -> list[Problem]:
    """Findings of `validate` that keep the table from being written."""
    return [found for found in world.copy.target.check([world.copy.schema]) if found.severity is Severity.BLOCKING]


def after(*statements: str, then: Callable[[World], object] = recreate) -> Callable[[World], object]:
    """Something is done in the warehouse by hand before."""

    def do(world: World) -> None:
        world.sql(*statements)
        then(world)

    return do


def drop_view(world: World) -> None:
    world.warehouse.client.delete_table(world.table)
    recreate(world)


def with_setting(then: Callable[[World], object], **settings: Any) -> Callable[[World], None]:
    """A setting of `target:` is changed before."""

    def do(world: World) -> None:
        world.settings = settings
        world.warehouse.values.update(settings)
        world.copy.target = world.new_process()
        then(world)

    return do


def create_dataset(world: World) -> None:
    world.warehouse.client.create_dataset(world.warehouse.names.dataset(world.copy.table.table))
    recreate(world)


def another_dataset(world: World) -> None:
    with_setting(
        start,
        dataset=f"{world.warehouse.values['dataset']}_2",
        own_dataset=f"{world.warehouse.values['own_dataset']}_2",
    )(world)


def never_expires(world: World) -> None:
    dataset = world.warehouse.client.get_dataset(world.warehouse.names.own_dataset)
    dataset.default_table_expiration_ms = None
    world.warehouse.client.update_dataset(dataset, ["default_table_expiration_ms"])
    assert blocking(world) == []


# -- what somebody does -----------------------------------------------------------------------------------------------


def by(*statements: str, then: Callable[[World], object] = World.write) -> Callable[[World], Problem | None]:
    """Somebody else runs statements before a batch."""

    def stop(world: World) -> Problem | None:
        world.sql(*statements)
        found = then(world)
        return found if isinstance(found, Problem) else None

    return stop


def made_by_others(world: World, kind: str = "table", then: Callable[[World], object] = World.write) -> None:
    world.warehouse.client.delete_table(world.table)
    made = bigquery.Table(world.table, [bigquery.SchemaField("x", "INT64")] if kind == "table" else None)
    if kind == "view":
        made.view_query = "SELECT 1 AS x"
    world.warehouse.client.create_table(made)
    then(world)


def view_recreated(world: World) -> None:
    made_by_others(world, "view", begin)


def begin(world: World) -> None:
    """A recreation that `validate` would have kept from being requested."""
    world.copy.table = replace(world.copy.table, incarnation=2)
    world.copy.create(world.copy.ledger + 1)


def of_another(world: World) -> Problem:
    """Another replicator has a table there."""
    world.copy.table = replace(world.copy.table, uuid=STRANGER)
    world.copy.target = world.new_process()
    (problem,) = blocking(world)
    with pytest.raises(ReplicatorError) as caught:
        world.copy.claim()
    assert (caught.value.code, caught.value.action) == (problem.code, problem.action)
    return problem


def taken_over(world: World) -> None:
    copy = world.copy
    heir = replace(
        copy, table=replace(copy.table, uuid=STRANGER), target=world.warehouse.target(uuid=STRANGER, adopt="replace")
    )
    heir.create(1)
    world.write()


def claimed_by_another(world: World) -> None:
    """The other one has made no table of its own yet."""
    world.warehouse.target(uuid=STRANGER, adopt="replace").claim(replace(world.copy.table, uuid=STRANGER))
    world.write()


def other_settings(world: World) -> None:
    world.copy.table = replace(world.copy.table, options=TableOptions(source_timestamp=True))
    world.write()


def key_renamed(world: World) -> None:
    world.copy.alter(evolved(world.copy.schema, rename={"id": "number"}))


def compared_with_the_past(world: World) -> None:
    world.copy.ledger, reached = -1, world.copy.ledger
    try:
        world.compare()
    finally:
        world.copy.ledger = reached


def the_finding(world: World) -> Problem:
    """The one of `validate`; its statement says X for the dataset or table."""
    (problem,) = blocking(world)
    names = world.warehouse.names
    action = str(problem.action).replace(world.table, "X").replace(names.own_dataset, "X")
    return replace(problem, action=action)


def expires(world: World) -> Problem:
    dataset = world.warehouse.client.get_dataset(world.warehouse.names.own_dataset)
    dataset.default_table_expiration_ms = 3_600_000
    world.warehouse.client.update_dataset(dataset, ["default_table_expiration_ms"])
    return the_finding(world)


def elsewhere(world: World) -> Problem:
    world.copy.target = world.warehouse.target(location="US")
    return next(problem for problem in blocking(world) if problem.code == "dataset_elsewhere")


def no_dataset(world: World) -> None:
    world.warehouse.values["create_datasets"] = False
    world.warehouse.client.delete_dataset(world.warehouse.names.dataset(world.copy.table.table), delete_contents=True)
    world.copy.target = world.new_process()
    begin(world)


def out_of_range(world: World) -> None:
    # No date of Python's: the year 10000.
    change: RowChange = update(world.copy.ledger + 1, {**OLD, "day": 2_932_897})
    world.copy.apply(change)


def journal_damaged(world: World) -> None:
    batch = write_batch(world.copy.folder, SCHEMA, [update(world.copy.ledger + 1, OLD)], skip_to=world.copy.ledger)
    Path(batch.files[0].uri.removeprefix("file://")).write_bytes(b"x")
    world.copy.target.apply_batch(world.copy.table, batch)


def object_in_the_way(world: World) -> None:
    copy, batch = (
        world.copy,
        write_batch(world.copy.folder, SCHEMA, [update(world.copy.ledger + 1, OLD)], skip_to=world.copy.ledger),
    )
    assert isinstance(copy.target, BigQueryTarget)
    staging = world.warehouse.names.staging(copy.table, batch.skip_to, batch.last).rpartition(".")[2]
    name = f"{world.warehouse.values['staging']['prefix']}/{UUID}/{staging}/{batch.files[0].uri.rsplit('/', 1)[-1]}"
    path = world.warehouse.emulator.storage / world.warehouse.values["staging"]["bucket"] / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    copy.target.apply_batch(copy.table, batch)


RECREATE: Final = "Recreate it: replicator snapshot contract shop.items --recreate."
DROP: Final = "Drop the table, then recreate it: replicator snapshot NAME TABLE --recreate."
NOT_OURS: Final = (
    "Choose another target.dataset, move the table away, or set target.adopt: replace to lose its content."
)
DAMAGED: Final = "Drop it and its table, then recreate the table: replicator snapshot NAME TABLE --recreate."
WAY: Final = "--recreate"
POLICY: Final = "ROW ACCESS POLICY p ON {table}"
ELSEWHERE: Final[Mapping[str, Callable[[World], object]]] = {
    "another target.dataset": another_dataset,
    "move the table away": after("CREATE TABLE {away} AS SELECT * FROM {table}", "DROP TABLE {table}", then=start),
    "target.adopt: replace": with_setting(start, adopt="replace"),
}
CASES: Final[Mapping[str, Case[World]]] = {
    "column dropped": Case(
        code="schema_conflict", stop=by("ALTER TABLE {table} DROP COLUMN note"), advice=RECREATE, ways={WAY: recreate}
    ),
    "settings changed": Case(code="schema_conflict", stop=other_settings, advice=RECREATE, ways={WAY: recreate}),
    "key renamed": Case(code="ddl_not_supported", stop=key_renamed, advice=RECREATE, ways={WAY: recreate}),
    "dropped": Case(code="target_replaced", stop=by("DROP TABLE {table}"), advice=DROP, ways={WAY: recreate}),
    "made by others": Case(
        code="target_replaced", stop=made_by_others, advice=DROP, ways={"Drop the table": after("DROP TABLE {table}")}
    ),
    "a view instead": Case(
        code="target_occupied",
        stop=view_recreated,
        advice="Move it away, or choose another target.dataset.",
        ways={"Move it away": drop_view, "another target.dataset": another_dataset},
    ),
    "ledger dropped": Case(
        code="ledger_damaged",
        stop=by("DROP TABLE {ledger}"),
        advice="Drop its table too, then recreate it: replicator snapshot NAME TABLE --recreate.",
        ways={"Drop its table too": after("DROP TABLE {table}")},
    ),
    "ledger dropped before a start": Case(
        code="target_replaced",
        stop=by("DROP TABLE {ledger}", then=lambda world: world.copy.restart(epoch=2)),
        advice=DROP,
        ways={"Drop the table": after("DROP TABLE {table}")},
    ),
    "a second row in the ledger": Case(
        code="ledger_damaged",
        stop=by("INSERT INTO {ledger} SELECT * FROM {ledger}"),
        advice=DAMAGED,
        ways={"Drop it and its table": after("DROP TABLE {ledger}", "DROP TABLE {table}")},
    ),
    "ledger altered": Case(
        code="ledger_damaged",
        stop=by("UPDATE {ledger} SET merged = 'x' WHERE TRUE", then=lambda world: world.copy.restart(epoch=2)),
        advice=DAMAGED,
        ways={"Drop it and its table": after("DROP TABLE {ledger}", "DROP TABLE {table}")},
    ),
    "another replicator's": Case(code="not_ours", stop=of_another, advice=NOT_OURS, ways=ELSEWHERE),
    "taken over": Case(code="not_ours", stop=taken_over, advice=NOT_OURS, ways=ELSEWHERE),
    "claimed by another": Case(
        code="not_ours",
        stop=claimed_by_another,
        advice=NOT_OURS,
        ways={"target.adopt: replace": with_setting(start, adopt="replace")},
    ),
    "rows hidden from readers": Case(
        code="readers_restricted",
        stop=by(f"CREATE {POLICY} GRANT TO ('allAuthenticatedUsers') FILTER USING (id = 1)", then=begin),
        advice="Remove them, run `replicator snapshot NAME TABLE --recreate`, and then set them again.",
        ways={"Remove them": after(f"DROP {POLICY}")},
    ),
    # The emulator drops policies one by one only.
    "rows hidden from everybody": Case(
        code="row_policies",
        stop=by(f"CREATE {POLICY} GRANT TO ('allAuthenticatedUsers') FILTER USING (id = 1)", then=the_finding),
        advice="Drop them (DROP ALL ROW ACCESS POLICIES ON `X`), or let views filter the rows.",
        ways={"Drop them": after(f"DROP {POLICY}", then=blocking)},
    ),
    "tables expire": Case(
        code="dataset_expires",
        stop=expires,
        advice="Run: ALTER SCHEMA `X` SET OPTIONS (default_table_expiration_days = NULL, default_partition_expiration_days = NULL)",
        ways={"default_table_expiration_days = NULL": never_expires},
    ),
    "datasets elsewhere": Case(
        code="dataset_elsewhere",
        stop=elsewhere,
        advice="Correct target.location, or choose another target.dataset.",
        ways={"Correct target.location": blocking},
    ),
    "no dataset": Case(
        code="dataset_missing",
        stop=no_dataset,
        advice="Create it; it is retried automatically.",
        ways={"Create it": create_dataset},
    ),
    "a value out of range": Case(
        code="value_out_of_range",
        stop=out_of_range,
        advice="Correct the row, or set target.unfit_values: null (not for keys); then run `replicator snapshot NAME TABLE`.",
        ways={"Correct the row": snapshot, "target.unfit_values: null": with_setting(snapshot, unfit_values="null")},
    ),
    "a damaged journal": Case(
        code="journal_file_unreadable",
        stop=journal_damaged,
        advice="Restore the file, or run `replicator snapshot NAME TABLE`.",
        ways={"run `replicator snapshot": snapshot},
    ),
    "an object in the way": Case(
        code="staging_conflict",
        stop=object_in_the_way,
        advice="Choose another target.staging.prefix, or delete the object.",
        ways={"delete the object": snapshot},
    ),
    "compared with the past": Case(
        code="state_not_readable",
        stop=compared_with_the_past,
        advice="Run the command again.",
        ways={"Run the command again": World.compare},
    ),
    "compared without a column": Case(
        code="state_not_readable",
        stop=by("ALTER TABLE {table} DROP COLUMN note", then=World.compare),
        advice="Recreate the table: replicator snapshot NAME TABLE --recreate.",
        ways={WAY: recreate},
    ),
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "way"), ways_of(CASES))
def test_the_table_streams_after_its_advice_was_followed(world: World, name: str, way: str) -> None:
    case, copy = CASES[name], world.copy
    case.check(world, way)
    copy.target = world.new_process()
    case.ways[way](world)
    expected: Any = [{**OLD, "name": "c", "note": "y"}, NEW]
    copy.apply(update(copy.ledger + 1, expected[0]), insert(copy.ledger + 2, NEW))
    assert copy.live() == as_tuples(copy.schema, expected)
    world.compare()


def test_every_code_has_a_case_or_a_reason() -> None:
    found = codes_in([replicator_target_bigquery, ledger])
    assert found == {case.code for case in CASES.values()} | set(NOT_PROVOKED)

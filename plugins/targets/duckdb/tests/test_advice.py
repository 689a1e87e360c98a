"""The advice of errors of this target, followed literally: the table streams afterwards. Each code has a case, or a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

import replicator_target_duckdb
from plugins.targets.duckdb.tests.test_contract import Harness
from replicator.model.errors import Problem
from replicator.model.schema import Column
from replicator.plugins.kit import findings, ledger, transactional
from replicator.plugins.target import TableOptions, TargetTable
from replicator_target_duckdb.target import DuckDBTarget
from replicator_testbed.advice import Case, codes_in, ways_of
from replicator_testing.alterations import evolved
from replicator_testing.batches import insert, update
from replicator_testing.target_harness import STRANGER, UUID, Copy, as_tuples, item, items_schema

NOT_PROVOKED: Final = {
    "fenced": "a newer worker has the table: this one ends (the contract)",
    "key_type_unsupported": "about the source's types (the contract)",
    "soft_deletes_need_key": "a setting: tests/unit/config",
    "table_name_too_long": "other targets",
    "target_busy": "is retried: test_a_file_that_another_process_has_open_is_waited_for_and_then_reported",
    "target_full": "needs a full disk; is retried",
    "target_unreachable": "needs a damaged disk; is retried",
    "type_changed": "a notice: nothing stops",
    "unsupported_type": "about the source's types: no canonical type is refused (test_verification has each)",
}
"""Codes whose advice has no case here, and why."""

RECREATE: Final = "Recreate it: replicator snapshot contract shop.items --recreate."
RECREATE_ANY: Final = "Recreate the table: replicator snapshot NAME TABLE --recreate."
WAY: Final = "--recreate"
TABLE: Final = "shop.items"
OLD, NEW = item(1, "a", "1.00", "x"), item(2, "d", "2.00", "z")


@dataclass
class World:
    """A table with one row, in a file that others open, too."""

    copy: Copy
    harness: Harness
    adopt: bool = False

    def sql(self, *statements: str) -> None:
        """Statements of somebody else."""
        with self.harness.connect() as connection:
            for statement in statements:
                connection.execute(statement)

    def write(self) -> None:
        """A batch."""
        self.copy.apply(update(self.copy.ledger + 1, item(1, "b", "1.00", "x")))

    def new_process(self) -> DuckDBTarget:
        return self.harness.target(uuid=self.copy.table.uuid, adopt="replace" if self.adopt else "refuse")

    def compare(self) -> None:
        """`verify`."""
        columns = {column.name: column.name for column in self.copy.schema.columns}
        assert isinstance(self.copy.target, DuckDBTarget)
        with self.copy.target.open_state(self.copy.table, self.copy.schema, columns=columns, at=self.copy.ledger):
            pass


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    (tmp_path / "lake").mkdir()
    harness, schema = Harness(tmp_path / "lake" / "file.duckdb"), items_schema()
    table = TargetTable(table=schema.table, uuid=UUID, incarnation=1, epoch=1)
    copy = Copy(harness=harness, folder=tmp_path, schema=schema, table=table, target=harness.target())
    copy.create()
    copy.apply(insert(1, OLD))
    yield World(copy, harness)
    for target in harness.targets:
        target.close()


# -- what the advice tells to do --------------------------------------------------------------------------------------


def snapshot(world: World) -> None:
    """`snapshot`, of the one row that the source has."""
    first = world.copy.ledger + 1
    world.copy.apply(insert(first, OLD, is_snapshot=True))
    world.copy.target.complete_snapshot(world.copy.table, first, first + 1)
    world.copy.ledger = first + 1


def recreate(world: World) -> None:
    """`snapshot --recreate`."""
    copy = world.copy
    copy.table = replace(copy.table, incarnation=copy.table.incarnation + 1)
    start(world)
    copy.publish()


def start(world: World) -> None:
    """A replicator's first steps with a table."""
    copy = world.copy
    assert copy.target.check([copy.schema]) == []
    copy.create(copy.ledger + 1)
    copy.apply(insert(copy.ledger + 1, OLD), is_append=True)


def after(*statements: str, then: Callable[[World], object] = recreate) -> Callable[[World], object]:
    """Something is done in the file by hand before."""

    def do(world: World) -> None:
        world.sql(*statements)
        then(world)

    return do


def another_path(world: World) -> None:
    world.harness.file = world.harness.file.with_name("another.duckdb")
    world.copy.target = world.new_process()
    start(world)


def move_file_away(world: World) -> None:
    world.harness.file.rename(world.harness.file.with_name("away.duckdb"))
    recreate(world)


def adopt(world: World) -> None:
    world.adopt = True
    world.copy.target = world.new_process()
    start(world)


def make_folder(world: World) -> None:
    world.harness.file.parent.mkdir()
    recreate(world)


# -- what somebody does -----------------------------------------------------------------------------------------------


def by(*statements: str, then: Callable[[World], object] = World.write) -> Callable[[World], None]:
    """Somebody else runs statements before a batch."""

    def stop(world: World) -> None:
        world.sql(*statements)
        then(world)

    return stop


def file_removed(world: World) -> None:
    world.copy.target.close()
    world.harness.file.unlink()
    world.copy.restart()
    world.write()


def file_removed_while_it_is_held(world: World) -> None:
    world.harness.file.unlink()
    world.write()


def no_database(world: World) -> None:
    world.harness.file.write_bytes(b"no database" * 2000)
    world.write()


def folder_removed(world: World) -> Problem:
    world.harness.file.parent.rename(world.copy.folder / "removed")
    (problem,) = world.new_process().check([world.copy.schema])
    return problem


def of_another(world: World) -> Problem:
    """Another replicator has a table there."""
    world.copy.table = replace(world.copy.table, uuid=STRANGER)
    world.copy.target = world.new_process()
    (problem,) = world.copy.target.check([world.copy.schema])
    return problem


def taken_over(world: World) -> None:
    world.harness.target(uuid=STRANGER, adopt="replace").claim(replace(world.copy.table, uuid=STRANGER))
    world.write()


def other_settings(world: World) -> None:
    world.copy.table = replace(world.copy.table, options=TableOptions(source_timestamp=True))
    world.write()


def altered_too_much(world: World) -> None:
    copy = world.copy
    columns = tuple(replace(c, type=pa.int64()) if c.name == "note" else c for c in copy.schema.columns)
    copy.alter(evolved(replace(copy.schema, columns=columns), add=[Column(name="n", type=pa.int64(), source_type="x")]))


def compared_with_the_past(world: World) -> None:
    world.copy.ledger -= 1
    try:
        world.compare()
    finally:
        world.copy.ledger += 1


DROPPED: Final = (
    "Drop it; if it is a foreign key, drop the table that has it. Then recreate the table: "
    "replicator snapshot NAME TABLE --recreate."
)
VIEW: Final = "Drop the view, then recreate the table: replicator snapshot NAME TABLE --recreate."
NOT_OURS: Final = "Choose another target.path, move the table away, or set target.adopt: replace to lose its content."
ELSEWHERE: Final[Mapping[str, Callable[[World], object]]] = {
    "another target.path": another_path,
    "move the table away": after(f"ALTER TABLE {TABLE} RENAME TO away", then=start),
    "target.adopt: replace": adopt,
}
CASES: Final[Mapping[str, Case[World]]] = {
    **{
        name: Case[World](code="schema_conflict", stop=by(*statements), advice=RECREATE, ways={WAY: recreate})
        for name, statements in {
            "dropped": [f"DROP TABLE {TABLE}"],
            "renamed": [f"ALTER TABLE {TABLE} RENAME TO other"],
            "schema dropped": ["DROP SCHEMA shop CASCADE"],
            "made by others": [f"CREATE OR REPLACE TABLE {TABLE} AS SELECT 1::BIGINT AS id"],
            "column dropped": [f"ALTER TABLE {TABLE} DROP COLUMN note"],
            "column dropped and added": [f"ALTER TABLE {TABLE} DROP COLUMN note", f"ALTER TABLE {TABLE} ADD COLUMN note VARCHAR"],
            "names exchanged": [
                f"ALTER TABLE {TABLE} RENAME COLUMN {renamed}" for renamed in ("note TO z", "name TO note", "z TO name")
            ],
            "another type": [f"ALTER TABLE {TABLE} ALTER COLUMN amount TYPE VARCHAR"],
        }.items()
    },
    "altered by us after others": Case(
        code="schema_conflict",
        stop=by(f"ALTER TABLE {TABLE} DROP COLUMN note", then=lambda world: world.copy.alter(evolved(world.copy.schema, drop=["amount"]))),
        advice=RECREATE,
        ways={WAY: recreate},
    ),
    "a key twice": Case(
        code="schema_conflict",
        stop=by(f"INSERT INTO {TABLE} SELECT * FROM {TABLE}"),
        advice="Recreate the table: replicator snapshot NAME shop.items --recreate.",
        ways={WAY: recreate},
    ),
    "settings changed": Case(code="schema_conflict", stop=other_settings, advice=RECREATE, ways={WAY: recreate}),
    "constraint added": Case(
        code="schema_conflict",
        stop=by(f"ALTER TABLE {TABLE} ALTER COLUMN amount SET NOT NULL", then=lambda world: world.copy.apply(insert(2, item(5)))),
        advice=DROPPED,
        ways={"Drop it": after(f"ALTER TABLE {TABLE} ALTER COLUMN amount DROP NOT NULL")},
    ),
    "foreign key of another table": Case(
        code="schema_conflict",
        stop=by(
            f"ALTER TABLE {TABLE} ADD PRIMARY KEY (id)",
            f"CREATE TABLE shop.child (p BIGINT REFERENCES {TABLE} (id))",
            "INSERT INTO shop.child VALUES (1)",
        ),
        advice=DROPPED,
        ways={"drop the table that has it": after("DROP TABLE shop.child")},
    ),
    "a foreign key, recreated": Case(
        code="schema_conflict",
        stop=by(f"ALTER TABLE {TABLE} ADD PRIMARY KEY (id)", f"CREATE TABLE shop.child (p BIGINT REFERENCES {TABLE} (id))", then=recreate),
        advice=DROPPED,
        ways={"drop the table that has it": after("DROP TABLE shop.child")},
    ),
    "altered too much": Case(code="ddl_not_supported", stop=altered_too_much, advice=RECREATE, ways={WAY: recreate}),
    "a view instead": Case(
        code="target_occupied",
        stop=by(f"DROP TABLE {TABLE}", f"CREATE VIEW {TABLE} AS SELECT 1 AS id"),
        advice=VIEW,
        ways={"Drop the view": after(f"DROP VIEW {TABLE}")},
    ),
    "no database": Case(
        code="target_occupied",
        stop=no_database,
        advice="Move the file away, or choose another target.path.",
        ways={"Move the file away": move_file_away, "another target.path": another_path},
    ),
    "folder removed": Case(
        code="target_not_writable",
        stop=folder_removed,
        advice="Make the folder, writable for this process, or choose another target.path.",
        ways={"Make the folder": make_folder},
    ),
    "file removed": Case(code="schema_conflict", stop=file_removed, advice=RECREATE, ways={WAY: recreate}),
    "file removed while it is held": Case(
        code="ledger_damaged",
        stop=file_removed_while_it_is_held,
        advice="If the table is there, drop it. Then recreate it: replicator snapshot contract shop.items --recreate.",
        ways={WAY: recreate},
    ),
    "ledger dropped": Case(
        code="ledger_damaged",
        stop=by("DROP TABLE _replicator.ledger"),
        advice="If the table is there, drop it. Then recreate it: replicator snapshot contract shop.items --recreate.",
        ways={"drop it": after(f"DROP TABLE {TABLE}")},
    ),
    "entry overwritten": Case(
        code="ledger_damaged",
        stop=by("UPDATE _replicator.ledger SET entry = '{'"),
        advice="Drop the table and its row in the ledger, then recreate it: replicator snapshot contract shop.items --recreate.",
        ways={"Drop the table and its row": after(f"DROP TABLE {TABLE}", "DELETE FROM _replicator.ledger")},
    ),
    "ledger altered": Case(
        code="ledger_damaged",
        stop=by("ALTER TABLE _replicator.ledger RENAME COLUMN entry TO other"),
        advice="Undo that. Or drop _replicator.ledger and the table, and recreate it: replicator snapshot contract shop.items --recreate.",
        ways={
            "Undo that": after("ALTER TABLE _replicator.ledger RENAME COLUMN other TO entry", then=snapshot),
            "drop _replicator.ledger": after("DROP TABLE _replicator.ledger", f"DROP TABLE {TABLE}"),
        },
    ),
    "ledger altered before a comparison": Case(
        code="ledger_damaged",
        stop=by("UPDATE _replicator.ledger SET entry = '[]'", then=World.compare),
        advice="Drop the table and its row in the ledger, then recreate it: replicator snapshot contract shop.items --recreate.",
        ways={"Drop the table and its row": after(f"DROP TABLE {TABLE}", "DELETE FROM _replicator.ledger")},
    ),
    "another replicator's": Case(code="not_ours", stop=of_another, advice=NOT_OURS, ways=ELSEWHERE),
    "taken over": Case(code="not_ours", stop=taken_over, advice=NOT_OURS, ways=ELSEWHERE),
    "compared with the past": Case(
        code="state_not_readable",
        stop=compared_with_the_past,
        advice="Run the command again.",
        ways={"Run the command again": World.compare},
    ),
    "compared without a column": Case(
        code="state_not_readable",
        stop=by(f"ALTER TABLE {TABLE} DROP COLUMN note", then=World.compare),
        advice=RECREATE_ANY,
        ways={WAY: recreate},
    ),
}  # fmt: skip


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("name", "way"), ways_of(CASES))
def test_the_table_streams_after_its_advice_was_followed(world: World, name: str, way: str) -> None:
    case, copy = CASES[name], world.copy
    case.check(world, way)
    copy.target = world.new_process()
    case.ways[way](world)
    expected: Any = [item(1, "c", "1.00", "y"), NEW]
    copy.apply(update(copy.ledger + 1, expected[0]), insert(copy.ledger + 2, NEW))
    assert copy.live() == as_tuples(copy.schema, expected)
    world.compare()


def test_every_code_has_a_case_or_a_reason() -> None:
    assert codes_in([replicator_target_duckdb, findings, ledger, transactional]) == {
        case.code for case in CASES.values()
    } | set(NOT_PROVOKED)

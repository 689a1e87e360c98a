"""What statements of others do to a table of ours: each is harmless, or the table stops and says what was done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from replicator.model.errors import SchemaConflictError, TableError
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.kit.columns import conflict
from replicator.plugins.target import EMPTY_LEDGER, Claim, TargetTable
from replicator_target_bigquery.target import BigQueryTarget
from replicator_testing.alterations import evolved, numbered, text_column
from replicator_testing.batches import RowChange, insert, update
from replicator_testing.target_harness import UUID, Copy, as_tuples

if TYPE_CHECKING:
    from plugins.targets.bigquery.tests.conftest import Warehouse

SCHEMA = numbered(
    TableSchema(
        table=TableId("shop", "items"),
        columns=(
            Column(name="id", type=pa.int64(), source_type="bigint", nullable=False),
            Column(name="a", type=pa.string(), source_type="text"),
            Column(name="b", type=pa.string(), source_type="text"),
            Column(name="n", type=pa.int64(), source_type="bigint"),
        ),
        key=("id",),
    )
)
MADE = (
    ("id", "INT64", "REQUIRED"), ("a", "STRING", "NULLABLE"), ("b", "STRING", "NULLABLE"),
    ("_sequence_num", "INT64", "REQUIRED"),
)  # fmt: skip


def row(number: int) -> dict[str, object]:
    return {"id": number, "a": f"a{number}", "b": f"b{number}", "n": number}


@pytest.fixture
def copy(warehouse: Warehouse, tmp_path: Path) -> Copy:
    table = TargetTable(table=SCHEMA.table, uuid=UUID, incarnation=1, epoch=1)
    copy = Copy(harness=warehouse, folder=tmp_path, schema=SCHEMA, table=table, target=warehouse.target())
    assert copy.claim() == Claim(last_applied=EMPTY_LEDGER)
    copy.create()
    copy.apply(*[insert(number, row(number)) for number in (1, 2)])
    return copy


def refused(copy: Copy, change: RowChange) -> str:
    """Why a batch is not applied."""
    with pytest.raises(SchemaConflictError) as caught:
        copy.apply(change)
    assert caught.value.code == "schema_conflict"
    assert "--recreate" in (caught.value.action or "")
    return caught.value.message


def recreated(copy: Copy) -> None:
    """What `snapshot --recreate` makes the target do."""
    copy.table = replace(copy.table, incarnation=copy.table.incarnation + 1)
    copy.claim()
    copy.create(20)
    copy.apply(*[insert(20 + number, row(number)) for number in (1, 2)])
    copy.target.publish(copy.table, 30)
    copy.apply(insert(31, row(3)))
    assert copy.live() == as_tuples(copy.schema, [row(number) for number in (1, 2, 3)])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_stopped", [False, pytest.param(True, marks=pytest.mark.matrix)])
@pytest.mark.parametrize(
    ("actions", "said"),
    [
        (
            ["RENAME COLUMN a TO z", "RENAME COLUMN b TO a", "RENAME COLUMN z TO b"],
            "renamed, or dropped and added again: a, b.",
        ),
        (["DROP COLUMN b", "ADD COLUMN b STRING"], "renamed, or dropped and added again: b, n, _sequence_num."),
        (["DROP COLUMN b"], "It lacks b."),
        (["RENAME COLUMN a TO z"], "It lacks a."),
        (["ALTER COLUMN n SET DATA TYPE NUMERIC"], "got another type: n."),
    ],
    ids=["names exchanged", "dropped and added", "dropped", "renamed", "wider type"],
)
def test_what_others_do_to_our_columns_stops_the_table_until_it_is_recreated(
    copy: Copy, warehouse: Warehouse, actions: list[str], said: str, is_stopped: bool
) -> None:
    # As a script: the emulator's history has what scripts did.
    altering = [f"ALTER TABLE `{warehouse.names.path(SCHEMA.table)}` {action};" for action in actions]
    warehouse.query(" ".join(["SELECT 1;", *altering]))
    if is_stopped:
        copy.restart(epoch=2)
    assert said in refused(copy, update(5, row(1)))
    columns = {column.name: column.name for column in SCHEMA.columns}
    assert isinstance(copy.target, BigQueryTarget)
    with (
        pytest.raises(TableError, match="state to compare cannot be read") as unread,
        copy.target.open_state(copy.table, SCHEMA, columns=columns, at=2),
    ):
        pass
    assert unread.value.code == "state_not_readable"
    recreated(copy)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "action",
    [
        "ADD COLUMN mine STRING", "ALTER COLUMN a SET DEFAULT 'x'", "ALTER COLUMN id DROP NOT NULL",
        "ALTER COLUMN a SET OPTIONS (description = 'x')", "SET OPTIONS (description = 'x')",
    ],
)  # fmt: skip
def test_what_others_do_without_harm_is_followed(copy: Copy, warehouse: Warehouse, action: str) -> None:
    warehouse.query(f"ALTER TABLE `{warehouse.names.path(SCHEMA.table)}` {action}")
    copy.apply(insert(5, row(5)), update(6, row(1)))
    assert copy.live() == as_tuples(copy.schema, [row(number) for number in (1, 2, 5)])


@pytest.mark.matrix
def test_columns_of_ours_are_known_after_an_alteration_behind_one_of_others(copy: Copy, warehouse: Warehouse) -> None:
    path = warehouse.names.path(SCHEMA.table)
    warehouse.query(f"ALTER TABLE `{path}` ADD COLUMN mine STRING")
    copy.alter(evolved(copy.schema, add=[text_column("extra", 5)], rename={"a": "c"}))
    copy.apply(insert(40, {**row(5), "c": "c", "extra": "x"}))
    assert len(copy.live()) == 3
    for action in ("RENAME COLUMN c TO z", "RENAME COLUMN extra TO c", "RENAME COLUMN z TO extra"):
        warehouse.query(f"ALTER TABLE `{path}` {action}")
    assert "c, extra" in refused(copy, insert(41, {**row(6), "c": "c", "extra": "x"}))


def test_the_order_of_columns_shows_what_was_done() -> None:
    """And the mode of columns of our own, which the emulator does not tell."""
    swapped = [MADE[0], ("b", *MADE[1][1:]), ("a", *MADE[2][1:]), MADE[3]]
    assert conflict(MADE, MADE) is None
    assert conflict(MADE, [*MADE, ("mine", "STRING", "NULLABLE")]) is None
    assert conflict(MADE, [("ID", "INT64", "NULLABLE"), *MADE[1:]]) is None
    assert conflict(MADE, [(name, type_, "") for name, type_, _ in MADE]) is None
    assert conflict([], MADE) is None, "it is being altered"
    assert conflict(MADE, swapped) == "Columns were renamed, or dropped and added again: a, b."
    assert conflict(MADE, [*MADE[:2], *MADE[3:]]) == "It lacks b."
    again = [*MADE[:3], ("_sequence_num", "INT64", "NULLABLE")]
    assert conflict(MADE, again) == "Columns were renamed, or dropped and added again: _sequence_num."

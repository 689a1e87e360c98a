"""The order in which a target with a ledger is asked, shown on the one in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicator.model.errors import SchemaConflictError, TargetUnavailableError
from replicator.model.events import DDLEvent, DDLOperation
from replicator.plugins.target import TargetTable
from replicator_testing.batches import insert, write_batch
from replicator_testing.defaults import target_context
from replicator_testing.memory import MemoryTarget, MemoryTargetConfig, MemoryWarehouse
from replicator_testing.target_harness import ITEMS, item, items_schema

SCHEMA = items_schema()
TABLE = TargetTable(table=ITEMS, uuid="u", incarnation=1, epoch=1)


@pytest.fixture
def target(tmp_path: Path) -> MemoryTarget:
    target = MemoryTarget(MemoryTargetConfig(database=str(tmp_path)), target_context(replicator="shop", uuid="u"))
    target.apply_ddl(TABLE, DDLEvent(operation=DDLOperation.CREATE_TABLE, table=ITEMS, schema=SCHEMA), 0)
    return target


def test_a_table_is_claimed_once_before_its_first_change(target: MemoryTarget) -> None:
    target.advance(TABLE, 1)
    target.advance(TABLE, 2)
    assert target.faults.counts["claim"] == 1


def test_after_an_error_the_ledger_is_read_again(target: MemoryTarget, tmp_path: Path) -> None:
    """The commit succeeded and its answer was lost."""
    batch = write_batch(tmp_path / "journal", SCHEMA, [insert(1, item(1))], skip_to=0)
    target.faults.script("apply_batch.after", TargetUnavailableError("lost", code="target_unreachable"))
    with pytest.raises(TargetUnavailableError):
        target.apply_batch(TABLE, batch)
    assert target.apply_batch(TABLE, batch).was_skipped
    assert target.faults.counts["claim"] == 2
    assert len(MemoryWarehouse.open(str(tmp_path)).tables[ITEMS].rows) == 1


def test_a_batch_without_rows_only_moves_the_ledger(target: MemoryTarget, tmp_path: Path) -> None:
    batch = write_batch(tmp_path / "journal", SCHEMA, [insert(1, item(1))], skip_to=0)
    empty = type(batch)(schema=SCHEMA, files=(), rows=0, last=7, skip_to=0)
    assert target.apply_batch(TABLE, empty).details == {"way": "advance"}
    assert target.claim(TABLE).last_applied == 7


def test_an_event_that_no_target_knows_fails_the_table_with_the_command_that_helps(target: MemoryTarget) -> None:
    with pytest.raises(SchemaConflictError) as refused:
        target.apply_ddl(TABLE, DDLEvent(operation=DDLOperation.RENAME_TABLE, table=ITEMS), 5)
    assert refused.value.code == "ddl_not_supported"
    assert "replicator snapshot shop shop.items --recreate" in (refused.value.action or "")
    assert target.claim(TABLE).last_applied == 0

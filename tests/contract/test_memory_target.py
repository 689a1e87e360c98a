"""The in-memory target does what every target must do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import pytest

from replicator.model.schema import TableSchema
from replicator.plugins.kit.ledger import LedgerTarget
from replicator.plugins.target import DeltaTarget, TargetTable
from replicator_testing.alteration_contract import AlterationContract
from replicator_testing.alterations import Killed
from replicator_testing.defaults import target_context
from replicator_testing.incarnation_contract import NEW, OLD
from replicator_testing.memory import MemoryTarget, MemoryTargetConfig, MemoryWarehouse
from replicator_testing.target_contract import TargetContract
from replicator_testing.target_harness import UUID, TargetHarness, TargetRow


class MemoryHarness(TargetHarness):
    def __init__(self, name: str) -> None:
        self._name = name
        self._warehouse = MemoryWarehouse.open(name)

    def target(
        self, *, uuid: str = UUID, epoch: int = 1, adopt: Literal["refuse", "replace"] = "refuse"
    ) -> DeltaTarget[Any]:
        return MemoryTarget(
            MemoryTargetConfig(database=self._name, adopt=adopt), target_context(replicator="r", uuid=uuid, epoch=epoch)
        )

    def rows(self, table: TargetTable, schema: TableSchema) -> Sequence[TargetRow]:
        stored = self._warehouse.tables.get(table.table)
        rows = [] if stored is None else stored.rows if stored.shown is None else stored.shown[1]
        return [TargetRow(values=r.values, sequence_num=r.sequence_num, is_deleted=r.is_deleted) for r in rows]

    def exists(self, table: TargetTable) -> bool:
        stored = self._warehouse.tables.get(table.table)
        return stored is not None and (stored.schema is not None or stored.shown is not None)


class TestMemoryTarget(TargetContract):
    fuzz_worlds = 40
    builds_out_of_sight: ClassVar[bool] = True

    @pytest.fixture
    def harness(self, tmp_path: Path) -> TargetHarness:
        return MemoryHarness(str(tmp_path))

    def test_publishing_that_was_killed_anywhere_is_completed(
        self, harness: TargetHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        del monkeypatch
        for point in ("publish", "publish.after"):
            copy = self.building(harness, tmp_path, point.replace(".", "_"))
            cast("MemoryTarget", copy.target).faults.script(point, Killed(point))
            with pytest.raises(Killed):
                copy.publish(9)
            ledger = copy.restart(epoch=2).last_applied
            assert self.seen(copy) == self.tuples(copy, NEW if ledger == 9 else OLD)
            copy.publish(9)
            assert self.seen(copy) == self.tuples(copy, NEW)


class NotAltering(AlterationContract):
    """The contract of a target that has no `alter_table`."""

    alters = False

    @pytest.fixture
    def harness(self, tmp_path: Path) -> TargetHarness:
        return MemoryHarness(str(tmp_path))


def test_a_target_without_alter_table_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryTarget, "alter_table", LedgerTarget.alter_table)
    NotAltering().test_a_target_alters_or_says_that_it_does_not(MemoryHarness(str(tmp_path)), tmp_path)

"""Contract of every target for incarnations, epochs and owners: a writer of the past changes nothing."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from replicator.model.errors import FencedError, TableError, TargetUnavailableError
from replicator.model.events import DDLOperation
from replicator.model.schema import Column, TableSchema
from replicator.plugins.target import EMPTY_LEDGER, Claim, Ledger
from replicator_testing.batches import insert
from replicator_testing.target_harness import (
    ITEMS,
    STRANGER,
    TargetHarness,
    TargetSuite,
    as_tuples,
    item,
    items_schema,
    wrong,
)


class FencingContract(TargetSuite):
    """The part of `TargetContract` about who may write."""

    def test_a_batch_that_begins_above_the_ledger_is_refused(self, harness: TargetHarness, tmp_path: Path) -> None:
        """The table was set back: what lies between would be lost."""
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(insert(1, item(1, "a")))
        with pytest.raises(TargetUnavailableError):
            copy.apply(insert(9, item(9, "b")), skip_to=7)
        assert copy.restart().last_applied == 1
        assert copy.live() == as_tuples(copy.schema, [item(1, "a")])

    def test_a_new_incarnation_begins_with_an_empty_ledger_and_replaces_the_table(
        self, harness: TargetHarness, tmp_path: Path
    ) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(insert(1, item(1, "old")))
        copy.table = replace(copy.table, incarnation=2)
        copy.schema = TableSchema(
            table=ITEMS,
            columns=(
                Column(name="id", type=pa.string(), source_type="text", nullable=False),
                Column(name="more", type=pa.int64(), source_type="bigint"),
            ),
            key=("id",),
        )
        assert copy.claim() == Claim(last_applied=EMPTY_LEDGER)
        copy.create(5)
        copy.apply(insert(6, {"id": "x", "more": 1}))
        assert copy.restart() == Claim(last_applied=6)
        for _ in range(2):
            copy.publish(7)
            assert copy.live() == [("x", 1)]
        assert copy.restart() == Claim(last_applied=7)

    def test_claiming_again_gives_the_same_answer(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(insert(1, item(1, "a")))
        assert copy.claim() == copy.claim() == copy.restart(epoch=2) == Claim(last_applied=1)

    def test_the_ledger_is_read_without_a_claim(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        assert copy.target.read_ledger(copy.table) is None
        copy.create()
        copy.apply(insert(1, item(1, "a")))
        later = replace(copy.table, epoch=7)
        written = Ledger(incarnation=copy.table.incarnation, epoch=copy.table.epoch, last_applied=1)
        for _ in range(2):
            assert copy.target.read_ledger(later) == written
        copy.apply(insert(2, item(2, "b")))
        written = replace(written, last_applied=2)
        assert copy.target.read_ledger(later) == copy.target.read_ledger(replace(later, incarnation=9)) == written
        assert copy.target.read_ledger(replace(later, uuid=STRANGER)) is None
        copy.restart(epoch=7)
        assert copy.target.read_ledger(copy.table) == replace(written, epoch=7)
        copy.table = replace(copy.table, incarnation=copy.table.incarnation + 1)
        copy.create(3)
        made = Ledger(incarnation=copy.table.incarnation, epoch=7, last_applied=3)
        assert copy.target.read_ledger(later) == copy.target.read_ledger(copy.table) == made

    def test_a_writer_of_an_older_epoch_changes_nothing(self, harness: TargetHarness, tmp_path: Path) -> None:
        zombie = self.copy(harness, tmp_path)
        zombie.create()
        zombie.apply(insert(1, item(1, "a")))
        heir = replace(zombie)
        heir.restart(epoch=2)
        heir.apply(insert(2, item(2, "b")))
        for act in (
            lambda: zombie.apply(insert(2, item(2, "zombie")), insert(9, item(9, "zombie")), skip_to=1),
            lambda: zombie.ddl(DDLOperation.TRUNCATE_TABLE, 10),
            lambda: zombie.target.complete_snapshot(zombie.table, 9, 11),
            lambda: zombie.target.advance(zombie.table, 12),
            lambda: zombie.ddl(DDLOperation.DROP_TABLE, 13),
        ):
            with suppress(FencedError):
                act()
            assert heir.live() == as_tuples(heir.schema, [item(1, "a"), item(2, "b")])
        assert heir.claim().last_applied == 2
        heir.apply(insert(3, item(3, "c")))
        assert len(heir.live()) == 3

    def test_an_older_epoch_cannot_claim(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.restart(epoch=3)
        with pytest.raises(FencedError):
            copy.restart(epoch=2)

    def test_a_claim_alone_fences_the_older_epoch(self, harness: TargetHarness, tmp_path: Path) -> None:
        zombie = self.copy(harness, tmp_path)
        zombie.create()
        heir = replace(zombie)
        assert heir.restart(epoch=2).last_applied == 0
        with suppress(FencedError):
            zombie.apply(insert(1, item(1, "zombie")))
        assert heir.claim() == Claim(last_applied=0)
        assert heir.live() == []

    def test_a_table_of_another_replicator_is_refused(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(insert(1, item(1, "a")))
        stranger = replace(copy.table, uuid=STRANGER)
        target = harness.target(uuid=STRANGER)
        assert {p.code for p in target.check([copy.schema])} == {"not_ours"}
        with pytest.raises(TableError) as refused:
            target.claim(stranger)
        assert (refused.value.code, refused.value.table) == ("not_ours", str(ITEMS))
        target.drop(stranger)
        assert copy.live() == as_tuples(copy.schema, [item(1, "a")])
        assert copy.claim().last_applied == 1

    def test_two_replicators_of_one_location_leave_each_others_tables_alone(
        self, harness: TargetHarness, tmp_path: Path
    ) -> None:
        """With other tables each: what one applies, looks after, forgets and drops is its own."""
        ours = self.copy(harness, tmp_path)
        ours.create()
        ours.apply(insert(1, item(1, "a")))
        theirs = self.copy(harness, tmp_path, items_schema(table=replace(ITEMS, name="others")))
        theirs.table = replace(theirs.table, uuid=STRANGER)
        theirs.target = harness.target(uuid=STRANGER)
        assert wrong(theirs.target.check([theirs.schema])) == []
        theirs.create(5)
        theirs.apply(insert(6, item(6, "b")))
        ours.apply(insert(2, item(2, "c")))
        theirs.target.maintain(theirs.table)
        assert theirs.restart(epoch=2).last_applied == 6
        assert ours.claim().last_applied == 2
        theirs.target.drop(theirs.table)
        assert not harness.exists(theirs.table)
        ours.apply(insert(3, item(3, "d")), expects_rows=True)
        assert ours.live() == as_tuples(ours.schema, [item(1, "a"), item(2, "c"), item(3, "d")])
        assert ours.restart(epoch=2).last_applied == 3

    def test_a_table_of_another_replicator_is_replaced_on_demand(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(insert(1, item(1, "a")))
        heir = replace(
            copy,
            table=replace(copy.table, uuid=STRANGER),
            target=harness.target(uuid=STRANGER, adopt="replace"),
            audited_to=None,
        )
        assert wrong(heir.target.check([copy.schema])) == []
        assert heir.claim() == Claim(last_applied=EMPTY_LEDGER)
        heir.create()
        heir.apply(insert(1, item(2, "b")))
        assert heir.live() == as_tuples(copy.schema, [item(2, "b")])
        assert copy.target.read_ledger(copy.table) is None
        with pytest.raises(TableError) as refused:
            copy.restart(epoch=2)
        assert refused.value.code == "not_ours"

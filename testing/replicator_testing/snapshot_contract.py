"""Contract of every target for snapshots of a table that readers see: of the whole table, or of some rows."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from replicator.plugins.target import TableOptions
from replicator_testing.batches import delete, insert, update
from replicator_testing.target_harness import TargetHarness, TargetSuite, as_tuples, item


class SnapshotContract(TargetSuite):
    """The part of `TargetContract` about snapshots of tables that readers see."""

    @pytest.mark.parametrize("deletes", ["hard", "soft"])
    def test_a_snapshot_in_place_ends_with_what_it_read_and_what_came_since(
        self, harness: TargetHarness, tmp_path: Path, deletes: Literal["hard", "soft"]
    ) -> None:
        copy = self.copy(harness, tmp_path, options=TableOptions(deletes=deletes))
        copy.create()
        copy.apply(*[insert(n, item(n, "old")) for n in (1, 2, 3, 4)])
        copy.apply(
            update(10, item(2, "delivered, unseen")),
            insert(11, item(1, "new"), is_snapshot=True),
            insert(12, item(5, "new"), is_snapshot=True),
        )
        for _ in range(2):
            copy.target.complete_snapshot(copy.table, 10, 13)
        assert copy.live() == as_tuples(copy.schema, [item(1, "new"), item(2, "delivered, unseen"), item(5, "new")])
        assert {r.values["id"] for r in copy.stored() if r.is_deleted} == ({3, 4} if deletes == "soft" else set())
        assert copy.restart().last_applied == 13

    @pytest.mark.parametrize("deletes", ["hard", pytest.param("soft", marks=pytest.mark.matrix)])
    def test_rows_that_are_read_again_are_as_they_were_read(
        self, harness: TargetHarness, tmp_path: Path, deletes: Literal["hard", "soft"]
    ) -> None:
        """A row that is too much is deleted. One that is not there was not expected."""
        copy = self.copy(harness, tmp_path, options=TableOptions(deletes=deletes))
        copy.create()
        copy.apply(*[insert(n, item(n, "old")) for n in (1, 2, 3, 4)])
        copy.apply(
            insert(10, item(2, "read"), is_snapshot=True),
            insert(11, item(5, "read"), is_snapshot=True),
            delete(12, item(3), is_snapshot=True),
            delete(13, item(9), is_snapshot=True),
            delete(14, item(4), is_snapshot=True),
            insert(15, item(4, "came since")),
            expects_rows=True,
        )
        expected = [item(1, "old"), item(2, "read"), item(4, "came since"), item(5, "read")]
        assert copy.live() == as_tuples(copy.schema, expected)
        assert {r.values["id"] for r in copy.stored() if r.is_deleted} == ({3} if deletes == "soft" else set())
        assert copy.audit().not_found == 0

    def test_completing_a_snapshot_again_later_changes_nothing(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(insert(1, item(1, "a"), is_snapshot=True))
        copy.target.complete_snapshot(copy.table, 1, 2)
        copy.ledger = 2
        copy.apply(insert(3, item(2, "b")))
        copy.restart()
        copy.target.complete_snapshot(copy.table, 3, 2)
        assert copy.live() == as_tuples(copy.schema, [item(1, "a"), item(2, "b")])

"""Contract of every target for readers while a new incarnation of a table is built."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from replicator.model import crash
from replicator.model.errors import FencedError
from replicator.model.events import DDLOperation
from replicator.model.schema import TableId
from replicator_testing.alterations import Killed, killed_at
from replicator_testing.batches import delete, insert, update
from replicator_testing.target_harness import Copy, TargetHarness, TargetSuite, as_tuples, item, items_schema

OLD = (item(1, "old"), item(2, "old"))
NEW = (item(1, "newer"), item(9, "new"))


class IncarnationContract(TargetSuite):
    """The part of `TargetContract` about new incarnations. A target that builds them out of sight sets `builds_out_of_sight`."""

    builds_out_of_sight: ClassVar[bool] = False
    """True if readers see the old incarnation until `DeltaTarget.publish`, and the new one as a whole from then on."""

    def building(self, harness: TargetHarness, folder: Path, name: str = "items") -> Copy:
        """Create a table whose second incarnation has its first snapshot and is not published."""
        if not self.builds_out_of_sight:
            pytest.skip("readers see the target's incarnations from their beginning")
        copy = self.copy(harness, folder, items_schema(table=TableId("shop", name)))
        copy.create()
        copy.apply(*[insert(n, row) for n, row in enumerate(OLD, 1)])
        copy.table, copy.audited_to = replace(copy.table, incarnation=2), None
        copy.create(3)
        assert self.seen(copy) == self.tuples(copy, OLD)
        copy.apply(
            *[insert(n, item(id_, "new"), is_snapshot=True) for n, id_ in ((4, 1), (5, 9), (6, 10))], is_append=True
        )
        copy.apply(update(7, item(1, "newer")), delete(8, item(10)), expects_rows=True)
        assert self.seen(copy) == self.tuples(copy, OLD)
        return copy

    def seen(self, copy: Copy) -> list[tuple[object, ...]]:
        """Return the rows that readers see."""
        return copy.live()

    def tuples(self, copy: Copy, rows: tuple[dict[str, object], ...]) -> list[tuple[object, ...]]:
        """Return rows in the form of `seen`."""
        return as_tuples(copy.schema, rows)

    def test_readers_see_the_old_incarnation_or_the_new_one_as_a_whole(
        self, harness: TargetHarness, tmp_path: Path
    ) -> None:
        copy = self.building(harness, tmp_path)
        counted = copy.audit()
        assert (counted.not_found, counted.inserted > 0) == (0, True)
        assert copy.restart(epoch=2).last_applied == 8
        assert self.seen(copy) == self.tuples(copy, OLD)
        for _ in range(2):
            copy.publish(9)
            assert self.seen(copy) == self.tuples(copy, NEW)
        assert copy.audit() == counted
        copy.apply(update(10, item(9, "after")), expects_rows=True)
        assert copy.restart(epoch=3).last_applied == 10
        copy.apply(insert(11, item(3, "more")), expects_rows=True)
        assert self.seen(copy) == self.tuples(copy, (NEW[0], item(9, "after"), item(3, "more")))
        assert copy.audit().not_found == 0

    def test_a_table_that_is_dropped_while_it_is_built_is_empty(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.building(harness, tmp_path)
        copy.ddl(DDLOperation.DROP_TABLE, 9)
        assert not harness.exists(copy.table)
        assert copy.restart(epoch=2).last_applied == 9
        copy.table = replace(copy.table, incarnation=3)
        copy.create(10)
        copy.publish(11)
        assert copy.live() == []

    def test_an_incarnation_that_is_given_up_leaves_nothing(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.building(harness, tmp_path)
        copy.table, copy.audited_to = replace(copy.table, incarnation=3), None
        copy.create(9)
        assert self.seen(copy) == self.tuples(copy, OLD)
        copy.apply(insert(10, item(5, "third"), is_snapshot=True))
        copy.publish(11)
        assert self.seen(copy) == self.tuples(copy, (item(5, "third"),))
        copy.target.drop(copy.table)
        assert not harness.exists(copy.table)
        assert copy.target.read_ledger(copy.table) is None

    def test_an_older_epoch_publishes_nothing(self, harness: TargetHarness, tmp_path: Path) -> None:
        zombie = self.building(harness, tmp_path)
        heir = replace(zombie)
        assert heir.restart(epoch=2).last_applied == 8
        for act in (
            lambda: zombie.apply(insert(9, item(99, "zombie"))),
            lambda: zombie.publish(9),
            lambda: zombie.ddl(DDLOperation.TRUNCATE_TABLE, 10),
            lambda: zombie.ddl(DDLOperation.DROP_TABLE, 11),
        ):
            with suppress(FencedError):
                act()
            assert self.seen(heir) == self.tuples(heir, OLD)
        heir.publish(9)
        assert self.seen(heir) == self.tuples(heir, NEW)
        with suppress(FencedError):
            zombie.publish(12)
        with suppress(FencedError):
            zombie.create(13)
        assert self.seen(heir) == self.tuples(heir, NEW)
        assert heir.restart().last_applied == 9

    def test_publishing_that_was_killed_anywhere_is_completed(
        self, harness: TargetHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        probe = self.building(harness, tmp_path, "probe")
        with killed_at("nothing", monkeypatch):
            probe.publish(9)
            passed = dict(crash._hits)  # noqa: SLF001
        assert passed
        for number, point in enumerate(f"{name}:{n + 1}" for name, hits in passed.items() for n in range(hits)):
            copy = self.building(harness, tmp_path, f"killed{number}")
            with killed_at(point, monkeypatch), pytest.raises(Killed):
                copy.publish(9)
            assert self.seen(copy) in (self.tuples(copy, OLD), self.tuples(copy, NEW)), point
            ledger = copy.restart(epoch=2).last_applied
            assert (self.seen(copy) == self.tuples(copy, NEW)) == (ledger == 9), point
            copy.publish(9)
            copy.audit()
            copy.apply(delete(10, item(9)), expects_rows=True)
            assert self.seen(copy) == self.tuples(copy, NEW[:1]), point
            assert copy.audit().not_found == 0

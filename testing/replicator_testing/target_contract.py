"""Contract of every target.

A plugin's tests begin by subclassing `TargetContract`:

    class TestDeltaLakeTarget(TargetContract): @pytest.fixture def harness(self, tmp_path): return DeltaLakeHarness(tmp_path)

Commits are expensive on many targets, so where a rule must hold for many histories they all go into one table: each
history lives in a `world`, the first column of the key.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pytest

from replicator.model.events import DDLOperation
from replicator.model.merged import Merged
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.target import EMPTY_LEDGER, Claim, TableOptions
from replicator_testing.alteration_contract import AlterationContract
from replicator_testing.batches import delete, insert, update
from replicator_testing.fencing_contract import FencingContract
from replicator_testing.histories import (
    HISTORIES,
    History,
    cuts,
    key_swap,
    partial_snapshot_row,
    random_batches,
    random_rows,
    spread_over_worlds,
    worked_example,
)
from replicator_testing.incarnation_contract import IncarnationContract
from replicator_testing.oracle import Oracle
from replicator_testing.snapshot_contract import SnapshotContract
from replicator_testing.target_harness import TargetHarness, as_outcome, as_tuples, item, items_schema, wrong


class TargetContract(AlterationContract, FencingContract, IncarnationContract, SnapshotContract):
    """The suite. `fuzz_worlds` histories of `fuzz_length` changes are played in each of `fuzz_rounds` rounds of `fuzz_batches` commits."""

    fuzz_worlds: ClassVar[int] = 250
    fuzz_rounds: ClassVar[int] = 4
    fuzz_length: ClassVar[int] = 12
    fuzz_batches: ClassVar[int] = 4

    # -- ledger

    def test_identity_is_the_same_for_every_object(self, harness: TargetHarness) -> None:
        assert harness.target().identity() == harness.target(epoch=2).identity()

    def test_a_table_claimed_for_the_first_time_is_empty(self, harness: TargetHarness, tmp_path: Path) -> None:
        assert self.copy(harness, tmp_path).claim() == Claim(last_applied=EMPTY_LEDGER)

    def test_a_created_table_is_there_without_rows(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create(3)
        assert harness.exists(copy.table)
        assert copy.stored() == []
        assert copy.restart() == Claim(last_applied=3)

    def test_the_ledger_follows_batches_and_outlives_the_process(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(insert(1, item(1, "a")), insert(4, item(2, "b")))
        assert copy.restart().last_applied == 4
        assert {row.values["id"]: row.sequence_num for row in copy.stored()} == {1: 1, 2: 4}

    def test_a_replayed_batch_changes_nothing(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path, items_schema(key=()))
        copy.create()
        changes = [insert(1, item(1, "a")), insert(2, item(1, "a"))]
        assert not copy.apply(*changes, skip_to=0).was_skipped
        before = copy.stored()
        assert copy.apply(*changes, skip_to=0).was_skipped
        copy.restart()
        assert copy.apply(*changes, skip_to=0).was_skipped
        assert copy.restart().last_applied == 2
        assert sorted(r.sequence_num for r in copy.stored()) == sorted(r.sequence_num for r in before)

    def test_a_batch_that_begins_below_the_ledger_applies_only_the_rest(
        self, harness: TargetHarness, tmp_path: Path
    ) -> None:
        copy = self.copy(harness, tmp_path, items_schema(key=()))
        copy.create()
        copy.apply(insert(1, item(1, "a")), insert(2, item(2, "b")))
        copy.apply(insert(1, item(1, "a")), insert(2, item(2, "b")), insert(3, item(3, "c")), skip_to=2, files=2)
        assert copy.live() == as_tuples(copy.schema, [item(1, "a"), item(2, "b"), item(3, "c")])

    def test_advance_moves_the_ledger_and_nothing_else(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(insert(1, item(1, "a")))
        for _ in range(2):
            copy.target.advance(copy.table, 9)
        copy.target.advance(copy.table, 5)
        assert copy.restart().last_applied == 9
        assert copy.live() == as_tuples(copy.schema, [item(1, "a")])

    def test_replayed_ddl_changes_nothing(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(insert(1, item(1, "a")))
        copy.ddl(DDLOperation.CREATE_TABLE, 0)
        assert copy.restart().last_applied == 1
        copy.ddl(DDLOperation.TRUNCATE_TABLE, 2)
        copy.apply(insert(3, item(2, "b")))
        copy.restart()
        copy.ddl(DDLOperation.TRUNCATE_TABLE, 2)
        assert copy.live() == as_tuples(copy.schema, [item(2, "b")])
        assert copy.restart().last_applied == 3

    # -- merge

    @pytest.mark.parametrize("history", HISTORIES, ids=lambda h: h.__name__)
    def test_every_way_to_cut_a_history_into_batches_gives_the_same_rows(
        self, harness: TargetHarness, tmp_path: Path, history: History
    ) -> None:
        changes = history()
        schema, batches = spread_over_worlds(changes)
        copy = self.copy(harness, tmp_path, schema)
        copy.create()
        for batch in batches:
            # In a snapshot's middle an UPDATE may come before its row.
            copy.apply(*batch, expects_rows=history is not partial_snapshot_row)
        assert copy.audit().not_found == 0
        reference = Oracle(items_schema())
        reference.apply(changes)
        worlds = range(len(cuts(len(changes))))
        assert copy.live() == as_tuples(schema, [{"world": w, **row} for w in worlds for row in reference.live])

    def test_the_worked_example_ends_as_its_design_says(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(*[replace(c, sequence_num=c.sequence_num + 1) for c in worked_example()])
        assert copy.live() == as_tuples(copy.schema, [item(0, "Alice"), item(1, "Bob")])

    def test_an_insert_of_an_existing_key_replaces_the_row(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(insert(1, item(1, "a", "1.00", "x")))
        copy.apply(insert(2, item(1, "b")))
        assert copy.live() == as_tuples(copy.schema, [item(1, "b")])

    def test_a_delete_of_an_unknown_key_does_nothing(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(delete(1, item(7)))
        copy.apply(insert(2, item(8)), delete(3, item(8)))
        assert copy.live() == []
        assert copy.restart().last_applied == 3

    def test_several_files_are_one_batch(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(*[replace(c, sequence_num=c.sequence_num + 1) for c in key_swap()], files=5)
        assert copy.live() == as_tuples(copy.schema, [item(2, "a"), item(1, "b")])

    def test_an_appended_batch_adds_its_rows(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        for first in (1, 11):
            rows = [insert(n, item(n, f"n{n}"), is_snapshot=True) for n in range(first, first + 10)]
            copy.apply(*rows, is_append=True, files=2)
        assert copy.live() == as_tuples(copy.schema, [item(n, f"n{n}") for n in range(1, 21)])
        assert copy.restart().last_applied == 20
        assert copy.apply(insert(1, item(1, "n1")), skip_to=0).was_skipped

    def test_keys_are_compared_byte_by_byte(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path, items_schema(key=("name",)))
        copy.create()
        names = ["a", "A", "a ", "", "é", "e\u0301"]
        copy.apply(*[insert(n, item(n, name)) for n, name in enumerate(names, start=1)])
        copy.apply(*[update(n + 10, item(n, name, "1.00")) for n, name in enumerate(names, start=1)])
        copy.apply(update(30, item(1, "b", "1.00"), before=item(None, "A")))
        expected = [item(n, name, "1.00") for n, name in enumerate(names, start=1) if name != "A"]
        assert copy.live() == as_tuples(copy.schema, [*expected, item(1, "b", "1.00")])

    def test_names_that_need_care_are_kept(self, harness: TargetHarness, tmp_path: Path) -> None:
        names = ["select", "a b", "back`tick", 'dou"ble', "per%cent", "dot.ted", "ключ", "c3", "row", "before"]
        columns = [Column(name=n, type=pa.int64(), source_type="bigint", nullable=n != "select") for n in names]
        schema = TableSchema(table=TableId("My Shop", "order.items%é"), columns=tuple(columns), key=("select",))
        copy = self.copy(harness, tmp_path, schema)
        copy.create()
        row = {n: i for i, n in enumerate(names)}
        copy.apply(insert(1, row), update(2, {**row, "a b": 100, "dot.ted": None}, absent=["dot.ted"]))
        copy.apply(update(3, {**row, "select": 5, "ключ": 200, "a b": None}, before=row, absent=["a b"]))
        assert copy.live() == as_tuples(schema, [{**row, "select": 5, "ключ": 200, "a b": 100}])

    @pytest.mark.parametrize("deletes", ["hard", "soft"])
    def test_random_histories_equal_a_plain_replay(
        self, harness: TargetHarness, tmp_path: Path, deletes: Literal["hard", "soft"]
    ) -> None:
        schema = items_schema(with_world=True)
        for seed in range(self.fuzz_rounds):
            schema = replace(schema, table=TableId("shop", f"fuzz{seed}"))
            copy = self.copy(harness, tmp_path, schema, options=TableOptions(deletes=deletes))
            copy.create()
            reference, counts = Oracle(schema, copy.table.options), Merged()
            for batch in random_batches(
                seed, worlds=self.fuzz_worlds, length=self.fuzz_length, batches=self.fuzz_batches
            ):
                counts += reference.apply(batch, expects_rows=True)
                before = copy.ledger
                copy.apply(*batch, files=3, expects_rows=True)
                assert copy.apply(*batch, skip_to=before).was_skipped
                assert copy.outcome() == as_outcome(schema, reference.rows), f"seed {seed}"
            assert (copy.audit(), counts.not_found) == (counts, 0)

    def test_random_changes_of_equal_rows_equal_a_plain_replay(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path, items_schema(key=()))
        copy.create()
        reference, counts = Oracle(copy.schema), Merged()
        for batch in random_rows(1, length=30, batches=2):
            counts += reference.apply(batch, expects_rows=True)
            copy.apply(*batch, files=2, expects_rows=True)
            assert copy.outcome() == as_outcome(copy.schema, reference.rows)
        assert copy.audit() == counts

    # -- soft deletes

    def test_a_soft_delete_marks_the_row_and_keeps_its_values(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path, options=TableOptions(deletes="soft"))
        copy.create()
        copy.apply(insert(1, item(1, "a", "1.00")), insert(2, item(2, "b")))
        copy.apply(delete(3, item(1)))
        rows = {r.values["id"]: r for r in copy.stored()}
        assert (rows[1].is_deleted, rows[1].values["name"], rows[1].sequence_num) == (True, "a", 3)
        assert not rows[2].is_deleted

    def test_a_row_that_comes_back_is_no_longer_marked(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path, options=TableOptions(deletes="soft"))
        copy.create()
        copy.apply(insert(1, item(1, "a", "1.00", "x")))
        copy.apply(delete(2, item(1)))
        copy.apply(insert(3, item(1, "b")))
        assert [(r.is_deleted, dict(r.values)) for r in copy.stored()] == [(False, item(1, "b"))]
        copy.apply(delete(4, item(1)), insert(5, item(1, "c")))
        assert [(r.is_deleted, dict(r.values)) for r in copy.stored()] == [(False, item(1, "c"))]

    def test_a_row_whose_key_changed_lives_only_under_its_new_key(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path, options=TableOptions(deletes="soft"))
        copy.create()
        copy.apply(insert(1, item(0, "alice")), insert(2, item(1, "bob")))
        copy.apply(update(3, item(2, "alice"), before=item(0)), delete(4, item(1)))
        assert copy.live() == as_tuples(copy.schema, [item(2, "alice")])
        assert {r.values["id"] for r in copy.stored() if r.is_deleted} - {0} == {1}

    def test_a_soft_truncate_marks_every_row(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path, options=TableOptions(deletes="soft"))
        copy.create()
        copy.apply(insert(1, item(1, "a")), insert(2, item(2, "b")))
        copy.ddl(DDLOperation.TRUNCATE_TABLE, 3)
        copy.apply(insert(4, item(2, "c")))
        assert {r.values["id"]: (r.is_deleted, r.values["name"]) for r in copy.stored()} == {
            1: (True, "a"),
            2: (False, "c"),
        }

    # -- tables without a key

    def test_equal_rows_without_a_key_are_counted(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path, items_schema(key=()))
        copy.create()
        copy.apply(
            *[insert(n, item(1, "a")) for n in (1, 2, 3)], insert(4, item(None, None)), insert(5, item(None, None))
        )
        copy.apply(
            delete(6, item(1, "a")),
            update(7, item(2, "b"), before=item(1, "a")),
            delete(8, item(None, None)),
            insert(9, item(2, "b")),
        )
        assert copy.live() == as_tuples(copy.schema, [item(1, "a"), item(2, "b"), item(2, "b"), item(None, None)])

    def test_the_newest_of_equal_rows_goes_first(self, harness: TargetHarness, tmp_path: Path) -> None:
        """Else another snapshot would delete the last copy when it is complete."""
        copy = self.copy(harness, tmp_path, items_schema(key=()))
        copy.create()
        copy.apply(*[insert(n, item(1, "a")) for n in (1, 2)])
        copy.apply(*[insert(n, item(1, "a"), is_snapshot=True) for n in (10, 11)])
        copy.apply(delete(12, item(1, "a")))
        copy.target.complete_snapshot(copy.table, 10, 13)
        assert copy.live() == as_tuples(copy.schema, [item(1, "a")])

    def test_random_histories_without_a_key_equal_a_plain_replay(self, harness: TargetHarness, tmp_path: Path) -> None:
        rng = random.Random(7)
        schema = items_schema(key=(), with_world=True)
        copy = self.copy(harness, tmp_path, schema)
        copy.create()
        numbers = itertools.count(1)
        content: Counter[tuple[int, int | None]] = Counter()

        def row(value: tuple[int, int | None]) -> dict[str, Any]:
            return item(value[1], None if value[1] is None else f"n{value[1]}", world=value[0])

        for _ in range(self.fuzz_batches):
            batch = []
            for world in [rng.randrange(self.fuzz_worlds) for _ in range(self.fuzz_worlds * 3)]:
                new = (world, rng.choice([None, 1, 2]))
                there = [v for v in content.elements() if v[0] == world] if rng.random() < 0.6 else []
                old = rng.choice(there) if there else None
                kind = rng.choice(["delete", "update"]) if old else "insert"
                content[new] += kind != "delete"
                if old is None:
                    batch.append(insert(next(numbers), row(new)))
                    continue
                content[old] -= 1
                batch.append(
                    delete(next(numbers), row(old))
                    if kind == "delete"
                    else update(next(numbers), row(new), before=row(old))
                )
            copy.apply(*batch, files=2, expects_rows=True)
            assert copy.live() == as_tuples(schema, [row(v) for v in content.elements()])
        assert copy.audit().not_found == 0

    # -- counts

    def test_merges_are_counted_whatever_process_asks(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        assert copy.audit() == Merged()
        copy.apply(*[insert(n, item(n, "a"), is_snapshot=True) for n in (1, 2, 3)], is_append=True)
        changes = [
            insert(4, item(4)),
            update(5, item(1, "b"), absent=["note"]),
            delete(6, item(2)),
            update(7, item(5), before=item(3)),
            insert(8, item(6)),
            delete(9, item(6)),
        ]
        copy.apply(*changes, expects_rows=True)
        assert copy.apply(*changes, skip_to=3, expects_rows=True).was_skipped
        counted = Merged(matched=1, inserted=5, deleted=2)
        # The process ended before anybody asked.
        copy.restart(epoch=2)
        assert copy.audit() == counted
        assert copy.audit() == counted
        copy.target.advance(copy.table, 20)
        copy.restart()
        assert copy.audit() == counted
        copy.table = replace(copy.table, incarnation=2)
        copy.audited_to = None
        copy.create(30)
        assert copy.audit() == Merged()

    def test_rows_that_are_missing_are_counted_and_the_changes_applied(
        self, harness: TargetHarness, tmp_path: Path
    ) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(insert(1, item(1, "a")), insert(2, item(2, "b")))
        changes = [
            update(3, item(11, "new")),
            update(4, item(12, "part"), absent=["note"]),
            delete(5, item(13)),
            update(6, item(24), before=item(14)),
            update(7, item(25, "part"), before=item(15), absent=["note"]),
            delete(8, item(16)),
            insert(9, item(16)),
            # These find what they expect.
            insert(10, item(1, "replaced")),
            insert(11, item(17)),
            delete(12, item(17)),
            update(13, item(28), before=item(2)),
            update(14, item(2), before=item(28)),
            insert(15, item(19), is_snapshot=True),
        ]
        copy.apply(*changes, expects_rows=True)
        copy.restart()
        assert copy.audit().not_found == 6
        expected = [item(1, "replaced"), item(2), item(11, "new"), item(12, "part"), item(16), item(19), item(24)]
        assert copy.live() == as_tuples(copy.schema, [*expected, item(25, "part")])
        copy.apply(update(20, item(1)), delete(21, item(2)), expects_rows=True)
        assert copy.audit().not_found == 6
        copy.apply(delete(22, item(2)))
        assert copy.audit().not_found == 6

    def test_a_row_that_is_marked_as_deleted_is_missing(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path, options=TableOptions(deletes="soft"))
        copy.create()
        copy.apply(*[insert(n, item(n, "a")) for n in (1, 2, 3)])
        copy.apply(delete(4, item(1)), delete(5, item(2)), delete(6, item(3)), expects_rows=True)
        copy.apply(insert(7, item(1)), insert(8, item(4)), delete(9, item(4)), expects_rows=True)
        assert copy.audit() == Merged(matched=4, inserted=4)
        copy.apply(update(10, item(2, "b"), absent=["note"]), delete(11, item(3)), expects_rows=True)
        assert copy.audit().not_found == 2
        assert copy.live() == as_tuples(copy.schema, [item(1), item(2, "b")])

    def test_missing_ones_of_equal_rows_are_counted(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path, items_schema(key=()))
        copy.create()
        copy.apply(*[insert(n, item(1, "a")) for n in (1, 2)], insert(3, item(None)))
        copy.apply(
            *[delete(n, item(1, "a")) for n in (4, 5, 6)],
            update(7, item(2), before=item(9)),
            delete(8, item(None)),
            insert(9, item(3)),
            delete(10, item(3)),
            expects_rows=True,
        )
        assert copy.audit() == Merged(inserted=4, deleted=3, not_found=2)
        assert copy.live() == as_tuples(copy.schema, [item(2)])
        copy.apply(delete(11, item(9)))
        copy.apply(delete(12, item(2)), expects_rows=True)
        copy.restart()
        assert copy.audit() == Merged(inserted=4, deleted=4, not_found=2)

    # -- truncate, drop, snapshots in place

    def test_truncate_leaves_an_empty_table_that_works(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.ddl(DDLOperation.TRUNCATE_TABLE, 1)
        copy.apply(insert(2, item(1, "a")), insert(3, item(2, "b")))
        copy.ddl(DDLOperation.TRUNCATE_TABLE, 4)
        assert harness.exists(copy.table)
        assert copy.stored() == []
        copy.apply(insert(5, item(1, "c")), update(6, item(1, "d"), absent=["note"]))
        assert copy.live() == as_tuples(copy.schema, [item(1, "d")])
        assert copy.restart().last_applied == 6

    def test_a_dropped_table_does_not_exist_and_can_be_made_again(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(insert(1, item(1, "a")))
        copy.ddl(DDLOperation.DROP_TABLE, 2)
        assert not harness.exists(copy.table)
        copy.ddl(DDLOperation.DROP_TABLE, 2)
        copy.table = replace(copy.table, incarnation=2)
        copy.create(3)
        copy.apply(insert(4, item(2, "b")))
        assert copy.live() == as_tuples(copy.schema, [item(2, "b")])

    def test_check_finds_nothing_wrong_with_tables_of_our_own_and_leaves_nothing(
        self, harness: TargetHarness, tmp_path: Path
    ) -> None:
        copy = self.copy(harness, tmp_path)
        assert wrong(copy.target.check([copy.schema])) == []
        assert not harness.exists(copy.table)
        copy.create()
        assert wrong(copy.target.check([copy.schema])) == []

    def test_drop_removes_the_table_and_its_ledger_and_can_be_repeated(
        self, harness: TargetHarness, tmp_path: Path
    ) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(insert(1, item(1, "a")))
        other = self.copy(harness, tmp_path, items_schema(table=TableId("shop", "others")))
        other.create()
        for _ in range(2):
            copy.target.drop(copy.table)
        assert not harness.exists(copy.table)
        assert harness.exists(other.table)
        assert copy.restart() == Claim(last_applied=EMPTY_LEDGER)

    def test_maintenance_changes_no_row(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path)
        copy.create()
        copy.apply(*[insert(n, item(n, "a")) for n in range(1, 6)])
        copy.apply(delete(6, item(3)))
        copy.target.maintain(copy.table)
        assert copy.live() == as_tuples(copy.schema, [item(n, "a") for n in (1, 2, 4, 5)])
        assert copy.restart().last_applied == 6

    def test_close_may_be_called_twice(self, harness: TargetHarness) -> None:
        target = harness.target()
        target.close()
        target.close()

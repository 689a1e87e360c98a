"""A state store that was restored is recognised, and a process that lost the lease applies nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from shutil import copyfile

import pytest

from replicator.journal import Retention
from replicator.model.errors import (
    FatalError,
    FencedError,
    TableError,
)
from replicator.model.events import DDLEvent, DDLOperation
from replicator.plugins.target import Ledger, TargetTable
from replicator.state.store import StateStore
from replicator_testbed.journals.applied import NAME, A, B, Shop
from replicator_testing.batches import insert
from replicator_testing.memory import MemoryTarget
from replicator_testing.target_harness import item


def test_a_target_that_is_ahead_of_the_journal_stops_everything(shop: Shop) -> None:
    shop.copy(A, 1)
    shop.run()
    shop.rows(A, insert(0, item(2)))
    shop.warehouse.tables[A].ledger = 1_000
    with pytest.raises(FatalError) as stopped:
        shop.run()
    assert stopped.value.code == "ledger_ahead"


def backup(shop: Shop, folder: Path) -> Callable[[], None]:
    """Take a copy of the state store; what is returned puts it back."""
    copy = folder / "backup.db"
    with closing(sqlite3.connect(folder / "state.db")) as live, closing(sqlite3.connect(copy)) as saved:
        live.backup(saved)

    def restore() -> None:
        shop.writer.discard()
        shop.store.close()
        for path in folder.glob("state.db*"):
            path.unlink()
        copyfile(copy, folder / "state.db")
        shop.store = StateStore(f"sqlite:///{folder}/state.db")
        shop.new_epoch()

    return restore


def applied_in_the_same_process(shop: Shop) -> None:
    """No other epoch than that of the backup."""


def applied_after_a_start(shop: Shop) -> None:
    shop.new_epoch()


def applied_after_two_starts(shop: Shop) -> None:
    shop.new_epoch()
    shop.run()
    shop.new_epoch()


@pytest.mark.parametrize("lost", [applied_in_the_same_process, applied_after_a_start, applied_after_two_starts])
@pytest.mark.parametrize("starts", [0, 1, 2])
def test_a_state_store_restored_from_an_older_copy_stops_everything(
    shop: Shop, tmp_path: Path, lost: Callable[[Shop], None], starts: int
) -> None:
    shop.copy(A, 1)
    shop.run()
    restore = backup(shop, tmp_path)
    lost(shop)
    shop.rows(A, insert(0, item(2, "lost")), insert(0, item(3, "lost")))
    shop.run()
    restore()
    for _ in range(starts):
        shop.new_epoch()
    # Capture is beyond the target's ledger before apply first looks.
    shop.rows(A, insert(0, item(4, "new")))
    shop.rows(A, insert(0, item(5, "new")), insert(0, item(6, "new")))
    before = shop.names(A)
    for _ in range(2):
        with pytest.raises(FatalError) as stopped:
            shop.run()
        assert stopped.value.code == "ledger_ahead"
        assert "delete shop --drop-target" in (stopped.value.action or "")
        shop.new_epoch()
    assert shop.names(A) == before


def lost_two(shop: Shop, folder: Path) -> None:
    """Two changes are applied whose numbers the store, restored, gives again."""
    restore = backup(shop, folder)
    shop.rows(A, insert(0, item(2, "lost")), insert(0, item(3, "lost")))
    shop.run()
    restore()


def stops_as_restored(shop: Shop) -> None:
    # A table that an earlier run failed is looked at once more.
    with pytest.raises(FatalError) as stopped:
        shop.run(
            is_done=lambda: all(
                shop.applied(t).last_applied >= n for t, n in shop.store.journal.feed_tables(NAME).items()
            )
        )
    assert stopped.value.code == "ledger_ahead"


def test_a_restored_state_store_is_known_where_the_ledgers_number_lies_in_a_hole(shop: Shop, tmp_path: Path) -> None:
    shop.copy(A, 1)
    shop.run()
    lost_two(shop, tmp_path)
    shop.rows(A, insert(0, item(4, "new")))
    # Numbers of rows that nobody follows: their segment goes with the next one.
    shop.writer.take(2)
    shop.commit()
    shop.rows(A, insert(0, item(5, "new")))
    stops_as_restored(shop)


def test_a_restored_state_store_is_known_where_the_segment_of_the_ledgers_number_was_dropped(
    shop: Shop, tmp_path: Path
) -> None:
    shop.copy(A, 1)
    shop.copy(B, 1)
    shop.run()
    lost_two(shop, tmp_path)
    shop.rows(A, insert(0, item(4, "new")))
    shop.rows(B, insert(0, item(2, "new")))
    shop.rows(B, insert(0, item(3, "new")))
    read_ledger = MemoryTarget.read_ledger

    def away(self: MemoryTarget, table: TargetTable) -> Ledger | None:
        if table.table == A:
            raise TableError("damaged", code="target_unreadable", table=str(A))
        return read_ledger(self, table)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(MemoryTarget, "read_ledger", away)
        shop.run()
    assert Retention(shop.store, NAME, epoch=shop.epoch, keep_s=0, bytes_max=1 << 30).sweep().segments > 0
    shop.new_epoch()
    shop.rows(A, insert(0, item(5, "new")))
    stops_as_restored(shop)


@pytest.mark.parametrize("is_begun_again", [False, True])
def test_a_restored_state_store_is_known_by_an_incarnation_that_it_lost(
    shop: Shop, tmp_path: Path, is_begun_again: bool
) -> None:
    shop.copy(A, 1)
    shop.run()
    restore = backup(shop, tmp_path)
    shop.copy(A, 1, 2)
    shop.run()
    restore()
    (shop.records[A],) = shop.store.tables(NAME)
    if is_begun_again:
        shop.copy(A, 1, 2, 3)
    else:
        shop.rows(A, insert(0, item(3, "new")))
    stops_as_restored(shop)


def test_a_process_that_lost_the_lease_applies_nothing_that_its_successor_sealed(shop: Shop) -> None:
    shop.copy(A, 1)
    shop.run()
    shop.rows(A, insert(0, item(2, "own")))  # so that it claims
    steps: Iterator[Callable[[], object]] = iter(
        [shop.new_epoch, lambda: shop.rows(A, insert(0, item(3, "the successor's")))]
    )

    def is_done() -> bool:
        if shop.is_done():
            for step in steps:
                step()
        return False

    with pytest.raises(FencedError):
        shop.run(is_done=is_done)
    assert set(shop.names(A)) == {1, 2}
    shop.run()
    assert set(shop.names(A)) == {1, 2, 3}


def test_a_way_on_that_a_successor_sealed_is_not_taken(shop: Shop) -> None:
    shop.begin(A)
    shop.event(A, DDLEvent(operation=DDLOperation.ALTER_TABLE, table=A, schema=shop.schemas[A]))
    shop.commit()
    ledgers: list[int] = []

    def taken_over() -> bool:
        if shop.store.applied(NAME) and shop.applied(A).has_failed and not ledgers:
            ledgers.append(shop.warehouse.tables[A].ledger)
            shop.new_epoch()
            shop.start_in_place(A)
            shop.commit()
        return False

    with pytest.raises(FencedError):
        shop.run(is_done=taken_over)
    assert [shop.warehouse.tables[A].ledger] == ledgers


def test_a_state_store_restored_from_a_copy_that_the_target_is_not_ahead_of_continues(
    shop: Shop, tmp_path: Path
) -> None:
    shop.copy(A, 1)
    shop.run()
    restore = backup(shop, tmp_path)
    shop.rows(A, insert(0, item(2, "lost")))
    restore()
    shop.rows(A, insert(0, item(3, "new")))
    shop.run()
    assert shop.names(A) == {1: "snapshot", 3: "new"}


def test_a_successor_that_has_claimed_is_no_restored_state_store(shop: Shop) -> None:
    shop.copy(A, 1)
    shop.run()
    shop.rows(A, insert(0, item(2)))
    target, read_ledger = shop.target(), MemoryTarget.read_ledger

    def taken_over(self: MemoryTarget, table: TargetTable) -> Ledger | None:
        shop.new_epoch()
        self.claim(replace(table, epoch=shop.epoch))
        return read_ledger(self, table)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(MemoryTarget, "read_ledger", taken_over)
        with pytest.raises(FencedError):
            shop.run(target)


def test_a_process_that_lost_the_lease_is_refused_by_the_state_store(shop: Shop) -> None:
    shop.copy(A, 1)
    target = shop.target()
    target.faults.script("claim", shop.new_epoch)
    with pytest.raises(FencedError):
        shop.run(target)
    assert shop.applied(A).last_applied == -1


def test_a_skipped_batch_shows_that_another_has_the_table(shop: Shop) -> None:
    shop.copy(A, 1)
    shop.run()
    shop.rows(A, insert(0, item(2)))
    target = shop.target()

    def take_over() -> None:
        held = shop.warehouse.tables[A]
        held.epoch, held.ledger = held.epoch + 1, shop.highest(A)

    target.faults.script("apply_batch", take_over)
    with pytest.raises(FencedError):
        shop.run(target)
    assert set(shop.names(A)) == {1}

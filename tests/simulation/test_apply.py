"""What the apply loop does when something is not as it should be, and when nothing is to be done."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest

from replicator.apply import Apply, BatchLimits
from replicator.apply import table as apply_table
from replicator.journal import JournalReader, JournalWriter, Retention, WriterLimits
from replicator.model.errors import (
    BatchTooLargeError,
    FatalError,
    FencedError,
    TableError,
    TargetUnavailableError,
    ThrottledError,
)
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.offset import Offset
from replicator.model.reports import WaitingReport
from replicator.model.schema import TableId
from replicator.plugins.target import Ledger, TableOptions, TargetContext, TargetTable
from replicator.state.records import Stage
from replicator.state.store import StateStore
from replicator.testing.batches import delete, insert, update
from replicator.testing.journals import START
from replicator.testing.memory import MemoryTarget, MemoryTargetConfig, state_of
from replicator.testing.target_contract import item
from replicator_testbed.applied import NAME, A, B, Control, Killed, Shop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    shop.store.close()


def kill_at(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    def crash_point(name: str) -> None:
        if name == place:
            raise Killed(place)

    monkeypatch.setattr(apply_table, "crash_point", crash_point)


def test_a_first_copy_is_appended_and_its_end_is_in_the_ledger(shop: Shop) -> None:
    shop.copy(A, 1, 2, 3)
    shop.rows(A, update(0, item(1, "log")), delete(0, item(2)))
    target = shop.target()
    seen: list[bool] = []
    apply_batch = target.apply_batch

    def spy(table: Any, batch: Any) -> Any:
        seen.append(batch.is_append)
        return apply_batch(table, batch)

    target.apply_batch = spy  # type: ignore[method-assign]
    shop.run(target)
    assert seen == [True, False]
    assert shop.names(A) == {1: "log", 3: "snapshot"}
    assert shop.applied(A).last_applied == shop.warehouse.tables[A].ledger == shop.highest(A)
    assert shop.applied(A).rows == 5
    assert shop.control.announced.count("progress") == len(shop.warehouse.history(A))


def test_a_table_is_claimed_once_per_process_and_only_if_it_has_work(shop: Shop) -> None:
    shop.copy(A, 1)
    shop.copy(B, 1)
    shop.run()
    shop.rows(A, insert(0, item(2)))
    shop.rows(A, insert(0, item(3)))
    shop.settings = replace(shop.settings, batch=BatchLimits(rows=1, bytes=1))
    target = shop.target()
    shop.run(target)
    assert target.faults.counts["claim"] == 1
    assert target.faults.counts["apply_batch"] == 2


def test_one_table_is_set_aside_and_the_others_go_on(shop: Shop) -> None:
    shop.copy(A, 1)
    shop.copy(B, 1)
    target = shop.target()
    shop.run(target)
    shop.rows(A, update(0, item(1, "refused")))
    shop.rows(B, update(0, item(1, "fine")))
    bad = shop.target()
    bad.faults.script("claim", TableError("not yours", code="not_ours", table=str(A), action="Do something."))
    shop.settings = replace(shop.settings, tables_parallel=1, max_wait_s=0.0)
    shop.run(bad)
    failing = [t for t in (A, B) if shop.applied(t).has_failed]
    assert len(failing) == 1
    error = shop.applied(failing[0]).error
    assert error is not None
    assert (error.code, error.action) == ("not_ours", "Do something.")
    (other,) = {A, B} - set(failing)
    assert shop.applied(other).last_applied == shop.highest(other)
    # A restart tries again.
    shop.run(is_done=lambda: not shop.applied(failing[0]).has_failed)
    assert shop.applied(failing[0]).error is None
    assert (shop.names(A), shop.names(B)) == ({1: "refused"}, {1: "fine"})


def test_a_table_set_aside_goes_on_with_its_next_incarnation(shop: Shop) -> None:
    shop.copy(A, 1)
    shop.run()
    shop.event(A, DDLEvent(operation=DDLOperation.ALTER_TABLE, table=A, schema=shop.schemas[A]))
    shop.commit()
    steps: Sequence[Callable[[], object]] = [
        lambda: shop.rows(A, insert(0, item(9, "too late"))),
        lambda: shop.copy(A, 1, 2),
    ]
    script = iter(steps)

    def is_done() -> bool:
        if shop.applied(A).has_failed and (step := next(script, None)) is not None:
            step()
        return shop.applied(A).incarnation == 2 and shop.applied(A).last_applied == shop.highest(A)

    shop.run(is_done=is_done)
    assert shop.names(A) == {1: "snapshot", 2: "snapshot"}
    assert not shop.applied(A).has_failed


def test_a_table_set_aside_goes_on_with_an_in_place_snapshot(shop: Shop) -> None:
    shop.copy(A, 1, 2)
    shop.run()
    shop.event(A, DDLEvent(operation=DDLOperation.ALTER_TABLE, table=A, schema=shop.schemas[A]))
    shop.rows(A, delete(0, item(2)))
    shop.run()
    assert shop.applied(A).has_failed
    assert shop.names(A) == {1: "snapshot", 2: "snapshot"}
    start = shop.start_in_place(A)
    shop.rows(A, insert(0, item(1, "read anew"), is_snapshot=True))
    shop.complete(A, start)
    shop.rows(A, insert(0, item(3, "after")))
    shop.run(is_done=lambda: shop.applied(A).last_applied == shop.highest(A))
    assert shop.names(A) == {1: "read anew", 3: "after"}
    assert not shop.applied(A).has_failed
    assert shop.applied(A).source_time is not None


def test_the_incarnation_is_recorded_before_it_is_claimed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.copy(A, 1)
    shop.run()
    shop.copy(A, 2)
    with monkeypatch.context() as patched:
        kill_at(patched, "apply.incarnation_recorded")
        with pytest.raises(Killed):
            shop.run()
    assert (shop.applied(A).incarnation, shop.applied(A).last_applied) == (2, -1)
    assert shop.warehouse.tables[A].incarnation == 1
    assert shop.names(A) == {1: "snapshot"}
    shop.run()
    assert shop.names(A) == {2: "snapshot"}


@pytest.mark.parametrize("place", ["apply.claim_recorded", "apply.claimed", "apply.batch_planned", "apply.after_unit"])
def test_killed_anywhere_nothing_is_lost_doubled_or_miscounted(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    shop.copy(A, 1, 2)
    shop.run()
    shop.rows(A, insert(0, item(3, "new")), update(0, item(1, "new")))
    with monkeypatch.context() as patched:
        kill_at(patched, place)
        with pytest.raises(Killed):
            shop.run()
    shop.run()
    assert shop.names(A) == {1: "new", 2: "snapshot", 3: "new"}
    assert shop.applied(A).rows == 4


def test_a_transient_error_ends_the_run_and_the_next_goes_on(shop: Shop) -> None:
    shop.copy(A, 1)
    shop.rows(A, insert(0, item(2)))
    target = shop.target()
    target.faults.script("apply_batch.after", TargetUnavailableError("gone", code="target_unavailable"))
    with pytest.raises(TargetUnavailableError):
        shop.run(target)
    shop.run()
    assert set(shop.names(A)) == {1, 2}
    assert shop.applied(A).rows == 2


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
    """No other epoch than that of the copy."""


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
            is_done=lambda: all(shop.applied(t).last_applied >= n for t, n in shop.store.feed_tables(NAME).items())
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
    steps = iter([shop.new_epoch, lambda: shop.rows(A, insert(0, item(3, "the successor's")))])

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


def test_a_ledger_whose_claim_an_older_version_did_not_record_is_no_proof(shop: Shop, tmp_path: Path) -> None:
    shop.copy(A, 1)
    shop.run()
    with closing(sqlite3.connect(tmp_path / "state.db")) as state, state:
        state.execute("UPDATE applied SET claimed_by = NULL")
    shop.new_epoch()
    shop.rows(A, insert(0, item(2)))
    shop.run()
    assert set(shop.names(A)) == {1, 2}
    assert shop.applied(A).claimed_by == shop.epoch


def test_a_state_store_restored_from_a_copy_that_the_target_is_not_ahead_of_goes_on(shop: Shop, tmp_path: Path) -> None:
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


def test_a_corrupt_file_is_never_applied_and_sets_its_table_aside(shop: Shop) -> None:
    shop.copy(A, 1)
    shop.run()
    shop.rows(A, insert(0, item(2)))
    (file,) = shop.files(A, after=shop.applied(A).last_applied)
    path = Path(file.uri.removeprefix("file://"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    shop.run()
    assert set(shop.names(A)) == {1}
    error = shop.applied(A).error
    assert error is not None
    assert error.code == "corrupt_segment"
    assert "replicator snapshot" in (error.action or "")


def test_a_target_set_back_behind_the_journal_needs_a_snapshot(shop: Shop) -> None:
    shop.copy(A, 1)
    shop.run()
    shop.rows(A, insert(0, item(2)))
    shop.run()
    assert Retention(shop.store, NAME, epoch=shop.epoch, keep_s=0, bytes_max=1 << 30).sweep().segments > 0
    shop.rows(A, insert(0, item(3)))
    del shop.warehouse.tables[A]
    shop.run()
    error = shop.applied(A).error
    assert error is not None
    assert error.code == "journal_gap"
    assert "snapshot" in (error.action or "")
    shop.copy(A, 1, 2, 3)
    shop.run(is_done=lambda: shop.applied(A).last_applied == shop.highest(A))
    assert set(shop.names(A)) == {1, 2, 3}


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


def test_removed_tables_are_left_alone(shop: Shop) -> None:
    shop.copy(A, 1)
    shop.copy(B, 1)
    shop.run()
    shop.rows(A, insert(0, item(2)), commit=False)
    shop.records[A] = replace(shop.records[A], stage=Stage.REMOVED)
    shop.rows(B, insert(0, item(2)))
    shop.run(is_done=lambda: shop.applied(B).last_applied == shop.highest(B))
    assert (set(shop.names(A)), set(shop.names(B))) == ({1}, {1, 2})


def test_an_idle_table_is_as_fresh_as_the_journal(shop: Shop) -> None:
    shop.copy(A, 1)
    shop.run()
    shop.commit(seconds=5_000)
    moment = START + timedelta(seconds=5_000)
    assert shop.run().progress()[A].source_time == moment
    assert shop.control.said(A).source_time == moment


def test_a_copy_that_is_not_whole_has_no_source_time(shop: Shop) -> None:
    shop.begin(A)
    shop.rows(A, insert(0, item(1), is_snapshot=True))
    shop.run()
    assert shop.applied(A).source_time is None
    shop.complete(A)
    shop.run(is_done=lambda: shop.applied(A).source_time is not None)
    assert shop.applied(A).last_applied == shop.highest(A)


def test_a_table_that_is_never_idle_has_a_source_time_after_a_crash_behind_its_copy(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.copy(A, 1)

    def crash_point(name: str) -> None:
        if name == "apply.after_unit" and shop.warehouse.tables[A].ledger == shop.highest(A):
            raise Killed(name)

    with monkeypatch.context() as patched:
        patched.setattr(apply_table, "crash_point", crash_point)
        with pytest.raises(Killed):
            shop.run()
    assert shop.applied(A).last_applied < shop.highest(A)
    target = shop.target()
    apply_batch = target.apply_batch
    times = []

    def busy(table: Any, batch: Any) -> Any:
        times.append(shop.applied(A).source_time)
        if len(times) < 4:
            shop.rows(A, insert(0, item(1 + len(times))))
        return apply_batch(table, batch)

    target.apply_batch = busy  # type: ignore[method-assign]
    shop.rows(A, update(0, item(1, "log")))
    shop.run(target)
    assert len(times) == 4
    assert times[0] is None
    assert None not in times[2:]


def test_upkeep_comes_when_nothing_is_to_be_applied_and_at_times_between(shop: Shop) -> None:
    shop.settings = replace(shop.settings, maintain_every=1000, maintain_idle=2)
    shop.copy(A, 1)
    target = shop.target()
    shop.run(target, is_done=lambda: shop.is_done() and target.faults.counts["maintain"] == 1)
    shop.settings = replace(shop.settings, maintain_every=2, maintain_idle=1000, batch=BatchLimits(rows=1, bytes=1))
    for n in range(2, 8):
        shop.rows(A, insert(0, item(n)))
    target = shop.target()
    shop.run(target)
    assert target.faults.counts["maintain"] == 3


def test_a_table_that_had_too_few_commits_in_every_process_is_looked_after_too(shop: Shop) -> None:
    shop.settings = replace(shop.settings, maintain_every=1000, maintain_idle=1000)
    shop.copy(A, 1)
    for number in range(2, 5):
        shop.rows(A, insert(0, item(number)))
        target = shop.target()
        shop.run(target, is_done=lambda: shop.is_done() and target.faults.counts["maintain"] == 1)  # noqa: B023


def test_options_reach_the_target(shop: Shop) -> None:
    shop.settings = replace(shop.settings, options=lambda table: TableOptions(deletes="soft" if table == A else "hard"))
    for table in (A, B):
        shop.copy(table, 1)
        shop.rows(table, delete(0, item(1)))
    shop.run()
    assert [row.is_deleted for row in shop.warehouse.tables[A].rows] == [True]
    assert shop.warehouse.tables[B].rows == []


def test_a_transaction_is_never_split_however_small_the_limits(shop: Shop) -> None:
    shop.settings = replace(shop.settings, batch=BatchLimits(rows=1, bytes=1), feed_items=1)
    shop.copy(A, 1)
    shop.writer.close()
    shop.writer = JournalWriter(
        shop.store, name=NAME, epoch=shop.epoch, uri=shop.uri, limits=WriterLimits(segment_rows=1)
    )
    for n in range(2, 8):
        shop.rows(A, insert(0, item(n)), commit=False)
    shop.commit()
    assert len(shop.files(A, after=3)) > 3
    shop.run()
    states = [entry.state for entry in shop.warehouse.history(A)]
    whole = state_of(shop.schemas[A], [item(1, "snapshot"), *[item(n) for n in range(2, 8)]])
    assert states[-1] == whole
    assert sum(states[-2].values()) == 1


def test_stopping_leaves_a_clean_point(shop: Shop) -> None:
    shop.copy(A, 1)
    shop.run(is_done=lambda: True)
    shop.run()
    assert shop.names(A) == {1: "snapshot"}


def test_a_table_that_the_target_wants_to_rest_waits_while_others_go_on(shop):
    class Resting(MemoryTarget):
        def rest_s(self, table: TableId, *, is_behind: bool) -> float:
            return 60.0 if table == A else 0.0

    shop.copy(A, 1, 2)
    shop.copy(B, 1, 2)
    context = TargetContext(replicator=NAME, uuid=shop.uuid, epoch=shop.epoch)
    resting = Resting(MemoryTargetConfig(database=shop.place), context)
    shop.run(resting, is_done=lambda: B in shop.store.applied(NAME) and shop.applied(B).last_applied == shop.highest(B))
    assert shop.names(B) == {1: "snapshot", 2: "snapshot"}
    assert A not in shop.store.applied(NAME)
    shop.rows(A, insert(0, item(3, "later")))
    shop.run()
    assert shop.names(A) == {1: "snapshot", 2: "snapshot", 3: "later"}


def test_a_table_that_is_behind_says_so_to_the_target(shop):
    asked: list[bool] = []

    class Asked(MemoryTarget):
        def rest_s(self, table: TableId, *, is_behind: bool) -> float:
            asked.append(is_behind)
            return 0.0

    shop.settings = replace(shop.settings, batch=BatchLimits(rows=1, bytes=1 << 30), tables_parallel=1)
    shop.copy(A, 1)
    for number in range(2, 6):
        shop.rows(A, insert(0, item(number, "more")))
    context = TargetContext(replicator=NAME, uuid=shop.uuid, epoch=shop.epoch)
    shop.run(Asked(MemoryTargetConfig(database=shop.place), context))
    assert True in asked
    assert len(shop.names(A)) == 5


@dataclass
class Steps:
    """Waits a minute, as often as it is allowed to; notes when it was asked."""

    allowed: int = 3
    asked: list[float] = field(default_factory=list)
    at_limit: int = 0

    def delay(self, now: float) -> float | None:
        self.asked.append(now)
        return 60.0 if len(self.asked) <= self.allowed else None

    def delay_at_limit(self) -> float:
        self.at_limit += 1
        return 60.0


@dataclass
class Minutes:
    """A clock that goes on by ten seconds with every look."""

    step_s: float = 10.0
    now: float = 0.0

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now


def failing(target: MemoryTarget, error: Callable[[TableId], Exception | None]) -> list[TableId]:
    """Let the target refuse batches; the tables whose batches came, in order."""
    apply_batch, came = target.apply_batch, []

    def refuse(claimed: Any, batch: Any) -> Any:
        came.append(claimed.table)
        if found := error(claimed.table):
            raise found
        return apply_batch(claimed, batch)

    target.apply_batch = refuse  # type: ignore[method-assign]
    return came


def throttled(target: MemoryTarget, table: TableId, times: int, **how: Any) -> list[TableId]:
    """Let the target refuse batches of one table; the tables whose batches came, in order."""

    def error(asked: TableId) -> Exception | None:
        if asked != table or came.count(table) > times:
            return None
        return ThrottledError("slower", code="target_throttled", table=str(table), **how)

    came = failing(target, error)
    return came


def broken(asked: TableId) -> TargetUnavailableError:
    """What a service says that fails at a request."""
    return TargetUnavailableError("failed", code="target_unreachable", table=str(asked))


def test_a_throttled_table_waits_alone_and_is_claimed_again(shop: Shop) -> None:
    steps = Steps()
    shop.settings = replace(shop.settings, patience=lambda: steps, tables_parallel=1)
    for table in (A, B):
        shop.copy(table, 1)
    target = shop.target()
    came = throttled(target, A, times=2)

    def is_told() -> bool:
        reports = shop.control.reports
        return bool(reports) and str(A) in reports[-1].tables and shop.control.said(A).waiting is None

    shop.run(target, clock=Minutes(), is_done=lambda: shop.is_done() and is_told())
    assert (shop.names(A), shop.names(B)) == ({1: "snapshot"}, {1: "snapshot"})
    assert came.count(A) == 3
    assert came.index(B) < len(came) - 1, "the other one goes on meanwhile"
    assert target.faults.counts["claim"] == 1 + 3
    assert steps.asked[1] - steps.asked[0] >= 60
    (waiting, *_) = shop.control.waits_of(A)
    assert (waiting.code, waiting.message) == ("target_throttled", f"{A}: slower")
    assert 0 <= waiting.retry_in_s <= 60
    assert shop.control.said(A).waiting is None


def test_a_table_rests_as_long_as_the_target_asks(shop: Shop) -> None:
    steps = Steps()
    shop.settings = replace(shop.settings, patience=lambda: steps)
    shop.copy(A, 1)
    target = shop.target()
    throttled(target, A, times=2, rest_s=500.0)
    shop.run(target, clock=Minutes())
    assert steps.asked[1] - steps.asked[0] >= 500
    assert shop.names(A) == {1: "snapshot"}


def test_a_table_that_fails_for_too_long_is_set_aside_alone_and_tried_again_by_the_next_process(shop: Shop) -> None:
    shop.settings = replace(shop.settings, patience=lambda: Steps(allowed=2), tables_parallel=1)
    for table in (A, B):
        shop.copy(table, 1)
    target = shop.target()
    came = throttled(target, A, times=100)
    shop.run(target, clock=Minutes())
    error = shop.applied(A).error
    assert error is not None
    assert (error.code, "gave up" in error.message, f"pause {NAME}" in (error.action or "")) == (
        "target_throttled", True, True,
    )  # fmt: skip
    assert (came.count(A), shop.names(A), shop.names(B)) == (3, {}, {1: "snapshot"})
    shop.run(is_done=lambda: shop.applied(A).last_applied >= shop.highest(A))
    assert shop.names(A) == {1: "snapshot"}
    assert (shop.applied(A).has_failed, shop.applied(A).error) == (False, None)


def test_a_copy_in_place_whose_rows_fail_for_too_long_is_not_taken_for_a_way_on(shop: Shop) -> None:
    """Its beginning lies between the ledger and the rows; a copy that begins later is a way on."""
    shop.settings = replace(shop.settings, patience=lambda: Steps(allowed=1))
    shop.copy(A, 1)
    shop.run()
    start = shop.start_in_place(A)
    shop.rows(A, insert(0, item(1, "again"), is_snapshot=True), commit=False)
    shop.complete(A, start)
    target = shop.target()
    came = throttled(target, A, times=100)
    shop.run(target, clock=Minutes(), is_done=lambda: shop.applied(A).has_failed)
    assert (came.count(A), shop.names(A)) == (2, {1: "snapshot"})
    start = shop.start_in_place(A)
    shop.rows(A, insert(0, item(1, "later"), is_snapshot=True), commit=False)
    shop.complete(A, start)
    target = shop.target()
    throttled(target, A, times=2)
    shop.run(target, clock=Minutes(), is_done=lambda: shop.applied(A).last_applied >= shop.highest(A))
    assert (shop.names(A), shop.applied(A).has_failed) == ({1: "later"}, False)


def test_a_table_at_which_the_target_fails_waits_alone_while_others_go_on(shop: Shop) -> None:
    steps = Steps()
    shop.settings = replace(shop.settings, patience=lambda: steps, tables_parallel=1)
    for table in (A, B):
        shop.copy(table, 1)
    target = shop.target()
    came = failing(target, lambda asked: broken(asked) if asked == A and came.count(A) <= 3 else None)
    shop.run(target, clock=Minutes())
    assert (shop.names(A), shop.names(B)) == ({1: "snapshot"}, {1: "snapshot"})
    assert (came.count(A), came.index(B)) == (4, 1), "the other one does not wait for it"
    assert all(later - earlier >= 60 for earlier, later in pairwise(steps.asked))
    waits = shop.control.waits_of(A)
    assert waits[0].code == "target_unreachable"


def test_a_table_at_which_the_target_fails_for_too_long_is_set_aside_while_others_go_on(shop: Shop) -> None:
    shop.settings = replace(shop.settings, patience=lambda: Steps(allowed=3), tables_parallel=1)
    for table in (A, B):
        shop.copy(table, 1)
    target = shop.target()
    came = failing(target, lambda asked: broken(asked) if asked == A else None)
    shop.run(target, clock=Minutes())
    error = shop.applied(A).error
    assert error is not None
    assert (error.code, "gave up" in error.message, came.count(A)) == ("target_unreachable", True, 4)
    assert shop.names(B) == {1: "snapshot"}


def test_a_target_that_fails_at_every_table_ends_the_run_at_the_second_attempt(shop: Shop) -> None:
    steps = Steps()
    shop.settings = replace(shop.settings, patience=lambda: steps, tables_parallel=1)
    for table in (A, B):
        shop.copy(table, 1)
    target = shop.target()
    came = failing(target, broken)
    with pytest.raises(TargetUnavailableError):
        shop.run(target, clock=Minutes())
    assert sorted(came.count(table) for table in (A, B)) == [1, 2]
    shop.run()
    assert (shop.names(A), shop.names(B)) == ({1: "snapshot"}, {1: "snapshot"})


def test_upkeep_that_fails_is_put_off_and_holds_up_nothing(shop: Shop) -> None:
    shop.settings = replace(shop.settings, maintain_every=1, patience=lambda: Steps(allowed=0))
    shop.copy(A, 1)
    target = shop.target()
    asked: list[TableId] = []

    def refuse(claimed: Any) -> None:
        asked.append(claimed.table)
        raise broken(claimed.table)

    target.maintain = refuse  # type: ignore[method-assign]
    shop.run(target)
    shop.rows(A, insert(0, item(2, "more")))
    shop.run(target)
    assert (shop.names(A), shop.applied(A).error) == ({1: "snapshot", 2: "more"}, None)
    assert set(asked) == {A}


def test_a_target_that_is_away_for_no_table_in_particular_ends_the_run_at_once(shop: Shop) -> None:
    shop.settings = replace(shop.settings, patience=Steps)
    shop.copy(A, 1)
    target = shop.target()
    came = failing(target, lambda _: TargetUnavailableError("Spark's JVM has died.", code="spark_lost"))
    with pytest.raises(TargetUnavailableError):
        shop.run(target, clock=Minutes())
    assert came == [A]


def test_a_target_that_goes_away_later_is_not_taken_for_a_table_s_own_trouble(shop: Shop) -> None:
    """What others did before the table failed says nothing."""
    shop.settings = replace(shop.settings, patience=Steps, tables_parallel=1)
    for table in (A, B):
        shop.copy(table, 1)
    shop.run()
    shop.rows(B, insert(0, item(2, "more")))
    shop.rows(A, insert(0, item(2, "more")))
    target = shop.target()
    came = failing(target, lambda asked: broken(asked) if asked == A or came.count(A) else None)
    with pytest.raises(TargetUnavailableError):
        shop.run(target, clock=Minutes())
    assert came.count(A) <= 2


def test_a_limit_is_waited_for_without_end_and_uses_up_no_patience(shop: Shop) -> None:
    steps = Steps(allowed=0)
    shop.settings = replace(shop.settings, patience=lambda: steps)
    shop.copy(A, 1)
    target = shop.target()
    came = throttled(target, A, times=20, rest_s=86_400.0, is_limit=True)
    shop.run(target, clock=Minutes(step_s=3600.0))
    assert (came.count(A), steps.at_limit, steps.asked) == (21, 20, [])
    assert shop.names(A) == {1: "snapshot"}
    waits = shop.control.waits_of(A)
    assert max(w.retry_in_s for w in waits) > 43_200
    assert shop.applied(A).error is None


def test_a_batch_that_a_limit_has_no_room_for_is_halved_first(shop: Shop) -> None:
    shop.settings = replace(shop.settings, patience=Steps)
    shop.copy(A, 1)
    shop.run()
    for number in range(2, 6):
        shop.rows(A, insert(0, item(number, "more")))
    target = shop.target()
    apply_batch, came = target.apply_batch, []

    def refuse(claimed: Any, batch: Any) -> Any:
        came.append(batch.rows)
        if batch.rows > 1 or came.count(1) == 1:
            raise ThrottledError("dear", code="too_dear", table=str(A), is_limit=True, may_halve=True)
        return apply_batch(claimed, batch)

    target.apply_batch = refuse  # type: ignore[method-assign]
    shop.run(target, clock=Minutes())
    assert came == [4, 2, 1, 1, 1, 1, 1]
    assert len(shop.names(A)) == 5


def test_each_success_begins_a_new_budget(shop: Shop) -> None:
    made: list[Steps] = []

    def patience() -> Steps:
        made.append(Steps(allowed=1))
        return made[-1]

    shop.settings = replace(shop.settings, patience=patience)
    shop.copy(A, 1)
    target = shop.target()
    throttled(target, A, times=1)
    shop.run(target, clock=Minutes())
    shop.rows(A, insert(0, item(2, "more")))
    throttled(target, A, times=1)
    shop.run(target, clock=Minutes())
    assert shop.names(A) == {1: "snapshot", 2: "more"}
    assert [len(steps.asked) for steps in made] == [1, 1]


def test_a_way_on_that_is_throttled_is_found_again(shop: Shop) -> None:
    shop.settings = replace(shop.settings, patience=Steps)
    shop.copy(A, 1)
    target = shop.target()
    target.faults.script("apply_batch", TableError("refused", code="refused", table=str(A)))
    shop.run(target)
    assert shop.applied(A).has_failed
    start = shop.start_in_place(A)
    shop.rows(A, insert(0, item(1, "again"), is_snapshot=True), commit=False)
    shop.complete(A, start)
    advance, times = target.advance, []

    def refuse(*arguments: Any) -> None:
        times.append(1)
        if len(times) == 1:
            raise ThrottledError("slower", code="target_throttled", table=str(A))
        advance(*arguments)

    target = shop.target()
    target.faults.script("apply_batch", TableError("refused", code="refused", table=str(A)))
    target.advance = refuse  # type: ignore[method-assign]
    shop.run(target, clock=Minutes(), is_done=lambda: shop.applied(A).last_applied >= shop.highest(A))
    assert (len(times), shop.names(A)) == (2, {1: "again"})


def refuses_more_than(target: MemoryTarget, rows: int) -> list[int]:
    """Let the target take batches of so many rows at most; the sizes of those that came."""
    apply_batch, came = target.apply_batch, []

    def refuse(claimed: Any, batch: Any) -> Any:
        came.append(batch.rows)
        if batch.rows > rows:
            raise BatchTooLargeError("no room", code="batch_too_large", table=str(claimed.table))
        return apply_batch(claimed, batch)

    target.apply_batch = refuse  # type: ignore[method-assign]
    return came


def test_batches_are_cut_until_the_target_takes_them(shop: Shop) -> None:
    shop.copy(A, 1)
    shop.run()
    for number in range(2, 18):
        shop.rows(A, insert(0, item(number, "more")))
    target = shop.target()
    came = refuses_more_than(target, 3)
    shop.run(target)
    assert came[:3] == [16, 8, 4]
    assert (max(came[3:]), sum(came[3:])) == (2, 16)
    assert len(shop.names(A)) == 17


def test_a_transaction_that_is_too_large_sets_its_table_aside(shop: Shop) -> None:
    for table in (A, B):
        shop.copy(table, 1)
    shop.run()
    shop.rows(A, insert(0, item(2, "before")))
    shop.rows(A, *[insert(0, item(number, "large")) for number in range(3, 20)])
    shop.rows(B, insert(0, item(2, "other")))
    target = shop.target()
    came = refuses_more_than(target, 5)
    shop.run(target)
    assert sorted(came) == [1, 1, 17, 18]
    assert (shop.names(A), shop.names(B)) == ({1: "snapshot", 2: "before"}, {1: "snapshot", 2: "other"})
    error = shop.applied(A).error
    assert shop.applied(A).has_failed
    assert error is not None
    assert error.code == "batch_too_large"


def test_a_table_that_grows_during_its_batch_rests_all_the_same(shop: Shop) -> None:
    class Resting(MemoryTarget):
        batches = 0

        def rest_s(self, table: TableId, *, is_behind: bool) -> float:
            return 60.0 if self.batches else 0.0

    shop.copy(A, 1)
    context = TargetContext(replicator=NAME, uuid=shop.uuid, epoch=shop.epoch)
    target = Resting(MemoryTargetConfig(database=shop.place), context)
    apply_batch = target.apply_batch

    def slow(claimed: Any, batch: Any) -> Any:
        shop.rows(A, insert(0, item(2, "meanwhile")))
        while shop.control.looked.acquire(blocking=False):
            pass
        for _ in range(2):
            assert shop.control.looked.acquire(timeout=60)
        result = apply_batch(claimed, batch)
        target.batches += 1
        return result

    target.apply_batch = slow  # type: ignore[method-assign]
    looked: list[int] = []

    def is_done() -> bool:
        looked.append(target.batches)
        return looked.count(1) > 20

    shop.run(target, is_done=is_done)
    assert target.batches == 1
    assert shop.control.said(A).waiting == WaitingReport(retry_in_s=60.0, code=None, message=None)


def test_a_table_that_rests_since_an_earlier_process_rests_on_once_it_is_claimed(shop: Shop) -> None:
    class Remembering(MemoryTarget):
        rest = 0.0
        asked: list[bool]

        def claim(self, table: Any) -> Any:
            self.rest = 60.0
            return super().claim(table)

        def rest_s(self, table: TableId, *, is_behind: bool) -> float:
            self.asked.append(is_behind)
            return self.rest

    shop.copy(A, 1)
    shop.run()
    shop.settings = replace(shop.settings, batch=BatchLimits(rows=1, bytes=1 << 30))
    for number in (2, 3):
        shop.rows(A, insert(0, item(number, "new")))
    context = TargetContext(replicator=NAME, uuid=shop.uuid, epoch=shop.epoch)
    target = Remembering(MemoryTargetConfig(database=shop.place), context)
    target.asked = []
    shop.run(target, is_done=lambda: target.rest > 0 and target.asked.count(True) > 3)
    assert (target.faults.counts["claim"], target.faults.counts["apply_batch"]) == (1, 0)
    target.claim = super(Remembering, target).claim  # type: ignore[method-assign]
    target.rest = 0.0
    shop.run(target)
    assert set(shop.names(A)) == {1, 2, 3}


def test_a_batch_says_how_far_it_reaches_in_the_log_of_the_source(shop: Shop) -> None:
    shop.copy(A, 1)
    shop.run()
    for number in (2, 3):
        shop.rows(A, insert(0, item(number, "new")), commit=False)
        shop.writer.commit(offset=Offset.of({"place": number}), source_time=START, tables=list(shop.records.values()))
    target = shop.target()
    apply_batch, positions = target.apply_batch, []

    def note(claimed: Any, batch: Any) -> Any:
        positions.append(batch.source_position)
        return apply_batch(claimed, batch)

    target.apply_batch = note  # type: ignore[method-assign]
    shop.run(target)
    assert positions == ['{"place":3}']


def test_a_small_table_that_has_rested_goes_before_a_larger_one(shop: Shop) -> None:
    """What it rests for the target's sake it has waited; it does not wait as long again for a thread."""
    now = [0.0]
    shop.settings = replace(shop.settings, tables_parallel=1, max_wait_s=300.0)
    for table in (A, B):
        shop.copy(table, 1)
    target = shop.target()
    target.rest_s = lambda table, **_: max(0.0, 300.0 - now[0]) if table == B else 0.0  # type: ignore[method-assign]
    apply = Apply(
        target,
        shop.store,
        JournalReader(shop.store, NAME),
        name=NAME,
        uuid=shop.uuid,
        epoch=shop.epoch,
        settings=shop.settings,
        clock=lambda: now[0],
    )
    control = Control(shop.is_done)

    def turn() -> TableId:
        taken = apply._schedule.take(now[0])
        assert taken is not None
        apply._take_turn(taken, control)
        apply._end_turn(taken)
        return taken.table

    apply._remember()
    apply._poll()
    while apply._tables[A].looked_to < shop.highest(A):
        assert turn() == A
    now[0] = 200.0
    for number in range(2, 20):
        shop.rows(A, insert(0, item(number, "more")))
    apply._poll()
    now[0] = 310.0
    apply._poll()
    assert [turn(), turn()] == [B, A]


def start_in_place_after_a_gap(shop: Shop) -> None:
    """Capture set the table aside and missed changes; a snapshot in place makes up for them."""
    shop.copy(A, 1, 2)
    shop.run()
    shop.records[A] = replace(shop.records[A], stage=Stage.FAILED)
    shop.commit()
    shop.start_in_place(A)
    shop.rows(A, insert(0, item(9, "copied"), is_snapshot=True))


@pytest.mark.parametrize("place", [None, "apply.after_unit"])
def test_a_copy_that_has_begun_is_not_called_whole_after_a_kill(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, place: str | None
) -> None:
    start_in_place_after_a_gap(shop)
    if place is not None:
        with monkeypatch.context() as patched:
            kill_at(patched, place)
            with pytest.raises(Killed):
                shop.run(is_done=lambda: False)
    shop.rows(A, insert(0, item(10, "log")))
    progress = shop.run().progress()[A]
    assert (progress.is_complete, progress.source_time) == (False, None)
    assert shop.applied(A).source_time is None
    shop.complete(A, shop.records[A].snapshot.start_number)  # type: ignore[union-attr]
    progress = shop.run().progress()[A]
    assert progress.is_complete
    assert shop.names(A) == {9: "copied", 10: "log"}


def test_a_kill_on_the_way_to_a_copy_leaves_the_table_without_freshness(shop: Shop) -> None:
    shop.copy(A, 1)
    shop.run()
    shop.event(A, DDLEvent(operation=DDLOperation.ALTER_TABLE, table=A, schema=shop.schemas[A]))
    shop.run()
    shop.rows(A, update(0, item(1, "lost")))
    shop.rows(A, insert(0, item(3, "log")))
    shop.start_in_place(A)
    shop.commit()
    target = shop.target()
    advance = target.advance

    def kill(*args: Any) -> None:
        advance(*args)
        raise Killed

    target.advance = kill  # type: ignore[method-assign]
    with pytest.raises(Killed):
        shop.run(target, is_done=lambda: False)
    assert shop.applied(A).source_time is None


def test_a_table_that_capture_does_not_follow_gets_no_fresher(shop: Shop) -> None:
    for table in (A, B):
        shop.copy(table, 1)
    shop.run()
    shop.rows(A, insert(0, item(2, "last")))
    shop.records[A] = replace(shop.records[A], stage=Stage.FAILED)
    before = shop.applied(A).source_time
    shop.commit(seconds=1000)
    assert shop.run(is_done=lambda: True).progress()[A].source_time == before
    progress = shop.run().progress()
    assert shop.names(A) == {1: "snapshot", 2: "last"}
    assert progress[A].source_time == before
    assert progress[B].source_time == START + timedelta(seconds=1000)


def test_a_dropped_beginning_of_an_incarnation_sets_its_table_aside(shop: Shop) -> None:
    for table in (A, B):
        shop.copy(table, 1)
    shop.run()
    refused = shop.target()
    refused.faults.script("apply_batch", TableError("refused", code="schema_conflict", table=str(A)))
    shop.rows(A, insert(0, item(5)))
    shop.run(refused)
    shop.copy(A, 1, 2)
    shop.rows(A, insert(0, item(6)))
    swept = Retention(shop.store, NAME, epoch=shop.epoch, keep_s=0, bytes_max=1).sweep()
    assert [record.table for record in swept.given_up] == [A]
    shop.records[A] = swept.given_up[0]
    shop.rows(A, insert(0, item(7)))
    shop.rows(B, insert(0, item(7)))
    for _ in range(2):
        shop.run(is_done=lambda: shop.is_done() and shop.applied(A).has_failed)
    error = shop.applied(A).error
    assert error is not None
    assert (error.code, "--recreate" in (error.action or "")) == ("journal_gap", True)
    assert set(shop.names(B)) == {1, 7}
    shop.copy(A, 3)
    shop.run(is_done=lambda: shop.applied(A).last_applied == shop.highest(A))
    assert set(shop.names(A)) == {3}


def test_a_target_that_was_set_back_is_fresh_only_once_it_has_everything_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.copy(A, 1)
    shop.run()
    older = deepcopy(shop.warehouse.tables[A])
    shop.rows(A, insert(0, item(2)))
    shop.run()
    shop.warehouse.tables[A] = older
    shop.rows(A, insert(0, item(3)))
    with monkeypatch.context() as patched:
        kill_at(patched, "apply.batch_planned")
        with pytest.raises(Killed):
            shop.run()
    assert shop.applied(A).source_time is None
    shop.run()
    assert set(shop.names(A)) == {1, 2, 3}
    shop.run(is_done=lambda: shop.applied(A).source_time is not None)

"""What the apply loop does with the journal in order, and when something in it is not as it should be."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from replicator.apply import BatchLimits
from replicator.journal import JournalWriter, Retention
from replicator.model.counts import CounterName
from replicator.model.errors import (
    TableError,
    TargetUnavailableError,
)
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.offset import Offset
from replicator.plugins.target import Batch, BatchResult, TableOptions, TargetTable
from replicator.state.records import Stage, TargetCopy
from replicator_testbed.journals.applied import NAME, A, B, Killed, Shop, kill_at
from replicator_testbed.journals.scripted import START
from replicator_testing.batches import delete, insert, update
from replicator_testing.defaults import writer_limits
from replicator_testing.memory import state_of
from replicator_testing.target_harness import item


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
    assert (shop.applied(A).rows, shop.applied(A).snapshot_rows) == (5, 3)
    assert shop.control.announced.count("progress") == len(shop.warehouse.history(A))


def test_batches_are_counted_once_also_if_a_crash_repeats_them(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.copy(A, 1, 2, 3)
    shop.run()
    before = sum(shop.store.counters(NAME)[CounterName.BATCH_ROWS, (bound,)] for bound in ("1", "10"))
    assert before == 1
    shop.rows(A, insert(0, item(4)))
    with monkeypatch.context() as patched:
        kill_at(patched, "apply.batch_planned")
        with pytest.raises(Killed):
            shop.run()
    shop.run()
    shop.run()
    assert shop.names(A).keys() == {1, 2, 3, 4}
    counts = shop.store.counters(NAME)
    assert (counts[CounterName.BATCH_ROWS, ("1",)], counts[CounterName.BATCH_ROWS, ("10",)]) == (1, 1)
    assert counts[CounterName.BATCH_ROWS_SUM, ()] == 4


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


def test_one_table_fails_and_the_others_continue(shop: Shop) -> None:
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


def test_a_failed_table_continues_with_its_next_incarnation(shop: Shop) -> None:
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


def test_a_failed_table_continues_with_an_in_place_snapshot(shop: Shop) -> None:
    shop.copy(A, 1, 2)
    shop.run()
    shop.event(A, DDLEvent(operation=DDLOperation.ALTER_TABLE, table=A, schema=shop.schemas[A]))
    shop.rows(A, delete(0, item(2)))
    shop.run()
    assert shop.applied(A).has_failed
    assert shop.names(A) == {1: "snapshot", 2: "snapshot"}
    start = shop.start_in_place(A)
    shop.rows(A, insert(0, item(1, "read again"), is_snapshot=True))
    shop.complete(A, start)
    shop.rows(A, insert(0, item(3, "after")))
    shop.run(is_done=lambda: shop.applied(A).last_applied == shop.highest(A))
    assert shop.names(A) == {1: "read again", 3: "after"}
    assert not shop.applied(A).has_failed
    assert shop.reached(A) is not None


def test_readers_see_the_old_table_until_the_new_one_is_complete(shop: Shop) -> None:
    shop.copy(A, 1, 2)
    shop.run()
    shop.begin(A)
    shop.rows(A, insert(0, item(1, "rebuilt"), is_snapshot=True))
    shop.rows(A, update(0, item(1, "changed")))
    shop.run()
    assert shop.names(A) == {1: "snapshot", 2: "snapshot"}
    assert (shop.applied(A).copy, shop.reached(A)) == (TargetCopy.SNAPSHOT, None)
    shop.complete(A)
    shop.rows(A, insert(0, item(3, "after")))
    target = shop.target()
    target.faults.script("publish.after", TargetUnavailableError("away", code="target_busy"))
    with pytest.raises(TargetUnavailableError):
        shop.run(target)
    shop.run()
    assert shop.names(A) == {1: "changed", 3: "after"}
    assert shop.applied(A).copy is TargetCopy.WHOLE
    seen = [tuple(sorted(row[0] for row in entry.state)) for entry in shop.warehouse.history(A)]
    assert [ids for ids, _ in itertools.groupby(seen)] == [(), (1, 2), (1,), (1, 3)]


def test_a_rebuild_that_fails_leaves_the_old_table_and_a_snapshot_in_place_completes_it(shop: Shop) -> None:
    shop.copy(A, 1, 2)
    shop.run()
    shop.begin(A)
    shop.event(A, DDLEvent(operation=DDLOperation.ALTER_TABLE, table=A, schema=shop.schemas[A]))
    shop.rows(A, insert(0, item(1, "lost"), is_snapshot=True))
    shop.run()
    assert shop.applied(A).has_failed
    assert shop.names(A) == {1: "snapshot", 2: "snapshot"}
    start = shop.start_in_place(A)
    shop.rows(A, insert(0, item(1, "read again"), is_snapshot=True))
    shop.run(is_done=lambda: shop.applied(A).last_applied == shop.highest(A))
    assert shop.names(A) == {1: "snapshot", 2: "snapshot"}
    shop.complete(A, start)
    shop.run(is_done=lambda: shop.applied(A).last_applied == shop.highest(A))
    assert shop.names(A) == {1: "read again"}
    assert shop.applied(A).copy is TargetCopy.WHOLE


@pytest.mark.parametrize("operation", ["read_ledger", "claim", "audit", "apply_ddl", "apply_batch"])
@pytest.mark.parametrize("incarnation", [1, 2])
def test_a_table_that_failed_before_it_was_created_continues_with_an_in_place_snapshot(
    shop: Shop, operation: str, incarnation: int
) -> None:
    """In the same process; a new one tries again what failed."""
    for _ in range(1, incarnation):
        shop.copy(A, 7)
        shop.run()
    shop.copy(A, 1, 2)
    target = shop.target()
    target.faults.fail(operation, A, lambda: TableError("no", code="schema_conflict", table=str(A)))

    def come_back() -> None:
        target.faults.heal()
        start = shop.start_in_place(A)
        shop.rows(A, insert(0, item(1, "read again"), is_snapshot=True))
        shop.complete(A, start)
        shop.rows(A, insert(0, item(3, "after")))

    script = [come_back]

    def is_done() -> bool:
        has_failed = A in shop.store.applied(NAME) and shop.applied(A).has_failed
        if has_failed and script:
            script.pop()()
        return not script and not has_failed and shop.applied(A).last_applied == shop.highest(A)

    shop.run(target, is_done=is_done)
    assert shop.names(A) == {1: "read again", 3: "after"}


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


@pytest.mark.parametrize("point", ["apply.claim_recorded", "apply.claimed", "apply.batch_planned", "apply.after_unit"])
def test_killed_anywhere_nothing_is_lost_doubled_or_miscounted(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    shop.copy(A, 1, 2)
    shop.run()
    shop.rows(A, insert(0, item(3, "new")), update(0, item(1, "new")))
    with monkeypatch.context() as patched:
        kill_at(patched, point)
        with pytest.raises(Killed):
            shop.run()
    shop.run()
    assert shop.names(A) == {1: "new", 2: "snapshot", 3: "new"}
    assert shop.applied(A).rows == 4


def test_a_transient_error_ends_the_run_and_the_next_continues(shop: Shop) -> None:
    shop.copy(A, 1)
    shop.rows(A, insert(0, item(2)))
    target = shop.target()
    target.faults.script("apply_batch.after", TargetUnavailableError("gone", code="target_unavailable"))
    with pytest.raises(TargetUnavailableError):
        shop.run(target)
    shop.run()
    assert set(shop.names(A)) == {1, 2}
    assert shop.applied(A).rows == 2


def test_a_corrupt_file_is_never_applied_and_fails_its_table(shop: Shop) -> None:
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


def test_removed_tables_are_left_alone(shop: Shop) -> None:
    shop.copy(A, 1)
    shop.copy(B, 1)
    shop.run()
    shop.rows(A, insert(0, item(2)), commit=False)
    shop.records[A] = replace(shop.records[A], stage=Stage.REMOVED)
    shop.rows(B, insert(0, item(2)))
    shop.run(is_done=lambda: shop.applied(B).last_applied == shop.highest(B))
    assert (set(shop.names(A)), set(shop.names(B))) == ({1}, {1, 2})


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
        shop.store, name=NAME, epoch=shop.epoch, uri=shop.uri, limits=writer_limits(segment_rows=1)
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


def test_a_batch_says_how_far_it_reaches_in_the_log_of_the_source(shop: Shop) -> None:
    shop.copy(A, 1)
    shop.run()
    for number in (2, 3):
        shop.rows(A, insert(0, item(number, "new")), commit=False)
        shop.writer.commit(
            offset=Offset.of({"position": number}), source_time=START, tables=list(shop.records.values())
        )
    target = shop.target()
    apply_batch, positions = target.apply_batch, []

    def note(table: TargetTable, batch: Batch) -> BatchResult:
        positions.append(batch.source_position)
        return apply_batch(table, batch)

    target.apply_batch = note  # type: ignore[method-assign]
    shop.run(target)
    assert positions == ['{"position":3}']


def test_a_dropped_beginning_of_an_incarnation_fails_its_table(shop: Shop) -> None:
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

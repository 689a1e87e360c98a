"""An engine that crashes: what it worked on is applied alone, in smaller batches, and fails alone if it crashes the engine even then."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from replicator.apply.plan import BatchLimits
from replicator.model.errors import TargetCrashedError, ThrottledError
from replicator.model.schema import TableId
from replicator.plugins.target import Batch, BatchResult, TargetTable
from replicator.state.records import AppliedRecord
from replicator_testbed.journals.applied import NAME, A, B, Shop
from replicator_testing.batches import insert
from replicator_testing.defaults import target_context
from replicator_testing.memory import MemoryTarget, MemoryTargetConfig
from replicator_testing.target_harness import item, items_schema

C = TableId("shop", "c")


def died() -> TargetCrashedError:
    return TargetCrashedError("Spark's JVM has died.", code="spark_lost")


def run_again_and_again(shop: Shop, make: Callable[[], MemoryTarget], is_done: Callable[[], bool] | None = None) -> int:
    """As the supervisor does: a new process after each crash. Returns the number of crashes."""
    for crashes in range(30):
        try:
            shop.run(make(), is_done=is_done)
        except TargetCrashedError:
            continue
        return crashes
    raise AssertionError("it crashes again and again")


@pytest.fixture
def three(shop: Shop) -> Shop:
    shop.schemas[C] = items_schema(table=C)
    for table in (A, B, C):
        shop.copy(table, 1)
    return shop


def crashing(shop: Shop, operation: str, *tables: TableId) -> Callable[[], MemoryTarget]:
    """Makes targets whose engine crashes whenever the operation is about these tables."""

    def make() -> MemoryTarget:
        target = shop.target()
        for table in tables:
            target.faults.fail(operation, table, died)
        return target

    return make


@pytest.mark.parametrize("operation", ["claim", "apply_batch", "apply_ddl"])
def test_a_table_that_crashes_the_engine_again_and_again_fails_alone(three: Shop, operation: str) -> None:
    with capture_logs() as lines:
        crashes = run_again_and_again(three, crashing(three, operation, A))
    assert (three.names(B), three.names(C)) == ({1: "snapshot"}, {1: "snapshot"})
    assert (three.applied(B).crashes, three.applied(C).crashes) == (0, 0)
    error = three.applied(A).error
    assert error is not None
    assert error.code == "engine_crashed"
    assert "Spark's JVM has died." in error.message
    alone = [line["alone"] for line in lines if line["event"] == "engine_crashed" and line["table"] == str(A)]
    assert alone == [False, True, True, True, True]
    assert crashes == len(alone)


def test_a_table_that_failed_so_is_not_tried_by_the_next_process_and_comes_back_with_a_snapshot(three: Shop) -> None:
    run_again_and_again(three, crashing(three, "apply_batch", A))
    three.rows(A, insert(0, item(2, "more")))
    three.rows(B, insert(0, item(2, "more")))
    target = crashing(three, "claim", A)()
    three.run(target)
    assert three.names(B) == {1: "snapshot", 2: "more"}
    assert three.applied(A).has_failed
    target.faults.heal()
    start = three.start_in_place(A)
    three.rows(A, insert(0, item(1, "again"), is_snapshot=True))
    three.complete(A, start)
    three.run(is_done=lambda: three.applied(A).last_applied == three.highest(A))
    assert three.names(A) == {1: "again"}
    assert (three.applied(A).has_failed, three.applied(A).crashes) == (False, 0)


def test_tables_that_were_there_as_the_engine_crashed_are_applied_before_the_one_that_crashes_it(three: Shop) -> None:
    """All were being applied. A has the most to do, and would be the first."""
    three.rows(A, *[insert(0, item(number, "more")) for number in range(2, 30)])
    make = crashing(three, "apply_batch", A, B, C)
    while not all(three.store.applied(NAME).get(t, AppliedRecord(table=t, incarnation=0)).crashes for t in (A, B, C)):
        with pytest.raises(TargetCrashedError):
            three.run(make())
    run_again_and_again(three, crashing(three, "apply_batch", A))
    assert (three.names(B), three.names(C)) == ({1: "snapshot"}, {1: "snapshot"})
    assert three.applied(A).has_failed


def test_a_batch_that_was_committed_as_the_engine_crashed_clears_its_table(three: Shop) -> None:
    """Its answer was lost; nothing is left to be applied that could clear it."""
    target = three.target()
    target.faults.fail("apply_batch.after", B, died)
    with pytest.raises(TargetCrashedError):
        three.run(target)
    assert three.applied(B).crashes == 1
    three.rows(A, insert(0, item(2, "more")))  # the first one may have been applied before B's
    run_again_and_again(three, crashing(three, "apply_batch", A))
    assert three.applied(A).has_failed
    assert three.applied(B).crashes == 0


def test_a_second_table_that_crashes_the_engine_fails_too(three: Shop) -> None:
    numbers = itertools.count(2)

    def make() -> MemoryTarget:
        three.rows(C, insert(0, item(next(numbers), "more")))
        return crashing(three, "apply_batch", A, B)()

    run_again_and_again(three, make)
    assert three.applied(A).has_failed
    assert three.applied(B).has_failed
    assert len(three.names(C)) > 10


def test_a_new_supervisor_tries_a_table_that_failed_so_once_more(three: Shop) -> None:
    run_again_and_again(three, crashing(three, "apply_batch", A))
    three.new_epoch()
    run_again_and_again(three, crashing(three, "apply_batch", A))
    assert three.applied(A).has_failed
    assert three.applied(A).crashes == 6
    three.new_epoch()
    three.run(is_done=lambda: three.applied(A).last_applied == three.highest(A))
    assert three.names(A) == {1: "snapshot"}
    assert (three.applied(A).has_failed, three.applied(A).crashes) == (False, 0)


def test_a_failed_table_with_nothing_left_to_apply_is_left_alone(shop: Shop) -> None:
    """Its last batch was committed as the engine crashed once more; a new process finds that there is nothing to do."""
    shop.copy(A, 1)
    run_again_and_again(shop, crashing(shop, "apply_batch", A))
    shop.new_epoch()
    with pytest.raises(TargetCrashedError):
        shop.run(crashing(shop, "apply_batch.after", A)())
    assert shop.applied(A).has_failed
    shop.new_epoch()
    looks = itertools.count()
    shop.run(is_done=lambda: next(looks) > 30)
    assert shop.applied(A).crashes == 0
    assert shop.names(A) == {1: "snapshot"}


def test_a_crash_ends_the_loop_though_the_table_had_waited_while_others_were_applied(three: Shop) -> None:
    """What is asked of a dead engine next is no further crash."""
    target = three.target()
    busy = ThrottledError("x", code="throttled", table=str(A), is_limit=True)

    def others_are_applied() -> bool:
        applied = three.store.applied(NAME)
        return all(table in applied and applied[table].last_applied == three.highest(table) for table in (B, C))

    target.faults.fail("apply_batch", A, lambda: died() if others_are_applied() else busy)
    with pytest.raises(TargetCrashedError):
        three.run(target)
    assert three.applied(A).crashes == 1


def test_what_was_only_there_as_the_engine_crashed_is_suspected_until_something_of_it_is_applied(three: Shop) -> None:
    target = three.target()
    target.faults.fail("apply_batch", A, died)
    with pytest.raises(TargetCrashedError):
        three.run(target)
    assert three.applied(A).crashes == 1
    three.run()
    assert three.names(A) == {1: "snapshot"}
    assert three.applied(A).crashes == 0


def test_an_engine_that_crashes_at_every_table_fails_none(three: Shop) -> None:
    """A machine with too little memory, for example."""
    make = crashing(three, "apply_batch", A, B, C)
    for _ in range(30):
        with pytest.raises(TargetCrashedError):
            three.run(make())
    assert [table for table in (A, B, C) if three.applied(table).has_failed] == []
    run_again_and_again(three, three.target)
    assert [three.names(table) for table in (A, B, C)] == [{1: "snapshot"}] * 3


def test_a_table_alone_fails_though_the_engine_applied_nothing_else(shop: Shop) -> None:
    shop.copy(A, 1)
    run_again_and_again(shop, crashing(shop, "apply_batch", A))
    assert shop.applied(A).has_failed


def test_smaller_batches_are_tried_before_a_table_fails(shop: Shop) -> None:
    """The engine is killed for its memory by more than 20 rows."""
    shop.settings = replace(shop.settings, batch=BatchLimits(rows=1000, bytes=1 << 30))
    shop.begin(A)
    for first in range(0, 200, 10):
        shop.rows(A, *[insert(0, item(first + i, "x"), is_snapshot=True) for i in range(10)])
    shop.complete(A)

    class Small(MemoryTarget):
        def apply_batch(self, table: TargetTable, batch: Batch) -> BatchResult:
            if batch.rows > 20:
                raise died()
            return super().apply_batch(table, batch)

    context = target_context(replicator=NAME, uuid=shop.uuid, epoch=shop.epoch)
    run_again_and_again(shop, lambda: Small(MemoryTargetConfig(database=shop.database), context))
    assert len(shop.names(A)) == 200
    assert not shop.applied(A).has_failed


def test_a_batch_that_was_committed_before_it_was_found_too_large_is_not_applied_again(shop: Shop) -> None:
    """Memory ran out behind the commit, and a smaller batch is tried: the ledger says where to continue."""
    shop.copy(A, 1)
    shop.run()
    for number in range(2, 10):
        shop.rows(A, insert(0, item(number, "x")))

    class Late(MemoryTarget):
        is_first = True

        def apply_batch(self, table: TargetTable, batch: Batch) -> BatchResult:
            result = super().apply_batch(table, batch)
            if self.is_first:
                self.is_first = False
                self.let_go(table.table)
                raise ThrottledError("no memory", code="spark_out_of_memory", table=str(A), may_halve=True)
            return result

    context = target_context(replicator=NAME, uuid=shop.uuid, epoch=shop.epoch)
    shop.run(Late(MemoryTargetConfig(database=shop.database), context))
    assert len(shop.names(A)) == 9
    assert not shop.applied(A).has_failed


def test_upkeep_that_crashes_the_engine_is_postponed_by_the_next_process_too_and_shown(shop: Shop) -> None:
    shop.settings = replace(shop.settings, maintain_every=1000, maintain_idle=1)
    shop.copy(A, 1)
    target = crashing(shop, "maintain", A)()
    shop.run(target, is_done=lambda: shop.control.said(A).upkeep is not None)
    shop.rows(A, insert(0, item(2, "more")))
    target = crashing(shop, "maintain", A)()
    looks = itertools.count()
    shop.run(target, is_done=lambda: shop.is_done() and next(looks) > 20)
    assert shop.names(A) == {1: "snapshot", 2: "more"}
    assert target.faults.counts["maintain"] == 0
    upkeep = shop.control.said(A).upkeep
    assert upkeep is not None
    assert upkeep.code == "spark_lost"
    assert upkeep.retry_in_s > shop.settings.upkeep_pause_max_s - 600

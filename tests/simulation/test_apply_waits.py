"""A table that the target throttles, refuses or wants to rest waits alone, in batches that the target takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar

import pytest

from replicator.apply import Apply, BatchLimits
from replicator.apply import table as apply_table
from replicator.journal import JournalReader
from replicator.model.errors import (
    BatchTooLargeError,
    TableError,
    TargetUnavailableError,
    ThrottledError,
)
from replicator.model.processes.reports import WaitingReport
from replicator.model.schema import TableId
from replicator.plugins.target import Batch, BatchResult, TargetTable
from replicator.state.records import RequestKind
from replicator_testbed.journals.applied import NAME, A, B, Control, Shop
from replicator_testbed.journals.scripted import START
from replicator_testing.batches import insert
from replicator_testing.defaults import target_context
from replicator_testing.memory import MemoryTarget, MemoryTargetConfig
from replicator_testing.target_harness import item


def test_a_table_that_the_target_wants_to_rest_waits_while_others_continue(shop: Shop) -> None:
    class Resting(MemoryTarget):
        def rest_s(self, table: TableId, *, is_behind: bool) -> float:
            return 60.0 if table == A else 0.0

    shop.copy(A, 1, 2)
    shop.copy(B, 1, 2)
    context = target_context(replicator=NAME, uuid=shop.uuid, epoch=shop.epoch)
    resting = Resting(MemoryTargetConfig(database=shop.database), context)
    shop.run(resting, is_done=lambda: B in shop.store.applied(NAME) and shop.applied(B).last_applied == shop.highest(B))
    assert shop.names(B) == {1: "snapshot", 2: "snapshot"}
    assert A not in shop.store.applied(NAME)
    shop.rows(A, insert(0, item(3, "later")))
    shop.run()
    assert shop.names(A) == {1: "snapshot", 2: "snapshot", 3: "later"}


def test_a_table_that_has_rested_is_applied_without_another_look_at_the_journal(shop: Shop) -> None:
    class Asleep(Control):
        def wait(self, timeout_s: float) -> None:
            self._progress.wait(60)
            self._progress.clear()

    class Resting(MemoryTarget):
        rests: ClassVar = [0.05, 0.05]

        def rest_s(self, table: TableId, *, is_behind: bool) -> float:
            return self.rests.pop() if self.rests else 0.0

    shop.copy(A, 1)
    context = target_context(replicator=NAME, uuid=shop.uuid, epoch=shop.epoch)
    target = Resting(MemoryTargetConfig(database=shop.database), context)
    shop.run(target, control=Asleep(shop.is_done))
    assert shop.names(A) == {1: "snapshot"}
    assert not target.rests
    assert len(shop.control.reports) == 2, "at the start, and once it was applied"


def test_a_table_that_is_behind_says_so_to_the_target(shop: Shop) -> None:
    asked: list[bool] = []

    class Asked(MemoryTarget):
        def rest_s(self, table: TableId, *, is_behind: bool) -> float:
            asked.append(is_behind)
            return 0.0

    shop.settings = replace(shop.settings, batch=BatchLimits(rows=1, bytes=1 << 30), tables_parallel=1)
    shop.copy(A, 1)
    for number in range(2, 6):
        shop.rows(A, insert(0, item(number, "more")))
    context = target_context(replicator=NAME, uuid=shop.uuid, epoch=shop.epoch)
    shop.run(Asked(MemoryTargetConfig(database=shop.database), context))
    assert True in asked
    assert len(shop.names(A)) == 5


@pytest.mark.parametrize(("rows_max", "sizes"), [(None, [4]), (3, [3, 1]), (9, [4])])
def test_a_batch_has_no_more_rows_than_the_target_takes_at_once(
    shop: Shop, rows_max: int | None, sizes: list[int]
) -> None:
    came: list[int] = []

    class Small(MemoryTarget):
        def rows_max(self, table: TableId) -> int | None:
            return rows_max

        def apply_batch(self, table: TargetTable, batch: Batch) -> BatchResult:
            came.append(batch.rows)
            return super().apply_batch(table, batch)

    shop.copy(A)
    shop.run()
    for number in range(4):
        shop.rows(A, insert(0, item(number, "more")))
    context = target_context(replicator=NAME, uuid=shop.uuid, epoch=shop.epoch)
    shop.run(Small(MemoryTargetConfig(database=shop.database), context))
    assert came == sizes


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
    """A clock that goes forward by ten seconds with every look."""

    step_s: float = 10.0
    now: float = 0.0

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now


def failing(target: MemoryTarget, error: Callable[[TableId], Exception | None]) -> list[TableId]:
    """Let the target refuse batches; the tables whose batches came, in order."""
    apply_batch, came = target.apply_batch, []

    def refuse(table: TargetTable, batch: Batch) -> BatchResult:
        came.append(table.table)
        if found := error(table.table):
            raise found
        return apply_batch(table, batch)

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
    assert came.index(B) < len(came) - 1, "the other one continues meanwhile"
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


def test_a_table_that_fails_for_too_long_fails_alone_and_tried_again_by_the_next_process(shop: Shop) -> None:
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
    """Its beginning lies between the ledger and the rows; a snapshot that begins later continues it."""
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


def test_a_table_at_which_the_target_fails_waits_alone_while_others_continue(shop: Shop) -> None:
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


def test_a_table_at_which_the_target_fails_for_too_long_fails_while_others_continue(shop: Shop) -> None:
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


def test_upkeep_that_fails_is_postponed_and_holds_up_nothing(shop: Shop) -> None:
    shop.settings = replace(shop.settings, maintain_every=1, patience=lambda: Steps(allowed=0))
    shop.copy(A, 1)
    target = shop.target()
    asked: list[TableId] = []

    def refuse(table: TargetTable) -> Mapping[str, Any] | None:
        asked.append(table.table)
        raise broken(table.table)

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

    def refuse(table: TargetTable, batch: Batch) -> BatchResult:
        came.append(batch.rows)
        if batch.rows > 1 or came.count(1) == 1:
            raise ThrottledError("dear", code="too_dear", table=str(A), is_limit=True, may_halve=True)
        return apply_batch(table, batch)

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
    target, times = shop.target(), []
    advance = target.advance

    def refuse(table: TargetTable, sequence_num: int) -> None:
        times.append(1)
        if len(times) == 1:
            raise ThrottledError("slower", code="target_throttled", table=str(A))
        advance(table, sequence_num)

    target.faults.script("apply_batch", TableError("refused", code="refused", table=str(A)))
    target.advance = refuse  # type: ignore[method-assign]
    shop.run(target, clock=Minutes(), is_done=lambda: shop.applied(A).last_applied >= shop.highest(A))
    assert (len(times), shop.names(A)) == (2, {1: "again"})


def refuses_more_than(target: MemoryTarget, rows: int) -> list[int]:
    """Let the target take batches of so many rows at most; the sizes of those that came."""
    apply_batch, came = target.apply_batch, []

    def refuse(table: TargetTable, batch: Batch) -> BatchResult:
        came.append(batch.rows)
        if batch.rows > rows:
            raise BatchTooLargeError("no room", code="batch_too_large", table=str(table.table))
        return apply_batch(table, batch)

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


def test_a_transaction_that_is_too_large_fails_its_table(shop: Shop) -> None:
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
    context = target_context(replicator=NAME, uuid=shop.uuid, epoch=shop.epoch)
    target = Resting(MemoryTargetConfig(database=shop.database), context)
    apply_batch = target.apply_batch

    def slow(table: TargetTable, batch: Batch) -> BatchResult:
        shop.rows(A, insert(0, item(2, "meanwhile")))
        while shop.control.looked.acquire(blocking=False):
            pass
        for _ in range(2):
            assert shop.control.looked.acquire(timeout=60)
        result = apply_batch(table, batch)
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
    context = target_context(replicator=NAME, uuid=shop.uuid, epoch=shop.epoch)
    target = Remembering(MemoryTargetConfig(database=shop.database), context)
    target.asked = []
    shop.run(target, is_done=lambda: target.rest > 0 and target.asked.count(True) > 3)
    assert (target.faults.counts["claim"], target.faults.counts["apply_batch"]) == (1, 0)
    target.claim = super(Remembering, target).claim  # type: ignore[method-assign]
    target.rest = 0.0
    shop.run(target)
    assert set(shop.names(A)) == {1, 2, 3}


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


class Forgetful(MemoryTarget):
    """Keeps no older states."""

    keeps_states: ClassVar[bool] = False


@pytest.mark.parametrize("kept", [True, False])
def test_changes_after_a_barrier_wait_for_it_where_the_target_keeps_no_states(shop: Shop, kept: bool) -> None:
    kind = MemoryTarget if kept else Forgetful
    config = MemoryTargetConfig(database=shop.database)
    shop.copy(A, 1)
    asked = shop.store.requests.add(NAME, RequestKind.BARRIER, {})
    shop.writer.commit(offset=None, source_time=START, tables=list(shop.records.values()), barriers=[asked])
    (barrier,), whole, looks = shop.store.requests.barriers(NAME), shop.highest(A), list[int]()
    shop.rows(A, insert(0, item(2, "later")))
    context = target_context(replicator=NAME, uuid=shop.uuid, epoch=shop.epoch)

    def has_looked_again() -> bool:
        if A in shop.store.applied(NAME) and shop.applied(A).last_applied >= whole:
            looks.append(len(shop.control.reports))
        return len(set(looks)) > 5

    shop.run(kind(config, context), is_done=shop.is_done if kept else has_looked_again)
    assert shop.names(A) == {1: "snapshot"} | ({2: "later"} if kept else {})
    if not kept:
        assert shop.applied(A).last_applied <= barrier
    shop.store.requests.remove(asked)
    shop.run(kind(config, context))
    assert shop.names(A) == {1: "snapshot", 2: "later"}


def test_a_verification_that_was_killed_holds_nothing_back_for_long(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.copy(A, 1)
    asked = shop.store.requests.add(NAME, RequestKind.BARRIER, {})
    shop.writer.commit(offset=None, source_time=START, tables=list(shop.records.values()), barriers=[asked])
    shop.rows(A, insert(0, item(2, "later")))
    monkeypatch.setattr(apply_table, "_HOLD_S", -1.0)
    context = target_context(replicator=NAME, uuid=shop.uuid, epoch=shop.epoch)
    shop.run(Forgetful(MemoryTargetConfig(database=shop.database), context))
    assert shop.names(A) == {1: "snapshot", 2: "later"}

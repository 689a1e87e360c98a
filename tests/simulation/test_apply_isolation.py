"""What goes wrong with one table in apply is that table's, and no other's."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from replicator.journal import JournalReader
from replicator.model.errors import FatalError, FencedError, TableError, TargetUnavailableError
from replicator.model.processes.reports import UpkeepReport
from replicator.model.schema import TableId
from replicator.state.records import Stage, TableRecord
from replicator_testbed.journals.applied import NAME, A, B, Shop
from replicator_testing.batches import insert
from replicator_testing.memory import MemoryTarget
from replicator_testing.target_harness import item, items_schema


@dataclass
class Minutes:
    """A clock that goes forward by ten seconds with every look."""

    now: float = 0.0

    def __call__(self) -> float:
        self.now += 10.0
        return self.now


OPERATIONS = ["read_ledger", "claim", "claim.after", "apply_ddl", "apply_ddl.after", "apply_batch", "apply_batch.after"]
OPERATIONS_IN_PLACE = ["advance", "advance.after", "complete_snapshot", "complete_snapshot.after", "apply_batch"]
ERRORS = [
    (lambda t: FatalError("two rows have one key", code="merge_not_unique", table=str(t)), "merge_not_unique"),
    (lambda t: TableError("no", code="schema_conflict", table=str(t)), "schema_conflict"),
    (lambda _: RuntimeError("a value: 42"), "internal_error"),
    (lambda _: OverflowError("a value: 42"), "internal_error"),
]


def check_it_continues(shop: Shop, target: MemoryTarget) -> None:
    """The target is healed, and a snapshot in place brings A back."""
    target.faults.heal()
    start = shop.start_in_place(A)
    shop.rows(A, insert(0, item(1, "again"), is_snapshot=True))
    shop.complete(A, start)
    shop.run(target, is_done=lambda: shop.applied(A).last_applied == shop.highest(A))
    assert (shop.names(A), shop.applied(A).has_failed) == ({1: "again"}, False)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("error", "code"), ERRORS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_goes_wrong_with_one_table_fails_it_and_the_others_continue(
    shop: Shop, operation: str, error: Callable[[TableId], Exception], code: str
) -> None:
    shop.copy(A, 1)
    shop.copy(B, 1)
    target = shop.target()
    target.faults.fail(operation, A, lambda: error(A))
    with capture_logs() as lines:
        shop.run(target)
    shown = shop.applied(A).error
    assert shop.applied(A).has_failed
    assert shown is not None
    assert shown.code == code
    assert "42" not in shown.message
    assert any("exc_info" in line for line in lines) == (code == "internal_error")
    assert shop.names(B) == {1: "snapshot"}
    check_it_continues(shop, target)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("error", "code"), ERRORS)
@pytest.mark.parametrize("operation", OPERATIONS_IN_PLACE)
def test_what_goes_wrong_with_one_table_s_snapshot_in_place_fails_it_and_the_others_continue(
    shop: Shop, operation: str, error: Callable[[TableId], Exception], code: str
) -> None:
    for table in (A, B):
        shop.copy(table, 1)
    target = shop.target()
    shop.run(target)
    starts = {table: shop.start_in_place(table) for table in (A, B)}
    shop.commit()
    target.faults.fail(operation, A, lambda: error(A))
    shop.run(target)
    shown = shop.applied(A).error
    for table, start in starts.items():
        shop.rows(table, insert(0, item(1, "second"), is_snapshot=True))
        shop.complete(table, start)
    shop.run(target)
    shown = shown or shop.applied(A).error
    assert shown is not None
    assert shown.code == code
    assert shop.names(B) == {1: "second"}
    check_it_continues(shop, target)


@pytest.mark.parametrize("method", ["feed", "schema", "check"])
def test_what_goes_wrong_in_reading_one_table_s_journal_fails_it_and_the_others_continue(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    shop.copy(A, 1)
    shop.copy(B, 1)
    real, is_broken = getattr(JournalReader, method), [True]

    def broken_reader(reader: JournalReader, about: Any, *arguments: Any) -> Any:
        if is_broken[0] and A in (about, getattr(about, "table", None)):
            raise OverflowError("a value: 42")
        return real(reader, about, *arguments)

    monkeypatch.setattr(JournalReader, method, broken_reader)
    shop.run(is_done=lambda: A in shop.store.applied(NAME) and shop.is_done())
    assert shop.applied(A).has_failed
    assert shop.names(B) == {1: "snapshot"}
    is_broken[0] = False
    check_it_continues(shop, shop.target())


@pytest.mark.parametrize(
    "error",
    [
        FencedError("a newer epoch", code="fenced", table=str(A)),
        FatalError("restored", code="ledger_ahead", table=str(A)),
        FatalError("there is no billing", code="billing_not_enabled"),
        MemoryError(),
    ],
)
def test_what_is_everybody_s_is_not_put_on_a_table(shop: Shop, error: Exception) -> None:
    shop.copy(A, 1)
    target = shop.target()
    target.faults.fail("apply_batch", A, lambda: error)
    with pytest.raises(type(error)):
        shop.run(target)
    assert not shop.applied(A).has_failed


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("a value: 42"),
        FatalError("a bug", code="ledger_disagrees", table=str(A)),
        TargetUnavailableError("Spark's JVM has died.", code="spark_lost"),
        TableError("no", code="schema_conflict", table=str(A)),
    ],
)
def test_upkeep_that_fails_is_counted_shown_and_tried_again_later_and_later(shop: Shop, error: Exception) -> None:
    shop.settings = replace(shop.settings, maintain_every=1000, maintain_idle=1, upkeep_pause_s=60)
    shop.copy(A, 1)
    target, clock = shop.target(), Minutes()
    target.faults.fail("maintain", A, lambda: error)

    def shown() -> UpkeepReport | None:
        return shop.control.said(A).upkeep

    shop.run(target, is_done=lambda: (said := shown()) is not None and said.failures >= 3, clock=clock)
    upkeep = shown()
    assert upkeep is not None
    assert upkeep.code == getattr(error, "code", "internal_error")
    assert "42" not in upkeep.message
    assert 60 < upkeep.retry_in_s <= 240
    assert not shop.applied(A).has_failed
    target.faults.heal()
    shop.rows(A, insert(0, item(2, "more")))
    target = shop.target()
    shop.run(target, is_done=lambda: shop.is_done() and target.faults.counts["maintain"] >= 1, clock=Minutes())
    assert (shop.names(A), shown()) == ({1: "snapshot", 2: "more"}, None)


def test_upkeep_that_recovers_in_the_same_process_is_shown_no_more(shop: Shop) -> None:
    shop.settings = replace(shop.settings, maintain_every=1000, maintain_idle=1, upkeep_pause_s=60)
    shop.copy(A, 1)
    target = shop.target()
    target.faults.script("maintain", RuntimeError("once"))
    reports: list[Any] = []

    def is_healed() -> bool:
        reports.append(shop.control.said(A).upkeep)
        return any(reports) and reports[-1] is None

    shop.run(target, is_done=is_healed, clock=Minutes())
    assert target.faults.counts["maintain"] >= 2


def test_a_table_that_the_configuration_leaves_out_is_not_applied_by_the_first_start(shop: Shop) -> None:
    """Capture has not recorded yet that it is removed."""
    shop.copy(A, 1)
    shop.copy(B, 1)
    shop.settings = replace(shop.settings, selects=lambda table: table != A)
    target = shop.target()
    shop.run(target, is_done=lambda: B in shop.store.applied(NAME) and shop.applied(B).last_applied == shop.highest(B))
    assert A not in shop.warehouse.tables
    assert target.faults.counts["claim"] == 1


def test_what_the_journal_has_of_a_table_that_was_removed_and_came_back_is_not_applied(shop: Shop) -> None:
    shop.copy(A, 1)
    shop.copy(B, 1)
    shop.run()
    shop.rows(A, insert(0, item(2, "of no use")))
    shop.rows(B, insert(0, item(2, "more")))
    shop.records[A] = TableRecord(table=A, incarnation=2, stage=Stage.PENDING)
    shop.commit()
    target = shop.target()
    shop.run(target, is_done=lambda: shop.applied(B).last_applied == shop.highest(B))
    assert (shop.names(A), target.faults.counts["claim"]) == ({1: "snapshot"}, 1)


def test_a_target_that_cannot_say_how_long_one_table_rests_is_asked_to_write_it(shop: Shop) -> None:
    shop.copy(A, 1)
    shop.copy(B, 1)
    target = shop.target()

    def rest_s(table: TableId, *, is_behind: bool) -> float:
        if table == A and threading.current_thread() is threading.main_thread():
            raise RuntimeError("x")
        return 0.0

    target.rest_s = rest_s  # type: ignore[method-assign]
    shop.run(target)
    assert (shop.names(A), shop.names(B)) == ({1: "snapshot"}, {1: "snapshot"})


def five(shop: Shop) -> list[TableId]:
    tables = [TableId("shop", name) for name in "abcde"]
    shop.schemas = {table: items_schema(table=table) for table in tables}
    for table in tables:
        shop.copy(table, 1)
    return tables


def failing(shop: Shop) -> list[TableId]:
    return sorted(table for table, applied in shop.store.applied(NAME).items() if applied.has_failed)


def waiting(shop: Shop) -> list[str]:
    tables = shop.control.reports[-1].tables if shop.control.reports else {}
    return sorted(table for table, said in tables.items() if said.waiting and said.waiting.code)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_cause_that_fails_one_table_after_the_other_fails_two_and_is_waited_for(
    shop: Shop, is_restarted: bool
) -> None:
    """Such as a library that is broken: what it does to every table is no table's."""
    shop.settings = replace(shop.settings, tables_parallel=1, patience=AnHour)
    tables, target = five(shop), shop.target()
    for table in tables:
        target.faults.fail("apply_batch", table, lambda: RuntimeError("x"))
    shop.run(target, is_done=lambda: len(waiting(shop)) == 3, clock=Minutes())
    failed = failing(shop)
    assert len(failed) == 2
    assert sorted([*waiting(shop), *map(str, failed)]) == [str(table) for table in tables]
    if is_restarted:
        shop.run(target, is_done=lambda: len(waiting(shop)) == 3, clock=Minutes())
        assert failing(shop) == failed
    target.faults.heal()
    shop.run(target, is_done=lambda: all(shop.names(table) for table in tables), clock=Minutes())
    assert failing(shop) == []


def test_a_table_that_fails_as_two_others_did_fails_once_others_continue(shop: Shop) -> None:
    shop.settings = replace(shop.settings, tables_parallel=1, patience=AnHour)
    *bad, good = five(shop)
    target, clock = shop.target(), Minutes()
    for table in bad:
        target.faults.fail("apply_batch", table, lambda: RuntimeError("x"))
    shop.run(target, is_done=lambda: failing(shop) == bad, clock=clock)
    assert shop.names(good) == {1: "snapshot"}


def test_a_table_that_fails_as_others_did_and_does_not_pass_fails_in_the_end(shop: Shop) -> None:
    """And tables that the target itself refuses do not wait."""
    shop.settings = replace(shop.settings, tables_parallel=1)
    tables, target = five(shop), shop.target()
    for table in tables:
        target.faults.fail("apply_batch", table, lambda: RuntimeError("x"))
    shop.run(target, is_done=lambda: failing(shop) == tables)
    for table in tables:
        target.faults.fail("apply_batch", table, partial(TableError, "no", code="schema_conflict", table=str(table)))
    shop.settings = replace(shop.settings, patience=AnHour)
    for table in tables:
        shop.begin(table)
        shop.rows(table, insert(0, item(1, "again"), is_snapshot=True))
        shop.complete(table)

    def codes() -> set[str | None]:
        errors = [shop.applied(table).error for table in tables]
        return {error.code if error is not None else None for error in errors}

    shop.run(target, is_done=lambda: codes() == {"schema_conflict"})


class AnHour:
    """Waits for so long."""

    def delay(self, now: float) -> float | None:
        return 3600.0

    def delay_at_limit(self) -> float:
        return 3600.0


def test_a_table_whose_journal_cannot_be_read_is_not_tried_without_a_pause(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.settings = replace(shop.settings, patience=AnHour)
    shop.copy(A, 1)
    shop.copy(B, 1)
    real, tried = JournalReader.feed, [0]

    def broken(reader: JournalReader, table: TableId, *arguments: Any) -> Any:
        if table == A:
            tried[0] += 1
            raise OverflowError("x")
        return real(reader, table, *arguments)

    monkeypatch.setattr(JournalReader, "feed", broken)
    looks = itertools.count()
    shop.run(is_done=lambda: B in shop.store.applied(NAME) and shop.is_done() and next(looks) > 100)
    assert shop.applied(A).has_failed
    assert tried[0] <= 2

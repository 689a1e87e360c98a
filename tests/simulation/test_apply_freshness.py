"""A table is called whole, and has a source time, only once it is so, whatever ended the process before."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from replicator.apply import table as apply_table
from replicator.model.events import DDLEvent, DDLOperation
from replicator.plugins.target import TargetTable
from replicator.state.records import Stage
from replicator_testbed.journals.applied import A, B, Killed, Shop, kill_at
from replicator_testbed.journals.scripted import START
from replicator_testing.batches import insert, update
from replicator_testing.target_harness import item


def test_an_idle_table_is_as_fresh_as_the_journal_whether_apply_runs_or_not(shop: Shop) -> None:
    shop.copy(A, 1)
    shop.run()
    shop.commit(seconds=5_000)
    moment = START + timedelta(seconds=5_000)
    assert shop.reached(A) == moment
    shop.run()
    assert shop.reached(A) == moment


def test_a_backlog_takes_nothing_from_what_was_known_while_the_table_was_idle(shop: Shop) -> None:
    shop.copy(A, 1)
    shop.run()
    shop.commit(seconds=5_000)
    moment = START + timedelta(seconds=5_000)
    shop.rows(A, insert(0, item(2)), commit=False)
    shop.commit(seconds=6_000)
    assert shop.reached(A) == moment
    shop.run()
    assert shop.reached(A) == START + timedelta(seconds=6_000)


def test_a_copy_that_is_not_whole_has_no_source_time(shop: Shop) -> None:
    shop.begin(A)
    shop.rows(A, insert(0, item(1), is_snapshot=True))
    shop.run()
    assert shop.reached(A) is None
    shop.complete(A)
    assert shop.reached(A) is None
    shop.run()
    assert shop.reached(A) is not None


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
        times.append(shop.reached(A))
        if len(times) < 4:
            shop.rows(A, insert(0, item(1 + len(times))))
        return apply_batch(table, batch)

    target.apply_batch = busy  # type: ignore[method-assign]
    shop.rows(A, update(0, item(1, "log")))
    shop.run(target)
    assert len(times) == 4
    assert None not in times


def start_in_place_after_a_gap(shop: Shop) -> None:
    """The table failed in capture and missed changes; a snapshot in place makes up for them."""
    shop.copy(A, 1, 2)
    shop.run()
    shop.records[A] = replace(shop.records[A], stage=Stage.FAILED)
    shop.commit()
    shop.start_in_place(A)
    shop.rows(A, insert(0, item(9, "copied"), is_snapshot=True))


@pytest.mark.parametrize("point", [None, "apply.after_unit"])
def test_a_copy_that_has_begun_is_not_called_whole_after_a_kill(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, point: str | None
) -> None:
    start_in_place_after_a_gap(shop)
    if point is not None:
        with monkeypatch.context() as patched:
            kill_at(patched, point)
            with pytest.raises(Killed):
                shop.run(is_done=lambda: False)
    shop.rows(A, insert(0, item(10, "log")))
    progress = shop.run().progress()[A]
    assert not progress.is_complete
    assert shop.reached(A) is None
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

    def kill(table: TargetTable, sequence_num: int) -> None:
        advance(table, sequence_num)
        raise Killed

    target.advance = kill  # type: ignore[method-assign]
    with pytest.raises(Killed):
        shop.run(target, is_done=lambda: False)
    assert shop.reached(A) is None


def test_a_table_that_capture_does_not_follow_has_none(shop: Shop) -> None:
    for table in (A, B):
        shop.copy(table, 1)
    shop.run()
    shop.rows(A, insert(0, item(2, "last")))
    shop.records[A] = replace(shop.records[A], stage=Stage.FAILED)
    shop.commit(seconds=1000)
    shop.run()
    assert shop.names(A) == {1: "snapshot", 2: "last"}
    assert (shop.reached(A), shop.reached(B)) == (None, START + timedelta(seconds=1000))


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
    assert shop.reached(A) is None
    shop.run()
    assert set(shop.names(A)) == {1, 2, 3}
    assert shop.reached(A) is not None

"""What the target finds where something had to be becomes an alarm, once, whatever crashes; nothing else does."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from replicator.apply import table as apply_table
from replicator.model.documents.status import TableState
from replicator.model.documents.verdict import Result
from replicator.model.errors import TargetDamagedError
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.merged import Merged
from replicator.plugins.target import TableOptions, TargetTable
from replicator.service.status.assemble import status
from replicator.state.records import Stage, TableRecord, TargetCopy
from replicator.state.verification.records import VerificationOutcome
from replicator_testbed.journals.applied import NAME, A, B, Killed, Shop
from replicator_testbed.present import present
from replicator_testing.batches import RowChange, delete, insert, update
from replicator_testing.memory.target import MemoryTarget, StoredTable
from replicator_testing.target_harness import item, items_schema


def lose(shop: Shop, *ids: int) -> None:
    """Rows go from the target, and nobody says so."""
    stored = shop.warehouse.tables[A]
    stored.rows = [row for row in stored.rows if row.values["id"] not in ids]


def codes(shop: Shop) -> dict[str, int]:
    return {alarm.code: alarm.count for alarm in shop.applied(A).alarms}


def read_again(shop: Shop, *ids: int) -> None:
    start = shop.start_in_place(A)
    shop.rows(A, *[insert(0, item(i, "again"), is_snapshot=True) for i in ids], commit=False)
    shop.complete(A, start)


def test_what_was_found_is_counted(shop: Shop) -> None:
    shop.copy(A, 1, 2, 3)
    shop.run()
    assert shop.applied(A).merged == Merged(inserted=3)
    shop.rows(A, insert(0, item(4)), update(0, item(1, "new")), delete(0, item(2)), update(0, item(5), before=item(3)))
    shop.run()
    assert shop.applied(A).merged == Merged(matched=1, inserted=5, deleted=2)
    assert shop.applied(A).alarms == ()


@pytest.mark.parametrize(
    "change",
    [
        update(0, item(2, "x")),
        delete(0, item(2)),
        update(0, item(9), before=item(2)),
        update(0, item(2), absent=["note"]),
    ],
    ids=["update", "delete", "key change", "partial update"],
)
def test_one_missing_row_is_an_alarm(shop: Shop, change: RowChange) -> None:
    shop.copy(A, 1, 2)
    shop.run()
    lose(shop, 2)
    shop.rows(A, change)
    shop.run()
    (alarm,) = shop.applied(A).alarms
    assert (alarm.code, alarm.count, alarm.action) == (
        "target_diverged",
        1,
        "Run `replicator verify shop shop.a --repair`.",
    )
    assert shop.applied(A).merged.not_found == 1
    assert not shop.applied(A).has_failed


@pytest.mark.parametrize(
    "changes",
    [
        [insert(0, item(9)), update(0, item(9, "x")), delete(0, item(9))],
        [delete(0, item(1)), insert(0, item(1)), update(0, item(1, "x"))],
        [update(0, item(9), before=item(1)), update(0, item(1), before=item(9)), update(0, item(1, "x"))],
        [update(0, item(9), before=item(1)), update(0, item(1), before=item(2)), update(0, item(2), before=item(9))],
        [insert(0, item(1, "there already"))],
    ],
    ids=["born and gone", "born again", "there and back", "swap", "insert of a row that is there"],
)
@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_only_the_first_change_of_a_key_expects_something(shop: Shop, changes: list[Any], deletes: str) -> None:
    shop.settings = replace(shop.settings, options=lambda _: TableOptions(deletes=deletes))
    shop.copy(A, 1, 2)
    shop.run()
    shop.rows(A, *changes)
    shop.run()
    assert (shop.applied(A).merged.not_found, shop.applied(A).alarms) == (0, ())


def test_a_row_that_is_marked_as_deleted_is_not_there(shop: Shop) -> None:
    shop.settings = replace(shop.settings, options=lambda _: TableOptions(deletes="soft"))
    shop.copy(A, 1)
    shop.rows(A, delete(0, item(1)))
    shop.run()
    assert shop.applied(A).alarms == ()
    shop.rows(A, delete(0, item(1)))
    shop.run()
    assert codes(shop) == {"target_diverged": 1}


def test_a_table_without_a_key_counts_the_copies_that_are_missing(shop: Shop) -> None:
    shop.schemas[A] = items_schema(key=(), table=A)
    shop.begin(A, commit=False)
    shop.rows(A, *[insert(0, item(1), is_snapshot=True) for _ in range(3)], commit=False)
    shop.complete(A)
    shop.run()
    shop.warehouse.tables[A].rows.pop()
    shop.rows(A, *[delete(0, item(1)) for _ in range(3)], insert(0, item(2)))
    shop.run()
    assert codes(shop) == {"target_diverged": 1}
    assert shop.applied(A).merged == Merged(inserted=4, deleted=2, not_found=1)


def test_nothing_is_expected_before_the_first_copy_is_complete(shop: Shop) -> None:
    shop.begin(A)
    shop.rows(A, update(0, item(1, "log")), delete(0, item(2)))
    shop.run()
    shop.complete(A)
    shop.run()
    assert (shop.applied(A).merged, shop.applied(A).alarms) == (Merged(inserted=1), ())
    shop.rows(A, delete(0, item(2)))
    shop.run()
    assert codes(shop) == {"target_diverged": 1}


def test_nothing_is_expected_while_a_snapshot_in_place_runs(shop: Shop) -> None:
    shop.copy(A, 1, 2)
    shop.run()
    lose(shop, 2)
    start = shop.start_in_place(A)
    shop.commit()
    shop.run()
    shop.rows(A, update(0, item(2, "log")))
    shop.run()
    shop.rows(A, *[insert(0, item(i), is_snapshot=True) for i in (1, 2)])
    shop.complete(A, start)
    shop.run()
    assert (shop.applied(A).alarms, shop.applied(A).copy) == ((), TargetCopy.WHOLE)


def test_nothing_is_expected_of_changes_that_are_applied_together_with_the_start_of_a_snapshot(shop: Shop) -> None:
    """A table that failed is read again: rows that came meanwhile are changed before the snapshot has brought them."""
    shop.copy(A, 1, 2)
    shop.run()
    start = shop.start_in_place(A)
    shop.rows(A, update(0, item(7, "log")), delete(0, item(8)))
    shop.run()
    assert (shop.applied(A).merged.not_found, shop.applied(A).alarms) == (0, ())
    shop.rows(A, *[insert(0, item(i), is_snapshot=True) for i in (1, 2, 7)])
    shop.complete(A, start)
    shop.rows(A, delete(0, item(9)))
    shop.run()
    assert codes(shop) == {"target_diverged": 1}


def test_nothing_is_expected_without_any_copy(shop: Shop) -> None:
    """`snapshot.mode: never`."""
    shop.records[A] = TableRecord(table=A, incarnation=1, stage=Stage.STREAMING, schema=shop.schemas[A], first_change=1)
    shop.event(A, DDLEvent(operation=DDLOperation.CREATE_TABLE, table=A, schema=shop.schemas[A]))
    shop.rows(A, update(0, item(1)), delete(0, item(2)))
    shop.run()
    shop.rows(A, update(0, item(3)))
    shop.new_epoch()
    shop.run()
    assert (shop.applied(A).merged, shop.applied(A).alarms) == (Merged(inserted=2), ())
    read_again(shop, 1, 3)
    shop.rows(A, delete(0, item(2)))
    shop.run()
    assert codes(shop) == {"target_diverged": 1}


def test_a_truncate_explains_what_it_took(shop: Shop) -> None:
    shop.copy(A, 1, 2)
    shop.event(A, DDLEvent(operation=DDLOperation.TRUNCATE_TABLE, table=A, schema=shop.schemas[A]))
    shop.rows(A, insert(0, item(1)), update(0, item(1, "x")))
    shop.run()
    assert (shop.applied(A).merged, shop.applied(A).alarms) == (Merged(inserted=3), ())


@pytest.mark.parametrize("point", ["apply.batch_planned", "apply.after_unit"])
def test_a_crash_neither_loses_nor_doubles_an_alarm(shop: Shop, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    shop.copy(A, 1, 2)
    shop.run()
    lose(shop, 2)
    shop.rows(A, delete(0, item(2)), update(0, item(1, "x")))

    def crash_point(name: str) -> None:
        if name == point:
            raise Killed(point)

    with monkeypatch.context() as patched:
        patched.setattr(apply_table, "crash_point", crash_point)
        with pytest.raises(Killed):
            shop.run()
    assert shop.applied(A).alarms == ()
    for _ in range(2):
        shop.new_epoch()
        shop.run()
        assert codes(shop) == {"target_diverged": 1}
        assert shop.applied(A).merged == Merged(inserted=2, matched=1, not_found=1)


def test_alarms_add_up_by_code(shop: Shop) -> None:
    shop.copy(A, 1, 2, 3)
    shop.run()
    lose(shop, 1, 2, 3)
    for i in (1, 2, 3):
        shop.rows(A, delete(0, item(i)))
        shop.run()
    assert codes(shop) == {"target_diverged": 3}


def test_what_others_changed_is_an_alarm_also_if_nobody_was_looking(shop: Shop) -> None:
    shop.copy(A, 1, 2)
    shop.run()
    shop.warehouse.tamper(A, "version 7: DELETE", _remove_one)
    shop.rows(A, update(0, item(1, "x")))
    shop.run()
    assert codes(shop) == {"target_changed": 1}
    shop.warehouse.tamper(A, "version 9: UPDATE", repr)
    shop.new_epoch()
    shop.rows(A, update(0, item(1, "y")))
    shop.run()
    (alarm,) = shop.applied(A).alarms
    assert (alarm.count, "version 9: UPDATE" in alarm.message) == (2, True)


def test_a_history_that_was_removed_before_it_was_checked_is_an_alarm_until_a_snapshot_is_complete(shop: Shop) -> None:
    shop.copy(A, 1, 2)
    shop.run()
    shop.warehouse.tamper(A, "version 7: DELETE", _remove_one)
    shop.warehouse.tables[A].forgotten = 1
    for text in ("x", "y"):
        shop.rows(A, update(0, item(1, text)))
        shop.run()
    (alarm,) = shop.applied(A).alarms
    assert (alarm.code, alarm.count, "version 7" in alarm.message) == ("target_changed", 1, False)
    assert "changes 1 to 1 of the target cannot be known any more" in alarm.message
    assert alarm.action == "Run `replicator verify shop shop.a --repair`."
    shop.warehouse.tamper(A, "version 9: UPDATE", repr)
    shop.rows(A, update(0, item(1, "z")))
    shop.run()
    assert codes(shop) == {"target_changed": 2}
    read_again(shop, 1)
    shop.run()
    assert shop.applied(A).alarms == ()


def test_what_others_changed_in_an_idle_table_is_an_alarm_without_its_next_change(shop: Shop) -> None:
    shop.copy(A, 1, 2)
    shop.copy(B, 1)
    shop.run()
    shop.new_epoch()
    shop.warehouse.tamper(A, "version 7: DELETE", _remove_one)
    now = [0.0]

    def is_done() -> bool:
        now[0] += shop.settings.audit_every_s / 20
        return bool(shop.applied(A).alarms) or now[0] > 10 * shop.settings.audit_every_s

    shop.run(is_done=is_done, clock=lambda: now[0])
    assert codes(shop) == {"target_changed": 1}
    assert now[0] >= shop.settings.audit_every_s
    assert shop.applied(B).alarms == ()


@pytest.mark.parametrize("act", ["audit", "maintain"])
def test_a_copy_that_cannot_be_read_any_more_fails_its_table_whatever_finds_that(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    shop.copy(A, 1, 2)
    shop.copy(B, 1)
    shop.run()
    shop.new_epoch()
    if act == "maintain":
        shop.rows(A, insert(0, item(3)))
    calls, real = [0], getattr(MemoryTarget, act)

    def damaged(target: MemoryTarget, table: TargetTable, *arguments: Any) -> Any:
        calls[0] += table.table == A
        # The first audit follows the claim.
        if table.table == A and (act == "maintain" or calls[0] > 1):
            raise TargetDamagedError("A file is missing.", code="target_file_unreadable", table=str(A))
        return real(target, table, *arguments)

    monkeypatch.setattr(MemoryTarget, act, damaged)
    now = [0.0]

    def is_done() -> bool:
        now[0] += shop.settings.audit_every_s / 20
        return shop.applied(A).has_failed or now[0] > 10 * shop.settings.audit_every_s

    shop.run(is_done=is_done, clock=lambda: now[0])
    assert (shop.applied(A).has_failed, shop.applied(B).has_failed) == (True, False)
    assert present(shop.applied(A).error).code == "target_file_unreadable"


def test_a_snapshot_clears_what_was_wrong_before_it_and_nothing_else(shop: Shop) -> None:
    shop.copy(A, 1, 2)
    shop.run()
    lose(shop, 2)
    shop.rows(A, delete(0, item(2)))
    shop.run()
    assert codes(shop) == {"target_diverged": 1}
    start = shop.start_in_place(A)
    shop.rows(A, insert(0, item(1), is_snapshot=True))
    shop.run()
    assert codes(shop) == {"target_diverged": 1}
    shop.warehouse.tamper(A, "version 8: DELETE", _remove_one)
    shop.complete(A, start)
    shop.run()
    assert codes(shop) == {"target_changed": 1}
    read_again(shop, 1)
    shop.run()
    assert shop.applied(A).alarms == ()


def test_a_new_copy_clears_alarms_when_it_is_complete_and_counts_from_zero(shop: Shop) -> None:
    shop.copy(A, 1, 2)
    shop.run()
    lose(shop, 2)
    shop.rows(A, delete(0, item(2)))
    shop.run()
    shop.begin(A)
    shop.run()
    assert (codes(shop), shop.applied(A).merged) == ({"target_diverged": 1}, Merged())
    shop.rows(A, insert(0, item(1), is_snapshot=True))
    shop.complete(A)
    shop.run()
    assert (shop.applied(A).alarms, shop.applied(A).merged) == ((), Merged(inserted=1))


def test_a_deleted_row_that_never_came_is_no_alarm_where_changes_are_net(shop: Shop) -> None:
    shop.copy(A, 1, 2)
    shop.run()
    shop.records[A] = replace(shop.records[A], is_net=True)
    shop.rows(A, insert(0, item(1, "new")), delete(0, item(9)))
    shop.run()
    assert (shop.applied(A).merged.not_found, shop.applied(A).alarms) == (0, ())
    assert shop.names(A) == {1: "new", 2: "snapshot"}


def test_the_status_shows_alarms_and_counts(shop: Shop) -> None:
    shop.copy(A, 1, 2)
    shop.copy(B, 1)
    shop.run()
    lose(shop, 2)
    shop.rows(A, delete(0, item(2)))
    shop.run()
    record = shop.store.replicator(NAME)
    assert record is not None
    a, b = status(shop.store, record).tables
    assert a.merged.model_dump() == {"matched": 0, "inserted": 2, "deleted": 0, "not_found": 1}
    assert [(alarm.code, alarm.count) for alarm in a.alarms] == [("target_diverged", 1)]
    assert (b.alarms, a.state) == ((), TableState.STREAMING)


def test_an_insert_that_lacks_columns_fails_its_table(shop: Shop) -> None:
    shop.copy(A, 1)
    shop.copy(B, 1)
    shop.run()
    shop.rows(A, insert(0, item(2, "a"), absent=["note"]))
    shop.rows(B, insert(0, item(2)))
    shop.run()
    error = shop.applied(A).error
    assert error is not None
    assert (error.code, error.action) == ("insert_lacks_columns", "Run `replicator snapshot shop shop.a`.")
    assert (shop.names(A), set(shop.names(B))) == ({1: "snapshot"}, {1, 2})
    read_again(shop, 1, 2)
    shop.run(is_done=lambda: not shop.applied(A).has_failed)
    assert shop.names(A) == {1: "again", 2: "again"}


def _remove_one(stored: StoredTable) -> None:
    stored.rows.pop()


def disprove(shop: Shop, *, result: Result = Result.EQUAL) -> None:
    """Somebody has verified the whole table, after the alarms that it has now."""
    outcome = VerificationOutcome(
        table=A, incarnation=1, result=result, is_whole=True, begun_at=shop.store.now(), position=99, rows=2,
        disproves=shop.applied(A).alarms,
    )  # fmt: skip
    shop.store.verifications.note(NAME, outcome)


def test_a_verification_that_finds_the_table_equal_clears_its_alarms(shop: Shop) -> None:
    shop.copy(A, 1, 2)
    shop.run()
    lose(shop, 2)
    shop.rows(A, update(0, item(2, "x")))
    shop.run()
    disprove(shop, result=Result.DIFFERENT)
    shop.run()
    assert codes(shop) == {"target_diverged": 1}
    disprove(shop)
    # Nothing else is to be applied.
    looks = itertools.count()
    shop.run(is_done=lambda: not codes(shop) or next(looks) > 500)
    assert codes(shop) == {}
    assert shop.applied(A).merged.not_found == 1


def test_an_alarm_that_was_raised_again_since_the_verification_began_stays(shop: Shop) -> None:
    shop.copy(A, 1, 2, 3)
    shop.run()
    lose(shop, 2, 3)
    shop.rows(A, update(0, item(2, "x")))
    shop.run()
    before = shop.applied(A).alarms
    shop.rows(A, update(0, item(3, "x")))
    shop.run()
    outcome = VerificationOutcome(
        table=A,
        incarnation=1,
        result=Result.EQUAL,
        is_whole=True,
        begun_at=shop.store.now(),
        position=99,
        disproves=before,
    )
    shop.store.verifications.note(NAME, outcome)
    shop.rows(A, insert(0, item(4)))
    shop.run()
    assert codes(shop) == {"target_diverged": 2}

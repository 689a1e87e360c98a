"""What the status says of verification."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from replicator.model.documents.status import ReplicatorStatus, TableStatus
from replicator.model.documents.verdict import Result
from replicator.model.schema import TableId
from replicator.runtime.caught_up import CatchUp
from replicator.service.status import verified as verified_status
from replicator.service.status.assemble import status
from replicator.state import holder_id
from replicator.state.records import AlarmRecord, AppliedRecord, Segment, Stage, TableRecord, TargetCopy
from replicator.state.store import StateStore
from replicator.state.verification.records import VerificationOutcome
from replicator_testbed.present import present

A, B = TableId("shop", "a"), TableId("shop", "b")
CONFIG = "name: shop\nverify: {every: 7d, rows_per_second: 5}\n"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    store = StateStore(f"sqlite:///{tmp_path}/state.db")
    store.create_replicator("shop", CONFIG, "/j")
    lease = present(store.leases.acquire("shop", holder_id(), 60))
    store.put_tables("shop", lease.epoch, [TableRecord(table=t, incarnation=2, stage=Stage.STREAMING) for t in (A, B)])
    yield store
    store.close()


def note(
    store: StateStore, table: TableId, result: Result, *, days: float = 0, rows: int = 10, incarnation: int = 2
) -> None:
    outcome = VerificationOutcome(
        table=table, incarnation=incarnation, result=result, is_whole=True, begun_at=store.now() - timedelta(days=days), position=7,
        rows=rows, differ=3, message="rows differ", action="Repair it.",
    )  # fmt: skip
    store.verifications.note("shop", outcome)


def shown(store: StateStore) -> tuple[ReplicatorStatus, TableStatus, TableStatus]:
    found = status(store, present(store.replicator("shop")))
    first, second = found.tables
    return found, first, second


def test_a_table_that_was_never_verified_has_no_age(store: StateStore) -> None:
    found, first, _ = shown(store)
    assert (found.verify.every_s, found.verify.verify_age_seconds, found.verify.result) == (7 * 86_400, None, None)
    assert (found.verify.coverage_tables, found.verify.coverage_rows) == (0, None)
    assert (first.verify.verify_age_seconds, first.verify.result) == (None, None)


def test_age_and_coverage_of_tables_that_are_equal(store: StateStore) -> None:
    note(store, A, Result.EQUAL, days=1, rows=30)
    assert shown(store)[0].verify.result is Result.NOT_VERIFIED  # one was not yet
    note(store, B, Result.EQUAL, days=8)
    found, first, second = shown(store)
    assert present(first.verify.verify_age_seconds) >= 86_400
    assert (first.verify.proven_position, first.verify.rows) == (7, 30)
    assert found.verify.verify_age_seconds == second.verify.verify_age_seconds
    assert (found.verify.tables_proven, found.verify.coverage_tables, found.verify.coverage_rows) == (1, 0.5, 0.75)
    assert found.verify.result is Result.EQUAL


def test_a_table_that_is_equal_in_part_is_not_proven(store: StateStore) -> None:
    note(store, A, Result.EQUAL)
    note(store, B, Result.EQUAL)
    note(store, A, Result.EQUAL_IN_PART)
    found, first, _ = shown(store)
    assert (first.verify.result, found.verify.result) == (Result.EQUAL_IN_PART, Result.EQUAL_IN_PART)
    assert (found.verify.tables_proven, found.verify.coverage_tables) == (1, 0.5)


def test_a_difference_is_an_alarm_of_the_table(store: StateStore) -> None:
    note(store, A, Result.EQUAL)
    note(store, A, Result.DIFFERENT)
    found, first, second = shown(store)
    (alarm,) = first.alarms
    assert (alarm.code, alarm.count, alarm.action) == (
        "verify_different", 3, f"Run `replicator verify shop {A} --repair`.",
    )  # fmt: skip
    assert second.alarms == ()
    assert (found.verify.result, found.verify.tables_proven) == (Result.DIFFERENT, 0)
    note(store, A, Result.EQUAL)
    assert shown(store)[1].alarms == ()


def test_alarms_of_apply_and_of_verification_are_shown_together(store: StateStore) -> None:
    alarm = AlarmRecord(code="target_changed", message="m", action="a", at=store.now(), count=1)
    epoch = present(store.leases.current("shop")).epoch
    store.put_applied("shop", epoch, [AppliedRecord(table=A, incarnation=2, copy=TargetCopy.WHOLE, alarms=(alarm,))])
    note(store, A, Result.DIFFERENT)
    assert [one.code for one in shown(store)[1].alarms] == ["target_changed", "verify_different"]


def test_what_was_found_in_an_earlier_incarnation_says_nothing(store: StateStore) -> None:
    note(store, A, Result.DIFFERENT, incarnation=1)
    _, first, _ = shown(store)
    assert (first.alarms, first.verify.result) == ((), None)


def test_a_table_that_differs_is_told_to_who_waits_until_all_is_applied(store: StateStore) -> None:
    epoch = present(store.leases.current("shop")).epoch
    segment = Segment(
        id=1, first=0, last=0, epoch=epoch, offset=None, source_time=None, ring=(), files=(), events=(),
        sealed_at=store.now(),
    )  # fmt: skip
    store.seal("shop", epoch, [segment])
    store.put_applied("shop", epoch, [AppliedRecord(table=t, incarnation=2, last_applied=0) for t in (A, B)])
    catch_up = CatchUp(store=store, name="shop")
    assert present(catch_up.check_sealed()).alarmed == ()
    note(store, B, Result.DIFFERENT)
    assert present(catch_up.check_sealed()).alarmed == (B,)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (CONFIG, timedelta(days=7)),
        ("name: shop\n", None),
        ("name: shop\nverify: {repair_rows_max: 5}\n", None),
        ("name: shop\nverify: {every: 90m, rows_per_second: '${env:ROWS}'}\n", timedelta(minutes=90)),
        ("name: shop\nverify: {every: '${env:EVERY}'}\n", None),
    ],
    ids=["set", "no block", "off", "reference beside it", "reference"],
)
def test_the_time_between_two_verifications_is_read_from_the_stored_configuration(
    text: str, found: timedelta | None
) -> None:
    assert verified_status.every(text) == found

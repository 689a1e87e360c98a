"""Tables are verified by a schedule over a database and a target in memory: a difference becomes an alarm, a repair clears it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from replicator.model.errors import FencedError, SourceUnavailableError
from replicator.model.processes.reports import Report
from replicator.model.schema import TableId
from replicator.plugins.source import DeltaSource, SourceContext
from replicator.plugins.target import DeltaTarget, TableOptions
from replicator.runtime.verifying import Verifier
from replicator.state.records import RequestKind, TableRecord
from replicator.state.verification.records import VerificationRecord
from replicator.verify import Judge, OfIds, Proofs, Repair, Result, Verdict, VerifySchedule
from replicator.verify.barriers import NotVerifiedError
from replicator_testbed.journals.captured import RunningCapture
from replicator_testbed.present import present
from replicator_testing.memory import MemorySource
from tests.simulation import test_verify
from tests.simulation.test_verify import KEYED, KEYLESS, NAME, Pair, change, remove, settled

pair = test_verify.pair

WEEKLY = VerifySchedule(every=timedelta(days=7), rows_per_second=1_000_000)


@dataclass
class Turns:
    """Lets a verifier work until nothing is due."""

    stops: bool = False
    waited_s: float = 0.0
    is_idle: bool = False

    def should_stop(self) -> bool:
        return self.stops or self.is_idle

    def wait(self, timeout_s: float) -> None:
        """The pauses of the verifier itself are the long ones."""
        self.is_idle, self.waited_s = timeout_s >= 1, timeout_s

    def announce(self, event: str, **_: Any) -> None:
        del event

    def report(self, report: Report) -> None:
        del report


def verifier(
    pair: Pair,
    judge: Judge,
    capture: RunningCapture,
    *,
    schedule: VerifySchedule = WEEKLY,
    source: Callable[[], DeltaSource[Any]] | None = None,
) -> Verifier:
    def open_sides() -> tuple[DeltaSource[Any], DeltaTarget[Any]]:
        made = source() if source else pair.captured.make_source(SourceContext(replicator=NAME, uuid=judge.uuid))
        return made, pair.make_target(0)

    return Verifier(
        store=pair.captured.store,
        name=NAME,
        uuid=judge.uuid,
        epoch=capture.lease.epoch,
        schedule=schedule,
        open_sides=open_sides,
        options=lambda _: TableOptions(),
    )


def known(pair: Pair) -> dict[TableId, VerificationRecord]:
    return dict(pair.captured.store.verifications.of(NAME))


def next_of(one: Verifier) -> TableRecord | None:
    return present(one.schedule).next_table(one._known(), one.store.now())


def snapshots_are_applied(capture: RunningCapture, judge: Judge) -> None:
    for table in (KEYED, KEYLESS):
        settled(judge, table, capture)


def test_all_tables_are_verified_once_and_then_left_alone(pair: Pair) -> None:
    with pair.running() as (capture, judge):
        snapshots_are_applied(capture, judge)
        verifier(pair, judge, capture).run(Turns())
        first = known(pair)
        assert {table: record.result for table, record in first.items()} == {KEYED: Result.EQUAL, KEYLESS: Result.EQUAL}
        assert all(record.proven_at is not None and record.rows for record in first.values())
        # Another process, later: what is known survives a restart.
        verifier(pair, judge, capture).run(Turns())
        assert known(pair) == first
    assert pair.captured.store.requests.open(NAME) == []


def test_a_difference_becomes_an_alarm_which_a_repair_clears(pair: Pair) -> None:
    with pair.running() as (capture, judge):
        snapshots_are_applied(capture, judge)
        pair.warehouse.tamper(KEYED, "an UPDATE", change({"a": "other"}))
        verifier(pair, judge, capture).run(Turns())
        alarm = known(pair)[KEYED].alarm
        assert alarm is not None
        assert (alarm.code, alarm.count) == ("verify_different", 1)
        assert alarm.action == f"Run `replicator verify {NAME} {KEYED} --repair`."
        assert "0 missing, 0 extra, 1 different" in alarm.message
        assert known(pair)[KEYLESS].alarm is None
        # Without a repair it stays.
        assert Proofs(judge=judge).verify(KEYED).result is Result.DIFFERENT
        assert known(pair)[KEYED].alarm is not None
        verdict = Proofs(judge=judge, repair=Repair(judge=judge, rows_max=100)).verify(KEYED)
        assert (verdict.result, present(verdict.repaired).different) == (Result.EQUAL, 1)
        assert (known(pair)[KEYED].alarm, known(pair)[KEYED].result) == (None, Result.EQUAL)
        applied = pair.captured.store.applied(NAME)
        capture.wait_until(
            lambda: not pair.captured.store.applied(NAME)[KEYED].alarms or None, f"apply clears {applied}"
        )


def test_a_table_that_was_repaired_and_changed_by_others_meanwhile_is_read_once_more(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alarm may be about rows that the repair did not look at."""
    with pair.running() as (capture, judge):
        snapshots_are_applied(capture, judge)
        pair.warehouse.tamper(KEYED, "an UPDATE", change({"a": "other"}))
        repair, original = Repair(judge=judge, rows_max=100), Repair.repair

        def and_lose_a_row(self: Repair, first: Verdict) -> Verdict:
            pair.warehouse.tamper(KEYED, "a DELETE", lambda stored: stored.rows.pop())
            return original(self, first)

        monkeypatch.setattr(Repair, "repair", and_lose_a_row)
        verdict = Proofs(judge=judge, repair=repair).verify(KEYED)
        assert (verdict.result, verdict.counts.missing) == (Result.DIFFERENT, 1)
        assert known(pair)[KEYED].alarm is not None


def test_of_a_table_that_cannot_be_verified_the_reason_is_kept_and_the_others_are(pair: Pair) -> None:
    with pair.running() as (capture, judge):
        snapshots_are_applied(capture, judge)
        opened = list[TableId]()
        context = SourceContext(replicator=NAME, uuid=judge.uuid)

        class Away(MemorySource):
            def open_state(self, schema: Any, columns: Any) -> Any:
                opened.append(schema.table)
                if schema.table == KEYED:
                    raise OverflowError("nobody foresaw it")
                return super().open_state(schema, columns)

        config = pair.captured.make_source(context).config
        verifier(pair, judge, capture, source=lambda: Away(config, context)).run(Turns())
        assert sorted(set(opened)) == [KEYED, KEYLESS]
        record = known(pair)[KEYED]
        assert (record.result, record.proven_at) == (Result.NOT_VERIFIED, None)
        assert "OverflowError" in present(record.reason)
        assert known(pair)[KEYLESS].result is Result.EQUAL
    assert pair.captured.store.requests.open(NAME) == []


def test_a_source_that_is_away_is_asked_again_later(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    with pair.running() as (capture, judge):
        snapshots_are_applied(capture, judge)

        def away(*_: object) -> Verdict:
            raise SourceUnavailableError("it is away", code="source_unavailable")

        with monkeypatch.context() as patched:
            patched.setattr(Judge, "verify", away)
            verifier(pair, judge, capture).run(Turns())
        assert {record.result for record in known(pair).values()} == {Result.NOT_VERIFIED}
        verifier(pair, judge, capture).run(Turns())
        assert {record.result for record in known(pair).values()} == {Result.NOT_VERIFIED}  # an hour has not passed
        hasty = replace(WEEKLY, every=timedelta(0))
        one = verifier(pair, judge, capture, schedule=hasty)
        one.verify(present(next_of(one)), Turns())
        assert Result.EQUAL in {record.result for record in known(pair).values()}


def test_a_worker_that_was_replaced_ends(pair: Pair) -> None:
    with pair.running() as (capture, judge):
        snapshots_are_applied(capture, judge)
        late = replace(verifier(pair, judge, capture), epoch=capture.lease.epoch - 1)
        with pytest.raises(FencedError):
            late.run(Turns())


def test_what_is_stopped_in_the_middle_is_not_noted(pair: Pair) -> None:
    with pair.running() as (capture, judge):
        snapshots_are_applied(capture, judge)
        turns = Turns()
        one = verifier(pair, judge, capture)
        table = present(next_of(one))
        turns.stops = True
        one.verify(table, turns)
        record = known(pair)[table.table]
        assert record.scheduled_at is not None
        assert record.result is None


def test_after_a_table_the_schedule_rests_for_its_rows_and_no_longer(pair: Pair) -> None:
    slow = VerifySchedule(every=timedelta(days=7), rows_per_second=1)
    with pair.database.begin() as transaction:
        for table in (KEYED, KEYLESS):
            transaction.insert(table, *(pair.row(10_000 + n) for n in range(40)))
    with pair.running() as (capture, judge):
        snapshots_are_applied(capture, judge)
        turns = Turns()
        verifier(pair, judge, capture, schedule=slow).run(turns)
        (record,) = (record for record in known(pair).values() if record.result is not None)
        assert 1 <= turns.waited_s <= present(record.rows) < 60


def test_a_state_of_the_source_is_not_open_forever_if_apply_does_not_reach_the_barrier(pair: Pair) -> None:
    with pair.running() as (capture, judge):
        snapshots_are_applied(capture, judge)
        moments = itertools.count(step=4)
        scheduled = replace(judge.barriers, is_scheduled=True)
        barriers = replace(scheduled, waits_max_s=10.0, clock=lambda: next(moments))
        number = present(pair.captured.store.journal.last_segment(NAME)).last
        with scheduled.held() as barrier:
            (request,) = pair.captured.store.requests.open(NAME)
            assert (request.kind, request.payload["is_scheduled"]) == (RequestKind.BARRIER, True)
            assert barrier.position >= number
            with pytest.raises(NotVerifiedError, match="not applied in time"):
                barriers.reach(TableId("shop", "nobody"), barrier.position)
        assert pair.captured.store.requests.open(NAME) == []


def test_a_barrier_that_capture_does_not_write_is_not_waited_for_without_end(pair: Pair) -> None:
    with pair.running() as (_, judge):
        moments = itertools.count(step=30)
    # Capture has ended.
    barriers = replace(judge.barriers, waits_max_s=60.0, clock=lambda: next(moments))
    with pytest.raises(NotVerifiedError, match="in time"), barriers.held():
        pass
    assert pair.captured.store.requests.open(NAME) == []


def test_rows_of_a_scope_prove_nothing_and_their_difference_is_an_alarm(pair: Pair) -> None:
    with pair.running() as (capture, judge):
        snapshots_are_applied(capture, judge)
        proofs = Proofs(judge=judge)
        first = judge.verify(KEYED)
        assert first.result is Result.EQUAL
        pair.warehouse.tamper(KEYED, "a DELETE", remove)
        found = judge.verify(KEYED)
        ids = frozenset(found.row_keys)
        assert proofs.verify(KEYED, OfIds(frozenset({"0" * 32}))).result is Result.EQUAL
        assert KEYED not in known(pair) or known(pair)[KEYED].proven_at is None
        assert proofs.verify(KEYED, OfIds(ids)).result is Result.DIFFERENT
        assert known(pair)[KEYED].alarm is not None

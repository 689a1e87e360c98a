"""The judge goes through a table range by range: it finds what it would find in one read, and continues where it was stopped."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from replicator.model.errors import SourceUnavailableError
from replicator.model.schema import Column, TableId
from replicator.plugins.kit.canonical import digest_of
from replicator.plugins.source import SourceContext
from replicator.state.verification.records import RangeRecord
from replicator.verify import Counts, Judge, Kind, OfIds, Pace, Proofs, Repair, Result, Verdict, VerifySchedule, Visit
from replicator.verify.barriers import NotVerifiedError
from replicator.verify.moving import Moving
from replicator.verify.schedule import Known
from replicator_testbed.journals.captured import RunningCapture
from replicator_testbed.present import present
from replicator_testing.memory import MemorySource
from replicator_testing.memory.target import StoredTable
from replicator_testing.oracle import StoredRow
from tests.simulation import test_verify
from tests.simulation.test_verify import KEYED, KEYLESS, NAME, Pair, UntilStopped, schema_of, settled
from tests.simulation.test_verify_schedule import WEEKLY, Turns, verifier

pair = test_verify.pair
SMALL = Visit(rows=10, at_once=3)
IDS = range(10, 1000, 10)
ENDS = (-(2**63), 2**63 - 1)


def fill(pair: Pair, capture: RunningCapture, judge: Judge) -> None:
    """99 rows in both tables, ten apart, and nothing else."""
    with pair.database.begin() as transaction:
        for table in (KEYED, KEYLESS):
            for row in list(pair.database.state(table)):
                transaction.delete(table, dict(zip(("id", "a", "b"), row, strict=True)))
            transaction.insert(table, *(pair.row(id_) for id_ in IDS))
    for table in (KEYED, KEYLESS):
        capture.wait_until(
            lambda table=table: settled(judge, table, capture).rows_target == len(IDS),  # type: ignore[misc]
            "the target has all",
        )


def ids_of(stored: StoredTable) -> dict[int, StoredRow]:
    return {row.values["id"]: row for row in stored.rows}


def change(*ids: int) -> Callable[[StoredTable], None]:
    def act(stored: StoredTable) -> None:
        for id_ in ids:
            row = ids_of(stored)[id_]
            row.values = {**row.values, "a": "other"}

    return act


def remove(*ids: int) -> Callable[[StoredTable], None]:
    def act(stored: StoredTable) -> None:
        stored.rows = [row for row in stored.rows if row.values["id"] not in ids]

    return act


def add(*ids: int | None) -> Callable[[StoredTable], None]:
    def act(stored: StoredTable) -> None:
        for id_ in ids:
            stored.rows.append(StoredRow(values={"id": id_, "a": "new", "b": None}, sequence_num=1))

    return act


def move(old: int, new: int) -> Callable[[StoredTable], None]:
    def act(stored: StoredTable) -> None:
        row = ids_of(stored)[old]
        row.values = {**row.values, "id": new}

    return act


def double(id_: int) -> Callable[[StoredTable], None]:
    def act(stored: StoredTable) -> None:
        stored.rows.append(StoredRow(values=dict(ids_of(stored)[id_].values), sequence_num=1))

    return act


# Ranges of ten rows end at 100, 200, … 900; the last has those up to 990.
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("act", "counts"),
    [
        (change(10), Counts(different=1)),
        (change(990), Counts(different=1)),
        (change(100), Counts(different=1)),
        (change(110), Counts(different=1)),
        (change(100, 110, 200, 550, 900, 910), Counts(different=6)),
        (remove(10, 990), Counts(missing=2)),
        (remove(100, 110), Counts(missing=2)),
        (remove(*range(110, 210, 10)), Counts(missing=10)),
        (add(-5, 0, 1), Counts(extra=3)),
        (add(991, 10**12), Counts(extra=2)),
        (add(99, 101, 199, 201), Counts(extra=4)),
        (add(*ENDS), Counts(extra=2)),
        (add(None), Counts(extra=1)),
        (double(100), Counts(extra=1)),
        (double(110), Counts(extra=1)),
        (move(100, 101), Counts(missing=1, extra=1)),
        (move(990, -1), Counts(missing=1, extra=1)),
        (move(110, 99), Counts(missing=1, extra=1)),
    ],
)
def test_what_somebody_changed_at_the_ends_of_ranges_is_found(
    pair: Pair, act: Callable[[StoredTable], None], counts: Counts
) -> None:
    with pair.running() as (capture, judge):
        fill(pair, capture, judge)
        equal = judge.verify(KEYED, visit=SMALL)
        assert (equal.result, equal.ranges, equal.rows_source) == (Result.EQUAL, 10, 99)
        pair.warehouse.tamper(KEYED, "statements", act)
        found = judge.verify(KEYED, visit=SMALL)
        whole = judge.verify(KEYED)
        assert (found.counts, found.rows_source, found.ranges, whole.ranges) == (counts, 99, 10, 1)
        assert (found.counts, found.rows_source, found.rows_target) == (
            whole.counts, whole.rows_source, whole.rows_target,
        )  # fmt: skip
        assert sorted(map(str, found.differences)) == sorted(map(str, whole.differences))
        assert found.row_keys == whole.row_keys


def test_a_table_without_a_key_is_compared_in_one(pair: Pair) -> None:
    with pair.running() as (capture, judge):
        fill(pair, capture, judge)
        found = judge.verify(KEYLESS, visit=SMALL)
        assert (found.result, found.ranges, found.rows_source) == (Result.EQUAL, 1, 99)


@pytest.mark.matrix
def test_rows_that_move_between_ranges_are_never_told_to_differ(pair: Pair) -> None:
    stop, draw, pair.inserted = threading.Event(), random.Random(7), 100_000

    def write() -> None:
        while not stop.is_set():
            with pair.database.begin() as transaction:
                rows = [dict(zip(("id", "a", "b"), row, strict=True)) for row in pair.database.state(KEYED)]
                there = {row["id"] for row in rows}
                old = draw.choice(rows)
                # Most keys move over the end of a range.
                new = draw.choice([id_ for id_ in range(5, 1000, 5) if id_ not in there])
                transaction.update(KEYED, old, {"id": new})
            pair.write()
            stop.wait(0.02)

    with pair.running() as (capture, judge):
        fill(pair, capture, judge)
        writer = threading.Thread(target=write)
        writer.start()
        try:
            verdicts = [judge.verify(KEYED, visit=replace(SMALL, at_once=at_once)) for at_once in (1, 3, 50)]
        finally:
            stop.set()
            writer.join()
        told = [verdict for verdict in verdicts if verdict.result is not Result.EQUAL]
        assert all(verdict.result is Result.NOT_VERIFIED for verdict in told), told
        assert len(told) < len(verdicts)
        assert judge.verify(KEYED, visit=SMALL).result is Result.EQUAL
    assert pair.captured.store.requests.barriers(NAME) == []


def test_rows_that_may_have_moved_are_compared_again_in_their_range(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pair.running() as (capture, judge):
        fill(pair, capture, judge)
        pair.warehouse.tamper(KEYED, "an UPDATE", change(100, 110, 550, 990))
        asked = list[int]()

        def moved_at_first(*_: object) -> frozenset[str]:
            asked.append(1)
            return frozenset(digest_of(f"{id_},") for id_ in IDS) if len(asked) == 1 else frozenset()

        monkeypatch.setattr(Moving, "ids", moved_at_first)
        proofs = Proofs(judge=judge, visit=replace(SMALL, at_once=50))
        found = proofs.verify(KEYED)
        assert (found.result, found.counts, found.ranges) == (Result.DIFFERENT, Counts(different=4), 10)
        record = pair.captured.store.verifications.of(NAME)[KEYED]
        assert (record.ranges_proven, record.ranges_total, present(record.alarm).count) == (6, 10, 4)
        assert len(asked) == 2


def bounds(pair: Pair) -> list[tuple[str | None, str | None]]:
    known = pair.captured.store.verifications.ranges(NAME, KEYED)
    return [(one.after and one.after[0], one.upto and one.upto[0]) for one in known]  # type: ignore[misc]


@dataclass
class Stops(Turns):
    """Stops a verifier once so many ranges of a table are proven."""

    pair: Pair = field(kw_only=True)
    after: int = field(kw_only=True)

    def should_stop(self) -> bool:
        return len(bounds(self.pair)) >= self.after or super().should_stop()


def begin(pair: Pair, judge: Judge, capture: RunningCapture, after: int) -> None:
    """The schedule compares so many ranges, and is killed."""
    one = replace(verifier(pair, judge, capture), ranges=replace(SMALL, at_once=1))
    one.verify(present(present(one.schedule).next_table(one._known(), one.store.now())), Stops(pair=pair, after=after))


def test_a_killed_schedule_continues_behind_the_last_proven_range(pair: Pair) -> None:
    store = pair.captured.store
    with pair.running() as (capture, judge):
        fill(pair, capture, judge)
        begin(pair, judge, capture, after=4)
        assert bounds(pair) == [(None, "100"), ("100", "200"), ("200", "300"), ("300", "400")]
        first = store.verifications.ranges(NAME, KEYED)
        record = store.verifications.of(NAME)[KEYED]
        assert (record.proven_at, record.ranges_proven, record.ranges_total) == (None, 4, None)
        assert record.is_under_way
        # What it had proven is not compared again: the rest is found equal although something differs before it.
        pair.warehouse.tamper(KEYED, "an UPDATE", change(50))
        replace(verifier(pair, judge, capture), ranges=SMALL).run(Turns())
        known = store.verifications.ranges(NAME, KEYED)
        assert list(known[:4]) == list(first)
        record = store.verifications.of(NAME)[KEYED]
        assert (record.result, record.ranges_proven, record.ranges_total) == (Result.EQUAL, 10, 10)
        assert (record.proven_at, record.proven_position) == (first[0].proven_at, first[0].position)
        assert record.rows == 99
        assert store.requests.open(NAME) == []


def test_ranges_of_another_definition_are_not_continued(pair: Pair) -> None:
    with pair.running() as (capture, judge):
        fill(pair, capture, judge)
        begin(pair, judge, capture, after=4)
        schema = schema_of(KEYED)
        wider = replace(
            schema, columns=(*schema.columns, Column(name="c", type=schema.columns[0].type, source_type="?"))
        )
        with pair.database.begin() as transaction:
            transaction.alter(wider, fill={"c": 7})

        def is_followed() -> bool:
            found = judge.verify(KEYED, visit=Visit(keeps=lambda _: True, rows=10))
            return found.result is Result.EQUAL and found.ranges_kept == 0

        capture.wait_until(is_followed, "the column is compared, with no range left out")


def keep_all(_: RangeRecord) -> bool:
    return True


@pytest.mark.matrix
def test_a_command_leaves_out_what_another_one_has_proven_only_if_asked(pair: Pair) -> None:
    with pair.running() as (capture, judge):
        fill(pair, capture, judge)
        begin(pair, judge, capture, after=4)
        resumed = Proofs(judge=judge, visit=replace(SMALL, keeps=keep_all)).verify(KEYED)
        assert (resumed.result, resumed.ranges, resumed.ranges_kept) == (Result.EQUAL, 10, 4)
        assert (resumed.rows_source, resumed.rows_target) == (99, 99)
        known = pair.captured.store.verifications.ranges(NAME, KEYED)
        assert resumed.position == min(one.position for one in known)
        nothing = Proofs(judge=judge, visit=replace(SMALL, keeps=keep_all)).verify(KEYED)
        assert (nothing.result, nothing.ranges_kept, nothing.position) == (Result.EQUAL, 10, resumed.position)
        again = Proofs(judge=judge, visit=SMALL).verify(KEYED)
        assert (again.result, again.ranges, again.ranges_kept) == (Result.EQUAL, 10, 0)
        # An alarm that was raised since then may be about any of them.
        pair.warehouse.tamper(KEYED, "version 7: UPDATE", change(100))
        with pair.database.begin() as transaction:
            transaction.insert(KEYED, pair.row(2_000))
        capture.wait_until(lambda: pair.captured.store.applied(NAME)[KEYED].alarms, "it was seen")
        found = Proofs(judge=judge, visit=replace(SMALL, keeps=keep_all)).verify(KEYED)
        assert (found.result, found.counts, found.ranges_kept) == (Result.DIFFERENT, Counts(different=1), 0)


def test_a_range_that_differs_is_an_alarm_at_once_and_the_only_one_that_is_compared_again(pair: Pair) -> None:
    store = pair.captured.store
    with pair.running() as (capture, judge):
        fill(pair, capture, judge)
        pair.warehouse.tamper(KEYED, "an UPDATE", change(150, 250))
        begin(pair, judge, capture, after=3)
        record = store.verifications.of(NAME)[KEYED]
        assert present(record.alarm).count == 2
        assert (record.result, record.ranges_proven, record.ranges_total) == (Result.DIFFERENT, 1, None)
        replace(verifier(pair, judge, capture, schedule=replace(WEEKLY, every=timedelta(0))), ranges=SMALL).verify(
            present(store.table(NAME, KEYED)), Turns()
        )
        record = store.verifications.of(NAME)[KEYED]
        assert (record.result, present(record.alarm).count) == (Result.DIFFERENT, 2)
        assert (record.ranges_proven, record.ranges_total, record.proven_at) == (8, 10, None)
        before = store.verifications.ranges(NAME, KEYED)
        pair.warehouse.tamper(KEYED, "an UPDATE", lambda stored: put_back(pair, stored))
        replace(verifier(pair, judge, capture), ranges=SMALL).verify(present(store.table(NAME, KEYED)), Turns())
        record = store.verifications.of(NAME)[KEYED]
        assert (record.alarm, record.result, record.ranges_proven) == (None, Result.EQUAL, 10)
        assert len(set(before) - set(store.verifications.ranges(NAME, KEYED))) == 2


def put_back(pair: Pair, stored: StoredTable) -> None:
    rows = {row[0]: row for row in pair.database.state(KEYED)}
    for row in stored.rows:
        row.values = dict(zip(("id", "a", "b"), rows[row.values["id"]], strict=True))


def test_what_ranges_found_is_repaired(pair: Pair) -> None:
    with pair.running() as (capture, judge):
        fill(pair, capture, judge)
        for act in (change(100, 110, 990), remove(10, 200), add(-5, 2000)):
            pair.warehouse.tamper(KEYED, "statements", act)
        proofs = Proofs(judge=judge, visit=SMALL, repair=Repair(judge=judge, rows_max=100))
        repaired = proofs.verify(KEYED)
        assert repaired.repaired == Counts(missing=2, extra=2, different=3)
        record = pair.captured.store.verifications.of(NAME)[KEYED]
        assert (record.alarm, record.result, record.ranges_proven) == (None, Result.EQUAL, 10)
        assert judge.verify(KEYED, visit=SMALL).result is Result.EQUAL


def test_rows_at_both_ends_of_the_type_are_found_and_repaired(pair: Pair) -> None:
    with pair.running() as (capture, judge):
        fill(pair, capture, judge)
        repair = Proofs(judge=judge, visit=SMALL, repair=Repair(judge=judge, rows_max=100))
        pair.warehouse.tamper(KEYED, "statements", add(*ENDS))
        assert judge.verify(KEYED, visit=SMALL).counts == Counts(extra=2)
        assert repair.verify(KEYED).repaired == Counts(extra=2)
        with pair.database.begin() as transaction:
            transaction.insert(KEYED, *(pair.row(id_) for id_ in ENDS))
        capture.wait_until(lambda: settled(judge, KEYED, capture).rows_target == len(IDS) + 2, "the target has both")
        pair.warehouse.tamper(KEYED, "statements", remove(*ENDS))
        assert judge.verify(KEYED, visit=SMALL).counts == Counts(missing=2)
        assert repair.verify(KEYED).repaired == Counts(missing=2)
        assert judge.verify(KEYED, visit=SMALL).result is Result.EQUAL


def test_a_row_that_cannot_be_found_by_its_key_is_not_told_to_be_repaired(pair: Pair) -> None:
    with pair.running() as (capture, judge):
        fill(pair, capture, judge)
        pair.warehouse.tamper(KEYED, "an INSERT", add(None))
        found = Proofs(judge=judge, visit=SMALL, repair=Repair(judge=judge, rows_max=100)).verify(KEYED)
        assert (found.result, found.counts) == (Result.DIFFERENT, Counts(extra=1))
        assert "--recreate" in (found.action or "")


@pytest.mark.matrix
def test_alarms_of_apply_are_disproved_by_ranges_that_were_compared_since(pair: Pair) -> None:
    """A commit of others is one that no range which was compared before it has seen."""
    store = pair.captured.store
    with pair.running() as (capture, judge):
        fill(pair, capture, judge)
        begin(pair, judge, capture, after=4)
        pair.warehouse.tamper(KEYED, "an OPTIMIZE", lambda _: None)
        pair.write()
        alarms = capture.wait_until(lambda: store.applied(NAME)[KEYED].alarms, "apply has seen it")
        known = store.verifications.ranges(NAME, KEYED)
        assert not any(WEEKLY.keeps(one, alarms, store.now()) for one in known)
        replace(verifier(pair, judge, capture), ranges=SMALL).run(Turns())
        capture.wait_until(lambda: not store.applied(NAME)[KEYED].alarms, "apply has cleared it")


@pytest.mark.matrix
def test_a_source_that_gives_way_in_the_middle_is_asked_for_the_rest(pair: Pair) -> None:
    with pair.running() as (capture, judge):
        fill(pair, capture, judge)
        context = SourceContext(replicator=NAME, uuid=judge.uuid)
        opened = list[TableId]()

        class GivesWay(MemorySource):
            def open_state(self, schema: Any, columns: Any) -> Any:
                opened.append(schema.table)
                if len(opened) % 2:
                    raise SourceUnavailableError("somebody waits", code="gave_way")
                return super().open_state(schema, columns)

        config = pair.captured.make_source(context).config
        assert isinstance(judge.source, MemorySource)
        found = replace(judge, source=GivesWay(config, context)).verify(KEYED, visit=replace(SMALL, at_once=1))
        assert (found.result, found.ranges, found.rows_source) == (Result.EQUAL, 10, 99)
        assert len(opened) == 20


@dataclass
class Watch:
    """A clock that moves when somebody waits."""

    now: float = 0.0
    waits: int = 0

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.waits += 1


def paced(watch: Watch, rows_per_second: int, check: Callable[[], None] = lambda: None) -> Pace:
    return Pace(rows_per_second=rows_per_second, check=check, wait=watch.wait, clock=lambda: watch.now)


@pytest.mark.matrix
def test_between_ranges_there_are_pauses_in_which_no_state_is_open(pair: Pair) -> None:
    with pair.running() as (capture, judge):
        fill(pair, capture, judge)
        watch, open_barriers = Watch(), list[int]()
        real = watch.wait

        def wait(seconds: float) -> None:
            open_barriers.append(len(pair.captured.store.requests.barriers(NAME)))
            real(seconds)

        watch.wait = wait  # type: ignore[method-assign]
        found = judge.verify(KEYED, visit=replace(SMALL, pace=paced(watch, 10), at_once=50))
        assert (found.result, found.ranges) == (Result.EQUAL, 10)
        # Nine ranges of ten rows are a second each; behind the last nothing is read.
        assert watch.now == pytest.approx(9.0)
        assert set(open_barriers) == {0}


def test_a_pause_ends_when_nobody_works_any_more() -> None:
    def check() -> None:
        raise NotVerifiedError("the worker stops")

    watch = Watch()
    pace = paced(watch, 10, check)
    pace.begin()
    pace.rest()
    pace.took(100)
    with pytest.raises(NotVerifiedError):
        pace.rest()
    assert watch.waits == 0


def test_a_slow_read_earns_no_faster_one() -> None:
    watch = Watch()
    pace = paced(watch, 10)
    pace.begin()
    watch.now += 60
    pace.took(10)
    assert pace.rest_s == 0
    pace.begin()
    pace.took(20)
    assert pace.rest_s == 2
    pace.rest()
    assert watch.now == 62


@pytest.mark.matrix
def test_the_schedule_is_slow_within_a_table_too(pair: Pair) -> None:
    slow = VerifySchedule(every=timedelta(days=7), rows_per_second=1000)
    with pair.running() as (capture, judge):
        fill(pair, capture, judge)
        waited = list[float]()

        class Notes(UntilStopped):
            def wait(self, timeout_s: float) -> None:
                waited.append(timeout_s)
                super().wait(timeout_s)

        one = replace(verifier(pair, judge, capture, schedule=slow), ranges=replace(SMALL, rows=30))
        one.verify(present(one.store.table(NAME, KEYED)), Notes())
        record = one.store.verifications.of(NAME)[KEYED]
        assert (record.result, record.ranges_total, record.scheduled_rows) == (Result.EQUAL, 4, 99)
        assert waited, "it rested"
        known = Known(tables=(), applied={}, verified={KEYED: record})
        assert 0 < slow.rest_s(known, present(record.scheduled_at)) <= 0.1


def test_a_scope_knows_nothing_of_ranges(pair: Pair) -> None:
    with pair.running() as (capture, judge):
        fill(pair, capture, judge)
        found: Verdict = judge.verify(KEYED, OfIds(frozenset({"0" * 32})), SMALL)
        assert (found.result, found.ranges) == (Result.EQUAL, None)
        pair.warehouse.tamper(KEYED, "a DELETE", remove(500))
        lost = judge.verify(KEYED, visit=SMALL)
        assert [difference.kind for difference in lost.differences] == [Kind.MISSING]
        Proofs(judge=judge).verify(KEYED, OfIds(frozenset(lost.row_keys)))
        assert bounds(pair) == []

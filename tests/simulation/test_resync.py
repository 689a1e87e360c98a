"""A part of the log was lost: with `--changed-only` a comparison finds what the target lacks, and only that is read again."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest

from replicator.capture import pump, sealing
from replicator.model.errors import SourceUnavailableError
from replicator.model.events import SnapshotEvent, SnapshotKind, SnapshotPhase
from replicator.model.processes.reports import Report
from replicator.model.schema import Column, TableId
from replicator.plugins.source import DeltaSource, SourceContext
from replicator.plugins.target import DeltaTarget, TableOptions
from replicator.runtime.policy import RetryLimits
from replicator.runtime.resyncing import Resyncing
from replicator.runtime.verifying import Verifier
from replicator.state import table_life
from replicator.state.records import ErrorRecord, RequestKind, SnapshotProgress
from replicator.state.verification.records import RangeRecord
from replicator.verify import Result, Visit, repair
from replicator.verify import resync as resync_module
from replicator_testbed.journals.captured import RunningCapture
from replicator_testbed.present import present
from replicator_testing.memory import MemorySource, MemorySourceConfig
from tests.simulation import test_verify
from tests.simulation.test_verify import KEYED, KEYLESS, NAME, Pair, change

pair = test_verify.pair

LIMITS = RetryLimits(first_s=0.01, longest_s=0.05, give_up_after_s=60.0)


@dataclass
class Until:
    """Lets a verifier work until something is so, or the replicator's threads have ended."""

    is_so: Callable[[], bool]
    capture: RunningCapture
    moment: threading.Event = field(default_factory=threading.Event)

    def should_stop(self) -> bool:
        return self.is_so() or bool(self.capture.errors)

    def wait(self, timeout_s: float) -> None:
        self.moment.wait(min(timeout_s, 0.01))

    def announce(self, event: str, **_: Any) -> None:
        del event

    def report(self, report: Report) -> None:
        del report


def resync(
    pair: Pair,
    capture: RunningCapture,
    until: Callable[[], bool],
    *,
    rows_max: int = 100,
    limits: RetryLimits = LIMITS,
    ranges: Visit | None = None,
    make_source: Callable[[SourceContext], DeltaSource[Any]] | None = None,
) -> None:
    """Be the process that compares tables, until something is so."""
    record = present(pair.captured.store.replicator(NAME))
    context = SourceContext(replicator=NAME, uuid=record.uuid)

    def open_sides() -> tuple[DeltaSource[Any], DeltaTarget[Any]]:
        return (make_source or pair.captured.make_source)(context), pair.make_target(0)

    Verifier(
        store=pair.captured.store,
        name=NAME,
        uuid=record.uuid,
        epoch=capture.lease.epoch,
        schedule=None,
        resyncing=Resyncing(store=pair.captured.store, name=NAME, rows_max=rows_max, limits=limits),
        open_sides=open_sides,
        options=lambda _: TableOptions(),
        ranges=ranges or Visit(),
    ).run(Until(until, capture))


def is_whole(pair: Pair, *tables: TableId) -> Callable[[], bool]:
    """Whether these tables stream, and the target has them as wholes."""

    def look() -> bool:
        store = pair.captured.store
        if any(request.kind is not RequestKind.BARRIER for request in store.requests.open(NAME)):
            return False
        # Behind the requests: what closes one brings what was asked for.
        records = {record.table: record for record in store.tables(NAME)}
        applied = store.applied(NAME)
        return all(
            table in applied
            and table_life.is_complete(records[table])
            and not table_life.has_snapshot_to_apply(records[table], applied[table])
            for table in tables
        )

    return look


def progress(pair: Pair, table: TableId) -> SnapshotProgress:
    return present(pair.captured.record(table).snapshot)


def started(pair: Pair, table: TableId) -> list[SnapshotKind]:
    """How the table's snapshots began, one after the other."""
    events = [event for event in pair.captured.events(table) if isinstance(event, SnapshotEvent)]
    return [event.kind for event in events if event.phase is SnapshotPhase.STARTED]


def lose_the_log(pair: Pair, **payload: Any) -> None:
    pair.database.forget_log()
    pair.captured.request(RequestKind.RESTART, changed_only=True, **payload)


def assert_equal(pair: Pair) -> None:
    """By plain comparison of both sides, which no judge has a part in."""
    for table in (KEYED, KEYLESS):
        assert pair.warehouse.state(table) == pair.database.state(table), table


def wait_until_equal(pair: Pair, capture: RunningCapture) -> None:
    """By the same comparison, once apply has everything."""
    capture.wait_until(
        lambda: all(pair.warehouse.state(table) == pair.database.state(table) for table in (KEYED, KEYLESS)),
        "the tables are equal",
    )


@pytest.fixture
def filled(pair: Pair) -> Pair:
    """Both tables have fifty rows on both sides, and nothing runs."""
    with pair.database.begin() as transaction:
        for table in (KEYED, KEYLESS):
            transaction.insert(table, *(pair.row(1_000 + n) for n in range(50)))
    with pair.running() as (capture, _):
        capture.wait_until(is_whole(pair, KEYED, KEYLESS), "the target has both tables")
    return pair


def change_in_the_gap(pair: Pair, table: TableId) -> int:
    """Insert three rows, update two, delete one; return how many that are."""
    with pair.database.begin() as transaction:
        transaction.insert(table, *(pair.row(2_000 + n) for n in range(3)))
        rows = {row[0]: dict(zip(("id", "a", "b"), row, strict=True)) for row in pair.database.state(table)}
        transaction.update(table, rows[1_001], {"a": "in the gap"})
        transaction.update(table, rows[1_002], {"id": 5_000})
        transaction.delete(table, rows[1_003])
    return 7  # of the one whose key is another now, both keys


def test_only_what_differs_is_read_again(filled: Pair) -> None:
    pair = filled
    differ = change_in_the_gap(pair, KEYED)
    lose_the_log(pair)
    with pair.running() as (capture, _):
        resync(pair, capture, is_whole(pair, KEYED, KEYLESS))
        pair.write()
        pair.captured.catch_up(capture)
        capture.wait_until(lambda: pair.warehouse.state(KEYED) == pair.database.state(KEYED), "the tables are equal")
        capture.wait_until(
            lambda: pair.warehouse.state(KEYLESS) == pair.database.state(KEYLESS), "the tables are equal"
        )
    assert [progress(pair, table).kind for table in (KEYED, KEYLESS)] == [SnapshotKind.CHANGED] * 2
    assert (progress(pair, KEYED).rows, progress(pair, KEYLESS).rows) == (differ, 0)
    verified = pair.captured.store.verifications.of(NAME)
    assert {record.result for record in verified.values()} == {Result.EQUAL}
    assert all(record.alarm is None and record.proven_at is not None for record in verified.values())
    assert all(not applied.alarms for applied in pair.captured.store.applied(NAME).values())


def test_what_differs_is_found_in_every_range_before_the_first_key_and_behind_the_last(filled: Pair) -> None:
    pair = filled
    # Ranges of ten rows end at the keys 1009, 1019, 1029 and 1039.
    updated, deleted = (1_000, 1_009, 1_010, 1_024, 1_049), (1_001, 1_019, 1_020, 1_048)
    inserted = (-(10**12), 999, 1_050, 10**12)
    moved = {1_029: 1_100, 1_030: 990, 1_005: 1_060}
    with pair.database.begin() as transaction:
        rows = {row[0]: dict(zip(("id", "a", "b"), row, strict=True)) for row in pair.database.state(KEYED)}
        for id_ in updated:
            transaction.update(KEYED, rows[id_], {"a": "in the gap"})
        for id_ in deleted:
            transaction.delete(KEYED, rows[id_])
        transaction.insert(KEYED, *(pair.row(id_) for id_ in inserted))
        for old, new in moved.items():
            transaction.update(KEYED, rows[old], {"id": new})
    lose_the_log(pair)
    ranges = list[RangeRecord]()
    visit = Visit(rows=10, at_once=2, noted=lambda one, _at, _counts: ranges.append(one))
    with pair.running() as (capture, _):
        resync(pair, capture, is_whole(pair, KEYED, KEYLESS), ranges=visit)
        wait_until_equal(pair, capture)
    assert len([one for one in ranges if (one.after, one.upto) != (None, None)]) >= 5
    assert started(pair, KEYED) == [SnapshotKind.FIRST, SnapshotKind.CHANGED]
    assert progress(pair, KEYED).rows == len(updated) + len(deleted) + len(inserted) + 2 * len(moved)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("table", "rows_max"), [(KEYLESS, 100), (KEYED, 6)], ids=["keyless", "too_many"])
def test_tables_without_a_key_and_those_that_differ_too_much_get_a_snapshot(
    filled: Pair, table: TableId, rows_max: int
) -> None:
    pair = filled
    change_in_the_gap(pair, table)
    lose_the_log(pair)
    with pair.running() as (capture, _):
        resync(pair, capture, is_whole(pair, KEYED, KEYLESS), rows_max=rows_max)
        assert_equal(pair)
    assert started(pair, table) == [SnapshotKind.FIRST, SnapshotKind.CHANGED, SnapshotKind.IN_PLACE]
    (other,) = {KEYED, KEYLESS} - {table}
    assert started(pair, other) == [SnapshotKind.FIRST, SnapshotKind.CHANGED]
    assert not pair.captured.record(table).is_changed_only


class KilledError(Exception):
    """A process was killed."""


@contextmanager
def killing(draw: random.Random, monkeypatch: pytest.MonkeyPatch, odds: float) -> Iterator[None]:
    """Capture, and the process that compares, may be killed wherever they pass a crash point."""

    def crash_point(name: str) -> None:
        if draw.random() < odds:
            raise KilledError(name)

    with monkeypatch.context() as patched:
        for module in (pump, sealing, resync_module, repair):
            patched.setattr(module, "crash_point", crash_point)
        yield


@pytest.mark.parametrize(
    ("seed", "rounds"), [(0, 2), *(pytest.param(seed, 8, marks=pytest.mark.matrix) for seed in range(4))]
)
def test_kills_at_any_time_leave_both_sides_equal(
    filled: Pair, seed: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is lost again and again, too, and rows change in the gap and all the time."""
    pair, draw = filled, random.Random(seed)
    pair.draw = random.Random(seed)
    for round_ in range(rounds):
        is_last = round_ == rounds - 1
        if round_ == 0 or (not is_last and draw.random() < 0.3):
            for _ in range(draw.randint(0, 12)):
                pair.write()
            lose_the_log(pair)
        with killing(draw, monkeypatch, 0.0 if is_last else draw.choice([0.0, 0.01, 0.1])):
            try:
                with pair.running() as (capture, _):
                    stop = threading.Event()
                    busy = threading.Thread(target=write_until, args=(pair, stop))
                    busy.start()
                    done = is_whole(pair, KEYED, KEYLESS)
                    until = done if is_last else at_random(draw, done)
                    try:
                        resync(pair, capture, until)
                    finally:
                        stop.set()
                        busy.join()
                    if is_last:
                        pair.captured.catch_up(capture)
                        wait_until_equal(pair, capture)
            except KilledError:
                continue
    assert_equal(pair)


def at_random(draw: random.Random, done: Callable[[], bool]) -> Callable[[], bool]:
    return lambda: draw.random() < 0.02 or done()


def write_until(pair: Pair, stop: threading.Event) -> None:
    while not stop.is_set():
        pair.write()
        stop.wait(0.01)


class Away(MemorySource):
    """A source whose states cannot be read."""

    def open_state(self, schema: Any, columns: Any) -> Any:
        raise SourceUnavailableError("it is away", code="source_unavailable", table=str(schema.table))


@pytest.mark.matrix
def test_a_table_that_cannot_be_compared_is_tried_again_and_read_as_a_whole_in_the_end(filled: Pair) -> None:
    pair = filled
    change_in_the_gap(pair, KEYED)
    lose_the_log(pair)

    def away(context: SourceContext) -> MemorySource:
        return Away(MemorySourceConfig(database=pair.database.name), context)

    with pair.running() as (capture, _):
        tried = pair.captured.store.verifications.of
        resync(
            pair, capture, lambda: {r.result for r in tried(NAME).values()} == {Result.NOT_VERIFIED}, make_source=away
        )
        assert started(pair, KEYED)[-1] is SnapshotKind.CHANGED
        assert "it is away" in present(tried(NAME)[KEYED].reason) or "changed" in present(tried(NAME)[KEYED].reason)
        hasty = replace(LIMITS, give_up_after_s=0.0)
        resync(pair, capture, is_whole(pair, KEYED, KEYLESS), limits=hasty, make_source=away)
        assert_equal(pair)
    assert {started(pair, table)[-1] for table in (KEYED, KEYLESS)} == {SnapshotKind.IN_PLACE}


def test_a_table_that_apply_has_given_up_is_read_as_a_whole(filled: Pair) -> None:
    pair, store = filled, filled.captured.store
    change_in_the_gap(pair, KEYED)
    lose_the_log(pair)
    with pair.running() as (capture, _):
        capture.wait_until(lambda: store.verifications.is_comparing(NAME), "the tables are compared")
        # Otherwise apply would store its own record of the table over this one.
        capture.wait_until(
            lambda: store.applied(NAME)[KEYED].last_applied >= store.journal.feed_tables(NAME)[KEYED],
            "apply is idle",
        )
        error = ErrorRecord(code="value_too_large", message="it does not fit", action=None, at=store.now())
        failed = table_life.refused(store.applied(NAME)[KEYED], error)
        store.put_applied(NAME, capture.lease.epoch, [failed])
        resync(pair, capture, is_whole(pair, KEYED, KEYLESS))
        assert_equal(pair)
    # It was not tried again and again for that.
    assert KEYED not in store.verifications.of(NAME)
    assert started(pair, KEYED)[-1] is SnapshotKind.IN_PLACE


def test_definitions_that_changed_in_the_gap_are_followed_first(filled: Pair) -> None:
    pair = filled
    schema = pair.database.table(KEYED).schema
    added = Column(name="c", type=pa.int64(), source_type="bigint")
    with pair.database.begin() as transaction:
        transaction.alter(replace(schema, columns=(*schema.columns, added)))
        transaction.update(KEYED, (1_001,), {"c": 7})
        transaction.truncate(KEYLESS)
    lose_the_log(pair)
    with pair.running() as (capture, _):
        resync(pair, capture, is_whole(pair, KEYED, KEYLESS))
        wait_until_equal(pair, capture)
    assert (started(pair, KEYED)[-1], progress(pair, KEYED).rows) == (SnapshotKind.CHANGED, 1)
    assert started(pair, KEYLESS)[-1] is SnapshotKind.IN_PLACE


def test_what_others_changed_in_the_target_is_repaired_and_its_alarm_cleared(filled: Pair) -> None:
    pair, store = filled, filled.captured.store
    with pair.running() as (capture, _):
        pair.warehouse.tamper(KEYED, "an UPDATE", change({"a": "of others"}))
        with pair.database.begin() as transaction:
            transaction.insert(KEYED, pair.row(9_000))
        capture.wait_until(lambda: store.applied(NAME)[KEYED].alarms, "there is an alarm")
    lose_the_log(pair)
    with pair.running() as (capture, _):
        resync(pair, capture, is_whole(pair, KEYED, KEYLESS))
        wait_until_equal(pair, capture)
        capture.wait_until(lambda: not store.applied(NAME)[KEYED].alarms, "the alarm is cleared")
    assert progress(pair, KEYED).rows == 1


def test_what_was_found_before_log_was_lost_once_more_proves_nothing(
    filled: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, store = filled, filled.captured.store
    lose_the_log(pair)
    with pair.running() as (capture, _):

        def begun() -> dict[TableId, object]:
            comparing = [record for record in store.tables(NAME) if table_life.is_comparing(record)]
            return {record.table: present(record.snapshot).started_at for record in comparing}

        def lose_it_again(name: str) -> None:
            if name == "verify.compared":
                before = begun()
                pair.captured.request(RequestKind.RESTART, changed_only=True)
                capture.wait_until(
                    lambda: before.keys() == begun().keys() and all(begun()[t] != before[t] for t in before), "it began"
                )

        with monkeypatch.context() as patched:
            patched.setattr(resync_module, "crash_point", lose_it_again)
            resync(pair, capture, lambda: bool(store.verifications.of(NAME)))
        (found,) = store.verifications.of(NAME).values()
        assert (found.result, found.proven_at) == (Result.NOT_VERIFIED, None)
        resync(pair, capture, is_whole(pair, KEYED, KEYLESS))
        assert_equal(pair)

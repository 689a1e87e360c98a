"""What may be dropped, what must stay, and who is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from unittest.mock import ANY

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.journal import JournalReader, Retention
from replicator.journal.retention import (
    EVERYTHING,
    FULL_SHARE,
    NOTHING,
    Consumer,
    Swept,
    apply_consumer,
    needs_of,
    plan_retention,
)
from replicator.model.errors import FencedError
from replicator.model.schema import TableId
from replicator.state import AppliedRecord, Segment, SegmentFile, Stage, TableRecord
from replicator.state.records import ApplyState
from replicator.state.table_life import JOURNAL_GIVEN_UP
from replicator_testbed.present import present

if TYPE_CHECKING:
    from tests.unit.journal.conftest import FakeClock, Journal

HUGE = 1 << 40
DAY_S = 86_400

SWEEP = """
import sys
from replicator.journal import Retention
from replicator.state import StateStore
Retention(StateStore(sys.argv[1]), "shop", epoch=int(sys.argv[2]), keep_s=0, bytes_max=1 << 40).sweep()
"""


@pytest.fixture
def tables(journal: Journal) -> tuple[TableId, TableId]:
    """Segments 1 to 4: a, a and b, b, nothing but the newest."""
    a, b = journal.schema_of("a"), journal.schema_of("b")
    journal.insert(a, 10)
    journal.commit()
    journal.insert(a, 10)
    journal.insert(b, 10)
    journal.commit()
    journal.insert(b, 10)
    journal.commit()
    journal.commit()
    stream(journal, a.table)
    stream(journal, b.table)
    return a.table, b.table


def stream(journal: Journal, table: TableId, stage: Stage = Stage.STREAMING) -> None:
    journal.store.put_tables("shop", journal.epoch, [TableRecord(table=table, incarnation=1, stage=stage)])


def apply(
    journal: Journal, table: TableId, last: int, *, incarnation: int = 1, state: ApplyState = ApplyState.APPLYING
) -> None:
    record = AppliedRecord(table=table, incarnation=incarnation, last_applied=last, state=state)
    journal.store.put_applied("shop", journal.epoch, [record])


def sweep(journal: Journal, *, keep_s: float = 0.0, bytes_max: int = HUGE) -> Swept:
    return Retention(journal.store, "shop", epoch=journal.epoch, keep_s=keep_s, bytes_max=bytes_max).sweep()


def kept(journal: Journal) -> list[int]:
    return [s.id for s in journal.store.journal.segments("shop", 0, 100)]


def test_nothing_goes_before_every_table_has_applied_it(journal: Journal, tables: tuple[TableId, TableId]) -> None:
    a, b = tables
    assert sweep(journal).segments == 0
    apply(journal, a, 18)
    assert sweep(journal).segments == 1
    assert kept(journal) == [2, 3, 4]
    apply(journal, a, 19)
    assert sweep(journal).segments == 0
    apply(journal, b, 29)
    swept = sweep(journal)
    assert (swept.segments, swept.given_up) == (1, ())
    assert swept.bytes > 0
    assert kept(journal) == [3, 4]
    assert len(journal.files()) == 1


def test_the_newest_segment_stays(journal: Journal, tables: tuple[TableId, TableId]) -> None:
    for table in tables:
        apply(journal, table, 99)
    sweep(journal)
    assert kept(journal) == [4]
    assert journal.new_writer().next_sequence_num == 40


def test_applied_segments_are_kept_for_their_time(
    journal: Journal, clock: FakeClock, tables: tuple[TableId, TableId]
) -> None:
    for table in tables:
        apply(journal, table, 99)
    assert sweep(journal, keep_s=DAY_S).segments == 0
    clock.advance(DAY_S)
    assert sweep(journal, keep_s=DAY_S).segments == 3


def test_a_full_journal_keeps_less_than_its_time(journal: Journal, tables: tuple[TableId, TableId]) -> None:
    for table in tables:
        apply(journal, table, 99)
    total = journal.store.journal.total_bytes("shop")
    assert sweep(journal, keep_s=DAY_S, bytes_max=int(total / FULL_SHARE) + 10).segments == 0
    assert sweep(journal, keep_s=DAY_S, bytes_max=int(total / FULL_SHARE) - 10).segments == 1
    assert kept(journal) == [2, 3, 4]


def test_a_long_index_is_looked_at_in_parts_and_again_from_the_beginning(
    journal: Journal, tables: tuple[TableId, TableId], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.journal.retention._SEGMENTS_PER_READ", 2)
    a, b = tables
    retention = Retention(journal.store, "shop", epoch=journal.epoch, keep_s=0, bytes_max=HUGE)
    assert [retention.sweep().segments for _ in range(3)] == [0, 0, 0]
    apply(journal, b, 99)
    assert sum(retention.sweep().segments for _ in range(2)) == 1
    apply(journal, a, 99)
    assert sum(retention.sweep().segments for _ in range(3)) == 2
    assert kept(journal) == [4]


def test_removed_tables_and_older_incarnations_need_nothing(journal: Journal, tables: tuple[TableId, TableId]) -> None:
    a, b = tables
    stream(journal, a, Stage.REMOVED)
    apply(journal, b, -1, incarnation=2)
    assert sweep(journal).segments == 3


def test_a_newer_incarnation_than_the_applied_one_is_needed(journal: Journal) -> None:
    a = journal.schema_of("a")
    stream(journal, a.table)
    journal.event(a.table, incarnation=2)
    journal.commit()
    journal.commit()
    apply(journal, a.table, 99)
    assert sweep(journal).segments == 0
    apply(journal, a.table, 0, incarnation=2)
    assert sweep(journal).segments == 1


def test_a_failing_table_keeps_its_segments_until_the_journal_is_full(
    journal: Journal, tables: tuple[TableId, TableId]
) -> None:
    a, b = tables
    apply(journal, b, 99)
    apply(journal, a, -1, state=ApplyState.FAILED)
    assert sweep(journal).segments == 1
    assert kept(journal) == [1, 2, 4]
    swept = sweep(journal, bytes_max=1)
    assert swept.segments == 2
    assert [r.table for r in swept.given_up] == [a]
    record = next(r for r in journal.store.tables("shop") if r.table == a)
    assert record == swept.given_up[0]
    assert (record.stage, present(record.error).code, present(record.error).action) == (
        Stage.FAILED,
        JOURNAL_GIVEN_UP,
        "Run `replicator snapshot shop public.a`.",
    )
    assert JournalReader(journal.store, "shop").is_lost(a, 1, -1)
    assert journal.files() == []


def test_what_a_healthy_table_needs_is_never_given_up(journal: Journal, tables: tuple[TableId, TableId]) -> None:
    a, _ = tables
    stream(journal, a, Stage.FAILED)
    swept = sweep(journal, bytes_max=1)
    assert swept.segments == 1
    assert kept(journal) == [2, 3, 4]


def test_a_table_given_up_needs_nothing_more(journal: Journal, tables: tuple[TableId, TableId]) -> None:
    a, b = tables
    stream(journal, a, Stage.FAILED)
    sweep(journal, bytes_max=1)
    apply(journal, b, 99)
    swept = sweep(journal)
    assert (swept.segments, swept.given_up) == (2, ())


def test_an_older_epoch_drops_nothing(journal: Journal, tables: tuple[TableId, TableId]) -> None:
    for table in tables:
        apply(journal, table, 99)
    old = journal.epoch
    journal.new_epoch()
    with pytest.raises(FencedError):
        Retention(journal.store, "shop", epoch=old, keep_s=0, bytes_max=HUGE).sweep()
    assert len(journal.files()) == 4


def test_a_crash_between_index_and_files_leaves_orphans_only(journal: Journal, tables: tuple[TableId, TableId]) -> None:
    for table in tables:
        apply(journal, table, 99)
    child = subprocess.run(
        [sys.executable, "-c", SWEEP, journal.url, str(journal.epoch)],
        env=os.environ | {"REPLICATOR_CRASH_AT": "journal.segments_dropped"}, check=False,
    )  # fmt: skip
    assert child.returncode == -signal.SIGKILL
    assert kept(journal) == [4]
    assert len(journal.files()) == 4
    assert journal.new_epoch().sweep() == 4


TABLES = [TableId("s", name) for name in "abc"]


@given(
    layout=st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 2)), max_size=3), min_size=1, max_size=12),
    applied=st.lists(
        st.tuples(st.integers(1, 2), st.integers(-1, 60), st.sampled_from(ApplyState)), min_size=3, max_size=3
    ),
    stages=st.lists(st.sampled_from(Stage), min_size=3, max_size=3),
    keep_s=st.integers(0, 20),
    bytes_max=st.integers(1, 3000),
    now_s=st.integers(0, 20),
)
def test_no_plan_takes_from_a_healthy_table_what_it_needs(
    journal_time: datetime,
    layout: list[list[tuple[int, int]]],
    applied: list[tuple[int, int, ApplyState]],
    stages: list[Stage],
    keep_s: int,
    bytes_max: int,
    now_s: int,
) -> None:
    segments, number = [], 0
    for id_, files in enumerate(layout, start=1):
        made = []
        for table, incarnation in files:
            made.append(make_file(TABLES[table], number, incarnation))
            number += 2
        moment = journal_time + timedelta(seconds=id_)
        segments.append(
            Segment(
                id=id_, first=number - 2 * len(files), last=number - 1, epoch=1, offset=None, source_time=None, ring=(), files=made,
                events=(), sealed_at=moment,
            )
        )  # fmt: skip
    tables = {t: TableRecord(table=t, incarnation=1, stage=s) for t, s in zip(TABLES, stages, strict=True)}
    records = {
        t: AppliedRecord(table=t, incarnation=i, last_applied=last, state=state)
        for t, (i, last, state) in zip(TABLES, applied, strict=True)
    }
    needs = needs_of(tables, [apply_consumer(tables, records)])

    def needed_by(segment: Segment) -> set[TableId]:
        return {need.table for need in needs.needed_by(segment)}

    now = journal_time + timedelta(seconds=now_s)
    total = sum(f.bytes for s in segments for f in s.files)
    plan = plan_retention(segments[:-1], needs, now=now, keep_s=keep_s, total=total, bytes_max=bytes_max)
    ids = {s.id for s in plan.segments}
    healthy = set(TABLES) - {need.table for need in needs.failed()}
    assert segments[-1].id not in ids
    assert len(ids) == len(plan.segments)
    assert not plan.given_up & healthy
    for segment in plan.segments:
        assert needed_by(segment) <= plan.given_up
    left = sum(f.bytes for s in segments if s.id not in ids for f in s.files)
    for segment in segments[:-1]:
        is_old = segment.sealed_at <= now - timedelta(seconds=keep_s)
        if segment.id not in ids:
            assert needed_by(segment) or not is_old
            assert left < bytes_max * FULL_SHARE or needed_by(segment) & healthy
    if plan.given_up:
        freed_for_nothing = left + max(f.bytes for s in plan.segments for f in s.files) * 3
        assert freed_for_nothing >= bytes_max * FULL_SHARE


@pytest.mark.parametrize(("total", "dropped"), [(0, [1]), (1000, [1])], ids=["by age", "full"])
def test_each_consumer_keeps_what_it_has_not_read(journal_time: datetime, total: int, dropped: list[int]) -> None:
    segments = [
        Segment(
            id=id_, first=2 * id_ - 2, last=2 * id_ - 1, epoch=1, offset=None, source_time=None, ring=(), events=(),
            files=[make_file(TABLES[0], 2 * id_ - 2, 1)], sealed_at=journal_time,
        )
        for id_ in (1, 2, 3)
    ]  # fmt: skip
    failed = Consumer(name="apply", position=lambda *_: EVERYTHING, failed=frozenset(TABLES))
    behind = Consumer(name="relay", position=lambda *_: 1)
    plan = plan_retention(
        segments, needs_of({}, [failed, behind]), now=journal_time, keep_s=0, total=total, bytes_max=100
    )
    assert [segment.id for segment in plan.segments] == dropped
    assert plan.given_up == frozenset()


@pytest.mark.parametrize(("before", "dropped"), [(0, []), (2, [1]), (3, [1]), (4, [1, 2])])
def test_what_settings_protect_by_now_does_not_wait_for_its_age(
    journal_time: datetime, before: int, dropped: list[int]
) -> None:
    segments = [
        Segment(
            id=id_, first=2 * id_ - 2, last=2 * id_ - 1, epoch=1, offset=None, source_time=None, ring=(), events=(),
            files=[make_file(TABLES[0], 2 * id_ - 2, 1)], sealed_at=journal_time,
        )
        for id_ in (1, 2, 3)
    ]  # fmt: skip
    read = Consumer(name="apply", position=lambda *_: EVERYTHING)
    more = {"now": journal_time, "keep_s": DAY_S, "total": 0, "bytes_max": HUGE}
    plan = plan_retention(segments, needs_of({}, [read]), plain={TABLES[0]: before}, **more)  # type: ignore[arg-type]
    assert [segment.id for segment in plan.segments] == dropped
    unread = Consumer(name="apply", position=lambda *_: NOTHING)
    assert not plan_retention(segments, needs_of({}, [unread]), plain={TABLES[0]: before}, **more).segments  # type: ignore[arg-type]


def test_a_sweep_tells_which_tables_have_no_plain_values_any_more(
    journal: Journal, tables: tuple[TableId, TableId]
) -> None:
    a, _ = tables
    record = present(journal.store.table("shop", a))
    journal.store.put_tables("shop", journal.epoch, [replace(record, plain_before=20)])
    apply(journal, a, 9)
    assert sweep(journal, keep_s=DAY_S) == Swept(segments=1, bytes=ANY)
    apply(journal, a, 19)
    assert sweep(journal, keep_s=DAY_S) == Swept(), "another table needs it"
    apply(journal, tables[1], 29)
    assert sweep(journal, keep_s=DAY_S) == Swept(segments=1, bytes=ANY, cleared=(a,))


def make_file(table: TableId, first: int, incarnation: int) -> SegmentFile:
    return SegmentFile(
        table=table, incarnation=incarnation, schema_fingerprint="f", uri=f"file:///{first}", rows=2, bytes=100, sha256="", first=first,
        last=first + 1, snapshot_rows=0, has_absent=False, has_key_changes=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def journal_time() -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC)

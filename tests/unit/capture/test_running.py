"""A snapshot that runs goes through its steps, whatever the order of reads, marks and losses."""

from __future__ import annotations

from concurrent.futures import Future

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from replicator.capture.snapshots.chunks import ChunkJob, ChunkRead
from replicator.capture.snapshots.progress import Reading
from replicator.capture.snapshots.running import (
    ChunkAtMark,
    ChunkTaken,
    Emitted,
    Ended,
    Event,
    Failed,
    Lost,
    Refused,
    Running,
    Scheduled,
    WholeBegan,
    WholeGood,
    advance,
)
from replicator.capture.tables import TrackedTable
from replicator.capture.window import Read
from replicator.model.errors import SourceUnavailableError, TableError
from replicator.model.processes.reports import RunningStep
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.source import Chunk, Visibility
from replicator.state import table_life

SCHEMA = TableSchema(
    table=TableId("public", "t"), columns=(Column(name="id", type=pa.int64(), source_type="bigint"),), key=("id",)
)
AWAY = SourceUnavailableError("locked", code="lock_timeout", table="public.t")
BROKEN = TableError("broken", code="unsupported_type", table="public.t")


class SeesAll(Visibility):
    @override
    def classify(self, transaction_ids: pa.StringArray) -> pa.Int8Array:
        raise NotImplementedError


def chunk() -> ChunkAtMark:
    """A chunk that was read."""
    reading = Reading(schema=SCHEMA, limit=2)
    visibility = SeesAll()
    rows = pa.RecordBatch.from_pydict({"id": [1]})
    read = Chunk(rows=rows, cursor=("1",), visibility=visibility, identity=None)
    result = ChunkRead(
        job=ChunkJob(reading, 1, pa.schema([]), lambda rows: rows),
        reading=reading,
        chunk=read,
        mark=Future(),
        is_last=False,
    )
    return ChunkAtMark(result, Read(schema=SCHEMA, visibility=visibility))


FIRST = chunk()
SCHEDULED, BEGAN = Scheduled(job=FIRST.result.job), WholeBegan(FIRST.read)
LAST, NOT_LAST = Emitted(read=FIRST, is_complete=True), Emitted(read=FIRST, is_complete=False)
REFUSED = Refused(error=AWAY, at=1.0, not_before=5.0)
NEW = Running(tracked=TrackedTable(table_life.added(SCHEMA.table)))

WAYS: dict[RunningStep, tuple[Event, ...]] = {
    RunningStep.DUE: (),
    RunningStep.WAITING: (SCHEDULED, ChunkTaken(FIRST), Lost(3.0)),
    RunningStep.READING: (SCHEDULED, ChunkTaken(FIRST)),
    RunningStep.MARKING: (SCHEDULED, ChunkTaken(FIRST), Ended()),
    RunningStep.WRITING: (SCHEDULED, BEGAN, WholeGood()),
    RunningStep.COMPLETED: (SCHEDULED, ChunkTaken(FIRST), LAST),
    RunningStep.FAILED: (SCHEDULED, Failed(BROKEN)),
}
R, M, W, D = RunningStep.READING, RunningStep.MARKING, RunningStep.WAITING, RunningStep.DUE
TRANSITIONS: dict[RunningStep, dict[Event, RunningStep]] = {
    D: {SCHEDULED: R},
    W: {SCHEDULED: R},
    R: {
        ChunkTaken(FIRST): R, BEGAN: R, Ended(): M, NOT_LAST: R, LAST: RunningStep.COMPLETED, Lost(3.0): W, REFUSED: W,
        Failed(BROKEN): RunningStep.FAILED, WholeGood(): RunningStep.WRITING,
    },
    M: {NOT_LAST: D, LAST: RunningStep.COMPLETED, Lost(3.0): W, WholeGood(): RunningStep.WRITING},
    RunningStep.WRITING: {LAST: RunningStep.COMPLETED, NOT_LAST: RunningStep.WRITING},
    RunningStep.COMPLETED: {},
    RunningStep.FAILED: {},
}  # fmt: skip
EVENTS = (SCHEDULED, *TRANSITIONS[R])


def at(step: RunningStep) -> Running:
    """A snapshot at a step."""
    running = NEW
    for event in WAYS[step]:
        running = advance(running, event)
    assert running.step is step
    return running


@pytest.mark.parametrize("step", RunningStep)
@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_each_step_takes_its_own_events_and_no_other(step: RunningStep, event: Event) -> None:
    if event in TRANSITIONS[step]:
        assert advance(at(step), event).step is TRANSITIONS[step][event]
    else:
        with pytest.raises(AssertionError, match=f"{type(event).__name__} while {step.value}"):
            advance(at(step), event)


def test_what_was_read_is_forgotten_when_it_is_lost_and_read_again_later_and_later() -> None:
    lost = advance(at(R), Lost(3.0))
    assert (lost.job, lost.at_mark, lost.log, lost.whole) == (None, (), None, None)
    assert (lost.is_due(2.9), lost.is_due(3.0)) == (False, True)
    assert [NEW.pause_s(1.0, 5.0), lost.pause_s(1.0, 5.0)] == [1.0, 2.0]
    again = advance(advance(lost, SCHEDULED), ChunkTaken(FIRST))
    assert advance(again, NOT_LAST).pause_s(1.0, 5.0) == 1.0


def test_refusals_count_from_the_first_until_something_is_read() -> None:
    refused = advance(at(R), REFUSED)
    twice = advance(advance(refused, SCHEDULED), Refused(error=AWAY, at=9.0, not_before=12.0))
    assert (twice.refusal, twice.refused_since) == (AWAY, 1.0)
    read = advance(advance(twice, SCHEDULED), ChunkTaken(FIRST))
    assert (read.refusal, read.refused_since) == (None, None)


def test_a_read_that_did_not_see_all_is_repeated_only_after_a_while() -> None:
    unsettled = advance(at(M), Emitted(read=FIRST, is_complete=False, read_again_at=7.0))
    assert (unsettled.step, unsettled.is_due(6.9), unsettled.is_due(7.0)) == (W, False, True)


@given(st.lists(st.sampled_from(["chunk", "end", "emit", "lose", "refuse", "schedule"]), max_size=30))
def test_the_reader_reads_it_in_one_step_and_marks_are_awaited_in_two(doings: list[str]) -> None:
    running = NEW
    for doing in doings:
        event: Event | None = None
        match doing, running.step:
            case "chunk", RunningStep.READING:
                event = ChunkTaken(chunk())
            case "end", RunningStep.READING:
                event = Ended()
            case "emit", _ if running.at_mark:
                event = Emitted(read=running.at_mark[0], is_complete=False)
            case "lose", (RunningStep.READING | RunningStep.MARKING):
                event = Lost(0.0)
            case "refuse", RunningStep.READING:
                event = REFUSED
            case "schedule", _ if running.is_due(10.0):
                event = SCHEDULED
            case _:
                continue
        running = advance(running, event)
        assert running.is_due(10.0) == (running.job is None)
        assert running.step is not M or running.at_mark
        assert not running.at_mark or running.step in (R, M)

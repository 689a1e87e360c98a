"""A snapshot that is to begin goes through its steps, whatever the order of the answers."""

from __future__ import annotations

from concurrent.futures import Future
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from replicator.capture.asking import Answer as CatalogueAnswer
from replicator.capture.checks import Checks, nothing_found
from replicator.capture.definitions.comparison import Comparison
from replicator.capture.definitions.seen import Alterations
from replicator.capture.marks import MarkBoard
from replicator.capture.snapshots.beginning import Beginnings
from replicator.capture.snapshots.starting import (
    Answer,
    Delivered,
    Described,
    Looked,
    LookedFirst,
    Question,
    Reads,
    Starting,
    Step,
    advance,
    question,
)
from replicator.capture.tables import TrackedTables
from replicator.capture.window import Window
from replicator.journal import JournalWriter
from replicator.model.errors import KeyMissingError, SourceUnavailableError
from replicator.model.schema import TableId
from replicator.plugins.source import Visibility
from replicator.projection.rules import NO_RULES
from replicator_testing.defaults import writer_limits

if TYPE_CHECKING:
    from tests.unit.capture.conftest import Bench

T, U = TableId("public", "t"), TableId("public", "u")


class Seen(Visibility):
    """Sees transactions up to a number."""

    def __init__(self, upto: int) -> None:
        self.upto = upto

    @override
    def classify(self, transaction_ids: pa.StringArray) -> pa.Int8Array:
        raise NotImplementedError

    @override
    def is_beyond(self, earlier: Visibility) -> bool:
        assert isinstance(earlier, Seen)
        return self.upto > earlier.upto


DESCRIBED, DELIVERED = Described(tables=(T,), found={}), Delivered(next_number=50)
FIRST, LACKS = LookedFirst(since=Seen(3), may_lack=False), LookedFirst(since=Seen(3), may_lack=True)
ANSWERS: dict[Step, tuple[type, ...]] = {
    Step.PREPARING: (Described,),
    Step.LOOKING: (LookedFirst,),
    Step.MARKING: (Delivered,),
    Step.SETTLING: (Reads, Looked),
    Step.READY: (),
}
EXAMPLES: tuple[Answer, ...] = (DESCRIBED, FIRST, DELIVERED, Reads(see_below=50), Looked(seen=Seen(4)))


def at(step: Step, *, first: LookedFirst = FIRST) -> Starting:
    """A snapshot at a step."""
    starting = Starting(id=1, tables=(T, U), requests=(7,))
    for answer in (DESCRIBED, first, DELIVERED, Reads(see_below=50)):
        if starting.step is step:
            return starting
        starting = advance(starting, answer)
    assert starting.step is step
    return starting


def test_the_way_of_a_snapshot_nobody_stands_against() -> None:
    asked = [question(at(step)) for step in Step]
    assert asked == [Question.CATALOGUE, Question.VISIBILITY, Question.MARK, Question.NOTHING, Question.NOTHING]
    ready = at(Step.READY)
    assert (ready.tables, ready.requests, ready.floor, ready.waits_for) == ((T,), (7,), 50, None)


@pytest.mark.parametrize("step", Step)
@pytest.mark.parametrize("answer", EXAMPLES, ids=lambda a: type(a).__name__)
def test_each_step_takes_its_own_answers_and_no_other(step: Step, answer: Answer) -> None:
    if isinstance(answer, ANSWERS[step]):
        advance(at(step), answer)
    else:
        with pytest.raises(AssertionError, match=f"{type(answer).__name__} while {step.value}"):
            advance(at(step), answer)


def test_it_waits_until_reads_see_everything_below_its_floor_and_asks_once_whose_fault_it_is() -> None:
    hidden = advance(at(Step.SETTLING), Reads(see_below=49))
    assert (hidden.step, question(hidden)) == (Step.SETTLING, Question.VISIBILITY)
    assert hidden.waits_for is None, "who it is nobody knows yet"
    named = advance(hidden, Looked(seen=Seen(9)))
    assert question(named) is Question.NOTHING
    assert named.waits_for is named.by
    assert advance(named, Reads(see_below=50)).step is Step.READY


def test_where_the_log_may_lack_changes_everybody_who_had_begun_must_have_ended() -> None:
    early = advance(at(Step.SETTLING, first=LACKS), Reads(see_below=50))
    assert (early.step, early.waits_for, question(early)) == (Step.SETTLING, LACKS.since, Question.VISIBILITY)
    still = advance(advance(early, Looked(seen=Seen(3))), Reads(see_below=50))
    assert (still.step, question(still)) == (Step.SETTLING, Question.VISIBILITY)
    assert advance(advance(still, Looked(seen=Seen(4))), Reads(see_below=50)).step is Step.READY


READS = st.integers(0, 60).map(lambda n: Reads(see_below=n))
LOOKS = st.integers(0, 6).map(lambda n: Looked(seen=Seen(n)))


@given(st.lists(st.one_of(READS, LOOKS)), st.booleans())
def test_it_begins_neither_too_early_nor_never(answers: list[Answer], may_lack: bool) -> None:
    starting = at(Step.SETTLING, first=LACKS if may_lack else FIRST)
    newest = -1
    for answer in answers:
        starting = advance(starting, answer)
        newest = answer.seen.upto if isinstance(answer, Looked) and isinstance(answer.seen, Seen) else newest
        if isinstance(answer, Reads):
            may_begin = answer.see_below >= 50 and (newest > 3 or not may_lack)
            assert (starting.step is Step.READY) == may_begin
            assert (starting.waits_for is None) or not may_begin
            if may_begin:
                return


def test_tables_that_are_refused_are_told_before_another_answer_raises(bench: Bench) -> None:
    _, source = bench.make()
    answers: list[Future[Any]] = []

    def submit(*_: Any) -> Future[Any]:
        answers.append(Future())
        return answers[-1]

    marks: MarkBoard[Any] = MarkBoard()
    writer = JournalWriter(
        bench.store, name="test", epoch=1, uri=(bench.folder / "journal").as_uri(), limits=writer_limits()
    )
    tables = TrackedTables(writer, [], lambda: datetime.now(UTC))
    beginnings = Beginnings(
        source=source,
        submit=submit,
        configured=[T, U],
        checks=Checks(source=source, columns=lambda _: NO_RULES, assess=nothing_found, clock=monotonic, every_s=60),
        marks=marks,
        window=Window([]),
        tables=tables,
        comparison=Comparison(source=source, submit=submit, marks=marks, tables=tables, alterations=Alterations(())),
    )
    beginnings.start([T])
    beginnings.start([U])
    answers[0].set_exception(SourceUnavailableError("The connection was lost.", code="connection_lost"))
    answers[1].set_result(CatalogueAnswer(refused={U: KeyMissingError("It has no key.", code="no_key")}))

    assert {table: error.code for table, error in beginnings.poll().items()} == {U: "no_key"}
    with pytest.raises(SourceUnavailableError, match="was lost"):
        beginnings.poll()
    assert beginnings.poll() == {}
    writer.close()

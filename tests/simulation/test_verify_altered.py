"""A table that is altered, truncated, dropped, renamed or made again while it is compared: the verdict is right, or there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pytest

from replicator.model.schema import Column, TableId
from replicator.plugins.source import SourceContext
from replicator.state.records import Stage
from replicator.verify import Result, Sample, Visit
from replicator.verify.barriers import Barriers, NotVerifiedError
from replicator_testbed.present import present
from replicator_testing.memory import MemorySource, MemorySourceConfig, MemoryTarget
from tests.simulation import test_resync, test_verify
from tests.simulation.test_resync import change_in_the_gap, is_whole, lose_the_log, resync
from tests.simulation.test_verify import KEYED, KEYLESS, NAME, Pair, schema_of, settled

pair = test_verify.pair
filled = test_resync.filled

Act = Callable[[Pair, TableId], None]
STEPS: Final = ("source.open_state", "target.open_state", "target.open_state.after", "source.same_table")
"""Where a comparison is: before the source was read, then before the target was, then before anything was asked, then behind that."""
ROWS: Final = range(100, 130)
GONE: Final = "the source does not have it any more, so there is nothing to compare it with"
NOT_COMPLETE: Final = "its snapshot is not complete"


def add_column(pair: Pair, table: TableId) -> None:
    schema = pair.database.table(table).schema
    added = Column(name="c", type=pa.int64(), source_type="bigint")
    with pair.database.begin() as transaction:
        transaction.alter(replace(schema, columns=(*schema.columns, added)), fill={"c": 7})
    with pair.database.begin() as transaction:
        transaction.insert(table, {**pair.row(900), "c": 8})


def drop_column(pair: Pair, table: TableId) -> None:
    schema = pair.database.table(table).schema
    with pair.database.begin() as transaction:
        transaction.alter(replace(schema, columns=schema.columns[:-1]))


def truncate(pair: Pair, table: TableId) -> None:
    with pair.database.begin() as transaction:
        transaction.truncate(table)


def refill(pair: Pair, table: TableId) -> None:
    """The same keys have other rows."""
    with pair.database.begin() as transaction:
        transaction.truncate(table)
        transaction.insert(table, *({"id": id_, "a": "again"} for id_ in ROWS))


def drop(pair: Pair, table: TableId) -> None:
    pair.database.drop_table(table)


def make_again(pair: Pair, table: TableId) -> None:
    with pair.database.changed:
        pair.database.drop_table(table)
        pair.database.create_table(schema_of(table))
        with pair.database.begin() as transaction:
            transaction.insert(table, *({"id": id_, "a": "again"} for id_ in ROWS))


def rename(pair: Pair, table: TableId) -> None:
    pair.database.rename_tables({table: TableId("shop", f"{table.name}_now")})


def followed(pair: Pair, *, every_s: float) -> None:
    """How soon capture finds out what the log does not say: that tables were dropped or made."""
    pair.captured.settings = replace(pair.captured.settings, compare_every_s=every_s)


def script(source: MemorySource, target: MemoryTarget, step: str, happen: Callable[[], object]) -> None:
    """Let something happen at a step of the work that is done with these."""
    side, _, operation = step.partition(".")
    (source if side == "source" else target).faults.script(operation, happen)


def fill(pair: Pair) -> None:
    with pair.database.begin() as transaction:
        for table in (KEYED, KEYLESS):
            transaction.insert(table, *(pair.row(id_) for id_ in ROWS))


# By what may be said of it: that it is equal, at last, or one of these reasons.
REASONS: Final[dict[Act, Sequence[str]]] = {
    add_column: (),
    drop_column: (),
    truncate: (),
    refill: (),
    rename: (),
    drop: (GONE,),
    make_again: (NOT_COMPLETE,),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("act", REASONS, ids=lambda act: act.__name__)
def test_a_change_in_the_midst_of_a_verification_is_no_difference(pair: Pair, act: Act, step: str) -> None:
    followed(pair, every_s=0.05)
    fill(pair)
    with pair.running() as (capture, judge):
        # Of one, capture has the change before the verification continues; of the other it has not.
        for table, waits, visit in ((KEYED, True, Visit(rows=10, at_once=3)), (KEYLESS, False, None)):
            settled(judge, table, capture)

            def happen(table: TableId = table, waits: bool = waits) -> None:
                act(pair, table)
                if waits:
                    pair.captured.catch_up(capture)

            assert isinstance(judge.source, MemorySource)
            assert isinstance(judge.target, MemoryTarget)
            script(judge.source, judge.target, step, happen)
            verdict = judge.verify(table, visit=visit)
            assert verdict.result is not Result.DIFFERENT, (table, verdict)
            assert (verdict.reason or "equal") in {"equal", *REASONS[act]}, (table, verdict)
            if act is drop:
                capture.wait_until(lambda table=table: judge.verify(table).reason == GONE, "it says so")  # type: ignore[misc]
            else:
                # A dropped column is kept in the target, and has nothing to be compared with.
                result = Result.EQUAL_IN_PART if act is drop_column else Result.EQUAL
                assert settled(judge, table, capture).result is result
    assert pair.captured.store.requests.barriers(NAME) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("act", "reason"),
    [(drop, "the table no longer has the columns that were asked for"), (make_again, "the source's table was altered meanwhile")],
)  # fmt: skip
@pytest.mark.parametrize("visit", [None, Visit(rows=10)], ids=["whole", "ranges"])
@pytest.mark.parametrize("table", [KEYED, KEYLESS], ids=["keyed", "keyless"])
def test_what_capture_does_not_know_yet_is_told(
    pair: Pair, table: TableId, visit: Visit | None, act: Act, reason: str
) -> None:
    followed(pair, every_s=3600)
    fill(pair)
    with pair.running() as (capture, judge):
        settled(judge, table, capture)
        act(pair, table)
        verdict = judge.verify(table, visit=visit)
        sample = judge.verify(table, Sample(Decimal(50)))
    assert [(one.result, one.reason) for one in (verdict, sample)] == [(Result.NOT_VERIFIED, reason)] * 2
    assert {one.action for one in (verdict, sample)} == {
        "Verify it again in a minute or two: by then the replicator knows what became of the table."
    }


def test_a_table_that_nobody_applies_any_more_is_waited_for_no_longer(pair: Pair) -> None:
    """It was taken out of the configuration while apply had something of it left."""
    with pair.captured.running() as capture:
        pair.captured.wait_for_streaming(capture)
    pair.captured.tables.remove(KEYED)
    with pair.captured.running() as capture:
        capture.wait_until(lambda: pair.captured.stage(KEYED) is Stage.REMOVED or None, "it is taken out")
        barriers = Barriers(
            store=pair.captured.store, name=NAME, check=lambda: None, wait=lambda: capture.control.wait(0.01)
        )
        with barriers.held() as barrier, pytest.raises(NotVerifiedError, match="it is not replicated"):
            barriers.reach(KEYED, barrier.position)


def has_ended(pair: Pair, table: TableId) -> Callable[[], bool]:
    """Whether nothing is left to do: a table may have failed, because the source does not have it."""
    whole = is_whole(pair, *({KEYED, KEYLESS} - {table}))
    one = is_whole(pair, table)
    return lambda: whole() and (pair.captured.stage(table) is Stage.FAILED or one())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("act", REASONS, ids=lambda act: act.__name__)
def test_a_change_in_the_midst_of_a_resync_leaves_both_sides_equal(filled: Pair, act: Act, step: str) -> None:
    pair, table, happened = filled, KEYED, list[str]()
    followed(pair, every_s=0.05)
    change_in_the_gap(pair, table)
    lose_the_log(pair)

    def happen() -> None:
        if not happened:
            happened.append(step)
            act(pair, table)

    sides = list[MemorySource]()

    def make_source(context: SourceContext) -> MemorySource:
        sides.append(MemorySource(MemorySourceConfig(database=pair.database.name), context))
        return sides[-1]

    def make_target(epoch: int) -> MemoryTarget:
        target = pair.make_target(epoch)
        if epoch == 0 and sides:
            script(sides[-1], target, step, happen)
        return target

    with pair.running() as (capture, _):
        resync(replace(pair, make_target=make_target), capture, has_ended(pair, table), make_source=make_source)
        assert happened
        if act is drop:
            assert present(pair.captured.record(table).error).code == "table_missing"
            return
        pair.captured.catch_up(capture)
        now = TableId("shop", "keyed_now") if act is rename else table
        capture.wait_until(lambda: pair.warehouse.state(table) == pair.database.state(now), "the tables are equal")

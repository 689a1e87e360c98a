"""How far apply is with a table, whatever happens to it; and what proves that a state store is older than its target."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.apply import restored
from replicator.apply.reach import Course, Reach
from replicator.model.schema import TableId
from replicator.plugins.target import EMPTY_LEDGER, Ledger
from replicator.state.records import AppliedRecord

T = TableId("public", "t")


def test_a_table_that_failed_searches_behind_what_it_tried() -> None:
    failed = Reach.begin(4).claimed(6).refused(9).failed()
    assert (failed.is_searching, failed.seen_to, failed.ledger) == (True, 9, 6)
    assert failed.searched(12).seen_to == 12
    assert failed.searched(12).resumed().seen_to == 6


def test_a_second_failure_never_searches_again_what_was_searched() -> None:
    searched = Reach.begin(4).refused(9).failed().searched(20)
    assert searched.refused(9).failed().searched_to == 20


def test_an_incarnation_begins_with_an_empty_ledger_and_reads_from_its_beginning() -> None:
    begun = Reach.begin(40).refused(50).failed().begun(60)
    assert (begun.course, begun.ledger, begun.seen_to, begun.read_from) == (
        Course.APPLYING,
        EMPTY_LEDGER,
        EMPTY_LEDGER,
        59,
    )
    assert begun.applied(61).read_from == 61


def test_what_held_nothing_is_not_read_again_until_the_target_is_asked_again() -> None:
    idle = Reach.begin(4).planned(9, is_idle=True)
    assert idle.seen_to == 9
    assert idle.forgotten().seen_to == 4
    assert idle.planned(11, is_idle=False).seen_to == 4


STEPS = st.one_of(
    st.integers(-1, 50).map(lambda n: lambda r: r.planned(max(n, r.ledger), is_idle=True)),
    st.integers(-1, 50).map(lambda n: lambda r: r.planned(n, is_idle=False)),
    st.integers(1, 20).map(lambda n: lambda r: r.applied(r.ledger + n)),
    st.integers(1, 20).map(lambda n: lambda r: r.refused(r.ledger + n)),
    st.just(lambda r: r.forgotten()),
    st.just(lambda r: r.failed()),
    st.just(lambda r: r.resumed()),
)


@given(st.lists(STEPS))
def test_within_an_incarnation_nothing_below_the_ledger_is_looked_at_again(steps: list[object]) -> None:
    reach = Reach.begin(-1)
    for step in steps:
        before, reach = reach, step(reach)  # type: ignore[operator]
        assert reach.ledger >= before.ledger
        assert reach.seen_to >= reach.ledger or reach.is_searching
        assert reach.searched_to >= before.searched_to
        if reach.course is not before.course and reach.is_searching:
            assert reach.searched_to >= max(reach.ledger, reach.tried_to)


RECORD = AppliedRecord(table=T, incarnation=2, claimed_by=5)


@pytest.mark.parametrize(
    ("found", "newest", "sealed_by", "says"),
    [
        (Ledger(incarnation=1, last_applied=99, epoch=9), 10, 5, None),
        (Ledger(incarnation=2, last_applied=10, epoch=5), 10, 5, None),
        (Ledger(incarnation=2, last_applied=10, epoch=4), 10, None, None),
        (Ledger(incarnation=3, last_applied=0, epoch=5), 10, 5, "incarnation 3"),
        (Ledger(incarnation=2, last_applied=11, epoch=5), 10, 5, "journal ends at 10"),
        (Ledger(incarnation=2, last_applied=10, epoch=6), 10, 5, "never claimed"),
        (Ledger(incarnation=2, last_applied=10, epoch=4), 10, 5, "assigned lower numbers"),
    ],
)
def test_what_the_target_knows_and_the_store_does_not_proves_an_older_store(
    found: Ledger, newest: int, sealed_by: int | None, says: str | None
) -> None:
    reason = restored.proof(found, RECORD, newest=newest, sealed_by=sealed_by)
    assert reason is None if says is None else says in (reason or "")

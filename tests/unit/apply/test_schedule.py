"""Whose turn it is."""

from __future__ import annotations

from replicator.apply.schedule import Schedule, Turn
from replicator.model.schema import TableId

A, B, C = (TableId("s", name) for name in "abc")


def test_a_free_thread_always_gets_work() -> None:
    schedule = Schedule(threads=2, max_wait_s=5)
    schedule.offer(A, now=0, backlog=1)
    assert schedule.take(0) == Turn(table=A)
    assert schedule.take(0) is None


def test_a_table_never_has_two_threads() -> None:
    schedule = Schedule(threads=2, max_wait_s=5)
    schedule.offer(A, now=0, backlog=1)
    assert schedule.take(0) == Turn(table=A)
    schedule.offer(A, now=1, backlog=1)
    assert schedule.take(1) is None
    schedule.release(A)
    assert schedule.take(2) == Turn(table=A)


def test_the_largest_backlog_goes_first_until_another_has_waited_too_long() -> None:
    schedule = Schedule(threads=1, max_wait_s=5)
    schedule.offer(B, now=0, backlog=1)
    schedule.offer(C, now=1, backlog=2)
    for now in (2, 4):
        schedule.offer(A, now=now, backlog=100)
        assert schedule.take(now) == Turn(table=A)
        schedule.release(A)
    schedule.offer(A, now=6, backlog=100)
    assert [schedule.take(6), schedule.take(6), schedule.take(6)] == [Turn(table=B), Turn(table=C), Turn(table=A)]


def test_an_offer_repeated_keeps_its_position() -> None:
    schedule = Schedule(threads=1, max_wait_s=5)
    schedule.offer(A, now=0, backlog=1)
    schedule.offer(A, now=4, backlog=1)
    schedule.offer(B, now=1, backlog=9)
    assert schedule.take(5) == Turn(table=A)


def test_upkeep_waits_for_work_and_leaves_a_thread_free() -> None:
    schedule = Schedule(threads=2, max_wait_s=5)
    schedule.offer_upkeep(A)
    schedule.offer_upkeep(B)
    schedule.offer(C, now=0, backlog=1)
    assert schedule.take(0) == Turn(table=C)
    schedule.release(C)
    assert schedule.take(0) == Turn(table=A, is_upkeep=True)
    assert schedule.take(0) is None
    schedule.release(A)
    assert schedule.take(0) == Turn(table=B, is_upkeep=True)


def test_a_single_thread_does_upkeep_too() -> None:
    schedule = Schedule(threads=1, max_wait_s=5)
    schedule.offer_upkeep(A)
    assert schedule.take(0) == Turn(table=A, is_upkeep=True)


def test_a_table_that_is_held_gets_no_turn() -> None:
    schedule = Schedule(threads=1, max_wait_s=5)
    schedule.offer(A, now=0, backlog=1)
    schedule.offer_upkeep(B)
    for table in (A, B, C):
        schedule.hold(table, now=1, until=99)
    assert schedule.take(9) is None


def test_tables_that_have_rested_are_named_once() -> None:
    schedule = Schedule(threads=1, max_wait_s=5)
    assert schedule.next_s(0) is None
    schedule.hold(A, now=0, until=3)
    schedule.hold(B, now=0, until=2)
    schedule.hold(C, now=0, until=9)
    schedule.offer(C, now=1, backlog=1)
    assert (schedule.next_s(1), schedule.rested(1)) == (1, [])
    assert (schedule.next_s(4), sorted(schedule.rested(4))) == (0, [A, B])
    assert (schedule.next_s(4), schedule.rested(4)) == (None, [])


def test_a_small_table_that_has_rested_for_long_does_not_wait_as_long_again_for_a_thread() -> None:
    schedule = Schedule(threads=1, max_wait_s=300)
    schedule.hold(B, now=0, until=300)
    schedule.offer(A, now=200, backlog=1_000_000)
    schedule.hold(B, now=250, until=300)
    schedule.offer(B, now=300, backlog=1)
    assert schedule.take(300) == Turn(table=B)
    schedule.release(B)
    assert schedule.take(300) == Turn(table=A)
    schedule.release(A)
    schedule.offer(B, now=301, backlog=1)
    schedule.offer(A, now=302, backlog=1_000_000)
    assert schedule.take(302) == Turn(table=A), "its waiting begins again with every turn"


def test_a_table_that_waits_for_a_thread_keeps_its_position_while_it_is_held() -> None:
    schedule = Schedule(threads=1, max_wait_s=5)
    schedule.offer(A, now=0, backlog=1)
    schedule.offer(B, now=1, backlog=9)
    schedule.hold(A, now=3, until=7)
    schedule.offer(A, now=7, backlog=1)
    assert schedule.take(7) == Turn(table=A)


def test_no_table_starves_among_tables_that_always_have_more_to_do() -> None:
    schedule = Schedule(threads=1, max_wait_s=5)
    served: dict[TableId, float] = {}
    schedule.offer(C, now=0, backlog=1)
    for now in range(20):
        for table in (A, B):
            schedule.offer(table, now=now, backlog=1000 + now)
        turn = schedule.take(now)
        assert turn is not None
        served.setdefault(turn.table, now)
        schedule.release(turn.table)
    assert served[C] <= 5 + 2, "only those that had waited for as long go first"


def test_a_table_that_must_be_alone_waits_until_nothing_runs_and_nothing_runs_beside_it() -> None:
    schedule = Schedule(threads=2, max_wait_s=5)
    schedule.offer(A, now=0, backlog=100, crashes=1)
    schedule.offer(B, now=1, backlog=1)
    assert schedule.take(2) == Turn(table=B)
    assert schedule.take(2) is None
    schedule.release(B)
    assert schedule.take(3) == Turn(table=A, is_suspect=True, is_alone=True)
    schedule.offer(C, now=3, backlog=1)
    schedule.offer_upkeep(B)
    assert schedule.take(4) is None
    schedule.release(A)
    assert schedule.take(5) == Turn(table=C)


def test_a_table_that_must_be_alone_does_not_wait_forever() -> None:
    schedule = Schedule(threads=2, max_wait_s=5)
    schedule.offer(B, now=0, backlog=1)
    assert schedule.take(0) == Turn(table=B)
    schedule.offer(A, now=1, backlog=1, crashes=3)
    schedule.offer(C, now=2, backlog=9)
    assert schedule.take(6) is None
    schedule.release(B)
    assert schedule.take(6) == Turn(table=A, is_suspect=True, is_alone=True)


def test_of_tables_that_must_be_alone_the_one_with_fewer_crashes_goes_first() -> None:
    schedule = Schedule(threads=2, max_wait_s=5)
    schedule.offer(A, now=0, backlog=100, crashes=3)
    schedule.offer(B, now=1, backlog=1, crashes=1)
    assert schedule.take(9) == Turn(table=B, is_suspect=True, is_alone=True)
    schedule.release(B)
    assert schedule.take(9) == Turn(table=A, is_suspect=True, is_alone=True)


def test_a_table_that_must_be_alone_does_not_wait_for_upkeep_and_is_not_alone_then() -> None:
    schedule = Schedule(threads=2, max_wait_s=5)
    schedule.offer_upkeep(C)
    assert schedule.take(0) == Turn(table=C, is_upkeep=True)
    schedule.offer(A, now=0, backlog=1, crashes=2)
    assert schedule.take(1) == Turn(table=A, is_suspect=True)
    schedule.offer(B, now=1, backlog=1)
    assert schedule.take(2) is None
    schedule.release(A)
    assert schedule.take(2) == Turn(table=B)

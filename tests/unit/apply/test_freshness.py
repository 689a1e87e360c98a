"""How fresh a position in the journal is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from replicator.apply.freshness import Freshness

START = datetime(2024, 1, 1, tzinfo=UTC)


def at(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


def test_nothing_is_known_of_an_empty_journal() -> None:
    assert Freshness().newest() is None
    assert Freshness().below(5) is None


def test_below_a_number_holds_what_the_segments_before_it_say() -> None:
    freshness = Freshness()
    for last in (9, 19, 29):
        freshness.add(last, at(last))
    assert [freshness.below(n) for n in (0, 9, 10, 19, 20, 100)] == [None, None, at(9), at(9), at(19), at(29)]
    assert freshness.newest() == at(29)


def test_segments_without_rows_move_the_time_and_those_without_time_say_nothing() -> None:
    freshness = Freshness()
    freshness.add(9, at(9))
    freshness.add(9, at(12))
    freshness.add(15, None)
    assert freshness.newest() == at(12)
    assert freshness.below(10) == at(12)


def test_what_is_forgotten_makes_answers_older_never_newer() -> None:
    full, thin = Freshness(kept=10_000), Freshness(kept=8)
    for last in range(200):
        full.add(last, at(last))
        thin.add(last, at(last))
    assert thin.newest() == full.newest()
    for number in range(200):
        known, exact = thin.below(number), full.below(number)
        assert known is None or (exact is not None and known <= exact)


def test_a_claim_goes_back_only_with_the_sources_clock() -> None:
    freshness = Freshness()
    assert freshness.later(None, None) is None
    assert freshness.later(at(5), None) == freshness.later(None, at(5)) == at(5)
    assert freshness.later(at(5), at(3)) == at(5), "the journal was not read yet"
    freshness.add(9, at(9))
    assert freshness.later(at(9), at(7)) == at(9), "what is known of a position may be too old"
    freshness.add(19, at(-3600))
    assert freshness.later(at(9), at(-3601)) == at(-3601)
    freshness.add(19, at(-3599))
    assert freshness.newest() == at(-3599)

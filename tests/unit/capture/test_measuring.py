"""How fast the source's log grows."""

from __future__ import annotations

from replicator.capture.measuring import LogGrowth


def test_the_rate_is_known_from_the_second_measure_on() -> None:
    growth = LogGrowth()
    assert growth.bytes_per_s is None
    growth.add(0, 1000)
    assert growth.bytes_per_s is None
    growth.add(10, 2000)
    assert growth.bytes_per_s == 100


def test_what_was_before_the_window_does_not_count() -> None:
    growth = LogGrowth(window_s=20)
    for at_s, written in ((0, 0), (10, 100_000), (20, 100_000), (30, 100_000), (40, 100_000)):
        growth.add(at_s, written)
    assert growth.bytes_per_s == 0


def test_another_servers_log_begins_again() -> None:
    growth = LogGrowth()
    for at_s, written in ((0, 10_000), (10, 20_000), (20, 500), (30, 700)):
        growth.add(at_s, written)
    assert growth.bytes_per_s == 20

"""Points of a chart: one a minute, for a day, of the replicators that there are."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from replicator.state.points import Freshness
from replicator.state.store import StateStore

if TYPE_CHECKING:
    from tests.unit.state.conftest import FakeClock


def minutes(store: StateStore, name: str, since: datetime) -> list[tuple[int, float | None, int]]:
    return [(p.at.minute, p.freshness.worst_s, p.freshness.late) for p in store.points.of(name, since)]


def test_the_last_record_of_a_minute_counts(store: StateStore, clock: FakeClock) -> None:
    store.create_replicator("shop", "name: shop", "file:///j")
    clock.time = clock.time.replace(minute=5, second=1, microsecond=7)
    began = clock.time.replace(second=0, microsecond=0)
    store.points.record({"shop": Freshness(worst_s=1.5, late=0)})
    clock.advance(30)
    store.points.record({"shop": Freshness(worst_s=0.6254, late=2)})
    clock.advance(30)
    store.points.record({"shop": Freshness(worst_s=None, late=0)})
    assert minutes(store, "shop", began) == [(5, 0.625, 2), (6, None, 0)]
    assert minutes(store, "shop", began + timedelta(minutes=1)) == [(6, None, 0)]
    assert minutes(store, "other", began) == []


def test_what_is_older_than_a_day_is_forgotten(store: StateStore, clock: FakeClock) -> None:
    store.create_replicator("shop", "name: shop", "file:///j")
    began = clock.time - timedelta(hours=1)
    store.points.record({"shop": Freshness(worst_s=1, late=0)})
    clock.advance(24 * 3600 - 60)
    store.points.record({"shop": Freshness(worst_s=2, late=0)})
    assert [worst for _, worst, _ in minutes(store, "shop", began)] == [1, 2]
    clock.advance(180)
    store.points.record({"shop": Freshness(worst_s=3, late=0)})
    assert [worst for _, worst, _ in minutes(store, "shop", began)] == [2, 3]


def test_a_replicator_that_is_gone_has_none_and_they_do_not_keep_it(store: StateStore, clock: FakeClock) -> None:
    shop = store.create_replicator("shop", "name: shop", "file:///j")
    store.points.record({"shop": Freshness(worst_s=1, late=0), "gone": Freshness(worst_s=1, late=0)})
    store.delete_replicator("shop", shop.uuid)
    store.points.record({"shop": Freshness(worst_s=1, late=0)})
    assert minutes(store, "shop", clock.time - timedelta(hours=1)) == []
    store.points.record({})

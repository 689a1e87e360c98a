"""The options of `verify` that choose rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from replicator.model.errors import ConfigError
from replicator.model.schema import TableId
from replicator.service.verify.scope import AskedScope
from replicator.state.store import StateStore
from replicator.state.verification.records import RangeRecord
from replicator.verify import Sample, Since, Whole
from replicator.verify.barriers import Barriers

TABLE = TableId("shop", "t")
DAY = timedelta(days=1)


def read(tables: Sequence[str] = (), **options: Any) -> AskedScope:
    return AskedScope.read(tables, **{"sample": None, "keys": (), "since": None, **options})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    store = StateStore(f"sqlite:///{tmp_path / 'state.db'}")
    yield store
    store.close()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"sample": "5", "since": "1h"}, "two_scopes"),
        ({"sample": "5", "keys": ["7"]}, "two_scopes"),
        ({"sample": "5", "resumes": True}, "two_scopes"),
        ({"since": "1h", "rows_per_second": 5}, "two_scopes"),
        ({"since": "x", "keys": ["7"]}, "two_scopes"),
        *(({"sample": text}, "unknown_sample") for text in ("0", "0.0", "100.1", "-1", "nan", "5%", "", "1e1", "101")),
        *(({"since": text}, "unknown_duration") for text in ("1", "yesterday", "", "-1h", "99999999999d")),
        ({"keys": ["7"]}, "unknown_row_key"),
    ],
)
def test_wrong_options_are_refused(options: Any, code: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(**options)
    assert refused.value.code == code
    assert refused.value.action


def test_keys_are_of_one_table() -> None:
    assert read(["shop.t"], keys=["7"]).keys == ("7",)
    with pytest.raises(ConfigError, match="2 tables are named"):
        read(["shop.t", "shop.u"], keys=["7"])


@pytest.mark.parametrize("text", ["100", "0.5", "5", "0.00001", "99.999"])
def test_a_sample_is_exactly_so_much(store: StateStore, text: str) -> None:
    assert read(sample=text).scope(store, "n", [TABLE], DAY) == Sample(Decimal(text))


def test_without_an_option_all_rows_are_compared(store: StateStore) -> None:
    assert isinstance(read().scope(store, "n", [TABLE], DAY), Whole)


def test_a_time_is_within_what_the_journal_keeps(store: StateStore) -> None:
    before = store.now()
    scope = read(since="24h").scope(store, "n", [TABLE], DAY)
    assert isinstance(scope, Since)
    assert before - DAY <= scope.moment <= store.now() - DAY
    with pytest.raises(ConfigError, match="keeps changes for 1d, not for 1d1s") as refused:
        read(since="86401s").scope(store, "n", [TABLE], DAY)
    assert refused.value.code == "journal_too_short"


def test_only_with_resume_a_range_is_left_out_that_was_proven_of_late(store: StateStore) -> None:
    barriers = Barriers(store=store, name="n", check=lambda: None, wait=lambda: None)
    now = store.now()

    def kept(every: timedelta | None, **options: Any) -> list[float]:
        visit = read(**options).visit(store, every, barriers, lambda _: None)
        assert visit.pace is None
        ages = (-1, 0.5, 2, 8)  # -1: the clock was set back
        known = {"definition": "d", "after": None, "upto": None, "position": 1, "rows": 1}
        assert not visit.keeps(RangeRecord(**known, proven_at=None))  # type: ignore[arg-type]
        return [age for age in ages if visit.keeps(RangeRecord(**known, proven_at=now - age * DAY))]  # type: ignore[arg-type]

    assert kept(7 * DAY) == []
    assert kept(7 * DAY, resumes=True) == [0.5, 2]
    assert kept(None, resumes=True) == [0.5]


def test_a_number_of_rows_per_second_is_a_pace(store: StateStore) -> None:
    barriers = Barriers(store=store, name="n", check=lambda: None, wait=lambda: None)
    pace = read(rows_per_second=5).visit(store, None, barriers, lambda _: None).pace
    assert pace is not None
    assert pace.rows_per_second == 5

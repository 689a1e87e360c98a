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
from replicator.service.verify_scope import AskedScope
from replicator.state.store import StateStore
from replicator.verify import Sample, Since, Whole

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

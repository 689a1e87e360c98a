"""Tokens are stored as hashes, are valid until they expire or are revoked, and allow what their scope says."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from replicator.model.access import Scope
from replicator.model.errors import ConfigError
from replicator.service.access import tokens
from replicator.state.store import StateStore


class Clock:
    """Stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 31, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[StateStore]:
    store = StateStore(f"sqlite:///{tmp_path / 'state.db'}", clock=clock)
    yield store
    store.close()


def test_a_token_is_found_by_its_text_and_the_store_does_not_have_the_text(store: StateStore, tmp_path: Path) -> None:
    record, text = tokens.create(store, "grafana", Scope.READ, None)
    assert tokens.find(store, text) == record
    store.close()
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert tokens.digest(text).encode() in stored
    assert text.encode() not in stored


@pytest.mark.parametrize("text", ["", "replicator_", "replicator_" + "a" * 43, "\ud800", "replicator_" + "a" * 44])
def test_another_text_is_no_token(store: StateStore, text: str) -> None:
    tokens.create(store, "grafana", Scope.READ, None)
    assert tokens.find(store, text) is None


def test_a_token_expires_by_the_clock_of_the_store(store: StateStore, clock: Clock) -> None:
    _, text = tokens.create(store, "grafana", Scope.READ, timedelta(hours=1))
    clock.now += timedelta(minutes=59)
    assert tokens.find(store, text)
    clock.now += timedelta(minutes=1)
    assert tokens.find(store, text) is None
    assert [token.name for token in tokens.everything(store)] == ["grafana"]


def test_a_token_that_was_revoked_is_none(store: StateStore) -> None:
    _, text = tokens.create(store, "grafana", Scope.READ, None)
    tokens.revoke(store, "grafana")
    assert tokens.find(store, text) is None
    with pytest.raises(ConfigError, match="no token called 'grafana'"):
        tokens.revoke(store, "grafana")


def test_a_name_is_used_once_and_has_a_form(store: StateStore) -> None:
    tokens.create(store, "grafana", Scope.READ, None)
    with pytest.raises(ConfigError) as caught:
        tokens.create(store, "grafana", Scope.OPERATE, None)
    assert caught.value.code == "token_exists"
    with pytest.raises(ConfigError) as caught:
        tokens.create(store, "Grafana!", Scope.READ, None)
    assert caught.value.code == "invalid_token_name"


def test_operate_includes_read_and_not_the_reverse() -> None:
    assert Scope.OPERATE.includes(Scope.READ)
    assert Scope.OPERATE.includes(Scope.OPERATE)
    assert not Scope.READ.includes(Scope.OPERATE)
    assert Scope.CONFIGURE.includes(Scope.OPERATE)
    assert not Scope.OPERATE.includes(Scope.CONFIGURE)

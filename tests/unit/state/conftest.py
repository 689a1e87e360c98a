from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from replicator.state.store import StateStore


class FakeClock:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.time = datetime(2026, 1, 31, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def state_file(tmp_path: Path) -> Path:
    return tmp_path / "home" / "state.db"


@pytest.fixture
def url(state_file: Path) -> str:
    return f"sqlite:///{state_file}"


@pytest.fixture
def store(url: str, clock: FakeClock) -> Iterator[StateStore]:
    store = StateStore(url, busy_timeout_s=5, clock=clock)
    yield store
    store.close()

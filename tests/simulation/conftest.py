"""A journal written by hand, and what applies it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from replicator_testbed.journals.applied import Shop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """A journal written by hand, and what applies it to a target in memory."""
    shop = Shop(tmp_path)
    yield shop
    shop.store.close()

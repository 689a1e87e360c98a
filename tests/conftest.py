"""What only the host's own tests need; the fixtures shared with plugins are in `replicator_testbed.fixtures`."""

from __future__ import annotations

import os
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

# No deadline: on a busy machine of two cores it would judge the machine, not the code. In `make test` the examples are
# the same every time, so that a red run is red again; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("test", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "test"))

LONGEST_FIRST: Final = ("tests/faults/", "plugins/targets/", "tests/integration/", "plugins/sources/")
"""Whole files are given to the processes of `make test`: one that is long and comes last leaves the others idle."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the files that take minutes begin before those that take seconds."""

    def rank(item: pytest.Item) -> int:
        return next((i for i, folder in enumerate(LONGEST_FIRST) if item.nodeid.startswith(folder)), len(LONGEST_FIRST))

    items.sort(key=rank)

"""A pytest plugin that gives each test as many times its time as waits have: a run that ends a test amid its waits tells nothing."""

from __future__ import annotations

import os

import pytest

from replicator_testing.waiting import PATIENCE


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Lengthen what a test or the configuration says; what the command line or the environment says stays."""
    if PATIENCE == 1 or not config.pluginmanager.has_plugin("timeout"):
        return
    is_told = config.getoption("timeout") is not None or "PYTEST_TIMEOUT" in os.environ
    usual = None if is_told else config.getini("timeout")
    for item in items:
        mark = item.get_closest_marker("timeout")
        if seconds := mark.args[0] if mark is not None else usual:
            item.add_marker(pytest.mark.timeout(float(seconds) * PATIENCE), append=False)

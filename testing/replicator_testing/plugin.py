"""Configuration of pytest for the contract suites: load it with `-p replicator_testing.plugin`."""

from __future__ import annotations

import pkgutil
import sys

import pytest

import replicator_testing

# Contract suites assert outside test modules; pytest explains their failures only if it may rewrite them before their import.
pytest.register_assert_rewrite(
    *(
        module.name
        for module in pkgutil.iter_modules(replicator_testing.__path__, "replicator_testing.")
        if module.name.endswith(("_contract", "_harness")) and module.name not in sys.modules
    )
)


def pytest_configure(config: pytest.Config) -> None:
    """Make the kit's own marker known; contract suites have it."""
    config.addinivalue_line(
        "markers",
        "condition(*ids): shows a condition that a source has to hold under; tests/docs/test_conditions.py lists them",
    )

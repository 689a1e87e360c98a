"""The hooks of the `replicator` project. They only register classes; behaviour lives in the classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pluggy

from replicator.plugins.source import DeltaSource
from replicator.plugins.target import DeltaTarget

PROJECT = "replicator"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def replicator_register_sources() -> Sequence[type[DeltaSource[Any]]]:  # type: ignore[empty-body]
    """Return the source classes this distribution provides. Import them inside the hook: listing plugins must not need a driver."""


@hookspec
def replicator_register_targets() -> Sequence[type[DeltaTarget[Any]]]:  # type: ignore[empty-body]
    """Return the target classes this distribution provides. Import them inside the hook."""

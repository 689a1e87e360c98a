"""What the host finds by this distribution's entry point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from replicator.plugins import DeltaSource, hookimpl


@hookimpl
def replicator_register_sources() -> Sequence[type[DeltaSource[Any]]]:
    """Return the SQLite source."""
    from replicator_source_sqlite.source import SqliteSource

    return [SqliteSource]

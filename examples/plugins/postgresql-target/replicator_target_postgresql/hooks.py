"""What the host finds by this distribution's entry point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from replicator.plugins import DeltaTarget, hookimpl


@hookimpl
def replicator_register_targets() -> Sequence[type[DeltaTarget[Any]]]:
    """Return the PostgreSQL target."""
    from replicator_target_postgresql.target import PostgresTarget

    return [PostgresTarget]

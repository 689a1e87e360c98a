"""Register the SQL Server source; the driver is imported only when the source is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from replicator.plugins.hookspecs import hookimpl
from replicator.plugins.source import DeltaSource


@hookimpl
def replicator_register_sources() -> Sequence[type[DeltaSource[Any]]]:
    """Return the source classes of this distribution."""
    from replicator_source_sqlserver.source import SqlServerSource

    return (SqlServerSource,)

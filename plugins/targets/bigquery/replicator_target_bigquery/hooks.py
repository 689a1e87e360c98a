"""Register the plugin; the class is imported when it is asked for, so that listing plugins needs no client library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from replicator.plugins.hookspecs import hookimpl
from replicator.plugins.target import DeltaTarget


@hookimpl
def replicator_register_targets() -> Sequence[type[DeltaTarget[Any]]]:
    """Return the BigQuery target."""
    from replicator_target_bigquery.target import BigQueryTarget

    return [BigQueryTarget]

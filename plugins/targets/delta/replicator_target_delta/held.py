"""A table that a process has claimed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from replicator.plugins.kit.ledger import Held
from replicator_target_delta.engine import DirectTable


@dataclass(slots=True, kw_only=True)
class HeldTable(Held):
    """A table that this process has claimed."""

    path: str
    session: Any
    """A SparkSession of its own: a transaction's identifier is a setting of the session."""
    properties: Mapping[str, str]
    direct: DirectTable | None = None
    """Opened by the first batch that may take it."""
    is_building: bool = False
    """Readers do not see the incarnation yet (`building`)."""
    lacks_rows: bool = False
    """A merge found that rows are missing: until a snapshot or another process, they are counted before each merge."""

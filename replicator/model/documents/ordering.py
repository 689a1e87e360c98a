"""Orders in which tables and replicators are shown."""

from __future__ import annotations

import re
from typing import Final

from replicator.model.documents.status import ReplicatorState, ReplicatorStatus, TableState, TableStatus

_DIGITS: Final = re.compile(r"(\d+)")
_TROUBLE_OF_TABLES: Final = {TableState.FAILED: 3, TableState.DROPPED: 2}
_TROUBLE: Final = {ReplicatorState.FAILED: 4, ReplicatorState.NO_WORKER: 3, ReplicatorState.RETRYING: 2}


def natural(text: str) -> tuple[tuple[str, int], ...]:
    """Return a key that sorts numbers in a text by their value: `t2` comes before `t10`."""
    parts = _DIGITS.split(text)
    # Text and number alternate, so that like is compared with like; the last text has no number after it.
    return tuple((part, int(parts[i + 1]) if i + 1 < len(parts) else -1) for i, part in enumerate(parts) if i % 2 == 0)


def by_name(table: TableStatus) -> tuple[tuple[str, int], ...]:
    """Return a key that sorts tables by name."""
    return natural(table.table)


def worst_first(table: TableStatus) -> tuple[object, ...]:
    """Return a key that sorts tables by problems: failed, dropped, alarms, waiting after an error, unknown freshness, least fresh."""
    waits = table.waiting is not None and table.waiting.code is not None
    return (
        -_TROUBLE_OF_TABLES.get(table.state, 0),
        not table.alarms,
        not waits,
        table.freshness_s is not None,
        -(table.freshness_s or 0.0),
        by_name(table),
    )


def worst_replicator_first(one: ReplicatorStatus) -> tuple[object, ...]:
    """Return a key that sorts replicators by problems: failed, without a worker, retrying, by their worst tables, least fresh."""
    troubled = sum(1 for table in one.tables if table.alarms or table.state in _TROUBLE_OF_TABLES)
    return (
        -_TROUBLE.get(one.state, 0),
        -troubled,
        one.freshness_s is not None,
        -(one.freshness_s or 0.0),
        natural(one.name),
    )

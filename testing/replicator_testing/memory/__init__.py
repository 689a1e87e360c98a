"""A database, a source and a target in memory: the host's own tests run on them, and they are the reference for the contracts."""

from replicator_testing.memory.database import MemoryDatabase, Snapshot
from replicator_testing.memory.faults import Faults
from replicator_testing.memory.log import Row, State, state_of
from replicator_testing.memory.source import MemoryLogReader, MemorySource, MemorySourceConfig, MemoryVisibility
from replicator_testing.memory.target import (
    HistoryEntry,
    MemoryTarget,
    MemoryTargetConfig,
    MemoryWarehouse,
    StoredTable,
)
from replicator_testing.memory.transaction import LockedError, MemoryTransaction
from replicator_testing.oracle import StoredRow

__all__ = [
    "Faults",
    "HistoryEntry",
    "LockedError",
    "MemoryDatabase",
    "MemoryLogReader",
    "MemorySource",
    "MemorySourceConfig",
    "MemoryTarget",
    "MemoryTargetConfig",
    "MemoryTransaction",
    "MemoryVisibility",
    "MemoryWarehouse",
    "Row",
    "Snapshot",
    "State",
    "StoredRow",
    "StoredTable",
    "state_of",
]

"""The state store: what every process of the Replicator agrees on."""

from replicator.state.leases import holder_id
from replicator.state.records import (
    AppliedRecord,
    Desired,
    ErrorRecord,
    EventEntry,
    KeyRange,
    Lease,
    ReplicatorRecord,
    Request,
    Role,
    Run,
    Segment,
    SegmentFile,
    SnapshotProgress,
    Stage,
    TableRecord,
)
from replicator.state.store import StateStore

__all__ = [
    "AppliedRecord",
    "Desired",
    "ErrorRecord",
    "EventEntry",
    "KeyRange",
    "Lease",
    "ReplicatorRecord",
    "Request",
    "Role",
    "Run",
    "Segment",
    "SegmentFile",
    "SnapshotProgress",
    "Stage",
    "StateStore",
    "TableRecord",
    "holder_id",
]

"""The state store: what every process of the Replicator agrees on."""

from replicator.state.leases import holder_id
from replicator.state.records import (
    AppliedRecord,
    ApplyState,
    Desired,
    ErrorRecord,
    EventEntry,
    KeyRange,
    Lease,
    Preparation,
    ReplicatorRecord,
    Request,
    RequestKind,
    Role,
    Run,
    Segment,
    SegmentFile,
    SnapshotProgress,
    Stage,
    TableRecord,
    TargetCopy,
)
from replicator.state.store import StateStore

__all__ = [
    "AppliedRecord",
    "ApplyState",
    "Desired",
    "ErrorRecord",
    "EventEntry",
    "KeyRange",
    "Lease",
    "Preparation",
    "ReplicatorRecord",
    "Request",
    "RequestKind",
    "Role",
    "Run",
    "Segment",
    "SegmentFile",
    "SnapshotProgress",
    "Stage",
    "StateStore",
    "TableRecord",
    "TargetCopy",
    "holder_id",
]

"""Events, schemas, offsets, keys and errors: pure data that everything else speaks in."""

from replicator.model.events import (
    DDLEvent,
    DDLOperation,
    DMLOperation,
    JournalEvent,
    SnapshotEvent,
    SnapshotPhase,
    change_schema,
    event_from_json,
)
from replicator.model.keys import key_bytes
from replicator.model.merged import Merged
from replicator.model.offset import Offset
from replicator.model.schema import Column, TableId, TableSchema

__all__ = [
    "Column",
    "DDLEvent",
    "DDLOperation",
    "DMLOperation",
    "JournalEvent",
    "Merged",
    "Offset",
    "SnapshotEvent",
    "SnapshotPhase",
    "TableId",
    "TableSchema",
    "change_schema",
    "event_from_json",
    "key_bytes",
]

"""Events, schemas, offsets, keys and errors: the pure data that all other packages use.

A name is loaded when it is first used: a command that needs only the errors must not load PyArrow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_MODULES = ("events", "keys", "merged", "offset", "schema")


def __getattr__(name: str) -> Any:
    """Load a name of `__all__` from the module that has it."""
    if name in __all__:
        for module in _MODULES:
            found = import_module(f"{__name__}.{module}")
            if name in vars(found):
                return vars(found)[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

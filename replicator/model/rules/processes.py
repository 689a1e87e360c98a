"""Rules about processes."""

from __future__ import annotations

from typing import Final

from replicator.model.errors import (
    FencedError,
    MachineExhaustedError,
    ReplicatorError,
    RequestError,
    TableError,
    TransientError,
)
from replicator.model.rules import Section

SECTION: Final = Section("Processes")

DISK_FULL: Final = SECTION.rule(
    "disk_full",
    raises=(MachineExhaustedError,),
    meaning=(
        "A file outside journal, spool and state store cannot be written: the disk or the quota is used up. The "
        "message names the volumes and what is free on them."
    ),
    remedy="Free some space; it is retried.",
)

DISK_READ_ONLY: Final = SECTION.rule(
    "disk_read_only",
    raises=(MachineExhaustedError,),
    meaning="Such a file cannot be written: its file system is read-only.",
    remedy="Make it writable; it is retried.",
)

MACHINE_EXHAUSTED: Final = SECTION.rule(
    "machine_exhausted",
    raises=(MachineExhaustedError,),
    meaning="The host has run out of memory, open files or processes.",
    remedy="Give it more, or raise the user's limits; it is retried.",
)

WORKER_KILLED: Final = SECTION.rule(
    "worker_killed",
    raises=(TransientError,),
    meaning="Capture or apply ended without an error: killed, or out of memory.",
    remedy="Nothing; if it happens again, check the system log and memory.",
)

FENCED: Final = SECTION.rule(
    "fenced",
    raises=(FencedError,),
    meaning=(
        "A newer worker has taken over, or the state store was restored while this worker ran. This worker ends "
        "and can no longer write."
    ),
    remedy=(
        "Nothing; after a restore, start again. If two hosts keep replacing each other, compare their clocks and load."
    ),
)

INTERNAL_ERROR: Final = SECTION.rule(
    "internal_error",
    raises=(ReplicatorError, RequestError, TableError),
    meaning="A bug. The log has the traceback.",
    remedy="Report it with the log, then `resume`. If a table failed, a new snapshot of it.",
)

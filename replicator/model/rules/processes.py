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
    text="A file cannot be written: {fact}{file}. Free: {free}.",
    action="Free some space there, or make it writable. It is retried automatically.",
)

DISK_READ_ONLY: Final = SECTION.rule(
    "disk_read_only",
    raises=(MachineExhaustedError,),
    meaning="Such a file cannot be written: its file system is read-only.",
    remedy="Make it writable; it is retried.",
    text="A file cannot be written: {fact}{file}. Free: {free}.",
    action="Free some space there, or make it writable. It is retried automatically.",
)

MACHINE_EXHAUSTED: Final = SECTION.rule(
    "machine_exhausted",
    raises=(MachineExhaustedError,),
    meaning="The host has run out of memory, open files or processes.",
    remedy="Give it more, or raise the user's limits; it is retried.",
    text="The host has run out of memory, open files or processes: {fact}.",
    action=(
        "Give the host more memory, or raise the limits of this user (`ulimit -n`, `ulimit -u`). It is retried "
        "automatically."
    ),
)

WORKER_KILLED: Final = SECTION.rule(
    "worker_killed",
    raises=(TransientError,),
    meaning="Capture or apply ended without an error: killed, or out of memory.",
    remedy="Nothing; if it happens again, check the system log and memory.",
    text="The {role} process ended with {how}.",
    action="It restarts from the last durable position.",
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

TABLE_CLAIMED: Final = FENCED.worded(
    "{newer} has claimed the table; this process has epoch {epoch}, incarnation {incarnation}."
)

WORKER_REPLACED: Final = FENCED.worded("Another worker has taken over {name}. This one stops.")

LEASE_LOST: Final = FENCED.worded("{message}", action="Nothing to do: the worker that holds the lease continues.")

STORE_RESTORED: Final = FENCED.worded(
    "The state store of the replicator {replicator} was restored from a backup while it ran.", action="Start it again."
)

INTERNAL_ERROR: Final = SECTION.rule(
    "internal_error",
    raises=(ReplicatorError, RequestError, TableError),
    meaning="A bug. The log has the traceback.",
    remedy="Report it with the log, then `resume`. If a table failed, a new snapshot of it.",
)

UPKEEP_FAILED: Final = INTERNAL_ERROR.worded("Unexpected {error_type} during its upkeep.")

UNEXPECTED_ERROR: Final = INTERNAL_ERROR.worded(
    "Unexpected {error_type}{doing}{at}: this is a bug.",
    action=(
        "Report it with the log, which has the traceback. To retry the table, run `replicator snapshot NAME TABLE`."
    ),
)

CONFIGURATION_FAILED: Final = INTERNAL_ERROR.worded("The server failed at this configuration.")

REQUEST_FAILED: Final = INTERNAL_ERROR.worded(
    "The server failed at this request.", action="The log of `replicator serve` has the cause; please report it."
)

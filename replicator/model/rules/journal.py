"""Rules about the journal."""

from __future__ import annotations

from typing import Final

from replicator.model.errors import (
    ConfigError,
    CorruptStreamError,
    FatalError,
    JournalUnavailableError,
    PluginError,
    ReplicatorError,
    Severity,
    TableError,
)
from replicator.model.rules import Section

_NOT_USABLE: Final = "The journal cannot use {where}: {fact}{left}."
SECTION: Final = Section("Journal")


JOURNAL_URI: Final = SECTION.rule(
    "journal_uri",
    raises=(ConfigError,),
    found=(Severity.BLOCKING,),
    meaning="No file system knows the scheme of `journal.uri`, or it has a password or options.",
    remedy="Set a folder, or install the fsspec package of the scheme; write only bucket and path.",
)

JOURNAL_URI_WITH_OPTIONS: Final = JOURNAL_URI.worded(
    "The journal's URI {scheme}://… has a password or options.",
    action=(
        "Write only bucket and path. Credentials, region and endpoint come from the environment of the worker "
        "(docs/several-hosts.md)."
    ),
)

JOURNAL_URI_UNKNOWN: Final = JOURNAL_URI.worded(
    "No file system is known for the journal's URI {scheme}://…: {error}.",
    action="Set `journal.uri` to a folder, or install the fsspec package for its scheme.",
)

PATH_NOT_ABSOLUTE: Final = SECTION.rule(
    "path_not_absolute",
    found=(Severity.BLOCKING,),
    meaning=(
        "A path of the configuration (`target.path`, `journal.uri`, a certificate) is relative: where it leads "
        "to would depend on the folder in which a worker starts."
    ),
    remedy="Write the whole path; the message has it for the present folder.",
    text=("The path {value} is not absolute: it would lead elsewhere for a worker that starts in another folder."),
    action="Write the whole path, for example {absolute}.",
)

JOURNAL_NOT_SHARED: Final = SECTION.rule(
    "journal_not_shared",
    found=(Severity.BLOCKING,),
    meaning="A state store for several hosts, and a journal on one host's disk.",
    remedy="Set `journal.uri` to a location that all hosts can reach.",
    text=("The state store may be shared by several hosts, but the journal {journal_uri} is on this host's disk."),
    action=(
        "Set `journal.uri` to a location that all of them can reach, such as gs://…, s3://…, hdfs://… or a "
        "network mount."
    ),
    location="journal.uri",
)

JOURNAL_MISSING: Final = SECTION.rule(
    "journal_missing",
    raises=(ConfigError,),
    meaning=(
        "The journal was used before, but is not at `journal.uri` on this host: its file system is not mounted, "
        "for example. Of several workers, one on another host runs the replicator."
    ),
    remedy=(
        "Mount it. If the journal was lost, `replicator snapshot NAME --restart` starts at a new position of the log."
    ),
    text="The journal of {name} is not at {uri} on this host: there is no journal.json.",
    action=(
        "Mount the file system that holds it. If it was lost, run `replicator snapshot {name} --restart`, which "
        "needs no old journal, then start again."
    ),
)

JOURNAL_IN_USE: Final = SECTION.rule(
    "journal_in_use",
    raises=(ConfigError,),
    meaning="The folder belongs to another replicator.",
    remedy="Use another folder; or delete this one if its replicator no longer exists.",
    text="The journal {uri} belongs to another replicator (uuid {owner}).",
    action=("Set `journal.uri` to a folder of its own; or, if that replicator no longer exists, delete the folder."),
)

JOURNAL_FULL: Final = SECTION.rule(
    "journal_full",
    raises=(JournalUnavailableError,),
    meaning="The journal has reached `journal.bytes_max`; the source keeps its log.",
    remedy="Let the target catch up, or raise the bound.",
    text=(
        "The journal {uri} is full: it holds {sealed_bytes} bytes, {pending} more are waiting, and "
        "journal.bytes_max is {bytes_max}."
    ),
    action=("Wait until the target catches up, or raise `journal.bytes_max`. Until then the source keeps its log."),
)

JOURNAL_GIVEN_UP: Final = SECTION.rule(
    "journal_given_up",
    raises=(ReplicatorError,),
    meaning="The journal of a failed table was deleted to free space.",
    remedy="A new snapshot of it.",
)

JOURNAL_GAP: Final = SECTION.rule(
    "journal_gap",
    raises=(TableError,),
    meaning="The journal no longer holds what the target lacks of the table.",
    remedy="A new snapshot of it.",
)

CHANGES_DELETED: Final = JOURNAL_GAP.worded(
    ("The journal no longer has every change after number {ledger}, the last one that the target applied."),
    action="Run `replicator snapshot {name} {quoted_table}`.",
)

SNAPSHOT_DELETED: Final = JOURNAL_GAP.worded(
    "The journal no longer has the beginning of the table's newest snapshot.",
    action="Run `replicator snapshot {name} {quoted_table} --recreate`.",
)

JOURNAL_DISK_FULL: Final = SECTION.rule(
    "journal_disk_full",
    raises=(JournalUnavailableError,),
    meaning=(
        "The disk, the quota or the largest file size is reached; the message names the volume and what is free on it."
    ),
    remedy="Make room, or lower `journal.bytes_max` and `journal.keep`.",
    text=_NOT_USABLE,
)

JOURNAL_READ_ONLY: Final = SECTION.rule(
    "journal_read_only",
    raises=(JournalUnavailableError,),
    meaning="The file system is mounted read-only.",
    remedy="Mount it for writing.",
    text=_NOT_USABLE,
)

JOURNAL_ACCESS_DENIED: Final = SECTION.rule(
    "journal_access_denied",
    raises=(JournalUnavailableError,),
    meaning="Access to the folder or object store is denied.",
    remedy=(
        "Make the folder writable for this user, or give the worker credentials that may list, read, write and "
        "delete there."
    ),
    text=_NOT_USABLE,
)

JOURNAL_UNAVAILABLE: Final = SECTION.rule(
    "journal_unavailable",
    raises=(JournalUnavailableError,),
    meaning="The journal's location cannot be used for another reason.",
    remedy="Check that it exists and answers.",
    text=_NOT_USABLE,
)

SPOOL_UNAVAILABLE: Final = SECTION.rule(
    "spool_unavailable",
    raises=(JournalUnavailableError,),
    meaning="The folder for what waits on local disk (under `REPLICATOR_HOME`) refuses writes.",
    remedy="Free space there, or make it writable.",
    text="The spool folder {folder} cannot be written: {strerror}{left}.",
    action="Free space there, or make it writable.",
)

NEWER_JOURNAL: Final = SECTION.rule(
    "newer_journal",
    raises=(FatalError,),
    meaning="A newer version wrote it.",
    remedy="Use that version.",
    text="The journal {uri} has format {version}; this version supports formats up to {format_version}.",
    action="Use the version of the Replicator that wrote it, or a newer one.",
)

CORRUPT_JOURNAL: Final = SECTION.rule(
    "corrupt_journal",
    raises=(CorruptStreamError,),
    meaning="The folder's marker (`journal.json`) or claim (`claim.json`) is damaged; the message names the file.",
    remedy=(
        "Restore the marker, or delete the folder and start at a new log position. Delete a damaged claim if no "
        "other host runs the replicator."
    ),
)

CORRUPT_CLAIM: Final = CORRUPT_JOURNAL.worded(
    "The file {where} is not the claim of a journal.",
    action="Delete this file if no other host runs the replicator, and start again.",
)

CORRUPT_MARKER: Final = CORRUPT_JOURNAL.worded(
    "The file {uri} is not the marker of a journal.",
    action="Restore it from a backup; or delete the folder and run `replicator snapshot NAME --restart`.",
)

CORRUPT_SEGMENT: Final = SECTION.rule(
    "corrupt_segment",
    raises=(CorruptStreamError,),
    meaning="A journal file is missing or damaged. Its table fails.",
    remedy="Restore it from a backup, then a new snapshot of the table; without one, recreate the table.",
    text="The journal file {uri} cannot be used: {fact}.",
    action="Restore it from a backup, or run `replicator snapshot {name} --restart`.",
)

INDEX_CONFLICT: Final = SECTION.rule(
    "index_conflict",
    raises=(FatalError,),
    meaning="A segment does not continue the last one.",
    remedy="Make sure that only one worker runs this replicator, then start it again.",
    text=(
        "The journal of {name} ends with segment {id_} at number {last}; segment {id} with numbers {first} to "
        "{last_2} does not continue it."
    ),
    action="Make sure that only one worker runs this replicator, and start it again.",
)

TRANSACTION_NOT_CLOSED: Final = SECTION.rule(
    "transaction_not_closed",
    raises=(PluginError,),
    meaning="A source claimed that a transaction was over without delivering its end. Nothing of it was sealed.",
    remedy="Report it to the plugin's author.",
    text="The source claimed to be {where}, but {fault}.",
)

WRONG_LAYOUT: Final = SECTION.rule(
    "wrong_layout",
    raises=(PluginError,),
    meaning="A source returned rows whose layout is not their table's.",
    remedy="Report it to the plugin's author.",
    text="A batch of changes has another layout than its table ({schema}).",
)

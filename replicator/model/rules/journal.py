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

SECTION: Final = Section("Journal")

JOURNAL_URI: Final = SECTION.rule(
    "journal_uri",
    raises=(ConfigError,),
    found=(Severity.BLOCKING,),
    meaning="No file system knows the scheme of `journal.uri`, or it has a password or options.",
    remedy="Set a folder, or install the fsspec package of the scheme; write only bucket and path.",
)

PATH_NOT_ABSOLUTE: Final = SECTION.rule(
    "path_not_absolute",
    found=(Severity.BLOCKING,),
    meaning=(
        "A path of the configuration (`target.path`, `journal.uri`, a certificate) is relative: where it leads "
        "to would depend on the folder in which a worker starts."
    ),
    remedy="Write the whole path; the message has it for the present folder.",
)

JOURNAL_NOT_SHARED: Final = SECTION.rule(
    "journal_not_shared",
    found=(Severity.BLOCKING,),
    meaning="A state store for several hosts, and a journal on one host's disk.",
    remedy="Set `journal.uri` to a location that all hosts can reach.",
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
)

JOURNAL_IN_USE: Final = SECTION.rule(
    "journal_in_use",
    raises=(ConfigError,),
    meaning="The folder belongs to another replicator.",
    remedy="Use another folder; or delete this one if its replicator no longer exists.",
)

JOURNAL_FULL: Final = SECTION.rule(
    "journal_full",
    raises=(JournalUnavailableError,),
    meaning="The journal has reached `journal.bytes_max`; the source keeps its log.",
    remedy="Let the target catch up, or raise the bound.",
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

JOURNAL_DISK_FULL: Final = SECTION.rule(
    "journal_disk_full",
    raises=(JournalUnavailableError,),
    meaning=(
        "The disk, the quota or the largest file size is reached; the message names the volume and what is free on it."
    ),
    remedy="Make room, or lower `journal.bytes_max` and `journal.keep`.",
)

JOURNAL_READ_ONLY: Final = SECTION.rule(
    "journal_read_only",
    raises=(JournalUnavailableError,),
    meaning="The file system is mounted read-only.",
    remedy="Mount it for writing.",
)

JOURNAL_ACCESS_DENIED: Final = SECTION.rule(
    "journal_access_denied",
    raises=(JournalUnavailableError,),
    meaning="Access to the folder or object store is denied.",
    remedy=(
        "Make the folder writable for this user, or give the worker credentials that may list, read, write and "
        "delete there."
    ),
)

JOURNAL_UNAVAILABLE: Final = SECTION.rule(
    "journal_unavailable",
    raises=(JournalUnavailableError,),
    meaning="The journal's location cannot be used for another reason.",
    remedy="Check that it exists and answers.",
)

SPOOL_UNAVAILABLE: Final = SECTION.rule(
    "spool_unavailable",
    raises=(JournalUnavailableError,),
    meaning="The folder for what waits on local disk (under `REPLICATOR_HOME`) refuses writes.",
    remedy="Free space there, or make it writable.",
)

NEWER_JOURNAL: Final = SECTION.rule(
    "newer_journal",
    raises=(FatalError,),
    meaning="A newer version wrote it.",
    remedy="Use that version.",
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

CORRUPT_SEGMENT: Final = SECTION.rule(
    "corrupt_segment",
    raises=(CorruptStreamError,),
    meaning="A journal file is missing or damaged. Its table fails.",
    remedy="Restore it from a backup, then a new snapshot of the table; without one, recreate the table.",
)

INDEX_CONFLICT: Final = SECTION.rule(
    "index_conflict",
    raises=(FatalError,),
    meaning="A segment does not continue the last one.",
    remedy="Make sure that only one worker runs this replicator, then start it again.",
)

TRANSACTION_NOT_CLOSED: Final = SECTION.rule(
    "transaction_not_closed",
    raises=(PluginError,),
    meaning="A source claimed that a transaction was over without delivering its end. Nothing of it was sealed.",
    remedy="Report it to the plugin's author.",
)

WRONG_LAYOUT: Final = SECTION.rule(
    "wrong_layout",
    raises=(PluginError,),
    meaning="A source returned rows whose layout is not their table's.",
    remedy="Report it to the plugin's author.",
)

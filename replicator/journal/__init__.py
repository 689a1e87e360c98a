"""The journal: the durable, ordered, numbered record between source and target."""

from replicator.journal.claim import JournalClaim, check_claim
from replicator.journal.location import check_location, check_present, open_folder, remove_journal
from replicator.journal.pending import WriterLimits
from replicator.journal.reader import JournalReader
from replicator.journal.retention import Retention, Swept
from replicator.journal.writer import JournalWriter

__all__ = [
    "JournalClaim",
    "JournalReader",
    "JournalWriter",
    "Retention",
    "Swept",
    "WriterLimits",
    "check_claim",
    "check_location",
    "check_present",
    "open_folder",
    "remove_journal",
]

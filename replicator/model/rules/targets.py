"""Rules about targets in general."""

from __future__ import annotations

from typing import Final

from replicator.model.errors import (
    ConfigError,
    CorruptStreamError,
    FatalError,
    PluginError,
    SchemaConflictError,
    Severity,
    TableError,
    TargetUnavailableError,
    ThrottledError,
)
from replicator.model.rules import Section

SECTION: Final = Section("Target in general")

NOT_OURS: Final = SECTION.rule(
    "not_ours",
    raises=(TableError,),
    found=(Severity.BLOCKING,),
    meaning="A table of another replicator, or of somebody else, is at this path.",
    remedy="Use another path, move it away, or `target.adopt: replace` to lose its content.",
)

TARGET_OCCUPIED: Final = SECTION.rule(
    "target_occupied",
    raises=(ConfigError, TableError),
    found=(Severity.BLOCKING,),
    meaning="A file, a view, or a folder with files that are not a table, is at this path.",
    remedy="Move it away, or choose another path.",
)

TABLE_NAME_TOO_LONG: Final = SECTION.rule(
    "table_name_too_long",
    raises=(TableError,),
    found=(Severity.BLOCKING,),
    meaning="On a file system: the table's folder would have a name of more than 255 bytes.",
    remedy="Rename or exclude the table, or write to an object store.",
)

TARGET_NOT_WRITABLE: Final = SECTION.rule(
    "target_not_writable",
    raises=(TargetUnavailableError,),
    found=(Severity.BLOCKING,),
    meaning="The path cannot be written.",
    remedy="Allow the worker's user to write to the path; on a cluster, also the executors' user.",
)

TARGET_FULL: Final = SECTION.rule(
    "target_full",
    raises=(TargetUnavailableError,),
    meaning="The target's disk is full; the message names the table's folder.",
    remedy="Make room.",
)

TARGET_UNREACHABLE: Final = SECTION.rule(
    "target_unreachable",
    raises=(TargetUnavailableError,),
    meaning="The storage does not answer.",
    remedy="Check network and endpoint.",
)

TARGET_BUSY: Final = SECTION.rule(
    "target_busy",
    raises=(TargetUnavailableError, ThrottledError),
    meaning="Another writer committed to the table at the same moment, or recreated it.",
    remedy="Nothing; if it happens often, find the other writer.",
)

STATE_NOT_READABLE: Final = SECTION.rule(
    "state_not_readable",
    raises=(TableError,),
    meaning="The state of the target table that `verify` compares cannot be read.",
    remedy="Run `verify` again. If it fails again, the message says why.",
)

BROKEN_CONTRACT: Final = SECTION.rule(
    "broken_contract",
    raises=(PluginError,),
    meaning="The target skipped a batch that its ledger does not hold.",
    remedy="Report it to the plugin's author.",
)

COMMENT_CHANGED: Final = SECTION.rule(
    "comment_changed",
    found=(Severity.NOTICE,),
    meaning="A comment does not arrive as it is: it is cut, for example.",
    remedy="Nothing; the target's page says why.",
)

TYPE_CHANGED: Final = SECTION.rule(
    "type_changed",
    found=(Severity.NOTICE,),
    meaning="A type is held as another one.",
    remedy="Nothing; the target's page has the tables.",
)

KEY_TYPE_UNSUPPORTED: Final = SECTION.rule(
    "key_type_unsupported",
    found=(Severity.BLOCKING,),
    meaning="A key has a floating-point column.",
    remedy="Another key, or none.",
)

SOFT_DELETES_NEED_KEY: Final = SECTION.rule(
    "soft_deletes_need_key",
    raises=(SchemaConflictError,),
    meaning="`deletes: soft` for a table without a key.",
    remedy="`deletes: hard` for it.",
)

SCHEMA_CONFLICT: Final = SECTION.rule(
    "schema_conflict",
    raises=(SchemaConflictError,),
    meaning=(
        "The target table has other columns, another key or other settings (`deletes`, `source_timestamp`), or "
        "was dropped, or Spark refuses the rows. Or somebody else dropped, renamed or changed columns of it; the "
        "message says which."
    ),
    remedy=(
        "Recreate the table (`snapshot --recreate`); or undo the change of columns or settings and take a new snapshot."
    ),
)

DDL_NOT_SUPPORTED: Final = SECTION.rule(
    "ddl_not_supported",
    raises=(SchemaConflictError,),
    meaning="A schema change that the target does not support.",
    remedy="A new snapshot.",
)

JOURNAL_FILE_UNREADABLE: Final = SECTION.rule(
    "journal_file_unreadable",
    raises=(CorruptStreamError,),
    meaning="Spark could not read a journal file: it is missing, damaged, or not reachable from its executors.",
    remedy="Restore it or make it reachable, then a new snapshot of the table; otherwise recreate the table.",
)

MERGE_NOT_UNIQUE: Final = SECTION.rule(
    "merge_not_unique",
    raises=(FatalError,),
    meaning="A bug: two rows of one merge have one key. The table fails.",
    remedy="Report it; then a new snapshot.",
)

LEDGER_DAMAGED: Final = SECTION.rule(
    "ledger_damaged",
    raises=(FatalError, TableError),
    meaning=(
        "A table's ledger, or its entry there, is missing, cannot be read, or stands there twice: somebody else "
        "changed it."
    ),
    remedy="Drop it and its table, then recreate the table.",
)

"""Codes that only the in-memory source and target have."""

from __future__ import annotations

from typing import Final

from replicator.model.errors import FatalError, LogGapError
from replicator.model.rules import Section, sources, tables, targets

SECTION: Final = Section(
    "The test kit's in-memory source and target",
    "Only `replicator_testing.memory` raises these, besides codes from above; an installation never does.",
)


LOG_GAP: Final = SECTION.rule(
    "log_gap",
    raises=(LogGapError,),
    meaning="The offset is not in this log.",
    remedy="Start from an offset of this database.",
)

SLOT_MISSING: Final = LOG_GAP.worded("The slot does not exist.")

OTHER_DATABASE: Final = LOG_GAP.worded("The offset is another database's.")

ACKNOWLEDGED_BEYOND: Final = LOG_GAP.worded("{confirmed} has been acknowledged, beyond {position}")

LEDGER_MISMATCH: Final = SECTION.rule(
    "ledger_mismatch",
    raises=(FatalError,),
    meaning="A batch does not begin where the ledger ends.",
    remedy="A bug in apply, or in the test.",
    text="The batch continues {skip_to}, the ledger is {ledger}",
)

WRONG_APPEND: Final = SECTION.rule(
    "wrong_append",
    raises=(FatalError,),
    meaning="A batch that says `is_append` holds a key twice, or one that is there.",
    remedy="A bug in apply, or in the test.",
    text="A batch that may be appended holds more than new rows.",
)

TABLE_MISSING: Final = tables.TABLE_MISSING.worded("The table does not exist.")

SCHEMA_CHANGED: Final = tables.SCHEMA_CHANGED.worded("The table no longer has the columns that were asked for.")

SOURCE_UNAVAILABLE: Final = sources.SOURCE_UNAVAILABLE.worded("The connection of the log was closed.")

OFFSET_EXPIRED: Final = sources.OFFSET_EXPIRED.worded("The log begins at {log_start}, not at {position}")

DDL_NOT_UNDERSTOOD: Final = sources.DDL_NOT_UNDERSTOOD.worded("The statement was not understood: {statement}")

STATE_NOT_READABLE: Final = targets.STATE_NOT_READABLE.worded("The table was not there then.")

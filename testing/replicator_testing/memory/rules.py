"""Codes that only the in-memory source and target have."""

from __future__ import annotations

from typing import Final

from replicator.model.errors import FatalError, LogGapError
from replicator.model.rules import Section

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

LEDGER_MISMATCH: Final = SECTION.rule(
    "ledger_mismatch",
    raises=(FatalError,),
    meaning="A batch does not begin where the ledger ends.",
    remedy="A bug in apply, or in the test.",
)

WRONG_APPEND: Final = SECTION.rule(
    "wrong_append",
    raises=(FatalError,),
    meaning="A batch that says `is_append` holds a key twice, or one that is there.",
    remedy="A bug in apply, or in the test.",
)

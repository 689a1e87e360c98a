"""Next step that ends an alarm of a table at the least cost, for status, alerts, dashboard and log. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from replicator.model.documents.verdict import Result
from replicator.state.records import AppliedRecord, TargetCopy
from replicator.state.verification.outcomes import VERIFY_DIFFERENT
from replicator.state.verification.records import VerificationRecord

REPAIR: Final = "Run `replicator verify NAME TABLE --repair`."
"""Step that compares both sides, and reads only rows that differ again."""
SNAPSHOT: Final = "Run `replicator snapshot NAME TABLE`."
RECREATE: Final = "Run `replicator snapshot NAME TABLE --recreate`."


def next_step(
    code: str, *, applied: AppliedRecord | None, verified: VerificationRecord | None, kept_columns: Collection[str]
) -> str:
    """Return the next step for an alarm.

    Args:
        code: Code of the alarm.
        applied: Apply's record of its table.
        verified: Result of comparisons of its incarnation; None: there were none.
        kept_columns: Columns that the target keeps although the source dropped them. No comparison sees them.
    """
    if code == VERIFY_DIFFERENT:
        seen = verified is None or set(kept_columns) <= set(verified.not_compared)
        return REPAIR if seen else RECREATE
    is_in_part = bool(kept_columns) or (verified is not None and verified.result is Result.EQUAL_IN_PART)
    is_whole = applied is None or applied.copy is TargetCopy.WHOLE
    return SNAPSHOT if is_in_part or not is_whole else REPAIR

"""What ends an alarm of a table at the least cost, as status, alerts, dashboard and log say it. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from replicator.model.verdict import Result
from replicator.state.records import AppliedRecord, TargetCopy
from replicator.state.verification.outcomes import VERIFY_DIFFERENT
from replicator.state.verification.records import VerificationRecord

REPAIR: Final = "Run `replicator verify NAME TABLE --repair`."
"""It compares both sides, and reads only the rows again that differ."""
SNAPSHOT: Final = "Run `replicator snapshot NAME TABLE`."
RECREATE: Final = "Run `replicator snapshot NAME TABLE --recreate`."


def next_step(
    code: str, *, applied: AppliedRecord | None, verified: VerificationRecord | None, kept_columns: Collection[str]
) -> str:
    """What to do about an alarm.

    Args:
        code: Of the alarm.
        applied: What apply knows of its table.
        verified: What is known of its incarnation from comparisons; None: nothing.
        kept_columns: Those that the target keeps although the source dropped them. No comparison sees them.
    """
    if code == VERIFY_DIFFERENT:
        seen = verified is None or set(kept_columns) <= set(verified.not_compared)
        return REPAIR if seen else RECREATE
    is_in_part = bool(kept_columns) or (verified is not None and verified.result is Result.EQUAL_IN_PART)
    is_whole = applied is None or applied.copy is TargetCopy.WHOLE
    return SNAPSHOT if is_in_part or not is_whole else REPAIR

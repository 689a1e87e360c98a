"""Alarms: a table continues although it may differ from its source. Pure.

An alarm is raised after an audit of the target, and cleared by a snapshot that began after it and is complete, or by a
verification that began after it and found the whole table equal. One that is raised while either is under way stays: rows that were read
already may be the ones concerned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from replicator.model.merged import Merged
from replicator.plugins.target import Audit
from replicator.state.records import AlarmRecord

TARGET_DIVERGED: Final = "target_diverged"
TARGET_CHANGED: Final = "target_changed"

Alarms = tuple[AlarmRecord, ...]


def raised(alarms: Alarms, audit: Audit, known: Merged, *, action: str, now: Callable[[], datetime]) -> Alarms:
    """Return the alarms after an audit.

    Args:
        alarms: The alarms before the audit.
        audit: The audit's result.
        known: The counts at the previous audit.
        action: The next step for the operator.
        now: Returns the time; called only if there is an alarm to raise.
    """
    missing = audit.merged.not_found - known.not_found
    if missing > 0:
        message = (
            f"The source changed rows that the target does not have, so the two differ. In the last batch {missing} "
            f"{'row was' if missing == 1 else 'rows were'} missing."
        )
        alarms = _with(alarms, TARGET_DIVERGED, message, action, now(), missing)
    changes = []
    if audit.changed_by_others:
        changes.append(
            f"A commit that is not ours changed the table's data in the target: {_listed(audit.changed_by_others)}."
        )
    if audit.unseen is not None:
        changes.append(
            f"Whether others changed the table's data in {audit.unseen} of the target cannot be known any more: "
            "the target removed that part of its history before it was checked."
        )
    if changes:
        count = len(audit.changed_by_others) + (audit.unseen is not None)
        alarms = _with(alarms, TARGET_CHANGED, " ".join(changes), action, now(), count)
    return alarms


def covered(alarms: Alarms) -> Alarms:
    """Mark all alarms as covered by a snapshot that has begun: its completion clears them."""
    return tuple(replace(alarm, is_covered=True) for alarm in alarms)


def cleared(alarms: Alarms) -> Alarms:
    """Return the alarms that are left once a snapshot is complete."""
    return tuple(alarm for alarm in alarms if not alarm.is_covered)


def holding(alarms: Alarms, disproved: Alarms) -> Alarms:
    """Return the alarms without those that a verification has disproved. One that was seen again since then is kept."""
    seen = {(alarm.code, alarm.at, alarm.count) for alarm in disproved}
    return tuple(alarm for alarm in alarms if (alarm.code, alarm.at, alarm.count) not in seen)


def _with(alarms: Alarms, code: str, message: str, action: str, at: datetime, count: int) -> Alarms:
    before = next((alarm.count for alarm in alarms if alarm.code == code), 0)
    new = AlarmRecord(code=code, message=message, action=action, at=at, count=before + count)
    return tuple(sorted([*(a for a in alarms if a.code != code), new], key=lambda alarm: alarm.code))


def _listed(texts: Sequence[str]) -> str:
    most = 3
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[-most:]) + more

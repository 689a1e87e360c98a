"""Rules about alarms of tables."""

from __future__ import annotations

from typing import Final

from replicator.model.rules import Section

SECTION: Final = Section(
    "Alarms",
    (
        '`tables[].alarms` in `status --json`; the log has `alarm_raised` and `alarm_cleared`. See "Alarms" in '
        "`operating.md`."
    ),
)

TARGET_DIVERGED: Final = SECTION.rule(
    "target_diverged",
    is_alarm=True,
    meaning="The source updated or deleted a row that the target did not have.",
    remedy="Find out who removed it, then `replicator verify NAME TABLE --repair`.",
)

TARGET_CHANGED: Final = SECTION.rule(
    "target_changed",
    is_alarm=True,
    meaning=(
        "A commit that is not ours changed the table's data in the target; or the target removed a part of its "
        "history before it was checked for such commits, as during a longer pause."
    ),
    remedy="Stop other writers, then `replicator verify NAME TABLE --repair`.",
)

VERIFY_DIFFERENT: Final = SECTION.rule(
    "verify_different",
    is_alarm=True,
    meaning="A verification compared source and target, and rows differ (`verify.md`).",
    remedy="`replicator verify NAME TABLE --repair`.",
)

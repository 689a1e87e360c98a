"""The next step of every alarm, all together: the cheapest that ends it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from replicator.apply.divergence import TARGET_CHANGED, TARGET_DIVERGED
from replicator.model.documents.verdict import Result
from replicator.model.schema import TableId
from replicator.state.next_steps import RECREATE, REPAIR, SNAPSHOT, next_step
from replicator.state.records import AlarmRecord, AppliedRecord, TargetCopy
from replicator.state.verification.outcomes import VERIFY_DIFFERENT
from replicator.state.verification.records import VerificationRecord

A = TableId("shop", "a")
WHOLE = AppliedRecord(table=A, incarnation=1, copy=TargetCopy.WHOLE)
NEVER = AppliedRecord(table=A, incarnation=1)
ALARM = AlarmRecord(code=VERIFY_DIFFERENT, message="m", action="a", at=datetime(2026, 1, 31, tzinfo=UTC), count=1)


def verified(result: Result, *left_out: str) -> VerificationRecord:
    alarm = ALARM if result is Result.DIFFERENT else None
    return VerificationRecord(table=A, incarnation=1, result=result, alarm=alarm, not_compared=left_out)


@pytest.mark.parametrize(
    ("code", "applied", "known", "kept", "step"),
    [
        (VERIFY_DIFFERENT, WHOLE, verified(Result.DIFFERENT), (), REPAIR),
        (VERIFY_DIFFERENT, WHOLE, verified(Result.DIFFERENT, "n"), ("n",), REPAIR),
        (VERIFY_DIFFERENT, WHOLE, verified(Result.DIFFERENT), ("n",), RECREATE),
        *(
            (code, *case)
            for code in (TARGET_CHANGED, TARGET_DIVERGED)
            for case in [
                (WHOLE, None, (), REPAIR),
                (WHOLE, verified(Result.EQUAL), (), REPAIR),
                (WHOLE, verified(Result.DIFFERENT), (), REPAIR),
                (WHOLE, verified(Result.NOT_VERIFIED), (), REPAIR),
                (WHOLE, None, ("n",), SNAPSHOT),
                (WHOLE, verified(Result.EQUAL_IN_PART, "n"), (), SNAPSHOT),
                (NEVER, None, (), SNAPSHOT),
            ]
        ),
    ],
)
def test_every_alarm_names_the_cheapest_step_that_ends_it(
    code: str, applied: AppliedRecord, known: VerificationRecord | None, kept: tuple[str, ...], step: str
) -> None:
    assert next_step(code, applied=applied, verified=known, kept_columns=kept) == step

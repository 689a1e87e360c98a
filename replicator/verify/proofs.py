"""Compares tables and records the results in the state store, so that the status and the schedule know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from replicator.model.documents.verdict import Result
from replicator.model.errors import with_names
from replicator.model.schema import TableId
from replicator.state.next_steps import REPAIR
from replicator.state.records import AlarmRecord
from replicator.state.verification.records import (
    RangeOutcome,
    RangeRecord,
    VerificationOutcome,
    VerificationRecord,
)
from replicator.verify.judge import Judge
from replicator.verify.repair import Repair
from replicator.verify.scope import VerifyScope
from replicator.verify.verdicts import Counts, Extent, Verdict
from replicator.verify.walk import Visit


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """State of a table before it was compared. `incarnation`: 0 if it is not replicated."""

    incarnation: int
    at: datetime
    alarms: tuple[AlarmRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proofs:
    """Verifies tables of one replicator, and records the results.

    Attributes:
        judge: Compares the tables.
        repair: Repairs what differs; None: nothing is repaired.
        visit: Settings of the comparison of whole tables.
        is_scheduled: True if the schedule asks for the comparison.
        noted: Called with the record of a table whenever a comparison was recorded.
    """

    judge: Judge
    repair: Repair | None = None
    visit: Visit = field(default_factory=Visit)
    is_scheduled: bool = False
    noted: Callable[[VerificationRecord], None] = lambda _: None

    def verify(self, table: TableId, scope: VerifyScope | None = None) -> Verdict:
        """Compare a table, or some of its rows; with `repair` repair what differs, too.

        Raises:
            ReplicatorError: As `Judge.verify`.
        """
        before = self.before(table)
        verdict = self.compare(table, before, scope)
        if self.repair is None or verdict.result is not Result.DIFFERENT:
            self.note(verdict, before)
            return verdict
        if verdict.scope is Extent.TABLE:
            self.note(verdict, before)
        repaired = self.repair.repair(verdict)
        applied = self.judge.store.applied(self.judge.name).get(table)
        if repaired.result is Result.EQUAL and verdict.scope is Extent.TABLE and applied is not None and applied.alarms:
            # Perhaps the commits that were repaired raised it. Only the whole table can show that there were no others since.
            return self._confirmed(table, repaired)
        self.note(repaired, before)
        return repaired

    def compare(self, table: TableId, before: Before, scope: VerifyScope | None = None) -> Verdict:
        """Compare a table, or some of its rows, and record each range as soon as it is compared; the caller records the whole."""

        def noted(one: RangeRecord, begun_at: datetime, counts: Counts) -> None:
            if before.incarnation:
                self._note_range(table, before.incarnation, one, begun_at, counts)

        def keeps(one: RangeRecord) -> bool:
            # The cause of an alarm may be in any range.
            return self.visit.keeps(one) and set(before.alarms) <= set(one.disproves)

        return self.judge.verify(table, scope, replace(self.visit, noted=noted, keeps=keeps))

    def before(self, table: TableId) -> Before:
        """Return the state of the table. To be asked before it is compared."""
        store, name = self.judge.store, self.judge.name
        record = store.table(name, table)
        applied = store.applied(name).get(table)
        return Before(
            incarnation=record.incarnation if record is not None else 0,
            at=store.now(),
            alarms=applied.alarms if applied is not None else (),
        )

    def note(self, verdict: Verdict, before: Before) -> None:
        """Record the result of a comparison."""
        if not before.incarnation:
            return
        outcome = VerificationOutcome(
            table=verdict.table,
            incarnation=before.incarnation,
            result=verdict.result,
            is_whole=verdict.scope is Extent.TABLE,
            begun_at=before.at,
            position=verdict.last_position,
            rows=verdict.rows_target,
            differ=verdict.counts.total,
            is_by_range=verdict.ranges is not None and verdict.repaired is None,
            message=_message(verdict),
            action=verdict.action if verdict.result is Result.NOT_VERIFIED else self._action(verdict.table),
            disproves=before.alarms if verdict.repaired is None else (),
            not_compared=verdict.not_compared,
        )
        self.noted(self.judge.store.verifications.note(self.judge.name, outcome))

    def _confirmed(self, table: TableId, repaired: Verdict) -> Verdict:
        before = self.before(table)
        verdict = self.compare(table, before)
        self.note(verdict, before)
        return repaired if verdict.result is Result.EQUAL else verdict

    def _note_range(
        self, table: TableId, incarnation: int, one: RangeRecord, begun_at: datetime, counts: Counts
    ) -> None:
        outcome = RangeOutcome(
            table=table,
            incarnation=incarnation,
            range=one,
            begun_at=begun_at,
            is_scheduled=self.is_scheduled,
            differ=counts.total,
            message=_difference(counts),
            action=self._action(table),
        )
        self.judge.store.verifications.note_range(self.judge.name, outcome)

    def _action(self, table: TableId) -> str:
        return with_names(REPAIR, self.judge.name, str(table))


def _message(verdict: Verdict) -> str | None:
    if verdict.result is not Result.DIFFERENT:
        return verdict.reason
    return _difference(verdict.counts)


def _difference(counts: Counts) -> str:
    return (
        f"Source and target were compared, and {counts.total} {'row differs' if counts.total == 1 else 'rows differ'}: "
        f"{counts.missing} missing, {counts.extra} extra, {counts.different} different."
    )

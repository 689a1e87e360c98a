"""Finds rows that a table lacks after a part of its source's log was lost, and has only those read again.

Of a table that is being compared (`Stage.COMPARING`), both sides are compared as a whole. The rows that differ are read again by their
keys, as a repair does it. Once nothing differs, the table is complete. Otherwise a snapshot in place is requested, which reads
all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from replicator.model.crash import crash_point
from replicator.model.documents.verdict import Result
from replicator.model.schema import TableId
from replicator.plugins.verification import SupportsSourceVerification, SupportsTargetVerification
from replicator.state import table_life
from replicator.state.records import AppliedRecord, Request, RequestKind, TableRecord
from replicator.verify.barriers import NotVerifiedError
from replicator.verify.judge import Judge
from replicator.verify.repair import Repair
from replicator.verify.verdicts import Verdict
from replicator.verify.walk import Visit

_BEGINNINGS: Final = (RequestKind.SNAPSHOT, RequestKind.RECREATE, RequestKind.RESTART)


def can_compare(record: TableRecord, applied: AppliedRecord | None) -> bool:
    """Return whether a table is being compared, and apply has its incarnation."""
    return table_life.is_comparing(record) and applied is not None and applied.incarnation == record.incarnation


def left_to_compare(tables: Sequence[TableRecord], requests: Sequence[Request]) -> list[TableRecord]:
    """Return the tables that are being compared, without those for which a snapshot was requested meanwhile. Pure."""
    asked = set[str]()
    for request in requests:
        if request.kind in _BEGINNINGS:
            names = request.payload.get("tables")
            if not names:
                return []
            asked.update(names)
    return [table for table in tables if table_life.is_comparing(table) and str(table.table) not in asked]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resync:
    """Resynchronises tables of one replicator, while its worker continues.

    A resync that was killed is repeated. Rows that were already read again do not differ any more.

    Attributes:
        judge: A judge that may compare such tables (`can_compare`), and collects the keys of up to `rows_max` rows that differ.
        rows_max: If more rows of a table differ, all of its rows are read again.
        visit: Settings of the comparison of whole tables.
    """

    judge: Judge
    rows_max: int
    visit: Visit = field(default_factory=Visit)

    def catch_up(self, table: TableId) -> None:
        """Wait until apply has all of a table that is in the journal by now, unless it has given the table up.

        Raises:
            NotVerifiedError: That takes too long.
        """
        barriers = self.judge.barriers
        applied = self.judge.store.applied(self.judge.name).get(table)
        if applied is not None and applied.has_failed:
            return
        with barriers.held() as barrier:
            position = barrier.position
            barriers.lift(barrier)
            barriers.reach(table, position)

    def resync(self, record: TableRecord) -> Verdict:
        """Compare a table, and have the rows that differ read again.

        Returns:
            EQUAL, EQUAL_IN_PART: The table is complete. DIFFERENT: A snapshot of it was requested. NOT_VERIFIED: Neither, with the reason.

        Raises:
            ReplicatorError: As `Judge.verify`.
        """
        judge, table = self.judge, record.table
        applied = judge.store.applied(judge.name).get(table)
        if table_life.has_failed(record, applied):
            return self.read_all(Verdict(table=table, result=Result.NOT_VERIFIED, reason="the table has failed"))
        if not isinstance(judge.source, SupportsSourceVerification) or not isinstance(
            judge.target, SupportsTargetVerification
        ):
            return self.read_all(judge.verify(table))
        if columns := judge.written_unseen(record):
            # No comparison finds changes that they missed.
            reason = f"the values of {', '.join(columns)} cannot be compared"
            return self.read_all(Verdict(table=table, result=Result.NOT_VERIFIED, reason=reason))
        verdict = judge.verify(table, visit=self.visit)
        crash_point("verify.compared")
        try:
            return self._act_on(verdict, record)
        except NotVerifiedError as error:
            return replace(verdict, result=Result.NOT_VERIFIED, reason=error.reason, action=error.action)

    def read_all(self, verdict: Verdict) -> Verdict:
        """Request a snapshot in place. The request stays until that begins: the table is not compared meanwhile."""
        self.judge.store.requests.add(self.judge.name, RequestKind.SNAPSHOT, {"tables": [str(verdict.table)]})
        return replace(verdict, result=Result.DIFFERENT)

    def _act_on(self, verdict: Verdict, record: TableRecord) -> Verdict:
        repair = Repair(judge=self.judge, rows_max=self.rows_max)
        if verdict.result is Result.DIFFERENT:
            has_key = record.schema is not None and bool(record.schema.key)
            if not has_key or verdict.counts.total > self.rows_max:
                return self.read_all(verdict)
            verdict = repair.attempt(verdict)
            crash_point("verify.repaired")
        if verdict.result is Result.DIFFERENT:
            return self.read_all(verdict)
        if verdict.result in (Result.EQUAL, Result.EQUAL_IN_PART):
            # Columns that are kept do not change with the source.
            started_at = record.snapshot.started_at if record.snapshot is not None else None
            assert started_at is not None, "its comparison has begun"
            proven = {"table": str(record.table), "started_at": started_at.isoformat()}
            repair.ask(RequestKind.PROVEN, proven)
            now = self.judge.store.table(self.judge.name, record.table)
            if now is None or not table_life.is_complete(now):
                # The journal did not tell of changes that were lost meanwhile.
                raise NotVerifiedError("its comparison began again meanwhile")
        return verdict

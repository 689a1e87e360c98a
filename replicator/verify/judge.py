"""Compares one table at a time: the source's rows as one read sees them, the target's rows as its ledger was at a barrier.

One round of a comparison:

1. Capture ends a commit at a mark that it has written into the source's log: a barrier in the journal, at number S. Apply ends
   a batch there, so one state of the target holds everything up to S and nothing beyond.
2. The source is read as of now. It has what was committed before the mark, and perhaps a little more.
3. Both sides' checksums are compared, then the rows of groups that differ.
4. If some rows differ, the journal tells which of them the read may have seen in a newer state than S (`moving.py`). The others
   differ. The newer ones are compared again, alone, in the next round.

A whole table is compared in this way range by range of its key (`walk.py`), if both sides order its keys alike. Of a scope other than
the whole table (`scope.py`), both sides checksum only its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from replicator.journal.reader import JournalReader
from replicator.model.documents.verdict import Result
from replicator.model.errors import ReplicatorError, TableError
from replicator.model.isolation import table_error
from replicator.model.schema import TableId, TableSchema
from replicator.observability import get_logger
from replicator.plugins.source import DeltaSource
from replicator.plugins.target import DeltaTarget, TableOptions
from replicator.plugins.verification import Among, Ids, SupportsTargetVerification
from replicator.state import table_life
from replicator.state.records import AppliedRecord, TableRecord, TargetCopy
from replicator.state.store import StateStore
from replicator.verify.barriers import Barriers, NotVerifiedError
from replicator.verify.rounds import AGAIN_SOON, CHANGES_TOO_MUCH, AgainError, Compared, Round, Sides
from replicator.verify.scope import Chosen, OfIds, TableJournal, VerifyScope, Whole
from replicator.verify.verdicts import DIFFERENCES_MAX, Counts, Verdict
from replicator.verify.walk import AGAIN, KEPT_CHANGING, ROUNDS_MAX, Visit, Walk, Walked, given_up

_log = get_logger(__name__)


def _is_whole(record: TableRecord, applied: AppliedRecord | None) -> bool:
    """Return whether the target has the whole snapshot of a table."""
    return (
        table_life.is_complete(record)
        and not table_life.is_outdated(record)
        and applied is not None
        and applied.incarnation == record.incarnation
        and applied.copy is TargetCopy.WHOLE
        and not table_life.has_snapshot_to_apply(record, applied)
    )


@dataclass(slots=True, kw_only=True)
class Judge:
    """Verifies tables of one replicator, while its worker continues. Used from one thread.

    Attributes:
        uuid: Identifier of the replicator.
        options: A table's settings, as apply has them.
        barriers: Finds barriers in the journal.
        with_values: True if differences are described with values.
        keys_max: Number of differing rows whose keys are collected at most (`Verdict.row_keys`).
        can_compare: Returns whether the target has enough of a table for a comparison to mean something.
    """

    source: DeltaSource[Any]
    target: DeltaTarget[Any]
    store: StateStore
    reader: JournalReader
    name: str
    uuid: str
    options: Callable[[TableId], TableOptions]
    barriers: Barriers
    with_values: bool = False
    keys_max: int = 0
    can_compare: Callable[[TableRecord, AppliedRecord | None], bool] = _is_whole

    def verify(
        self, table: TableId, scope: VerifyScope | Collection[str] | None = None, visit: Visit | None = None
    ) -> Verdict:
        """Compare a table, or some rows of it.

        Args:
            table: Its name.
            scope: Rows to compare; also their ids. None: all.
            visit: Settings of the comparison of a whole table.

        Raises:
            ReplicatorError: Source, target or state store cannot be asked.
        """
        if not isinstance(scope, VerifyScope):
            scope = Whole() if scope is None else OfIds(frozenset(scope))
        try:
            return self._verify(table, scope, visit or Visit())
        except NotVerifiedError as error:
            reason, action = error.reason, error.action
        except TableError as error:
            reason, action = error.message, error.action
        except ReplicatorError:
            raise
        except Exception as error:
            # It is reported for this table, and the others are compared.
            ours = table_error(error, table, "verifying it")
            if ours is None:
                raise
            _log.warning("table_not_verified", table=str(table), code=ours.code, exc_info=error)
            reason, action = ours.message, ours.action
        return Verdict(table=table, result=Result.NOT_VERIFIED, scope=scope.extent, reason=reason, action=action)

    def _verify(self, table: TableId, scope: VerifyScope, visit: Visit) -> Verdict:
        compared: Compared | None = None
        found, again, chosen, larger = list[Round](), None, Chosen(), None
        why = NotVerifiedError(KEPT_CHANGING, AGAIN_SOON)
        for _ in range(ROUNDS_MAX):
            before, compared = compared, self._compared(table)
            if before is not None and not compared.is_as(before):
                # Ids may be others now.
                found, again = [], None
            try:
                if again is None:
                    chosen = larger or scope.choose(self._journal_of(compared))
                    if chosen == Chosen():
                        return self._walk(table, visit)
                one = self._round(compared, chosen.among if again is None else Ids(again))
            except AGAIN as error:
                why = given_up(error)
                found, again = [], None
                self.barriers.check()
                self.barriers.wait()
                continue
            found.append(one)
            again = frozenset(one.moved)
            if not again:
                verdict = _verdict(compared, chosen, [found])
                if verdict.rows_source or verdict.rows_target:
                    return verdict
                instead = scope.without_rows(chosen)
                if isinstance(instead, Result):
                    return verdict if instead is Result.EQUAL else replace(verdict, result=instead)
                found, again, larger = [], None, instead
                continue
            reason = f"{len(again)} of its rows were changed again whenever they were read"
            why = NotVerifiedError(reason, CHANGES_TOO_MUCH)
        raise why

    def _walk(self, table: TableId, visit: Visit) -> Verdict:
        """Compare a whole table."""
        walk = Walk(
            sides=self._sides,
            store=self.store,
            name=self.name,
            table=table,
            look=lambda: self._compared(table),
            visit=visit,
        )
        return _of_walk(walk.run())

    def _round(self, compared: Compared, among: Among | None) -> Round:
        with self._sides.open(compared) as states:
            one = states.compare(among)
        if not self._compared(compared.record.table).is_as(compared):
            raise AgainError("its definition changed meanwhile")
        return one

    @property
    def _sides(self) -> Sides:
        return Sides(
            source=self.source,
            target=self.target,
            reader=self.reader,
            uuid=self.uuid,
            options=self.options,
            barriers=self.barriers,
            with_values=self.with_values,
            keys_max=self.keys_max,
        )

    def _compared(self, table: TableId) -> Compared:
        """Return the table as it is now, if it can be compared."""
        record = self.store.table(self.name, table)
        applied = self.store.applied(self.name).get(table)
        if record is None or not table_life.is_replicated(record):
            raise NotVerifiedError("it is not replicated")
        if table_life.is_dropped(record):
            raise NotVerifiedError("the source does not have it any more, so there is nothing to compare it with")
        if table_life.has_failed(record, applied):
            raise NotVerifiedError("the table has failed", f"To see why: replicator status {self.name}")
        if record.schema is None or not self.can_compare(record, applied):
            raise NotVerifiedError(
                "its snapshot is not complete", f"To see how far it is: replicator status {self.name}"
            )
        columns, left_out = self._columns(record, record.schema)
        return Compared(
            record=record,
            schema=replace(record.schema, table=record.source_table or record.table),
            in_target=record.projection.in_target(record.schema),
            columns=columns,
            not_compared=(*left_out, *(column.name for column in record.schema.kept)),
        )

    def written_unseen(self, record: TableRecord) -> Sequence[str]:
        """Return the columns of a table that its changes write, and that cannot be compared: their names in the target."""
        return () if record.schema is None else self._columns(record, record.schema)[1]

    def _columns(self, record: TableRecord, schema: TableSchema) -> tuple[Mapping[str, str], Sequence[str]]:
        """Split the columns that the target has from the source: a mapping of those compared, by the source's names, and the others."""
        changed = self.target.not_compared(schema) if isinstance(self.target, SupportsTargetVerification) else ()
        columns, left_out = dict[str, str](), list[str]()
        for column, held in record.projection.pairs(schema):
            if column.name in changed or column.name in record.projection.masked or column.type != held.type:
                left_out.append(held.name)
            else:
                columns[column.name] = held.name
        return columns, left_out

    def _journal_of(self, compared: Compared) -> TableJournal:
        return TableJournal(
            record=compared.record,
            moving=compared.moving(self.reader),
            store=self.store,
            reader=self.reader,
            barriers=self.barriers,
            name=self.name,
        )


def _of_walk(walked: Walked) -> Verdict:
    """Combine the rounds of all ranges into one verdict; ranges that were left out were equal when they were compared."""
    found = _verdict(walked.compared, Chosen(), walked.parts)
    rows = sum(one.rows for one in walked.kept)
    positions = [one.position for one in walked.kept]
    return replace(
        found,
        position=min((position for position in (found.position, *positions) if position is not None), default=None),
        last_position=max(
            (position for position in (found.last_position, *positions) if position is not None), default=None
        ),
        rows_source=(found.rows_source or 0) + rows,
        rows_target=(found.rows_target or 0) + rows,
        ranges=len(walked.parts) + len(walked.kept),
        ranges_kept=len(walked.kept),
    )


def _verdict(compared: Compared, chosen: Chosen, parts: Sequence[Sequence[Round]]) -> Verdict:
    """Combine the rounds of each range, or of all rows that were compared, into one verdict."""
    rounds = [one for part in parts for one in part]
    counts = sum((one.counts for one in rounds), start=Counts())
    positions = [part[0].position for part in parts]
    # The source was read somewhat later: how many rows it had at the position follows from what differs there.
    rows_target = sum(part[0].rows_target for part in parts)
    described = sorted(
        [entry for one in rounds for entry in one.described][:DIFFERENCES_MAX], key=lambda one: one.order
    )
    return Verdict(
        table=compared.record.table,
        result=Result.DIFFERENT if counts.total else compared.equal,
        scope=chosen.extent,
        sample=chosen.sample,
        keys=chosen.keys,
        position=min(positions, default=None),
        last_position=max(positions, default=None),
        rows_source=rows_target + counts.missing - counts.extra,
        rows_target=rows_target,
        counts=counts,
        differences=tuple(described),
        not_compared=compared.not_compared,
        row_keys={id_: key for one in rounds for id_, key in one.row_keys.items()},
    )

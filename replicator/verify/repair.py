"""Repairs rows that differ by reading them from the source again, and verifies them once more."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from replicator.model.crash import crash_point
from replicator.model.documents.verdict import Result
from replicator.model.schema import TableId
from replicator.plugins.source import Cursor
from replicator.plugins.verification import Ids
from replicator.state import table_life
from replicator.state.records import RequestKind, TableRecord, TargetCopy
from replicator.verify.barriers import NotVerifiedError
from replicator.verify.judge import Judge
from replicator.verify.scope import Chosen, TableJournal, VerifyScope
from replicator.verify.verdicts import Counts, Extent, Verdict

_KEYS_AT_ONCE: Final = 10_000
"""Keys in one request: the state store holds it until capture takes it."""
_TIMES_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class _Touched(VerifyScope):
    """Rows with these ids, and all that were changed after a position: the row of a key may have another key by now."""

    ids: frozenset[str]
    position: int
    extent = Extent.KEYS

    def choose(self, table: TableJournal) -> Chosen:
        """See `VerifyScope.choose`."""
        changed = table.changed_behind(self.position)
        return Chosen() if changed is None else Chosen(extent=Extent.KEYS, among=Ids(self.ids | changed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """Repairs tables of one replicator, while its worker continues.

    Capture reads the rows again by their keys, like a snapshot, and apply writes them or deletes what the source does not have. A table
    without a key gets a new snapshot in place.

    Attributes:
        judge: The judge that found the differences, and has collected the keys of up to `rows_max` rows.
        rows_max: If more rows differ, nothing is done.
    """

    judge: Judge
    rows_max: int

    def repair(self, first: Verdict) -> Verdict:
        """Repair the differences of a verdict.

        Returns:
            A verdict on the rows after the repair. EQUAL and EQUAL_IN_PART have what was repaired; DIFFERENT says why they still differ.
        """
        if first.counts.total > self.rows_max:
            return replace(
                first,
                reason=f"{first.counts.total} rows differ, more than verify.repair_rows_max ({self.rows_max}): nothing was repaired",
                action=f"Run `replicator snapshot {self.judge.name} {shlex.quote(str(first.table))}`, or raise verify.repair_rows_max.",
            )
        try:
            return self.attempt(first)
        except NotVerifiedError as error:
            return replace(first, reason=f"it was not repaired: {error.reason}", action=error.action)

    def attempt(self, first: Verdict) -> Verdict:
        """Repair the differences, without a limit on their number.

        Raises:
            NotVerifiedError: They cannot be repaired.
        """
        found = first
        for _ in range(_TIMES_MAX):
            assert found.position is not None, "what differs was compared"
            schema = self._record(first.table).schema
            if schema is not None and schema.key:
                self._read_again(first.table, [key for key in found.row_keys.values() if key])
                found = self.judge.verify(first.table, _Touched(frozenset(found.row_keys), found.position))
            else:
                self._take_snapshot(first.table)
                found = self.judge.verify(first.table)
            if found.result is not Result.DIFFERENT:
                break
        if found.result in (Result.EQUAL, Result.EQUAL_IN_PART):
            return replace(
                first,
                result=found.result,
                position=found.position,
                last_position=found.last_position,
                rows_target=first.rows_source,
                counts=Counts(),
                differences=(),
                not_compared=found.not_compared,
                repaired=first.counts,
            )
        if found.result is Result.NOT_VERIFIED:
            return found
        return replace(
            found,
            reason="rows have a key that is NULL, or no value of its type: they cannot be repaired"
            if () in found.row_keys.values()
            else "rows still differ after they were read again",
            action=f"Run `replicator snapshot {self.judge.name} {shlex.quote(str(first.table))} --recreate`.",
        )

    def _read_again(self, table: TableId, keys: Sequence[Cursor]) -> None:
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            some = [list(key) for key in keys[start : start + _KEYS_AT_ONCE]]
            self.ask(RequestKind.REREAD, {"table": str(table), "keys": some})
            self._wait_until(lambda: self._record(table).reread is None)

    def _take_snapshot(self, table: TableId) -> None:
        self.ask(RequestKind.SNAPSHOT, {"tables": [str(table)]})
        self._wait_until(lambda: self._is_whole(table))

    def _is_whole(self, table: TableId) -> bool:
        """Return whether the table's snapshot is in the target."""
        record, applied = self._record(table), self.judge.store.applied(self.judge.name).get(table)
        if table_life.has_failed(record, applied):
            raise NotVerifiedError("the table has failed", f"To see why: replicator status {self.judge.name}")
        return (
            applied is not None
            and applied.copy is TargetCopy.WHOLE
            and table_life.is_complete(record)
            and not table_life.has_snapshot_to_apply(record, applied)
        )

    def ask(self, kind: RequestKind, payload: dict[str, Any]) -> None:
        """Add a request for capture, and wait until capture has taken it."""
        store, name = self.judge.store, self.judge.name
        asked = store.requests.add(name, kind, payload)
        crash_point("verify.asked")
        try:
            self._wait_until(lambda: all(request.id != asked for request in store.requests.open(name)))
        finally:
            store.requests.remove(asked)

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self.judge.barriers.check()
            self.judge.barriers.wait()

    def _record(self, table: TableId) -> TableRecord:
        record = self.judge.store.table(self.judge.name, table)
        if record is None:
            raise NotVerifiedError("it is not replicated any more")
        return record

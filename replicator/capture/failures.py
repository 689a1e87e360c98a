"""Tables that failed by an error in the midst of the loop: what makes that durable, and what bounds how often it happens.

After such an error nothing that is only in memory is trusted: what was not sealed is dropped, the table is recorded as failed, and the log
is opened again behind the last seal. The others lose nothing by it but a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from replicator.capture.tables import tell_failed
from replicator.model.errors import ReplicatorError, TableError
from replicator.model.isolation import TableFailedError, failed_table
from replicator.model.schema import TableId
from replicator.state import table_life
from replicator.state.records import ErrorRecord, Lease
from replicator.state.store import StateStore

_TRIES: Final = 3
"""A table that has failed so often without one seal in between is not the cause, or cannot be kept out: the error concerns all tables."""


@dataclass(slots=True, kw_only=True)
class Failures:
    """Memory of a capture of them, over the logs that it opens.

    Attributes:
        refused: Tables that failed while a log was being opened: they stay out of it, whatever the position in the log asks for.
    """

    store: StateStore
    lease: Lease
    now: Callable[[], datetime]
    refused: dict[TableId, TableError] = field(default_factory=dict)
    _tried: dict[TableId, list[int]] = field(default_factory=dict)
    _left_out: dict[int, set[TableId]] = field(default_factory=dict)

    def confine(self, error: Exception, tables: Mapping[TableId, object], *, is_opening: bool) -> bool:
        """Record the failure of the one of `tables` that the error is about; False if it is about none of them alone.

        Before anything was ever sealed, an error of ours by which the log cannot be opened refuses the configuration.
        """
        last = self.store.journal.last_segment(self.lease.replicator)
        if is_opening and last is None and isinstance(error, ReplicatorError):
            return False
        failed = failed_table(error)
        if (
            failed is None
            or failed.table not in tables
            or not self._note_try(failed.table, -1 if last is None else last.id)
        ):
            return False
        for request in self.store.requests.open(self.lease.replicator):
            self._left_out.setdefault(request.id, set()).add(failed.table)
        if is_opening:
            self.refused[failed.table] = failed.error
        self._record(failed)
        return True

    def is_left_out(self, request: int, table: TableId) -> bool:
        """Return whether the table failed while it was being done what the request asks for: it is not tried again for that request."""
        return table in self._left_out.get(request, ())

    def _note_try(self, table: TableId, position: int) -> bool:
        """Count a failure behind one seal; whether it may be tried again."""
        tried = [p for p in self._tried.get(table, []) if p == position]
        self._tried[table] = [*tried, position]
        return len(tried) < _TRIES

    def _record(self, failed: TableFailedError) -> None:
        name, epoch = self.lease.replicator, self.lease.epoch
        known = {record.table: record for record in self.store.tables(name)}
        record = known.get(failed.table) or table_life.added(failed.table)
        tell_failed(failed.table, failed.error)
        error = ErrorRecord.of(failed.error, self.now())
        self.store.put_tables(name, epoch, [table_life.failed(record, error)])

"""Rows that may have changed without a trace in the log: their table needs a new snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from replicator.capture.definitions.altering import unknown
from replicator.capture.definitions.outcome import TableOutcome, TableOutcomes, failed
from replicator.capture.settings import CaptureSettings
from replicator.capture.tables import TrackedTable, TrackedTables
from replicator.model.errors import TableError
from replicator.model.schema import TableId
from replicator.state import table_life
from replicator.state.records import Stage, TableRecord


@dataclass(slots=True)
class Unlogged:
    """Judges such changes. Called by the loop's thread alone.

    One snapshot makes up for all such changes up to its beginning. Those that come while it runs do not disturb it: it is repeated when it
    is complete.

    Attributes:
        settings: Of capture.
        tables: All of them.
    """

    settings: CaptureSettings
    tables: TrackedTables
    _changed_at: dict[TableId, int] = field(default_factory=dict)
    """The number of the last such change, of tables whose snapshot waits to begin."""

    def judge(self, table: TableId, number: int, error: TableError | None = None) -> TableOutcome:
        """Judge that rows of the table may have changed, by the log. `error` as `LogBatch.unlogged_errors`."""
        tracked = self.tables.get(table)
        if tracked is None:
            return TableOutcome()
        if error is not None and self.settings.unexplained_change == "stop":
            return undecoded(tracked.record, error) if tracked.is_captured else TableOutcome()
        match tracked.record.stage:
            case Stage.STREAMING | Stage.COMPARING:
                self._changed_at[table] = number
                return TableOutcome(needs_snapshot=True)
            case Stage.PENDING:
                self._changed_at[table] = number
            case Stage.SNAPSHOT:
                return TableOutcome(repeats_snapshot=True)
            case _:
                pass  # Before its changes are written again, a snapshot begins.
        return TableOutcome()

    def begun(self, tracked: TrackedTable, seen_below: int) -> TableOutcome:
        """Judge a snapshot that has begun, whose reads see every transaction below this number."""
        changed_at = self._changed_at.pop(tracked.table, None)
        if changed_at is not None and changed_at >= seen_below and tracked.record.stage is Stage.SNAPSHOT:
            # Its transaction may be one that the reads do not see.
            return TableOutcome(repeats_snapshot=True)
        return TableOutcome()

    def repeated(self, tables: Sequence[TableId]) -> TableOutcomes:
        """Judge snapshots that are complete: those that were outdated before are repeated."""
        again = [f for f in map(self.tables.get, tables) if f is not None and table_life.is_outdated(f.record)]
        return [(f.table, TableOutcome(needs_snapshot=True)) for f in again]


def undecoded(record: TableRecord, error: TableError) -> TableOutcome:
    """Stop a table whose changes the log does not hand out any more."""
    return unknown(record, error) if error.code in table_life.ACCEPTABLE else failed(error)

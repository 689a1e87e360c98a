"""Rows that may have changed without a trace in the log: their table needs a new snapshot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from replicator.capture.settings import CaptureSettings
from replicator.capture.tables import TrackedTable, TrackedTables
from replicator.model.errors import TableError
from replicator.model.schema import TableId
from replicator.state import table_life
from replicator.state.records import Stage


@dataclass(slots=True)
class Unlogged:
    """Called by the loop's thread alone.

    One snapshot makes up for all such changes up to its beginning. Those that come while it runs do not disturb it: it is repeated when it
    is complete.

    Attributes:
        settings: Of capture.
        tables: All of them.
        suspend: Nothing of the table is written until its new snapshot begins.
        start: Have snapshots of tables begin.
        fail: A table fails.
    """

    settings: CaptureSettings
    tables: TrackedTables
    suspend: Callable[[TrackedTable], None]
    start: Callable[[Sequence[TableId]], None]
    fail: Callable[[TrackedTable, TableError], None]
    _changed_at: dict[TableId, int] = field(default_factory=dict)
    """Of tables whose snapshot waits to begin: the number of the last such change."""

    def note(self, table: TableId, number: int, error: TableError | None = None) -> None:
        """The log says that rows of the table may have changed. `error` as `LogBatch.unlogged_errors`."""
        tracked = self.tables.get(table)
        if tracked is None:
            return
        if error is not None and self.settings.unexplained_change == "stop":
            if tracked.is_captured:
                self.fail(tracked, error)
            return
        match tracked.record.stage:
            case Stage.STREAMING | Stage.COMPARING:
                self._changed_at[table] = number
                self.suspend(tracked)
                self.start([table])
            case Stage.PENDING:
                self._changed_at[table] = number
            case Stage.SNAPSHOT:
                self._outdate(tracked)
            case _:
                pass  # Before its changes are written again, a snapshot begins.

    def begun(self, tracked: TrackedTable, seen_below: int) -> None:
        """A snapshot has begun whose reads see every transaction below this number."""
        changed_at = self._changed_at.pop(tracked.table, None)
        if changed_at is not None and changed_at >= seen_below and tracked.record.stage is Stage.SNAPSHOT:
            # Its transaction may be one that the reads do not see.
            self._outdate(tracked)

    def repeat(self, tables: Sequence[TableId]) -> None:
        """Repeat the snapshots that were outdated before they were complete."""
        again = [f for f in map(self.tables.get, tables) if f is not None and table_life.is_outdated(f.record)]
        for tracked in again:
            self.suspend(tracked)
        if again:
            self.start([f.table for f in again])

    def _outdate(self, tracked: TrackedTable) -> None:
        """The snapshot that runs must be repeated."""
        self.tables.put_progress(tracked, replace(self.tables.progress(tracked), is_outdated=True))

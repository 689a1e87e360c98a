"""State and settings that the tables of one replicator share while they are applied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from replicator.apply.advice import Advice
from replicator.apply.plan import begins_incarnation, last_number
from replicator.apply.settings import ApplySettings
from replicator.journal import JournalReader
from replicator.model.events import DDLEvent
from replicator.model.schema import TableId
from replicator.plugins.target import EMPTY_LEDGER, DeltaTarget, TargetTable
from replicator.state.records import EventEntry, TableRecord
from replicator.state.store import StateStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyContext:
    """State and settings that the tables of one replicator share."""

    target: DeltaTarget[Any]
    advice: Advice
    store: StateStore
    reader: JournalReader
    name: str
    uuid: str
    epoch: int
    settings: ApplySettings
    clock: Callable[[], float]

    def newest_number(self) -> int:
        """Return the journal's last sequence number."""
        segment = self.store.journal.last_segment(self.name)
        return -1 if segment is None else segment.last

    def check_lease(self) -> None:
        """Check that no other process has taken over: what was read of the journal before was then sealed under this epoch or an older one.

        Raises:
            FencedError: Another process has taken over.
        """
        self.store.leases.check_epoch(self.name, self.epoch)

    def record_of(self, table: TableId) -> TableRecord | None:
        """Return capture's record of a table as it is now; None if there is none."""
        return self.store.table(self.name, table)

    def is_net(self, table: TableId) -> bool:
        """Return whether its changes are net: a row that is deleted may be missing in the target. Ask after reading the files."""
        record = self.record_of(table)
        return record is not None and record.is_net

    def create(self, table: TargetTable, after: int) -> int:
        """Apply the CREATE_TABLE of a table's incarnation, which comes after a number in the journal.

        Returns:
            Its own number; `EMPTY_LEDGER` if the journal does not have it any more: then the target will say that the table is missing.
        """
        page = self.settings.feed_items
        while items := self.reader.feed(table.table, after, page):
            for item in items:
                if begins_incarnation(item, table.incarnation - 1):
                    assert isinstance(item, EventEntry), "an event begins it"
                    assert isinstance(item.event, DDLEvent), "CREATE_TABLE"
                    self.target.apply_ddl(table, item.event, item.sequence_num)
                    return item.sequence_num
            after = last_number(items[-1])
        return EMPTY_LEDGER

"""Deletes segments that are no longer needed: first by what the target has applied, then by age and size."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from replicator.journal.files import delete_file
from replicator.model.crash import crash_point
from replicator.model.schema import TableId
from replicator.state import table_life
from replicator.state.records import AppliedRecord, EventEntry, Segment, SegmentFile, TableRecord
from replicator.state.store import StateStore

FULL_SHARE: Final = 0.9
"""Share of `bytes_max` at which the journal is full and room is made: the rest is for segments that are being written."""

_SEGMENTS_PER_READ: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Records of all tables, which say what they still need of the journal."""

    tables: Mapping[TableId, TableRecord]
    applied: Mapping[TableId, AppliedRecord]

    def needed_by(self, segment: Segment) -> frozenset[TableId]:
        """Return the tables that have not applied everything in `segment`."""
        items: list[SegmentFile | EventEntry] = [*segment.files, *segment.events]
        return frozenset(item.table for item in items if self._needs(item))

    def failed(self) -> frozenset[TableId]:
        """Return the tables that have failed in capture or apply."""
        return frozenset(t for t, record in self.tables.items() if table_life.has_failed(record, self.applied.get(t)))

    def _needs(self, item: SegmentFile | EventEntry) -> bool:
        record, done = self.tables.get(item.table), self.applied.get(item.table)
        if record is not None and not table_life.needs_journal(record):
            return False
        if done is None or done.incarnation < item.incarnation:
            return True
        last = item.last if isinstance(item, SegmentFile) else item.sequence_num
        return done.incarnation == item.incarnation and done.last_applied < last


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPlan:
    """Segments to drop, in order, and tables that lose changes which they have not applied."""

    segments: Sequence[Segment] = ()
    given_up: frozenset[TableId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """Result of a sweep. `given_up` are the records as stored: capture continues with these."""

    segments: int = 0
    bytes: int = 0
    given_up: Sequence[TableRecord] = ()


def plan_retention(
    segments: Sequence[Segment], needs: Needs, *, now: datetime, keep_s: float, total: int, bytes_max: int
) -> RetentionPlan:
    """Choose the segments to drop; pure.

    1. Segments that no table needs and that are older than `keep_s`.
    2. While the journal is full: the oldest that no table needs.
    3. While it is still full: the oldest that only failed tables need. From then on those tables need nothing.

    Args:
        segments: The oldest of the index, in order, without the newest segment of all.
        needs: Needs of all tables.
        now: The store's clock.
        keep_s: Seconds for which applied segments are kept.
        total: Bytes of the whole journal.
        bytes_max: Limit of `total`.
    """
    full = bytes_max * FULL_SHARE
    needed = {segment.id: needs.needed_by(segment) for segment in segments}
    chosen: dict[int, Segment] = {}
    for segment in segments:
        if not needed[segment.id] and segment.sealed_at <= now - timedelta(seconds=keep_s):
            chosen[segment.id] = segment
            total -= _bytes(segment)
    given_up: frozenset[TableId] = frozenset()
    for expendable in (frozenset[TableId](), needs.failed()):
        for segment in segments:
            if total < full:
                break
            if segment.id not in chosen and needed[segment.id] <= expendable:
                chosen[segment.id] = segment
                total -= _bytes(segment)
                given_up |= needed[segment.id]
    return RetentionPlan(segments=tuple(chosen.values()), given_up=given_up)


class Retention:
    """Keeps the journal within its bounds. Used by capture, from the thread that writes table records.

    Args:
        store: The state store.
        name: Name of the replicator.
        epoch: Epoch of the lease.
        keep_s: Seconds for which applied segments are kept.
        bytes_max: Limit of the whole journal.
    """

    def __init__(self, store: StateStore, name: str, *, epoch: int, keep_s: float, bytes_max: int) -> None:
        self._store = store
        self._name = name
        self._epoch = epoch
        self._keep_s = keep_s
        self._bytes_max = bytes_max
        self._looked_at = 0

    def sweep(self) -> Swept:
        """Drop index rows together with the records of tables given up, in one transaction; then delete the files.

        Never drops what a table still needs, unless the journal is full: then what only failed tables need, which are marked
        (`journal_given_up`) as needing a new snapshot. A crash in between leaves orphans for the sweep of the lease's next holder.

        Cost: reads `_SEGMENTS_PER_READ` old segments, and continues there the next time; the whole index only when the journal is full.

        Raises:
            FencedError, StateUnavailableError, JournalUnavailableError.
        """
        needs = Needs(
            tables={record.table: record for record in self._store.tables(self._name)},
            applied=self._store.applied(self._name),
        )
        now, total = self._store.now(), self._store.journal.total_bytes(self._name)
        segments = self._all() if total >= self._bytes_max * FULL_SHARE else self._some(now)
        plan = plan_retention(segments, needs, now=now, keep_s=self._keep_s, total=total, bytes_max=self._bytes_max)
        if not plan.segments:
            return Swept()
        given_up = tuple(self._give_up(needs.tables[table], now) for table in sorted(plan.given_up))
        ids = [segment.id for segment in plan.segments]
        self._store.drop_segments(self._name, self._epoch, ids, tables=given_up)
        crash_point("journal.segments_dropped")
        for segment in plan.segments:
            for file in segment.files:
                delete_file(file.uri)
        return Swept(segments=len(ids), bytes=sum(_bytes(segment) for segment in plan.segments), given_up=given_up)

    def _all(self) -> Sequence[Segment]:
        """Return the whole index except the newest segment."""
        found: list[Segment] = []
        while some := self._store.journal.segments(self._name, found[-1].id if found else 0, _SEGMENTS_PER_READ):
            found += some
        return found[:-1]

    def _some(self, now: datetime) -> Sequence[Segment]:
        """Return the next segments that are old enough to delete, except the index's newest; the oldest again once there are no more."""
        some = self._store.journal.segments(self._name, self._looked_at, _SEGMENTS_PER_READ + 1)
        old = [s for s in some[:-1] if s.sealed_at <= now - timedelta(seconds=self._keep_s)]
        self._looked_at = old[-1].id if len(old) == _SEGMENTS_PER_READ else 0
        return old

    def _give_up(self, record: TableRecord, now: datetime) -> TableRecord:
        return table_life.journal_lost(
            record,
            f"The journal reached its limit of {self._bytes_max} bytes, so changes of this failed table were deleted.",
            action=f"Run `replicator snapshot {self._name} {shlex.quote(str(record.table))}`.",
            at=now,
        )


def _bytes(segment: Segment) -> int:
    return sum(file.bytes for file in segment.files)

"""Deletes segments that are no longer needed: first by what the target has applied, then by age and size."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from replicator.journal.files import delete_file
from replicator.model.crash import crash_point
from replicator.model.schema import TableId
from replicator.state import table_life
from replicator.state.records import AppliedRecord, EventEntry, Segment, SegmentFile, Stage, TableRecord
from replicator.state.store import StateStore

FULL_SHARE: Final = 0.9
"""Share of `bytes_max` at which the journal is full and room is made: the rest is for segments that are being written."""

NOTHING: Final = -1
"""Position of a consumer that has read nothing of a table's incarnation."""
EVERYTHING: Final = sys.maxsize
"""Position of a consumer that needs no more of it."""

NO_PLAIN: Final[Mapping[TableId, int]] = {}
"""Nothing in the journal has values that settings protect."""

_SEGMENTS_PER_READ: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """A reader of the journal, which keeps what it has not read.

    Attributes:
        name: A name of its own.
        position: Returns the number up to which it has read an incarnation of a table; `NOTHING` if it has not begun,
            `EVERYTHING` if it needs no more of it.
        failed: Tables whose reading has failed until a person acts. While the journal is full they lose what they have not read.
    """

    name: str
    position: Callable[[TableId, int], int]
    failed: frozenset[TableId] = frozenset()

    def needs(self, item: SegmentFile | EventEntry) -> bool:
        """Return whether it has not read an item."""
        last = item.last if isinstance(item, SegmentFile) else item.sequence_num
        return self.position(item.table, item.incarnation) < last


class Need(NamedTuple):
    """A consumer that has not read everything of a table."""

    consumer: str
    table: TableId


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What all consumers still need of the journal. `unneeded`: tables of which nobody needs anything, because they are not replicated."""

    consumers: Sequence[Consumer]
    unneeded: frozenset[TableId] = frozenset()

    def needed_by(self, segment: Segment) -> frozenset[Need]:
        """Return who has not read everything in `segment`."""
        items: list[SegmentFile | EventEntry] = [*segment.files, *segment.events]
        left = [item for item in items if item.table not in self.unneeded]
        return frozenset(
            Need(consumer.name, item.table) for item in left for consumer in self.consumers if consumer.needs(item)
        )

    def failed(self) -> frozenset[Need]:
        """Return the needs of tables that have failed."""
        return frozenset(Need(consumer.name, table) for consumer in self.consumers for table in consumer.failed)


def apply_consumer(tables: Mapping[TableId, TableRecord], applied: Mapping[TableId, AppliedRecord]) -> Consumer:
    """Return apply as a consumer: what its records say. A table that failed in capture is not read to its end either."""

    def position(table: TableId, incarnation: int) -> int:
        done = applied.get(table)
        if done is None or done.incarnation < incarnation:
            return NOTHING
        return done.last_applied if done.incarnation == incarnation else EVERYTHING

    failed = frozenset(t for t, record in tables.items() if table_life.has_failed(record, applied.get(t)))
    return Consumer(name="apply", position=position, failed=failed)


def needs_of(tables: Mapping[TableId, TableRecord], consumers: Sequence[Consumer]) -> Needs:
    """Return the needs of consumers of these tables, as capture knows them."""
    unneeded = frozenset(table for table, record in tables.items() if not table_life.needs_journal(record))
    return Needs(consumers=consumers, unneeded=unneeded)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPlan:
    """Segments to drop, in order, and tables that lose changes which they have not applied."""

    segments: Sequence[Segment] = ()
    given_up: frozenset[TableId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """Result of a sweep.

    Attributes:
        segments: Segments that were dropped.
        bytes: Their size.
        given_up: Records as stored: capture continues with these.
        cleared: Tables of which the journal has no values any more that their settings protect.
    """

    segments: int = 0
    bytes: int = 0
    given_up: Sequence[TableRecord] = ()
    cleared: Sequence[TableId] = ()


def plan_retention(
    segments: Sequence[Segment],
    needs: Needs,
    *,
    now: datetime,
    keep_s: float,
    total: int,
    bytes_max: int,
    plain: Mapping[TableId, int] = NO_PLAIN,
) -> RetentionPlan:
    """Choose the segments to drop; pure.

    1. Segments that no consumer needs and that are older than `keep_s`, or have values that settings protect by now.
    2. While the journal is full: the oldest that no consumer needs.
    3. While it is still full: the oldest that are needed for failed tables only. From then on those tables need nothing.

    Args:
        segments: The oldest of the index, in order, without the newest segment of all.
        needs: Needs of all consumers.
        now: The store's clock.
        keep_s: Seconds for which applied segments are kept.
        total: Bytes of the whole journal.
        bytes_max: Limit of `total`.
        plain: By table, the number before which such values may be (`TableRecord.plain_before`).
    """
    full = bytes_max * FULL_SHARE
    needed = {segment.id: needs.needed_by(segment) for segment in segments}
    chosen: dict[int, Segment] = {}
    for segment in segments:
        is_due = segment.sealed_at <= now - timedelta(seconds=keep_s) or _has_plain(segment, plain)
        if not needed[segment.id] and is_due:
            chosen[segment.id] = segment
            total -= _bytes(segment)
    given_up: frozenset[Need] = frozenset()
    for expendable in (frozenset[Need](), needs.failed()):
        for segment in segments:
            if total < full:
                break
            if segment.id not in chosen and needed[segment.id] <= expendable:
                chosen[segment.id] = segment
                total -= _bytes(segment)
                given_up |= needed[segment.id]
    return RetentionPlan(segments=tuple(chosen.values()), given_up=frozenset(need.table for need in given_up))


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
        tables = {record.table: record for record in self._store.tables(self._name)}
        needs = needs_of(tables, [apply_consumer(tables, self._store.applied(self._name))])
        now, total = self._store.now(), self._store.journal.total_bytes(self._name)
        plain = {table: record.plain_before for table, record in tables.items() if record.plain_before is not None}
        indexed = self._all() if plain or total >= self._bytes_max * FULL_SHARE else ()
        segments = indexed[:-1] or self._some(now)
        plan = plan_retention(
            segments, needs, now=now, keep_s=self._keep_s, total=total, bytes_max=self._bytes_max, plain=plain
        )
        left = [segment for segment in indexed if segment not in plan.segments]
        # Until its snapshot is complete, the target has such values, too.
        cleared = tuple(
            table
            for table, number in plain.items()
            if tables[table].stage is Stage.STREAMING and not any(_has_plain(one, {table: number}) for one in left)
        )
        if not plan.segments:
            return Swept(cleared=cleared)
        given_up = tuple(self._give_up(tables[table], now) for table in sorted(plan.given_up))
        ids = [segment.id for segment in plan.segments]
        self._store.drop_segments(self._name, self._epoch, ids, tables=given_up)
        crash_point("journal.segments_dropped")
        for segment in plan.segments:
            for file in segment.files:
                delete_file(file.uri)
        return Swept(
            segments=len(ids),
            bytes=sum(_bytes(segment) for segment in plan.segments),
            given_up=given_up,
            cleared=cleared,
        )

    def _all(self) -> Sequence[Segment]:
        """Return the whole index."""
        found: list[Segment] = []
        while some := self._store.journal.segments(self._name, found[-1].id if found else 0, _SEGMENTS_PER_READ):
            found += some
        return found

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


def _has_plain(segment: Segment, plain: Mapping[TableId, int]) -> bool:
    """Return whether a segment may have values that settings protect by now."""
    return any(file.last < plain.get(file.table, NOTHING) for file in segment.files)


def _bytes(segment: Segment) -> int:
    return sum(file.bytes for file in segment.files)

"""Chooses the next unit of work of one table from its part of the journal. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from sys import maxsize
from typing import Final

from replicator.model.errors import CorruptStreamError
from replicator.model.events import DDLEvent, DDLOperation, SnapshotEvent, SnapshotKind, SnapshotPhase
from replicator.state.records import EventEntry, SegmentFile, TableRecord

Item = SegmentFile | EventEntry
"""An item of a table's feed."""

APPEND_NOTHING: Final = -1


class More(Enum):
    """Answer that the items at hand do not determine the end of a unit: read further."""

    MORE = "more"


MORE: Final = More.MORE


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Limits at which a batch is large enough. Soft: a transaction is never split."""

    rows: int
    bytes: int

    def below(self, unit: BatchUnit) -> BatchLimits | None:
        """Return limits of half the size of a unit that was too large; None if a smaller one would cut a transaction in two."""
        if not any(_may_cut(before, after) for before, after in pairwise(unit.files)):
            return None
        rows, size = sum(file.rows for file in unit.files), sum(file.bytes for file in unit.files)
        return BatchLimits(rows=max(1, min(self.rows, rows) // 2), bytes=max(1, min(self.bytes, size) // 2))

    def divided(self, by: int) -> BatchLimits:
        """Return these limits divided by a number."""
        return BatchLimits(rows=max(1, self.rows // by), bytes=max(1, self.bytes // by))


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """Snapshot events that a unit moves the ledger past: the table is incomplete after a start, and complete again after a completion."""

    starts: bool = False
    completes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchUnit:
    """Files to apply in one commit.

    Attributes:
        last: The ledger afterwards: that of the last file, or of events after it that need no work in the target.
        following: The lowest number that is left to apply, as far as it is known; None if nothing is left.
        is_in_snapshot: A snapshot starts before the files: what came before it may be missing in the target.
    """

    files: Sequence[SegmentFile]
    last: int
    is_append: bool
    passed: Passed
    following: int | None
    is_in_snapshot: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EventUnit:
    """An event that changes the target; `last` and `following` as in `BatchUnit`."""

    entry: EventEntry
    last: int
    passed: Passed
    following: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceUnit:
    """Events that need no work in the target except to advance its ledger; `last` and `following` as in `BatchUnit`."""

    last: int
    passed: Passed
    following: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginUnit:
    """A new incarnation begins; everything before it is superseded."""

    entry: EventEntry


Unit = BatchUnit | EventUnit | AdvanceUnit | BeginUnit


def next_unit(
    items: Sequence[Item],
    *,
    incarnation: int,
    is_whole: bool,
    limits: BatchLimits,
    append_below: int = APPEND_NOTHING,
    barriers: Sequence[int] = (),
) -> Unit | More | None:
    """Choose what to do next with a table.

    A batch takes all files up to the next event, the next schema, or the limits. It ends only where no transaction can
    be split: after the last file of a commit of the journal, or next to a file with snapshot rows only,
    which are between transactions.

    Args:
        items: Items of one table, in order, above its ledger; those of lower incarnations are skipped.
        incarnation: Incarnation that the target holds, 0 if none.
        is_whole: The journal has nothing after `items` yet.
        limits: Limits of a batch.
        append_below: See `append_bound`.
        barriers: Numbers at which a unit ends; the next one begins after them. No file has numbers on both sides of one.

    Returns:
        The unit; None if there is nothing to do; MORE if that depends on what comes after `items`.

    Raises:
        CorruptStreamError: A new incarnation does not begin with its CREATE_TABLE.
    """
    if (begin := _newest_beginning(items, incarnation)) is not None:
        return BeginUnit(entry=begin)
    every = [item for item in items if item.incarnation == incarnation]
    own = _before_barrier(every, barriers)
    is_cut = len(own) < len(every)
    quiet = _quiet_run(own, 0)
    if quiet == len(own):
        if not (is_whole or is_cut):
            return MORE
        following = first_number(every[len(own)]) if is_cut else None
        return AdvanceUnit(last=last_number(own[-1]), passed=_passed(own), following=following) if own else None
    item = own[quiet]
    if isinstance(item, EventEntry):
        end = quiet + 1
    else:
        chosen = _batch_end(own, quiet, is_whole=is_whole or is_cut, limits=limits, append_below=append_below)
        if chosen is None:
            return MORE
        end = chosen
    behind = end + _quiet_run(own, end)
    passed = _passed(own[:behind])
    last, following = last_number(own[behind - 1]), _following(every, behind, is_whole=is_whole)
    if isinstance(item, EventEntry):
        return EventUnit(entry=item, last=last, passed=passed, following=following)
    files = [file for file in own[quiet:end] if isinstance(file, SegmentFile)]
    return BatchUnit(
        files=files,
        last=last,
        is_append=all(_may_append(file, append_below) for file in files),
        passed=passed,
        following=following,
        is_in_snapshot=_passed(own[:quiet]).starts,
    )


def append_bound(record: TableRecord | None, incarnation: int) -> int:
    """Return the number below which files of only snapshot rows may be appended: no key in them is in the target already, or twice in them.

    Args:
        record: Capture's record, read after the files that are judged by it: a change that it does not know of comes after all of them.
        incarnation: Incarnation of the files.
    """
    if record is None or record.incarnation != incarnation:
        return APPEND_NOTHING
    if record.snapshot is not None and record.snapshot.kind in (SnapshotKind.IN_PLACE, SnapshotKind.CHANGED):
        return APPEND_NOTHING if record.first_change is None else record.first_change
    return maxsize if record.first_change is None else record.first_change


def first_number(item: Item) -> int:
    """Return the lowest sequence number of an item."""
    return item.first if isinstance(item, SegmentFile) else item.sequence_num


def last_number(item: Item) -> int:
    """Return the highest sequence number of an item."""
    return item.last if isinstance(item, SegmentFile) else item.sequence_num


def begins_incarnation(item: Item, above: int) -> bool:
    """Return whether the item is the CREATE_TABLE of an incarnation above `above`."""
    return (
        isinstance(item, EventEntry)
        and item.incarnation > above
        and isinstance(item.event, DDLEvent)
        and item.event.operation is DDLOperation.CREATE_TABLE
    )


def starts_in_place(item: Item, incarnation: int) -> int | None:
    """Return the start number of an in-place snapshot of this incarnation that begins with the item; None if none does."""
    if isinstance(item, EventEntry) and item.incarnation == incarnation and isinstance(item.event, SnapshotEvent):
        return item.event.start_number if item.event.phase is SnapshotPhase.STARTED else None
    return None


def told_phase(item: Item) -> SnapshotPhase | None:
    """Return the snapshot phase that the item announces for the target's table; None if it announces none.

    A snapshot is complete once readers see it. Of an incarnation above the first, an event of its own says so, which also follows each
    snapshot in place.
    """
    event = item.event if isinstance(item, EventEntry) else None
    if not isinstance(event, SnapshotEvent) or event.kind is SnapshotKind.NONE:
        return None
    is_in_between = event.kind is SnapshotKind.IN_PLACE and item.incarnation > 1
    return None if event.phase is SnapshotPhase.COMPLETED and is_in_between else event.phase


def _newest_beginning(items: Sequence[Item], incarnation: int) -> EventEntry | None:
    newest = max((item.incarnation for item in items), default=incarnation)
    if newest <= incarnation:
        return None
    first = next(item for item in items if item.incarnation == newest)
    if isinstance(first, EventEntry) and begins_incarnation(first, incarnation):
        return first
    raise CorruptStreamError(
        f"Incarnation {newest} begins at number {first_number(first)} without its CREATE_TABLE.",
        code="corrupt_state",
        table=str(first.table),
    )


def _is_quiet(item: Item) -> bool:
    """Return whether the item needs no work in the target.

    True at the start of a snapshot, and at the end of one whose rows readers see from the start: the first one, and one of changed rows.
    """
    if not isinstance(item, EventEntry) or not isinstance(item.event, SnapshotEvent):
        return False
    is_start = item.event.phase is SnapshotPhase.STARTED
    if is_start or item.event.kind is SnapshotKind.CHANGED:
        return True
    return item.event.kind is not SnapshotKind.IN_PLACE and item.incarnation == 1


def _quiet_run(own: Sequence[Item], start: int) -> int:
    end = start
    while end < len(own) and _is_quiet(own[end]):
        end += 1
    return end - start


def before_hold(items: Sequence[Item], barriers: Sequence[int]) -> Sequence[Item]:
    """Return the items up to the first barrier; all if there is none. What follows waits until the barrier is lifted."""
    return [item for item in items if last_number(item) <= min(barriers)] if barriers else items


def _before_barrier(own: Sequence[Item], barriers: Sequence[int]) -> Sequence[Item]:
    """Return the items before the first barrier that lies between two of them; all if none does."""
    between = [barrier for barrier in barriers if own and last_number(own[0]) <= barrier < last_number(own[-1])]
    return [item for item in own if last_number(item) <= min(between)] if between else own


def _passed(items: Sequence[Item]) -> Passed:
    phases = [phase for phase in map(told_phase, items) if phase is not None]
    if not phases:
        return Passed()
    return Passed(starts=phases[-1] is SnapshotPhase.STARTED, completes=phases[-1] is SnapshotPhase.COMPLETED)


def _following(own: Sequence[Item], behind: int, *, is_whole: bool) -> int | None:
    if behind < len(own):
        return first_number(own[behind])
    return None if is_whole else last_number(own[-1]) + 1


def _batch_end(
    own: Sequence[Item], start: int, *, is_whole: bool, limits: BatchLimits, append_below: int
) -> int | None:
    """Return the index after the batch's last file; None if it lies after the items at hand."""
    first = own[start]
    assert isinstance(first, SegmentFile)
    rows, size, end = 0, 0, start
    cut = None
    while end < len(own):
        file = own[end]
        if not isinstance(file, SegmentFile) or file.schema_fingerprint != first.schema_fingerprint:
            return end
        if end > start and _may_cut(own[end - 1], file):
            is_other = _may_append(file, append_below) != _may_append(first, append_below)
            if is_other or rows + file.rows > limits.rows or size + file.bytes > limits.bytes:
                return end
            cut = end
        rows, size, end = rows + file.rows, size + file.bytes, end + 1
    return end if is_whole else cut


def _may_cut(before: Item, after: SegmentFile) -> bool:
    assert isinstance(before, SegmentFile)
    return before.seal != after.seal or _is_snapshot_only(before) or _is_snapshot_only(after)


def _is_snapshot_only(file: SegmentFile) -> bool:
    return file.snapshot_rows == file.rows


def _may_append(file: SegmentFile, below: int) -> bool:
    return _is_snapshot_only(file) and not file.has_absent and file.last < below


def end_of(unit: BatchUnit | EventUnit | AdvanceUnit) -> int:
    """Return the number up to which a unit that cannot be applied blocks the table; later events that it would pass are not included."""
    match unit:
        case BatchUnit():
            return unit.files[-1].last
        case EventUnit():
            return unit.entry.sequence_num
        case AdvanceUnit():
            return unit.last

"""Decides what is read next of a table's snapshot, and how far it is afterwards. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from replicator.capture.window import Move
from replicator.model.events import SnapshotKind
from replicator.model.schema import TableSchema
from replicator.plugins.source import ChunkRequest, Cursor
from replicator.state.records import SnapshotProgress, SnapshotRange

_KEYS_LENGTH_MAX: Final = 1 << 18
"""Of the keys that one statement names: servers limit its length, MariaDB to 16 MiB by default."""
_PART_LENGTH: Final = 32
"""Bytes that a part of a key adds to a statement besides its value."""


class ReadingKind(StrEnum):
    """Contents of one reading."""

    RANGE = "range"
    """A range of keys to its end, chunk after chunk."""
    KEYS = "keys"
    """The rows of some keys in one chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A piece of a snapshot.

    Attributes:
        index: Of the range, in `SnapshotProgress.ranges`.
        keys: Only of `ReadingKind.KEYS`.
        deletes_missing: Rows of these keys that the source does not have are to be deleted in the target.
    """

    schema: TableSchema
    limit: int
    kind: ReadingKind = ReadingKind.RANGE
    index: int = 0
    after: Cursor | None = None
    upto: Cursor | None = None
    keys: tuple[Cursor, ...] = ()
    deletes_missing: bool = False

    def request(self) -> ChunkRequest:
        """The chunk to read now."""
        return ChunkRequest(
            schema=self.schema, after=self.after, upto=self.upto, limit=self.limit, keys=self.keys or None
        )


def next_reading(progress: SnapshotProgress, schema: TableSchema, chunk_rows: int) -> Reading | None:
    """The first range that is not done.

    Then the keys that came incomplete by the log, a chunk at a time; None when nothing is left.
    """
    for index, part in enumerate(progress.ranges):
        if not part.is_done:
            return Reading(schema=schema, limit=chunk_rows, index=index, after=part.after, upto=part.upto)
    if progress.keys:
        return Reading(
            schema=schema,
            limit=chunk_rows,
            kind=ReadingKind.KEYS,
            keys=_some(progress.keys, chunk_rows),
            deletes_missing=progress.kind is SnapshotKind.KEYS,
        )
    return None


def _some(keys: Sequence[Cursor], count: int) -> tuple[Cursor, ...]:
    """The first keys: so many, or fewer if these make a long statement; at least one."""
    length = 0
    for index, key in enumerate(keys[:count]):
        length += sum(len(part) + _PART_LENGTH for part in key)
        if length > _KEYS_LENGTH_MAX:
            return tuple(keys[: max(1, index)])
    return tuple(keys[:count])


def after_chunk(
    progress: SnapshotProgress,
    reading: Reading,
    *,
    cursor: Cursor | None,
    is_last: bool,
    rows: int,
    unsettled: Sequence[Cursor] = (),
) -> SnapshotProgress:
    """The progress once a chunk is emitted.

    Args:
        progress: Before it.
        reading: What the chunk was part of.
        cursor: Key of the chunk's last row.
        is_last: Whether it ends its range.
        rows: Rows emitted.
        unsettled: `Read.unsettled`. Of the keys that were to be read, these stay on the list. Those that a range did not see come to
            it: they may have been taken off when the table was begun again (`start_over`).
    """
    ranges, keys = progress.ranges, progress.keys
    if reading.kind is ReadingKind.KEYS:
        read, stay = set(reading.keys), set(unsettled)
        # Behind the others, which are to be read, too.
        keys = (*(k for k in keys if k not in read), *(k for k in reading.keys if k in stay))
    else:
        part = ranges[reading.index]
        moved = replace(part, after=cursor if cursor is not None else part.after, is_done=is_last)
        ranges = (*ranges[: reading.index], moved, *ranges[reading.index + 1 :])
        keys = tuple(dict.fromkeys((*keys, *unsettled)))
    return replace(progress, ranges=ranges, keys=keys, rows=progress.rows + rows)


def with_moves(progress: SnapshotProgress, moves: Sequence[Move], keys_max: int | None = None) -> SnapshotProgress:
    """Add keys whose rows must be read as a last chunk, because changes that made them lacked columns.

    While ranges are read, the target may lack the row at the key before such a change, and with it the columns. Once they are
    done, it lacks only those of keys that are on the list: what comes from any other key is complete.
    Beyond `keys_max` the whole table is read again instead, which bounds the list. If only some rows are read, others come by
    these alone.
    """
    known, new = set(progress.keys), list[Cursor]()
    is_read = _are_ranges_done(progress)
    for move in moves:
        if move.after not in known and (not is_read or move.before in known):
            known.add(move.after)
            new.append(move.after)
    if keys_max is not None and len(known) > keys_max and progress.kind is not SnapshotKind.KEYS:
        return start_over(progress)
    return replace(progress, keys=(*progress.keys, *new)) if new else progress


def start_over(progress: SnapshotProgress) -> SnapshotProgress:
    """Read every range from its beginning; what the list of keys was for is read with them. Of some rows none was taken off yet."""
    if progress.kind is SnapshotKind.KEYS:
        return progress
    if not any(part.upto for part in progress.ranges):
        return replace(progress, ranges=(SnapshotRange(),), keys=())
    starts = [None, *(part.upto for part in progress.ranges[:-1])]
    return replace(
        progress,
        ranges=tuple(
            SnapshotRange(after=start, upto=part.upto) for start, part in zip(starts, progress.ranges, strict=True)
        ),
        keys=(),
    )


def is_complete(progress: SnapshotProgress) -> bool:
    """Return whether nothing is left to read."""
    return _are_ranges_done(progress) and not progress.keys


def _are_ranges_done(progress: SnapshotProgress) -> bool:
    return all(part.is_done for part in progress.ranges)

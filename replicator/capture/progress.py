"""What of a table's snapshot is read next, and how far it is afterwards. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from replicator.model.schema import TableSchema
from replicator.plugins.source import ChunkRequest, Cursor
from replicator.state.records import KeyRange, SnapshotProgress


class ReadingKind(StrEnum):
    """What a reading reads."""

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
    """

    schema: TableSchema
    limit: int
    kind: ReadingKind = ReadingKind.RANGE
    index: int = 0
    after: Cursor | None = None
    upto: Cursor | None = None
    keys: tuple[Cursor, ...] = ()

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
        return Reading(schema=schema, limit=chunk_rows, kind=ReadingKind.KEYS, keys=progress.keys[:chunk_rows])
    return None


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
        unsettled: Keys of incomplete rows that the read did not see (`Read.unsettled`): they stay on the list, or come
            to it.
    """
    ranges, keys = progress.ranges, progress.keys
    if reading.kind is ReadingKind.KEYS:
        read = set(reading.keys)
        keys = tuple(k for k in keys if k not in read)
    else:
        part = ranges[reading.index]
        moved = replace(part, after=cursor if cursor is not None else part.after, is_done=is_last)
        ranges = (*ranges[: reading.index], moved, *ranges[reading.index + 1 :])
    return with_keys(replace(progress, ranges=ranges, keys=keys, rows=progress.rows + rows), unsettled)


def with_keys(progress: SnapshotProgress, keys: Sequence[Cursor], keys_max: int | None = None) -> SnapshotProgress:
    """Add keys whose rows must be read as a last chunk.

    Beyond `keys_max` the whole table is read again instead, which bounds the list.
    """
    known = set(progress.keys)
    new = [k for k in dict.fromkeys(keys) if k not in known]
    if keys_max is not None and len(known) + len(new) > keys_max:
        return start_over(progress)
    return replace(progress, keys=(*progress.keys, *new)) if new else progress


def start_over(progress: SnapshotProgress) -> SnapshotProgress:
    """Read every range from its beginning; what the list of keys was for is read with them."""
    if not any(part.upto for part in progress.ranges):
        return replace(progress, ranges=(KeyRange(),), keys=())
    starts = [None, *(part.upto for part in progress.ranges[:-1])]
    return replace(
        progress,
        ranges=tuple(
            KeyRange(after=start, upto=part.upto) for start, part in zip(starts, progress.ranges, strict=True)
        ),
        keys=(),
    )


def is_complete(progress: SnapshotProgress) -> bool:
    """Whether nothing is left to read."""
    return all(part.is_done for part in progress.ranges) and not progress.keys

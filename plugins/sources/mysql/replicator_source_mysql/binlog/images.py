"""Offsets of the values in row images.

An image is a bitmap of NULLs, then the values of the columns that are not NULL; each is of fixed size or has its length in
front. So the offset of an image follows from the one before it in its event. `image_offsets` walks all events in
step, one image of each at a time, while they are many, and one after the other when few are left; a step knows the sum of
the fixed sizes between two values with a length from a table over the bitmap's bytes. `Walk` then gives the slices of
columns, all images at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from replicator.plugins.kit.arrow import Bools, Longs
from replicator_source_mysql.binlog.buffer import Buffer
from replicator_source_mysql.binlog.events import corrupt

# A step over many events costs some 30 µs, an image by itself some 2 µs (measured).
_STEP_EVENTS_MIN: Final = 16


@dataclass(frozen=True, slots=True)
class Width:
    """The length of a column's values: `fixed` bytes, or as the `prefix` bytes in front of them say (little-endian)."""

    fixed: int = 0
    prefix: int = 0


@dataclass(frozen=True, slots=True)
class _Segment:
    """Columns of fixed size, then one with a length (or none, at the end).

    `constant` and `tables` (by the index of a byte in the bitmap) give the fixed sizes' sum.
    """

    constant: int
    tables: tuple[tuple[int, Longs], ...]
    prefix: int
    null_byte: int
    null_bit: int


class Layout:
    """The layout of a table version's images.

    Args:
        widths: Width of every column in the image.
        nullable: Mask of the columns that the TABLE_MAP allows to be NULL; a NULL elsewhere is corrupt.
        table: For messages.
    """

    def __init__(self, widths: Sequence[Width], nullable: Sequence[bool], table: str) -> None:
        self.widths = tuple(widths)
        self.nullable = tuple(nullable)
        self.table = table
        self.bitmap_size = (len(widths) + 7) // 8
        self.must_be_clear = np.frombuffer(
            bytes(
                sum(1 << b for b in range(8) if (i := 8 * k + b) < len(nullable) and not nullable[i])
                for k in range(self.bitmap_size)
            ),
            np.uint8,
        )

    @cached_property
    def _segments(self) -> tuple[_Segment, ...]:
        segments: list[_Segment] = []
        pending: list[int] = []
        for position, width in enumerate(self.widths):
            if width.prefix:
                segments.append(self._segment(pending, position))
                pending = []
            else:
                pending.append(position)
        if pending:
            segments.append(self._segment(pending, None))
        return tuple(segments)

    def _segment(self, fixed: Sequence[int], position: int | None) -> _Segment:
        constant = sum(self.widths[i].fixed for i in fixed if not self.nullable[i])
        tables: dict[int, Longs] = {}
        every_byte = np.arange(256)
        for i in fixed:
            if self.nullable[i]:
                table = tables.setdefault(i >> 3, np.zeros(256, np.int64))
                table += np.where(every_byte >> (i & 7) & 1, 0, self.widths[i].fixed)
        if position is None:
            return _Segment(constant, tuple(tables.items()), 0, 0, 0)
        bit = 1 << (position & 7) if self.nullable[position] else 0
        return _Segment(constant, tuple(tables.items()), self.widths[position].prefix, position >> 3, bit)

    def image_offsets(self, buffer: Buffer, begins: Longs, limits: Longs) -> tuple[Longs, Longs]:
        """Find the images of events.

        Args:
            buffer: Their bytes.
            begins: Offset of each event's first image.
            limits: Offset of each event's end.

        Returns:
            The offset of each image, and the index of its event; events ascend.

        Raises:
            CorruptStreamError: Images do not end where their event does, or a column is NULL that cannot be.
        """
        if (begins > limits).any():
            raise corrupt("A rows event ends before its images.", table=self.table)
        events = np.flatnonzero(begins < limits)
        begins, limits = begins[events], limits[events]
        found, owners = [begins[:0]], [events[:0]]
        while len(events) >= _STEP_EVENTS_MIN:
            found.append(begins)
            owners.append(events)
            begins = self._step(buffer, begins, limits)
            is_left = begins < limits
            if not is_left.all():
                events, begins, limits = events[is_left], begins[is_left], limits[is_left]
        for event, begin, limit in zip(events.tolist(), begins.tolist(), limits.tolist(), strict=True):
            alone = self._one_by_one(buffer.data, begin, limit)
            found.append(np.array(alone, np.int64))
            owners.append(np.full(len(alone), event))
        starts, owner = np.concatenate(found), np.concatenate(owners)
        # Images of an event ascend, and events follow one another: both orders are the same.
        starts.sort(kind="stable")
        owner.sort(kind="stable")
        self._check_bitmaps(buffer, starts)
        return starts, owner

    def _step(self, buffer: Buffer, begins: Longs, limits: Longs) -> Longs:
        """The offsets after one image each."""
        after = begins + self.bitmap_size
        if (after > limits).any():
            raise self._overrun()
        for segment in self._segments:
            if segment.constant:
                after += segment.constant
            for byte, table in segment.tables:
                after += table[buffer.bytes[begins + byte]]
            if segment.prefix:
                is_there = None
                if segment.null_bit:
                    is_there = (buffer.bytes[begins + segment.null_byte] & segment.null_bit) == 0
                end = after if is_there is None else after[is_there]
                if ((end + segment.prefix) > (limits if is_there is None else limits[is_there])).any():
                    raise self._overrun()
                sizes = buffer.little(end, segment.prefix).view(np.int64) + segment.prefix
                if is_there is None:
                    after += sizes
                else:
                    after[is_there] += sizes
            if (after > limits).any():
                raise self._overrun()
        return after

    def _one_by_one(self, data: bytes, begin: int, limit: int) -> list[int]:
        """The offsets of one event's images."""
        starts = []
        segments = [
            (s.constant, [(byte, table.tolist()) for byte, table in s.tables], s.prefix, s.null_byte, s.null_bit)
            for s in self._segments
        ]
        bitmap_size = self.bitmap_size
        while begin < limit:
            starts.append(begin)
            after = begin + bitmap_size
            if after > limit:
                raise self._overrun()
            for constant, tables, prefix, null_byte, null_bit in segments:
                after += constant
                for byte, table in tables:
                    after += table[data[begin + byte]]
                if prefix and not data[begin + null_byte] & null_bit:
                    after += prefix
                    if after > limit:
                        raise self._overrun()
                    after += int.from_bytes(data[after - prefix : after], "little")
                if after > limit:
                    raise self._overrun()
            begin = after
        return starts

    def _check_bitmaps(self, buffer: Buffer, starts: Longs) -> None:
        for byte, mask in enumerate(self.must_be_clear):
            if mask and (buffer.bytes[starts + byte] & mask).any():
                raise corrupt("A row image holds NULL in a column that cannot be NULL.", table=self.table)

    def _overrun(self) -> Exception:
        return corrupt("A row image runs over the end of its event.", table=self.table)


@dataclass(frozen=True, slots=True)
class Slices:
    """The slices of one column's values, one per image: after their length, if they have one.

    `ends` is None for values of fixed size. `valid` is None if no value is NULL; NULLs have size 0.
    """

    starts: Longs
    ends: Longs | None
    valid: Bools | None


def walk(layout: Layout, buffer: Buffer, images: Longs, wanted: npt.NDArray[np.bool_]) -> Iterator[tuple[int, Slices]]:
    """Give the slices of columns, in table order.

    Args:
        layout: Layout of the images.
        buffer: Their bytes.
        images: Offsets of the images, from `image_offsets`.
        wanted: Mask of the columns to give; those after the last of them are not read.
    """
    last = int(np.flatnonzero(wanted)[-1]) if wanted.any() else -1
    begin = images + layout.bitmap_size
    # Values of fixed size without NULLs share one array of offsets.
    offset = 0
    for position in range(last + 1):
        width = layout.widths[position]
        valid = _valid(layout, buffer, images, position)
        if valid is None and not width.prefix:
            if wanted[position]:
                yield position, Slices(begin + offset if offset else begin, None, None)
            offset += width.fixed
            continue
        begin = begin + offset if offset else begin
        offset = 0
        slices = _with_prefix(buffer, begin, width.prefix, valid) if width.prefix else Slices(begin, None, valid)
        if wanted[position]:
            yield position, slices
        begin = slices.ends if slices.ends is not None else begin + width.fixed * _there(valid)


def _there(valid: Bools | None) -> Bools | int:
    return 1 if valid is None else valid


def _valid(layout: Layout, buffer: Buffer, images: Longs, position: int) -> Bools | None:
    if not layout.nullable[position]:
        return None
    valid: Bools = (buffer.bytes[images + (position >> 3)] & (1 << (position & 7))) == 0
    return None if valid.all() else valid


def _with_prefix(buffer: Buffer, begin: Longs, prefix: int, valid: Bools | None) -> Slices:
    sizes = buffer.little(begin, prefix).view(np.int64)
    starts = begin + prefix
    if valid is not None:
        sizes = np.where(valid, sizes, 0)
        starts = np.where(valid, starts, begin)
    return Slices(starts, starts + sizes, valid)

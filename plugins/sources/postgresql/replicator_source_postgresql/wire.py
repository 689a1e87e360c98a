"""CopyData messages in bulk: fetched without a Python statement per message, joined to one buffer, and read at many offsets at once.

There is no Python object per value: values are offsets in the buffer, and a column's values become one Arrow array with one gather.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from operator import itemgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import psycopg
import pyarrow as pa
from psycopg.pq.abc import PGconn

from replicator.plugins.kit.arrow import Bools, Longs, gathered

Bytes = npt.NDArray[np.uint8]
Message = tuple[int, memoryview]

# libpq allocates each message. Few at a time, copied to one block and freed, stay in the processor's and the allocator's caches:
# measured 1.2 µs a message with 64, 2.1 µs with 1024.
_MESSAGES_AT_ONCE_MAX: Final = 64
_NOTHING: Final[Message] = (0, memoryview(b""))
_PADDING: Final = bytes(8)

COPY_SIGNATURE: Final = b"PGCOPY\n\xff\r\n\x00"


class MalformedError(ValueError):
    """The bytes do not have the form that the protocol demands. Holds no values."""


class ColumnCountError(ValueError):
    """A row has another number of columns than its table."""


def received_messages(pgconn: PGconn) -> list[Message]:
    """Return the next few CopyData messages that libpq has in its buffer, as (length, content); none if it has no more. No I/O.

    A last element of length -1 means that the server has ended the COPY: `get_result` says why. psycopg's OperationalError if the
    connection is broken.
    """
    messages: list[Message] = []
    try:
        # What came before an exception stays in the list.
        messages.extend(islice(iter(partial(pgconn.get_copy_data, 1), _NOTHING), _MESSAGES_AT_ONCE_MAX))
    except psycopg.OperationalError:
        # Read beyond the end, libpq says after an error of the server that there is no COPY. That is not the error.
        if not messages or messages[-1][0] >= 0:
            raise
    if messages and messages[-1][0] < 0:
        # After a regular end every further call says so again.
        while len(messages) > 1 and messages[-2][0] < 0:
            messages.pop()
    return messages


@dataclass(frozen=True, slots=True)
class Block:
    """Messages one after another, and their sizes."""

    data: bytes | memoryview
    sizes: Longs

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Block:
        """Copy messages one after another."""
        return cls(
            b"".join(map(itemgetter(1), messages)), np.fromiter(map(itemgetter(0), messages), np.int64, len(messages))
        )


@dataclass(frozen=True)
class Frames:
    """Messages joined to one buffer: `data` (padded, so that eight bytes can be read at every offset), and the start and end of each."""

    data: bytes
    starts: Longs
    ends: Longs

    @classmethod
    def join(cls, blocks: Sequence[Block]) -> Frames:
        """Copy blocks one after another."""
        sizes = np.concatenate([block.sizes for block in blocks]) if blocks else np.zeros(0, np.int64)
        ends = np.cumsum(sizes)
        return cls(b"".join([*(block.data for block in blocks), _PADDING]), ends - sizes, ends)

    def first(self, count: int) -> Frames:
        """The first messages only."""
        return Frames(self.data, self.starts[:count], self.ends[:count])

    def after(self, count: int) -> Block:
        """The messages after the first ones."""
        starts, ends = self.starts[count:], self.ends[count:]
        return Block(memoryview(self.data)[starts[0] : ends[-1]] if len(starts) else b"", ends - starts)

    @cached_property
    def bytes(self) -> Bytes:
        """The buffer as numbers."""
        return np.frombuffer(self.data, np.uint8)

    @cached_property
    def _words(self) -> npt.NDArray[np.uint64]:
        return np.ndarray((len(self.data) - 7,), "<u8", buffer=self.data, strides=(1,))

    def words(self, offsets: Longs) -> npt.NDArray[np.uint64]:
        """Return the eight bytes at each offset, the first one lowest."""
        return self._words[offsets]

    def int64(self, offsets: Longs) -> Longs:
        """Read big-endian 64-bit integers."""
        return self._words[offsets].byteswap().view(np.int64)

    def int32(self, offsets: Longs) -> Longs:
        """Read big-endian 32-bit integers, signed."""
        return self._words[offsets].astype(np.uint32).byteswap().view(np.int32).astype(np.int64)

    def int16(self, offsets: Longs) -> Longs:
        """Read big-endian 16-bit integers, signed."""
        return self._words[offsets].astype(np.uint16).byteswap().view(np.int16).astype(np.int64)

    def values(self, starts: Longs, ends: Longs, valid: Bools | None = None) -> pa.Array:
        """Return the bytes between starts and ends as a binary array, null where not `valid`. Offsets must ascend and not overlap."""
        return gathered(self.data, starts, ends, valid)


@dataclass(frozen=True, slots=True)
class Slices:
    """Positions of one column's values, one per row; `kinds` says what each is (`t` text, `n` null, `u` unchanged), None if all exist."""

    starts: Longs
    ends: Longs
    kinds: Bytes | None

    def take(self, rows: npt.NDArray[Any]) -> Slices:
        """The slices of some rows."""
        return Slices(self.starts[rows], self.ends[rows], None if self.kinds is None else self.kinds[rows])

    def is_kind(self, kind: int) -> Bools:
        """Mark the values of this kind."""
        if self.kinds is None:
            return np.full(len(self.starts), kind == TEXT)
        matches: Bools = self.kinds == kind
        return matches

    def array(self, frames: Frames) -> pa.Array:
        """The values as a binary array, null where there is no text."""
        return frames.values(self.starts, self.ends, None if self.kinds is None else self.kinds == TEXT)


TEXT: Final = ord("t")
NULL: Final = ord("n")
UNCHANGED: Final = ord("u")


def read_tuples(frames: Frames, offsets: Longs, limits: Longs, column_count: int) -> tuple[list[Slices], Longs]:
    """Read pgoutput's TupleData of many rows, column by column.

    Args:
        frames: The messages.
        offsets: Start of each row's tuple.
        limits: End of each row's message.
        column_count: The number of columns that each tuple must have.

    Returns:
        The values' slices per column, and the end of each tuple.

    Raises:
        ColumnCountError: A tuple has another number of columns.
        MalformedError: A tuple runs over its message's end, or has a value of an unknown kind.
    """
    columns: list[Slices] = []
    counted, offsets = offsets, offsets + 2
    _check_ends(offsets, limits)
    if (frames.int16(counted) != column_count).any():
        raise ColumnCountError(f"a row does not have {column_count} columns")
    for _ in range(column_count):
        words = frames.words(offsets)
        kinds = words.astype(np.uint8)
        lengths = (words >> np.uint64(8)).astype(np.uint32).byteswap().view(np.int32).astype(np.int64)
        if (kinds == TEXT).all():
            starts = offsets + 5
            ends = starts + lengths
            columns.append(Slices(starts, ends, None))
        else:
            there = kinds == TEXT
            if not (there | (kinds == NULL) | (kinds == UNCHANGED)).all():
                raise MalformedError("a column's value is of an unknown kind")
            lengths[~there] = 0
            starts = offsets + np.where(there, 5, 1)
            ends = starts + lengths
            columns.append(Slices(starts, ends, kinds))
        if (lengths < 0).any():
            raise MalformedError("a value has a negative length")
        _check_ends(ends, limits)
        offsets = ends
    return columns, offsets


def _check_ends(ends: Longs, limits: Longs) -> None:
    if (ends > limits).any():
        raise MalformedError("a row runs over the end of its message")

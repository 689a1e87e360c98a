"""The messages of one pull as arrays, and how many of them it takes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np

from replicator.plugins.kit.arrow import Bools
from replicator_source_postgresql.log import pgoutput as p
from replicator_source_postgresql.log.feed import KEEPALIVE_SIZE
from replicator_source_postgresql.wire import Block, Bytes, Frames, MalformedError

# A CopyData of the log: 'w', the position twice, the server's clock; then pgoutput's message.
HEADER: Final = 25
EPOCH_2000_US: Final = 946_684_800_000_000
_DATA: Final = ord("w")
_KEEPALIVE: Final = ord("k")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _kinds(*kinds: int) -> Bools:
    table = np.zeros(256, bool)
    table[list(kinds)] = True
    return table


IS_ROW: Final = _kinds(p.INSERT, p.UPDATE, p.DELETE)
IS_RARE: Final = _kinds(p.RELATION, p.TRUNCATE, p.MESSAGE)
_IS_KNOWN: Final = IS_ROW | IS_RARE | _kinds(p.BEGIN, p.COMMIT, p.ORIGIN, p.TYPE)


@dataclass(frozen=True)
class Part:
    """The messages of one pull as arrays; `kinds` is 0 for keepalives."""

    frames: Frames
    kinds: Bytes

    @classmethod
    def read(cls, frames: Frames) -> Part:
        """Read every message's kind."""
        envelopes = frames.bytes[frames.starts]
        is_data, is_keepalive = envelopes == _DATA, envelopes == _KEEPALIVE
        sizes = frames.ends - frames.starts
        if not (is_data & (sizes > HEADER) | is_keepalive & (sizes == KEEPALIVE_SIZE)).all():
            raise MalformedError("a message of the stream is neither data nor a keepalive")
        kinds = np.where(is_data, frames.bytes[frames.starts + np.where(is_data, HEADER, 0)], np.uint8(0))
        if not (_IS_KNOWN[kinds] | is_keepalive).all():
            raise MalformedError("a message is of an unknown kind")
        return cls(frames, kinds)

    @property
    def count(self) -> int:
        """The number of messages."""
        return len(self.kinds)

    def first(self, count: int) -> Part:
        """The first messages only."""
        return Part(self.frames.first(count), self.kinds[:count])

    def content(self, index: int) -> bytes:
        """The content of one message, without its kind byte."""
        return self.frames.data[int(self.frames.starts[index]) + HEADER + 1 : int(self.frames.ends[index])]

    def limit(self, rows_max: int) -> int:
        """Count the messages that make up `rows_max` rows, with the Commit that follows."""
        rows = np.flatnonzero(IS_ROW[self.kinds])
        if len(rows) <= rows_max:
            return self.count
        stop = int(rows[rows_max - 1]) + 1
        return stop + 1 if self.kinds[stop] == p.COMMIT else stop


def up_to(queue: list[Block], count_max: int, bytes_max: int) -> tuple[Frames, list[Block]]:
    """Join the first messages within the bounds, the last of which may exceed that of bytes; return the others as they are."""
    count = size = taken = 0
    for block in queue:
        if count >= count_max or size >= bytes_max:
            break
        taken += 1
        count += len(block.sizes)
        size += len(block.data)
    frames = Frames.join(queue[:taken])
    within = min(count_max, int(np.searchsorted(frames.ends, bytes_max)) + 1)
    if within >= count:
        return frames, queue[taken:]
    return frames.first(within), [frames.after(within), *queue[taken:]]


def moment(us: int) -> datetime:
    """Convert microseconds since 1970 to a time."""
    try:
        return _EPOCH + timedelta(microseconds=us)
    except OverflowError as error:
        raise MalformedError("a time is outside the calendar") from error

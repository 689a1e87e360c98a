"""A script of statements with one COPY … TO STDOUT in it, sent as one query and read in blocks of rows.

One round trip serves the whole script, so the catalogue can be asked before and after a read at no cost in time.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, Final

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import pq
from psycopg.pq.abc import PGresult

from replicator_source_postgresql.wire import COPY_SIGNATURE, NULL, TEXT, Block, Frames, MalformedError, Message, Slices

Row = tuple[bytes | None, ...]

_ENDED: Final = -1
_NOTHING: Final[Message] = (0, memoryview(b""))
_MESSAGES_AT_ONCE_MAX: Final = 1_024
_HEADER_SIZE: Final = len(COPY_SIGNATURE) + 8
_TRAILER_SIZE: Final = 2
_TRAILER: Final = -1
_COUNT_SIZE: Final = 2
_LENGTH_SIZE: Final = 4
_NULL_LENGTH: Final = -1
_WAIT_MS: Final = 500
_WORD_SIZES: Final = frozenset({1, 2, 4, 8})


class CopyScript:
    """A script that runs on a connection which nobody else uses meanwhile.

    Steps: `start` (results of the statements before the COPY) → `read` until it returns None → `finish` (results of the statements
    after it). After an error, or when it is left half-way, the connection must be rolled back or closed by its owner.
    psycopg's errors pass through.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._pgconn = connection.pgconn
        self._poll = select.poll()
        self._poll.register(self._pgconn.socket, select.POLLIN)
        self._take: Callable[[], Message] = partial(self._pgconn.get_copy_data, 1)
        self._is_first = True
        self._has_ended = False

    def start(self, script: str) -> list[list[Row]]:
        """Send the script; return the rows of each statement before the COPY, as texts in bytes."""
        # Nothing here blocks inside libpq, which would hold Python's global lock and stop all other threads.
        self._pgconn.nonblocking = 1
        self._pgconn.send_query(script.encode())
        while self._pgconn.flush():
            self._wait(select.POLLIN | select.POLLOUT)
            self._pgconn.consume_input()
        results: list[list[Row]] = []
        while (result := self._next_result()) is not None:
            if result.status == pq.ExecStatus.COPY_OUT:
                return results
            results.append(_rows(result))
        raise AssertionError("the script has no COPY")

    def read(self, rows_max: int, bytes_max: int) -> Frames | None:
        """Return the next rows, one per frame, more than the bounds by what had arrived already; None when the COPY has ended.

        Raises:
            MalformedError: It does not begin as a COPY in binary format does.
        """
        while not self._has_ended:
            frames = self._rows_of(self._messages(rows_max, bytes_max))
            if len(frames.starts):
                return frames
        # The end of the rows may be that of a failed COPY: its result says so.
        self._next_result()
        return None

    def finish(self) -> list[list[Row]]:
        """Return the rows of each statement after the COPY."""
        results: list[list[Row]] = []
        while (result := self._next_result()) is not None:
            results.append(_rows(result))
        return results

    def _messages(self, rows_max: int, bytes_max: int) -> Frames:
        blocks: list[Block] = []
        rows = size = 0
        while not self._has_ended and rows < rows_max and size < bytes_max:
            messages = self._received() or self._received_more()
            if messages:
                block = Block.of(messages)
                blocks.append(block)
                rows += len(block.sizes)
                size += len(block.data)
            elif not self._has_ended:
                self._wait(select.POLLIN)
        return Frames.join(blocks)

    def _received_more(self) -> list[Message]:
        # Asked before every wait, as libpq may not have taken what TLS has decrypted already.
        self._pgconn.consume_input()
        return self._received()

    def _received(self) -> list[Message]:
        """Return the messages that libpq has in its buffer, without a Python statement per message; no I/O.

        They are few, and are joined at once: kept by the thousand, they would keep Python's collector of garbage busy.
        """
        messages: list[Message] = []
        try:
            messages.extend(islice(iter(self._take, _NOTHING), _MESSAGES_AT_ONCE_MAX))
        except psycopg.OperationalError:
            # After the end of a COPY there is nothing to ask for: libpq refuses, and what came before stays in the list.
            if not messages or messages[-1][0] != _ENDED:
                raise
            messages.pop()
            self._has_ended = True
        return messages

    def _rows_of(self, frames: Frames) -> Frames:
        """Return the frames that are rows: without the header before the first one, and without the trailer."""
        starts, ends = frames.starts, frames.ends
        if self._is_first and len(starts):
            self._is_first = False
            if not frames.data.startswith(COPY_SIGNATURE):
                raise MalformedError("it has not the signature of the binary format")
            starts = starts.copy()
            starts[0] += _HEADER_SIZE + int.from_bytes(frames.data[_HEADER_SIZE - 4 : _HEADER_SIZE], "big")
        # No row is that short: every row has a field.
        if len(ends) and ends[-1] - starts[-1] == _TRAILER_SIZE and frames.int16(starts[-1:])[0] == _TRAILER:
            starts, ends = starts[:-1], ends[:-1]
        if len(ends) and starts[0] == ends[0]:
            starts, ends = starts[1:], ends[1:]
        return Frames(frames.data, starts, ends)

    def _wait(self, events: int) -> None:
        """Wait for the socket, within a bound: of what TLS has decrypted and libpq not yet taken the socket knows nothing."""
        self._poll.modify(self._pgconn.socket, events)
        self._poll.poll(_WAIT_MS)

    def _next_result(self) -> PGresult | None:
        while self._pgconn.is_busy():
            # As before every wait: first what TLS may have decrypted already.
            self._pgconn.consume_input()
            if not self._pgconn.is_busy():
                break
            self._wait(select.POLLIN)
            self._pgconn.consume_input()
        result = self._pgconn.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            error = psycopg.errors.error_from_result(result, encoding="utf-8")
            while self._next_result() is not None:
                pass
            raise error
        return result


def _rows(result: PGresult) -> list[Row]:
    return [tuple(result.get_value(row, column) for column in range(result.nfields)) for row in range(result.ntuples)]


def copy_columns(frames: Frames, count: int) -> list[Slices]:
    """Split the rows of a binary COPY into columns, all rows at once.

    Args:
        frames: One row each.
        count: The number of fields that each row must have.

    Returns:
        Each column's slices.

    Raises:
        MalformedError: A row has other fields or does not fill its frame exactly.
    """
    offsets, limits = frames.starts, frames.ends
    if (limits - offsets < _COUNT_SIZE).any() or (frames.int16(offsets) != count).any():
        raise MalformedError(f"a row does not have {count} fields")
    columns: list[Slices] = []
    offsets = offsets + _COUNT_SIZE
    try:
        for _ in range(count):
            lengths = frames.int32(offsets)
            begin = offsets + _LENGTH_SIZE
            kinds = None
            if (shortest := lengths.min(initial=0)) < 0:
                is_null = lengths < 0
                lengths[is_null] = 0
                kinds = np.where(is_null, np.uint8(NULL), np.uint8(TEXT))
            offsets = begin + lengths
            if shortest < _NULL_LENGTH:
                raise MalformedError("a field has a length that there is not")
            columns.append(Slices(begin, offsets, kinds))
    except IndexError as error:
        raise MalformedError("a field runs over the end of all rows") from error
    # Offsets only grow, so a field that runs over the end of its row shows here too.
    if (offsets != limits).any():
        raise MalformedError("a row does not end with its last field")
    return columns


def column_values(frames: Frames, slices: Slices) -> pa.Array:
    """Return the values of a column as a binary array; where all are there and equally wide, without reading them one by one."""
    count = len(slices.starts)
    width = int(slices.ends[0] - slices.starts[0]) if count else 0
    if width not in _WORD_SIZES or slices.kinds is not None or (slices.ends - slices.starts != width).any():
        return slices.array(frames)
    # The first byte of a word is its lowest: cutting it to the width leaves the first bytes as they are.
    data = frames.words(slices.starts).astype(f"<u{width}")
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])

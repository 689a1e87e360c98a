"""Bytes of many events in one buffer, read at many offsets at once: no Python object per value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replicator.plugins.kit.arrow import Bools, Longs, bitmap, gathered

Words = npt.NDArray[np.uint64]

WORD: Final = 8
_PADDING: Final = bytes(WORD)


class Buffer:
    """Bodies joined one after another, padded so that eight bytes can be read at every offset.

    Attributes:
        starts: Offset of each body's first byte.
        ends: Offset after each body's last byte.
        bytes: Everything as numbers.
    """

    def __init__(self, bodies: Sequence[bytes | memoryview]) -> None:
        sizes = np.fromiter(map(len, bodies), np.int64, len(bodies))
        self.ends: Longs = np.cumsum(sizes)
        self.starts: Longs = self.ends - sizes
        self.data = b"".join([*bodies, _PADDING])
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self.data, np.uint8)
        self._words: Words = np.ndarray((len(self.data) - WORD + 1,), "<u8", buffer=self.data, strides=(1,))

    def little(self, offsets: Longs, size: int) -> Words:
        """Little-endian unsigned integers of `size` (1 to 8) bytes."""
        if size == 1:
            return self.bytes[offsets].astype(np.uint64)
        words = self._words[offsets]
        return words if size == WORD else words & np.uint64((1 << 8 * size) - 1)

    def big(self, offsets: Longs, size: int) -> Words:
        """Big-endian unsigned integers of `size` (1 to 8) bytes."""
        words = self._words[offsets].byteswap()
        return words if size == WORD else words >> np.uint64(8 * (WORD - size))

    def binary(self, starts: Longs, ends: Longs, valid: Bools | None) -> pa.Array:
        """The bytes between starts and ends as a binary array, null where not `valid`. Ranges ascend and do not overlap."""
        return gathered(self.data, starts, ends, valid)


def fixed_array(arrow: pa.DataType, numbers: npt.NDArray[Any], valid: Bools | None) -> pa.Array:
    """An Arrow array over numbers in their storage form (decimals: rows of 64-bit words); null where not `valid`."""
    if pa.types.is_boolean(arrow):
        return pa.array(numbers, arrow, mask=None if valid is None else ~valid)
    return pa.Array.from_buffers(arrow, len(numbers), [bitmap(valid), pa.py_buffer(np.ascontiguousarray(numbers))])


def spread(array: pa.Array, valid: Bools | None) -> pa.Array:
    """Put values where it is `valid`, with nulls elsewhere."""
    if valid is None:
        return array
    return array.take(pa.array(np.cumsum(valid) - 1, mask=~valid))

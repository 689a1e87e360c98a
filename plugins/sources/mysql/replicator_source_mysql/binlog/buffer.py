"""Bytes of many events in one buffer, read at many offsets at once: no Python object per value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bools = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

WORD: Final = 8
_PADDING: Final = bytes(WORD)


class Buffer:
    """Bodies joined behind each other, padded so that eight bytes can be read at every offset.

    Attributes:
        starts: Where each body begins.
        ends: Where each body ends.
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
        """The bytes between starts and ends as a binary array, null where not `valid`. Ranges ascend and do not overlap.

        The whole buffer is seen as an array in which wanted values and gaps alternate; Arrow gathers the wanted ones.
        """
        count = len(starts)
        offsets = np.empty(2 * count + 1, np.int32)
        offsets[0:-1:2] = starts
        offsets[1::2] = ends
        offsets[-1] = ends[-1] if count else 0
        alternating = pa.Array.from_buffers(
            pa.binary(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        )
        wanted = np.arange(0, 2 * count, 2, dtype=np.int32)
        return alternating.take(pa.array(wanted, mask=None if valid is None else ~valid))


def fixed_array(arrow: pa.DataType, numbers: npt.NDArray[Any], valid: Bools | None) -> pa.Array:
    """An Arrow array over numbers in their storage form (decimals: rows of 64-bit words); null where not `valid`."""
    if pa.types.is_boolean(arrow):
        return pa.array(numbers, arrow, mask=None if valid is None else ~valid)
    bitmap = None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(arrow, len(numbers), [bitmap, pa.py_buffer(np.ascontiguousarray(numbers))])


def binary_array(lengths: Longs, content: npt.NDArray[np.uint8]) -> pa.Array:
    """A binary array of consecutive values in `content`."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.Array.from_buffers(
        pa.binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(content))]
    )


def spread(array: pa.Array, valid: Bools | None) -> pa.Array:
    """Put values where it is `valid`, with nulls elsewhere."""
    if valid is None:
        return array
    return array.take(pa.array(np.cumsum(valid) - 1, mask=~valid))

"""Arrow arrays out of the bytes of many rows, a column at a time: no Python object per value."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bools = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]


def gathered(data: Any, starts: Longs, ends: Longs, valid: Bools | None) -> pa.Array:
    """Return the bytes of `data` between starts and ends as a binary array, null where not `valid`. Ranges ascend and do not overlap.

    The whole buffer is seen as an array in which wanted values and gaps alternate; Arrow gathers the wanted ones.
    """
    count = len(starts)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0:-1:2] = starts
    offsets[1::2] = ends
    offsets[-1] = ends[-1] if count else 0
    alternating = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    wanted = np.arange(0, 2 * count, 2, dtype=np.int32)
    return alternating.take(pa.array(wanted, mask=None if valid is None or valid.all() else ~valid))


def binary_array(lengths: Longs, content: npt.NDArray[np.uint8], valid: Bools | None = None) -> pa.Array:
    """Return a binary array of consecutive values in `content`; null where not `valid` (length 0 there)."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.Array.from_buffers(
        pa.binary(), len(lengths), [bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(content))]
    )


def bitmap(valid: Bools | None) -> pa.Buffer | None:
    """Return Arrow's bitmap of the values that are not null; None if all are valid."""
    return None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))

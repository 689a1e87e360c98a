"""Keys of rows in one form, for all types of columns: equal exactly where SQL's `=` is true of every key column.

Text is compared by its bytes. A key of one whole number, date or moment is that number, as int64. Every other key is
bytes: fixed-width values as they are in memory, text and binary after their length. Floats are refused: their zeros
and NaNs are equal by rules of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from replicator.plugins.kit.folding.needed import EngineNeededError

UInt64s = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]

_INTEGERS: Final[dict[pa.DataType, pa.DataType | None]] = {
    pa.int8(): None,
    pa.int16(): None,
    pa.int32(): None,
    pa.int64(): None,
    pa.date32(): pa.int32(),
    pa.time64("us"): pa.int64(),
    pa.timestamp("us"): pa.int64(),
    pa.timestamp("us", tz="UTC"): pa.int64(),
}
"""Types that are whole numbers, and the type as which each is read first."""

_BYTES_PER_INTEGER: Final = 12
_BYTES_PER_KEY: Final = 40
"""Bytes that an index needs for a row, with a key of some 20 bytes."""

_LENGTH_BYTES: Final = 4
_WORD: Final = 8
# Constants of MurmurHash3's and SplitMix's finalizers: odd, with bits in all parts.
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


class KeyForm:
    """Form of a table's keys, by which they are distinguished.

    Args:
        types: The key columns' types as the data files have them, in key order.

    Raises:
        EngineNeededError: A type's equality is not that of its bytes.
    """

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        for type_ in types:
            if not _is_exact(type_):
                raise EngineNeededError(f"the key has a column of type {type_}")
        self.types = tuple(types)
        self.is_integer = len(types) == 1 and types[0] in _INTEGERS
        self.bytes_per_row = _BYTES_PER_INTEGER if self.is_integer else _BYTES_PER_KEY

    def keys(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Return the keys of rows: int64, or large binary.

        Args:
            columns: The key columns, of `types`.

        Raises:
            EngineNeededError: A key has a null.
        """
        if any(column.null_count for column in columns):
            raise EngineNeededError("a key has a null")
        if self.is_integer:
            return _integers(columns[0])
        parts: list[pa.Array] = []
        for column in columns:
            if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
                values = column.cast(pa.large_binary())
                lengths = pc.binary_length(values).to_numpy(zero_copy_only=False).astype(">u4")
                parts += [fixed(lengths.view(np.uint8), _LENGTH_BYTES), values]
            elif pa.types.is_decimal(column.type):
                width = column.type.byte_width
                data = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * width :][: len(column) * width]
                parts.append(fixed(data, width))
            elif pa.types.is_boolean(column.type):
                parts.append(fixed(column.cast(pa.uint8()).to_numpy(zero_copy_only=False), 1))
            else:
                numbers = _integers(column).to_numpy(zero_copy_only=False)
                parts.append(fixed(np.ascontiguousarray(numbers).view(np.uint8), _WORD))
        joined = parts[0]
        if len(parts) > 1:
            joined = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))
        return joined


def distinct(keys: pa.Array) -> tuple[pa.Array, Int64s]:
    """Return every key once, and for each of `keys` its index there. Whole numbers ascend: a file in their order has a smaller index."""
    if pa.types.is_int64(keys.type):
        numbers, index = np.unique(keys.to_numpy(), return_inverse=True)
        return pa.array(numbers), index
    encoded = keys.dictionary_encode()
    return encoded.dictionary, encoded.indices.to_numpy().astype(np.int64)


def hashes(keys: pa.Array) -> UInt64s:
    """Return a hash of 64 bits of each key. Equal hashes prove nothing: compare the keys."""
    count = len(keys)
    if pa.types.is_int64(keys.type):
        return _mixed(keys.to_numpy().view(np.uint64) * _MIX)
    if not count:
        return np.zeros(0, np.uint64)
    offsets = np.frombuffer(keys.buffers()[1], np.int64)[keys.offset : keys.offset + count + 1]
    begin = offsets[:-1].copy()
    left = np.diff(offsets)
    result: UInt64s = left.astype(np.uint64) * _MIX
    if not offsets[-1]:
        return _mixed(result)
    # One word at a time, for all keys that have one more; after the last byte there must be room for a whole word.
    data = np.concatenate([np.frombuffer(keys.buffers()[2], np.uint8)[: offsets[-1]], np.zeros(_WORD, np.uint8)])
    words = np.ndarray(shape=(len(data) - _WORD + 1,), dtype="<u8", buffer=data.data, strides=(1,))
    active = np.nonzero(left > 0)[0]
    while len(active):
        word = words[begin[active]].astype(np.uint64)
        excess = np.maximum(_WORD - left[active], 0).astype(np.uint64) * np.uint64(8)
        word = (word << excess) >> excess
        result[active] = _mixed(result[active] ^ word) + _MIX
        begin[active] += _WORD
        left[active] -= _WORD
        active = active[left[active] > 0]
    return _mixed(result)


def _mixed(value: UInt64s) -> UInt64s:
    value = (value ^ (value >> np.uint64(30))) * _MULTIPLY[0]
    value = (value ^ (value >> np.uint64(27))) * _MULTIPLY[1]
    result: UInt64s = value ^ (value >> np.uint64(31))
    return result


def _is_exact(type_: pa.DataType) -> bool:
    if type_ in _INTEGERS or pa.types.is_boolean(type_) or pa.types.is_decimal128(type_):
        return True
    return bool(pa.types.is_string(type_) or pa.types.is_binary(type_))


def _integers(column: pa.Array) -> pa.Array:
    first: Any = _INTEGERS[column.type]
    return (column if first is None else column.cast(first)).cast(pa.int64())


def fixed(data: npt.NDArray[np.uint8], width: int) -> pa.Array:
    """Return values of one width, as large binary."""
    count = len(data) // width
    offsets = np.arange(count + 1, dtype=np.int64) * width
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    )

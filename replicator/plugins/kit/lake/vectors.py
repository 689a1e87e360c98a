"""Deletion vectors: the deleted rows of a data file, in the bytes in which Delta and Iceberg store them.

A vector is a RoaringBitmapArray in its portable form: a magic number, the count of 32-bit bitmaps, and each bitmap in
the standard Roaring format after its high 32 bits. All numbers of it are little-endian. In a file it stands in a frame: its
length before it, its CRC-32 after it, both big-endian.

Source: Delta's PROTOCOL.md, "Deletion Vectors"; Iceberg's Puffin spec, "deletion-vector-v1". Needs pyroaring, which a plugin that uses
this depends on.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from replicator.plugins.kit.folding.needed import EngineNeededError

_MAGIC: Final = struct.pack("<i", 1681511377)
_HEAD: Final = struct.Struct("<4sq")
_HIGH: Final = struct.Struct("<I")
_LENGTH: Final = struct.Struct(">i")
_CRC: Final = struct.Struct(">I")
FRAME_BYTES: Final = _LENGTH.size + _CRC.size
"""Bytes of a frame without its vector."""


def bitmap(rows: npt.NDArray[Any]) -> BitMap:
    """A set of row numbers."""
    return BitMap(np.ascontiguousarray(rows, dtype=np.uint32))


def numbers(rows: BitMap) -> npt.NDArray[np.uint32]:
    """The row numbers of a set, ascending."""
    return np.frombuffer(rows.to_array(), dtype=np.uint32)


def encode(rows: BitMap) -> bytes:
    """A vector's bytes."""
    compact = rows.copy()
    compact.run_optimize()
    return _HEAD.pack(_MAGIC, 1) + _HIGH.pack(0) + bytes(compact.serialize())


def decode(data: bytes) -> BitMap:
    """Read a vector's bytes.

    Raises:
        EngineNeededError: They are in another form, or of a file of more than 2³² rows.
    """
    if len(data) < _HEAD.size:
        raise EngineNeededError("a deletion vector is cut off")
    magic, count = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise EngineNeededError("a deletion vector has an unknown form")
    if count == 0 and len(data) == _HEAD.size:
        return BitMap()
    body = _HEAD.size + _HIGH.size
    if count != 1 or len(data) < body or _HIGH.unpack_from(data, _HEAD.size)[0] != 0:
        raise EngineNeededError("a deletion vector is of a file of more than 2^32 rows")
    try:
        return BitMap.deserialize(data[body:])
    except ValueError as error:
        raise EngineNeededError("a deletion vector cannot be read") from error


def framed(vector: bytes) -> bytes:
    """Return a vector's bytes in their frame."""
    return _LENGTH.pack(len(vector)) + vector + _CRC.pack(zlib.crc32(vector))


def unframed(data: bytes, size: int) -> bytes:
    """Return the bytes of a vector of this size from their frame.

    Raises:
        EngineNeededError: They are cut off, or damaged.
    """
    if len(data) < size + FRAME_BYTES:
        raise EngineNeededError("a deletion vector is missing or cut off")
    (length,), (crc,) = _LENGTH.unpack_from(data), _CRC.unpack_from(data, _LENGTH.size + size)
    vector = data[_LENGTH.size : _LENGTH.size + size]
    if length != size or crc != zlib.crc32(vector):
        raise EngineNeededError("a deletion vector is damaged")
    return vector

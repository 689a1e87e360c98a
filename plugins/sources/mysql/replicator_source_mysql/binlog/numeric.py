"""Numbers of fixed size, all rows at once: offsets in the buffer → numbers in Arrow's storage form.

A decoder takes the buffer and the offsets of values that are not NULL, and returns their numbers with a mask of those that the canonical
type cannot hold (None: none). ValueError: the bytes are no such value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from replicator.plugins.kit.arrow import Bools, Longs
from replicator_source_mysql.binlog.buffer import WORD, Buffer, Words

FixedDecoder = Callable[[Buffer, Longs], tuple[npt.NDArray[Any], Bools | None]]

_GROUP_DIGITS: Final = 9
_GROUP_SIZES: Final = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
"""Bytes of a group of decimal digits, by the number of digits."""

_INT64_DIGITS: Final = 18
_LIMB_BITS: Final = np.uint64(32)
_LIMB_MASK: Final = np.uint64(0xFFFF_FFFF)
_YEAR_BASE: Final = 1900


def integer(size: int, storage: str, *, is_unsigned: bool) -> FixedDecoder:
    """Little-endian integers of `size` bytes as numpy's `storage`."""
    shift = 8 * (WORD - size)

    def decode(buffer: Buffer, offsets: Longs) -> tuple[npt.NDArray[Any], Bools | None]:
        words = buffer.little(offsets, size)
        if is_unsigned or not shift:
            return words.astype(storage), None
        return ((words << np.uint64(shift)).view(np.int64) >> shift).astype(storage), None

    return decode


def wide(words: Words) -> npt.NDArray[np.uint64]:
    """Non-negative 64-bit numbers as decimal128's storage."""
    limbs = np.zeros((len(words), 2), np.uint64)
    limbs[:, 0] = words
    return limbs


def unsigned_bigint(buffer: Buffer, offsets: Longs) -> tuple[npt.NDArray[Any], Bools | None]:
    """BIGINT UNSIGNED as decimal128(20,0)."""
    return wide(buffer.little(offsets, WORD)), None


def real(size: int) -> FixedDecoder:
    """FLOAT (4 bytes) and DOUBLE (8)."""

    def decode(buffer: Buffer, offsets: Longs) -> tuple[npt.NDArray[Any], Bools | None]:
        words = buffer.little(offsets, size)
        return (words if size == WORD else words.astype(np.uint32)).view(f"<f{size}"), None

    return decode


def bit(bits: int) -> FixedDecoder:
    """BIT(n): big-endian; as bool, int64, or decimal128's storage."""
    size = (bits + 7) // 8

    def decode(buffer: Buffer, offsets: Longs) -> tuple[npt.NDArray[Any], Bools | None]:
        words = buffer.big(offsets, size)
        if bits < 8 * size and (words >> np.uint64(bits)).any():
            raise ValueError("more bits than the column has")
        if bits == 1:
            return words.astype(bool), None
        return (wide(words) if bits == 8 * WORD else words.view(np.int64)), None

    return decode


def year(buffer: Buffer, offsets: Longs) -> tuple[npt.NDArray[Any], Bools | None]:
    """One byte: years since 1900; 0 is the year 0."""
    numbers = buffer.little(offsets, 1).astype(np.int16)
    return np.where(numbers == 0, 0, numbers + _YEAR_BASE).astype(np.int16), None


def decimal_size(precision: int, scale: int) -> int:
    """Bytes of a DECIMAL(p,s)."""
    return sum(size for _, size in _groups(precision, scale))


def _groups(precision: int, scale: int) -> list[tuple[int, int]]:
    """Digits and bytes of each group of a DECIMAL, from the first byte on."""
    before, behind = precision - scale, scale
    digits = [before % _GROUP_DIGITS] if before % _GROUP_DIGITS else []
    digits += [_GROUP_DIGITS] * (before // _GROUP_DIGITS + behind // _GROUP_DIGITS)
    digits += [behind % _GROUP_DIGITS] if behind % _GROUP_DIGITS else []
    return [(d, _GROUP_SIZES[d]) for d in digits]


def decimal(precision: int, scale: int, words_per_value: int) -> FixedDecoder:
    """DECIMAL(p,s): groups of nine digits, big-endian, first bit inverted, all bits inverted if negative."""
    groups = _groups(precision, scale)

    def decode(buffer: Buffer, offsets: Longs) -> tuple[npt.NDArray[Any], Bools | None]:
        negative = buffer.bytes[offsets] < 0x80  # noqa: PLR2004  (the sign's bit, inverted)
        read = []
        offset = offsets
        for index, (digits, size) in enumerate(groups):
            group = buffer.big(offset, size)
            group = np.where(negative, group ^ np.uint64((1 << 8 * size) - 1), group)
            if index == 0:
                group ^= np.uint64(0x80 << 8 * (size - 1))
            if (group >= 10**digits).any():
                raise ValueError("more digits than a group has")
            read.append((digits, group))
            offset = offset + size
        if precision <= _INT64_DIGITS:
            return _small(read, negative, words_per_value), None
        return _large(read, negative, words_per_value), None

    return decode


def _small(groups: list[tuple[int, Words]], negative: Bools, words_per_value: int) -> npt.NDArray[np.int64]:
    total = np.zeros(len(negative), np.int64)
    for digits, group in groups:
        total = total * 10**digits + group.view(np.int64)
    total = np.where(negative, -total, total)
    storage = np.empty((len(total), words_per_value), np.int64)
    storage[:, 0] = total
    storage[:, 1:] = (total >> 63)[:, None]
    return storage


def _large(groups: list[tuple[int, Words]], negative: Bools, words_per_value: int) -> npt.NDArray[np.uint64]:
    """Multiply out the groups in limbs of 32 bits."""
    limbs = [np.zeros(len(negative), np.uint64) for _ in range(2 * words_per_value)]
    for digits, group in groups:
        carry = group
        for index, limb in enumerate(limbs):
            product = limb * np.uint64(10**digits) + carry
            limbs[index] = product & _LIMB_MASK
            carry = product >> _LIMB_BITS
    carry = negative.astype(np.uint64)
    for index, limb in enumerate(limbs):
        inverted = np.where(negative, limb ^ _LIMB_MASK, limb) + carry
        limbs[index] = inverted & _LIMB_MASK
        carry = inverted >> _LIMB_BITS
    storage = np.empty((len(negative), words_per_value), np.uint64)
    for index in range(words_per_value):
        storage[:, index] = limbs[2 * index] | (limbs[2 * index + 1] << _LIMB_BITS)
    return storage

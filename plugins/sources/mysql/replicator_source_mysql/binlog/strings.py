"""Values with a length in front, and those that stand for text: binary arrays → canonical arrays, all rows of a column at once.

A decoder takes a binary array with nulls and returns the canonical array. ValueError: the bytes are no such value (the error
must not be chained: Arrow's messages hold values).
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from replicator.plugins.kit.arrow import Longs
from replicator_source_mysql.binlog.buffer import Buffer
from replicator_source_mysql.binlog.jsonbinary import json_text

BytesDecoder = Callable[[pa.Array], pa.Array]

_ZLIB: Final = 8
_UUID_SIZE: Final = 16
_INET6_SIZE: Final = 16
_INET4_SIZE: Final = 4


def raw_bytes(values: pa.Array) -> pa.Array:
    """Bytes as they are."""
    return values


def padded(size: int) -> BytesDecoder:
    """BINARY(n): the log drops trailing zeros."""

    def decode(values: pa.Array) -> pa.Array:
        lengths = pc.binary_length(values)
        if (pc.max(lengths).as_py() or 0) > size:
            raise ValueError("longer than the column")
        if pc.all(pc.equal(lengths, size)).as_py():
            return values
        zeros = pc.binary_repeat(pa.scalar(b"\0", pa.binary()), pc.subtract(size, lengths.fill_null(size)))
        return pc.binary_join_element_wise(values, zeros, pa.scalar(b"", pa.binary()))

    return decode


def json(values: pa.Array) -> pa.Array:
    """MySQL's binary JSON."""
    known: dict[bytes | None, str | None] = {None: None}
    texts = []
    for raw in values.to_pylist():
        if raw not in known:
            known[raw] = json_text(raw)
        texts.append(known[raw])
    return pa.array(texts, pa.string())


def uncompressed(decode: BytesDecoder, size_max: int) -> BytesDecoder:
    """MariaDB's COMPRESSED columns: a byte of method (8: zlib) and size of the length, the length (big-endian), deflate without frame."""

    def decode_compressed(values: pa.Array) -> pa.Array:
        plain = [None if raw is None else _inflate(raw, size_max) for raw in values.to_pylist()]
        return decode(pa.array(plain, pa.binary()))

    return decode_compressed


def _inflate(raw: bytes, size_max: int) -> bytes:
    if not raw:
        return b""
    method, length_size, is_framed = raw[0] >> 4, raw[0] & 7, not raw[0] & 8
    if method == 0:
        return raw[1:]
    size = int.from_bytes(raw[1 : 1 + length_size], "big")
    if method != _ZLIB or size > size_max:
        raise ValueError("not a compressed value, or larger than the column can hold")
    try:
        engine = zlib.decompressobj(zlib.MAX_WBITS if is_framed else -zlib.MAX_WBITS)
        plain = engine.decompress(raw[1 + length_size :], size + 1)
    except zlib.error:
        raise ValueError("not deflated") from None
    if len(plain) != size:
        raise ValueError("not of the length it says")
    return plain


# ---- MariaDB's types of fixed size that the log calls BINARY ----


def uuid(values: pa.Array) -> pa.Array:
    """UUID in text form."""
    return _each(values, _UUID_SIZE, _uuid_text)


def inet6(values: pa.Array) -> pa.Array:
    """INET6 as the server writes it."""
    return _each(values, _INET6_SIZE, _inet6_text)


def inet4(values: pa.Array) -> pa.Array:
    """INET4 in dotted form."""
    return _each(values, _INET4_SIZE, lambda raw: ".".join(map(str, raw)))


def _each(values: pa.Array, size: int, text: Callable[[bytes], str]) -> pa.Array:
    return pa.array([None if raw is None else text(raw) for raw in padded(size)(values).to_pylist()], pa.string())


def _uuid_text(raw: bytes) -> str:
    digits = raw.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _inet6_text(raw: bytes) -> str:
    """The first of the longest runs of zeros is left out, even if it is one group; two forms end in an IPv4 address."""
    groups = [int.from_bytes(raw[i : i + 2], "big") for i in range(0, _INET6_SIZE, 2)]
    tail = ".".join(map(str, raw[12:]))
    if groups[:6] == [0, 0, 0, 0, 0, 0xFFFF]:
        return f"::ffff:{tail}"
    if not any(groups[:6]) and groups[6]:
        return f"::{tail}"
    texts = [f"{group:x}" for group in groups]
    runs = [sum(1 for _ in takewhile(lambda group: group == 0, groups[i:])) for i in range(len(groups))]
    longest = max(runs)
    if not longest:
        return ":".join(texts)
    begin = runs.index(longest)
    return f"{':'.join(texts[:begin])}::{':'.join(texts[begin + longest :])}"


# ---- ENUM and SET ----


def enum(size: int, labels: Sequence[str], *, is_key: bool = False) -> Callable[[Buffer, Longs], pa.Array]:
    """ENUM: the label's number from 1, in `size` bytes; 0 is the invalid value. In a key null for what is not told apart."""
    names = pa.array(enum_names(labels, is_key=is_key), pa.string())

    def decode(buffer: Buffer, offsets: Longs) -> pa.Array:
        numbers = buffer.little(offsets, size)
        if (numbers >= len(names)).any():
            raise ValueError("not a label's number")
        return names.take(pa.array(numbers.astype(np.int32)))

    return decode


def enum_names(labels: Sequence[str], *, is_key: bool) -> list[str | None]:
    """The texts of an ENUM's numbers from 0 on; in a key None where another number has the same one."""
    names = ["", *labels]
    counts = Counter(names)
    return [None if is_key and counts[name] > 1 else name for name in names]


def untelling_labels(labels: Sequence[str]) -> int:
    """The bits of a SET's labels by which two of its values would become one text."""
    counts = Counter(labels)
    return sum(1 << bit for bit, name in enumerate(labels) if not name or counts[name] > 1)


def set_(size: int, labels: Sequence[str], *, is_key: bool = False) -> Callable[[Buffer, Longs], pa.Array]:
    """SET: a bit per label. In a key null for what is not told apart."""
    untelling = untelling_labels(labels) if is_key else 0

    def decode(buffer: Buffer, offsets: Longs) -> pa.Array:
        found, index = np.unique(buffer.little(offsets, size), return_inverse=True)
        if len(found) and len(labels) < 64 and int(found[-1]) >> len(labels):  # noqa: PLR2004  (bits of a SET at most)
            raise ValueError("more bits than labels")
        names = [
            None if bits & untelling else ",".join(name for i, name in enumerate(labels) if bits >> i & 1)
            for bits in found.tolist()
        ]
        return pa.array(names, pa.string()).take(pa.array(index.reshape(-1)))

    return decode

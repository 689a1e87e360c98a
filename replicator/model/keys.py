"""Converts keys to bytes: the one meaning of "the same row" in window, visibility ring and reduce."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc


def key_bytes(columns: Sequence[pa.Array]) -> pa.BinaryArray:
    """Return the canonical bytes of composite keys, one value per row.

    Each part is its value's canonical text, prefixed by its length and a colon, so that no two different keys share
    their bytes: ('a', 'bc') is `1:a2:bc`. Rows whose key has a null part are null.

    Args:
        columns: The key columns, equally long, in key order, of canonical types. At least one.

    Returns:
        Binary array of the same length. Keys are compared byte by byte: a change of case or of trailing space is another key.
    """
    parts = [_part(column) for column in columns]
    if len(parts) == 1:
        return parts[0]
    prefixed: list[pa.Array] = []
    for part in parts:
        length = pc.cast(pc.cast(pc.binary_length(part), pa.string()), pa.binary())
        prefixed += [length, pa.scalar(b":", pa.binary()), part]
    return pc.binary_join_element_wise(*prefixed, pa.scalar(b"", pa.binary()))


def _part(column: pa.Array) -> pa.Array:
    if pa.types.is_binary(column.type):
        return column
    if pa.types.is_timestamp(column.type):
        column = pc.cast(column, pa.int64())
    if pa.types.is_date32(column.type):
        column = pc.cast(column, pa.int32())
    return pc.cast(pc.cast(column, pa.string()), pa.binary())

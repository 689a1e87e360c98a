"""Texts of values, as digests of masks are taken of them.

A text is itself. Everything else has the canonical form of `replicator.plugins.verification`, without the length before binary values: the
digits of a number, 0 or 1, days or microseconds since 1970, the hex digits of bytes.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from replicator.plugins.kit.canonical import value_text


def plain_texts(values: pa.Array) -> pa.Array:
    """Return the text of each value as a string array; NULL stays NULL."""
    kind = values.type
    if pa.types.is_string(kind):
        return values
    if pa.types.is_boolean(kind):
        return pc.cast(pc.cast(values, pa.int8()), pa.string())
    if pa.types.is_date(kind):
        return pc.cast(values.cast(pa.int32()), pa.string())
    if pa.types.is_time(kind) or pa.types.is_timestamp(kind):
        return pc.cast(values.cast(pa.int64()), pa.string())
    if pa.types.is_integer(kind):
        return pc.cast(values, pa.string())
    if pa.types.is_binary(kind):
        return pa.array([None if value is None else value.hex() for value in values.to_pylist()], pa.string())
    if pa.types.is_float32(kind):
        values = values.cast(pa.float64())
    return pa.array([value_text(value, kind, is_key=False) for value in values.to_pylist()], pa.string())

"""Columns of row images to Arrow arrays: a column's width in the image, and the decoder of its values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from replicator.plugins.kit.arrow import Bools, Longs
from replicator_source_mysql import column_types as t
from replicator_source_mysql.binlog import numeric, strings, temporal
from replicator_source_mysql.binlog.buffer import WORD, Buffer, fixed_array, spread
from replicator_source_mysql.binlog.charsets import telling_decoder, text_decoder
from replicator_source_mysql.binlog.images import Slices, Width
from replicator_source_mysql.binlog.numeric import FixedDecoder
from replicator_source_mysql.binlog.tablemap import MapColumn
from replicator_source_mysql.binlog.types import ColumnSpec, TypeKind

ColumnDecoder = Callable[[Buffer, Slices], tuple[pa.Array, int]]
"""All values of a column → canonical array, and how many of them it cannot hold (they are null in it). ValueError: they are none."""

_FIXED_SIZES: Final = {
    t.TINY: 1,
    t.SHORT: 2,
    t.INT24: 3,
    t.LONG: 4,
    t.LONGLONG: 8,
    t.FLOAT: 4,
    t.DOUBLE: 8,
    t.YEAR: 1,
    t.DATE: 3,
    t.NEWDATE: 3,
    t.TIME: 3,
    t.DATETIME: 8,
    t.TIMESTAMP: 4,
}
_TIMES: Final = {t.TIME2: 3, t.DATETIME2: 5, t.TIMESTAMP2: 4}
_WITH_PREFIX_SIZE: Final = frozenset({t.BLOB, t.BLOB_COMPRESSED, t.JSON, t.GEOMETRY, t.VECTOR})
_SHORT_STRING: Final = 255
_PREFIX_MAX: Final = 4
_FRACTION_MAX: Final = 6
_DECIMAL_MAX: Final = 65
_SCALE_MAX: Final = 38
_BIT_MAX: Final = 64
_LABEL_SIZES: Final = {t.ENUM: (1, 2), t.SET: (1, 2, 3, 4, 8)}
_COMPRESSED: Final = frozenset({t.BLOB_COMPRESSED, t.VARCHAR_COMPRESSED})


def width(column: MapColumn, *, is_read: bool) -> Width:
    """The width of the column's values.

    Args:
        column: The column.
        is_read: It has a spec, which gives the length of `columntypes.OLD_TIMES`.

    Raises:
        ValueError: Its type or metadata is not known.
    """
    code, metadata = column.type_code, column.metadata
    size = 0
    prefix = 0
    if code in _FIXED_SIZES:
        size = _FIXED_SIZES[code]
    elif code in _TIMES and metadata <= _FRACTION_MAX:
        size = _TIMES[code] + temporal.fraction_size(metadata)
    elif code == t.NEWDECIMAL and metadata & 0xFF <= min(metadata >> 8, _SCALE_MAX) and metadata >> 8 <= _DECIMAL_MAX:
        size = numeric.decimal_size(metadata >> 8, metadata & 0xFF)
    elif code == t.BIT and metadata <= _BIT_MAX:
        size = (metadata + 7) // 8
    elif code in _LABEL_SIZES and metadata in _LABEL_SIZES[code]:
        size = metadata
    elif code in {t.STRING, t.VAR_STRING, t.VARCHAR, t.VARCHAR_COMPRESSED}:
        prefix = 1 if metadata <= _SHORT_STRING else 2
    elif code in _WITH_PREFIX_SIZE and metadata <= _PREFIX_MAX:
        prefix = metadata
    if column.metadata < 0 or not (size or prefix) or (code in t.OLD_TIMES and not is_read):
        raise ValueError("a type or its metadata is not known")
    return Width(fixed=size, prefix=prefix)


def column_decoder(column: MapColumn, spec: ColumnSpec, *, is_key: bool = False) -> ColumnDecoder:
    """The decoder of a column whose spec is `spec` (`types.logged_spec`); of a key it does not hold values that it would not tell apart."""
    if (make_number := _NUMBERS.get(spec.kind)) is not None:
        return _fixed(make_number(column, spec), spec.arrow)
    if spec.kind is TypeKind.TIME:
        return _dense(temporal.time(spec.scale) if column.type_code == t.TIME2 else temporal.old_time)
    if spec.kind in {TypeKind.ENUM, TypeKind.SET}:
        make = strings.enum if spec.kind is TypeKind.ENUM else strings.set_
        return _dense(make(column.metadata, spec.labels, is_key=is_key))
    return _binary(_string(column, spec, is_key=is_key), can_be_unheld=spec.kind is TypeKind.TEXT)


def _integer(_: MapColumn, spec: ColumnSpec) -> FixedDecoder:
    if spec.is_unsigned and spec.width == WORD:
        return numeric.unsigned_bigint
    return numeric.integer(spec.width, str(spec.arrow), is_unsigned=spec.is_unsigned)


_NUMBERS: Final[Mapping[TypeKind, Callable[[MapColumn, ColumnSpec], FixedDecoder]]] = {
    TypeKind.INTEGER: _integer,
    TypeKind.DECIMAL: lambda _, s: numeric.decimal(s.precision, s.scale, s.arrow.byte_width // WORD),
    TypeKind.FLOAT: lambda _, __: numeric.real(4),
    TypeKind.DOUBLE: lambda _, __: numeric.real(8),
    TypeKind.BIT: lambda _, s: numeric.bit(s.width),
    TypeKind.YEAR: lambda _, __: numeric.year,
    TypeKind.DATE: lambda _, __: temporal.date,
    TypeKind.DATETIME: lambda c, s: temporal.old_datetime if c.type_code == t.DATETIME else temporal.datetime(s.scale),
    TypeKind.TIMESTAMP: lambda c, s: (
        temporal.old_timestamp if c.type_code == t.TIMESTAMP else temporal.timestamp(s.scale)
    ),
}


def _string(column: MapColumn, spec: ColumnSpec, *, is_key: bool) -> strings.BytesDecoder:
    decode: strings.BytesDecoder
    match spec.kind:
        case TypeKind.JSON:
            decode = strings.json
        case TypeKind.UUID:
            decode = strings.uuid
        case TypeKind.INET4:
            decode = strings.inet4
        case TypeKind.INET6:
            decode = strings.inet6
        case TypeKind.TEXT:
            decode = (telling_decoder if is_key else text_decoder)(spec.charset or "")
        case _:
            decode = strings.padded(spec.width) if spec.is_fixed else strings.raw_bytes
    if column.type_code not in _COMPRESSED:
        return decode
    size_max = (1 << 8 * column.metadata) if column.type_code == t.BLOB_COMPRESSED else 1 << 16
    return strings.uncompressed(decode, size_max)


def _fixed(decode: FixedDecoder, arrow: pa.DataType) -> ColumnDecoder:
    def column(buffer: Buffer, slices: Slices) -> tuple[pa.Array, int]:
        valid = slices.valid
        if valid is None:
            numbers, unheld = decode(buffer, slices.starts)
            return fixed_array(arrow, numbers, None if unheld is None else ~unheld), _count(unheld)
        dense, unheld = decode(buffer, slices.starts[valid])
        numbers = np.zeros((len(valid), *dense.shape[1:]), dense.dtype)
        numbers[valid] = dense
        if unheld is not None:
            valid = valid.copy()
            valid[valid] = ~unheld
        return fixed_array(arrow, numbers, valid), _count(unheld)

    return column


def _count(unheld: Bools | None) -> int:
    return 0 if unheld is None else int(unheld.sum())


def _dense(decode: Callable[[Buffer, Longs], pa.Array]) -> ColumnDecoder:
    def column(buffer: Buffer, slices: Slices) -> tuple[pa.Array, int]:
        starts = slices.starts if slices.valid is None else slices.starts[slices.valid]
        values = decode(buffer, starts)
        return spread(values, slices.valid), values.null_count

    return column


def _binary(decode: strings.BytesDecoder, *, can_be_unheld: bool) -> ColumnDecoder:
    def column(buffer: Buffer, slices: Slices) -> tuple[pa.Array, int]:
        assert slices.ends is not None
        values = buffer.binary(slices.starts, slices.ends, slices.valid)
        try:
            texts = decode(values)
            return texts, texts.null_count - values.null_count
        except ValueError:
            if not can_be_unheld:
                raise
        # Servers of old have let text in that is none in its character set.
        parts = [_one(decode, values[i : i + 1]) for i in range(len(values))]
        decoded = pa.concat_arrays(parts)
        return decoded, decoded.null_count - values.null_count

    return column


def _one(decode: strings.BytesDecoder, value: pa.Array) -> pa.Array:
    try:
        return decode(value)
    except ValueError:
        return pa.nulls(1, pa.string())

"""Rewrite files that a load would refuse, column by column, with the stated policy applied. Pure Arrow and Parquet.

Refused, or changed without a word, would be: dates and times outside of BigQuery's range (one of them fails the whole
load), arrays (NULL in them, and NULL for them), decimals of more than 38 digits. Whether a file has such values is told
by its columns' statistics, and where there are none by a look at the columns; most files are loaded as they are.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from replicator.model.errors import UnsupportedTypeError
from replicator.model.events import BEFORE, ROW
from replicator.model.schema import Column, TableSchema
from replicator_target_bigquery.names import staged_fields
from replicator_target_bigquery.types import is_wide

_BATCH_ROWS: Final = 50_000
# Of the integers that Parquet keeps: days since 1970, microseconds since 1970, microseconds since midnight.
_DATES: Final = (-719_162, 2_932_896)
_TIMESTAMPS: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)
_TIMES: Final = (0, 86_399_999_999)
_CONTROLS: Final = tuple(chr(code) for code in range(0x20))
_SHORT: Final = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


def is_loadable(file: pq.ParquetFile, schema: TableSchema) -> bool:
    """Return whether BigQuery loads the file as it is, and loses nothing."""
    columns = {schema.fields[c.name]: c for c in schema.columns}
    if any(_always(c.type) for c in columns.values()) or staged_fields(schema) != schema.fields:
        return False
    leaves = [
        f"{struct}.{field}" for struct in (BEFORE, ROW) for field, c in columns.items() if _range(c.type) is not None
    ]
    bounds = {f"{struct}.{field}": _range(c.type) for struct in (BEFORE, ROW) for field, c in columns.items()}
    unknown = []
    for leaf in leaves:
        within = _by_statistics(file, leaf, bounds[leaf] or _DATES)
        if within is False:
            return False
        if within is None:
            unknown.append(leaf)
    return not unknown or all(_scan(file, leaf, bounds[leaf] or _DATES) for leaf in unknown)


def rewrite(files: Iterable[pq.ParquetFile], sink: pa.NativeFile, schema: TableSchema, unfit_values: str) -> None:
    """Write the same changes, of all the files into one, as BigQuery can load them.

    Raises:
        UnsupportedTypeError: `value_out_of_range`: the policy is to stop, or the value stands in a key.
    """
    columns = {schema.fields[c.name]: c for c in schema.columns}
    writer: pq.ParquetWriter | None = None
    for batch in (batch for file in files for batch in file.iter_batches(batch_size=_BATCH_ROWS)):
        arrays = [
            _struct(array, columns, schema, unfit_values) if name in {BEFORE, ROW} else array
            for name, array in zip(batch.schema.names, batch.columns, strict=True)
        ]
        fields = [field.with_type(a.type) for field, a in zip(batch.schema, arrays, strict=True)]
        rewritten = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
        writer = writer or pq.ParquetWriter(sink, rewritten.schema)
        writer.write_batch(rewritten)
    if writer is None:
        raise UnsupportedTypeError("A journal file holds no rows.", code="empty_file", table=str(schema.table))
    writer.close()


def chunks(file: pq.ParquetFile, leaf: str) -> Iterator[tuple[int, pq.ColumnChunkMetaData]]:
    """Generate the pieces of a column, each with the number of its row group; none if the file has no such column."""
    metadata = file.metadata
    indexes = [i for i in range(metadata.num_columns) if metadata.schema.column(i).path == leaf]
    for group in range(metadata.num_row_groups):
        for index in indexes:
            yield group, metadata.row_group(group).column(index)


def json_text(array: pa.Array) -> pa.Array:
    """Return values as JSON: lists as arrays, numbers with every digit, all others quoted; NULL stays NULL, in a list it is `null`."""
    type_ = array.type
    if pa.types.is_list(type_):
        elements = pc.fill_null(json_text(array.flatten()), "null")
        lengths = pc.fill_null(pc.list_value_length(array), 0)
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cast(pc.cumulative_sum(lengths), pa.int32())])
        joined = pc.binary_join(pa.ListArray.from_arrays(offsets, elements), ",")
        return _only_where(array.is_valid(), pc.binary_join_element_wise("[", joined, "]", ""))
    if pa.types.is_boolean(type_) or pa.types.is_integer(type_):
        return pc.cast(array, pa.string())
    if pa.types.is_floating(type_):
        spelled = pc.cast(array, pa.string())
        return pc.if_else(pc.is_finite(array), spelled, _quoted(spelled))
    if pa.types.is_decimal(type_):
        return plain_decimals(array)
    if pa.types.is_binary(type_):
        encoded = [None if v is None else base64.b64encode(v).decode() for v in array.to_pylist()]
        return _quoted(pa.array(encoded, pa.string()))
    return _quoted(_escaped(array) if pa.types.is_string(type_) else pc.cast(array, pa.string()))


def plain_decimals(array: pa.Array) -> pa.Array:
    """Return decimals as plain digits, with as many after the point as their scale."""
    spelled = pc.cast(array, pa.string())
    # Arrow writes very small and very large numbers with an exponent.
    odd = pc.fill_null(pc.match_substring(spelled, "E"), False)
    if not pc.any(odd).as_py():
        return spelled
    digits = max(0, array.type.scale)
    plain = [format(Decimal(value), f".{digits}f") for value in spelled.filter(odd).to_pylist()]
    return pc.replace_with_mask(spelled, odd, pa.array(plain, pa.string()))


def _struct(
    array: pa.StructArray, columns: Mapping[str, Column], schema: TableSchema, unfit_values: str
) -> pa.StructArray:
    found = [columns[array.type.field(i).name] for i in range(array.type.num_fields)]
    fields = [fitted(value, c, schema, unfit_values) for c, value in zip(found, array.flatten(), strict=True)]
    staged = staged_fields(schema)
    return pa.StructArray.from_arrays(fields, names=[staged[c.name] for c in found], mask=array.is_null())


def fitted(array: pa.Array, column: Column, schema: TableSchema, unfit_values: str) -> pa.Array:
    """Return values of a column as a load takes them.

    Raises:
        UnsupportedTypeError: See `rewrite`.
    """
    if pa.types.is_list(column.type):
        return json_text(array)
    if is_wide(column.type):
        return plain_decimals(array)
    bounds = _range(column.type)
    if bounds is None:
        return array
    within = _within(array, bounds)
    if pc.all(within).as_py() is not False:
        return array
    if unfit_values == "stop" or column.name in schema.key:
        raise UnsupportedTypeError(
            f"The column {column.name} ({column.source_type}) has a value outside of BigQuery's range"
            " (years 0001 to 9999, 00:00 to 23:59:59.999999).",
            code="value_out_of_range",
            table=str(schema.table),
            action="Correct the row, or set target.unfit_values: null (not for keys); then run `replicator snapshot NAME TABLE`.",
        )
    return pc.if_else(within, array, pa.scalar(None, array.type))


def _within(array: pa.Array, bounds: tuple[int, int]) -> pa.Array:
    """Return, per value, whether it lies within; NULL for NULL."""
    raw = array.view(pa.int32() if pa.types.is_date32(array.type) else pa.int64())
    return pc.and_(pc.greater_equal(raw, bounds[0]), pc.less_equal(raw, bounds[1]))


def _by_statistics(file: pq.ParquetFile, leaf: str, bounds: tuple[int, int]) -> bool | None:
    """Return whether every value lies within; None if the statistics do not tell."""
    for _, column in chunks(file, leaf):
        statistics = column.statistics
        if statistics is None:
            return None
        if statistics.has_null_count and statistics.null_count == column.num_values:
            continue
        if not statistics.has_min_max:
            return None
        if statistics.min_raw < bounds[0] or statistics.max_raw > bounds[1]:
            return False
    return True


def _scan(file: pq.ParquetFile, leaf: str, bounds: tuple[int, int]) -> bool:
    for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=[leaf]):
        values: Sequence[pa.Array] = batch.column(0).flatten()
        if values and pc.all(_within(values[0], bounds)).as_py() is False:
            return False
    return True


def _range(type_: pa.DataType) -> tuple[int, int] | None:
    if pa.types.is_date(type_):
        return _DATES
    if pa.types.is_timestamp(type_):
        return _TIMESTAMPS
    return _TIMES if pa.types.is_time(type_) else None


def _always(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list(type_)) or is_wide(type_)


def _quoted(array: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', array, '"', "")


def _escaped(array: pa.Array) -> pa.Array:
    escaped = pc.replace_substring(array, "\\", "\\\\")
    escaped = pc.replace_substring(escaped, '"', '\\"')
    if not pc.any(pc.match_substring_regex(escaped, "[\\x00-\\x1f]")).as_py():
        return escaped
    for char in _CONTROLS:
        escaped = pc.replace_substring(escaped, char, _SHORT.get(char, f"\\u{ord(char):04x}"))
    return escaped


def _only_where(is_valid: pa.Array, array: pa.Array) -> pa.Array:
    return pc.if_else(is_valid, array, pa.scalar(None, array.type))

"""Reads journal files into DataFrames: explicit schema, one meaning of each type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documentation has it
from pyspark.sql import types as T  # noqa: N812

from replicator.model.events import ABSENT, BEFORE, IS_SNAPSHOT, OPERATION, ROW, SEQUENCE_NUM, SOURCE_TIMESTAMP
from replicator.model.schema import TableSchema
from replicator.spark.limits import is_readable

_SIMPLE: dict[pa.DataType, T.DataType] = {
    pa.bool_(): T.BooleanType(),
    pa.int8(): T.ByteType(),
    pa.int16(): T.ShortType(),
    pa.int32(): T.IntegerType(),
    pa.int64(): T.LongType(),
    pa.float32(): T.FloatType(),
    pa.float64(): T.DoubleType(),
    pa.string(): T.StringType(),
    pa.binary(): T.BinaryType(),
    pa.date32(): T.DateType(),
    pa.timestamp("us"): T.TimestampNTZType(),
    pa.timestamp("us", tz="UTC"): T.TimestampType(),
    # Times of day arrive as microseconds; `read_changes` gives them as text.
    pa.time64("us"): T.LongType(),
}


def read_changes(spark: Any, uris: Sequence[str], schema: TableSchema, *, skip_to: int) -> DataFrame:
    """Read the changes of journal files above a sequence number.

    Args:
        spark: The session to read with.
        uris: Parquet files in the layout of `change_schema(schema)`; columns for which `is_readable` is false must
            have been rewritten as strings.
        schema: Shape of the rows.
        skip_to: Changes at or below it are left out.

    Returns:
        `_sequence_num, _operation, _is_snapshot, _source_timestamp, _absent, before, row`. Times of day are text,
        `HH:MM:SS.ffffff`.
    """
    layout = T.StructType(
        [
            T.StructField(SEQUENCE_NUM, T.LongType()),
            T.StructField(OPERATION, T.StringType()),
            T.StructField(IS_SNAPSHOT, T.BooleanType()),
            T.StructField(SOURCE_TIMESTAMP, T.TimestampType()),
            T.StructField(ABSENT, T.ArrayType(T.StringType())),
            T.StructField(BEFORE, _struct(schema.before_type)),
            T.StructField(ROW, _struct(schema.row_type)),
        ]
    )
    changes: DataFrame = spark.read.schema(layout).parquet(*uris).where(F.col(SEQUENCE_NUM) > skip_to)
    for name, struct in ((BEFORE, schema.before_type), (ROW, schema.row_type)):
        if any(_has_time(field.type) for field in struct):
            fields = [_text_of_time(F.col(f"{name}.{field.name}"), field.type).alias(field.name) for field in struct]
            changes = changes.withColumn(name, F.when(F.col(name).isNotNull(), F.struct(*fields)))
    return changes


def spark_type(type_: pa.DataType) -> T.DataType:
    """The Spark type that a canonical Arrow type is read as, before times of day become text.

    Raises:
        ValueError: The type is outside the canonical set.
    """
    if pa.types.is_list(type_):
        return T.ArrayType(spark_type(type_.value_type))
    if pa.types.is_decimal(type_):
        return T.DecimalType(type_.precision, type_.scale) if is_readable(type_) else T.StringType()
    if type_ not in _SIMPLE:
        raise ValueError(f"{type_} is not a canonical type")
    return _SIMPLE[type_]


def _struct(type_: pa.StructType) -> T.StructType:
    return T.StructType([T.StructField(field.name, spark_type(field.type)) for field in type_])


def _has_time(type_: pa.DataType) -> bool:
    return bool(pa.types.is_time(type_) or (pa.types.is_list(type_) and _has_time(type_.value_type)))


def _text_of_time(value: Column, type_: pa.DataType) -> Column:
    if pa.types.is_list(type_) and _has_time(type_):
        return F.transform(value, lambda element: _text_of_time(element, type_.value_type))
    if pa.types.is_time(type_):
        return F.date_format(F.timestamp_micros(value), "HH:mm:ss.SSSSSS")
    return value

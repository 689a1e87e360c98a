"""Limits of Spark; importable without Spark, for callers that only ask."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

_DECIMAL_DIGITS_MAX: Final = 38


def is_readable(type_: pa.DataType) -> bool:
    """Return whether Spark can read the type from Parquet; it cannot read decimals of more than 38 digits."""
    if pa.types.is_list(type_):
        return is_readable(type_.value_type)
    return not (pa.types.is_decimal(type_) and type_.precision > _DECIMAL_DIGITS_MAX)

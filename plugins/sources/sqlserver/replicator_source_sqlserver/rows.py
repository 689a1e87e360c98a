"""Rows as pyodbc gives them → Arrow columns: one form of each value, whether it was read from a table or from a change table.

What a driver gives for `ColumnSpec.selected` is a value of Python of one type. Arrow takes a whole column of them at once: nothing here
runs once per value. Of seven digits after the point pyodbc keeps six and cuts the last one, through either driver.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa

from replicator.model.errors import TableError, UnsupportedTypeError
from replicator_source_sqlserver.connecting.connection import Row
from replicator_source_sqlserver.types import ColumnSpec

_GIVEN: Final[dict[int, type]] = {
    pa.bool_().id: bool,
    pa.int16().id: int,
    pa.int32().id: int,
    pa.int64().id: int,
    pa.decimal128(1).id: Decimal,
    pa.float32().id: float,
    pa.float64().id: float,
    pa.string().id: str,
    pa.binary().id: bytes,
    pa.date32().id: dt.date,
    pa.time64("us").id: dt.time,
    pa.timestamp("us").id: dt.datetime,
}
"""Type of pyodbc's values, by the number of the Arrow type that they are kept in."""

_REPORT: Final = (
    "Run `replicator snapshot NAME TABLE`; if it fails again, exclude the table and report its CREATE TABLE."
)


def columns_of(rows: Sequence[Row]) -> list[Sequence[Any]]:
    """Return the values of each column. Without rows there are no columns either.

    Four times as fast as `zip(*rows)`, which makes an iterator for each row.
    """
    return [list(map(itemgetter(position), rows)) for position in range(len(rows[0]))] if rows else []


def decoded(values: Sequence[Any], spec: ColumnSpec, *, name: str) -> pa.Array:
    """Convert one column to its canonical type, which is exactly `spec.arrow`.

    Args:
        values: Values of `spec.selected` from the driver; None is NULL.
        spec: The column's replication.
        name: The column's name, for messages, which have no value of it.

    Raises:
        UnsupportedTypeError: `unrepresentable_value`: the type cannot hold a value, or Arrow cannot hold them all in one array.
        TableError: `corrupt_rows`: the values are of another type, as they are when the column's own type was changed meanwhile.
    """
    # Arrow would cut an int from a float and a date from a moment, and say nothing.
    others = set(map(type, values)) - {_GIVEN[spec.arrow.id], type(None)}
    if others:
        raise TableError(
            f"column {name}: {spec.declared} was expected; the driver gave {', '.join(sorted(t.__name__ for t in others))}.",
            code="corrupt_rows",
            action=_REPORT,
        )
    try:
        array = pa.array(values, pa.float64() if pa.types.is_float32(spec.arrow) else spec.arrow)
    except (pa.ArrowException, UnicodeEncodeError, OverflowError):
        # What Arrow says may hold the value: it is no part of the error, nor its cause.
        raise _does_not_fit(name, spec, len(values)) from None
    if isinstance(array, pa.ChunkedArray):
        raise UnsupportedTypeError(
            f"column {name}: {len(values)} values have more than 2 GiB together.",
            code="unrepresentable_value",
            action="Exclude the table.",
        )
    if not pa.types.is_float32(spec.arrow):
        return array
    narrow = array.cast(pa.float32())
    if not narrow.cast(pa.float64()).equals(array):
        raise _does_not_fit(name, spec, len(values))
    return narrow


def _does_not_fit(name: str, spec: ColumnSpec, count: int) -> UnsupportedTypeError:
    return UnsupportedTypeError(
        f"column {name}: of {count} values at least one is not a valid {spec.declared}.",
        code="unrepresentable_value",
        action="Fix the values, or exclude the table.",
    )

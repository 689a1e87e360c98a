"""Converts values of keys to the texts by which a source finds their rows again."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from replicator.model.schema import TableSchema
from replicator.plugins.kit.calendar import civil_from_days, days_from_civil
from replicator.plugins.source import Cursor

_DAY_US: Final = 86_400_000_000
_SECOND_US: Final = 1_000_000
_MOMENT: Final = re.compile(r"(-?\d{4,})-(\d\d)-(\d\d)(?: (\S+?))?Z?")


def cursors(columns: Sequence[pa.Array]) -> list[Cursor]:
    r"""Return the cursor of each row whose key columns are given in key order; rows with a null part are left out.

    For single rows that must be read once more, so it may work row by row. Binary parts are spelled `\x` and hex digits; dates and moments
    in ISO form, with as many digits of the year as it has, the year 1 BC as `0000`; those with a time zone in UTC, with `Z`; other types as
    Arrow writes their canonical value.
    """
    parts = [_texts(column) for column in columns]
    return [tuple(row) for row in zip(*parts, strict=True) if None not in row]


def keys_of(schema: TableSchema, wanted: Sequence[Cursor]) -> pa.RecordBatch:
    """Return the key columns (fields as in `schema.row_type`, in key order) of cursors that `cursors` made."""
    fields = [schema.row_type.field(name) for name in schema.key_fields]
    columns = [_values([cursor[position] for cursor in wanted], field.type) for position, field in enumerate(fields)]
    return pa.RecordBatch.from_arrays(columns, names=[field.name for field in fields])


def _texts(column: pa.Array) -> list[str | None]:
    kind = column.type
    if pa.types.is_binary(kind):
        return _each(column, lambda value: "\\x" + value.hex())
    if pa.types.is_date(kind):
        return _each(column.view(pa.int32()), _day)
    if pa.types.is_timestamp(kind):
        zone = "Z" if kind.tz else ""
        return _each(column.view(pa.int64()), lambda us: f"{_day(us // _DAY_US)} {_time(us % _DAY_US)}{zone}")
    if pa.types.is_time(kind):
        return _each(column.view(pa.int64()), _time)
    if pa.types.is_decimal(kind):
        return _each(column, lambda value: format(value, "f"))
    texts: list[str | None] = pc.cast(column, pa.string()).to_pylist()
    return texts


def _values(texts: Sequence[str], kind: pa.DataType) -> pa.Array:
    if pa.types.is_binary(kind):
        return pa.array([bytes.fromhex(text.removeprefix("\\x")) for text in texts], kind)
    if pa.types.is_date(kind):
        return pa.array([_moment_us(text) // _DAY_US for text in texts], pa.int32()).view(kind)
    if pa.types.is_timestamp(kind):
        return pa.array([_moment_us(text) for text in texts], pa.int64()).view(kind)
    if pa.types.is_time(kind):
        return pa.array([_time_us(text) for text in texts], pa.int64()).view(kind)
    return pa.array(texts, pa.string()).cast(kind)


def _each(column: pa.Array, spell: Callable[[Any], str]) -> list[str | None]:
    return [None if value is None else spell(value) for value in column.to_pylist()]


def _day(days: int) -> str:
    year, month, day = civil_from_days(days)
    return f"{'-' if year < 0 else ''}{abs(year):04}-{month:02}-{day:02}"


def _time(us: int) -> str:
    seconds, rest = divmod(us, _SECOND_US)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest:06}"


def _moment_us(text: str) -> int:
    found = _MOMENT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no date")
    year, month, day, time = found.groups()
    days = days_from_civil(int(year), int(month), int(day))
    return days * _DAY_US + (_time_us(time) if time else 0)


def _time_us(text: str) -> int:
    hours, minutes, rest = text.split(":")
    seconds, _, fraction = rest.partition(".")
    return (int(hours) * 3600 + int(minutes) * 60 + int(seconds)) * _SECOND_US + int((fraction or "0").ljust(6, "0"))

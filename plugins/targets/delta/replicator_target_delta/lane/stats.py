"""Statistics of a data file, as the log has them: readers skip files by them.

They have the meaning of those that Spark writes, and may be wider, never narrower: text is cut to 32 characters, moments are
in milliseconds. Where a bound cannot be told in JSON (NaN, years that Python's dates do not have), there is none.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from replicator.plugins.kit.folding.needed import EngineNeededError
from replicator_target_delta.lane.known import STATISTICS_COLUMNS, TargetColumn
from replicator_target_delta.shape.tables import listed_names

_COLUMNS_MAX: Final = 32
_TEXT_MAX: Final = 32
_LAST_CHARACTER: Final = "\U0010ffff"
_TIGHT: Final = re.compile(r',"tightBounds":true(?=[,}])')
_MILLISECOND_US: Final = 1_000


def columns_with_statistics(columns: Sequence[TargetColumn], properties: Mapping[str, str]) -> Sequence[TargetColumn]:
    """The columns that the table keeps statistics of."""
    listed = properties.get(STATISTICS_COLUMNS)
    if listed is None:
        return columns[:_COLUMNS_MAX]
    names = set(listed_names(listed))
    return [column for column in columns if column.name in names]


class Statistics:
    """`stats` of an `add` action, gathered while the file's rows are written.

    Args:
        columns: Columns of the file that have statistics.
    """

    def __init__(self, columns: Sequence[TargetColumn]) -> None:
        self._columns = columns
        self._rows = 0
        self._nulls = dict.fromkeys((column.name for column in columns), 0)
        self._extremes: dict[str, list[pa.Array]] = {column.name: [] for column in columns}
        self._boundless: set[str] = set()

    def add(self, rows: pa.Table) -> None:
        """Add some more of the file's rows."""
        self._rows += rows.num_rows
        for column in self._columns:
            values = rows.column(column.name)
            self._nulls[column.name] += values.null_count
            if _spelling(values.type) is None or values.null_count == len(values):
                continue
            if pa.types.is_floating(values.type) and not pc.all(pc.is_finite(values)).as_py():
                self._boundless.add(column.name)
                continue
            found = pc.min_max(values)
            self._extremes[column.name].append(pa.array([found["min"], found["max"]], values.type))

    def text(self) -> str:
        """The statistics of all the rows, as JSON."""
        lowest: dict[str, str] = {}
        highest: dict[str, str] = {}
        for column in self._columns:
            extremes = self._extremes[column.name]
            bounds = None if column.name in self._boundless or not extremes else _bounds(pa.chunked_array(extremes))
            if bounds is not None:
                lowest[column.physical], highest[column.physical] = bounds
        parts = {
            "numRecords": str(self._rows),
            "minValues": _object(lowest),
            "maxValues": _object(highest),
            "nullCount": _object({column.physical: str(self._nulls[column.name]) for column in self._columns}),
            "tightBounds": "true",
        }
        return _object(parts)


def loosened(stats: str) -> str:
    """The same statistics of a file that lost rows: its bounds may be wider than its rows are.

    Raises:
        EngineNeededError: They have another form than Delta writes.
    """
    found = json.loads(stats)
    if found.get("tightBounds") is False:
        return stats
    # Numbers are not parsed and printed again: a decimal has more digits than a float.
    rest = _TIGHT.sub("", stats, count=1).rstrip().removesuffix("}")
    loose = f'{rest},"tightBounds":false}}'
    # As pairs: not every reader takes a name that stands there twice.
    if [name for name, _ in _pairs(loose)] != [name for name in found if name != "tightBounds"] + ["tightBounds"]:
        raise EngineNeededError("a file's statistics have an unknown form")
    return loose


def _pairs(text: str) -> Sequence[tuple[str, object]]:
    """The names and values of a JSON object; none if it is something else."""
    try:
        pairs: Sequence[tuple[str, object]] = json.loads(text, object_pairs_hook=list)
    except ValueError:
        return []
    return pairs


def _object(parts: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in parts.items()) + "}"


def _bounds(values: pa.ChunkedArray) -> tuple[str, str] | None:
    """The lowest and the highest value as JSON; None if JSON cannot tell one."""
    spell = _spelling(values.type)
    assert spell is not None, "only such are gathered"
    try:
        found = pc.min_max(values)
        lowest, highest = spell(found["min"], False), spell(found["max"], True)
    except (ValueError, OverflowError, pa.ArrowInvalid):
        return None
    return None if lowest is None or highest is None else (lowest, highest)


def _spelling(type_: pa.DataType) -> Callable[[pa.Scalar, bool], str | None] | None:
    """A function that spells a bound of a type, rounded down or up; None for types that have no bounds."""
    if pa.types.is_integer(type_):
        return lambda value, _: str(value.as_py())
    if pa.types.is_floating(type_):
        return lambda value, upwards: _number(value.as_py(), upwards=upwards)
    if pa.types.is_decimal(type_):
        return lambda value, _: format(value.as_py(), "f")
    if pa.types.is_string(type_):
        return lambda value, upwards: _text(value.as_py(), upwards=upwards)
    if pa.types.is_date32(type_):
        return lambda value, _: f'"{_date(value.as_py())}"'
    if pa.types.is_timestamp(type_):
        suffix = "Z" if type_.tz else ""
        return lambda value, upwards: f'"{_moment(value.value, upwards=upwards)}{suffix}"'
    return None


def _number(value: float, *, upwards: bool) -> str | None:
    if value == 0:
        # Both zeros are one number, and may both be there; but some readers order them when they compare with a bound.
        return "0.0" if upwards else "-0.0"
    return json.dumps(value) if math.isfinite(value) else None


def _text(value: str, *, upwards: bool) -> str | None:
    if len(value) <= _TEXT_MAX:
        return json.dumps(value)
    cut = value[:_TEXT_MAX]
    if not upwards:
        return json.dumps(cut)
    return None if value[_TEXT_MAX] == _LAST_CHARACTER else json.dumps(cut + _LAST_CHARACTER)


def _date(value: date) -> str:
    return f"{value.year:04}-{value.month:02}-{value.day:02}"


def _moment(microseconds: int, *, upwards: bool) -> str:
    milliseconds, rest = divmod(microseconds, _MILLISECOND_US)
    milliseconds += bool(rest) and upwards
    value = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    clock = f"{value.hour:02}:{value.minute:02}:{value.second:02}.{value.microsecond // _MILLISECOND_US:03}"
    return f"{_date(value)}T{clock}"

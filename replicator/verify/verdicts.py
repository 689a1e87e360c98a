"""Results of verification."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa

from replicator.model.documents.verdict import Result
from replicator.model.schema import TableId
from replicator.plugins.kit.canonical import values
from replicator.plugins.source import Cursor

DIFFERENCES_MAX: Final = 1_000
"""Differences of one table that are described at most; all are counted."""
_SIZED: Final = re.compile(rb"([0-9]+):")
_NO_VALUE: Final = "?"
"""Prefix of the canonical form of a text that is no value of its type."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Extent(StrEnum):
    """Extent of a comparison: the whole table, a sample, the rows of keys, or rows that were changed since some time."""

    TABLE = "table"
    SAMPLE = "sample"
    KEYS = "keys"
    SINCE = "since"


class Kind(StrEnum):
    """Kind of difference of a row: it is not in the target, not in the source, or has other values."""

    MISSING = "missing"
    EXTRA = "extra"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A row that differs between source and target.

    Attributes:
        key: The row's key, by column; of a table without a key all its columns.
        rows: Number of rows of this key and kind: a row may be in the target several times.
        columns: Columns that differ, of a row that is on both sides.
        source, target: The values of these columns; of a row on one side only, of all its columns. Empty unless values are asked for.
        order: Sort key that puts differences into the order of their keys (`in_order`).
    """

    key: Mapping[str, str | None]
    kind: Kind
    rows: int = 1
    columns: tuple[str, ...] = ()
    source: Mapping[str, str | None] = field(default_factory=dict)
    target: Mapping[str, str | None] = field(default_factory=dict)
    order: tuple[tuple[int, Any], ...] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Numbers of rows that differ, by kind."""

    missing: int = 0
    extra: int = 0
    different: int = 0

    def __add__(self, other: Counts) -> Counts:
        """Return the sums of both."""
        return Counts(
            missing=self.missing + other.missing,
            extra=self.extra + other.extra,
            different=self.different + other.different,
        )

    @property
    def total(self) -> int:
        """Return the number of rows that differ."""
        return self.missing + self.extra + self.different


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of verifying one table.

    Attributes:
        scope: Extent that was compared, or should have been if the table was not verified. Row counts are of this extent alone.
        sample: Part of the table in a sample, in percent.
        keys: Number of rows looked for one by one, whether they exist or not.
        reason: Reason why it was not verified.
        action: The operator's next step.
        position: The sequence number at which the two sides were compared; None if they were not. If ranges were compared at several: the
            lowest, and `last_position` is the highest.
        ranges: Number of ranges of its key in which a whole table was compared; None: only some rows were.
        ranges_kept: Number of ranges that were not compared, because they had been before.
        differences: Differences, at most `DIFFERENCES_MAX`.
        not_compared: Columns that the target has from the source, but that could not be compared. With them nothing is EQUAL.
        row_keys: By id, the keys of rows that differ, up to the number to collect (`Judge.keys_max`). Empty where the key
            cannot be asked for: it has NULL, or something that is no value of its type. Such a row is in the target only.
        repaired: Differences that were repaired.
    """

    table: TableId
    result: Result
    scope: Extent = Extent.TABLE
    sample: float | None = None
    keys: int | None = None
    reason: str | None = None
    action: str | None = None
    position: int | None = None
    last_position: int | None = None
    ranges: int | None = None
    ranges_kept: int = 0
    rows_source: int | None = None
    rows_target: int | None = None
    counts: Counts = field(default_factory=Counts)
    differences: tuple[Difference, ...] = ()
    not_compared: tuple[str, ...] = ()
    row_keys: Mapping[str, Cursor] = field(default_factory=dict, repr=False)
    repaired: Counts | None = None

    @property
    def is_truncated(self) -> bool:
        """Return whether there are more differences than are described."""
        return self.counts.total > sum(one.rows for one in self.differences)


def shown(text: str | None, kind: pa.DataType) -> str | None:
    """Return a value in its canonical form as a person reads it. None for NULL.

    Text that is no value of its type, written by others into a target with another type, is returned unchanged.
    """
    if text is None:
        return None
    if text.startswith(_NO_VALUE):
        return text.removeprefix(_NO_VALUE)
    return next((show(text, kind) for applies, show in _SHOWN if applies(kind)), text)


def in_order(text: str | None, kind: pa.DataType) -> tuple[int, Any]:
    """Return the sort key of a column's value in canonical form: NULL first, numbers and moments by size, texts by their bytes."""
    if text is None:
        return 0, 0
    found = shown(text, kind) or ""
    is_number = not (pa.types.is_list(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind))
    if not is_number or text.startswith(_NO_VALUE):
        return 2, found.encode()
    if pa.types.is_floating(kind):
        number = float(found)
        return (2, b"") if math.isnan(number) else (1, number)
    return 1, Decimal(text)


def _elements(text: str) -> Iterator[str]:
    """Yield the canonical forms of a list's elements; nothing for NULL. Texts have their length in front, as they may have commas."""
    data = text.encode()[1:-1]
    while data:
        sized = _SIZED.match(data)
        end = sized.end() + int(sized[1]) if sized else data.index(b",")
        yield data[:end].decode()
        data = data[end + 1 :]


def _element(text: str, kind: pa.DataType) -> str:
    if not text:
        return "NULL"
    found = shown(text, kind) or ""
    return json.dumps(found, ensure_ascii=False) if pa.types.is_string(kind) else found


def _text(text: str, _: pa.DataType) -> str:
    for mark in (":", "$"):
        size, found, rest = text.partition(mark)
        if found and size.isdecimal():
            return rest
    size, _mark, digest = text.partition("#")
    return f"{size} bytes, SHA-256 begins with {digest}"


def _list(text: str, kind: pa.DataType) -> str:
    return f"[{', '.join(_element(one, kind.value_type) for one in _elements(text))}]"


def _clock(microseconds: int) -> str:
    """Format a time of day; also one out of range that others have written: 99:00:00."""
    seconds, fraction = divmod(microseconds, 1_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:06}" if fraction else text


def _day(days: int) -> str:
    try:
        return str(date(1970, 1, 1) + timedelta(days=days))
    except OverflowError:
        return f"{days} days after 1970-01-01"


def _moment(microseconds: int, kind: pa.TimestampType) -> str:
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return f"{microseconds} µs after 1970-01-01"
    return str(moment if kind.tz else moment.replace(tzinfo=None))


_SHOWN: Final[Sequence[tuple[Callable[[pa.DataType], bool], Callable[[str, pa.DataType], str]]]] = (
    (pa.types.is_boolean, lambda text, _: "true" if text == "1" else "false"),
    (pa.types.is_floating, lambda text, kind: str(values([text], kind)[0].as_py())),
    (pa.types.is_list, _list),
    (pa.types.is_string, _text),
    (pa.types.is_binary, _text),
    (pa.types.is_date, lambda text, _: _day(int(text))),
    (pa.types.is_timestamp, lambda text, kind: _moment(int(text), kind)),
    (pa.types.is_time, lambda text, _: _clock(int(text))),
)
"""Per kind of type: a predicate, and the function that formats its values."""

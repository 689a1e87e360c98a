"""Dates and times of fixed size, all rows at once; decoders as in `numeric`, TIME's gives text.

Zero, partial and otherwise impossible dates (`0000-00-00`, `2024-02-00`, `2024-02-31` under ALLOW_INVALID_DATES) cannot be held.
Source: MySQL `sql-common/my_time.cc`, MariaDB `sql/compat56.cc`: the same packed forms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replicator.plugins.kit.arrow import Bools, Longs, binary_array
from replicator_source_mysql.binlog.buffer import Buffer
from replicator_source_mysql.binlog.numeric import FixedDecoder

TextDecoder = Callable[[Buffer, Longs], pa.Array]

_MONTHS: Final = 12
_MONTH_SLOTS: Final = 13
_YEAR_MAX: Final = 9999
_SECOND_US: Final = 1_000_000
_DAY_SECONDS: Final = 86_400
_DAYS_IN_MONTH: Final = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 0, 0, 0])
_FEBRUARY: Final = 2
_HOURS_MAX: Final = 838


def fraction_size(digits: int) -> int:
    """Bytes of a fraction of `digits` digits."""
    return (digits + 1) // 2


def date(buffer: Buffer, offsets: Longs) -> tuple[npt.NDArray[Any], Bools | None]:
    """DATE: 3 bytes, little-endian: day in 5 bits, month in 4, year; as days since 1970."""
    packed = buffer.little(offsets, 3).view(np.int64)
    days, unheld = days_of(packed >> 9, packed >> 5 & 15, packed & 31)
    return days.astype(np.int32), unheld


def datetime(digits: int) -> FixedDecoder:
    """DATETIME(f): 5 bytes, big-endian, and the fraction; as microseconds since 1970."""

    def decode(buffer: Buffer, offsets: Longs) -> tuple[npt.NDArray[Any], Bools | None]:
        packed = buffer.big(offsets, 5).view(np.int64) - 0x80_0000_0000
        if (packed < 0).any():
            raise ValueError("a negative DATETIME")
        clock = packed & 0x1FFFF
        months = packed >> 22
        days, unheld = days_of(months // _MONTH_SLOTS, months % _MONTH_SLOTS, packed >> 17 & 31)
        seconds = _seconds(clock >> 12, clock >> 6 & 63, clock & 63)
        return (days * _DAY_SECONDS + seconds) * _SECOND_US + _fraction(buffer, offsets + 5, digits), unheld

    return decode


def timestamp(digits: int) -> FixedDecoder:
    """TIMESTAMP(f): 4 bytes of seconds since 1970, big-endian, and the fraction; 0 is the zero date."""

    def decode(buffer: Buffer, offsets: Longs) -> tuple[npt.NDArray[Any], Bools | None]:
        moments = buffer.big(offsets, 4).view(np.int64) * _SECOND_US + _fraction(buffer, offsets + 4, digits)
        is_zero = moments == 0
        return moments, is_zero if is_zero.any() else None

    return decode


def old_timestamp(buffer: Buffer, offsets: Longs) -> tuple[npt.NDArray[Any], Bools | None]:
    """TIMESTAMP of tables from before MySQL 5.6, or MariaDB without `mysql56_temporal_format`: 4 bytes, little-endian."""
    seconds = buffer.little(offsets, 4).view(np.int64)
    is_zero = seconds == 0
    return seconds * _SECOND_US, is_zero if is_zero.any() else None


def old_datetime(buffer: Buffer, offsets: Longs) -> tuple[npt.NDArray[Any], Bools | None]:
    """DATETIME of such tables: YYYYMMDDHHMMSS as a number of 8 bytes."""
    number = buffer.little(offsets, 8).view(np.int64)
    if (number < 0).any():
        raise ValueError("a negative DATETIME")
    day, clock = np.divmod(number, 1_000_000)
    days, unheld = days_of(day // 10_000, day // 100 % 100, day % 100)
    seconds = _seconds(clock // 10_000, clock // 100 % 100, clock % 100)
    return (days * _DAY_SECONDS + seconds) * _SECOND_US, unheld


def time(digits: int) -> TextDecoder:
    """TIME(f): 3 bytes and the fraction, big-endian, one signed number; as `[-]HH:MM:SS[.f…]` with f digits, hours to 838."""
    size = fraction_size(digits)
    bits = 8 * size

    def decode(buffer: Buffer, offsets: Longs) -> pa.Array:
        packed = buffer.big(offsets, 3 + size).view(np.int64) - (0x80_0000 << bits)
        amount = np.abs(packed)
        whole, fraction = amount >> bits, amount & ((1 << bits) - 1)
        if size and (fraction >= 100**size).any():
            raise ValueError("more digits than a fraction has")
        return _time_text(packed < 0, whole >> 12 & 1023, whole >> 6 & 63, whole & 63, fraction, digits)

    return decode


def old_time(buffer: Buffer, offsets: Longs) -> pa.Array:
    """TIME of old tables: HHMMSS as a signed number of 3 bytes, little-endian."""
    number = (buffer.little(offsets, 3) << np.uint64(40)).view(np.int64) >> 40
    amount = np.abs(number)
    return _time_text(number < 0, amount // 10_000, amount // 100 % 100, amount % 100, amount * 0, 0)


def _time_text(negative: Bools, hours: Longs, minutes: Longs, seconds: Longs, fraction: Longs, digits: int) -> pa.Array:
    if (hours > _HOURS_MAX).any():
        raise ValueError("more hours than a TIME has")
    _seconds(hours * 0, minutes, seconds)
    columns = [np.where(negative, ord("-"), 0), np.where(hours > 99, hours // 100 + ord("0"), 0)]  # noqa: PLR2004
    for part, separator in ((hours % 100, ":"), (minutes, ":"), (seconds, "." if digits else "")):
        columns += [part // 10 + ord("0"), part % 10 + ord("0")]
        if separator:
            columns.append(np.full(len(part), ord(separator)))
    stored = 2 * fraction_size(digits)
    columns += [fraction // 10 ** (stored - 1 - i) % 10 + ord("0") for i in range(digits)]
    letters = np.stack(columns, axis=1).astype(np.uint8) if columns else np.zeros((0, 0), np.uint8)
    is_there = letters != 0
    return binary_array(is_there.sum(axis=1), letters[is_there]).cast(pa.string())


def _fraction(buffer: Buffer, offsets: Longs, digits: int) -> Longs:
    """The fraction in microseconds."""
    size = fraction_size(digits)
    if not size:
        return np.zeros(len(offsets), np.int64)
    fraction = buffer.big(offsets, size).view(np.int64)
    if (fraction >= 100**size).any():
        raise ValueError("more digits than a fraction has")
    us: Longs = fraction * 100 ** (3 - size)
    return us


def _seconds(hours: Longs, minutes: Longs, seconds: Longs) -> Longs:
    if (hours > 23).any() or (minutes > 59).any() or (seconds > 59).any():  # noqa: PLR2004  (a day's clock)
        raise ValueError("not a time of day")
    total: Longs = (hours * 60 + minutes) * 60 + seconds
    return total


def days_of(year: Longs, month: Longs, day: Longs) -> tuple[Longs, Bools | None]:
    """Days since 1970 in the proleptic Gregorian calendar, and the mask of those that are invalid (None: none)."""
    if (month > _MONTHS).any() or (year > _YEAR_MAX).any():
        raise ValueError("not a date")
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    unheld = (month == 0) | (day == 0) | (day > _DAYS_IN_MONTH[month] + ((month == _FEBRUARY) & leap))
    # Years begin in March, so that the leap day is the last.
    shifted = np.where(month > _FEBRUARY, year, year - 1)
    era_year = shifted % 400
    from_march = (month + 9) % _MONTHS
    day_of_year = (153 * from_march + 2) // 5 + day - 1
    day_of_era = era_year * 365 + era_year // 4 - era_year // 100 + day_of_year
    days = shifted // 400 * 146_097 + day_of_era - 719_468
    return (np.where(unheld, 0, days), unheld) if unheld.any() else (days, None)

"""Dates and times between Python and TDS: days, units of 100 ns, and the 1/300 s of the old `datetime`."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Final

from replicator_testbed.sqlserver.sqltypes import time_size

TICKS_PER_SECOND: Final = 10_000_000
TICKS_PER_DAY: Final = 86_400 * TICKS_PER_SECOND
TICKS_PER_MINUTE: Final = 60 * TICKS_PER_SECOND
UNITS_PER_SECOND: Final = 300
"""Of `datetime`, which knows .000, .003 and .007 s [DOC: datetime, rounding of fractional second precision]."""

_EPOCH: Final = dt.date(1, 1, 1)
DAYS_MAX: Final = (dt.date.max - _EPOCH).days
_DAY_1900: Final = (dt.date(1900, 1, 1) - _EPOCH).days


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """A date, a time or both, as exactly as SQL Server keeps them.

    Attributes:
        days: Since 0001-01-01; 0 for a time alone.
        ticks: Of 100 ns since midnight; in UTC where there is an offset.
        offset: Minutes east of UTC, of datetimeoffset.
    """

    days: int
    ticks: int
    offset: int = 0

    @classmethod
    def of(cls, value: dt.date | dt.time) -> Moment:
        """The moment of a value of Python, an aware one in UTC with its offset."""
        if isinstance(value, dt.time):
            return cls(0, _ticks(value))
        if not isinstance(value, dt.datetime):
            return cls((value - _EPOCH).days, 0)
        minutes = 0
        if (offset := value.utcoffset()) is not None:
            minutes = round(offset.total_seconds() / 60)
            local = cls((value.date() - _EPOCH).days, _ticks(value.time()))
            return local.moved(-minutes, minutes)
        return cls((value.date() - _EPOCH).days, _ticks(value.time()), minutes)

    def moved(self, minutes: int, offset: int) -> Moment:
        """The moment so many minutes later, with another offset."""
        days, ticks = divmod(self.days * TICKS_PER_DAY + self.ticks + minutes * TICKS_PER_MINUTE, TICKS_PER_DAY)
        return Moment(days, ticks, offset)

    @property
    def date(self) -> dt.date:
        """The date."""
        return _EPOCH + dt.timedelta(days=self.days)

    @property
    def time(self) -> dt.time:
        """The time; what is below a microsecond is cut off."""
        seconds, fraction = divmod(self.ticks, TICKS_PER_SECOND)
        return dt.time(seconds // 3600, seconds // 60 % 60, seconds % 60, fraction // 10)

    @property
    def datetime(self) -> dt.datetime:
        """Both, as they are: in UTC where there is an offset."""
        return dt.datetime.combine(self.date, self.time)

    def text(self, *, scale: int = 7) -> str:
        """As SQL Server writes a datetime2."""
        fraction = f".{self.ticks % TICKS_PER_SECOND:07}"[: scale + 1] if scale else ""
        return f"{self.date.isoformat()} {self.time.replace(microsecond=0).isoformat()}{fraction}"

    def offset_text(self, *, scale: int = 7) -> str:
        """As SQL Server writes a datetimeoffset: the local time, then the offset."""
        sign, minutes = ("-", -self.offset) if self.offset < 0 else ("+", self.offset)
        return f"{self.moved(self.offset, 0).text(scale=scale)} {sign}{minutes // 60:02}:{minutes % 60:02}"


def encode_date(moment: Moment) -> bytes:
    """The three bytes of `date`."""
    return moment.days.to_bytes(3, "little")


def encode_time(moment: Moment, scale: int) -> bytes:
    """The bytes of `time`; digits beyond the scale are cut off: the value was rounded when it was stored."""
    units: int = moment.ticks // 10 ** (7 - scale)
    return units.to_bytes(time_size(scale), "little")


def encode_datetime(moment: Moment) -> bytes:
    """The eight bytes of `datetime`: days since 1900, and 1/300 s."""
    days, units = datetime_units(moment)
    return days.to_bytes(4, "little", signed=True) + units.to_bytes(4, "little")


def encode_smalldatetime(moment: Moment) -> bytes:
    """The four bytes of `smalldatetime`: days since 1900, and minutes."""
    return (moment.days - _DAY_1900).to_bytes(2, "little") + (moment.ticks // TICKS_PER_MINUTE).to_bytes(2, "little")


def datetime_units(moment: Moment) -> tuple[int, int]:
    """Days since 1900 and 1/300 s, rounded to the nearest; the last half unit of a day is the next day's midnight."""
    units = (2 * moment.ticks * UNITS_PER_SECOND + TICKS_PER_SECOND) // (2 * TICKS_PER_SECOND)
    days, units = divmod(units, 86_400 * UNITS_PER_SECOND)
    return moment.days - _DAY_1900 + days, units


def decode_date(content: bytes) -> Moment:
    """What `encode_date` made."""
    return Moment(int.from_bytes(content, "little"), 0)


def decode_time(content: bytes, scale: int) -> Moment:
    """What `encode_time` made."""
    return Moment(0, int.from_bytes(content, "little") * 10 ** (7 - scale))


def decode_datetime(content: bytes) -> Moment:
    """What `encode_datetime` or `encode_smalldatetime` made: their lengths differ."""
    half = len(content) // 2
    if half == 2:
        days, minutes = int.from_bytes(content[:2], "little"), int.from_bytes(content[2:], "little")
        return Moment(days + _DAY_1900, minutes * TICKS_PER_MINUTE)
    days = int.from_bytes(content[:half], "little", signed=True)
    units = int.from_bytes(content[half:], "little")
    return Moment(days + _DAY_1900, units * TICKS_PER_SECOND // UNITS_PER_SECOND)


def decode_datetime2(content: bytes, scale: int) -> Moment:
    """A time followed by a date."""
    time, date = decode_time(content[:-3], scale), decode_date(content[-3:])
    return Moment(date.days, time.ticks)


def decode_datetimeoffset(content: bytes, scale: int) -> Moment:
    """A time and a date in UTC, followed by the offset in minutes."""
    moment = decode_datetime2(content[:-2], scale)
    return Moment(moment.days, moment.ticks, int.from_bytes(content[-2:], "little", signed=True))


def _ticks(time: dt.time) -> int:
    seconds = (time.hour * 60 + time.minute) * 60 + time.second
    return seconds * TICKS_PER_SECOND + time.microsecond * 10

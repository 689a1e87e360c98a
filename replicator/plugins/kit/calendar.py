"""Days of the proleptic Gregorian calendar, for any year: `datetime` ends at the years 1 and 9999."""

from __future__ import annotations

from typing import Final

import numpy as np

_MONTHS: Final = 12


def days_from_civil(year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01 in the proleptic Gregorian calendar; year 0 is 1 BC. ValueError if there is no such day."""
    days = _month_start((year - 1970) * _MONTHS + month - 1) + day - 1
    if civil_from_days(days) != (year, month, day):
        raise ValueError("no such day")
    return days


def civil_from_days(days: int) -> tuple[int, int, int]:
    """Return year, month and day: the inverse of `days_from_civil`."""
    month = int(np.datetime64(days, "D").astype("M8[M]").astype(np.int64))
    return 1970 + month // _MONTHS, month % _MONTHS + 1, days - _month_start(month) + 1


def _month_start(month: int) -> int:
    return int(np.datetime64(month, "M").astype("M8[D]").astype(np.int64))

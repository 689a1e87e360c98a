"""Times that the server keeps as `datetime`, which counts 1/300 s.

FreeTDS gives .003 s where Microsoft's driver gives .003333 s. A value that is compared with a stored time is therefore asked for in
milliseconds, as `datetime2(3)`, so that a change of `source.driver` does not make another time of it.
"""

from __future__ import annotations

from datetime import datetime, timedelta


def in_milliseconds(moment: datetime) -> datetime:
    """Return a stored time, perhaps as Microsoft's driver gave it once, in the milliseconds that the server gives now."""
    return moment.replace(microsecond=0) + timedelta(milliseconds=round(moment.microsecond / 1000))

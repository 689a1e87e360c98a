"""Quiet hours. Pure."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

from replicator.config import AlertsConfig, QuietHours
from replicator.config.alerts import DAYS
from replicator.model.documents.alerts import AlertKind


def is_quiet(config: AlertsConfig, kind: AlertKind, now: datetime) -> bool:
    """Return whether an alert of this kind waits now, by the wall clock of the configured zone."""
    local = now.astimezone(ZoneInfo(config.time_zone))
    return any((not hours.kinds or kind in hours.kinds) and _holds(hours, local) for hours in config.quiet_hours)


def _holds(hours: QuietHours, local: datetime) -> bool:
    start, end, here = time.fromisoformat(hours.start), time.fromisoformat(hours.end), local.time()
    today, yesterday = DAYS[local.weekday()], DAYS[(local - timedelta(days=1)).weekday()]
    if start < end:
        return today in hours.days and start <= here < end
    return (today in hours.days and here >= start) or (yesterday in hours.days and here < end)

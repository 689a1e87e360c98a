"""Status of the source's log, in addition to capture's reports. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from replicator.model.documents.status import HeadroomStatus
from replicator.model.processes.reports import CaptureReport
from replicator.state.records import Reported

_INTERVALS: Final = 3
_SILENT_MIN_S: Final = 10.0


def is_alive(reported: Reported[CaptureReport] | None, now: datetime) -> bool | None:
    """Return whether the log told anything within three of its heartbeats; None while capture does not report, or without heartbeats."""
    if reported is None or reported.report.silent_s is None or reported.report.heartbeat_s is None:
        return None
    silent_s = reported.report.silent_s + (now - reported.at).total_seconds()
    return silent_s <= max(_SILENT_MIN_S, _INTERVALS * reported.report.heartbeat_s)


def headroom(
    reported: Reported[CaptureReport] | None, time_left_s: float | None, now: datetime
) -> HeadroomStatus | None:
    """Return how far the source's log is from being lost, by its last measure; None if there is no limit, or if it is unknown.

    While capture is down, the log is taken to grow as before.
    """
    if reported is None:
        return None
    report = reported.report
    if time_left_s is not None and report.keeps_log_s:
        share = min(1.0, time_left_s / report.keeps_log_s)
        return HeadroomStatus(seconds=time_left_s, bytes=None, share=round(share, 4))
    if report.log_bytes_left is None or not report.log_bytes_max:
        return None
    rate = report.log_bytes_per_s or 0.0
    left = max(0.0, report.log_bytes_left - rate * max(0.0, (now - reported.at).total_seconds()))
    return HeadroomStatus(
        seconds=round(left / rate, 1) if rate else None,
        bytes=round(left),
        share=round(min(1.0, left / report.log_bytes_max), 4),
    )

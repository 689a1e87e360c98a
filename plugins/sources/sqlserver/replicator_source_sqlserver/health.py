"""Whether the capture job works. A job that has stopped gives no error: the positions just stand still."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import pyodbc

from replicator.model.errors import SourceUnavailableError
from replicator_source_sqlserver.connection import Connection
from replicator_source_sqlserver.errors import is_unknowable

HEARTBEAT_S: Final = 10.0
"""How often the signal table is written, if there is one."""
SIGNAL_S: Final = 60.0
"""How long a write of ours may take until it is captured."""
IDLE_S: Final = 610.0
"""Twice the time after which the job makes an entry for a database where nothing is written."""

# Its message may have values of rows.
_ERRORS: Final = "SELECT TOP (1) error_number FROM sys.dm_cdc_errors ORDER BY entry_time DESC"


class CaptureHealth:
    """Watches the position of the capture job, and has the signal table written.

    Args:
        beat: Writes into the signal table; None if there is none.
    """

    def __init__(self, beat: Callable[[], None] | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._beat, self._clock = beat, clock
        self._head: bytes | None = None
        self._moved_at = clock()
        self._beaten_at: float | None = None
        self._unanswered_since: float | None = None

    def see(self, connection: Connection, head: bytes | None) -> None:
        """Take note of the position.

        Raises:
            SourceUnavailableError: `capture_stalled`.
        """
        now = self._clock()
        if head != self._head:
            self._head, self._moved_at, self._unanswered_since = head, now, None
        if self._beat is not None and (self._beaten_at is None or now - self._beaten_at >= HEARTBEAT_S):
            self._beat()
            self._beaten_at = now
            if self._unanswered_since is None:
                self._unanswered_since = now
        # While nobody looks, nothing is written, and nothing has to be captured.
        since = self._moved_at if self._beat is None else self._unanswered_since
        if since is not None and now - since > (IDLE_S if self._beat is None else SIGNAL_S):
            raise _stalled(connection, now - since)


def _stalled(connection: Connection, seconds: float) -> SourceUnavailableError:
    number = _last_error(connection)
    reason = f" Its last error has the number {number} (sys.dm_cdc_errors)." if number is not None else ""
    return SourceUnavailableError(
        f"the capture job has captured nothing for {seconds:.0f} s.{reason}",
        code="capture_stalled",
        action="See that SQL Server Agent runs and the job exists (it does not after a failover): EXEC sys.sp_cdc_add_job @job_type ="
        " N'capture'; EXEC sys.sp_cdc_start_job @job_type = N'capture'.",
    )


def _last_error(connection: Connection) -> int | None:
    """The number of the job's last error; None if there is none, or if the account may not know."""
    try:
        rows = connection.rows(_ERRORS)
    except pyodbc.Error as error:
        if not is_unknowable(error):
            raise
        return None
    return int(rows[0][0]) if rows else None

"""Watch that the capture job works, and keeps up. A job that has stopped gives no error: the positions just stand still.

Three things are told apart. The position stands still although something has to be captured (`capture_stalled`), with an error of the job
since its last good scan (`capture_failing`): both end the attempt, and the retry policy decides. The position moves, and yet what we wrote
is not back (`capture_behind`): the job works off earlier commits, so the status tells it, and nothing fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

import pyodbc

from replicator.model.errors import SourceUnavailableError
from replicator_source_sqlserver.catalogue.server import read_capture_error
from replicator_source_sqlserver.cdc import queries
from replicator_source_sqlserver.config import IDLE_S
from replicator_source_sqlserver.connecting.connection import Connection
from replicator_source_sqlserver.connecting.errors import is_blocked, is_unknowable

HEARTBEAT_S: Final = 10.0
"""Seconds between two writes into the mark table, if there is one, and between two looks at the returned writes."""
BEHIND_S: Final = 30.0
"""Age of a write of ours, not captured yet, from which on the status tells it."""
FAILING_S: Final = 30.0
"""Time for which the position must stand still until an error of the job counts: a scan that failed once may be repeated."""
MARKED_S: Final = 60.0
"""Time for which the position may stand still after a write of ours. The write itself may take longer while the job moves."""

_POLLS: Final = 3
"""Looks that a job which looks at the log less often than usual may miss."""

# Azure SQL Database has no such settings: its scheduler runs about every 20 s, by the manual.
_POLLING: Final = """
SELECT j.pollinginterval FROM msdb.dbo.cdc_jobs j WHERE j.database_id = DB_ID() AND j.job_type = N'capture' AND j.continuous = 1
"""

T = TypeVar("T")
Returned = Callable[[Connection, bytes, bytes], int | None]
"""Returns the number of our last write that was captured after one position and up to another, -1 for none; None if it is unknown."""


class CaptureHealth:
    """Watches the position of the capture job, and has the mark table written.

    Args:
        beat: Writes into the mark table, and returns the write's number, which grows; None if there is no such table.
        returned: See `Returned`.
        head: The position of the capture job when the attempt begins.
        stands_s: The time for which it has captured nothing although something was to be captured, as far as the server shows it. An
            attempt that begins while the job stands still knows by it what the one before had found.
        polling_s: The time that the capture job waits between two looks at the server's log.
    """

    def __init__(
        self,
        beat: Callable[[], int] | None,
        *,
        returned: Returned = lambda *_: None,
        head: bytes | None = None,
        stands_s: float = 0.0,
        polling_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._beat, self._returned, self._clock = beat, returned, clock
        self._head = head
        self._limit_s = max(IDLE_S if beat is None else MARKED_S, _POLLS * polling_s)
        self._moved_at = clock()
        self._looked_at: float | None = None
        self._unanswered_since: float | None = None
        self._awaited: tuple[int, float] | None = None
        """The number of the write that is awaited, and the time at which it was made."""
        self._checked: bytes | None = None
        """The position up to which it was not found."""
        if beat is not None and stands_s > 0.0:
            # A write of an earlier attempt is not back; any of this one stands for it. Without such a table an old commit proves nothing.
            self._moved_at = since = self._moved_at - stands_s
            self._unanswered_since, self._awaited, self._checked = since, (0, since), head
        self._late_s, self._last_late_s = stands_s, 0.0
        self._blocked_since: float | None = None

    @property
    def reasons(self) -> list[str]:
        """The reasons why the reader waits, for the status; may be asked from any thread."""
        blocked_since = self._blocked_since
        found = behind(max(self._late_s, self._last_late_s), has_mark_table=self._beat is not None)
        if blocked_since is not None and (blocked_s := self._clock() - blocked_since) >= BEHIND_S:
            found.append(f"a lock on tables of change data capture, for {blocked_s:.0f} s (lock_timeout)")
        return found

    def see(self, connection: Connection, head: bytes | None) -> None:
        """Note the position.

        Raises:
            SourceUnavailableError: `capture_stalled`, `capture_failing`.
        """
        now = self._clock()
        if head != self._head:
            self._head, self._moved_at, self._unanswered_since = head, now, None
        if self._looked_at is None or now - self._looked_at >= HEARTBEAT_S:
            self._looked_at = now
            self._verify_not_failing(connection, now)
            if self._beat is None:
                self._late_s = queries.age(connection) or 0.0
            else:
                self._look_for_write(connection, now)
                self._write(self._beat, now)
        self.verify_moving(connection)

    def verify_moving(self, connection: Connection) -> None:
        """Raise if the position has stood still for too long.

        Raises:
            SourceUnavailableError: `capture_stalled`, `capture_failing`.
        """
        now = self._clock()
        # While nobody looks, nothing is written, and nothing has to be captured.
        since = self._moved_at if self._beat is None else self._unanswered_since
        if since is not None and now - since > self._limit_s:
            self._verify_not_failing(connection, now)
            raise _stalled(now - since)

    def patiently(self, poll: Callable[[], T]) -> T | None:
        """Return the result of a poll; None if it had to give up on a lock.

        Without row versions the rows that a scan of the capture job writes are locked until it ends, with the highest position. That is
        as if nothing had been captured yet.

        Raises:
            pyodbc.Error: The poll gave up on locks for as long as the position may stand still.
        """
        try:
            found = poll()
        except pyodbc.Error as error:
            now = self._clock()
            self._blocked_since = now if self._blocked_since is None else self._blocked_since
            if not is_blocked(error) or now - self._blocked_since > self._limit_s:
                raise
            return None
        self._blocked_since = None
        return found

    def _write(self, beat: Callable[[], int], now: float) -> None:
        number = beat()
        if self._unanswered_since is None:
            self._unanswered_since = now
        if self._awaited is None:
            self._awaited, self._checked = (number, now), self._head

    def _look_for_write(self, connection: Connection, now: float) -> None:
        """Look for the awaited write: one at a time, however far the job lags."""
        if self._awaited is None:
            return
        number, written_at = self._awaited
        if self._head is not None and self._head != self._checked:
            found = self._returned(connection, self._checked or bytes(len(self._head)), self._head)
            self._checked = self._head
            if found is None or found >= number:
                # It came at some time since it was last found missing.
                self._last_late_s, self._late_s, self._awaited = (0.0 if found is None else self._late_s), 0.0, None
                return
        self._late_s = now - written_at

    def _verify_not_failing(self, connection: Connection, now: float) -> None:
        stood_s = now - self._moved_at
        if stood_s < FAILING_S or (number := read_capture_error(connection)) is None:
            return
        raise SourceUnavailableError(
            f"The capture job fails with error {number} since its last good scan, and has captured nothing for {stood_s:.0f} s.",
            code="capture_failing",
            action="Fix what `SELECT * FROM sys.dm_cdc_errors` says. Replicator continues once the capture job does.",
        )


def polling_s(connection: Connection) -> float:
    """Return the seconds between two looks of the capture job at the server's log; 0 if they are unknown, or if a schedule runs it."""
    try:
        rows = connection.rows(_POLLING)
    except pyodbc.Error as error:
        if not is_unknowable(error):
            raise
        return 0.0
    return float(rows[0][0]) if rows else 0.0


def behind(late_s: float, *, has_mark_table: bool) -> list[str]:
    """Return the status's text about the lag of a capture job; none as long as the lag is usual."""
    if late_s < (BEHIND_S if has_mark_table else IDLE_S):
        return []
    return [f"the capture job, which is at least {late_s:.0f} s behind (capture_behind)"]


def _stalled(seconds: float) -> SourceUnavailableError:
    return SourceUnavailableError(
        f"The capture job has captured nothing for {seconds:.0f} s.",
        code="capture_stalled",
        action="See that SQL Server Agent runs and the job exists (it does not after a failover): EXEC sys.sp_cdc_add_job @job_type ="
        " N'capture'; EXEC sys.sp_cdc_start_job @job_type = N'capture'. A database with a publication has none: start its Log Reader"
        " Agent.",
    )

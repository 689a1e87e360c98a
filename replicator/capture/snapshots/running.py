"""A snapshot that runs in this process, step by step. Pure: the driver (`snapshots.py`) reads, writes and frees.

    DUE, WAITING ── Scheduled ──▶ READING ── Ended ──▶ MARKING, or DUE if nothing is left to emit
    READING, MARKING ── Emitted ──▶ COMPLETED, or the same until the last read that MARKING waits for: then DUE or WAITING
    READING, MARKING ── WholeGood ──▶ WRITING ── Emitted ──▶ COMPLETED
    READING, MARKING ── Lost ──▶ WAITING ◀── Refused ── READING ── Failed ──▶ FAILED
    READING ↺ ChunkTaken, WholeBegan, WholeTaken

Only the progress in the table's record is durable: after a crash the snapshot continues from it, at DUE.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from replicator.capture.snapshots.chunks import ChunkJob, ChunkRead, TableRead
from replicator.capture.snapshots.spool import Spool
from replicator.capture.tables import TrackedTable
from replicator.capture.window import Read
from replicator.model.errors import SchemaConflictError, TableError, TransientError
from replicator.model.processes.reports import RunningStep
from replicator.model.schema import TableId

_DOUBLINGS_MAX: Final = 20


@dataclass(frozen=True, eq=False, slots=True)
class ChunkAtMark:
    """A chunk that waits for its mark."""

    result: ChunkRead
    read: Read


AtMark = ChunkAtMark | TableRead
"""A piece that waits for its mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A table's snapshot.

    Attributes:
        job: What the reader reads, or has read, since READING.
        at_mark: What was read and waits for its mark, in the order in which it was read.
        log: Log rows of a table without a key since its read was asked for.
        whole: What a read of a table without a key sees, once that is known.
        lost: How many reads were lost in a row.
        not_before: On the monotonic clock: when the next piece may be read.
        refusal: Why the source did not let it be read the last time.
        refused_since: When the first of the refusals in a row came.
        error: Why it FAILED.
    """

    tracked: TrackedTable
    step: RunningStep = RunningStep.DUE
    job: ChunkJob | None = None
    at_mark: tuple[AtMark, ...] = ()
    log: Spool | None = None
    whole: Read | None = None
    lost: int = 0
    not_before: float = 0.0
    refusal: TransientError | SchemaConflictError | None = None
    refused_since: float | None = None
    error: TableError | None = None

    @property
    def table(self) -> TableId:
        """Its table."""
        return self.tracked.table

    def is_due(self, now: float) -> bool:
        """Return whether its next piece may be read."""
        return self.step in (RunningStep.DUE, RunningStep.WAITING) and self.not_before <= now

    def pause_s(self, first_s: float, max_s: float) -> float:
        """Return the seconds to wait after one more lost read: each time twice as long."""
        return min(first_s * 2.0 ** min(self.lost, _DOUBLINGS_MAX), max_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """The reader was given a job. `log`: only of a table without a key."""

    job: ChunkJob
    log: Spool | None = None


@dataclass(frozen=True, slots=True)
class ChunkTaken:
    """A chunk was read, and the window has it."""

    chunk: ChunkAtMark


@dataclass(frozen=True, eq=False, slots=True)
class WholeBegan:
    """The read of a table without a key has begun, and the window has what it sees."""

    whole: Read


@dataclass(frozen=True, slots=True)
class WholeTaken:
    """A table without a key was read."""

    rows: TableRead


@dataclass(frozen=True, slots=True)
class Ended:
    """The job ended, and everything that it read is here."""


@dataclass(frozen=True, slots=True)
class WholeGood:
    """The mark of the read of a table without a key was delivered, and its rows may be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Emitted:
    """Take in that the piece that waited for its mark was written.

    `read_again_at`: it did not see all that it had to: the next piece is not read before.
    """

    read: AtMark
    is_complete: bool
    read_again_at: float | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """Take in that the rows that were read are of no use: they are read again, not before this moment."""

    not_before: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The source refused the read for a passing reason of this table."""

    error: TransientError | SchemaConflictError
    at: float
    not_before: float


@dataclass(frozen=True, slots=True)
class Failed:
    """The table cannot be read."""

    error: TableError


Event = Scheduled | ChunkTaken | WholeBegan | WholeTaken | Ended | WholeGood | Emitted | Lost | Refused | Failed

_IDLE: Final = (RunningStep.DUE, RunningStep.WAITING)
_READ: Final = (RunningStep.READING, RunningStep.MARKING)


def advance(running: Running, event: Event) -> Running:  # noqa: C901, PLR0911 - one branch for each event
    """The next step, after an event. No other event than those that the step knows may come."""
    match running.step, event:
        case step, Scheduled() if step in _IDLE:
            return replace(running, step=RunningStep.READING, job=event.job, log=event.log)
        case RunningStep.READING, ChunkTaken():
            at_mark = (*running.at_mark, event.chunk)
            return replace(running, at_mark=at_mark, refusal=None, refused_since=None)
        case RunningStep.READING, WholeBegan():
            return replace(running, whole=event.whole, refusal=None)
        case RunningStep.READING, WholeTaken():
            return replace(running, at_mark=(event.rows,), refused_since=None)
        case RunningStep.READING, Ended():
            return _idle_or_marking(replace(running, step=RunningStep.MARKING))
        case step, WholeGood() if step in _READ:
            return replace(running, step=RunningStep.WRITING)
        case step, Emitted() if step in (*_READ, RunningStep.WRITING):
            return _emitted(running, event)
        case step, Lost() if step in _READ:
            return _without_reads(running, event.not_before)
        case RunningStep.READING, Refused():
            since = event.at if running.refused_since is None else running.refused_since
            return replace(_without_reads(running, event.not_before), refusal=event.error, refused_since=since)
        case RunningStep.READING, Failed():
            return replace(running, step=RunningStep.FAILED, error=event.error)
        case _:
            raise AssertionError(f"{type(event).__name__} while {running.step.value}")


def _emitted(running: Running, event: Emitted) -> Running:
    at_mark = tuple(read for read in running.at_mark if read is not event.read)
    is_settled = event.read_again_at is None
    running = replace(
        running,
        at_mark=at_mark,
        lost=0 if is_settled else running.lost + 1,
        not_before=running.not_before if event.read_again_at is None else event.read_again_at,
    )
    if event.is_complete:
        return replace(running, step=RunningStep.COMPLETED)
    return _idle_or_marking(running)


def _idle_or_marking(running: Running) -> Running:
    """Once the job has ended and nothing waits for its mark, the next piece is due, or waits."""
    if running.step is not RunningStep.MARKING or running.at_mark:
        return running
    return replace(running, step=RunningStep.WAITING if running.lost else RunningStep.DUE, job=None)


def _without_reads(running: Running, not_before: float) -> Running:
    return replace(
        running,
        step=RunningStep.WAITING,
        job=None,
        at_mark=(),
        log=None,
        whole=None,
        lost=running.lost + 1,
        not_before=not_before,
    )

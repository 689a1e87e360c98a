"""Reports of the processes of a running replicator. Hints: only the status reads them.

A report passes through the state store, where a process of another version may have written it: `read` leaves out keys that this
version does not know, and every field that was added after the first has a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from replicator.model.errors import ReplicatorError, in_full
from replicator.model.guarantee import Guarantee

NOT_STAMPED: Final = (0, 0.0)


class ReportModel(BaseModel):
    """Base of every part of a report: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Report(ReportModel):
    """Base of the reports."""

    stamp: tuple[int, float] = Field(
        NOT_STAMPED,
        description="Epoch, and seconds of a clock that the supervisor and its workers share and that is never set: later reports of a "
        "replicator have greater ones, also when the host's clock is set. `NOT_STAMPED` from a process without a lease.",
    )

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        """Read a stored report; keys of other versions are left out. ValueError if it is no such report."""
        return cls.model_validate(document, extra="ignore")

    def document(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return self.model_dump(mode="json")


class WaitingReport(ReportModel):
    """Reason why nothing is done for a table now."""

    retry_in_s: float = Field(description="Seconds from the report until the next attempt.")
    code: str | None = Field(description="Code of the error of the last attempt; None: the target asked for a rest.")
    message: str | None = Field(description="Message of that error.")


class CaptureStage(StrEnum):
    """Stage of capture."""

    PREPARING = "preparing"
    CAPTURING = "capturing"


class SnapshotStep(StrEnum):
    """Step that a snapshot which is to begin waits for."""

    PREPARING = "preparing"
    LOOKING = "looking"
    MARKING = "marking"
    SETTLING = "settling"


class RunningStep(StrEnum):
    """Step that a running snapshot waits for."""

    DUE = "due"
    """The reader's next piece; the reader may be reading another table."""
    WAITING = "waiting"
    """A pause: a read was lost, or the source refused it, and is repeated after a while."""
    READING = "reading"
    """The reader reads a piece of it. Chunks that it has read may wait for their marks."""
    MARKING = "marking"
    """The marks of rows that were read."""
    WRITING = "writing"
    """The rows of a table without a key are written, in a commit of their own."""
    COMPLETED = "completed"
    FAILED = "failed"
    """The rows could not be read: the loop fails the table."""


class OpenTransactionReport(ReportModel):
    """A transaction of the source whose changes are held back."""

    name: str = Field(description="In the source's own format.")
    since: AwareDatetime = Field(description="Time at which it was prepared, by the source's clock.")


class FindingReport(ReportModel):
    """A problem that would refuse a start now and concerns no single table."""

    code: str = Field(description="See docs/errors.md.")
    message: str = Field(description="The problem.")
    location: str | None = Field(
        description="The setting of the server or of the configuration; None if there is none."
    )
    action: str | None = Field(description="The next step, where there is one.")


class CapturedTable(ReportModel):
    """Work of capture for a table."""

    step: SnapshotStep | None = Field(None, description="Step of its next snapshot; None if none is to begin.")
    snapshot_step: RunningStep | None = Field(None, description="Step of the snapshot that runs; None if none runs.")
    waiting: WaitingReport | None = Field(
        None, description="Reason why its rows cannot be read now; None if they can, or need not."
    )


class CaptureReport(Report):
    """Report of capture."""

    stage: CaptureStage = Field(CaptureStage.CAPTURING, description="Stage of its work.")
    waiting_for: tuple[str, ...] = Field((), description="Things that it waits for in the source, one line each.")
    position: str | None = Field(None, description="The offset up to which the log was read.")
    source_time: AwareDatetime | None = Field(
        None, description="Everything that was committed before it has been read."
    )
    retained_bytes: int | None = Field(None, description="Log that the source keeps for us; None if unknown.")
    clock_ahead_s: float | None = Field(
        None, description="Seconds by which the source's clock is ahead of the state store's; None if unknown."
    )
    keeps_log_s: float | None = Field(
        None,
        description="Seconds for which the source keeps its log by its own rules; None if it keeps it for us, or if unknown.",
    )
    log_bytes_left: int | None = Field(
        None, description="Bytes that may still be written into the source's log before it gives up our position."
    )
    log_bytes_max: int | None = Field(None, description="Limit of these bytes.")
    log_bytes_per_s: float | None = Field(None, description="Growth of the log.")
    silent_s: float | None = Field(None, description="Seconds since the log last delivered a change or a newer time.")
    heartbeat_s: float | None = Field(
        None, description="Seconds after which it does so at the latest while the source is idle."
    )
    guarantee: Guarantee | None = Field(None, description="Guarantee of the source; None while it was not asked.")
    oldest_open: OpenTransactionReport | None = Field(
        None, description="The oldest transaction whose changes are held back; None if there is none."
    )
    findings: tuple[FindingReport, ...] = Field(
        (), description="Problems that would refuse a start now, as last checked."
    )
    tables: Mapping[str, CapturedTable] = Field({}, description="By name.")


class UpkeepReport(ReportModel):
    """Upkeep of a table that failed and is postponed."""

    failures: int = Field(description="Number of failures in a row.")
    code: str = Field(description="Code of the last error.")
    message: str = Field(description="Its message.")
    action: str | None = Field(description="The next step, where there is one.")
    failed_s: float = Field(description="Seconds from the failure until the report.")
    retry_in_s: float = Field(description="Seconds from the report until the next attempt.")


class EngineReport(ReportModel):
    """Engine that applied a table's last batch, for a target that has several."""

    rung: str = Field(description="A short name, which the target documents.")
    reason: str | None = Field(
        None,
        description="Reason why not a faster one, in a few words without values of rows; None for the fastest, or if the configuration "
        "asks for it.",
    )


class AppliedTable(ReportModel):
    """Work of apply for a table."""

    last_batch: Mapping[str, Any] | None = Field(
        None, description="The target's details of the last batch of this process; None before the first."
    )
    engine: EngineReport | None = Field(
        None,
        description="Engine that applied the last batch of this process; None before the first, and where there is one way only.",
    )
    waiting: WaitingReport | None = Field(
        None, description="Reason why its changes are not being applied now; None if they are, or if there are none."
    )
    upkeep: UpkeepReport | None = Field(None, description="Upkeep that failed; None if the last one did not.")


class ApplyReport(Report):
    """Report of apply."""

    tables: Mapping[str, AppliedTable] = Field({}, description="By name.")
    retried: Mapping[str, int] = Field(
        {}, description="By code of the error: number of pauses of tables since the process began."
    )


class RetryReport(Report):
    """Report of the supervisor when a worker failed and will be restarted."""

    role: Literal["capture", "apply"] = Field(description="The process that failed.")
    retry_in_s: float = Field(description="Seconds from the failure until the next attempt.")
    code: str = Field(description="Code of the error.")
    message: str = Field(description="Message of the error.")


class RefusedReport(Report):
    """Report of a process about a configuration that it cannot use, while data continues to move."""

    of: Literal["reload", "alerts", "lineage"] = Field(description="Work that is not done.")
    config: str = Field(description="Digest of the stored configuration concerned.")
    code: str = Field(description="Code of the error.")
    message: str = Field(description="Message of the error, with every problem that was found.")
    action: str | None = Field(None, description="The next step, where there is one.")

    @classmethod
    def made(
        cls,
        of: Literal["reload", "alerts", "lineage"],
        config: str,
        error: ReplicatorError,
        stamp: tuple[int, float] = NOT_STAMPED,
    ) -> Self:
        """Make the report of this error."""
        full = in_full(error)
        return cls(of=of, config=digest(config), code=full.code, message=full.message, action=full.action, stamp=stamp)


def digest(config: str) -> str:
    """Return a digest that distinguishes stored configurations."""
    return sha256(config.encode()).hexdigest()[:16]

"""The status document that `status --json` and `list --json` print, and that REST API and dashboard show.

`docs/status.schema.json` is generated from `ReplicatorStatus` (`replicator.service.schemas`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    WithJsonSchema,
)

from replicator.model.documents.alerts import AlertKind
from replicator.model.documents.verdict import Result
from replicator.model.guarantee import Guarantee
from replicator.model.processes.reports import RunningStep, SnapshotStep

VERSION: Final = 2

Code = Annotated[str, WithJsonSchema({"type": "string", "pattern": "^[a-z][a-z0-9_]*$"})]
"""Code of an error. A plugin's code of another form must not keep the status from being shown, so it is not validated here."""


class StatusModel(BaseModel):
    """Base of every part of the document: immutable, unknown keys refused, nothing left out."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ReplicatorState(StrEnum):
    """The state of a replicator."""

    STARTING = "starting"
    RUNNING = "running"
    RETRYING = "retrying"
    PAUSED = "paused"
    FAILED = "failed"
    NO_WORKER = "no_worker"
    DELETING = "deleting"


class DesiredState(StrEnum):
    """State that the operator wants for a replicator."""

    RUNNING = "running"
    PAUSED = "paused"
    APPLY_PAUSED = "apply_paused"
    DELETED = "deleted"


class TableState(StrEnum):
    """The state of a table."""

    PENDING = "pending"
    SNAPSHOT = "snapshot"
    STREAMING = "streaming"
    FAILED = "failed"
    DROPPED = "dropped"


class ErrorStatus(StatusModel):
    """An error."""

    code: Code = Field(description="See docs/errors.md.")
    message: str = Field(description="Description of the error.")
    action: str | None = Field(description="The next step, where there is one.")
    at: AwareDatetime = Field(description="Time of the error.")


class AlarmStatus(StatusModel):
    """A reason why a target table may differ from its source although it continues."""

    code: Code = Field(description="See docs/errors.md.")
    message: str = Field(description="Description of the difference.")
    action: str = Field(description="The next step.")
    at: AwareDatetime = Field(description="Time when it was last seen.")
    count: PositiveInt = Field(
        description="`target_diverged`: rows that were missing; `target_changed`: changes by others; `verify_different`: rows that differ."
    )


class SnapshotStatus(StatusModel):
    """A table's snapshot."""

    rows: NonNegativeInt = Field(
        description="Rows captured so far. Of a snapshot of only changed rows: rows that were read again, deletions included."
    )
    rows_in_target: NonNegativeInt = Field(description="Rows of them that are in the target.")
    estimated_rows: int | None = Field(description="From the source's statistics; null if unknown.")
    is_complete: bool = Field(description="True once all its rows are captured.")
    is_in_place: bool = Field(description="True if the target table already existed.")
    is_changed_only: bool = Field(
        description="True if a comparison finds the rows to read (`snapshot --changed-only`). It is complete once nothing differs."
    )
    step: RunningStep | None = Field(
        description="Its step while it runs; null otherwise. `due`: the reader, which may read another table. `waiting`: a pause "
        "before it is read again. `reading`: its rows. `marking`: the log, which must deliver what its rows may lack. `writing`: its rows "
        "are written to the journal. `completed`, `failed`: it ends."
    )


class WaitingStatus(StatusModel):
    """Reason why nothing is done for a table now."""

    retry_in_s: NonNegativeFloat = Field(description="Seconds until the retry, counted from the report.")
    until: AwareDatetime = Field(description="Time of the next attempt.")
    code: Code | None = Field(
        description="Error of the target when it could not apply the last batch, or of the source when it could not be read; "
        "null: the table rests between two batches, as the target's settings require."
    )
    message: str | None = Field(description="Message of that error.")


class UpkeepStatus(StatusModel):
    """Upkeep of a table that failed and is postponed."""

    failures: PositiveInt = Field(description="Number of failures in a row.")
    last_error: ErrorStatus = Field(description="The last of them.")
    retry_at: AwareDatetime = Field(description="Time of the next attempt.")


class MergedStatus(StatusModel):
    """Counts of rows that batches found in the target."""

    matched: NonNegativeInt = Field(
        description="Rows that existed and were written again; with soft deletes also those that were marked."
    )
    inserted: NonNegativeInt = Field(description="Rows that were added, also by first snapshots.")
    deleted: NonNegativeInt = Field(
        description="Rows that batches deleted, without those that TRUNCATE and the end of a snapshot delete."
    )
    not_found: NonNegativeInt = Field(
        description="Rows that an UPDATE or DELETE expected, but that were missing. Not 0: the target differed from the source."
    )


class EngineStatus(StatusModel):
    """Engine that applied the last batch, for a target that has several."""

    rung: str = Field(description="A short name, which the target documents.")
    reason: str | None = Field(
        description="Reason why not a faster one; null for the fastest, and for one that the configuration asks for."
    )


class VerifiedTableStatus(StatusModel):
    """State of a table's verification since its incarnation began: by `verify.every` or by `replicator verify`."""

    verify_age_seconds: NonNegativeFloat | None = Field(
        description="Seconds since the comparison began that proved the table equal; if it is compared range by range: that of its oldest "
        "range. Null if the whole table was never proven."
    )
    proven_at: AwareDatetime | None = Field(description="Time when that comparison began; null if there was none.")
    proven_position: int | None = Field(description="The sequence number at which both sides were equal.")
    result: Result | None = Field(
        description="Result of the last verification; of one of some rows only if they differed. Null before the first."
    )
    verified_at: AwareDatetime | None = Field(description="When that began.")
    position: int | None = Field(description="The sequence number at which both sides were last compared.")
    rows: NonNegativeInt | None = Field(
        description="Rows in the target when the whole table was last compared; null if it never was."
    )
    reason: str | None = Field(description="Reason why it was `not_verified`; otherwise null.")
    ranges_proven: NonNegativeInt = Field(
        description="Number of ranges of its key that are known to be equal. A table that is compared in one read is one range."
    )
    ranges_total: NonNegativeInt | None = Field(
        description="Number of its ranges; null as long as some of its keys were never compared."
    )
    not_compared: tuple[str, ...] = Field(
        description="Columns of the target that the last verification could not compare. With them, a table is at most `equal_in_part`."
    )


class VerifyStatus(StatusModel):
    """State of the verification of all tables."""

    every_s: NonNegativeFloat | None = Field(
        description="`verify.every` in seconds; null if there is no schedule, or if the configuration has a reference there."
    )
    verify_age_seconds: NonNegativeFloat | None = Field(
        description="The largest of the tables' ages; null if a table was never proven equal."
    )
    tables_proven: NonNegativeInt = Field(
        description="Tables whose last verification found no difference and that were proven equal within `verify.every`; without a "
        "schedule at any time."
    )
    coverage_tables: float | None = Field(
        description="Their share of all tables, from 0 to 1; null if there are no tables."
    )
    coverage_rows: float | None = Field(
        description="Their rows' share of the rows of all tables, as counted when each was last compared as a whole, from 0 to 1; null if "
        "one never was, or if there are no rows."
    )
    result: Result | None = Field(
        description="Over all tables' last verifications: `different` if one differed, otherwise `not_verified` if one could not be "
        "compared or has not been yet, otherwise `equal`; null if none was verified."
    )


class ProjectionState(StrEnum):
    """State of the settings of a table's columns."""

    ACTIVE = "active"
    PENDING = "pending"


class TableStatus(StatusModel):
    """A table."""

    table: str = Field(description="schema.table; dots and backslashes inside the parts escaped by a backslash.")
    source_table: str | None = Field(
        description="Its name in the source, where it was renamed there since it was first replicated; null where it was not."
    )
    state: TableState = Field(
        description="`pending`: it waits for a snapshot. `snapshot`: its snapshot is being captured, or is not in the "
        "target as a whole yet. `streaming`: the target has its whole snapshot, and its changes are applied as they arrive. `failed`: it "
        "stopped, see `error`. `dropped`: the source no longer has it, see `error`."
    )
    incarnation: NonNegativeInt = Field(description="Number of times that the target table was created from scratch.")
    snapshot: SnapshotStatus | None = Field(description="The last snapshot; null if there was none.")
    next_snapshot: SnapshotStep | None = Field(
        description="Step of the table's next snapshot, until it begins; null if none is to begin. `preparing`: the "
        "source is prepared and its catalogue asked. `looking`: it is asked which transactions are running. `marking`: a mark is on "
        "its way through the log. `settling`: reads must see what the log delivered, and older transactions must end "
        "(`source.waiting_for`)."
    )
    changes_applied: NonNegativeInt = Field(
        description="Changes in the target, snapshot rows included, since the incarnation began."
    )
    snapshot_rows_applied: NonNegativeInt = Field(description="Of `changes_applied`: rows of snapshots.")
    last_applied: int = Field(ge=-1, description="Sequence number; -1 for nothing.")
    freshness_s: NonNegativeFloat | None = Field(
        description="The source's clock minus the time up to which everything committed is applied; null if unknown, during the "
        "snapshot, or if the table failed in capture."
    )
    freshness_objective_s: NonNegativeFloat | None = Field(
        description="Its objective, `freshness` of the configuration, in seconds; null if it has none, or if the configuration has a "
        "reference there that leads nowhere where this is read."
    )
    is_objective_met: bool | None = Field(
        description="True if its freshness is known and meets the objective. False for a table that failed. Null without an objective, "
        "and until the target has had its first snapshot."
    )
    last_batch: Mapping[str, Any] | None = Field(
        description="The target's details of the last batch of the running apply process (way, rows or bytes billed, the pause "
        "until the next); the keys depend on the target. Null before the first."
    )
    engine: EngineStatus | None = Field(
        description="Engine that applied the last batch of the running apply process; null before the first, and for targets with one way."
    )
    waiting: WaitingStatus | None = Field(
        description="Reason why its changes are not applied now, or why its rows cannot be read now for its snapshot; otherwise null."
    )
    upkeep: UpkeepStatus | None = Field(
        description="Upkeep of the table that failed and is postponed; null if the last one did not fail. Changes are still applied."
    )
    error: ErrorStatus | None = Field(description="Error for which it is `failed` or `dropped`; otherwise null.")
    resumes_by_itself: bool = Field(
        description="True if a table that failed gets a new snapshot by itself once its cause is fixed in the source. False if it "
        "did not fail, if an operator must request a snapshot, and if it has continued by itself too often within a day."
    )
    merged: MergedStatus = Field(
        description="Counts of rows that batches found in the target since the incarnation began."
    )
    projection: ProjectionState | None = Field(
        description="Settings that leave columns out, mask or rename them: `pending` until a snapshot has brought them to rows that were "
        "there already, and the journal has no values from before; then `active`. Null if there are none."
    )
    kept_columns: tuple[str, ...] = Field(
        description="Columns that the source dropped and the target keeps, under their names in the target."
    )
    alarms: tuple[AlarmStatus, ...] = Field(
        description="Reasons why the target table may differ from its source although it continues; one per code, until a snapshot or a "
        "verification clears it."
    )
    verify: VerifiedTableStatus = Field(description="State of its verification.")


class WorkerStatus(StatusModel):
    """The holder of the lease."""

    holder: str = Field(description="Host and process; opaque.")
    epoch: PositiveInt = Field(description="Fencing number of the lease; grows with every holder.")


class OpenTransactionStatus(StatusModel):
    """A transaction of the source whose changes are held back."""

    name: str = Field(description="In the source's own format.")
    age_s: NonNegativeFloat = Field(description="Seconds since it was prepared.")


class FindingStatus(StatusModel):
    """A problem that would refuse a start now and concerns no single table."""

    code: Code = Field(description="See docs/errors.md.")
    message: str = Field(description="The problem.")
    location: str | None = Field(
        description="The setting of the server or of the configuration; null if there is none."
    )
    action: str | None = Field(description="The next step, where there is one.")


class HeadroomStatus(StatusModel):
    """Distance from the point at which the source discards log that is still needed."""

    seconds: NonNegativeFloat | None = Field(
        description="Time until then: `time_left_s`, or the bytes that are left by the log's growth within the last hour; null if the log "
        "did not grow, or if its growth is not known yet."
    )
    bytes: NonNegativeInt | None = Field(
        description="Bytes that may still be written into the log; null if the source limits its log by time."
    )
    share: NonNegativeFloat = Field(description="Share of the limit that is left, from 0 to 1.")


class SourceStatus(StatusModel):
    """The source."""

    retained_bytes: NonNegativeInt | None = Field(
        description="Log that the source keeps for us, as last measured; null if unknown."
    )
    position: str | None = Field(
        description="The offset up to which the log was read, in the source's own format; null while capture does not report."
    )
    lag_s: NonNegativeFloat | None = Field(
        description="The source's clock minus the time up to which everything committed is in the journal; null if unknown."
    )
    is_alive: bool | None = Field(
        description="True if the log sent anything within three heartbeats; null while capture does not report, or if it has no heartbeats."
    )
    guarantee: Guarantee | None = Field(
        description="full: every committed change; bounded_wait: the same, but that nothing is missing between a snapshot and the log "
        "rests on a wait that is long enough; net_changes: the last state of each row that changed. Null until capture has asked."
    )
    headroom: HeadroomStatus | None = Field(
        description="Distance from the loss of log that is still needed; null if it has no limit, or if it is unknown."
    )
    waiting_for: tuple[str, ...] = Field(
        description="Things that capture waits for in the source, one line each: transactions, while it prepares or a table waits for its "
        "snapshot, and other causes that hold the log up."
    )
    oldest_open: OpenTransactionStatus | None = Field(
        description="The oldest transaction of the source whose changes are held in memory until it commits or rolls back (MySQL, "
        "MariaDB: a prepared XA transaction), as last reported; null if there is none."
    )
    time_left_s: NonNegativeFloat | None = Field(
        description="Minimum time for which the source still keeps the log after our position; null if it keeps the log for us, or if "
        "unknown."
    )
    findings: tuple[FindingStatus, ...] = Field(
        description="Changes at the source since the start that would refuse the next one, as last checked; `validate` reports the same."
    )


class JournalStatus(StatusModel):
    """The journal."""

    bytes: NonNegativeInt = Field(description="Bytes of sealed segments.")
    last_sequence_num: int = Field(ge=-1, description="The newest sealed number; -1 for none.")


class RetryStatus(StatusModel):
    """A failed attempt that is being retried."""

    role: Literal["capture", "apply"] = Field(description="The process that failed.")
    retry_in_s: NonNegativeFloat = Field(description="Pause before the next attempt, counted from the failure.")
    code: Code = Field(description="See docs/errors.md.")
    message: str = Field(description="Description of the error.")


class OpenAlertStatus(StatusModel):
    """A problem that channels are or will be notified of."""

    kind: AlertKind = Field(description="See docs/alerts.md.")
    table: str | None = Field(description="The table concerned; null if it concerns the replicator.")
    message: str = Field(description="The problem.")
    since: AwareDatetime = Field(description="Time when it began.")
    is_told: bool = Field(description="True if messages about it were made; false during quiet hours.")


class ChannelStatus(StatusModel):
    """A channel that gets alerts."""

    channel: str = Field(description="Its name in the configuration.")
    sent_at: AwareDatetime | None = Field(description="Time when it last took a message; null if it never did.")
    waiting: NonNegativeInt = Field(description="Messages that wait to be delivered.")
    failures: NonNegativeInt = Field(description="Attempts that failed since it last took a message.")
    given_up: NonNegativeInt = Field(description="Messages that were given up since then.")
    error: str | None = Field(description="Error of the last attempt; null if it did not fail.")
    failed_at: AwareDatetime | None = Field(description="Time of that failure.")


class AlertsStatus(StatusModel):
    """Alerts (`alerts:` of the configuration)."""

    watcher: str | None = Field(
        description="Host and process that watches the replicator and sends its alerts; opaque. Null: none does."
    )
    open: tuple[OpenAlertStatus, ...] = Field(description="Open alerts.")
    channels: tuple[ChannelStatus, ...] = Field(description="Channels that a message was made for, by name.")


class RefusedStatus(StatusModel):
    """Work that is not done because the stored configuration cannot be used for it. Data continues to move."""

    of: Literal["reload", "alerts", "lineage"] = Field(
        description="reload: the worker continues with the configuration that it had; alerts, lineage: nothing is sent."
    )
    code: Code = Field(description="See docs/errors.md.")
    message: str = Field(description="Reason, with every problem that was found.")
    action: str | None = Field(description="The next step, where there is one.")
    at: AwareDatetime = Field(description="Time of the report.")


class ReplicatorStatus(StatusModel):
    """Document that `replicator status NAME --json` prints.

    `replicator status --json` and `replicator list --json` print an array of it (`#/$defs/list`). A version may add keys; removing a
    key or changing its meaning makes a new version.
    """

    version: Literal[2] = Field(description="Version of this document.")
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$", description="Name of the replicator.")
    uuid: str = Field(description="Assigned when it was first stored; never changes.")
    desired: DesiredState = Field(description="State that the operator wants. `apply_paused`: captured, not applied.")
    state: ReplicatorState = Field(
        description="The current state. `no_worker`: it should run, but no worker runs it. `retrying`: see `retry`. `failed`: see `error`."
    )
    worker: WorkerStatus | None = Field(description="The holder of the lease; null if there is none.")
    freshness_s: NonNegativeFloat | None = Field(
        description="The largest of the tables' freshness, in seconds; null while one is unknown, in its snapshot or failed in capture."
    )
    source: SourceStatus = Field(description="The source's log and what capture waits for.")
    journal: JournalStatus = Field(description="The journal between capture and apply.")
    retry: RetryStatus | None = Field(description="The last failed attempt, while it is being retried; otherwise null.")
    error: ErrorStatus | None = Field(description="Error for which it failed; null if it did not.")
    refused: tuple[RefusedStatus, ...] = Field(
        description="Work that is not done because the stored configuration cannot be used for it, while data continues to move."
    )
    verify: VerifyStatus = Field(description="State of the verification that source and target are equal.")
    alerts: AlertsStatus | None = Field(description="Its alerts; null if the configuration has none.")
    tables: tuple[TableStatus, ...] = Field(
        description="The tables that it replicates, by name; numbers in names by their value."
    )

"""Immutable records of the state store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from replicator.model.alteration import Change
from replicator.model.errors import CurableError, RefusedError, ReplicatorError, in_full
from replicator.model.events import DDLOperation, SnapshotKind, check_start
from replicator.model.merged import Merged
from replicator.model.offset import Offset
from replicator.model.processes.reports import ApplyReport, CaptureReport, RefusedReport, Report, RetryReport
from replicator.projection.columns import IgnoredColumn, ProjectedColumn, Projection
from replicator.state.stored import StoredEvent, StoredIdentity, StoredOffset, StoredSchema, StoredTableId

R = TypeVar("R", bound=Report)

CHANGED_ONLY: Final = "changed_only"
"""Key in the payload of a request for a new position: tables in the target are compared, and only rows that differ are read again."""


class Desired(StrEnum):
    """State that the operator wants for a replicator."""

    RUNNING = "running"
    PAUSED = "paused"
    DELETED = "deleted"


class Stage(StrEnum):
    """Stage of capture with a table."""

    PENDING = "pending"
    SNAPSHOT = "snapshot"
    COMPARING = "comparing"
    """Its changes are written. The target may lack others, which a comparison of both sides finds."""
    STREAMING = "streaming"
    FAILED = "failed"
    REMOVED = "removed"


class ApplyState(StrEnum):
    """State of apply with a table."""

    APPLYING = "applying"
    FAILED = "failed"


class TargetCopy(StrEnum):
    """State of a table's incarnation in the target."""

    SNAPSHOT = "snapshot"
    """Nothing yet, or a snapshot that has begun there and is not complete."""
    WHOLE = "whole"
    """The whole table, perhaps an old state of it."""
    CHANGES = "changes"
    """Only changes since it began (`snapshot.mode: never`)."""


class Preparation(StrEnum):
    """State of the source's log resources."""

    NONE = "none"
    INTENT = "intent"
    """Recorded before anything is made."""
    READY = "ready"


class RequestKind(StrEnum):
    """Request of the operator, or of another process, to a running replicator."""

    SNAPSHOT = "snapshot"
    """Snapshots of `tables` (none named: of all), in place where the schema allows it."""
    RECREATE = "recreate"
    """The same, each as a new incarnation."""
    REREAD = "reread"
    """The rows of `keys` (each a list of texts, a cursor) of `table` are read again. Those that the source does not have are deleted."""
    RESTART = "restart"
    """Snapshots of all from a new position in the log; `changed_only`: see `CHANGED_ONLY`."""
    PROVEN = "proven"
    """`table`, which is being compared since `started_at`, was found equal on both sides."""
    ACCEPT = "accept"
    """The target follows the change at which each of `tables` stopped."""
    POSITION = "position"
    """The commit that covers everything committed at the source by now closes the request."""
    BARRIER = "barrier"
    """Likewise, but it stays: the commit ends there, and writes its `position` (the last sequence number) and its `ring` into the request.
    Until the process that asked removes it, no batch has changes on both sides of it. With `is_scheduled` the process is a worker's: its
    supervisor removes what it leaves."""
    DELETE = "delete"
    """Delete the replicator: `drop_target`, `force`."""


class Role(StrEnum):
    """The processes of a running replicator."""

    SUPERVISOR = "supervisor"
    CAPTURE = "capture"
    APPLY = "apply"
    VERIFY = "verify"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRecord:
    """An error as it is stored and shown. `is_finding`: the next start may find it fixed; `is_curable`: any check of the source may."""

    code: str
    message: str
    action: str | None
    at: datetime
    is_finding: bool = False
    is_curable: bool = False

    @classmethod
    def of(cls, error: ReplicatorError, at: datetime) -> ErrorRecord:
        """Keep the parts of `error` that the operator needs."""
        finding, curable = isinstance(error, RefusedError), isinstance(error, CurableError)
        full = in_full(error)
        return cls(
            code=full.code, message=full.message, action=full.action, at=at, is_finding=finding, is_curable=curable
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmRecord:
    """A problem that does not stop a table, and that the operator must know.

    Attributes:
        at: Time when it was last seen.
        count: Times that it was seen; for missing rows: the number of rows.
        is_covered: A snapshot that began later is under way, and clears it when it is complete.
    """

    code: str
    message: str
    action: str
    at: datetime
    count: int
    is_covered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatorRecord:
    """A stored replicator.

    Attributes:
        uuid: Drawn when first stored; never changes.
        config: The YAML document as written (secrets stay references).
        identity: Identity of source and target, as the plugins gave it; empty until the first start.
        apply_paused: False while `pause --apply` does not hold.
        start_offset: Position from which the log was first read, recorded once prepared.
        journal_uri: Folder of this replicator's journal.
        error: Error that stopped it, if it stopped by itself.
        restarted_at: Time when it last began at a new position of the log with new snapshots of all tables, on request.
    """

    name: str
    uuid: str
    desired: Desired
    config: str
    identity: Mapping[str, Any]
    preparation: Preparation
    start_offset: StoredOffset | None
    journal_uri: str
    apply_paused: bool
    error: ErrorRecord | None
    created_at: datetime
    restarted_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to run a replicator. `epoch` grows with every new holder; `holder` is made by `holder_id`, opaque but comparable."""

    replicator: str
    epoch: int
    holder: str
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRange:
    """A range of keys that a snapshot reads: above `after` (None: from the beginning) up to `upto` (None: to the end).

    `after` is the cursor and moves.
    """

    after: tuple[str, ...] | None = None
    upto: tuple[str, ...] | None = None
    is_done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotProgress:
    """Progress of a table's snapshot; durable with the segments that hold its rows.

    Attributes:
        start_number: See `SnapshotEvent.start_number`.
        ranges: One at first; several once ranges are read in parallel.
        keys: Keys that must be read as a last chunk: their row came incomplete by the log, or was requested (`KEYS`).
        rows: Snapshot rows emitted so far.
        completed_at: Time when it was complete; not set before (`is_complete`).
        is_outdated: Rows may have changed without a trace in the log since it began: another snapshot begins after it.
    """

    kind: SnapshotKind = SnapshotKind.FIRST
    start_number: int | None = None
    ranges: tuple[SnapshotRange, ...] = (SnapshotRange(),)
    keys: tuple[tuple[str, ...], ...] = ()
    rows: int = 0
    estimated_rows: int | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    is_outdated: bool = False

    def __post_init__(self) -> None:
        """Check that the two fields agree."""
        check_start(self.kind, self.start_number)

    @property
    def is_complete(self) -> bool:
        """Return whether all its rows are in the journal."""
        return self.completed_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRecord:
    """Capture's knowledge of a table; written by capture only, in the transaction that seals segments.

    Attributes:
        incarnation: Number of the incarnation, from 1; a new one replaces the target's table.
        identity: `TableDescription.identity` that capture last accepted; None before the first.
        is_altered: True if it was altered since `identity` was accepted, perhaps rewritten.
        is_recreated: The next snapshot begins a new incarnation, whatever the table's schema.
        is_changed_only: The target has the whole table, perhaps an old state of it: a comparison finds missing changes. Until it has, or a
            snapshot begins.
        is_accepted: The operator has accepted the change at which it stopped: no policy stops at changes that its next snapshot finds.
        is_net: Its source delivers net changes (`TableChanges.is_net`): a row that is deleted may be missing in the target.
        ignored: Columns that differ between target and source by policies, in this incarnation; `schema` is as the source has it.
        projected: Columns that settings leave out, mask or rename.
        plain_before: Sequence number before which the journal may have values that these settings leave out or mask by now; None: it has
            none.
        stopped_at: DROP, TRUNCATE or RENAME of the table at which a policy stopped it; None: it stopped at anything else, or not at all.
        source_table: Its name in the source, where it was renamed there; None: `table`.
        reread: Rows that are read again while the table streams; None: none are.
        first_change: Sequence number of the incarnation's first row that did not come from one plain pass of its first snapshot;
            None while there is none. Rows below it may be appended.
        error: Error that failed it.
        resumed_at: Times when it last continued by itself after a failure, the oldest first.
    """

    table: StoredTableId
    incarnation: int
    stage: Stage
    schema: StoredSchema | None = None
    identity: StoredIdentity | None = None
    is_altered: bool = False
    is_recreated: bool = False
    is_changed_only: bool = False
    is_accepted: bool = False
    is_net: bool = False
    ignored: tuple[IgnoredColumn, ...] = ()
    projected: tuple[ProjectedColumn, ...] = ()
    plain_before: int | None = None
    stopped_at: Change | None = None
    source_table: StoredTableId | None = None
    snapshot: SnapshotProgress | None = None
    reread: SnapshotProgress | None = None
    first_change: int | None = None
    error: ErrorRecord | None = None
    resumed_at: tuple[datetime, ...] = ()

    @property
    def projection(self) -> Projection:
        """Return what lies between the table in the source and in the target."""
        return Projection(ignored=self.ignored, columns=self.projected)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOutline:
    """A table's record without its schema (`schema` is None), and the columns that the source dropped and the target keeps."""

    record: TableRecord
    kept_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedRecord:
    """Apply's knowledge of a table; written by apply only. A hint: the target's ledger is the truth.

    Attributes:
        incarnation: Recorded *before* it is claimed in the target; journal items of a lower one are superseded.
        claimed_by: The newest epoch that began to claim the incarnation, recorded *before* it did: no newer one is in the target's
            ledger, unless this store was restored from an older backup. 0: none.
        last_applied: Sequence number; -1 for nothing.
        rows: Changes applied since the incarnation began.
        snapshot_rows: Number of these that were rows of snapshots.
        error: Error that failed it.
        copy: State of the target's table.
        whole_before: The newest incarnation that the target had as a whole before the snapshot that is under way there; 0: none.
        merged: Counts of the incarnation, as the target had them at the last audit.
        audited_to: Position of the last audit, in the target's own format; None before the incarnation's first.
        alarms: Alarms, one per code.
        crashes: Crashes of the target's engine while it worked on this table alone, plus one if it was suspected before
            that; 0 once something was applied since.
        upkeep_crash: The engine's last crash in the table's upkeep; None if there was none in this incarnation.
    """

    table: StoredTableId
    incarnation: int
    claimed_by: int = 0
    last_applied: int = -1
    rows: int = 0
    snapshot_rows: int = 0
    state: ApplyState = ApplyState.APPLYING
    error: ErrorRecord | None = None
    copy: TargetCopy = TargetCopy.SNAPSHOT
    whole_before: int = 0
    merged: Merged = field(default_factory=Merged)
    audited_to: str | None = None
    alarms: tuple[AlarmRecord, ...] = ()
    crashes: int = 0
    upkeep_crash: ErrorRecord | None = None

    @property
    def whole(self) -> int:
        """Return the newest incarnation that the target has had as a whole; 0: none."""
        return self.whole_before if self.copy is TargetCopy.SNAPSHOT else self.incarnation

    def applied(self, files: Iterable[SegmentFile], *, last: int) -> AppliedRecord:
        """Return the record once these files are in the target, and everything up to `last`."""
        taken = tuple(files)
        return replace(
            self,
            last_applied=last,
            rows=self.rows + sum(file.rows for file in taken),
            snapshot_rows=self.snapshot_rows + sum(file.snapshot_rows for file in taken),
        )

    @property
    def has_failed(self) -> bool:
        """Return whether apply has given the table up until a snapshot begins, or a new process tries again."""
        return self.state is ApplyState.FAILED


class Decision(StrEnum):
    """Decision of capture about a change of a table's definition."""

    APPLY = "apply"
    KEEP = "keep"
    IGNORE = "ignore"
    STOP = "stop"
    RECORD = "record"
    """Nothing changes in the target."""
    SNAPSHOT = "snapshot"
    """The target follows, and a new snapshot in place reads the rows again."""
    REBUILD = "rebuild"
    """The table is rebuilt, and replaces the old one once it is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """A change of a table's definition, and the decision about it.

    Attributes:
        sequence_num: Its number in the order; for a change that the log does not show, that of the next change.
        operation: None: nothing was done to the table, which continues after a failure.
        changes: Its kinds (`model.alteration.Change`).
        reason: Reason in a sentence, where the decision does not follow from the policy alone.
        statement: Statement in the source's form, where the log has it.
        before, after: The table's schema, None where it is unknown or there is none.
        new_table: Its name afterwards, if it was renamed.
        offset: Position from which the log is read after the commit that sealed it; set by the store.
    """

    sequence_num: int
    table: StoredTableId
    incarnation: int
    operation: DDLOperation | None
    changes: tuple[str, ...]
    decision: Decision
    reason: str | None = None
    statement: str | None = None
    before: StoredSchema | None = None
    after: StoredSchema | None = None
    new_table: StoredTableId | None = None
    at: datetime
    offset: StoredOffset | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFile:
    """One table's part of a segment. `uri` is absolute; `first`/`last` are the lowest and highest sequence number in it.

    `seal` is the id of the last segment of the commit that sealed it. A transaction of the source may span the segments of one
    commit, never two commits: apply takes files of equal `seal` as one unit. The writer sets it at the commit; 0 before.
    """

    table: StoredTableId
    incarnation: int
    schema_fingerprint: str
    uri: str
    rows: int
    bytes: int
    sha256: str
    first: int
    last: int
    snapshot_rows: int
    has_absent: bool
    has_key_changes: bool
    seal: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EventEntry:
    """An event (DDL, snapshot) at its number in the order."""

    sequence_num: int
    table: StoredTableId
    incarnation: int
    event: StoredEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A row of the journal's index. `last == first - 1` for a segment that only moves the offset.

    Attributes:
        id: Ascending per replicator, gapless when sealed; empty segments may be deleted later.
        offset: Position to resume from. The earlier segments of a commit have that of the commit before.
        source_time: `LogBatch.source_time` when it was sealed; in the earlier segments of a commit that of the commit before.
        ring: Ids of transactions delivered up to here that a read of the source might not see yet.
    """

    id: int
    first: int
    last: int
    epoch: int
    offset: Offset | None
    source_time: datetime | None
    ring: Sequence[str]
    files: Sequence[SegmentFile]
    events: Sequence[EventEntry]
    sealed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Something asked of a running replicator; `payload` is JSON (`{"tables": ["public.a"]}`)."""

    id: int
    kind: RequestKind
    payload: Mapping[str, Any]
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Run of a supervisor, from its start to its end."""

    id: int
    replicator: str
    epoch: int
    holder: str
    started_at: datetime
    ended_at: datetime | None
    outcome: str | None
    error: ErrorRecord | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported(Generic[R]):
    """Last report of a process, and its time by the store's clock."""

    at: datetime
    report: R


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """Last reports of a replicator's processes; None: nothing yet."""

    supervisor: Reported[RetryReport] | None = None
    capture: Reported[CaptureReport] | None = None
    apply: Reported[ApplyReport] | None = None
    refused: tuple[Reported[RefusedReport], ...] = ()

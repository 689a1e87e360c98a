"""Interface of a target plugin: it reports its ledger, and applies one DDL event or one batch of one table with its ledger entry.

A target never retries by itself, never calls the host back and keeps nothing that must survive outside the target. Different tables are
worked on from different threads at once; one table from one thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

import pyarrow as pa
from pydantic import BaseModel

from replicator.config import TableOptions as TableOptions  # noqa: PLC0414 (plugins import it from here)
from replicator.model.errors import Problem
from replicator.model.events import DDLEvent
from replicator.model.merged import Merged
from replicator.model.processes.reports import EngineReport as EngineReport  # noqa: PLC0414 (plugins import it from here)
from replicator.model.rules import Section
from replicator.model.schema import TableId, TableSchema

ConfigT = TypeVar("ConfigT", bound=BaseModel)

EMPTY_LEDGER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetContext:
    """The host's description of the replicator that a target serves.

    `max_wait_s` is `apply.max_wait`: seconds that changes may wait so that batches are fewer and larger. `spark` starts (once)
    or returns the host's SparkSession; a target that needs none never calls it. Typed `Any` so that the interface does
    not need PySpark.
    """

    replicator: str
    uuid: str = ""
    epoch: int = 0
    spark: Callable[[], Any] | None = None
    max_wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkNeeds:
    """Requirements of a target for Spark. Settings of the user under `spark.settings` win.

    Attributes:
        packages: Maven coordinates of jars, which are resolved with all that they depend on.
        provided_by: Part of the name of a jar that has the packages. A user who names such a jar in `spark.jars` has named them all.
        settings: Spark's settings, for every master.
        local_settings: Settings for a master inside the worker's process (`local[…]`) only.
        cluster_settings: Settings for every other master.
    """

    packages: Sequence[str] = ()
    provided_by: str | None = None
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    local_settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    cluster_settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTable:
    """A table as the target is asked to keep it. The ledger's name is `<uuid>/<table id>/<incarnation>`."""

    table: TableId
    uuid: str
    incarnation: int
    epoch: int
    options: TableOptions = field(default_factory=TableOptions)

    @property
    def ledger_name(self) -> str:
        """Return the name under which the target records what was applied."""
        return f"{self.uuid}/{self.table}/{self.incarnation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """A target's record of a table: its newest incarnation, the epoch that wrote last, and the last sequence number applied."""

    incarnation: int
    epoch: int
    last_applied: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A target's answer to a claim: `last_applied` is the ledger (`EMPTY_LEDGER` when nothing was applied)."""

    last_applied: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFile:
    """A journal file to apply. `uri` is readable by Spark's executors (`file:///…`, `gs://…`)."""

    uri: str
    rows: int
    bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Changes of one table, one schema version and one incarnation, to be applied as one unit.

    Attributes:
        schema: Schema of the files' rows.
        files: Files in order of sequence numbers, which do not overlap.
        last: The ledger after the batch; at least every file's `last`.
        skip_to: Rows with `_sequence_num` at or below it are already applied (the ledger before).
        rows: Rows in the files.
        is_append: Every row is a complete snapshot row whose key is nowhere in the target nor twice in the batch:
            may be appended instead of merged.
        has_absent: True if some row may lack columns.
        has_key_changes: True if some update may change the key.
        expects_rows: The target has the whole table, so the first change of each key tells what must exist. An UPDATE
            or a DELETE expects a row (one that changes the key: at the old key), an INSERT and the arrival at a new
            key expect none, a snapshot row expects nothing. Of a table without a key every row that is taken away is
            expected. A row that is marked as deleted does not exist. What is expected and not found is applied as if
            nothing were expected, and counted (`Merged.not_found`).
        source_position: Position in the source's log up to which `last` reaches, in the source's own format (JSON): for people.
    """

    schema: TableSchema
    files: Sequence[BatchFile]
    last: int
    skip_to: int
    rows: int
    is_append: bool = False
    has_absent: bool = True
    has_key_changes: bool = True
    expects_rows: bool = False
    source_position: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """Result of applying a batch. `was_skipped`: the ledger was there or beyond, nothing changed. `details`: for logs and status."""

    was_skipped: bool = False
    details: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """History of a table in the target up to a position.

    Attributes:
        position: Position up to which the audit looked, in the target's own format; passed to the next audit.
        merged: Counts of the incarnation up to there.
        changed_by_others: Changes of the table's data since the last audit that are not this replicator's, oldest
            first, in a few words each ("version 7: DELETE"); without values of rows.
        unseen: Part of the target's history that was removed before an audit saw it ("versions 3 to 9"): whether others changed the data
            there is unknown. None: nothing.
    """

    position: str | None
    merged: Merged
    changed_by_others: Sequence[str] = ()
    unseen: str | None = None


class DeltaTarget(ABC, Generic[ConfigT]):
    """Base of target plugins: a lake or warehouse that holds the target tables."""

    type_name: ClassVar[str]
    """The `type:` in the YAML."""
    config_model: ClassVar[type[BaseModel]]
    """Model of the `target:` block without `type`; frozen, extra forbidden, every field described."""
    rules: ClassVar[Section | None] = None
    """The codes of its own errors and findings: a section of `docs/errors.md`."""
    sees_others: ClassVar[bool] = False
    """True if `audit` tells what others changed: then tables that have nothing to apply are audited every few minutes, too."""
    keeps_states: ClassVar[bool] = True
    """True if `open_state` can read the state of a ledger after later batches. Where it cannot, a table's next batches wait
    while a verification opens its state."""
    spark_needs: ClassVar[SparkNeeds | None] = None
    """Requirements for Spark; None: `context.spark` is never called, and `validate` checks neither the `spark:` block nor Java."""

    def __init__(self, config: ConfigT, context: TargetContext) -> None:
        self.config = config
        self.context = context

    @classmethod
    def default_max_wait_s(cls, config: ConfigT) -> float:  # noqa: ARG003 - for targets whose batches cost otherwise
        """Return `apply.max_wait` in seconds where the configuration leaves it out."""
        return 5.0

    @abstractmethod
    def identity(self) -> Mapping[str, str]:
        """Return the parts that identify the target permanently (its URI). Stored, and compared at every start. No I/O."""

    @abstractmethod
    def check(self, tables: Sequence[TableSchema]) -> Sequence[Problem]:
        """Return every problem that would keep these tables from being written here, all at once; leaves no trace.

        Paths not writable, tables of other owners, types that cannot be stored and by which policy they
        are changed, names that clash. Needs no Spark.
        """

    @abstractmethod
    def read_ledger(self, table: TargetTable) -> Ledger | None:
        """Return the ledger of this uuid's newest incarnation; None if there is none or another uuid has the table. Changes nothing.

        Asked before a claim, which overwrites the epoch: it tells the host whether the target knows more than its state store.
        """

    @abstractmethod
    def claim(self, table: TargetTable) -> Claim:
        """Make this epoch the only one that may write the table, durably, and then read the ledger.

        The first thing done to a table by a new process. A writer of an older epoch that wakes up later changes
        nothing. Replay: same answer.

        Raises:
            FencedError: A newer epoch has claimed it.
            TableError: `not_ours`: the table belongs to another replicator and `adopt` is not `replace`.
        """

    @abstractmethod
    def apply_ddl(self, table: TargetTable, event: DDLEvent, sequence_num: int) -> None:
        """Bring the table to the state after `event`, and the ledger to `sequence_num`.

        CREATE_TABLE of a new incarnation replaces what an older one left. Written as a difference between wanted and
        actual: repeating it does nothing.
        Raises TableError when the event has no faithful counterpart here.
        """

    @abstractmethod
    def apply_batch(self, table: TargetTable, batch: Batch) -> BatchResult:
        """Fold the batch to one change per key and merge it, the ledger and the counts (`audit`) in the same commit. Replay: skipped."""

    @abstractmethod
    def audit(self, table: TargetTable, since: str | None) -> Audit:
        """Return the counts of the table's merges, and the changes of its data by others.

        Called after a claim, after each unit of work, and with `sees_others` every few minutes while there is none, from the table's
        thread: it should cost little. The counts must be those of committed batches, each once, whatever crashed between a commit and
        this call: keep them where the ledger is, or read them from the commits.

        Args:
            table: The table as it was claimed.
            since: `position` of the last audit whose outcome is durable; None: the first of this incarnation, where counting begins.

        Replay: same answer, or a later position.
        """

    def widens(self, before: pa.DataType, after: pa.DataType) -> bool:  # noqa: ARG002 - for targets that can
        """Return whether an ALTER_TABLE may change a column's type from `before` to `after`, which holds the same values and more. No I/O.

        Where it may not, the table is rebuilt.
        """
        return False

    def publish(self, table: TargetTable, sequence_num: int) -> None:
        """Show the incarnation to readers from here on: its first snapshot is complete. Moves the ledger to `sequence_num`.

        A target that builds a new incarnation where readers do not see it replaces the old one
        here, in one commit. Unless a target overrides this, readers have seen the incarnation all the time. Replay: does nothing.
        """
        self.advance(table, sequence_num)

    @abstractmethod
    def complete_snapshot(self, table: TargetTable, start_number: int, sequence_num: int) -> None:
        """End an in-place snapshot: rows that it did not find no longer exist in the source.

        In one commit with the ledger at `sequence_num`, delete (soft: mark) rows that carry a `_sequence_num` below `start_number`.
        """

    @abstractmethod
    def advance(self, table: TargetTable, sequence_num: int) -> None:
        """Move the ledger to `sequence_num` without touching rows. Replay: does nothing."""

    @abstractmethod
    def maintain(self, table: TargetTable) -> Mapping[str, Any] | None:
        """Do the most urgent upkeep of the table, if a threshold asks for it; None if nothing was due.

        Never blocks a merge: gives way to one and tries another time.
        """

    @abstractmethod
    def drop(self, table: TargetTable) -> None:
        """Delete the table's data and ledger. Only what is ours. Replay: does nothing."""

    def forget(self, table: TargetTable) -> None:
        """Delete everything that belongs to the table (a ledger of its own, staged files); the table stays. Replay: does nothing."""

    def rest_s(self, table: TableId, *, is_behind: bool) -> float:  # noqa: ARG002 - for targets whose batches are dear
        """Return the seconds to leave a table alone, because its next batch would be expensive (`context.max_wait_s`); 0: none.

        Asked often, from several threads, and again before a process's first batch of the table, once that is claimed;
        no I/O. Changes wait meanwhile and are applied together. With `is_behind` the last batch did not take all existing changes:
        waiting would not make the next one larger.
        """
        return 0.0

    def rows_max(self, table: TableId) -> int | None:  # noqa: ARG002 - for targets that take less at once
        """Return the maximum number of changes of the table's next batch, if that is less than `apply.batch_rows_max`; None: no such limit.

        No I/O. A larger transaction is still one batch.
        """
        return None

    def engine(self, table: TableId) -> EngineReport | None:  # noqa: ARG002 - for targets with several
        """Return the engine that applied the table's last batch in this process; None before the first, or if it has only one. No I/O."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Close connections. May be called twice."""

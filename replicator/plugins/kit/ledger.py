"""Base for targets that keep a ledger: it decides what is done to a table; the target only does it.

Every change of a table takes the same steps:

1. **Claim**, once per table, epoch and incarnation: the target records the epoch, then reads the ledger.
2. **Skip** what is at or below the ledger: an earlier attempt committed it.
3. **Change** the table, the ledger in the same commit.
4. **Remember** the new ledger. After an error nothing is remembered, because the commit may have succeeded: the next call claims again.
"""

from __future__ import annotations

import shlex
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from replicator.model.alteration import steps
from replicator.model.crash import crash_point
from replicator.model.errors import FencedError, SchemaConflictError, TableError, TargetUnavailableError
from replicator.model.events import DDLEvent, DDLOperation, no_fill
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.target import (
    EMPTY_LEDGER,
    Batch,
    BatchResult,
    Claim,
    ConfigT,
    DeltaTarget,
    Ledger,
    TargetContext,
    TargetTable,
)


@dataclass(slots=True, kw_only=True)
class Held:
    """A table that this process has claimed, and its ledger. A target adds what it needs to write the table."""

    table: TargetTable
    last: int


HeldT = TypeVar("HeldT", bound=Held)


class LedgerTarget(DeltaTarget[ConfigT], Generic[ConfigT, HeldT]):
    """A target whose ledger commits with the data.

    A subclass implements the steps that only it can do. Each moves the ledger to the number given, in the commit of its
    change, and refuses with `fenced` if a newer epoch or incarnation has claimed the table.
    """

    def __init__(self, config: ConfigT, context: TargetContext) -> None:
        super().__init__(config, context)
        self._lock = threading.Lock()
        self._held: dict[TableId, HeldT] = {}

    # -- what a target implements -------------------------------------------------------------------------------------

    @abstractmethod
    def claim_table(self, table: TargetTable) -> HeldT:
        """As `DeltaTarget.claim`: record the epoch durably, and only then read the ledger."""

    @abstractmethod
    def create_table(self, held: HeldT, schema: TableSchema, sequence_num: int) -> None:
        """Create the table of this incarnation, replacing an older one. One that exists with the same schema is kept."""

    @abstractmethod
    def drop_table(self, held: HeldT, sequence_num: int) -> None:
        """Drop the table and keep the ledger."""

    @abstractmethod
    def clear_table(self, held: HeldT, sequence_num: int, below: int | None = None) -> None:
        """Delete (soft: mark) all rows; or only those with a `_sequence_num` lower than `below`."""

    @abstractmethod
    def move_ledger(self, held: HeldT, sequence_num: int) -> None:
        """Change nothing but the ledger."""

    @abstractmethod
    def merge_batch(self, held: HeldT, batch: Batch) -> Mapping[str, Any] | None:
        """Fold the batch and merge it; return details for logs and status. None: an earlier attempt had committed it."""

    def alter_table(
        self, held: HeldT, actual: TableSchema, wanted: TableSchema, fill: pa.RecordBatch, sequence_num: int
    ) -> None:
        """Change the table from one schema to the other (`model.alteration.steps`); its rows get the values of `fill` in new columns.

        Columns that are the same have the same type in both, or a wider one afterwards (`widens`), and the same ones make the key.
        From then on batches have the schema `wanted`. Their rows do not have the kept columns (`TableSchema.kept`): a write at a key
        keeps the key's value in such a column, and a row at a new key has NULL.
        A target that does not override this refuses, and the table fails.
        """
        del actual, wanted, fill, sequence_num
        raise self.recreate(held.table, "The target does not support ALTER_TABLE yet.", code="ddl_not_supported")

    def publish_table(self, held: HeldT, sequence_num: int) -> None:
        """See `DeltaTarget.publish`."""
        self.move_ledger(held, sequence_num)

    def working_on(self, table: TargetTable, batch: Batch | None = None) -> AbstractContextManager[None]:  # noqa: ARG002
        """Return the context of every change of a table: it translates the driver's errors."""
        return nullcontext()

    # -- what the host asks for ---------------------------------------------------------------------------------------

    def claim(self, table: TargetTable) -> Claim:
        """Record this epoch, then read the ledger."""
        with self.working_on(table):
            return Claim(last_applied=self._claim(table).last)

    def apply_ddl(self, table: TargetTable, event: DDLEvent, sequence_num: int) -> None:
        """Change a table or its rows; a target creates databases with their first table and never drops them."""
        with self.holding(table) as held:
            if sequence_num <= held.last:
                return
            crash_point("target.before_ddl")
            match event.operation:
                case DDLOperation.CREATE_TABLE:
                    assert event.schema is not None, "CREATE_TABLE carries the schema"
                    self.create_table(held, event.schema, sequence_num)
                case DDLOperation.DROP_TABLE:
                    self.drop_table(held, sequence_num)
                case DDLOperation.TRUNCATE_TABLE:
                    self.clear_table(held, sequence_num)
                case DDLOperation.CREATE_DATABASE | DDLOperation.DROP_DATABASE:
                    self.move_ledger(held, sequence_num)
                case DDLOperation.ALTER_TABLE if event.before is not None:
                    assert event.schema is not None, "ALTER_TABLE carries the schema afterwards"
                    self._refuse_other_columns(table, event.before, event.schema)
                    fill = no_fill() if event.fill is None else event.fill
                    self.alter_table(held, event.before, event.schema, fill, sequence_num)
                case _:
                    raise self.recreate(
                        table, f"The target does not support {event.operation} yet.", code="ddl_not_supported"
                    )
            held.last = sequence_num
            crash_point("target.after_ddl")

    def apply_batch(self, table: TargetTable, batch: Batch) -> BatchResult:
        """Fold and merge; or only move the ledger, where nothing else is to be done."""
        with self.holding(table, batch) as held:
            if batch.last <= held.last:
                return BatchResult(was_skipped=True)
            if batch.skip_to > held.last:
                raise set_back(table, held.last, batch.skip_to)
            if not batch.rows:
                self.move_ledger(held, batch.last)
                held.last = batch.last
                return BatchResult(details={"way": "advance"})
            crash_point("target.before_merge")
            details = self.merge_batch(held, batch)
            held.last = batch.last
            crash_point("target.after_merge")
            return BatchResult(was_skipped=details is None, details=details)

    def complete_snapshot(self, table: TargetTable, start_number: int, sequence_num: int) -> None:
        """Delete (soft: mark) the rows that the snapshot did not find."""
        self._unless_applied(table, sequence_num, lambda held: self.clear_table(held, sequence_num, below=start_number))

    def publish(self, table: TargetTable, sequence_num: int) -> None:
        """Let readers see the incarnation."""
        self._unless_applied(table, sequence_num, lambda held: self.publish_table(held, sequence_num))

    def advance(self, table: TargetTable, sequence_num: int) -> None:
        """Record the number alone."""
        self._unless_applied(table, sequence_num, lambda held: self.move_ledger(held, sequence_num))

    # -- what a target uses -------------------------------------------------------------------------------------------

    @contextmanager
    def holding(self, table: TargetTable, batch: Batch | None = None) -> Iterator[HeldT]:
        """Yield the claimed table, claimed first if necessary; forgotten after an error, because a change may be committed."""
        with self.working_on(table, batch):
            held = self.held(table) or self._claim(table)
            held.table = table
            try:
                yield held
            except BaseException:
                self.let_go(table.table)
                raise

    def held(self, table: TargetTable) -> HeldT | None:
        """Return the table, if this process has claimed it in this epoch and incarnation."""
        with self._lock:
            held = self._held.get(table.table)
        is_same = held is not None and (held.table.ledger_name, held.table.epoch) == (table.ledger_name, table.epoch)
        return held if is_same else None

    def let_go(self, table: TableId) -> None:
        """Forget a table: the next change claims it again."""
        with self._lock:
            self._held.pop(table, None)

    def close(self) -> None:
        """Forget every table."""
        with self._lock:
            self._held.clear()

    def recreate(self, table: TargetTable, message: str, *, code: str = "schema_conflict") -> SchemaConflictError:
        """Return the error where only a table that is created from scratch helps."""
        action = (
            f"Recreate it: replicator snapshot {self.context.replicator} {shlex.quote(str(table.table))} --recreate."
        )
        return SchemaConflictError(message, code=code, table=str(table.table), action=action)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _refuse_other_columns(self, table: TargetTable, actual: TableSchema, wanted: TableSchema) -> None:
        """Refuse an alteration that is more than columns being added, dropped and renamed."""
        origin = steps(actual, wanted).origin
        types = {column.name: column.type for column in actual.held}
        retyped = [
            c.name
            for c in wanted.held
            if (old := types.get(origin[c.name] or "", c.type)) != c.type and not self.widens(old, c.type)
        ]
        if retyped or [origin[name] for name in wanted.key] != list(actual.key):
            what = f"the type of {', '.join(retyped)}" if retyped else "the columns of the key"
            raise self.recreate(table, f"ALTER TABLE changes {what}.", code="ddl_not_supported")

    def _claim(self, table: TargetTable) -> HeldT:
        self.let_go(table.table)
        held = self.claim_table(table)
        crash_point("target.claimed")
        with self._lock:
            self._held[table.table] = held
        return held

    def _unless_applied(self, table: TargetTable, sequence_num: int, change: Callable[[HeldT], None]) -> None:
        with self.holding(table) as held:
            if sequence_num > held.last:
                change(held)
                held.last = sequence_num


def set_back(table: TargetTable, last: int, applied: int) -> TargetUnavailableError:
    """Return the error where the ledger is lower than this process left it: the host continues from the ledger."""
    return TargetUnavailableError(
        f"The target table was set back, for example by a restore. Its ledger is at {last}; this process had applied {applied}.",
        code="target_busy",
        table=str(table.table),
        action="Nothing to do: Replicator continues automatically from the ledger.",
    )


def last_applied(table: TargetTable, owner: str, found: Ledger, *, may_adopt: bool, setting: str) -> int:
    """Return the number from which a process that claims the table continues, according to the ledger.

    Args:
        table: The table as it is claimed.
        owner: The uuid in the ledger.
        found: The ledger. That of another replicator or of an older incarnation is empty for this one.
        may_adopt: True if another replicator's table may be taken over.
        setting: See `not_ours`.

    Raises:
        FencedError: A newer epoch or incarnation has claimed the table.
        TableError: `not_ours`.
    """
    if owner != table.uuid:
        if may_adopt:
            return EMPTY_LEDGER
        raise not_ours(table.table, owner, setting)
    if found.epoch > table.epoch or found.incarnation > table.incarnation:
        raise fenced(table, found.epoch, found.incarnation)
    return found.last_applied if found.incarnation == table.incarnation else EMPTY_LEDGER


def fenced(table: TargetTable, epoch: int | None = None, incarnation: int | None = None) -> FencedError:
    """Return the error of a writer that another has replaced: the one of this epoch and incarnation, if the ledger says so."""
    newer = "Another replicator" if epoch is None else f"Epoch {epoch}, incarnation {incarnation}"
    return FencedError(
        f"{newer} has claimed the table; this process has epoch {table.epoch}, incarnation {table.incarnation}.",
        code="fenced",
        table=str(table.table),
    )


def not_ours(table: TableId, owner: str | None, setting: str) -> TableError:
    """Return the error for a table that this replicator did not create.

    Args:
        table: The table.
        owner: Uuid of the replicator that created it; None if none did.
        setting: The setting that selects another location.
    """
    whose = f"It belongs to replicator {owner}." if owner else "No replicator created it."
    return TableError(
        f"The target already has a table with this name. {whose}",
        code="not_ours",
        table=str(table),
        action=f"Choose another {setting}, move the table away, or set target.adopt: replace to lose its content.",
    )


def refuse_soft_multiset(table: TargetTable, schema: TableSchema) -> None:
    """Refuse to keep the deleted rows of a table without a key."""
    if table.options.deletes == "soft" and not schema.key:
        raise SchemaConflictError(
            "A table without a key cannot keep deleted rows: equal rows cannot be told apart.",
            code="soft_deletes_need_key",
            table=str(table.table),
            action="Set deletes: hard for this table.",
        )

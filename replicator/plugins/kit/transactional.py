"""Base for targets in databases: a change of a table and its ledger entry are one transaction.

The entry is one text per table, which the target keeps in a table of its own. Each transaction begins by reading the
entry with a lock that lasts until its end, so:

- A claim waits for a transaction that an older process is about to commit, and then writes its own epoch.
- A transaction that an older process begins afterwards finds the newer epoch, and changes nothing.
"""

from __future__ import annotations

import json
import shlex
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Final, Generic, Literal, TypeVar

import pyarrow as pa
from pydantic import Field

from replicator.config import ConfigModel
from replicator.model.alteration import Steps, steps
from replicator.model.errors import Problem, SchemaConflictError, TableError
from replicator.model.merged import Merged
from replicator.model.naming import check_columns, refuse_columns
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.kit.findings import key_findings
from replicator.plugins.kit.ledger import Held, LedgerTarget, fenced, last_applied, not_ours, refuse_soft_multiset
from replicator.plugins.target import EMPTY_LEDGER, Audit, Batch, Ledger, TargetTable


class TransactionalConfig(ConfigModel):
    """Settings that every such target has."""

    adopt: Literal["refuse", "replace"] = Field(
        default="refuse",
        description="What to do with a table that this replicator did not create. `replace` loses its content.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """A table's entry in the ledger.

    Attributes:
        uuid: Identifier of the replicator that the table belongs to.
        shape: Schema and options with which the table was created; None: there is no table.
        merged: Counts of the incarnation.
    """

    uuid: str
    incarnation: int
    epoch: int
    last_applied: int
    shape: str | None = None
    merged: Merged = field(default_factory=Merged)

    @property
    def ledger(self) -> Ledger:
        """Return the entry as the host's ledger."""
        return Ledger(incarnation=self.incarnation, epoch=self.epoch, last_applied=self.last_applied)

    def to_text(self) -> str:
        """Return a text that `of` reads back."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> LedgerEntry:
        """Read a text that `to_text` wrote."""
        found = json.loads(text)
        return cls(**{**found, "merged": Merged(**found["merged"])})


@dataclass(slots=True, kw_only=True)
class HeldEntry(Held):
    """A table that this process has claimed, and its entry."""

    entry: LedgerEntry


_ANOTHERS: Final = "another replicator's"
"""Shape of a table that was taken over, which is made again even if it was this replicator's before."""
DatabaseConfigT = TypeVar("DatabaseConfigT", bound=TransactionalConfig)
TransactionT = TypeVar("TransactionT")


class TransactionalTarget(LedgerTarget[DatabaseConfigT, HeldEntry], Generic[DatabaseConfigT, TransactionT]):
    """Target whose tables and ledger are in one database. A subclass has the statements."""

    location_setting: ClassVar[str] = "target.database"
    """The setting that selects another location."""

    # -- what a target implements -------------------------------------------------------------------------------------

    @abstractmethod
    def transaction(self, table: TableId) -> AbstractContextManager[TransactionT]:
        """Open a transaction on one table, committed at its end and rolled back by an exception. Errors of the driver become ours.

        Transactions of different tables run in different threads at the same time.
        """

    @abstractmethod
    def read_entry(self, transaction: TransactionT, table: TableId) -> str | None:
        """Return the table's entry, and lock it until the transaction ends, also where there is no entry yet."""

    @abstractmethod
    def write_entry(self, transaction: TransactionT, table: TableId, entry: str | None) -> None:
        """Write the entry, replacing an older one; None: delete it."""

    @abstractmethod
    def has_table(self, transaction: TransactionT, table: TableId) -> bool:
        """Return whether there is a table of this name, no matter who created it."""

    @abstractmethod
    def check_schema(self, schema: TableSchema) -> None:
        """Raise a TableError if names or types of the table cannot be stored."""

    @abstractmethod
    def create(self, transaction: TransactionT, table: TargetTable, schema: TableSchema) -> None:
        """Create a table where there is none, with all columns that it holds (`TableSchema.held`)."""

    def alter(self, transaction: TransactionT, table: TableId, old: str | None, new: Column | None, value: Any) -> None:
        """Alter one column: rename `old` to `new`; without `new` drop `old`; without `old` add `new`, with a value in all rows.

        Called in an order in which no name means two columns. A target that does not override this refuses, and the table fails.
        """
        del transaction, old, new, value
        raise SchemaConflictError(
            "The target does not support ALTER_TABLE yet.",
            code="ddl_not_supported",
            table=str(table),
            action=f"Recreate it: replicator snapshot {self.context.replicator} {shlex.quote(str(table))} --recreate.",
        )

    def alter_columns(
        self,
        transaction: TransactionT,
        table: TargetTable,
        actual: TableSchema,
        wanted: TableSchema,
        fill: Mapping[str, Any],
    ) -> None:
        """Change the table from one schema to the other, column by column (`alter`), with the values of `fill` in rows of added columns."""
        for old, new, value in _in_order(steps(actual, wanted), wanted, fill):
            self.alter(transaction, table.table, old, new, value)

    @abstractmethod
    def remove(self, transaction: TransactionT, table: TableId) -> None:
        """Drop the table, if it is there."""

    @abstractmethod
    def clear(self, transaction: TransactionT, table: TargetTable, below: int | None) -> None:
        """Delete (soft: mark) all rows, or those with a `_sequence_num` lower than `below`."""

    @abstractmethod
    def merge(self, transaction: TransactionT, table: TargetTable, batch: Batch) -> Merged:
        """Fold the batch (`kit.folding.arrow`) and merge its net changes, part by part.

        Kept columns (`TableSchema.kept`) keep the key's value, are NULL in new rows, and do not distinguish rows.
        """

    # -- the steps of a ledger ----------------------------------------------------------------------------------------

    def claim_table(self, table: TargetTable) -> HeldEntry:
        """Write the epoch into the entry."""
        with self.transaction(table.table) as transaction:
            found = self._checked_entry(transaction, table.table, table.uuid)
            last, shape, merged = EMPTY_LEDGER, None, Merged()
            if found is not None:
                # Of another replicator's table that was moved away only the entry is left.
                may_adopt = self.config.adopt == "replace" or found.shape is not None
                last = last_applied(table, found.uuid, found.ledger, may_adopt=may_adopt, setting=self.location_setting)
                shape = found.shape
                if found.uuid != table.uuid and shape is not None:
                    shape = _ANOTHERS
                if (found.uuid, found.incarnation) == (table.uuid, table.incarnation):
                    merged = found.merged
            entry = LedgerEntry(
                uuid=table.uuid,
                incarnation=table.incarnation,
                epoch=table.epoch,
                last_applied=last,
                shape=shape,
                merged=merged,
            )
            self.write_entry(transaction, table.table, entry.to_text())
        return HeldEntry(table=table, last=last, entry=entry)

    def create_table(self, held: HeldEntry, schema: TableSchema, sequence_num: int) -> None:
        """Drop the table of an older incarnation, and create the new one."""
        self._refuse(held.table, schema)
        with self._changing(held, sequence_num) as transaction:
            shape = _shape(held.table, schema)
            if held.entry.shape != shape:
                self.remove(transaction, schema.table)
                self.create(transaction, held.table, schema)
                held.entry = replace(held.entry, shape=shape)

    def alter_table(
        self, held: HeldEntry, actual: TableSchema, wanted: TableSchema, fill: pa.RecordBatch, sequence_num: int
    ) -> None:
        """Alter the table, with the entry in the same transaction."""
        self._refuse(held.table, wanted)
        if held.entry.shape != _shape(held.table, actual):
            raise self._conflict(held.table)
        with self._changing(held, sequence_num) as transaction:
            self.alter_columns(transaction, held.table, actual, wanted, fill.to_pylist()[0])
            held.entry = replace(held.entry, shape=_shape(held.table, wanted))

    def drop_table(self, held: HeldEntry, sequence_num: int) -> None:
        """Drop the table; the entry stays."""
        with self._changing(held, sequence_num) as transaction:
            if held.entry.shape is not None:
                self.remove(transaction, held.table.table)
                held.entry = replace(held.entry, shape=None)

    def clear_table(self, held: HeldEntry, sequence_num: int, below: int | None = None) -> None:
        """Clear the table, if it is there."""
        with self._changing(held, sequence_num) as transaction:
            if held.entry.shape is not None:
                self.clear(transaction, held.table, below)

    def move_ledger(self, held: HeldEntry, sequence_num: int) -> None:
        """Commit a transaction that changes nothing else."""
        with self._changing(held, sequence_num):
            pass

    def merge_batch(self, held: HeldEntry, batch: Batch) -> Mapping[str, Any]:
        """Merge the rows, and add the counts to the entry."""
        if held.entry.shape != _shape(held.table, batch.schema):
            raise self._conflict(held.table)
        with self._changing(held, batch.last) as transaction:
            merged = self.merge(transaction, held.table, batch)
            held.entry = replace(held.entry, merged=held.entry.merged + merged)
        return asdict(merged)

    # -- what else the host asks for ----------------------------------------------------------------------------------

    def check(self, tables: Sequence[TableSchema]) -> Sequence[Problem]:
        """Check names, types, and tables that exist already."""
        problems: list[Problem] = []
        for schema in tables:
            problems += [*check_columns(schema), *key_findings(schema)]
            try:
                self.check_schema(schema)
                with self.transaction(schema.table) as transaction:
                    self._checked_entry(transaction, schema.table, self.context.uuid)
            except TableError as error:
                problems.append(Problem.of(error))
        return problems

    def read_ledger(self, table: TargetTable) -> Ledger | None:
        """Return the table's entry, if it is this replicator's."""
        with self.transaction(table.table) as transaction:
            entry = self.entry(transaction, table.table)
        return entry.ledger if entry is not None and entry.uuid == table.uuid else None

    def audit(self, table: TargetTable, since: str | None) -> Audit:  # noqa: ARG002 - the entry has sums
        """Return the counts in the entry. A database does not tell what others changed."""
        with self.transaction(table.table) as transaction:
            entry = self.entry(transaction, table.table)
        return Audit(position=None, merged=Merged() if entry is None else entry.merged)

    def maintain(self, table: TargetTable) -> Mapping[str, Any] | None:  # noqa: ARG002
        """Do nothing: a database does the upkeep of its tables."""
        return None

    def drop(self, table: TargetTable) -> None:
        """Drop the table and its entry, if they are ours."""
        self._give_up(table, drops_table=True)

    def forget(self, table: TargetTable) -> None:
        """Delete the entry, if it is ours; the table stays."""
        self._give_up(table, drops_table=False)

    # -- what a target uses -------------------------------------------------------------------------------------------

    def entry(self, transaction: TransactionT, table: TableId) -> LedgerEntry | None:
        """Read the table's entry.

        Raises:
            TableError: `ledger_damaged`.
        """
        text = self.read_entry(transaction, table)
        try:
            return None if text is None else LedgerEntry.of(text)
        except (KeyError, TypeError, ValueError) as error:
            raise self.damaged(
                table, "cannot be read", "Drop the table and its row in the ledger, then recreate it"
            ) from error

    def damaged(self, table: TableId, what: str, action: str) -> TableError:
        """The error for a ledger that somebody else changed; after the action the table is recreated."""
        return TableError(
            f"The table's entry in the ledger {what}: somebody else changed it.",
            code="ledger_damaged",
            table=str(table),
            action=f"{action}: replicator snapshot {self.context.replicator} {shlex.quote(str(table))} --recreate.",
        )

    # -- inside -------------------------------------------------------------------------------------------------------

    def _refuse(self, table: TargetTable, schema: TableSchema) -> None:
        """Refuse a schema that the table cannot have."""
        refuse_columns(schema, [*check_columns(schema), *key_findings(schema)])
        refuse_soft_multiset(table, schema)
        self.check_schema(schema)

    def _conflict(self, table: TargetTable) -> SchemaConflictError:
        return self.recreate(table, "The target table was dropped, or has another schema or other settings.")

    def _give_up(self, table: TargetTable, *, drops_table: bool) -> None:
        with self.transaction(table.table) as transaction:
            entry = self.entry(transaction, table.table)
            if entry is not None and entry.uuid == table.uuid:
                if drops_table and entry.shape is not None:
                    self.remove(transaction, table.table)
                self.write_entry(transaction, table.table, None)
        self.let_go(table.table)

    def _checked_entry(self, transaction: TransactionT, table: TableId, uuid: str) -> LedgerEntry | None:
        """Return the entry; refuse a table that this replicator did not create."""
        entry = self.entry(transaction, table)
        owner = entry.uuid if entry is not None and entry.shape is not None else None
        if owner != uuid and self.config.adopt != "replace" and self.has_table(transaction, table):
            raise not_ours(table, owner, self.location_setting)
        return entry

    @contextmanager
    def _changing(self, held: HeldEntry, sequence_num: int) -> Iterator[TransactionT]:
        """Open a transaction on a table of ours, which ends with the ledger."""
        table = held.table
        with self.transaction(table.table) as transaction:
            found = self.entry(transaction, table.table)
            if found is None:
                raise self.damaged(table.table, "is missing", "If the table is there, drop it. Then recreate it")
            if found.uuid != table.uuid:
                raise not_ours(table.table, found.uuid, self.location_setting)
            if found != held.entry:
                raise fenced(table, found.epoch, found.incarnation)
            yield transaction
            held.entry = replace(held.entry, last_applied=sequence_num)
            self.write_entry(transaction, table.table, held.entry.to_text())


def _shape(table: TargetTable, schema: TableSchema) -> str:
    """Return a text that changes whenever the table would have to look different."""
    options = table.options
    return f"{table.uuid} {table.incarnation} {schema.fingerprint} {options.deletes} {options.source_timestamp}"


def _in_order(
    todo: Steps, wanted: TableSchema, fill: Mapping[str, Any]
) -> Iterator[tuple[str | None, Column | None, Any]]:
    """Yield the change of each column. Columns may exchange names, so renamed ones have a temporary name in between."""
    columns = {column.name: column for column in wanted.held}
    between = {name: f"_replicator_tmp_{n}" for n, name in enumerate(todo.renamed)}
    yield from ((old, replace(columns[todo.renamed[old]], name=name), None) for old, name in between.items())
    yield from ((old, None, None) for old in todo.dropped)
    yield from ((between[old], columns[new], None) for old, new in todo.renamed.items())
    yield from ((None, columns[name], fill.get(name)) for name in todo.added)

"""The part of a target's contract suite that its author writes, and the tables that the suite works with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

from replicator.model.errors import Problem, Severity
from replicator.model.events import DDLEvent, DDLOperation, no_fill
from replicator.model.merged import Merged
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.target import EMPTY_LEDGER, BatchResult, Claim, DeltaTarget, TableOptions, TargetTable
from replicator_testing.batches import Row, RowChange, write_batch
from replicator_testing.oracle import StoredRow

UUID = "6f1d2a34-0000-4000-8000-000000000001"
STRANGER = "6f1d2a34-0000-4000-8000-00000000beef"
ITEMS = TableId("shop", "items")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRow:
    """A row as it is in the target; `values` by the source's column names, bookkeeping columns apart."""

    values: Mapping[str, Any]
    sequence_num: int
    is_deleted: bool = False


class TargetHarness(ABC):
    """An empty storage where a target keeps tables, and a way to read it without the target."""

    @abstractmethod
    def target(
        self, *, uuid: str = UUID, epoch: int = 1, adopt: Literal["refuse", "replace"] = "refuse"
    ) -> DeltaTarget[Any]:
        """Make a new target object over the same storage, as another process would."""

    @abstractmethod
    def rows(self, table: TargetTable, schema: TableSchema) -> Sequence[TargetRow]:
        """Return the table's rows in the columns of `schema.held`, deleted rows included; empty if it does not exist."""

    @abstractmethod
    def exists(self, table: TargetTable) -> bool:
        """Return whether there is such a table."""


def items_schema(*, key: Sequence[str] = ("id",), with_world: bool = False, table: TableId = ITEMS) -> TableSchema:
    """The contract's table: `id bigint, name text, amount decimal(12,2), note text`, perhaps after a `world bigint` that leads the key."""
    columns = [
        Column(name="id", type=pa.int64(), source_type="bigint", nullable=not key),
        Column(name="name", type=pa.string(), source_type="text"),
        Column(name="amount", type=pa.decimal128(12, 2), source_type="numeric(12,2)"),
        Column(name="note", type=pa.string(), source_type="text"),
    ]
    if with_world:
        columns.insert(0, Column(name="world", type=pa.int64(), source_type="bigint", nullable=not key))
    return TableSchema(table=table, columns=tuple(columns), key=(("world", *key) if with_world and key else tuple(key)))


def item(
    id_: int | None, name: str | None = None, amount: str | None = None, note: str | None = None, **more: Any
) -> dict[str, Any]:
    """Return a row of the contract's table."""
    return {"id": id_, "name": name, "amount": None if amount is None else Decimal(amount), "note": note, **more}


@dataclass(kw_only=True)
class Copy:
    """A table that a test keeps in a target, with the ledger as apply would remember it."""

    harness: TargetHarness
    folder: Path
    schema: TableSchema
    table: TargetTable
    target: DeltaTarget[Any]
    ledger: int = EMPTY_LEDGER
    merged: Merged = field(default_factory=Merged)
    audited_to: str | None = None

    def claim(self) -> Claim:
        """Claim the table."""
        return self.target.claim(self.table)

    def audit(self) -> Merged:
        """Return the target's counts of this incarnation, asked for as apply asks; nothing else has changed the table."""
        audit = self.target.audit(self.table, self.audited_to)
        assert list(audit.changed_by_others) == []
        self.merged, self.audited_to = audit.merged, audit.position
        return self.merged

    def create(self, sequence_num: int = 0) -> None:
        """Claim the table and create it."""
        self.claim()
        self.audit()
        self.ddl(DDLOperation.CREATE_TABLE, sequence_num)

    def ddl(self, operation: DDLOperation, sequence_num: int) -> None:
        """Apply a schema change."""
        self.target.apply_ddl(
            self.table, DDLEvent(operation=operation, table=self.schema.table, schema=self.schema), sequence_num
        )
        self.ledger = sequence_num

    def alter(
        self, wanted: TableSchema, fill: Mapping[str, Any] | None = None, sequence_num: int | None = None
    ) -> None:
        """Apply an ALTER_TABLE that gives the table the wanted schema; `fill` as `DDLEvent.fill`, by column name."""
        sequence_num = self.ledger + 1 if sequence_num is None else sequence_num
        types = pa.schema([(name, wanted.column(name).type) for name in fill or {}])
        event = DDLEvent(
            operation=DDLOperation.ALTER_TABLE,
            table=wanted.table,
            before=self.schema,
            schema=wanted,
            fill=pa.RecordBatch.from_pylist([dict(fill)], types) if fill else no_fill(),
        )
        self.target.apply_ddl(self.table, event, sequence_num)
        self.schema, self.ledger = wanted, max(self.ledger, sequence_num)

    def publish(self, sequence_num: int | None = None) -> None:
        """Publish the incarnation, whose first snapshot is complete: readers see it."""
        sequence_num = self.ledger + 1 if sequence_num is None else sequence_num
        self.target.publish(self.table, sequence_num)
        self.ledger = max(self.ledger, sequence_num)

    def apply(
        self,
        *changes: RowChange,
        files: int = 1,
        is_append: bool = False,
        skip_to: int | None = None,
        expects_rows: bool = False,
    ) -> BatchResult:
        """Apply changes as one batch."""
        batch = write_batch(
            self.folder,
            self.schema,
            changes,
            skip_to=self.ledger if skip_to is None else skip_to,
            files=min(files, len(changes)),
            is_append=is_append,
            expects_rows=expects_rows,
        )
        result = self.target.apply_batch(self.table, batch)
        self.ledger = batch.last
        return result

    def restart(self, epoch: int | None = None) -> Claim:
        """Continue as another process, under the same epoch or a newer one."""
        self.table = replace(self.table, epoch=self.table.epoch if epoch is None else epoch)
        self.target = self.harness.target(uuid=self.table.uuid, epoch=self.table.epoch)
        claim = self.claim()
        self.ledger = claim.last_applied
        return claim

    def stored(self) -> Sequence[TargetRow]:
        """Return everything in the table, deleted rows included."""
        return self.harness.rows(self.table, self.schema)

    def live(self) -> list[tuple[Any, ...]]:
        """Return the rows that are not deleted, as sorted tuples."""
        return as_tuples(self.schema, [row.values for row in self.stored() if not row.is_deleted])

    def outcome(self) -> list[tuple[Any, ...]]:
        """Return everything that the table has, as `as_outcome` does for the oracle."""
        return as_outcome(self.schema, self.stored())

    def held(self) -> list[tuple[Any, ...]]:
        """Return the same with the kept columns."""
        return as_tuples(self.schema, [row.values for row in self.stored() if not row.is_deleted], with_kept=True)


def wrong(problems: Sequence[Problem]) -> list[Problem]:
    """Return the findings that are more than notices."""
    return [problem for problem in problems if problem.severity is not Severity.NOTICE]


def as_tuples(schema: TableSchema, rows: Sequence[Row], *, with_kept: bool = False) -> list[tuple[Any, ...]]:
    """Return rows as tuples in column order, sorted, so that lists of them compare as multisets."""
    columns = schema.held if with_kept else schema.columns
    return sorted((tuple(row[c.name] for c in columns) for row in rows), key=repr)


def as_outcome(schema: TableSchema, rows: Iterable[TargetRow | StoredRow]) -> list[tuple[Any, ...]]:
    """Return rows as sorted tuples with all columns that the table holds, their numbers, and whether they are marked as deleted."""
    found = [(*(row.values.get(c.name) for c in schema.held), row.sequence_num, row.is_deleted) for row in rows]
    return sorted(found, key=repr)


class TargetSuite(ABC):
    """Base of a target's tests."""

    @pytest.fixture
    @abstractmethod
    def harness(self, tmp_path: Path) -> TargetHarness:
        """Return an empty storage for tables."""

    def copy(
        self,
        harness: TargetHarness,
        folder: Path,
        schema: TableSchema | None = None,
        *,
        options: TableOptions | None = None,
    ) -> Copy:
        """Return a table that does not exist yet."""
        schema = schema or items_schema()
        table = TargetTable(table=schema.table, uuid=UUID, incarnation=1, epoch=1, options=options or TableOptions())
        return Copy(harness=harness, folder=folder / "journal", schema=schema, table=table, target=harness.target())

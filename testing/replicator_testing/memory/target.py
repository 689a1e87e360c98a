"""A target in memory: the meaning of every target method, by plain replay row after row."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from replicator.model.alteration import widens
from replicator.model.errors import FatalError, Problem, TableError
from replicator.model.events import DMLOperation
from replicator.model.merged import Merged
from replicator.model.processes.reports import EngineReport
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.ledger import Held, LedgerTarget, fenced, last_applied, not_ours
from replicator.plugins.target import EMPTY_LEDGER, Audit, Batch, Ledger, TargetContext, TargetTable
from replicator.plugins.verification import SupportsTargetVerification, VerifiedState
from replicator_testing.batches import RowChange, read_batch
from replicator_testing.memory.faults import Faults
from replicator_testing.memory.log import State, altered_row, state_of
from replicator_testing.memory.verification import RowsState
from replicator_testing.oracle import Oracle, StoredRow, keys_of


class MemoryTargetConfig(BaseModel):
    """The `target:` block of type `memory`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    database: str = Field(description="Name of the warehouse in this process.")
    adopt: Literal["refuse", "replace"] = Field(
        default="refuse", description="What to do with a table that belongs to another replicator."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """The table after one commit: its writer, the ledger, its schema, and the rows that are not deleted."""

    incarnation: int
    epoch: int
    ledger: int
    action: str
    schema: TableSchema | None
    state: State


@dataclass(slots=True, kw_only=True)
class StoredTable:
    """The warehouse's record of a table. `schema` is None while the table does not exist.

    Attributes:
        shown: Schema and rows of an older incarnation, while readers see that: this one is not complete.
        merged: Counts of the incarnation, moved in the commits of the batches.
        changed_by_others: Changes of the rows by others, in order (`MemoryWarehouse.tamper`).
        forgotten: Number of these that are no longer in the history.
    """

    uuid: str
    incarnation: int
    epoch: int
    ledger: int = EMPTY_LEDGER
    created_in: int | None = None
    schema: TableSchema | None = None
    rows: list[StoredRow] = field(default_factory=list)
    shown: tuple[TableSchema, Sequence[StoredRow]] | None = None
    merged: Merged = field(default_factory=Merged)
    changed_by_others: list[str] = field(default_factory=list)
    forgotten: int = 0
    history: list[HistoryEntry] = field(default_factory=list)

    @property
    def claimed(self) -> Ledger:
        """Return the ledger and its writer."""
        return Ledger(incarnation=self.incarnation, epoch=self.epoch, last_applied=self.ledger)

    def live(self) -> list[Mapping[str, Any]]:
        """Return the rows that are not deleted."""
        return [r.values for r in self.rows if not r.is_deleted]

    def state(self) -> State:
        """Return the rows that readers see, as a multiset; nothing if the table does not exist."""
        if self.shown is not None:
            schema, rows = self.shown
            return state_of(schema, [row.values for row in rows if not row.is_deleted])
        return {} if self.schema is None else state_of(self.schema, self.live())


class MemoryWarehouse:
    """Tables that outlive the target objects that write them."""

    _warehouses: ClassVar[dict[str, MemoryWarehouse]] = {}
    _registry_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.tables: dict[TableId, StoredTable] = {}

    @classmethod
    def open(cls, name: str) -> MemoryWarehouse:
        """Return the warehouse of that name in this process; made when first used."""
        with cls._registry_lock:
            return cls._warehouses.setdefault(name, cls())

    def state(self, table: TableId) -> State:
        """Return the rows of a table that readers see, as a multiset; nothing if it does not exist."""
        with self.lock:
            return self.tables[table].state() if table in self.tables else {}

    def tamper(self, table: TableId, what: str, act: Callable[[StoredTable], object]) -> None:
        """Change a table's rows as another program would."""
        with self.lock:
            act(self.tables[table])
            self.tables[table].changed_by_others.append(what)

    def history(self, table: TableId) -> Sequence[HistoryEntry]:
        """Return the states that a reader could have seen, one entry per commit, over all incarnations."""
        with self.lock:
            return list(self.tables[table].history) if table in self.tables else []


class MemoryTarget(LedgerTarget[MemoryTargetConfig, Held], SupportsTargetVerification):
    """Writes a `MemoryWarehouse`. Operations that `faults` can script: the names of the methods."""

    type_name: ClassVar[str] = "memory"
    config_model: ClassVar[type[BaseModel]] = MemoryTargetConfig
    sees_others: ClassVar[bool] = True

    def __init__(self, config: MemoryTargetConfig, context: TargetContext) -> None:
        super().__init__(config, context)
        self.warehouse = MemoryWarehouse.open(config.database)
        self.faults = Faults()

    def identity(self) -> Mapping[str, str]:
        return {"uri": f"memory:{self.config.database}"}

    def check(self, tables: Sequence[TableSchema]) -> Sequence[Problem]:
        self.faults.hit("check", *(s.table for s in tables))
        with self.warehouse.lock:
            owners = {s.table: self.warehouse.tables[s.table].uuid for s in tables if s.table in self.warehouse.tables}
        if self.config.adopt == "replace":
            return []
        return [
            Problem.of(not_ours(table, owner, "target.database"))
            for table, owner in owners.items()
            if owner != self.context.uuid
        ]

    def read_ledger(self, table: TargetTable) -> Ledger | None:
        self.faults.hit("read_ledger", table.table)
        with self.warehouse.lock:
            stored = self.warehouse.tables.get(table.table)
            if stored is None or stored.uuid != table.uuid:
                return None
            return stored.claimed

    def claim_table(self, table: TargetTable) -> Held:
        self.faults.hit("claim", table.table)
        with self.warehouse.lock:
            stored = self.warehouse.tables.get(table.table)
            if stored is not None:
                stored.ledger = last_applied(
                    table,
                    stored.uuid,
                    stored.claimed,
                    may_adopt=self.config.adopt == "replace",
                    setting="target.database",
                )
            if stored is None or stored.uuid != table.uuid:
                stored = StoredTable(uuid=table.uuid, incarnation=table.incarnation, epoch=table.epoch)
                self.warehouse.tables[table.table] = stored
            if stored.incarnation < table.incarnation:
                stored.merged = Merged()
            stored.epoch, stored.incarnation = table.epoch, table.incarnation
            held = Held(table=table, last=stored.ledger)
        self.faults.hit("claim.after", table.table)
        return held

    def create_table(self, held: Held, schema: TableSchema, sequence_num: int) -> None:
        self._commit("apply_ddl", held, sequence_num, lambda stored: self._create(stored, held.table, schema))

    def alter_table(
        self, held: Held, actual: TableSchema, wanted: TableSchema, fill: pa.RecordBatch, sequence_num: int
    ) -> None:
        (filled,) = fill.to_pylist()

        def act(stored: StoredTable) -> None:
            is_ours = stored.schema is not None and stored.created_in == held.table.incarnation
            if not is_ours or stored.schema is None or stored.schema.fingerprint != actual.fingerprint:
                raise self.recreate(held.table, "The table has another schema than the one that is altered.")
            stored.schema = wanted
            for row in stored.rows:
                row.values = altered_row(row.values, actual, wanted, filled)

        self._commit("apply_ddl", held, sequence_num, act)

    def drop_table(self, held: Held, sequence_num: int) -> None:
        def act(stored: StoredTable) -> None:
            stored.schema, stored.rows, stored.shown = None, [], None

        self._commit("apply_ddl", held, sequence_num, act)

    def widens(self, before: pa.DataType, after: pa.DataType) -> bool:
        """Return whether numbers stay exact, and integers stay integers."""
        return widens(before, after) and pa.types.is_integer(before) == pa.types.is_integer(after)

    def publish_table(self, held: Held, sequence_num: int) -> None:
        def act(stored: StoredTable) -> None:
            stored.shown = None

        self._commit("publish", held, sequence_num, act)

    def clear_table(self, held: Held, sequence_num: int, below: int | None = None) -> None:
        action = "apply_ddl" if below is None else "complete_snapshot"
        self._commit(action, held, sequence_num, lambda stored: _remove(stored, held.table, below))

    def move_ledger(self, held: Held, sequence_num: int) -> None:
        self._commit("advance", held, sequence_num, lambda _: None)

    def merge_batch(self, held: Held, batch: Batch) -> Mapping[str, Any] | None:
        table = held.table

        def act(stored: StoredTable) -> None:
            if stored.schema is None or stored.schema.fingerprint != batch.schema.fingerprint:
                raise self.recreate(table, "The batch has another schema than the table.")
            if batch.skip_to != stored.ledger:
                raise FatalError(
                    f"the batch continues {batch.skip_to}, the ledger is {stored.ledger}",
                    code="ledger_mismatch",
                    table=str(table.table),
                )
            changes = list(read_batch(batch))
            _check_append(stored, table, batch, changes)
            oracle = Oracle(batch.schema, table.options, stored.rows)
            stored.merged += oracle.apply(changes, expects_rows=batch.expects_rows)
            stored.rows = oracle.rows

        return {} if self._commit("apply_batch", held, batch.last, act) else None

    @contextmanager
    def open_state(
        self, table: TargetTable, schema: TableSchema, *, columns: Mapping[str, str], at: int
    ) -> Iterator[VerifiedState]:
        self.faults.hit("open_state", table.table)
        with self.warehouse.lock:
            stored = self.warehouse.tables[table.table]
            past = [entry for entry in stored.history if entry.incarnation == table.incarnation and entry.ledger <= at]
            then = past[-1].schema if past else None
            if then is None or not set(columns.values()) <= {column.name for column in then.held}:
                raise TableError("The table was not there then.", code="state_not_readable", table=str(table.table))
            if stored.ledger <= at and stored.schema is not None:
                # With changes of others since.
                rows = stored.live()
            else:
                names = [column.name for column in then.columns]
                rows = [dict(zip(names, values, strict=True)) for values, n in past[-1].state.items() for _ in range(n)]
            found = [{name: row[other] for name, other in columns.items()} for row in rows]
        self.faults.hit("open_state.after", table.table)
        yield RowsState.of(schema, list(columns), found)

    def audit(self, table: TargetTable, since: str | None) -> Audit:
        self.faults.hit("audit", table.table)
        with self.warehouse.lock:
            stored = self.warehouse.tables[table.table]
            done = stored.changed_by_others
            seen = len(done) if since is None else int(since)
            unseen = f"changes {seen + 1} to {stored.forgotten}" if seen < stored.forgotten else None
            others = done[max(seen, stored.forgotten) :]
            return Audit(position=str(len(done)), merged=stored.merged, changed_by_others=others, unseen=unseen)

    def rest_s(self, table: TableId, *, is_behind: bool) -> float:
        self.faults.hit("rest_s", table)
        return super().rest_s(table, is_behind=is_behind)

    def rows_max(self, table: TableId) -> int | None:
        self.faults.hit("rows_max", table)
        return super().rows_max(table)

    def engine(self, table: TableId) -> EngineReport | None:
        self.faults.hit("engine", table)
        return super().engine(table)

    def maintain(self, table: TargetTable) -> Mapping[str, Any] | None:
        self.faults.hit("maintain", table.table)
        return None

    def drop(self, table: TargetTable) -> None:
        self.faults.hit("drop", table.table)
        with self.warehouse.lock:
            stored = self.warehouse.tables.get(table.table)
            if stored is not None and stored.uuid == table.uuid:
                del self.warehouse.tables[table.table]
        self.faults.hit("drop.after", table.table)

    def _create(self, stored: StoredTable, table: TargetTable, schema: TableSchema) -> None:
        if stored.schema is not None and stored.created_in == table.incarnation:
            if stored.schema.fingerprint != schema.fingerprint:
                raise self.recreate(table, "The table exists with another schema.")
            return
        if stored.schema is not None and stored.shown is None:
            # Built out of readers' sight, until it is published.
            stored.shown = (stored.schema, stored.rows)
        stored.schema, stored.rows, stored.created_in = schema, [], table.incarnation

    def _commit(self, action: str, held: Held, sequence_num: int, act: Callable[[StoredTable], None]) -> bool:
        """Act and move the ledger in one step, unless the ledger is there already; return whether anything was done."""
        table = held.table
        self.faults.hit(action, table.table)
        with self.warehouse.lock:
            stored = self.warehouse.tables.get(table.table)
            if stored is None or stored.uuid != table.uuid:
                raise fenced(table)
            if (stored.epoch, stored.incarnation) != (table.epoch, table.incarnation):
                raise fenced(table, stored.epoch, stored.incarnation)
            if stored.ledger >= sequence_num:
                return False
            saved = [StoredRow(dict(r.values), r.sequence_num, r.is_deleted, r.source_timestamp) for r in stored.rows]
            counted = stored.merged
            try:
                act(stored)
            except Exception:
                stored.rows, stored.merged = saved, counted
                raise
            stored.ledger = sequence_num
            stored.history.append(
                HistoryEntry(
                    incarnation=table.incarnation,
                    epoch=table.epoch,
                    ledger=sequence_num,
                    action=action,
                    schema=stored.schema if stored.shown is None else stored.shown[0],
                    state=stored.state(),
                )
            )
        self.faults.hit(f"{action}.after", table.table)
        return True


def _remove(stored: StoredTable, table: TargetTable, below: int | None) -> None:
    """Delete (soft: mark) all rows, or those with a lower number."""

    def goes(row: StoredRow) -> bool:
        return below is None or row.sequence_num < below

    if table.options.deletes == "soft":
        for row in stored.rows:
            row.is_deleted = row.is_deleted or goes(row)
    else:
        stored.rows = [row for row in stored.rows if not goes(row)]


def _check_append(held: StoredTable, table: TargetTable, batch: Batch, changes: Sequence[RowChange]) -> None:
    if not batch.is_append:
        return
    new = [change for change in changes if change.operation is DMLOperation.INSERT and change.row and not change.absent]
    keys = [keys_of(batch.schema, change)[1] for change in new]
    there = {tuple(stored.values[n] for n in batch.schema.key) for stored in held.rows}
    if len(keys) != len(changes) or (batch.schema.key and (len(set(keys)) != len(keys) or there & set(keys))):
        raise FatalError(
            "a batch that may be appended holds more than new rows", code="wrong_append", table=str(table.table)
        )

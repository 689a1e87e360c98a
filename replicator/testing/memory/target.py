"""A target in memory: the meaning of every target method, by plain replay row after row."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pyarrow.parquet as pq
from pyarrow.fs import FileSystem
from pydantic import BaseModel, ConfigDict, Field

from replicator.model.errors import FatalError, FencedError, KeyMissingError, Problem, SchemaConflictError, TableError
from replicator.model.events import (
    ABSENT,
    BEFORE,
    IS_SNAPSHOT,
    OPERATION,
    ROW,
    SEQUENCE_NUM,
    SOURCE_TIMESTAMP,
    DDLEvent,
    DDLOperation,
    DMLOperation,
)
from replicator.model.merged import Merged
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.target import (
    EMPTY_LEDGER,
    Audit,
    Batch,
    BatchResult,
    Claim,
    DeltaTarget,
    Ledger,
    TargetContext,
    TargetTable,
)
from replicator.testing.memory.database import State, state_of
from replicator.testing.memory.faults import Faults


class MemoryTargetConfig(BaseModel):
    """The `target:` block of type `memory`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    database: str = Field(description="Name of the warehouse in this process.")
    adopt: Literal["refuse", "replace"] = Field(
        default="refuse", description="What to do with a table that belongs to another replicator."
    )


@dataclass(slots=True)
class StoredRow:
    """A row of the target; `values` by column name."""

    values: dict[str, Any]
    sequence_num: int
    is_deleted: bool = False
    source_timestamp: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """The table after one commit: who made it, the ledger, and the rows that are not deleted."""

    incarnation: int
    epoch: int
    ledger: int
    action: str
    state: State


@dataclass(slots=True, kw_only=True)
class StoredTable:
    """What the warehouse keeps of a table. `schema` is None while the table is not there.

    Attributes:
        merged: Counts of the incarnation, moved in the commits of the batches.
        changed_by_others: What others did to the rows, in order (`MemoryWarehouse.tamper`).
    """

    uuid: str
    incarnation: int
    epoch: int
    ledger: int = EMPTY_LEDGER
    created_in: int | None = None
    schema: TableSchema | None = None
    rows: list[StoredRow] = field(default_factory=list)
    merged: Merged = field(default_factory=Merged)
    changed_by_others: list[str] = field(default_factory=list)
    history: list[HistoryEntry] = field(default_factory=list)

    def live(self) -> list[Mapping[str, Any]]:
        """Rows that are not deleted."""
        return [r.values for r in self.rows if not r.is_deleted]


class MemoryWarehouse:
    """Tables that outlive the target objects that write them."""

    _warehouses: ClassVar[dict[str, MemoryWarehouse]] = {}
    _registry_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.tables: dict[TableId, StoredTable] = {}

    @classmethod
    def open(cls, name: str) -> MemoryWarehouse:
        """The warehouse of that name in this process; made when first asked for."""
        with cls._registry_lock:
            return cls._warehouses.setdefault(name, cls())

    def state(self, table: TableId) -> State:
        """The rows of a table that are not deleted, as a multiset; nothing if the table is not there."""
        with self.lock:
            stored = self.tables.get(table)
            return {} if stored is None or stored.schema is None else state_of(stored.schema, stored.live())

    def tamper(self, table: TableId, what: str, act: Callable[[StoredTable], object]) -> None:
        """Change a table's rows as somebody else would."""
        with self.lock:
            act(self.tables[table])
            self.tables[table].changed_by_others.append(what)

    def history(self, table: TableId) -> Sequence[HistoryEntry]:
        """What a reader could have seen, one entry per commit, over all incarnations."""
        with self.lock:
            return list(self.tables[table].history) if table in self.tables else []


class MemoryTarget(DeltaTarget[MemoryTargetConfig]):
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
            stored = [(s.table, self.warehouse.tables.get(s.table)) for s in tables]
        foreign = [
            t
            for t, held in stored
            if held is not None and held.uuid != self.context.uuid and self.config.adopt != "replace"
        ]
        return [
            Problem(code="not_ours", message="the table belongs to another replicator", place=str(t)) for t in foreign
        ]

    def read_ledger(self, table: TargetTable) -> Ledger | None:
        self.faults.hit("read_ledger", table.table)
        with self.warehouse.lock:
            held = self.warehouse.tables.get(table.table)
            if held is None or held.uuid != table.uuid:
                return None
            return Ledger(incarnation=held.incarnation, epoch=held.epoch, last_applied=held.ledger)

    def claim(self, table: TargetTable) -> Claim:
        self.faults.hit("claim", table.table)
        with self.warehouse.lock:
            held = self.warehouse.tables.get(table.table)
            if held is not None and held.uuid != table.uuid:
                if self.config.adopt != "replace":
                    raise TableError(
                        "the table belongs to another replicator",
                        code="not_ours",
                        table=str(table.table),
                        action="Set target.adopt: replace.",
                    )
                held = None
            if held is None:
                held = self.warehouse.tables[table.table] = StoredTable(
                    uuid=table.uuid, incarnation=table.incarnation, epoch=table.epoch
                )
            if held.epoch > table.epoch or held.incarnation > table.incarnation:
                raise _fenced(table, held)
            if held.incarnation < table.incarnation:
                held.ledger, held.merged = EMPTY_LEDGER, Merged()
            held.epoch, held.incarnation = table.epoch, table.incarnation
            claim = Claim(last_applied=held.ledger)
        self.faults.hit("claim.after", table.table)
        return claim

    def apply_ddl(self, table: TargetTable, event: DDLEvent, sequence_num: int) -> None:
        def act(held: StoredTable) -> None:
            match event.operation:
                case DDLOperation.CREATE_TABLE:
                    _create(held, table, event)
                case DDLOperation.TRUNCATE_TABLE:
                    _remove(held, table, lambda _: True)
                case DDLOperation.DROP_TABLE:
                    held.schema, held.rows = None, []
                case DDLOperation.CREATE_DATABASE | DDLOperation.DROP_DATABASE:
                    pass
                case _:
                    raise SchemaConflictError(
                        f"{event.operation} has no counterpart here",
                        code="schema_change_unsupported",
                        table=str(table.table),
                    )

        self._commit("apply_ddl", table, sequence_num, act)

    def apply_batch(self, table: TargetTable, batch: Batch) -> BatchResult:
        def act(held: StoredTable) -> None:
            if held.schema is None or held.schema.fingerprint != batch.schema.fingerprint:
                raise SchemaConflictError(
                    "the batch has another shape than the table", code="schema_conflict", table=str(table.table)
                )
            if batch.skip_to != held.ledger:
                raise FatalError(
                    f"the batch continues {batch.skip_to}, the ledger is {held.ledger}",
                    code="ledger_mismatch",
                    table=str(table.table),
                )
            rows = _read(batch)
            _check_append(held, table, batch, rows)
            count = Counting(held, table, batch, rows)
            for row in rows:
                count.change(_apply_row(held, table, batch, row))
            held.merged += count.done(held)

        applied = self._commit("apply_batch", table, batch.last, act)
        return BatchResult(was_skipped=not applied)

    def audit(self, table: TargetTable, since: str | None) -> Audit:
        self.faults.hit("audit")
        with self.warehouse.lock:
            held = self.warehouse.tables[table.table]
            done = held.changed_by_others
            return Audit(
                place=str(len(done)), merged=held.merged, changed_by_others=() if since is None else done[int(since) :]
            )

    def complete_snapshot(self, table: TargetTable, start_number: int, sequence_num: int) -> None:
        self._commit(
            "complete_snapshot",
            table,
            sequence_num,
            lambda held: _remove(held, table, lambda row: row.sequence_num < start_number),
        )

    def advance(self, table: TargetTable, sequence_num: int) -> None:
        self._commit("advance", table, sequence_num, lambda _: None)

    def maintain(self, table: TargetTable) -> Mapping[str, Any] | None:
        self.faults.hit("maintain", table.table)
        return None

    def drop(self, table: TargetTable) -> None:
        self.faults.hit("drop", table.table)
        with self.warehouse.lock:
            held = self.warehouse.tables.get(table.table)
            if held is not None and held.uuid == table.uuid:
                del self.warehouse.tables[table.table]
        self.faults.hit("drop.after", table.table)

    def close(self) -> None:
        """Nothing is held."""

    def _commit(self, action: str, table: TargetTable, sequence_num: int, act: Callable[[StoredTable], None]) -> bool:
        """Act and move the ledger in one step, unless the ledger is there already; whether anything was done."""
        self.faults.hit(action, table.table)
        with self.warehouse.lock:
            held = self.warehouse.tables.get(table.table)
            if (
                held is None
                or held.uuid != table.uuid
                or (held.epoch, held.incarnation) != (table.epoch, table.incarnation)
            ):
                raise _fenced(table, held)
            if held.ledger >= sequence_num:
                return False
            saved = [StoredRow(dict(r.values), r.sequence_num, r.is_deleted, r.source_timestamp) for r in held.rows]
            counted = held.merged
            try:
                act(held)
            except Exception:
                held.rows, held.merged = saved, counted
                raise
            held.ledger = sequence_num
            state = {} if held.schema is None else state_of(held.schema, held.live())
            held.history.append(
                HistoryEntry(
                    incarnation=table.incarnation, epoch=table.epoch, ledger=sequence_num, action=action, state=state
                )
            )
        self.faults.hit(f"{action}.after", table.table)
        return True


def _fenced(table: TargetTable, held: StoredTable | None) -> FencedError:
    found = "nothing" if held is None else f"epoch {held.epoch}, incarnation {held.incarnation}"
    return FencedError(
        f"wanted epoch {table.epoch}, incarnation {table.incarnation}; found {found}",
        code="fenced",
        table=str(table.table),
    )


def _create(held: StoredTable, table: TargetTable, event: DDLEvent) -> None:
    assert event.schema is not None, "CREATE_TABLE carries the shape"
    if held.schema is not None and held.created_in == table.incarnation:
        if held.schema.fingerprint != event.schema.fingerprint:
            raise SchemaConflictError(
                "the table exists with another shape", code="schema_conflict", table=str(table.table)
            )
        return
    held.schema, held.rows, held.created_in = event.schema, [], table.incarnation


def _remove(held: StoredTable, table: TargetTable, condition: Callable[[StoredRow], bool]) -> None:
    if table.options.deletes == "soft":
        for row in held.rows:
            row.is_deleted = row.is_deleted or condition(row)
    else:
        held.rows = [row for row in held.rows if not condition(row)]


def _read(batch: Batch) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for file in batch.files:
        system, path = FileSystem.from_uri(file.uri)
        with system.open_input_file(path) as stream:
            rows += pq.read_table(stream).to_pylist()
    return [row for row in rows if row[SEQUENCE_NUM] > batch.skip_to]


def _check_append(held: StoredTable, table: TargetTable, batch: Batch, rows: Sequence[Mapping[str, Any]]) -> None:
    if not batch.is_append:
        return
    fields = batch.schema.key_fields
    keys = [
        tuple(row[ROW][f] for f in fields) for row in rows if row[OPERATION] == DMLOperation.INSERT and not row[ABSENT]
    ]
    there = {tuple(stored.values[n] for n in batch.schema.key) for stored in held.rows}
    if len(keys) != len(rows) or (fields and (len(set(keys)) != len(keys) or there & set(keys))):
        raise FatalError(
            "a batch that may be appended holds more than new rows", code="wrong_append", table=str(table.table)
        )


class Counting:
    """Counts what a batch finds and leaves, key by key."""

    def __init__(self, held: StoredTable, table: TargetTable, batch: Batch, rows: Sequence[Mapping[str, Any]]) -> None:
        self._batch, self._table = batch, table
        self._before = self._keys(held)
        self._alive_before = self._keys(held, alive=True)
        self._added = self._removed = self._missing = 0
        self._first: dict[Any, bool] = {}
        for row in rows:
            for key, expects in self._touches(row):
                self._first.setdefault(key, expects)

    def change(self, found: bool) -> None:
        """Of a table without a key: one change, and whether the row that it takes away was there."""
        self._missing += not found

    def done(self, held: StoredTable) -> Merged:
        """What the batch made of the table."""
        expects = self._batch.expects_rows
        if not self._batch.schema.key:
            before, after = self._before, self._keys(held)
            return Merged(
                inserted=len(after - before), deleted=len(before - after), not_found=self._missing if expects else 0
            )
        after, touched = self._keys(held), set(self._first)
        missing = {key for key, is_expected in self._first.items() if is_expected} - self._alive_before
        return Merged(
            matched=len(touched & self._before & after),
            inserted=len(after - self._before),
            deleted=len(self._before - after),
            not_found=len(missing) if expects else 0,
        )

    def _keys(self, held: StoredTable, *, alive: bool = False) -> set[Any]:
        rows = [row for row in held.rows if not (alive and row.is_deleted)]
        names = self._batch.schema.key
        return {tuple(row.values[n] for n in names) if names else row.sequence_num for row in rows}

    def _touches(self, change: Mapping[str, Any]) -> list[tuple[Any, bool]]:
        """The keys that a change is about, in order, and whether it expects a row there."""
        fields = self._batch.schema.key_fields
        before, row = change[BEFORE], change[ROW]
        if not fields or change[IS_SNAPSHOT]:
            return [(tuple(row[f] for f in fields), False)] if fields else []
        old = None if before is None else tuple(before[f] for f in fields)
        new = None if row is None else tuple(row[f] if row[f] is not None else before[f] for f in fields)
        if change[OPERATION] == DMLOperation.UPDATE:
            return [(new, True)] if old in (None, new) else [(old, True), (new, False)]
        return [(old, True)] if new is None else [(new, False)]


def _apply_row(held: StoredTable, table: TargetTable, batch: Batch, change: Mapping[str, Any]) -> bool:
    """Apply one change; False if a row of a table without a key was to go and was not there."""
    names = {f: n for n, f in batch.schema.fields.items()}
    before = None if change[BEFORE] is None else {names[f]: v for f, v in change[BEFORE].items()}
    row = None if change[ROW] is None else {names[f]: v for f, v in change[ROW].items()}
    absent = {names[f] for f in change[ABSENT] or ()}
    if change[OPERATION] == DMLOperation.DELETE and before is None:
        raise KeyMissingError("a DELETE without the row's key", code="key_missing", table=str(table.table))
    if not batch.schema.key:
        return _apply_keyless(held, table, change, before, row)
    old = before if before is not None else row
    assert old is not None, "a change has a row or what was before it"
    origin = _take(held, batch.schema.key, old)
    if row is None:
        if origin is not None and table.options.deletes == "soft":
            origin.is_deleted, origin.sequence_num = True, change[SEQUENCE_NUM]
            held.rows.append(origin)
        return True
    kept = origin.values if origin is not None and not origin.is_deleted else {}
    values = {n: kept.get(n) if n in absent else v for n, v in row.items()}
    _take(held, batch.schema.key, row)
    held.rows.append(StoredRow(values, change[SEQUENCE_NUM], source_timestamp=change[SOURCE_TIMESTAMP]))
    return True


def _take(held: StoredTable, key: Sequence[str], like: Mapping[str, Any]) -> StoredRow | None:
    for index, stored in enumerate(held.rows):
        if all(stored.values[n] == like[n] for n in key):
            return held.rows.pop(index)
    return None


def _apply_keyless(
    held: StoredTable,
    table: TargetTable,
    change: Mapping[str, Any],
    before: Mapping[str, Any] | None,
    row: dict[str, Any] | None,
) -> bool:
    equal = [stored for stored in held.rows if not stored.is_deleted and stored.values == before]
    if before is not None and equal:
        # The newest of equal rows: while a snapshot is taken anew, the older copies go when it is complete.
        newest = max(equal, key=lambda stored: stored.sequence_num)
        held.rows = [stored for stored in held.rows if stored is not newest]
        if table.options.deletes == "soft" and row is None:
            held.rows.append(StoredRow(newest.values, change[SEQUENCE_NUM], is_deleted=True))
    if row is not None:
        held.rows.append(StoredRow(row, change[SEQUENCE_NUM], source_timestamp=change[SOURCE_TIMESTAMP]))
    return before is None or bool(equal)

"""The in-memory database as a source."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from replicator.model.deletion import Deletion
from replicator.model.errors import (
    LogGapError,
    OffsetExpiredError,
    Problem,
    SchemaConflictError,
    SourceUnavailableError,
)
from replicator.model.events import (
    ABSENT,
    BEFORE,
    IS_SNAPSHOT,
    OPERATION,
    ROW,
    SEQUENCE_NUM,
    SOURCE_TIMESTAMP,
    TRANSACTION_ID,
    DDLEvent,
    change_schema,
)
from replicator.model.identity import TableIdentity
from replicator.model.isolation import of_table
from replicator.model.offset import Offset
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import (
    TRANSACTION_SCHEMA,
    Chunk,
    ChunkRequest,
    Cursor,
    DeltaSource,
    LogBatch,
    LogReader,
    LogStatus,
    PullLimits,
    Seen,
    SourceContext,
    SupportsRehearsal,
    TableChanges,
    TableDescription,
    TableSummary,
    Visibility,
    WholeRead,
)
from replicator.plugins.verification import SourceState, SupportsSourceVerification
from replicator_testing.memory.database import MemoryDatabase, Slot, Snapshot
from replicator_testing.memory.faults import Faults
from replicator_testing.memory.log import LogMark, LogTransaction, MemoryChange, Row
from replicator_testing.memory.statements import rehearse
from replicator_testing.memory.transaction import Table
from replicator_testing.memory.verification import MemorySourceState, RowsState

_ROW_BYTES = 64
_WHOLE_READ_ROWS = 1000


class MemorySourceConfig(BaseModel):
    """The `source:` block of type `memory`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    database: str = Field(description="Name of the database in this process.")


@dataclass(frozen=True, slots=True)
class MemoryVisibility(Visibility):
    """Visibility of one read of the database."""

    snapshot: Snapshot

    def classify(self, transaction_ids: pa.StringArray) -> pa.Int8Array:
        seen = [Seen.SEEN if self.snapshot.sees(i) else Seen.UNSEEN for i in transaction_ids.to_pylist()]
        return pa.array([int(s) for s in seen], pa.int8())


class MemorySource(DeltaSource[MemorySourceConfig], SupportsRehearsal, SupportsSourceVerification):
    """Reads a `MemoryDatabase`. Operations for `faults`: the names of the methods, `pull`, `acknowledge`, `keep_alive`, and `same_table`.

    `open_log.table` is reached for each table for which the log is opened, `decode` for each of them whose changes a pull delivers.
    """

    type_name: ClassVar[str] = "memory"
    config_model: ClassVar[type[BaseModel]] = MemorySourceConfig

    def __init__(self, config: MemorySourceConfig, context: SourceContext) -> None:
        super().__init__(config, context)
        self.database = MemoryDatabase.open(config.database)
        self.faults = Faults()
        self.chunk_rows_fit: int | None = None
        """Rows after which a chunk is cut, as one that grows too large."""
        self.can_locate = True
        """True if it knows tables under other names, as PostgreSQL does."""
        self._objects: dict[TableId, str | None] = {}

    def identity(self) -> Mapping[str, str]:
        return {"system": self.database.name, "slot": self.context.replicator}

    def list_tables(self) -> Sequence[TableSummary]:
        self.faults.hit("list_tables")
        with self.database.changed:
            return [TableSummary(table=t) for t in sorted(self.database.tables)]

    def describe(self, tables: Sequence[TableId]) -> Mapping[TableId, TableDescription]:
        self.faults.hit("describe", *tables)
        with self.database.changed:
            found = [self.database.tables[t] for t in tables if t in self.database.tables]
            return {
                t.schema.table: TableDescription(
                    schema=t.schema, identity=t.identity(), estimated_rows=len(t.rows), storage_by=t.storage_by
                )
                for t in found
            }

    def locate(self, tables: Sequence[TableId]) -> Mapping[TableId, TableId]:
        self.faults.hit("locate", *tables)
        with self.database.changed:
            now = {str(held.oid): table for table, held in self.database.tables.items() if self.can_locate}
        found = {table: now[oid] for table in tables if (oid := self._objects.get(table)) in now and oid is not None}
        return {table: name for table, name in found.items() if name != table}

    def check(self, tables: Sequence[TableId]) -> Sequence[Problem]:
        self.faults.hit("check", *tables)
        with self.database.changed:
            missing = [t for t in tables if t not in self.database.tables]
            others = {str(t) for t in self.database.tables if t not in tables}
            found = [p for p in self.database.problems if p.table not in others]
        return found + [
            Problem(code="table_missing", message="the table does not exist", table=str(t)) for t in missing
        ]

    def rehearse(self, statement: str) -> Sequence[DDLEvent]:
        self.faults.hit("rehearse")
        with self.database.changed:
            return rehearse(statement, {table: held.schema for table, held in self.database.tables.items()})

    def prepare(self, tables: Sequence[TableId], *, is_first: bool) -> Offset:
        self.faults.hit("prepare", *tables)
        name = self.context.replicator
        with self.database.changed:
            held = [self.database.table(t) for t in tables]
            end = len(self.database.log)
            if is_first:
                self.database.slots[name] = Slot(confirmed=end)
            slot = self._slot()
            slot.published = {t.oid: slot.published.get(t.oid, end) for t in held}
        self.faults.hit("prepare.after")
        return self.offset(end)

    def status(self, since: Visibility | None = None) -> LogStatus:
        self.faults.hit("status")
        next_id = since.snapshot.next_id if isinstance(since, MemoryVisibility) else 0
        waiting_for = [f"transaction {i}" for i in self.database.invisible() if int(i) < next_id]
        with self.database.changed:
            slot = self.database.slots.get(self.context.replicator)
            retained = None if slot is None else (len(self.database.log) - slot.confirmed) * _ROW_BYTES
        return LogStatus(now=self.database.now(), retained_bytes=retained, waiting_for=waiting_for)

    def remove(self) -> Deletion:
        self.faults.hit("remove")
        with self.database.changed:
            return Deletion(removed=("its slot",) if self.database.slots.pop(self.context.replicator, None) else ())

    def leftovers(self) -> Sequence[str]:
        return [f"DROP SLOT {self.context.replicator}"]

    def accept(self, identities: Mapping[TableId, TableIdentity]) -> None:
        self.faults.hit("accept", *identities)
        self._objects |= {table: identity.object for table, identity in identities.items()}

    def open_log(self, after: Offset, schemas: Mapping[TableId, TableSchema]) -> LogReader:
        self.faults.hit("open_log")
        for table in schemas:
            with of_table(table, "opening the log for it"):
                self.faults.hit("open_log.table", table)
        position = after.value["position"]
        with self.database.changed:
            slot = self._slot()
            if after.value["system"] != self.database.name:
                raise LogGapError("the offset is another database's", code="log_gap")
            if position < slot.confirmed:
                raise LogGapError(f"{slot.confirmed} has been acknowledged, beyond {position}", code="log_gap")
            if position < self.database.log_start:
                raise OffsetExpiredError(
                    f"the log begins at {self.database.log_start}, not at {position}", code="offset_expired"
                )
            return MemoryLogReader(self, slot, position, frozenset(schemas))

    def mark(self) -> str:
        self.faults.hit("mark")
        return self.database.mark()

    def visibility(self) -> Visibility:
        self.faults.hit("visibility")
        return MemoryVisibility(self.database.snapshot())

    def read_chunk(self, request: ChunkRequest) -> Chunk:
        schema = request.schema
        self.faults.hit("read_chunk", schema.table)
        with self.database.changed:
            before = self._object(schema).identity()
            rows, snapshot = self.database.read(schema.table)
        self.faults.hit("read_chunk.after", schema.table)
        wanted = _select(request, rows)
        is_cut = self.chunk_rows_fit is not None and len(wanted) > self.chunk_rows_fit
        if is_cut:
            wanted = wanted[: self.chunk_rows_fit] if request.keys is None else []
        return Chunk(
            rows=_row_batch(schema, wanted),
            cursor=_cursor(schema, wanted[-1]) if wanted else None,
            visibility=MemoryVisibility(snapshot),
            identity=self._identity_if(schema.table, before),
            is_cut=is_cut,
        )

    @contextmanager
    def read_whole(self, schema: TableSchema) -> Iterator[WholeRead]:
        self.faults.hit("read_whole", schema.table)
        with self.database.changed:
            before = self._object(schema).identity()
            rows, snapshot = self.database.read(schema.table)
        yield WholeRead(
            visibility=MemoryVisibility(snapshot),
            batches=self._batches(schema, rows),
            identity=lambda: self._identity_if(schema.table, before),
        )

    @contextmanager
    def open_state(self, schema: TableSchema, columns: Collection[str]) -> Iterator[SourceState]:
        self.faults.hit("open_state", schema.table)
        with self.database.changed:
            before = self._object(schema).identity()
            rows, snapshot = self.database.read(schema.table)
        state, find = RowsState.of(schema, columns, rows), partial(self._identity_if, schema.table, before)
        yield MemorySourceState(rows_state=state, snapshot=MemoryVisibility(snapshot), find=find)

    def close(self) -> None:
        with self.database.changed:
            slot = self.database.slots.get(self.context.replicator)
            if slot is not None and isinstance(slot.holder, MemoryLogReader) and slot.holder.source is self:
                slot.holder.close()

    def _slot(self) -> Slot:
        slot = self.database.slots.get(self.context.replicator)
        if slot is None:
            raise LogGapError("the slot does not exist", code="log_gap")
        return slot

    def offset(self, position: int) -> Offset:
        """Return the offset after this many records of the log."""
        return Offset.of({"system": self.database.name, "position": position})

    def _object(self, schema: TableSchema) -> Table:
        held = self.database.tables.get(schema.table)
        shape = {} if held is None else {c.name: c.type for c in held.schema.columns}
        if held is None or any(shape.get(c.name) != c.type for c in schema.columns):
            raise SchemaConflictError(
                "the table no longer has the columns that were asked for",
                code="schema_changed",
                table=str(schema.table),
            )
        return held

    def _identity_if(self, table: TableId, before: TableIdentity) -> TableIdentity | None:
        self.faults.hit("same_table", table)
        with self.database.changed:
            return before if table in self.database.tables and self.database.table(table).identity() == before else None

    def _batches(self, schema: TableSchema, rows: Sequence[Row]) -> Iterator[pa.RecordBatch]:
        for start in range(0, len(rows), _WHOLE_READ_ROWS):
            self.faults.hit("read_whole.batch", schema.table)
            yield _row_batch(schema, rows[start : start + _WHOLE_READ_ROWS])


class MemoryLogReader(LogReader):
    """An open log of a `MemoryDatabase`; opening another one on the same slot ends it."""

    def __init__(self, source: MemorySource, slot: Slot, position: int, tables: frozenset[TableId]) -> None:
        self.source = source
        self._tables = tables
        self._slot = slot
        self._position = position
        self._entry = 0
        self._delivered = position
        slot.holder = self

    def pull(self, limits: PullLimits) -> LogBatch:
        self.source.faults.hit("pull")
        database = self.source.database
        with database.changed:
            self._check_open()
            if len(database.log) == self._position and limits.wait_s > 0:
                database.changed.wait(limits.wait_s)
                self._check_open()
            pull = _Pull(self._slot)
            self._fill(pull, limits)
            is_drained = self._position == len(database.log) and self._entry == 0
            source_time = database.now() if is_drained else pull.committed_at
            moved = self._position != self._delivered
            self._delivered = self._position
        for table in pull.rows.keys() & self._tables:
            with of_table(table, "decoding its changes"):
                self.source.faults.hit("decode", table)
        return LogBatch(
            changes=pull.changes(),
            ddl=pull.ddl,
            events=pull.events,
            transactions=pa.RecordBatch.from_pylist(pull.transactions, schema=TRANSACTION_SCHEMA),
            open_transaction=self._open_transaction(),
            marks=pull.marks,
            offset=self.source.offset(self._position) if moved else None,
            source_time=source_time,
        )

    def acknowledge(self, offset: Offset) -> None:
        self.source.faults.hit("acknowledge")
        with self.source.database.changed:
            self._check_open()
            self._slot.confirmed = max(self._slot.confirmed, offset.value["position"])

    def keep_alive(self) -> None:
        self.source.faults.hit("keep_alive")

    def close(self) -> None:
        with self.source.database.changed:
            if self._slot.holder is self:
                self._slot.holder = None
            self.source.database.changed.notify_all()

    def _check_open(self) -> None:
        if self._slot.holder is not self or self._slot is not self.source.database.slots.get(
            self.source.context.replicator
        ):
            raise SourceUnavailableError("the connection of the log was closed", code="source_unavailable")

    def _fill(self, pull: _Pull, limits: PullLimits) -> None:
        log = self.source.database.log
        while self._position < len(log):
            record = log[self._position]
            if isinstance(record, LogMark):
                self._position += 1
                pull.marks.append(record.text)
                return
            while self._entry < len(record.entries):
                if pull.events >= limits.rows or pull.events * _ROW_BYTES >= limits.bytes:
                    return
                entry = record.entries[self._entry]
                self._entry += 1
                if isinstance(entry, MemoryChange):
                    pull.add_change(record, entry, self._position)
                elif events := [
                    e for oid, e in zip(entry.oids, entry.events, strict=True) if pull.is_published(oid, self._position)
                ]:
                    pull.add_ddl(record, events)
                    self._end_if_complete(pull, record)
                    return
            self._end_if_complete(pull, record)

    def _end_if_complete(self, pull: _Pull, record: LogTransaction) -> None:
        if self._entry < len(record.entries):
            return
        self._position += 1
        self._entry = 0
        pull.end(record, self._position - 1)

    def _open_transaction(self) -> str | None:
        if self._entry == 0:
            return None
        record = self.source.database.log[self._position]
        assert isinstance(record, LogTransaction)
        return record.id


@dataclass(slots=True)
class _Pull:
    """The parts of one pull."""

    slot: Slot
    events: int = 0
    rows: dict[TableId, tuple[TableSchema, list[dict[str, Any]]]] = field(default_factory=dict)
    ddl: list[DDLEvent] = field(default_factory=list)
    transactions: list[dict[str, Any]] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)
    committed_at: datetime | None = None

    def is_published(self, oid: int, position: int) -> bool:
        since = self.slot.published.get(oid)
        return since is not None and since <= position

    def add_change(self, record: LogTransaction, change: MemoryChange, position: int) -> None:
        if not self.is_published(change.oid, position):
            return
        schema = change.schema
        _, rows = self.rows.setdefault(schema.table, (schema, []))
        fields = schema.fields
        before_names = schema.key or tuple(fields)
        rows.append(
            {
                SEQUENCE_NUM: self.events,
                OPERATION: change.operation.value,
                IS_SNAPSHOT: False,
                SOURCE_TIMESTAMP: record.committed_at,
                TRANSACTION_ID: record.id,
                ABSENT: sorted(fields[n] for n in change.absent) or None,
                BEFORE: None if change.before is None else {fields[n]: change.before[n] for n in before_names},
                ROW: None
                if change.row is None
                else {f: None if n in change.absent else change.row[n] for n, f in fields.items()},
            }
        )
        self.events += 1

    def add_ddl(self, record: LogTransaction, events: Sequence[DDLEvent]) -> None:
        self.ddl.extend(
            replace(event, transaction_id=record.id, source_timestamp=record.committed_at) for event in events
        )
        self.events += len(events)

    def end(self, record: LogTransaction, position: int) -> None:
        self.committed_at = record.committed_at
        if any(
            self.is_published(oid, position)
            for entry in record.entries
            for oid in ((entry.oid,) if isinstance(entry, MemoryChange) else entry.oids)
        ):
            self.transactions.append({"id": record.id, "end_ordinal": self.events, "committed_at": record.committed_at})

    def changes(self) -> Sequence[TableChanges]:
        return [
            TableChanges(schema=schema, rows=pa.RecordBatch.from_pylist(rows, schema=change_schema(schema)))
            for schema, rows in self.rows.values()
        ]


def _select(request: ChunkRequest, rows: Sequence[Row]) -> Sequence[Row]:
    schema = request.schema

    def key(row: Row) -> tuple[Any, ...]:
        return tuple(row[n] for n in schema.key)

    if request.keys is not None:
        wanted = {_key_values(schema, cursor) for cursor in request.keys}
        return [row for row in rows if key(row) in wanted]
    after = None if request.after is None else _key_values(schema, request.after)
    upto = None if request.upto is None else _key_values(schema, request.upto)
    found = [row for row in rows if (after is None or key(row) > after) and (upto is None or key(row) <= upto)]
    return found[: request.limit]


def _row_batch(schema: TableSchema, rows: Sequence[Row]) -> pa.RecordBatch:
    fields = schema.fields
    return pa.RecordBatch.from_pylist(
        [{f: row[n] for n, f in fields.items()} for row in rows], schema=pa.schema(list(schema.row_type))
    )


def _cursor(schema: TableSchema, row: Row) -> Cursor:
    return tuple(_to_text(row[n]) for n in schema.key)


def _key_values(schema: TableSchema, cursor: Cursor) -> tuple[Any, ...]:
    return tuple(_from_text(text, schema.column(name).type) for text, name in zip(cursor, schema.key, strict=True))


def _to_text(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, date):
        return value.isoformat()
    return str(value)


def _from_text(text: str, type_: pa.DataType) -> Any:
    if pa.types.is_boolean(type_):
        return text == "True"
    if pa.types.is_integer(type_):
        return int(text)
    if pa.types.is_decimal(type_):
        return Decimal(text)
    if pa.types.is_binary(type_):
        return bytes.fromhex(text)
    if pa.types.is_date32(type_):
        return date.fromisoformat(text)
    if pa.types.is_timestamp(type_):
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo else moment
    return text

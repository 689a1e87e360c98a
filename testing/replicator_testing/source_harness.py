"""The part of a source's contract suite that its author writes, and the helpers by which the suite reads."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

import pyarrow as pa

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
from replicator.model.offset import Offset
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import (
    TRANSACTION_SCHEMA,
    ChunkRequest,
    Cursor,
    DeltaSource,
    LogBatch,
    LogReader,
    PullLimits,
    Seen,
    Visibility,
)

Row = Mapping[str, Any]

_PULLS_MAX = 200
WIDE = PullLimits(rows=10_000, bytes=64 << 20, wait_s=1.0)


class TableKind(StrEnum):
    """The contract's tables."""

    KEYED = "keyed"
    """Primary key `id`."""
    COMPOSITE = "composite"
    """Primary key `(name, id)`, in that order."""
    KEYLESS = "keyless"
    """No key, set up so that the log carries whole rows."""


class WriterTransaction(ABC):
    """An open transaction on a connection of its own. Rows are mappings of all four columns by name."""

    @abstractmethod
    def insert(self, table: TableId, row: Row) -> None:
        """Insert one row."""

    @abstractmethod
    def update(self, table: TableId, where: Row, changes: Row) -> None:
        """Change columns of the one row whose key is `where`'s; of a table without a key, of one row that equals `where`."""

    @abstractmethod
    def delete(self, table: TableId, where: Row) -> None:
        """Delete one row, named as for `update`."""

    @abstractmethod
    def truncate(self, *tables: TableId) -> None:
        """Empty tables in one statement."""

    @abstractmethod
    def commit(self) -> None:
        """Commit, visibly for every read that begins later."""

    @abstractmethod
    def rollback(self) -> None:
        """Undo everything."""


class SourceHarness(ABC):
    """One database that no other test uses."""

    @abstractmethod
    def source(self) -> DeltaSource[Any]:
        """Make a new source object of the same replicator, as another process would. The harness closes its objects at the end."""

    @abstractmethod
    def create_table(self, kind: TableKind) -> TableId:
        """Create an empty table of a new name."""

    @abstractmethod
    def drop_table(self, table: TableId) -> None:
        """Drop a table."""

    @abstractmethod
    def begin(self) -> WriterTransaction:
        """Open a transaction."""


def row(
    id_: int | None, name: str | None = "a", amount: str | None = "1.00", note: str | None = None
) -> dict[str, Any]:
    """Return a row of the contract's tables."""
    return {"id": id_, "name": name, "amount": None if amount is None else Decimal(amount), "note": note}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A delivered change."""

    table: TableId
    operation: str
    transaction: str
    before: Row | None
    row: Row | None
    absent: frozenset[str]


@dataclass(slots=True)
class Delivered:
    """Events of several pulls, in order, and the rules that hold for each of them."""

    changes: list[Change] = field(default_factory=list)
    ddl: list[DDLEvent] = field(default_factory=list)
    events: list[Change | DDLEvent] = field(default_factory=list)
    transactions: list[str] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)
    marks: list[str] = field(default_factory=list)
    offsets: list[tuple[Offset, int]] = field(default_factory=list)
    """Each offset with the number of events before it."""
    open_seen: list[str] = field(default_factory=list)
    open_transaction: str | None = None
    source_time: datetime | None = None

    def add(self, batch: LogBatch) -> None:
        """Add one pull."""
        first = len(self.events)
        placed = _placed(batch)
        assert sorted(placed) == list(range(batch.events)), "ordinals run from 0 to events - 1"
        for ordinal in sorted(placed):
            event = placed[ordinal]
            self.events.append(event)
            (self.ddl if isinstance(event, DDLEvent) else self.changes).append(event)  # type: ignore[arg-type]
        self._add_transactions(batch, first)
        self.marks += batch.marks
        self.open_transaction = batch.open_transaction
        if batch.open_transaction is not None:
            self.open_seen.append(batch.open_transaction)
        if batch.offset is not None:
            self.offsets.append((batch.offset, max(self.ends.values(), default=0)))
        if batch.source_time is not None:
            assert batch.source_time.tzinfo is not None
            self.source_time = batch.source_time

    def _add_transactions(self, batch: LogBatch, first: int) -> None:
        assert batch.transactions.schema.equals(TRANSACTION_SCHEMA)
        begin = max(self.ends.values(), default=0)
        ended = batch.transactions.to_pylist()
        assert all(a["end_ordinal"] <= b["end_ordinal"] for a, b in itertools.pairwise(ended))
        for transaction in ended:
            assert transaction["id"] not in self.ends, "a transaction ends once"
            end = first + transaction["end_ordinal"]
            self._check_owner(begin, end, transaction["id"])
            self.transactions.append(transaction["id"])
            self.ends[transaction["id"]] = end
            begin = end
        self._check_owner(begin, len(self.events), batch.open_transaction)

    def _check_owner(self, begin: int, end: int, owner: str | None) -> None:
        owners = {e.transaction if isinstance(e, Change) else e.transaction_id for e in self.events[begin:end]}
        assert owners <= {owner}, "events of a transaction follow each other and are closed by its end"


def _placed(batch: LogBatch) -> dict[int, Change | DDLEvent]:
    placed: dict[int, Change | DDLEvent] = {}
    assert len({c.schema.table for c in batch.changes}) == len(batch.changes), "one batch per table"
    for changes in batch.changes:
        assert changes.rows.schema.equals(change_schema(changes.schema))
        ordinals = changes.rows.column(SEQUENCE_NUM).to_pylist()
        assert ordinals == sorted(ordinals)
        for record in changes.rows.to_pylist():
            assert not record[IS_SNAPSHOT]
            assert record[SOURCE_TIMESTAMP] is not None
            placed[record[SEQUENCE_NUM]] = Change(
                table=changes.schema.table,
                operation=record[OPERATION],
                transaction=record[TRANSACTION_ID],
                before=record[BEFORE],
                row=record[ROW],
                absent=frozenset(record[ABSENT] or ()),
            )
    for ordinal, event in enumerate(batch.ddl, start=batch.events - len(batch.ddl)):
        assert ordinal not in placed, "DDL events have the last ordinals"
        placed[ordinal] = event
    return placed


@dataclass(kw_only=True)
class Setting:
    """Tables of a test, with an open log."""

    harness: SourceHarness
    source: DeltaSource[Any]
    schemas: Mapping[TableId, TableSchema]
    start: Offset
    reader: LogReader

    @property
    def table(self) -> TableId:
        """Return the only table."""
        (table,) = self.schemas
        return table

    @property
    def schema(self) -> TableSchema:
        """Return its schema."""
        return self.schemas[self.table]

    @contextmanager
    def transaction(self) -> Iterator[WriterTransaction]:
        """Open a transaction that commits at the end."""
        transaction = self.harness.begin()
        yield transaction
        transaction.commit()

    def insert(self, *rows: Row) -> None:
        """Insert rows into the only table, in one transaction."""
        with self.transaction() as t:
            for values in rows:
                t.insert(self.table, values)

    def drain(self, limits: PullLimits = WIDE) -> Delivered:
        """Return everything up to a mark made now."""
        return self.drain_to(self.source.mark(), limits)

    def drain_to(self, mark: str, limits: PullLimits = WIDE) -> Delivered:
        """Return everything up to a mark."""
        delivered = Delivered()
        for _ in range(_PULLS_MAX):
            delivered.add(self.reader.pull(limits))
            if mark in delivered.marks:
                assert delivered.marks[-1] == mark, "a mark ends a pull"
                return delivered
        raise AssertionError(f"the mark was not delivered within {_PULLS_MAX} pulls")

    def reopen(self, after: Offset) -> None:
        """Close everything and open the log after an offset, as a new process would."""
        self.reader.close()
        self.source.close()
        self.source = self.harness.source()
        self.source.prepare(list(self.schemas), is_first=False)
        self.reader = self.source.open_log(after, self.schemas)

    def pages(self, limit: int, upto: Cursor | None = None) -> list[Row]:
        """Read the only table in chunks."""
        rows: list[Row] = []
        after: Cursor | None = None
        while True:
            chunk = self.source.read_chunk(ChunkRequest(schema=self.schema, after=after, upto=upto, limit=limit))
            assert chunk.rows.schema.equals(pa.schema(list(self.schema.row_type)))
            assert chunk.rows.num_rows <= limit
            assert (chunk.cursor is None) == (chunk.rows.num_rows == 0)
            rows += chunk.rows.to_pylist()
            if chunk.rows.num_rows < limit and not chunk.is_cut:
                return rows
            assert chunk.cursor != after, "the cursor moves"
            after = chunk.cursor


def set_up(harness: SourceHarness, *kinds: TableKind) -> Setting:
    """Create tables of these kinds, and open their log."""
    tables = [harness.create_table(kind) for kind in kinds]
    source = harness.source()
    schemas = {t: d.schema for t, d in source.describe(tables).items()}
    start = source.prepare(tables, is_first=True)
    return Setting(harness=harness, source=source, schemas=schemas, start=start, reader=source.open_log(start, schemas))


def classify(visibility: Visibility, ids: Sequence[str]) -> list[Seen]:
    """Return the visibility of these transactions for a read."""
    answer = visibility.classify(pa.array(ids, pa.string()))
    assert answer.type == pa.int8()
    return [Seen(value) for value in answer.to_pylist()]

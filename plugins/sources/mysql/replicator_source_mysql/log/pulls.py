"""One pull: the events that were gathered, and the batch that is made of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from replicator.model.errors import ReplicatorError, TableError
from replicator.model.events import DDLEvent, change_schema
from replicator.model.schema import TableId
from replicator.plugins import get_logger
from replicator.plugins.kit.arrow import Longs
from replicator.plugins.source import TRANSACTION_SCHEMA, LogBatch, PullLimits, TableChanges
from replicator_source_mysql.binlog.events import TOO_LARGE
from replicator_source_mysql.versions import Version

_log = get_logger(__name__)

_BYTES_MAX: Final = 1 << 30
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction with events of ours. `committed_us`: µs since 1970, on the source's clock."""

    id: str
    committed_us: int


@dataclass(slots=True)
class _Part:
    """The rows events of one version in one pull; `slots` and `owners` give the position and the transaction of each."""

    version: Version
    events: list[tuple[int, bytes | memoryview]] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)


class Pull:
    """Gathers events until `finish` makes a batch of them.

    Args:
        opened: The transaction inside which the last pull stopped.

    Attributes:
        is_rolled_back: See `LogBatch.is_rolled_back`; nothing may follow.
    """

    def __init__(self, opened: Transaction | None = None) -> None:
        self.marks: list[str] = []
        self.is_rolled_back = False
        self._transactions: list[Transaction] = [opened] if opened is not None else []
        # Transaction number, slots and DDL events, at its end.
        self._ends: list[tuple[int, int, int]] = []
        self._parts: dict[int, _Part] = {}
        self._versions: dict[TableId, Version] = {}
        self._slots = 0
        self._rows = 0.0
        self._bytes = 0
        self._ddl: list[DDLEvent] = []
        self._errors: dict[TableId, TableError] = {}
        # The slots of changes that the log does not have, and of each table the last one and its transaction.
        self._empty_slots: list[int] = []
        self._unlogged: dict[TableId, tuple[int, int]] = {}
        self._unlogged_errors: dict[TableId, TableError] = {}

    @property
    def has_ended(self) -> bool:
        """Return whether nothing may follow: a DDL event or a mark came, or delivered rows were rolled back."""
        return bool(self._ddl or self.marks or self.is_rolled_back)

    @property
    def slots(self) -> int:
        """Rows events so far, and changes that the log does not have."""
        return self._slots

    def tables(self, slot: int) -> set[TableId]:
        """The tables of which there are rows from this slot on."""
        return {part.version.schema.table for part in self._parts.values() if part.slots[-1] >= slot}

    def cut(self, slot: int) -> None:
        """Drop the rows from this slot on: they were rolled back. Changes that the log does not have may have happened all the same."""
        for key, part in list(self._parts.items()):
            keep = bisect_left(part.slots, slot)
            for _, body in part.events[keep:]:
                self._bytes -= len(body)
                self._rows -= _estimate(part.version, len(body))
            del part.events[keep:], part.slots[keep:], part.owners[keep:]
            if not part.events:
                del self._parts[key]
        self._slots = max(slot, self._empty_slots[-1] + 1 if self._empty_slots else 0)

    def is_full(self, limits: PullLimits) -> bool:
        """Return whether a bound is reached. Rows are estimated: their events are not decoded yet."""
        return self._rows >= limits.rows or self._bytes >= limits.bytes or self._bytes >= _BYTES_MAX

    def admit(self, version: Version) -> bool:
        """Let this be the table's shape in the pull; False if it has another already: all rows of a table in one pull have one shape."""
        if id(version) in self._parts:
            return True
        known = self._versions.setdefault(version.schema.table, version)
        return known is version or known.schema == version.schema

    def rows(self, transaction: Transaction, version: Version, kind: int, body: bytes | memoryview) -> None:
        """Take a rows event."""
        self.rows_of(transaction)(version, kind, body)

    def rows_of(self, transaction: Transaction) -> Callable[[Version, int, bytes | memoryview], None]:
        """Return a function that takes rows events of a transaction; valid until an event of another one is taken."""
        owner, parts = self._number(transaction), self._parts

        def take(version: Version, kind: int, body: bytes | memoryview) -> None:
            part = parts.get(id(version))
            if part is None:
                self._versions.setdefault(version.schema.table, version)
                part = parts[id(version)] = _Part(version)
            part.events.append((kind, body))
            part.slots.append(self._slots)
            part.owners.append(owner)
            size = len(body)
            self._slots += 1
            self._bytes += size
            self._rows += _estimate(version, size)

        return take

    def unlogged(self, transaction: Transaction, tables: Collection[TableId]) -> None:
        """Record that the transaction may have changed these tables without a trace."""
        number = self._number(transaction)
        if all(self._unlogged.get(table, (0, -1))[1] == number for table in tables):
            return
        self._unlogged |= dict.fromkeys(tables, (self._slots, number))
        self._empty_slots.append(self._slots)
        self._slots += 1
        self._rows += 1.0

    def unlogged_statement(self, transaction: Transaction, errors: Mapping[TableId, TableError]) -> None:
        """Record that a statement may have changed these tables, each with its error for where no new snapshot is wanted."""
        self.unlogged(transaction, errors.keys())
        self._unlogged_errors |= errors

    def event(self, transaction: Transaction, event: DDLEvent) -> None:
        """Take a DDL event, the last thing of the pull, except others of its statement."""
        self._number(transaction)
        self._ddl.append(event)

    def end(self, transaction: Transaction) -> None:
        """End the transaction: it is committed."""
        self._ends.append((self._number(transaction), self._slots, len(self._ddl)))

    def fail(self, table: TableId, error: TableError) -> None:
        """Fail the table: its rows cannot be decoded from here on."""
        self._errors.setdefault(table, error)

    def finish(self, drop: Callable[[TableId], None], *, open_transaction: str | None) -> LogBatch:
        """Decode, count, and put together.

        Args:
            drop: Called with each table whose rows could not be decoded.
            open_transaction: See `LogBatch`.
        """
        if self.is_rolled_back:
            return LogBatch(open_transaction=None, is_rolled_back=True)
        counts = np.zeros(self._slots, np.int64)
        decoded = []
        for part in self._parts.values():
            table = part.version.schema.table
            try:
                rows = part.version.decoder.decode(part.events)
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 (it becomes the table's)
                self.fail(table, error_of_table(table, error))
                drop(table)
                continue
            counts[part.slots] = np.bincount(rows.event, minlength=len(part.events))
            size = sum(len(body) for _, body in part.events)
            part.version.bytes_per_row = max(1.0, size / max(1, len(rows.event)))
            decoded.append((part, rows))
        counts[self._empty_slots] = 1
        firsts = np.concatenate([[0], np.cumsum(counts)])
        changes: dict[TableId, list[pa.RecordBatch]] = {}
        schemas = {}
        for part, rows in decoded:
            slots = np.asarray(part.slots, np.int64)
            starts = np.concatenate([[0], np.cumsum(np.bincount(rows.event, minlength=len(slots)))])
            within = np.arange(len(rows.event)) - starts[rows.event]
            ordinals = firsts[slots[rows.event]] + within
            owners = np.asarray(part.owners, np.int64)[rows.event]
            schema = part.version.schema
            schemas[schema.table] = schema
            changes.setdefault(schema.table, []).append(
                pa.RecordBatch.from_arrays(
                    [
                        pa.array(ordinals),
                        rows.operation,
                        pa.repeat(pa.scalar(False), len(ordinals)),
                        self._times().take(pa.array(owners)),
                        self._ids().take(pa.array(owners)),
                        pa.nulls(len(ordinals), pa.list_(pa.string())),
                        rows.before,
                        rows.row,
                    ],
                    schema=change_schema(schema),
                )
            )
        events = int(firsts[-1])
        return LogBatch(
            open_transaction=open_transaction,
            changes=[TableChanges(schema=schemas[t], rows=_joined(b)) for t, b in changes.items() if b],
            ddl=self._ddl,
            events=events + len(self._ddl),
            transactions=self._ended(firsts),
            marks=self.marks,
            table_errors=self._errors,
            unlogged={table: int(firsts[slot]) for table, (slot, _) in self._unlogged.items()},
            unlogged_errors=self._unlogged_errors,
        )

    def _number(self, transaction: Transaction) -> int:
        if not self._transactions or self._transactions[-1] is not transaction:
            self._transactions.append(transaction)
        return len(self._transactions) - 1

    def _ids(self) -> pa.Array:
        return pa.array([t.id for t in self._transactions], pa.string())

    def _times(self) -> pa.Array:
        return pa.array([t.committed_us for t in self._transactions], pa.int64()).cast(_TIMESTAMP)

    def _ended(self, firsts: Longs) -> pa.RecordBatch:
        # DDL events are after all rows.
        ends = [int(firsts[slots]) + ddl for _, slots, ddl in self._ends]
        ended = [self._transactions[number] for number, *_ in self._ends]
        return pa.RecordBatch.from_arrays(
            [
                pa.array([t.id for t in ended], pa.string()),
                pa.array(ends, pa.int64()),
                pa.array([t.committed_us for t in ended], pa.int64()).cast(_TIMESTAMP),
            ],
            schema=TRANSACTION_SCHEMA,
        )


def error_of_table(table: TableId, error: Exception) -> TableError:
    """Convert an exception from the decoding of one table's part of the log to an error of that table."""
    if isinstance(error, TableError):
        return error
    # Events came with the right checksums: whatever cannot be read is about the table. The log has what a message may not.
    _log.error("corrupt_rows", table=str(table), exc_info=error)
    found = error.message.rstrip(".") if isinstance(error, ReplicatorError) else type(error).__name__
    message = f"its rows in the log cannot be read: {found}."
    if isinstance(error, ReplicatorError) and error.code == TOO_LARGE:
        action = f"{error.action} Then run `replicator snapshot NAME TABLE`."
        return TableError(message, code="transaction_too_large", table=str(table), action=action)
    return TableError(
        message,
        code="corrupt_rows",
        table=str(table),
        action="Run `replicator snapshot NAME TABLE`; if it fails again, exclude the table and report its CREATE TABLE.",
    )


def _estimate(version: Version, size: int) -> float:
    """Estimate the number of rows of an event of this size."""
    return size / version.bytes_per_row if size > version.bytes_per_row else 1.0


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch in the order of ordinals."""
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches)
    order = np.argsort(table.column(0).to_numpy(), kind="stable")
    return table.take(pa.array(order)).combine_chunks().to_batches()[0]

"""A tiny transactional database in memory, with a log and with visibility that may come later than the log."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import ClassVar

from replicator.model.errors import Problem, TableError
from replicator.model.schema import TableId, TableSchema
from replicator_testing.memory.log import (
    Key,
    LogMark,
    LogTransaction,
    Row,
    State,
    replay,
    state_of,
)
from replicator_testing.memory.transaction import LockedError, MemoryTransaction, Table

_EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
_TICK = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Visibility of a read: every transaction below `next_id` that is not in `invisible`."""

    next_id: int
    invisible: frozenset[int]

    def sees(self, transaction_id: str) -> bool:
        """Return whether the read saw the transaction."""
        return int(transaction_id) < self.next_id and int(transaction_id) not in self.invisible


@dataclass(slots=True, kw_only=True)
class Slot:
    """State of the database for one reader of its log.

    Nothing below `confirmed` is asked for again; tables are published from a position on.
    """

    confirmed: int
    published: dict[int, int] = field(default_factory=dict)
    holder: object = None


class MemoryDatabase:
    """Tables, transactions and a log. Thread-safe.

    A transaction takes effect in three steps: `commit` appends it to the log; readers see it when it becomes
    *visible*, at once or, after `commit(visible=False)`, when the test calls `make_visible`. Until then its locks
    hold, so that two transactions that touch one row always are in the log in the order in which they take effect.
    The clock is
    logical: it moves by a second with each commit, mark and `tick`.

    Truncating and re-creating change a table's identity; `CREATE TABLE` and `DROP TABLE` are not in the log, as on PostgreSQL.
    """

    _databases: ClassVar[dict[str, MemoryDatabase]] = {}
    _registry_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, name: str) -> None:
        self.name = name
        self.tables: dict[TableId, Table] = {}
        self.log: list[LogTransaction | LogMark] = []
        self.log_start = 0
        self.slots: dict[str, Slot] = {}
        self.problems: list[Problem] = []
        """Problems that a check finds in addition to missing tables; each if its location is checked, or is no table."""
        self.changed = threading.Condition(threading.RLock())
        self._now = _EPOCH
        self._ids = itertools.count(700)
        self._next_id = 700
        self._objects = itertools.count(16_384)
        self.row_ids = itertools.count(1)
        self._marks = itertools.count(1)
        self._pending: dict[int, MemoryTransaction] = {}
        self.key_locks: dict[tuple[int, Key], int] = {}
        self.row_locks: dict[tuple[int, int], int] = {}

    @classmethod
    def open(cls, name: str) -> MemoryDatabase:
        """Return the database of that name in this process; made when first used."""
        with cls._registry_lock:
            return cls._databases.setdefault(name, cls(name))

    # -- shape

    def create_table(self, schema: TableSchema, *, toasted: Sequence[str] = ()) -> None:
        """Create an empty table. An update that leaves a `toasted` column as it is does not carry its value in the log."""
        with self.changed:
            if schema.table in self.tables:
                raise ValueError(f"{schema.table} exists")
            if not schema.key and toasted:
                raise ValueError("the log of a table without a key carries every column")
            oid = next(self._objects)
            self.tables[schema.table] = Table(oid=oid, filenode=oid, schema=schema, toasted=frozenset(toasted))

    def drop_table(self, table: TableId) -> None:
        """Drop a table, which leaves every publication as well."""
        with self.changed:
            held = self.table(table)
            if held.writers or held.exclusive is not None:
                raise LockedError(str(table))
            del self.tables[table]
            for slot in self.slots.values():
                slot.published.pop(held.oid, None)

    def rename_tables(self, names: Mapping[TableId, TableId], *, is_logged: bool = True, visible: bool = True) -> str:
        """Give tables other names, in one statement and transaction; return its id. `names`: from each name to the new one.

        `is_logged`: the log has the renaming, as on MySQL. On PostgreSQL it does with the table's next change.
        """
        with self.changed:
            transaction = self.begin()
            held = {old: self.table(old) for old in names}
            for old, table in held.items():
                if table.writers or table.exclusive is not None:
                    raise LockedError(str(old))
            if taken := self.tables.keys() & set(names.values()) - names.keys():
                raise ValueError(f"{', '.join(map(str, taken))} exist")
            oids = {old: table.oid for old, table in held.items()}
            for old in names:
                del self.tables[old]
            for old, new in names.items():
                held[old].schema = replace(held[old].schema, table=new)
                self.tables[new] = held[old]
            if is_logged:
                transaction.note_names({old: (oids[old], new) for old, new in names.items()})
            return transaction.commit(visible=visible)

    def table(self, table: TableId) -> Table:
        """Return the table's object; TableError if there is none."""
        found = self.tables.get(table)
        if found is None:
            raise TableError("the table does not exist", code="table_missing", table=str(table))
        return found

    # -- transactions

    def begin(self) -> MemoryTransaction:
        """Open a transaction. It may be used as a context manager, which commits visibly or, on an error, rolls back."""
        with self.changed:
            number = next(self._ids)
            self._next_id = number + 1
            transaction = MemoryTransaction(self, number)
            self._pending[number] = transaction
            return transaction

    def make_visible(self, transaction: MemoryTransaction | str) -> None:
        """Let readers see a transaction committed with `visible=False`."""
        with self.changed:
            number = transaction.number if isinstance(transaction, MemoryTransaction) else int(transaction)
            pending = self._pending.get(number)
            if pending is None or not pending.is_committed:
                raise ValueError(f"transaction {number} is not one that was committed invisibly")
            for oid, effects in pending.effects.items():
                self._take_effect(self._by_oid(oid), effects, pending)
            self.release(number)
            self.changed.notify_all()

    def invisible(self) -> Sequence[str]:
        """Return transactions that are committed and not yet visible, oldest first."""
        with self.changed:
            return [str(n) for n, t in self._pending.items() if t.is_committed]

    def mark(self) -> str:
        """Append a mark to the log."""
        with self.changed:
            text = f"mark-{next(self._marks)}"
            self.tick()
            self.append(LogMark(text=text))
            return text

    def tick(self) -> datetime:
        """Let a second pass."""
        with self.changed:
            self._now += _TICK
            return self._now

    def now(self) -> datetime:
        """Return the database's time: nothing later will be committed at or before it."""
        with self.changed:
            return self._now

    def forget_log(self, position: int | None = None) -> None:
        """Delete the log below a position (default: all of it)."""
        with self.changed:
            self.log_start = len(self.log) if position is None else position

    # -- reading

    def snapshot(self) -> Snapshot:
        """Return the visibility of a read that begins now."""
        with self.changed:
            return Snapshot(next_id=self._next_id, invisible=frozenset(self._pending))

    def read(self, table: TableId) -> tuple[list[Row], Snapshot]:
        """Return all visible rows, in key order where there is a key, and their visibility.

        Raises:
            LockedError: A truncation or schema change holds the table.
        """
        with self.changed:
            held = self.table(table)
            if held.exclusive is not None:
                raise LockedError(str(table))
            rows = sorted(held.rows.values(), key=held.key_of) if held.schema.key else list(held.rows.values())
            return rows, self.snapshot()

    def state(self, table: TableId) -> State:
        """Return the table's visible rows as a multiset."""
        rows, _ = self.read(table)
        return state_of(self.table(table).schema, rows)

    def states(self, table: TableId) -> list[State]:
        """Return the content of the table after each transaction of its log that touched it, in the log's order; first the empty one.

        A table that was dropped and made again is replicated as one.
        """
        with self.changed:
            log = list(self.log)
        content: list[Row] = []
        found: list[State] = [{}]
        for transaction in log:
            if isinstance(transaction, LogMark):
                continue
            touched: TableSchema | None = None
            for entry in transaction.entries:
                touched = replay(table, content, entry) or touched
            if touched is not None:
                found.append(state_of(touched, content))
        return found

    # -- for transactions

    def append(self, record: LogTransaction | LogMark) -> None:
        """Put a record at the end of the log."""
        self.log.append(record)
        self.changed.notify_all()

    def _by_oid(self, oid: int) -> Table:
        return next(t for t in self.tables.values() if t.oid == oid)

    def release(self, number: int) -> None:
        """Release everything that a transaction has locked."""
        del self._pending[number]
        self.key_locks = {k: n for k, n in self.key_locks.items() if n != number}
        self.row_locks = {k: n for k, n in self.row_locks.items() if n != number}
        for table in self.tables.values():
            table.writers.discard(number)
            if table.exclusive == number:
                table.exclusive = None

    def _take_effect(self, table: Table, effects: Mapping[int, Row | None], transaction: MemoryTransaction) -> None:
        if (schema := transaction.schemas.get(table.oid)) is not None:
            table.schema = schema
            for change in transaction.alterations[table.oid]:
                table.rows = {i: change.altered(row) for i, row in table.rows.items()}
                table.alterations += 1
        if table.oid in transaction.truncated:
            table.filenode = next(self._objects)
            table.storage_by = transaction.id
        for row_id, row in effects.items():
            if row is None:
                table.rows.pop(row_id, None)
            else:
                table.rows[row_id] = row

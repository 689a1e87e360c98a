"""A tiny transactional database in memory, with a log and with visibility that can lag behind it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import ClassVar, Self

from replicator.model.errors import Problem, SourceUnavailableError, TableError
from replicator.model.events import DDLEvent, DDLOperation, DMLOperation
from replicator.model.identity import TableIdentity
from replicator.model.schema import TableId, TableSchema
from replicator.testing.memory.log import (
    Change,
    Key,
    LogMark,
    LogTransaction,
    Row,
    SchemaChange,
    State,
    replay,
    state_of,
)

_EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
_TICK = timedelta(seconds=1)


class LockedError(SourceUnavailableError):
    """A row or table is locked by a transaction that is open or not yet visible."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is locked by another transaction", code="lock_timeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a read sees: every transaction below `next_id` that is not in `invisible`."""

    next_id: int
    invisible: frozenset[int]

    def sees(self, transaction_id: str) -> bool:
        """Whether the read saw the transaction."""
        return int(transaction_id) < self.next_id and int(transaction_id) not in self.invisible


@dataclass(slots=True, kw_only=True)
class Slot:
    """What the database keeps for one reader of its log.

    Nothing below `confirmed` is asked for again; tables are published from a position on.
    """

    confirmed: int
    published: dict[int, int] = field(default_factory=dict)
    holder: object = None


@dataclass(slots=True, kw_only=True)
class Table:
    """A table object; another one of the same name has another `oid`."""

    oid: int
    filenode: int
    schema: TableSchema
    toasted: frozenset[str]
    rows: dict[int, Row] = field(default_factory=dict)
    storage_by: str | None = None
    alterations: int = 0
    writers: set[int] = field(default_factory=set)
    exclusive: int | None = None

    def key_of(self, row: Row) -> Key:
        """The row's key; empty for a table without one."""
        return tuple(row[name] for name in self.schema.key)

    def identity(self) -> TableIdentity:
        """As `TableDescription.identity`."""
        return TableIdentity(object=str(self.oid), storage=str(self.filenode), altered=str(self.alterations))


class MemoryDatabase:
    """Tables, transactions and a log. Thread-safe.

    A transaction takes effect in three steps: `commit` appends it to the log; readers see it when it becomes
    *visible*, at once or, after `commit(visible=False)`, when the test calls `make_visible`. Until then its locks
    hold, so that two transactions that touch one row always stand in the log in the order in which they take effect.
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
        """What a check finds in addition to missing tables; each if its location is asked about, or is no table."""
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
        """The database of that name in this process; made when first asked for."""
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
        """Give tables other names, in one statement and transaction; returns its id. `names`: from each name to the new one.

        `is_logged`: the log says so, as on MySQL. On PostgreSQL it does with the table's next change.
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
        """The table's object; TableError if there is none."""
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
        """Transactions that are committed and not yet visible, oldest first."""
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
        """The database's clock: nothing later will be committed at or before it."""
        with self.changed:
            return self._now

    def forget_log(self, position: int | None = None) -> None:
        """Throw the log below a position (default: all of it) away."""
        with self.changed:
            self.log_start = len(self.log) if position is None else position

    # -- reading

    def snapshot(self) -> Snapshot:
        """What a read that begins now sees."""
        with self.changed:
            return Snapshot(next_id=self._next_id, invisible=frozenset(self._pending))

    def read(self, table: TableId) -> tuple[list[Row], Snapshot]:
        """All visible rows, in key order where there is a key, with what they show of the transactions.

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
        """The table's visible rows as a multiset."""
        rows, _ = self.read(table)
        return state_of(self.table(table).schema, rows)

    def states(self, table: TableId) -> list[State]:
        """The content of the table after each transaction of its log that touched it, in the log's order; first the empty one.

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
        """Let go of everything that a transaction has locked."""
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


class MemoryTransaction:
    """An open transaction. Rows are mappings by column name; a row is named by its key's values, or without a key by all of its values."""

    def __init__(self, database: MemoryDatabase, number: int) -> None:
        self.number = number
        self.effects: dict[int, dict[int, Row | None]] = {}
        self.schemas: dict[int, TableSchema] = {}
        self.alterations: dict[int, list[SchemaChange]] = {}
        self.truncated: set[int] = set()
        self.is_committed = False
        self._is_over = False
        self._database = database
        self._entries: list[Change | SchemaChange] = []

    @property
    def id(self) -> str:
        """As it is in the log."""
        return str(self.number)

    def insert(self, table: TableId, *rows: Row) -> None:
        """Insert rows; columns left out are NULL."""
        with self._writing(table) as held:
            for given in rows:
                schema = self._schema(held)
                row = {c.name: given.get(c.name) for c in schema.columns}
                if schema.key:
                    self._lock_key(held, row)
                row_id = next(self._database.row_ids)
                self._write(held, row_id, row)
                self._note(held, DMLOperation.INSERT, None, row)

    def update(self, table: TableId, match: Key | Row, changes: Row) -> None:
        """Change columns of one row, the key's as well. A toasted column that keeps its value is absent from the log."""
        with self._writing(table) as held:
            row_id, old = self._find(held, match)
            new = {**old, **changes}
            is_move = self._key_of(held, old) != self._key_of(held, new)
            if is_move:
                self._lock_key(held, new)
            self._write(held, row_id, new)
            absent = frozenset(
                n
                for n in held.toasted & new.keys()
                if new[n] is not None and new[n] == old[n] and n not in self._schema(held).key
            )
            before = old if is_move or not self._schema(held).key else None
            self._note(held, DMLOperation.UPDATE, before, new, absent)

    def delete(self, table: TableId, match: Key | Row) -> None:
        """Delete one row."""
        with self._writing(table) as held:
            row_id, old = self._find(held, match)
            self._write(held, row_id, None)
            self._note(held, DMLOperation.DELETE, old, None)

    def truncate(self, *tables: TableId) -> None:
        """Empty tables in one statement; readers are locked out until it is visible."""
        with self._database.changed:
            held = [self._lock_table(t) for t in tables]
            for table in held:
                for row_id in dict(self._rows(table)):
                    self._write(table, row_id, None)
                self.truncated.add(table.oid)
            events = [
                DDLEvent(
                    operation=DDLOperation.TRUNCATE_TABLE,
                    table=t.schema.table,
                    schema=self._schema(t),
                    transaction_id=self.id,
                )
                for t in held
            ]
            self._entries.append(SchemaChange(oids=tuple(t.oid for t in held), events=tuple(events)))

    def alter(self, schema: TableSchema, *, fill: Row | None = None, is_known: bool = True) -> None:
        """Give a table another shape; rows keep the columns that stay (`model.alteration.steps`), and get `fill` in new ones.

        `is_known`: the log says what rows have in new columns.
        """
        with self._database.changed:
            held = self._lock_table(schema.table)
            before = self._schema(held)
            change = SchemaChange.alter(held.oid, before, schema, fill or {}, transaction_id=self.id, is_known=is_known)
            self.schemas[held.oid] = schema
            self.alterations.setdefault(held.oid, []).append(change)
            effects = self.effects.setdefault(held.oid, {})
            for row_id, row in effects.items():
                effects[row_id] = None if row is None else change.altered(row)
            self._entries.append(change)

    def note_names(self, names: Mapping[TableId, tuple[int, TableId]]) -> None:
        """Have the log say that tables of these oids got other names. A name that another table has now stands for that."""
        targets = {new for _, new in names.values()}
        moved = [(oid, old, new) for old, (oid, new) in names.items() if old not in targets]
        taken = [(names[old][0], old) for old in names if old in targets]
        events = [
            *(
                DDLEvent(operation=DDLOperation.RENAME_TABLE, table=old, new_table=new, transaction_id=self.id)
                for _, old, new in moved
            ),
            *(DDLEvent(operation=DDLOperation.CREATE_TABLE, table=old, transaction_id=self.id) for _, old in taken),
        ]
        oids = (*(oid for oid, *_ in moved), *(oid for oid, _ in taken))
        self._entries.append(SchemaChange(oids=oids, events=tuple(events)))

    def commit(self, *, visible: bool = True) -> str:
        """Append the transaction to the log and, unless told otherwise, let readers see it; returns its id."""
        with self._database.changed:
            self._check_open()
            self._is_over = self.is_committed = True
            at = self._database.tick()
            self._database.append(LogTransaction(id=self.id, committed_at=at, entries=tuple(self._entries)))
            if visible:
                self._database.make_visible(self)
            return self.id

    def rollback(self) -> None:
        """Forget the transaction."""
        with self._database.changed:
            self._check_open()
            self._is_over = True
            self._database.release(self.number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_over:
            return
        if kind is None:
            self.commit()
        else:
            self.rollback()

    @contextmanager
    def _writing(self, table: TableId) -> Iterator[Table]:
        with self._database.changed:
            self._check_open()
            held = self._database.table(table)
            if held.exclusive not in (None, self.number):
                raise LockedError(str(table))
            held.writers.add(self.number)
            yield held

    def _check_open(self) -> None:
        if self._is_over:
            raise ValueError(f"transaction {self.id} is over")

    def _lock_table(self, table: TableId) -> Table:
        self._check_open()
        held = self._database.table(table)
        if held.exclusive not in (None, self.number) or held.writers - {self.number}:
            raise LockedError(str(table))
        held.exclusive = self.number
        held.writers.add(self.number)
        self.effects.setdefault(held.oid, {})
        return held

    def _lock_key(self, held: Table, row: Row) -> None:
        key = self._key_of(held, row)
        if any(part is None for part in key):
            raise ValueError("a key is never NULL")
        if self._database.key_locks.setdefault((held.oid, key), self.number) != self.number:
            raise LockedError(f"key {key}")
        if any(self._key_of(held, other) == key for other in self._rows(held).values()):
            raise ValueError(f"key {key} exists")

    def _find(self, held: Table, match: Key | Row) -> tuple[int, Row]:
        if self._schema(held).key:
            key = tuple(match) if isinstance(match, tuple) else self._key_of(held, match)
            if self._database.key_locks.get((held.oid, key), self.number) != self.number:
                raise LockedError(f"key {key}")
            self._database.key_locks[held.oid, key] = self.number
            found = [(i, r) for i, r in self._rows(held).items() if self._key_of(held, r) == key]
        else:
            assert isinstance(match, Mapping)
            wanted = {c.name: match.get(c.name) for c in self._schema(held).columns}
            locks = self._database.row_locks
            equal = [(i, r) for i, r in self._rows(held).items() if r == wanted]
            found = [(i, r) for i, r in equal if locks.get((held.oid, i), self.number) == self.number]
            if equal and not found:
                raise LockedError("row")
        if not found:
            raise KeyError(match)
        self._database.row_locks[held.oid, found[0][0]] = self.number
        return found[0]

    def _rows(self, held: Table) -> dict[int, Row]:
        rows: dict[int, Row] = dict(held.rows)
        for change in self.alterations.get(held.oid, ()):
            rows = {i: change.altered(row) for i, row in rows.items()}
        for row_id, row in self.effects.get(held.oid, {}).items():
            if row is None:
                rows.pop(row_id, None)
            else:
                rows[row_id] = row
        return rows

    def _schema(self, held: Table) -> TableSchema:
        return self.schemas.get(held.oid, held.schema)

    def _key_of(self, held: Table, row: Row) -> Key:
        return tuple(row[name] for name in self._schema(held).key)

    def _write(self, held: Table, row_id: int, row: Row | None) -> None:
        self.effects.setdefault(held.oid, {})[row_id] = row

    def _note(
        self,
        held: Table,
        operation: DMLOperation,
        before: Row | None,
        row: Row | None,
        absent: frozenset[str] = frozenset(),
    ) -> None:
        self._entries.append(
            Change(oid=held.oid, schema=self._schema(held), operation=operation, before=before, row=row, absent=absent)
        )

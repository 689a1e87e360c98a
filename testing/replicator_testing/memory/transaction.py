"""A transaction of a database in memory, and the tables that it changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

from replicator.model.errors import SourceUnavailableError
from replicator.model.events import DDLEvent, DDLOperation, DMLOperation
from replicator.model.identity import TableIdentity
from replicator.model.schema import TableId, TableSchema
from replicator_testing.memory.log import (
    Key,
    LogTransaction,
    MemoryChange,
    Row,
    SchemaChange,
)

if TYPE_CHECKING:
    from replicator_testing.memory.database import MemoryDatabase


class LockedError(SourceUnavailableError):
    """A row or table is locked by a transaction that is open or not yet visible."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is locked by another transaction", code="lock_timeout")


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
        """Return the row's key; empty for a table without one."""
        return tuple(row[name] for name in self.schema.key)

    def identity(self) -> TableIdentity:
        """Return an identity as `TableDescription.identity`."""
        return TableIdentity(object=str(self.oid), storage=str(self.filenode), altered=str(self.alterations))


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
        self._entries: list[MemoryChange | SchemaChange] = []

    @property
    def id(self) -> str:
        """Return the id as it is in the log."""
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
        """Give a table another schema; rows keep the columns that stay (`model.alteration.steps`), and get `fill` in new ones.

        `is_known`: the log has the values of rows in new columns.
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
        """Let the log say that tables of these oids got other names. A name that another table has now means that table."""
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
        """Append the transaction to the log and, unless told otherwise, let readers see it; return its id."""
        with self._database.changed:
            self._check_open()
            self._is_over = self.is_committed = True
            at = self._database.tick()
            self._database.append(LogTransaction(id=self.id, committed_at=at, entries=tuple(self._entries)))
            if visible:
                self._database.make_visible(self)
            return self.id

    def rollback(self) -> None:
        """Discard the transaction."""
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
            MemoryChange(
                oid=held.oid, schema=self._schema(held), operation=operation, before=before, row=row, absent=absent
            )
        )

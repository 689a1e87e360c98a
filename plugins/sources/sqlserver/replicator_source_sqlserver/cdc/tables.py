"""The replicated tables: their shapes as they were delivered last, and their present state in the catalogue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from replicator.model.errors import TableError
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.schema import TableId, TableSchema
from replicator_source_sqlserver.catalogue.discovery import read_change_columns, read_objects
from replicator_source_sqlserver.catalogue.instance_names import free_names, read_instance_names
from replicator_source_sqlserver.catalogue.server import Account, read_account
from replicator_source_sqlserver.catalogue.tables import Accepted, CaptureInstance, CatalogTable
from replicator_source_sqlserver.cdc.change_table import ChangeTable
from replicator_source_sqlserver.cdc.instances import begun_until
from replicator_source_sqlserver.cdc.position import Position
from replicator_source_sqlserver.cdc.queries import InstanceStart
from replicator_source_sqlserver.cdc.uncaptured import (
    COMMAND_ID,
    column_not_captured,
    command_id_missing,
    table_missing,
    table_not_captured,
)
from replicator_source_sqlserver.connecting.connection import Connection
from replicator_source_sqlserver.denials import denied, hidden, read_captured
from replicator_source_sqlserver.types import DeclaredType


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A position at which a table may have got another shape."""

    lsn: bytes
    table: TableId


@dataclass(frozen=True, slots=True, kw_only=True)
class _Catalogue:
    """The catalogue when it was read last.

    Attributes:
        tables: The tables that there are.
        columns: The columns of each change table, by its number; only of those that may be read.
        account: Our account.
        names: A free name of an instance for each table, for statements that make one.
    """

    tables: Mapping[TableId, CatalogTable] = field(default_factory=dict)
    columns: Mapping[int, Mapping[str, DeclaredType]] = field(default_factory=dict)
    account: Account = field(default_factory=lambda: Account(user="…"))
    names: Mapping[TableId, str] = field(default_factory=dict)

    def instances(self, starts: Mapping[int, InstanceStart], table: TableId | None = None) -> list[CaptureInstance]:
        """Return the instances of a table, or of all, the oldest first, with their starts."""
        tables = self.tables.values() if table is None else [self.tables[table]] if table in self.tables else []
        return [i.started(starts[i.object_id].start_lsn) for t in tables for i in t.instances if i.object_id in starts]


class _Acceptances:
    """Tables that the host has accepted in a shape, until the log's thread takes them in. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[TableId, Accepted] = {}

    def add(self, tables: Mapping[TableId, Accepted]) -> None:
        """Accept these."""
        with self._lock:
            self._waiting |= tables

    def waiting(self) -> dict[TableId, Accepted]:
        """Return those that were not taken in."""
        with self._lock:
            return dict(self._waiting)

    def take(self, taken: Mapping[TableId, Accepted]) -> None:
        """Take these in, unless they were accepted again meanwhile."""
        with self._lock:
            self._waiting = {t: one for t, one in self._waiting.items() if taken.get(t) is not one}


@dataclass(slots=True)
class _Failures:
    """The tables that are no longer replicated, and the errors that were not reported yet."""

    tables: set[TableId] = field(default_factory=set)
    errors: dict[TableId, TableError] = field(default_factory=dict)

    def add(self, table: TableId, error: TableError) -> None:
        """Add a table."""
        self.tables.add(table)
        self.errors[table] = error

    def take_errors(self) -> Mapping[TableId, TableError]:
        """Take the errors."""
        errors, self.errors = self.errors, {}
        return errors


@dataclass(slots=True)
class _Renewals:
    """Instances that are made of tables with a column that none has.

    Attributes:
        make: Makes an instance with all columns of a table, and returns whether it could; None where we may not.
        waiting: Tables whose older instance is still needed, so that there is no room for another.
        durable: Everything up to this commit is durable.
    """

    make: Callable[[Connection, CatalogTable], bool] | None
    waiting: set[TableId] = field(default_factory=set)
    durable: bytes = b""

    def run(self, connection: Connection, tables: Mapping[TableId, CatalogTable]) -> bool:
        """Make an instance of each table that has a column which none has; return whether one was made.

        The older one of two is dropped. It is kept until the changes that only it has are durable.
        """
        self.waiting.clear()
        is_any = False
        for table, found in tables.items():
            if self.make is None or not found.uncaptured:
                continue
            newest = found.instances[-1].start_lsn
            if len(found.instances) > 1 and (newest is None or self.durable < newest):
                self.waiting.add(table)
            elif self.make(connection, found):
                is_any = True
        return is_any


class CapturedTables:
    """Used from the log's thread, except `accept`.

    Args:
        schemas: The replicated tables in their last known shapes.
        numbers: The `object_id` of each, under which it is replicated whatever it is called.
        renew: Makes an instance with all columns of a table, and returns whether it could; None where we may not.
    """

    def __init__(
        self,
        schemas: Mapping[TableId, TableSchema],
        numbers: Mapping[TableId, int],
        *,
        renew: Callable[[Connection, CatalogTable], bool] | None = None,
    ) -> None:
        self._schemas = {table: schema for table, schema in schemas.items() if table in numbers}
        self._numbers = dict(numbers)
        self._catalogue = _Catalogue()
        self._is_read = False
        self._starts: Mapping[int, InstanceStart] = {}
        self._unknown = [table for table in schemas if table not in numbers]
        self._failures = _Failures()
        self._renewals = _Renewals(renew)
        self._acceptances = _Acceptances()
        self._just_accepted: set[TableId] = set()

    @property
    def user(self) -> str:
        """The name of our account in the database."""
        return self._catalogue.account.user

    def accept(self, tables: Mapping[TableId, Accepted]) -> None:
        """Replicate these tables in the shape that was accepted, also if they had failed. Thread-safe.

        Where that shape is not known any more, it is the one that the catalogue has by then.
        """
        self._acceptances.add(tables)

    def acknowledge(self, lsn: bytes) -> None:
        """Note that everything up to this commit is durable: it is not read again."""
        self._renewals.durable = max(self._renewals.durable, lsn)

    def take_errors(self) -> Mapping[TableId, TableError]:
        """Take the errors that were not reported yet."""
        return self._failures.take_errors()

    def fail(self, table: TableId, error: TableError) -> None:
        """Stop replicating a table."""
        self._failures.add(table, error)

    def refresh(self, connection: Connection, starts: Mapping[int, InstanceStart], *, is_altered: bool) -> None:
        """Read the catalogue if it may say something else than it did.

        Args:
            connection: Any.
            starts: The capture instances that there are now.
            is_altered: True if a table was altered.
        """
        self._starts = starts
        accepted = self._acceptances.waiting()
        self._numbers |= {t: one.number for t, one in accepted.items() if one.number is not None}
        known = {i.object_id for table in self._catalogue.tables.values() for i in table.instances}
        ours = {number for number, start in starts.items() if start.source in set(self._numbers.values())}
        if self._is_read and not is_altered and not accepted and known == ours:
            return
        # If reading fails, all of it is read again, and what was accepted is still to be replicated.
        self._is_read = False
        self._catalogue = self._read_all(connection)
        self._is_read = not self._renewals.waiting
        self._acceptances.take(accepted)
        for table, one in accepted.items():
            self._failures.tables.discard(table)
            if (found := self._catalogue.tables.get(table)) is not None:
                # The catalogue may have another one by now, with a shape change that is still to come.
                self._schemas[table] = one.schema or found.schema
                self._just_accepted.add(table)

    def _read_all(self, connection: Connection) -> _Catalogue:
        account = read_account(connection)
        for table in self._unknown:
            self._failures.errors[table] = table_missing(table)
        self._unknown.clear()
        found = self._read(connection)
        if self._renewals.run(connection, {table: found[table] for table in self.capturing() if table in found}):
            found = self._read(connection)
        # For statements that make an instance of a table: several may have failed, and no two names may be alike.
        with_none_first = sorted(self._numbers, key=lambda t: (t in found and bool(found[t].instances), t))
        return _Catalogue(
            tables=found,
            columns=read_change_columns(connection, [i.object_id for table in found.values() for i in table.instances]),
            account=account,
            names=free_names(with_none_first, read_instance_names(connection)),
        )

    def _read(self, connection: Connection) -> dict[TableId, CatalogTable]:
        return read_objects(connection, {number: table for table, number in self._numbers.items()})

    def has_other_columns(self, connection: Connection, instance: CaptureInstance) -> bool:
        """Return whether its change table has other columns now than when the catalogue was read."""
        number = instance.object_id
        return read_change_columns(connection, [number]).get(number) != self._catalogue.columns.get(number)

    def capturing(self) -> Iterable[TableId]:
        """The tables whose changes are delivered."""
        return [table for table in self._schemas if table not in self._failures.tables]

    def instances(self, table: TableId, starts: Mapping[int, InstanceStart]) -> list[CaptureInstance]:
        """Return a table's instances, the oldest first, with their starts as they are now."""
        return self._catalogue.instances(starts, table)

    def position_of(self, lsn: bytes) -> Position:
        """Return the position after a commit, with the instances that have begun by then."""
        return Position(lsn=lsn, instances_until=begun_until(self._catalogue.instances(self._starts), lsn))

    def turns(self, altered: Iterable[tuple[bytes, int]], starts: Mapping[int, InstanceStart]) -> list[Turn]:
        """Return the positions at which tables may have got another shape: where they were altered, and where an instance begins."""
        by_number = {number: table for table, number in self._numbers.items()}
        found = [Turn(lsn=lsn, table=by_number[number]) for lsn, number in altered if number in by_number]
        for table in self.capturing():
            # An older instance, with what it says of altered tables, may have been disabled meanwhile.
            found += [
                Turn(lsn=instance.start_lsn, table=table)
                for instance in self.instances(table, starts)
                if instance.start_lsn is not None
            ]
        return sorted(found, key=lambda turn: turn.lsn)

    def overtaken(self, lsn: bytes, starts: Mapping[int, InstanceStart]) -> list[DDLEvent]:
        """Return events of tables that had got another shape by this position, since the descriptions in which they were just accepted."""
        tables, self._just_accepted = self._just_accepted, set()
        events = (self.event(Turn(lsn=lsn, table=table), starts) for table in sorted(tables))
        return [event for event in events if event is not None]

    def event(self, turn: Turn, starts: Mapping[int, InstanceStart]) -> DDLEvent | None:
        """Return the event of a table with another shape; fail a table that cannot be replicated in it. None where neither is so."""
        table = turn.table
        found, known = self._catalogue.tables.get(table), self._schemas.get(table)
        if found is None or known is None or table in self._failures.tables:
            return None
        if (refused := found.type_error()) is not None:
            self.fail(table, refused)
            return None
        if table in self._renewals.waiting:
            return None  # the instance that will be made has a shape change of its own
        if not found.instances:
            return None
        # The newest one may have been made since it was asked which there are.
        begun = {
            i.object_id for i in self.instances(table, starts) if i.start_lsn is not None and i.start_lsn <= turn.lsn
        }
        last = max((n for n, i in enumerate(found.instances) if i.object_id in begun), default=0)
        current, *later = found.instances[last:]
        shape = found.captured_by(current)
        # The columns of a newer instance come with that one, which has a shape change of its own.
        if lost := frozenset.intersection(shape.uncaptured, *(found.captured_by(i).uncaptured for i in later)):
            self.fail(
                table,
                column_not_captured(
                    table, lost, self._catalogue.names[table], found.instances, self._catalogue.account
                ),
            )
            return None
        if self._is_ahead(table, current, later) or shape.has_shape_of(known):
            return None
        self._schemas[table] = shape.schema
        return DDLEvent(operation=DDLOperation.ALTER_TABLE, table=table, schema=shape.schema, before=known)

    def is_left_out(self, table: TableId, instance: CaptureInstance, position: Position) -> bool:
        """Return whether the changes of an instance are not needed: the table was accepted in a later one's shape, and is read again."""
        found = self._catalogue.tables.get(table)
        later = [i for i in (found.instances if found is not None else ()) if i.created_at > position.instances_until]
        return self._is_ahead(table, instance, later)

    def _is_ahead(self, table: TableId, instance: CaptureInstance, later: Sequence[CaptureInstance]) -> bool:
        """Return whether the table is known in the shape of a later instance already: it was accepted when that one had been made."""
        return any(
            not instance.has(column.name, column.id) and any(i.has(column.name, column.id) for i in later)
            for column in self._schemas[table].columns
        )

    def missing(self, connection: Connection, starts: Mapping[int, InstanceStart]) -> list[DDLEvent]:
        """Return the events of tables that were dropped; those whose changes are no longer captured fail."""
        dropped = []
        # It may have been dropped between the look at the instances and that at the tables.
        captured = (
            read_captured(connection) if any(t not in self._catalogue.tables for t in self.capturing()) else frozenset()
        )
        for table in list(self.capturing()):
            if table not in self._catalogue.tables and self._numbers[table] in captured:
                # With a table that is dropped go its instances: this one is only hidden from our account.
                self.fail(table, hidden(table, self.user))
            elif table not in self._catalogue.tables:
                self._failures.tables.add(table)
                dropped.append(DDLEvent(operation=DDLOperation.DROP_TABLE, table=table))
            elif not self.instances(table, starts):
                self.fail(table, table_not_captured(table, self._catalogue.names[table], self._catalogue.account))
        return dropped

    def change_table(self, table: TableId, instance: CaptureInstance) -> ChangeTable:
        """Plan the reading of an instance in the shape that was delivered last.

        Raises:
            TableError: It lacks a column, or may not be read.
        """
        if instance.object_id not in self._catalogue.columns:
            # Columns are shown only of what may be read.
            raise denied(table, [instance], self.user)
        schema, columns, all_ = (
            self._schemas[table],
            self._catalogue.columns[instance.object_id],
            self._catalogue.tables[table].instances,
        )
        if COMMAND_ID not in columns:
            raise command_id_missing(table, self._catalogue.names[table], all_, self._catalogue.account)
        if lost := [c.name for c in schema.columns if c.name not in columns or not instance.has(c.name, c.id)]:
            raise column_not_captured(table, lost, self._catalogue.names[table], all_, self._catalogue.account)
        return ChangeTable.of(schema, instance, columns)

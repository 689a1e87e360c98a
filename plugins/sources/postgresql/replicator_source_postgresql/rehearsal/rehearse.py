"""Rehearse a statement: the events that it would bring if it were executed (`SupportsRehearsal`).

The catalogue is read, and the server is asked what types and defaults mean; nothing is executed that defines anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.pq import ExecStatus

from replicator.model.errors import ConfigError, ReplicatorError, TableError, UnsupportedTypeError
from replicator.model.events import DDLEvent, DDLOperation, no_fill
from replicator.model.schema import Column, TableId, TableSchema
from replicator_source_postgresql.catalogue.discovery import Connection, list_tables, read_tables, resolve_types
from replicator_source_postgresql.catalogue.tables import CatalogTable, Identity, filled
from replicator_source_postgresql.log.shapes import has_room_for
from replicator_source_postgresql.rehearsal import statements as s
from replicator_source_postgresql.rehearsal.tokens import Name, NotUnderstoodError, functions_in
from replicator_source_postgresql.types import PgType, column_type

_CODE: Final = "ddl_not_understood"
_ACTION: Final = (
    "Check its text. What cannot be rehearsed is replicated all the same, as the log and the catalogue show it."
)

_SCHEMAS_QUERY: Final = """
SELECT n.nspname FROM pg_namespace n WHERE n.nspname IN (current_user, 'public') ORDER BY n.nspname <> current_user
"""
_INDEX_QUERY: Final = """
SELECT (i.indkey::int2[])[0:i.indnkeyatts - 1] FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
WHERE i.indrelid = %s AND x.relname = %s AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
"""
_REFERENCING_QUERY: Final = """
WITH RECURSIVE hit(oid) AS (SELECT unnest(%s::oid[]) UNION
  SELECT f.conrelid FROM hit JOIN pg_constraint f ON f.confrelid = hit.oid AND f.contype = 'f')
SELECT n.nspname, c.relname FROM hit JOIN pg_class c ON c.oid = hit.oid JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY 1, 2
"""
# A function that is not the server's own may be declared to be what it is not.
_HAS_VOLATILE_QUERY: Final = """
SELECT EXISTS (SELECT FROM pg_proc WHERE proname = ANY (%s) AND (provolatile = 'v' OR pronamespace <> 'pg_catalog'::regnamespace))
"""
_DOMAIN_QUERY: Final = """
SELECT t.typdefault, t.typnotnull OR EXISTS (SELECT FROM pg_constraint c WHERE c.contypid = t.oid)
  OR (SELECT b.typtype FROM pg_type b WHERE b.oid = t.typbasetype) = 'd'
FROM pg_type t WHERE t.oid = %s
"""


def rehearse(connection: Connection, publication: str, text: str) -> Sequence[DDLEvent]:
    """See `SupportsRehearsal.rehearse`.

    Args:
        connection: An autocommit connection without a transaction.
        publication: The publication through which the tables are, or will be, replicated.
        text: The statement.
    """
    try:
        statement = s.parse(text)
    except NotUnderstoodError:
        raise ConfigError(f"The statement is not understood: {text}", code=_CODE, action=_ACTION) from None
    return _Rehearsal(connection, publication, text).events(statement)


@dataclass(slots=True)
class _Altered:
    """A table while a statement's actions are applied to it.

    Attributes:
        numbers: The number of every column by name, also of those that are not replicated.
        columns: The replicated ones by number.
        key: The numbers of the key's columns.
        primary: The numbers of the primary key's columns, if the statement made or dropped it.
        fill: The values that rows have in the new columns; None for a value that is not known.
        are_values_known: True if the rows keep their values in the other columns.
        is_rewritten: True if the server writes every row again, so that the catalogue forgets what rows have in new columns.
        is_redefined: True if rows are logged in another way from then on.
        has_other_default: True if an existing column gets another default.
    """

    numbers: dict[str, int]
    columns: dict[int, Column]
    key: tuple[int, ...]
    next_number: int
    fill: dict[str, pa.Array | None] = field(default_factory=dict)
    are_values_known: bool = True
    is_rewritten: bool = False
    primary: tuple[int, ...] | None = None
    is_redefined: bool = False
    has_other_default: bool = False

    def change(self, column: str, /, **changes: object) -> None:
        """Change a column, if it is one that is replicated."""
        number = self.numbers[column]
        if number in self.columns:
            self.columns[number] = replace(self.columns[number], **changes)  # type: ignore[arg-type]

    def schema(self, before: TableSchema) -> TableSchema:
        """Return the table's shape as it is now."""
        columns = tuple(self.columns[number] for number in sorted(self.columns))
        key = tuple(self.columns[number].name for number in self.key) if self.columns.keys() >= set(self.key) else ()
        return replace(before, columns=columns, key=key)


class _Rehearsal:
    """One statement against one catalogue."""

    def __init__(self, connection: Connection, publication: str, text: str) -> None:
        self._connection = connection
        self._publication = publication
        self._text = text
        # The search path of a session that has set none.
        self._schemas: Sequence[str] = [name for (name,) in connection.execute(_SCHEMAS_QUERY)] or ["public"]

    def events(self, statement: s.Statement) -> Sequence[DDLEvent]:
        match statement:
            case s.AlterTable():
                table = self._find(statement.table, if_exists=statement.if_exists)
                return [] if table is None else self._alter(table, statement.actions)
            case s.CreateTable():
                return self._create(statement)
            case s.DropTables():
                found = [self._find(name, if_exists=statement.if_exists) for name in statement.tables]
                return [_dropped(table.table) for table in found if table is not None]
            case s.DropSchemas():
                tables = [summary.table for summary in list_tables(self._connection)]
                return [_dropped(table) for table in tables if table.namespace in statement.schemas]
            case s.Truncate():
                return self._truncate(statement)
            case s.Nothing():
                return []

    # -- statements ----------------------------------------------------------------------------------------------------

    def _create(self, statement: s.CreateTable) -> Sequence[DDLEvent]:
        name = statement.table
        table = TableId(name.schema or self._schemas[0], name.name)
        if self._read([table]):
            if statement.if_not_exists:
                return []
            raise self._not_understood("there is a table of that name", table)
        columns = []
        for number, column in enumerate(statement.columns, start=1):
            mapping = self._type(column.type_sql, table)
            if not column.is_generated:
                columns.append(_column(column, mapping, number))
        known = {column.name for column in columns}
        key = tuple(statement.key) if known >= set(statement.key) else ()
        schema = TableSchema(table=table, columns=tuple(columns), key=key)
        return [DDLEvent(operation=DDLOperation.CREATE_TABLE, table=table, schema=schema)]

    def _truncate(self, statement: s.Truncate) -> Sequence[DDLEvent]:
        found = [self._find(name, if_exists=False) for name in statement.tables]
        tables = {table.table: table for table in found if table is not None}
        if statement.cascades:
            oids = [table.oid for table in tables.values()]
            reached = [TableId(*row) for row in self._connection.execute(_REFERENCING_QUERY, (oids,))]
            tables |= self._read(reached)
        return [
            DDLEvent(operation=DDLOperation.TRUNCATE_TABLE, table=table.table, schema=table.schema)
            for table in tables.values()
        ]

    def _alter(self, table: CatalogTable, actions: Sequence[s.Action]) -> Sequence[DDLEvent]:
        before = table.schema
        altered = _Altered(
            numbers={column.name: column.position for column in table.columns},
            columns={column.id: column for column in before.columns if column.id is not None},
            key=table.key_numbers,
            next_number=table.highest_position + 1,
        )
        events = []
        # The server's order: a name that is dropped is free, and what is added is there for constraints.
        for action in sorted(actions, key=lambda action: _ORDER[type(action)]):
            if isinstance(action, s.RenameTable):
                new = TableId(action.schema or table.table.namespace, action.name or table.table.name)
                events.append(DDLEvent(operation=DDLOperation.RENAME_TABLE, table=table.table, new_table=new))
            else:
                self._apply(table, altered, action)
        schema = altered.schema(before)
        if schema != before or not altered.are_values_known:
            is_known = altered.are_values_known and not (altered.fill and altered.is_rewritten)
            fill = filled(altered.fill) if is_known else None
            event = DDLEvent(
                operation=DDLOperation.ALTER_TABLE, table=table.table, before=before, schema=schema, fill=fill
            )
            events.append(event)
        elif altered.is_rewritten or altered.is_redefined:
            # The log brings nothing: the comparison with the catalogue finds it, and the table is read again.
            events.append(
                DDLEvent(operation=DDLOperation.ALTER_TABLE, table=table.table, before=before, schema=schema, fill=None)
            )
        if altered.has_other_default:
            # Found by the comparison with the catalogue, after what the log brings.
            events.append(
                DDLEvent(
                    operation=DDLOperation.ALTER_TABLE,
                    table=table.table,
                    before=schema,
                    schema=schema,
                    fill=no_fill(),
                    statement=self._text,
                )
            )
        return events

    # -- actions -------------------------------------------------------------------------------------------------------

    def _apply(self, table: CatalogTable, altered: _Altered, action: s.Action) -> None:
        match action:
            case s.AddColumn():
                self._add(table, altered, action)
            case s.DropColumn():
                if action.if_exists and action.name not in altered.numbers:
                    return
                number = self._number(table, altered, action.name)
                del altered.numbers[action.name]
                altered.columns.pop(number, None)
            case s.RenameColumn():
                number = self._number(table, altered, action.old)
                altered.change(action.old, name=action.new)
                del altered.numbers[action.old]
                altered.numbers[action.new] = number
            case s.SetType():
                self._retype(table, altered, action)
            case s.SetNullable():
                # The log does not bring it: the comparison with the catalogue finds it.
                self._number(table, altered, action.name)
                altered.change(action.name, nullable=action.is_nullable)
            case s.SetDefault():
                number = self._number(table, altered, action.name)
                known = {column.position: column.default for column in table.replicable_columns}
                altered.has_other_default |= number in known and known[number] != action.default
            case s.AddKey() | s.DropConstraint() | s.SetIdentity():
                altered.key = self._key_by(table, altered, action)

    def _add(self, table: CatalogTable, altered: _Altered, action: s.AddColumn) -> None:
        column = action.column
        if column.name in altered.numbers:
            if action.if_not_exists:
                return
            raise self._not_understood(f"there is a column {column.name}", table.table)
        mapping = self._type(column.type_sql, table.table)
        number, altered.next_number = altered.next_number, altered.next_number + 1
        altered.numbers[column.name] = number
        is_listed = table.published is not None and table.published.columns is not None
        altered.is_rewritten |= column.is_generated
        if column.is_generated or is_listed:
            # Neither in the log, nor in a list of columns that was made before it.
            return
        altered.columns[number] = _column(column, mapping, number)
        altered.fill[column.name] = self._value_before(column, mapping, table.table)
        if column.is_primary and table.replica_identity in (Identity.DEFAULT, Identity.FULL):
            altered.key = (number,)

    def _retype(self, table: CatalogTable, altered: _Altered, action: s.SetType) -> None:
        number = self._number(table, altered, action.name)
        mapping = self._type(action.type_sql, table.table)
        old = altered.columns.get(number)
        if old is None:
            return
        altered.change(action.name, type=mapping.arrow, source_type=mapping.source_type)
        altered.are_values_known &= not action.has_using and has_room_for(old.source_type, mapping.source_type)

    def _key_by(
        self, table: CatalogTable, altered: _Altered, action: s.AddKey | s.DropConstraint | s.SetIdentity
    ) -> tuple[int, ...]:
        """Return the numbers of the columns by which changes are identified after the action."""
        if isinstance(action, s.DropConstraint):
            if any(index.is_primary and index.name == action.name for index in table.indexes):
                altered.primary = ()
            return () if table.key_index is not None and table.key_index.name == action.name else altered.key
        if isinstance(action, s.AddKey):
            numbers = tuple(self._number(table, altered, name) for name in action.columns)
            for name in action.columns:
                altered.change(name, nullable=False)
            altered.primary = numbers
            return numbers if table.replica_identity in (Identity.DEFAULT, Identity.FULL) else altered.key
        altered.is_redefined |= action.kind != table.replica_identity
        if action.kind == Identity.NOTHING:
            return ()
        if action.index is None:
            if altered.primary is not None:
                return altered.primary
            return replace(table, replica_identity=Identity(action.kind)).key_numbers
        row = self._connection.execute(_INDEX_QUERY, (table.oid, action.index)).fetchone()
        if row is None:
            raise self._not_understood(f"there is no index {action.index} that can be a replica identity", table.table)
        return tuple(row[0])

    def _number(self, table: CatalogTable, altered: _Altered, name: str) -> int:
        if name not in altered.numbers:
            raise self._not_understood(f"there is no column {name}", table.table)
        return altered.numbers[name]

    # -- what the server is asked --------------------------------------------------------------------------------------

    def _find(self, name: Name, *, if_exists: bool) -> CatalogTable | None:
        """Find the table that a name means; None if it does not exist and `if_exists` is set."""
        tables = [TableId(schema, name.name) for schema in ([name.schema] if name.schema else self._schemas)]
        found = self._read(tables)
        table = next((found[table] for table in tables if table in found), None)
        if table is None and not if_exists:
            raise self._not_understood("there is no such table", tables[-1])
        return table

    def _read(self, tables: Sequence[TableId]) -> Mapping[TableId, CatalogTable]:
        return read_tables(self._connection, tables, self._publication)

    @contextmanager
    def _asking(self, table: TableId) -> Iterator[None]:
        """Open a transaction that can write nothing, with the search path of a session that has set none."""
        try:
            with self._connection.transaction():
                self._connection.execute("SET TRANSACTION READ ONLY")
                path = sql.SQL("SET LOCAL search_path = {}").format(
                    sql.SQL(", ").join(map(sql.Identifier, self._schemas))
                )
                self._connection.execute(path)
                yield
        except psycopg.errors.Error as error:
            if isinstance(error, psycopg.OperationalError):
                raise
            raise self._not_understood(str(error).splitlines()[0], table) from error

    def _type(self, type_sql: str, table: TableId) -> PgType:
        """Return a type's mapping. The server parses the type; nothing is executed."""
        with self._asking(table):
            pgconn = self._connection.pgconn
            for result in (pgconn.prepare(b"", f"SELECT NULL::{type_sql}\n".encode()), pgconn.describe_prepared(b"")):
                if result.status != ExecStatus.COMMAND_OK:
                    raise psycopg.errors.error_from_result(result)
            row = self._connection.execute("SELECT to_regtype(%s)::oid::int8", (type_sql,)).fetchone()
        # A result of a domain is described as one of its base type.
        oid = row[0] if row is not None and row[0] is not None else result.ftype(0)
        info = resolve_types(self._connection, [oid])[oid]
        mapping = column_type(oid, -1 if info.kind == "d" else result.fmod(0), info)
        if mapping is None:
            raise UnsupportedTypeError(
                f"values of the type {type_sql} cannot be replicated: {self._text}",
                code="unsupported_type",
                table=str(table),
                action="Choose another type.",
            )
        return mapping

    def _value_before(self, column: s.ColumnDefinition, mapping: PgType, table: TableId) -> pa.Array | None:
        """Return the value that existing rows get in a new column, as an array of one; None if they get several, or it is not known."""
        default, is_checked = self._domain(mapping) if mapping.info.kind == "d" else (None, False)
        if column.is_filled or is_checked:
            return None
        default = column.default_sql or default
        if default is None:
            return pa.nulls(1, mapping.arrow)
        row = self._connection.execute(_HAS_VOLATILE_QUERY, (sorted(functions_in(default)),)).fetchone()
        if row is None or row[0]:
            return None
        with self._asking(table):
            query = f"SELECT (\n{default}\n)::{column.type_sql}\n"
            result = self._connection.pgconn.exec_params(query.encode(), None)
            if result.status != ExecStatus.TUPLES_OK:
                raise psycopg.errors.error_from_result(result)
        text = result.get_value(0, 0)
        if text is None:
            return pa.nulls(1, mapping.arrow)
        value, unheld = mapping.from_text(pa.array([bytes(text)], pa.binary()))
        return None if unheld else value

    def _domain(self, mapping: PgType) -> tuple[str | None, bool]:
        """Return a domain's default, and whether the server checks every row of a new column of it, for which it writes all of them."""
        row = self._connection.execute(_DOMAIN_QUERY, (mapping.info.oid,)).fetchone()
        return (None, True) if row is None else (row[0], bool(row[1]))

    def _not_understood(self, why: str, table: TableId) -> ReplicatorError:
        return TableError(f"{why}: {self._text}", code=_CODE, table=str(table), action=_ACTION)


_ORDER: Final = {
    s.RenameTable: 0, s.RenameColumn: 0, s.DropColumn: 1, s.DropConstraint: 1, s.SetType: 2, s.AddColumn: 3, s.SetNullable: 4,
    s.SetDefault: 4, s.AddKey: 5, s.SetIdentity: 6, s.Unseen: 7,
}  # fmt: skip


def _column(column: s.ColumnDefinition, mapping: PgType, number: int) -> Column:
    return Column(
        name=column.name, type=mapping.arrow, source_type=mapping.source_type, nullable=column.is_nullable, id=number
    )


def _dropped(table: TableId) -> DDLEvent:
    return DDLEvent(operation=DDLOperation.DROP_TABLE, table=table)

"""Parse a statement that defines tables, for rehearsals. Pure: types and expressions stay texts, which the server understands.

sqlglot's parser for PostgreSQL takes no statement with several different actions, so only its tokens are used. Each form is read to its
end: a statement with an unknown word is not understood.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from replicator_source_postgresql.rehearsal.tokens import Cursor, Name, NotUnderstoodError, cursor_of

# What ends a column's type, or its default.
_CONSTRAINTS: Final = frozenset(
    {"CONSTRAINT", "NOT", "NULL", "CHECK", "DEFAULT", "GENERATED", "UNIQUE", "PRIMARY", "REFERENCES", "COLLATE", "STORAGE", "COMPRESSION"}
)  # fmt: skip
_SERIAL: Final = {
    "serial": "int4", "serial4": "int4", "bigserial": "int8", "serial8": "int8", "smallserial": "int2", "serial2": "int2",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDefinition:
    """A new column.

    Attributes:
        type_sql: Its type, as written; `int4` for `serial`.
        default_sql: The expression of its default; None if it has none.
        is_filled: The server draws a value for each row: `serial` and identity columns.
        is_generated: Its value follows from others; the log does not have it.
    """

    name: str
    type_sql: str
    default_sql: str | None = None
    is_nullable: bool = True
    is_primary: bool = False
    is_filled: bool = False
    is_generated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AddColumn:
    """ADD COLUMN."""

    column: ColumnDefinition
    if_not_exists: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DropColumn:
    """DROP COLUMN."""

    name: str
    if_exists: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameColumn:
    """RENAME COLUMN."""

    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetType:
    """ALTER COLUMN … TYPE; `has_using`: with an expression that makes the new values."""

    name: str
    type_sql: str
    has_using: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SetNullable:
    """ALTER COLUMN … SET or DROP NOT NULL."""

    name: str
    is_nullable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SetDefault:
    """ALTER COLUMN … SET or DROP DEFAULT. `default`: its expression; None: it has none any more."""

    name: str
    default: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddKey:
    """ADD PRIMARY KEY."""

    columns: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DropConstraint:
    """DROP CONSTRAINT."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetIdentity:
    """REPLICA IDENTITY; `kind` as `pg_class.relreplident` has it, `index` for `i`."""

    kind: str
    index: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameTable:
    """RENAME TO, SET SCHEMA: a part that is None stays."""

    schema: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """A foreign key or the like, which neither the log, the catalogue's comparison nor a target would show."""


Action = (
    AddColumn
    | DropColumn
    | RenameColumn
    | SetType
    | SetNullable
    | SetDefault
    | AddKey
    | DropConstraint
    | SetIdentity
    | RenameTable
    | Unseen
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterTable:
    """ALTER TABLE."""

    table: Name
    if_exists: bool
    actions: Sequence[Action]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTable:
    """CREATE TABLE with its columns spelled out."""

    table: Name
    if_not_exists: bool
    columns: Sequence[ColumnDefinition]
    key: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTables:
    """DROP TABLE."""

    tables: Sequence[Name]
    if_exists: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSchemas:
    """DROP SCHEMA … CASCADE."""

    schemas: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    """TRUNCATE; `cascades`: also the tables whose foreign keys lead to these."""

    tables: Sequence[Name]
    cascades: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """A statement that concerns no column and no table that could be replicated."""


Statement = AlterTable | CreateTable | DropTables | DropSchemas | Truncate | Nothing


def parse(text: str) -> Statement:
    """Read one statement, with or without a semicolon at its end.

    Raises:
        NotUnderstoodError: It is none of the forms that are known.
    """
    cursor = cursor_of(text)
    statement = _statement(cursor)
    cursor.end()
    return statement


def _statement(cursor: Cursor) -> Statement:
    if cursor.accept("ALTER TABLE"):
        return _alter_table(cursor)
    if cursor.accept("DROP TABLE"):
        if_exists = cursor.accept("IF EXISTS")
        tables = cursor.names()
        cursor.one_of("CASCADE", "RESTRICT")
        return DropTables(tables=tables, if_exists=if_exists)
    if cursor.accept("DROP SCHEMA"):
        cursor.accept("IF EXISTS")
        schemas = [name.name for name in cursor.names() if name.schema is None]
        return DropSchemas(schemas=schemas if cursor.accept("CASCADE") else ())
    if cursor.accept("TRUNCATE"):
        return _truncate(cursor)
    if cursor.accept("CREATE TABLE"):
        return _create_table(cursor)
    is_index = cursor.one_of(
        "CREATE INDEX", "CREATE UNIQUE INDEX", "COMMENT ON TABLE", "COMMENT ON COLUMN", "COMMENT ON INDEX"
    )
    if is_index or cursor.one_of("CREATE TEMP TABLE", "CREATE TEMPORARY TABLE", "CREATE UNLOGGED TABLE"):
        cursor.text_until(frozenset())
        return Nothing()
    raise NotUnderstoodError


def _truncate(cursor: Cursor) -> Truncate:
    cursor.accept("TABLE")
    tables: list[Name] = []
    while not tables or cursor.accept(","):
        cursor.accept("ONLY")
        tables.append(cursor.name())
        cursor.accept("*")
    cursor.one_of("RESTART IDENTITY", "CONTINUE IDENTITY")
    return Truncate(tables=tables, cascades=cursor.one_of("CASCADE", "RESTRICT") == "CASCADE")


def _create_table(cursor: Cursor) -> CreateTable:
    if_not_exists = cursor.accept("IF NOT EXISTS")
    table = cursor.name()
    columns, key = list[ColumnDefinition](), list[str]()
    for part in cursor.inner().parts():
        is_named = part.accept("CONSTRAINT")
        if is_named:
            part.identifier()
        if part.accept("PRIMARY KEY"):
            key = part.identifiers()
            _index_options(part)
        elif part.one_of("CHECK", "UNIQUE", "FOREIGN KEY", "EXCLUDE"):
            part.text_until(frozenset())
        elif is_named or part.words() == ["LIKE"]:
            raise NotUnderstoodError
        else:
            columns.append(_column(part))
        part.end()
    if cursor.accept("PARTITION BY"):
        cursor.text_until(frozenset())
    key = key or [column.name for column in columns if column.is_primary]
    columns = [c if c.name not in key else replace(c, is_nullable=False) for c in columns]
    return CreateTable(table=table, if_not_exists=if_not_exists, columns=columns, key=key)


def _alter_table(cursor: Cursor) -> AlterTable:
    if_exists = cursor.accept("IF EXISTS")
    cursor.accept("ONLY")
    table = cursor.name()
    cursor.accept("*")
    actions = []
    for part in cursor.parts():
        actions.append(_action(part))
        part.end()
    return AlterTable(table=table, if_exists=if_exists, actions=actions)


def _action(cursor: Cursor) -> Action:
    if cursor.accept("ADD"):
        return _add(cursor)
    if cursor.accept("DROP"):
        return _drop(cursor)
    if cursor.accept("RENAME"):
        return _rename(cursor)
    if cursor.accept("ALTER"):
        return _alter_column(cursor)
    if cursor.accept("SET SCHEMA"):
        return RenameTable(schema=cursor.identifier())
    if cursor.accept("REPLICA IDENTITY"):
        if cursor.accept("USING INDEX"):
            return SetIdentity(kind="i", index=cursor.identifier())
        kind = cursor.one_of("DEFAULT", "FULL", "NOTHING")
        if kind is None:
            raise NotUnderstoodError
        return SetIdentity(kind=kind[0].lower())
    if cursor.one_of("OWNER TO", "VALIDATE CONSTRAINT", "CLUSTER ON"):
        cursor.identifier()
        return Unseen()
    raise NotUnderstoodError


def _add(cursor: Cursor) -> Action:
    is_named = cursor.accept("CONSTRAINT")
    if is_named:
        cursor.identifier()
    if cursor.accept("PRIMARY KEY"):
        key = cursor.identifiers()
        _index_options(cursor)
        return AddKey(columns=key)
    if cursor.one_of("CHECK", "UNIQUE", "FOREIGN KEY", "EXCLUDE"):
        cursor.text_until(frozenset())
        return Unseen()
    if is_named:
        raise NotUnderstoodError
    cursor.accept("COLUMN")
    if_not_exists = cursor.accept("IF NOT EXISTS")
    return AddColumn(column=_column(cursor), if_not_exists=if_not_exists)


def _drop(cursor: Cursor) -> Action:
    is_constraint = cursor.accept("CONSTRAINT")
    if not is_constraint:
        cursor.accept("COLUMN")
    if_exists = cursor.accept("IF EXISTS")
    name = cursor.identifier()
    cursor.one_of("CASCADE", "RESTRICT")
    return DropConstraint(name=name) if is_constraint else DropColumn(name=name, if_exists=if_exists)


def _rename(cursor: Cursor) -> Action:
    if cursor.accept("TO"):
        return RenameTable(name=cursor.identifier())
    if cursor.accept("CONSTRAINT"):
        cursor.identifier()
        cursor.expect("TO")
        cursor.identifier()
        return Unseen()
    cursor.accept("COLUMN")
    old = cursor.identifier()
    cursor.expect("TO")
    return RenameColumn(old=old, new=cursor.identifier())


def _alter_column(cursor: Cursor) -> Action:
    cursor.accept("COLUMN")
    name = cursor.identifier()
    if cursor.one_of("TYPE", "SET DATA TYPE"):
        type_sql = cursor.text_until(frozenset({"COLLATE", "USING"}))
        if cursor.accept("COLLATE"):
            cursor.name()
        has_using = cursor.accept("USING")
        if has_using:
            cursor.text_until(frozenset())
        return SetType(name=name, type_sql=type_sql, has_using=has_using)
    if cursor.accept("SET NOT NULL"):
        return SetNullable(name=name, is_nullable=False)
    if cursor.accept("DROP NOT NULL"):
        return SetNullable(name=name, is_nullable=True)
    if cursor.accept("SET DEFAULT"):
        default = cursor.text_until(frozenset())
        return SetDefault(name=name, default=None if default.upper() == "NULL" else default)
    if cursor.accept("DROP DEFAULT"):
        return SetDefault(name=name, default=None)
    # An identity is added to a column that is there: its values stay.
    if cursor.one_of("SET STATISTICS", "SET STORAGE", "SET COMPRESSION", "ADD GENERATED"):
        cursor.text_until(frozenset())
        return Unseen()
    if cursor.one_of("DROP IDENTITY IF EXISTS", "DROP IDENTITY"):
        return Unseen()
    raise NotUnderstoodError


def _column(cursor: Cursor) -> ColumnDefinition:
    """Read a column's name, type and constraints, to the end."""
    name = cursor.identifier()
    type_sql = cursor.text_until(_CONSTRAINTS)
    is_serial = type_sql.lower() in _SERIAL
    column = ColumnDefinition(
        name=name, type_sql=_SERIAL.get(type_sql.lower(), type_sql), is_nullable=not is_serial, is_filled=is_serial
    )
    while not cursor.is_at_end:
        column = _constrained(cursor, column)
    return column


def _constrained(cursor: Cursor, column: ColumnDefinition) -> ColumnDefinition:
    """Read one more constraint of the column; return the column with it."""
    if cursor.accept("CONSTRAINT"):
        cursor.identifier()
    match cursor.one_of(
        "NOT NULL",
        "DEFAULT",
        "PRIMARY KEY",
        "GENERATED ALWAYS AS IDENTITY",
        "GENERATED BY DEFAULT AS IDENTITY",
        "GENERATED ALWAYS AS",
    ):
        case "NOT NULL":
            return replace(column, is_nullable=False)
        case "DEFAULT":
            return replace(column, default_sql=cursor.text_until(_CONSTRAINTS))
        case "PRIMARY KEY":
            return replace(column, is_primary=True, is_nullable=False)
        case "GENERATED ALWAYS AS":
            cursor.inner()
            cursor.one_of("STORED", "VIRTUAL")
            return replace(column, is_generated=True)
        case None:
            _skip_constraint(cursor)
            return column
        case _:
            if cursor.words() == ["("]:
                cursor.inner()
            return replace(column, is_filled=True, is_nullable=False)


def _skip_constraint(cursor: Cursor) -> None:
    """Skip a constraint that says nothing of the column's values."""
    match cursor.one_of("NULL", "UNIQUE", "CHECK", "COLLATE", "STORAGE", "COMPRESSION", "REFERENCES"):
        case "CHECK":
            cursor.inner()
            cursor.accept("NO INHERIT")
        case "COLLATE":
            cursor.name()
        case "STORAGE" | "COMPRESSION":
            cursor.identifier()
        case "REFERENCES":
            _reference(cursor)
        case None:
            raise NotUnderstoodError


def _reference(cursor: Cursor) -> None:
    cursor.name()
    if cursor.words() == ["("]:
        cursor.inner()
    cursor.one_of("MATCH FULL", "MATCH SIMPLE")
    while cursor.one_of("ON DELETE", "ON UPDATE"):
        if cursor.one_of("NO ACTION", "RESTRICT", "CASCADE", "SET NULL", "SET DEFAULT") is None:
            raise NotUnderstoodError
    cursor.one_of("DEFERRABLE", "NOT DEFERRABLE")
    cursor.one_of("INITIALLY DEFERRED", "INITIALLY IMMEDIATE")


def _index_options(cursor: Cursor) -> None:
    """Skip the options of a key that change nothing about it. A key that is checked late does not count as one."""
    if cursor.accept("INCLUDE"):
        cursor.inner()
    cursor.accept("NOT DEFERRABLE")

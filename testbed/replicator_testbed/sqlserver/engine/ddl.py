"""CREATE, ALTER and DROP of tables and indexes, read from T-SQL and written for PostgreSQL."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

from replicator_testbed.sqlserver import sqltypes
from replicator_testbed.sqlserver.engine.batches import Statement, Token
from replicator_testbed.sqlserver.engine.names import quoted, text, unbracketed
from replicator_testbed.sqlserver.engine.types import column_type
from replicator_testbed.sqlserver.outcomes import SqlError
from replicator_testbed.sqlserver.sqltypes import DEFAULT_COLLATION, SqlType, TypeName

ToExpression = Callable[[str], str]
"""Translates an expression of T-SQL."""
_COUNTED: Final = frozenset({TypeName.SMALLINT, TypeName.INT, TypeName.BIGINT})
"""Types of which PostgreSQL has IDENTITY columns."""
_ENDS: Final = frozenset(
    {
        "NULL",
        "NOT",
        "CONSTRAINT",
        "PRIMARY",
        "UNIQUE",
        "DEFAULT",
        "CHECK",
        "IDENTITY",
        "COLLATE",
        "SPARSE",
        "MASKED",
        "COLUMN_SET",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """A type that CREATE TYPE … FROM has made; `id` is its `user_type_id`."""

    id: int
    type: SqlType
    is_nullable: bool


Aliases = Mapping[tuple[str, str], Alias]
"""By schema and name in small letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewColumn:
    """A column as CREATE TABLE or ALTER TABLE … ADD writes it."""

    name: str
    type: SqlType | None = None
    is_nullable: bool = True
    identity: tuple[int, int] | None = None
    default: str | None = None
    computed: str | None = None
    collation: str | None = None
    is_key: bool = False
    is_unique: bool = False
    check: str | None = None
    constraint: str = ""
    facts: tuple[str, ...] = ()
    """Of `sqlserver.column_facts`."""
    alias: Alias | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A primary key or a unique constraint over columns."""

    name: str
    columns: tuple[str, ...]
    is_primary: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTable:
    """A table as CREATE TABLE writes it."""

    name: tuple[str, ...]
    columns: tuple[NewColumn, ...]
    keys: tuple[NewKey, ...] = field(default=())
    scheme: str = ""
    """The partition scheme that spreads it."""


class Cursor:
    """Reads a statement's tokens in turn."""

    def __init__(self, statement: Statement, start: int = 0) -> None:
        self._statement = statement
        self._tokens = statement.tokens
        self.index = start

    @property
    def word(self) -> str:
        """The next word in capitals, or the next sign; empty at the end."""
        if self.index >= len(self._tokens):
            return ""
        token = self._tokens[self.index]
        return token.word or token.text

    def words_ahead(self, count: int) -> list[str]:
        """The next words in capitals, or the next signs."""
        return [(t.word or t.text) for t in self._tokens[self.index : self.index + count]]

    def take(self, *words: str) -> bool:
        """Whether the next words are these; they are read then."""
        if self.words_ahead(len(words)) != list(words):
            return False
        self.index += len(words)
        return True

    def expect(self, *words: str) -> None:
        """The next words.

        Raises:
            SqlError: They are others.
        """
        if not self.take(*words):
            raise self.wrong()

    def wrong(self) -> SqlError:
        """What is said about a token that cannot stand there."""
        return SqlError(102, f"Incorrect syntax near '{self.word}': the model cannot read this.", severity=15)

    def token(self) -> Token:
        """The next token, whatever it is."""
        if self.index >= len(self._tokens):
            raise self.wrong()
        self.index += 1
        return self._tokens[self.index - 1]

    def name(self) -> str:
        """A name."""
        token = self.token()
        if token.kind not in {"word", "quoted"}:
            self.index -= 1
            raise self.wrong()
        return unbracketed(token.text)

    def qualified(self) -> tuple[str, ...]:
        """A name with what qualifies it."""
        parts = [self.name()]
        while self.take("."):
            parts.append(self.name())
        return tuple(parts)

    def parenthesised(self) -> str:
        """The text in parentheses, without them."""
        self.expect("(")
        first, depth = self.index, 1
        while depth:
            token = self.token()
            depth += (token.text == "(") - (token.text == ")")
        return self._text(first, self.index - 1)

    def expression(self) -> str:
        """A default: in parentheses, or a constant, or a function with its arguments."""
        if self.word == "(":
            return f"({self.parenthesised()})"
        first = self.index
        if self.word in {"-", "+"}:
            self.token()
        self.token()
        if self.word == "(":
            self.parenthesised()
        return self._text(first, self.index)

    def type_text(self) -> str:
        """A type with its sizes."""
        first = self.index
        self.qualified()
        if self.word == "(":
            self.parenthesised()
        return self._text(first, self.index)

    def names(self) -> tuple[str, ...]:
        """Names in parentheses; ASC and DESC are read over."""
        self.expect("(")
        found = [self.name()]
        while True:
            self.take("ASC")
            if self.take("DESC"):
                raise SqlError(40510, "The model has no keys in descending order.")
            if self.take(")"):
                return tuple(found)
            self.expect(",")
            found.append(self.name())

    def _text(self, first: int, last: int) -> str:
        base = self._tokens[0].start
        return self._statement.text[self._tokens[first].start - base : self._tokens[last - 1].end - base]


def read_table(statement: Statement, aliases: Aliases) -> NewTable:
    """What CREATE TABLE says.

    Raises:
        SqlError: It cannot be read.
    """
    cursor = Cursor(statement, 2)
    name = cursor.qualified()
    cursor.expect("(")
    columns: list[NewColumn] = []
    keys: list[NewKey] = []
    while True:
        if cursor.word in {"CONSTRAINT", "PRIMARY", "UNIQUE"}:
            keys.append(read_key(cursor, name[-1]))
        else:
            columns.append(read_column(cursor, aliases))
        if cursor.take(")"):
            break
        cursor.expect(",")
    # ON [PRIMARY], TEXTIMAGE_ON and WITH (…) say how SQL Server stores it; of a partition scheme the catalogue tells.
    scheme = cursor.name() if cursor.take("ON") else ""
    is_spread = cursor.word == "("
    return NewTable(name=name, columns=tuple(columns), keys=tuple(keys), scheme=scheme if is_spread else "")


def read_key(cursor: Cursor, table: str) -> NewKey:
    """A table's constraint."""
    name = cursor.name() if cursor.take("CONSTRAINT") else ""
    is_primary = cursor.take("PRIMARY", "KEY")
    if not is_primary:
        cursor.expect("UNIQUE")
    cursor.take("CLUSTERED")
    cursor.take("NONCLUSTERED")
    columns = cursor.names()
    return NewKey(name=name or key_name(table, columns, is_primary=is_primary), columns=columns, is_primary=is_primary)


def key_name(table: str, columns: Sequence[str], *, is_primary: bool) -> str:
    """A name as SQL Server makes them up."""
    digits = zlib.crc32("\0".join((table, *columns)).encode())
    return f"{'PK' if is_primary else 'UQ'}__{table[:8]}__{digits:08X}"


def read_column(cursor: Cursor, aliases: Aliases) -> NewColumn:
    """A column's definition."""
    name = cursor.name()
    if cursor.take("AS"):
        computed = cursor.parenthesised()
        cursor.take("PERSISTED")
        cursor.take("NOT", "NULL")
        return NewColumn(name=name, computed=computed)
    written = cursor.type_text()
    alias = _alias(written, aliases)
    kind = alias.type if alias is not None else sql_type(written)
    options: dict[str, Any] = {"alias": alias}
    while cursor.word in _ENDS or cursor.word == "ROWGUIDCOL":
        _read_option(cursor, options)
    if options.get("is_key"):
        options["is_nullable"] = False
    if kind.name in {TypeName.TIMESTAMP, TypeName.SYSNAME} or (alias is not None and not alias.is_nullable):
        options.setdefault("is_nullable", False)
    return NewColumn(name=name, type=kind, **options)


def _read_option(cursor: Cursor, options: dict[str, Any]) -> None:  # noqa: C901 - one case for each option
    if cursor.take("NOT", "NULL"):
        options["is_nullable"] = False
    elif cursor.take("COLLATE"):
        options["collation"] = cursor.name()
    elif cursor.take("IDENTITY"):
        numbers = cursor.parenthesised().split(",") if cursor.word == "(" else ("1", "1")
        options["identity"] = (int(numbers[0]), int(numbers[1]))
        options["is_nullable"] = False
    elif cursor.take("CONSTRAINT"):
        options["constraint"] = cursor.name()
    elif fact := _fact(cursor):
        options["facts"] = (*options.get("facts", ()), fact)
    elif cursor.take("NULL"):
        options["is_nullable"] = True
    elif cursor.take("PRIMARY", "KEY"):
        options["is_key"] = True
        _ = cursor.take("CLUSTERED") or cursor.take("NONCLUSTERED")
    elif cursor.take("UNIQUE"):
        options["is_unique"] = True
    elif cursor.take("DEFAULT"):
        options["default"] = cursor.expression()
    elif cursor.take("CHECK"):
        options["check"] = cursor.parenthesised()
    else:
        # ROWGUIDCOL changes nothing that the model shows.
        cursor.token()


def _fact(cursor: Cursor) -> str | None:
    """What is said of the column for the catalogue alone."""
    if cursor.take("MASKED", "WITH"):
        cursor.parenthesised()
        return "masked"
    if cursor.take("SPARSE"):
        return "sparse"
    return "column set" if cursor.take("COLUMN_SET", "FOR", "ALL_SPARSE_COLUMNS") else None


def _alias(text: str, aliases: Aliases) -> Alias | None:
    parts = tuple(unbracketed(part).lower() for part in text.split("."))
    return aliases.get(("dbo", *parts)[-2:])  # type: ignore[arg-type] # two parts


def sql_type(text: str) -> SqlType:
    """A type.

    Raises:
        SqlError: 2715, there is none of that name.
    """
    try:
        return sqltypes.parse(text)
    except sqltypes.UnknownTypeError as unknown:
        raise SqlError(unknown.number or 2715, f"Cannot find data type {text}: {unknown}") from unknown


def column_sql(column: NewColumn, to_expression: ToExpression) -> str:
    """A column's definition for PostgreSQL."""
    parts = [quoted(column.name)]
    if column.computed is not None:
        # The type of a computed column is that of its expression, which PostgreSQL wants to be told.
        return f"{quoted(column.name)} {{type}} GENERATED ALWAYS AS ({to_expression(column.computed)}) STORED"
    assert column.type is not None
    parts.append(column_type(column.type.collated(column.collation or DEFAULT_COLLATION)))
    if column.identity is not None and column.type.name in _COUNTED:
        parts.append(f"GENERATED BY DEFAULT AS IDENTITY ({_counting(column.identity)})")
    if not column.is_nullable:
        parts.append("NOT NULL")
    if column.type.name is TypeName.TIMESTAMP:
        parts.append("DEFAULT sqlserver.next_rowversion()")
    elif column.default is not None:
        parts.append(f"DEFAULT {to_expression(column.default)}")
    if column.check is not None:
        parts.append(f"CHECK ({to_expression(column.check)})")
    return " ".join(parts)


def counter(schema: str, table: str, column: NewColumn) -> list[str]:
    """The statements that make the values of an IDENTITY column of a type for which PostgreSQL has none."""
    if column.identity is None or column.type is None or column.type.name in _COUNTED:
        return []
    of_column, name = f"{quoted(schema)}.{quoted(table)}", f"{quoted(schema)}.{quoted(f'identity {uuid4().hex}')}"
    return [
        f"CREATE SEQUENCE {name} {_counting(column.identity)} OWNED BY {of_column}.{quoted(column.name)}",
        f"ALTER TABLE {of_column} ALTER COLUMN {quoted(column.name)} SET DEFAULT nextval({text(name)})",
    ]


def _counting(identity: tuple[int, int]) -> str:
    start, step = identity
    return f"START WITH {start} INCREMENT BY {step} MINVALUE {min(start, 1)}"


def key_sql(key: NewKey) -> str:
    """A constraint for PostgreSQL: checked at the end of a statement, as SQL Server does [K]."""
    kind = "PRIMARY KEY" if key.is_primary else "UNIQUE"
    columns = ", ".join(quoted(column) for column in key.columns)
    return f"CONSTRAINT {quoted(key.name)} {kind} ({columns}) DEFERRABLE INITIALLY IMMEDIATE"


def own_keys(table: str, columns: Sequence[NewColumn]) -> list[NewKey]:
    """The constraints that columns bring along."""
    return [
        NewKey(
            name=column.constraint or key_name(table, [column.name], is_primary=column.is_key),
            columns=(column.name,),
            is_primary=column.is_key,
        )
        for column in columns
        if column.is_key or column.is_unique
    ]

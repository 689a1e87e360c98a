"""Clauses of ALTER TABLE about columns. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from replicator_source_mysql.sql.definitions import ColumnDefinition, definition
from replicator_source_mysql.sql.keys import KeyPart
from replicator_source_mysql.sql.lexer import TokenKind
from replicator_source_mysql.sql.reader import NotUnderstoodError, Reader


@dataclass(frozen=True, slots=True)
class ColumnPosition:
    """The column after which one stands; None: it is the first one."""

    after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """ADD COLUMN. Without a position it is the last one."""

    name: str
    definition: ColumnDefinition
    position: ColumnPosition | None = None
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """CHANGE COLUMN; MODIFY COLUMN, with `name` for both names. Without a position it stays where it is."""

    old: str
    name: str
    definition: ColumnDefinition
    position: ColumnPosition | None = None
    if_exists: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """DROP COLUMN."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename:
    """RENAME COLUMN."""

    old: str
    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class AddKey:
    """ADD PRIMARY KEY."""

    parts: tuple[KeyPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DropKey:
    """DROP PRIMARY KEY."""

    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class Convert:
    """CONVERT TO CHARACTER SET, to one that has text."""

    charset: str


Clause = Add | Change | Drop | Rename | AddKey | DropKey | Convert


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChanges:
    """Changes of one ALTER TABLE to columns and to the primary key.

    Attributes:
        clauses: Clauses in their order.
        changes_rows: It does something else by which rows may come, go or change.
        sql_mode: The session's SQL mode.
    """

    clauses: tuple[Clause, ...]
    changes_rows: bool
    sql_mode: int


def added(item: Reader, *, if_not_exists: bool = False) -> tuple[Clause, ...]:
    """Read after ADD, to the end of the action; `if_not_exists`: it was said before.

    Raises:
        NotUnderstoodError: Here and below: it is none of the forms that are known.
    """
    item.skip("COLUMN")
    if_not_exists |= item.skip("IF", "NOT", "EXISTS")
    found = Add(name=item.name(), definition=definition(item), position=_position(item), if_not_exists=if_not_exists)
    item.end()
    return (found,)


def changed(item: Reader, *, has_new_name: bool) -> tuple[Clause, ...]:
    """Read after CHANGE or MODIFY."""
    item.skip("COLUMN")
    if_exists = item.skip("IF", "EXISTS")
    old = item.name()
    name = item.name() if has_new_name else old
    found = Change(old=old, name=name, definition=definition(item), position=_position(item), if_exists=if_exists)
    item.end()
    return (found,)


def dropped(item: Reader) -> tuple[Clause, ...]:
    """Read after DROP."""
    item.skip("COLUMN")
    if_exists = item.skip("IF", "EXISTS")
    name = item.name()
    item.skip_any({"RESTRICT", "CASCADE"})
    item.end()
    return (Drop(name=name, if_exists=if_exists),)


def renamed(item: Reader) -> tuple[Clause, ...]:
    """Read after RENAME."""
    item.expect("COLUMN")
    if_exists = item.skip("IF", "EXISTS")
    old = item.name()
    item.expect("TO")
    name = item.name()
    item.end()
    return (Rename(old=old, name=name, if_exists=if_exists),)


def converted(item: Reader) -> tuple[Clause, ...]:
    """Read after CONVERT."""
    item.expect("TO")
    if not item.skip("CHARSET"):
        if not item.skip("CHARACTER"):
            item.expect("CHAR")
        item.expect("SET")
    charset = _charset(item)
    if charset == "binary" or (item.skip("COLLATE") and _charset(item) == "binary"):
        raise NotUnderstoodError
    item.end()
    return (Convert(charset),)


def _charset(item: Reader) -> str:
    token = item.take()
    # DEFAULT is that of the database.
    if token.kind not in {TokenKind.WORD, TokenKind.QUOTED, TokenKind.STRING} or token.word == "DEFAULT":
        raise NotUnderstoodError
    return token.text.strip("'\"").lower()


def _position(item: Reader) -> ColumnPosition | None:
    if item.skip("FIRST"):
        return ColumnPosition(None)
    return ColumnPosition(item.name()) if item.skip("AFTER") else None

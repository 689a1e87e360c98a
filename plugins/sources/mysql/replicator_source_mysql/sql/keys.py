"""Definitions of keys and indexes in statements. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from replicator_source_mysql.sql.lexer import TokenKind
from replicator_source_mysql.sql.options import index_option
from replicator_source_mysql.sql.reader import NotUnderstoodError, Reader

_REFERENCE_ACTIONS: Final = (("CASCADE",), ("RESTRICT",), ("SET", "NULL"), ("SET", "DEFAULT"), ("NO", "ACTION"))


class KeyPart(NamedTuple):
    """A column of a key; `prefix`: its number of characters or bytes, where the statement says so."""

    name: str
    prefix: int | None = None


def primary_key(reader: Reader) -> tuple[KeyPart, ...]:
    """Read the columns after PRIMARY KEY, to the end of the definition.

    Raises:
        NotUnderstoodError: It has another form, or IF NOT EXISTS, with which the key is unknown.
    """
    if not is_open(reader) and reader.peek().word != "USING":
        reader.name()  # the servers pass over a name
    if reader.skip_any({"USING", "TYPE"}):
        reader.name()
    parts = _parts(reader.parenthesised())
    while index_option(reader):
        pass
    return parts


def _parts(inner: Reader) -> tuple[KeyPart, ...]:
    found = []
    while True:
        name, prefix = inner.name(), None
        if is_open(inner):
            size = inner.parenthesised()
            token = size.take()
            if token.kind is not TokenKind.NUMBER or not token.text.isdecimal():
                raise NotUnderstoodError
            size.end()
            prefix = int(token.text)
        inner.skip_any({"ASC", "DESC"})
        found.append(KeyPart(name, prefix))
        if not inner.skip_symbol(","):
            break
    inner.end()
    return tuple(found)


def index(reader: Reader, *, is_named: bool) -> None:
    """Pass the definition of an index: its name, its columns, its options; `is_named`: CREATE INDEX … ON has them apart."""
    if not is_named:
        if not is_open(reader) and reader.peek().word != "USING":
            reader.name()
        if reader.skip_any({"USING", "TYPE"}):
            reader.name()
    reader.parentheses()
    while index_option(reader):
        pass


def references(reader: Reader) -> bool:
    """Pass the reference of a foreign key; return whether it changes rows of its table by itself."""
    acts = False
    reader.expect("REFERENCES")
    reader.table()
    if is_open(reader):
        reader.parentheses()
    if reader.skip("MATCH"):
        reader.expect_any({"FULL", "PARTIAL", "SIMPLE"})
    while reader.peek().word == "ON" and reader.peek(1).word in {"DELETE", "UPDATE"}:
        reader.take()
        reader.take()
        acts |= reader.peek().word in {"CASCADE", "SET"}
        if not any(reader.skip(*words) for words in _REFERENCE_ACTIONS):
            raise NotUnderstoodError
    return acts


def is_open(reader: Reader) -> bool:
    """Return whether a parenthesis comes next."""
    return reader.peek().kind is TokenKind.SYMBOL and reader.peek().text == "("

"""PostgreSQL's log as transactions: what pgoutput sends, with the statements that the session marked."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from replicator_source_postgresql.log.pgoutput import (
    BEGIN,
    COMMIT,
    DELETE,
    INSERT,
    MESSAGE,
    RELATION,
    UPDATE,
    Message,
    MessageReader,
    Relation,
)

STATEMENT_PREFIX: Final = "sqlserver.statement"
_EPOCH: Final = dt.datetime(2000, 1, 1)
_OLD: Final = frozenset({ord("K"), ord("O")})
_NULL, _UNCHANGED = ord("n"), ord("u")

Row = Mapping[str, str | None]
"""A row's values as PostgreSQL writes them, by the column's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A row that was inserted (`old` is None), deleted (`new` is None) or updated.

    Attributes:
        source: The table's object_id.
        statement: Which statement of its transaction changed it.
        lsn: Where PostgreSQL logged it.
        serial: Its number in the transaction: some rows have the same position in the log.
    """

    source: int
    statement: int
    lsn: int
    serial: int
    old: Row | None
    new: Row | None


@dataclass(slots=True, kw_only=True)
class Transaction:
    """A committed transaction; `end_lsn` is where the log continues behind it."""

    xid: int
    commit_lsn: int
    committed_at: dt.datetime
    end_lsn: int = 0
    begin_lsn: int = 0
    changes: list[Change] = field(default_factory=list)


class Decoder:
    """Puts pgoutput's messages together; it remembers the shapes of tables."""

    def __init__(self) -> None:
        self._relations: dict[int, Relation] = {}

    def transactions(self, messages: Iterable[tuple[int, bytes]]) -> Iterator[Transaction]:
        """The transactions of messages, each with its position in the log."""
        current: Transaction | None = None
        statement = 0
        for lsn, content in messages:
            kind, body = content[0], content[1:]
            if kind == BEGIN:
                reader = MessageReader(body)
                commit_lsn, at, xid = reader.integer(8), reader.integer(8, signed=True), reader.integer(4)
                committed_at = _EPOCH + dt.timedelta(microseconds=at)
                current, statement = Transaction(xid=xid, commit_lsn=commit_lsn, committed_at=committed_at), 0
            elif kind == RELATION:
                relation = Relation.read(body)
                self._relations[relation.id] = relation
            elif current is None:
                continue
            elif kind == COMMIT:
                reader = MessageReader(body)
                reader.integer(9)
                current.end_lsn = reader.integer(8)
                yield current
                current = None
            else:
                current.begin_lsn = current.begin_lsn or lsn
                if kind == MESSAGE:
                    statement += Message.read(body).prefix == STATEMENT_PREFIX
                elif kind in {INSERT, UPDATE, DELETE}:
                    current.changes.append(self._change(kind, body, lsn, statement, len(current.changes)))

    def relation(self, source: int) -> Relation | None:
        """The shape of a table, as the log described it last."""
        return self._relations.get(source)

    def _change(self, kind: int, body: bytes, lsn: int, statement: int, serial: int) -> Change:
        reader = MessageReader(body)
        source = reader.integer(4)
        columns = [column.name for column in self._relations[source].columns]
        old: dict[str, str | None] | None = None
        new: dict[str, str | None] | None = None
        tag = reader.integer(1)
        if tag in _OLD:
            old = _row(reader, columns, {})
            tag = reader.integer(1) if kind != DELETE else 0
        if kind != DELETE:
            new = _row(reader, columns, old or {})
        return Change(source=source, statement=statement, lsn=lsn, serial=serial, old=old, new=new)


def _row(reader: MessageReader, columns: list[str], before: Row) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in columns[: reader.integer(2)]:
        kind = reader.integer(1)
        if kind == _NULL:
            found[name] = None
        elif kind == _UNCHANGED:
            # A value outside of the row that was not written again: the whole old row has it.
            found[name] = before.get(name)
        else:
            found[name] = reader.bytes(reader.integer(4)).decode()
    return found

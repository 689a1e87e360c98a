"""What a statement in the log does to the tables that are followed. Pure.

sqlglot's tokenizer takes the text apart (comments, quotes, nesting); the few statements that matter are read from its
tokens. What names a followed table and is not understood is `UNCLEAR`: the table is set aside, nothing is guessed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sqlglot.dialects.mysql import MySQL
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from replicator.model.schema import TableId
from replicator_source_mysql.events import Query

logging.getLogger("sqlglot").setLevel(logging.ERROR)


class Effect(StrEnum):
    """What becomes of a table."""

    TRUNCATE = "truncate"
    DROP = "drop"
    RENAME = "rename"
    ALTER = "alter"
    """Its columns may be others now."""
    REPLACED = "replaced"
    """It is another object, or rows came or went that the log does not name."""
    STATEMENT = "statement"
    """Its rows were changed by a statement, not row by row."""
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEffect:
    """An effect on a followed table; `new_table` of a RENAME."""

    effect: Effect
    table: TableId
    new_table: TableId | None = None


_ANSI_QUOTES: Final = 4
_EMPTYING: Final = re.compile(r"\((?:DELETE FROM|TRUNCATE TABLE) `[^`]+`\.`[^`]+`(?: /\*.*\*/)?", re.IGNORECASE)
_VERSION_COMMENT: Final = re.compile(r"/\*M?!\d*(.*?)\*/", re.DOTALL)

_HARMLESS: Final = frozenset(
    {"ANALYZE", "BINLOG", "CHECK", "COMMENT", "FLUSH", "GRANT", "INSTALL", "LOCK", "OPTIMIZE", "RELEASE", "REPAIR", "REVOKE",
     "ROLLBACK", "SAVEPOINT", "SET", "UNINSTALL", "UNLOCK", "USE"}
)  # fmt: skip
_STATEMENTS: Final = frozenset(
    {"CALL", "DELETE", "DO", "INSERT", "LOAD", "REPLACE", "SELECT", "UPDATE", "WITH", "IMPORT"}
)
# What CREATE, ALTER and DROP may name beside tables, without touching any table's rows.
_OBJECTS: Final = frozenset(
    {"EVENT", "FUNCTION", "INDEX", "PROCEDURE", "ROLE", "SERVER", "TRIGGER", "UNIQUE", "FULLTEXT", "SPATIAL", "USER", "VIEW",
     "SEQUENCE", "DEFINER", "SQL", "ALGORITHM", "PACKAGE", "AGGREGATE", "TABLESPACE", "LOGFILE", "INSTANCE", "RESOURCE",
     "VECTOR", "LIBRARY", "CATALOG"}
)  # fmt: skip
_HARMLESS_ACTIONS: Final = (
    "ADD CONSTRAINT", "ADD INDEX", "ADD KEY", "ADD UNIQUE", "ADD FULLTEXT", "ADD SPATIAL", "ADD FOREIGN", "ADD CHECK",
    "ADD VECTOR", "ADD PARTITION", "DROP INDEX", "DROP KEY", "DROP FOREIGN", "DROP CONSTRAINT", "DROP CHECK", "RENAME INDEX",
    "RENAME KEY", "ALTER INDEX", "ALTER KEY", "ALTER CHECK", "ALTER CONSTRAINT", "COMMENT", "AUTO_INCREMENT", "ALGORITHM",
    "LOCK", "ENABLE", "DISABLE", "FORCE", "ORDER", "ROW_FORMAT", "KEY_BLOCK_SIZE", "STATS_PERSISTENT", "STATS_AUTO_RECALC",
    "STATS_SAMPLE_PAGES", "AVG_ROW_LENGTH", "MAX_ROWS", "MIN_ROWS", "CHECKSUM", "PACK_KEYS", "DELAY_KEY_WRITE", "COMPRESSION",
    "ENCRYPTION", "PAGE_COMPRESSED", "WAIT", "NOWAIT", "REORGANIZE", "COALESCE", "REBUILD", "OPTIMIZE", "ANALYZE", "CHECK",
    "REPAIR", "REMOVE", "PARTITION", "CHARACTER", "CHARSET", "DEFAULT", "COLLATE", "SECONDARY_LOAD", "SECONDARY_UNLOAD",
)  # fmt: skip
_REPLACING_ACTIONS: Final = (
    "ADD PRIMARY", "DROP PRIMARY", "DROP PARTITION", "TRUNCATE", "EXCHANGE", "IMPORT", "DISCARD", "CONVERT PARTITION", "ENGINE",
)  # fmt: skip


def effects(query: Query, followed: Collection[TableId], *, is_lower_case: bool) -> list[TableEffect]:
    """What a statement does to followed tables, each at most once.

    Args:
        query: The statement.
        followed: Under the names that the server stores.
        is_lower_case: The server stores names in lower case.
    """
    mentioned = [table for table in followed if _is_mentioned(query, table)]
    near = [table for table in followed if table.namespace in (query.database, _folded(query, is_lower_case))]
    if not mentioned and not near:
        return []
    try:
        reader = _Reader(query, is_lower_case=is_lower_case)
        found = list(_effects(reader, mentioned, near))
    except (SqlglotError, _NotUnderstoodError):
        return [TableEffect(effect=Effect.UNCLEAR, table=table) for table in mentioned]
    first: dict[TableId, TableEffect] = {}
    for effect in found:
        if effect.table in mentioned or effect.effect is Effect.STATEMENT:
            first.setdefault(effect.table, effect)
    return list(first.values())


def _folded(query: Query, is_lower_case: bool) -> str:
    return query.database.lower() if is_lower_case else query.database


class _NotUnderstoodError(Exception):
    pass


def _is_mentioned(query: Query, table: TableId) -> bool:
    text = query.text.casefold()
    for name in (table.name, table.namespace):
        folded = name.casefold()
        spellings = {folded, folded.replace("`", "``"), folded.replace('"', '""')}
        if any(spelling in text for spelling in spellings):
            return True
        # A client's character set may have spelled it in bytes that are no UTF-8.
        if "\ufffd" in text and not name.isascii():
            return True
    return False


def _effects(reader: _Reader, mentioned: Sequence[TableId], near: Sequence[TableId]) -> Iterator[TableEffect]:
    verb = _verb(reader)
    if verb in _HARMLESS:
        return
    if verb in _STATEMENTS:
        yield from _statement(reader, mentioned, near)
        return
    match verb:
        case "TRUNCATE":
            reader.skip("TABLE")
            yield TableEffect(effect=Effect.TRUNCATE, table=reader.table())
            reader.end()
        case "DROP":
            yield from _drop(reader, mentioned)
        case "RENAME":
            yield from _rename(reader)
        case "CREATE":
            yield from _create(reader, mentioned)
        case "ALTER":
            yield from _alter(reader)
        case _:
            raise _NotUnderstoodError


def _verb(reader: _Reader) -> str:
    """The first word; MariaDB's `SET STATEMENT variable = value, … FOR` in front of it is skipped."""
    verb = reader.word()
    if verb == "SET" and reader.skip("STATEMENT"):
        while verb != "FOR":
            verb = reader.word()
        verb = reader.word()
    return verb


def _statement(reader: _Reader, mentioned: Sequence[TableId], near: Sequence[TableId]) -> Iterator[TableEffect]:
    """What a change in statement format may have done, which is refused.

    Views, triggers and cascades take it to tables that it does not name: to any of the databases that it names, or that
    is its own.
    """
    if reader.is_emptying_of_memory_table():
        return
    databases = reader.texts()
    yield from (TableEffect(effect=Effect.STATEMENT, table=table) for table in near)
    for table in mentioned:
        if table.namespace in databases:
            yield TableEffect(effect=Effect.STATEMENT, table=table)


def _drop(reader: _Reader, mentioned: Sequence[TableId]) -> Iterator[TableEffect]:
    if reader.skip("TEMPORARY"):
        return
    what = reader.word()
    if what in {"DATABASE", "SCHEMA"}:
        reader.skip("IF", "EXISTS")
        database = reader.name()
        for table in mentioned:
            if table.namespace == database:
                yield TableEffect(effect=Effect.DROP, table=table)
        return
    if what in _OBJECTS or what == "PREPARE":
        return
    if what not in {"TABLE", "TABLES"}:
        raise _NotUnderstoodError
    reader.skip("IF", "EXISTS")
    yield TableEffect(effect=Effect.DROP, table=reader.table())
    while reader.skip(","):
        yield TableEffect(effect=Effect.DROP, table=reader.table())
    reader.end()


def _rename(reader: _Reader) -> Iterator[TableEffect]:
    if reader.word() not in {"TABLE", "TABLES"}:
        return  # a user
    reader.skip("IF", "EXISTS")
    pairs = [_renamed(reader)]
    while reader.skip(","):
        pairs.append(_renamed(reader))
    taken = {new for _, new in pairs}
    for old, new in pairs:
        # The name has another table behind it now: a swap.
        if old not in taken:
            yield TableEffect(effect=Effect.RENAME, table=old, new_table=new)
    for table in taken:
        yield TableEffect(effect=Effect.REPLACED, table=table)


def _renamed(reader: _Reader) -> tuple[TableId, TableId]:
    old = reader.table()
    while reader.word() != "TO":
        pass  # WAIT n, NOWAIT
    return old, reader.table()


def _create(reader: _Reader, mentioned: Sequence[TableId]) -> Iterator[TableEffect]:
    is_replacing = reader.skip("OR", "REPLACE")
    if reader.skip("TEMPORARY"):
        return
    what = reader.word()
    if what in {"DATABASE", "SCHEMA"}:
        database = reader.name() if is_replacing else None
        yield from (TableEffect(effect=Effect.DROP, table=table) for table in mentioned if table.namespace == database)
        return
    if what in _OBJECTS:
        return
    if what != "TABLE":
        raise _NotUnderstoodError
    reader.skip("IF", "NOT", "EXISTS")
    table = reader.table()
    if is_replacing:
        yield TableEffect(effect=Effect.REPLACED, table=table)


def _alter(reader: _Reader) -> Iterator[TableEffect]:
    reader.skip("ONLINE")
    # It deletes rows that a new unique key refuses.
    may_delete = reader.skip("IGNORE")
    what = reader.word()
    if what in _OBJECTS or what in {"DATABASE", "SCHEMA"}:
        return
    if what != "TABLE":
        raise _NotUnderstoodError
    reader.skip("IF", "EXISTS")
    table = reader.table()
    if reader.skip("WAIT"):
        reader.word()
    else:
        reader.skip("NOWAIT")
    found = [TableEffect(effect=Effect.REPLACED, table=table)] if may_delete else []
    for action in reader.actions():
        words = " ".join(token.text.upper() for token in action[:2])
        first = action[0].text.upper() if action else ""
        if words.startswith(("EXCHANGE", "CONVERT TABLE")):
            found += [TableEffect(effect=Effect.REPLACED, table=t) for t in (table, *_exchanged(reader, action))]
        elif first == "RENAME" and words not in {"RENAME INDEX", "RENAME KEY", "RENAME COLUMN"}:
            new = reader.last_name(action)
            found += [
                TableEffect(effect=Effect.RENAME, table=table, new_table=new),
                TableEffect(effect=Effect.REPLACED, table=new),
            ]
        elif _starts(words, _REPLACING_ACTIONS):
            found.append(TableEffect(effect=Effect.REPLACED, table=table))
        elif _is_default(action) or _starts(words, _HARMLESS_ACTIONS):
            pass
        else:
            found.append(TableEffect(effect=Effect.ALTER, table=table))
    # The gravest first: of each table the first one counts.
    order = [Effect.RENAME, Effect.ALTER, Effect.REPLACED]
    yield from sorted(found, key=lambda e: order.index(e.effect))


def _starts(words: str, actions: Sequence[str]) -> bool:
    return any(words == action or words.startswith(f"{action} ") for action in actions)


def _is_default(action: Sequence[Token]) -> bool:
    """ALTER [COLUMN] name SET DEFAULT …, DROP DEFAULT, SET VISIBLE: nothing about the rows."""
    return bool(action) and action[0].text.upper() == "ALTER"


def _exchanged(reader: _Reader, action: Sequence[Token]) -> list[TableId]:
    texts = [token.text.upper() for token in action]
    if "TABLE" not in texts:
        raise _NotUnderstoodError
    return [reader.name_in(action, texts.index("TABLE") + 1)]


class _Reader:
    """The tokens of a statement, read from left to right."""

    def __init__(self, query: Query, *, is_lower_case: bool) -> None:
        # Behind a parenthesis, or sqlglot would leave the rest of some statements (RENAME, CALL) in one piece.
        self._text = "(" + _VERSION_COMMENT.sub(r" \1 ", query.text)
        self._tokens: list[Token] = [
            token for token in MySQL.Tokenizer().tokenize(self._text)[1:] if token.token_type is not TokenType.SEMICOLON
        ]
        self._place = 0
        self._database = query.database
        self._is_lower_case = is_lower_case
        self._has_ansi_quotes = query.sql_mode is None or bool(query.sql_mode & _ANSI_QUOTES)

    def word(self) -> str:
        """The next word, in capitals."""
        token = self._take()
        return token.text.upper()

    def skip(self, *words: str) -> bool:
        """Skip these words if they come next."""
        coming = self._tokens[self._place : self._place + len(words)]
        if [t.text.upper() for t in coming] != list(words) or any(self._is_quoted(t) for t in coming):
            return False
        self._place += len(words)
        return True

    def name(self) -> str:
        """The next identifier."""
        return self._named(self._take())

    def table(self) -> TableId:
        """The next table's name."""
        first = self.name()
        if self._place < len(self._tokens) and self._tokens[self._place].token_type is TokenType.NUMBER:
            # `shop.1t`: the tokenizer takes what follows for a number.
            raise _NotUnderstoodError
        if self._place < len(self._tokens) and self._tokens[self._place].token_type is TokenType.DOT:
            self._place += 1
            return TableId(first, self.name())
        return TableId(self._folded(self._database), first)

    def end(self) -> None:
        """Insist that nothing is left that could name another table."""
        rest = [token.text.upper() for token in self._tokens[self._place :]]
        if not set(rest) <= {"RESTRICT", "CASCADE", "WAIT", "NOWAIT", *(text for text in rest if text.isdigit())}:
            raise _NotUnderstoodError

    def is_emptying_of_memory_table(self) -> bool:
        """DELETE FROM `database`.`table`: what a server that was restarted logs of tables of the engine MEMORY."""
        return _EMPTYING.fullmatch(self._text) is not None

    def texts(self) -> set[str]:
        """Everything that could be a name."""
        return {self._folded(token.text) for token in self._tokens}

    def actions(self) -> Iterator[list[Token]]:
        """What is left, cut at the commas outside parentheses."""
        action: list[Token] = []
        depth = 0
        for token in self._tokens[self._place :]:
            depth += (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
            if token.token_type is TokenType.COMMA and depth == 0:
                yield action
                action = []
            else:
                action.append(token)
        if action:
            yield action

    def last_name(self, action: Sequence[Token]) -> TableId:
        """The table's name that an action ends with."""
        has_database = len(action) >= 3 and action[-2].token_type is TokenType.DOT  # noqa: PLR2004 - name, dot, name
        database = self._named(action[-3]) if has_database else self._folded(self._database)
        return TableId(database, self._named(action[-1]))

    def name_in(self, action: Sequence[Token], place: int) -> TableId:
        """The table's name at a place of an action."""
        if place >= len(action):
            raise _NotUnderstoodError
        first = self._named(action[place])
        if place + 2 < len(action) and action[place + 1].token_type is TokenType.DOT:
            return TableId(first, self._named(action[place + 2]))
        return TableId(self._folded(self._database), first)

    def _take(self) -> Token:
        if self._place >= len(self._tokens):
            raise _NotUnderstoodError
        self._place += 1
        return self._tokens[self._place - 1]

    def _named(self, token: Token) -> str:
        if token.token_type is TokenType.NUMBER:
            # An unquoted name may begin with a digit; the tokenizer cuts it in two.
            raise _NotUnderstoodError
        if token.token_type is TokenType.STRING and not (self._has_ansi_quotes and self._text[token.start] == '"'):
            raise _NotUnderstoodError
        return self._folded(token.text)

    def _folded(self, name: str) -> str:
        return name.lower() if self._is_lower_case else name

    @staticmethod
    def _is_quoted(token: Token) -> bool:
        return token.token_type in {TokenType.IDENTIFIER, TokenType.STRING}

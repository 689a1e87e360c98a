"""Statements that change no rows and no table's shape: closed lists, each form read to its end. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from replicator_source_mysql.sql.lexer import TokenKind
from replicator_source_mysql.sql.reader import NotUnderstoodError, Reader

_TABLES: Final = frozenset({"TABLE", "TABLES"})
_NOT_LOGGED: Final = frozenset({"LOCAL", "NO_WRITE_TO_BINLOG"})
_CHECKS: Final = frozenset({"QUICK", "FAST", "MEDIUM", "EXTENDED", "CHANGED", "USE_FRM", "FORCE"})

# Objects other than tables: what CREATE, ALTER and DROP say about them is their own. A kind of two words is one with a space.
DEFINED: Final = frozenset(
    {"EVENT", "FUNCTION", "PROCEDURE", "TRIGGER", "VIEW", "SEQUENCE", "PACKAGE", "LIBRARY", "USER", "ROLE", "SERVER",
     "TABLESPACE", "UNDO TABLESPACE", "LOGFILE GROUP", "RESOURCE GROUP", "SPATIAL REFERENCE", "INSTANCE",
     "JSON DUALITY", "JSON RELATIONAL", "MASKING POLICY", "MATERIALIZED VIEW"}
)  # fmt: skip
_FIRST_OF_TWO: Final = frozenset(kind.split()[0] for kind in DEFINED if " " in kind)
# What may be set without touching a row while a statement runs (SET STATEMENT … FOR).
_SETTINGS: Final = frozenset(
    {"ALTER_ALGORITHM", "FOREIGN_KEY_CHECKS", "INNODB_LOCK_WAIT_TIMEOUT", "LOCK_WAIT_TIMEOUT", "MAX_STATEMENT_TIME",
     "NET_READ_TIMEOUT", "NET_WRITE_TIMEOUT", "OLD_ALTER_TABLE", "SORT_BUFFER_SIZE", "TMP_TABLE_SIZE", "UNIQUE_CHECKS",
     "WAIT_TIMEOUT", "ANALYZE_SAMPLE_PERCENTAGE", "USE_STAT_TABLES", "HISTOGRAM_SIZE", "HISTOGRAM_TYPE",
     "JOIN_BUFFER_SIZE", "MAX_HEAP_TABLE_SIZE", "SYSTEM_VERSIONING_ALTER_HISTORY", "STATEMENT_TIMEOUT"}
)  # fmt: skip


def is_defined(reader: Reader) -> bool:
    """Pass the words before an object's kind, and the kind; false if it is not in the list.

    `[ALGORITHM = …] [DEFINER = …] [SQL SECURITY …] [AGGREGATE] kind`. After it comes the object's own definition, which
    runs later, if ever.
    """
    if reader.skip("ALGORITHM"):
        reader.expect_symbol("=")
        reader.expect_any({"UNDEFINED", "MERGE", "TEMPTABLE"})
    if reader.skip("DEFINER"):
        reader.expect_symbol("=")
        _account(reader)
    if reader.skip("SQL", "SECURITY"):
        reader.expect_any({"DEFINER", "INVOKER"})
    reader.skip("AGGREGATE")
    first, second = reader.peek().word, reader.peek(1).word if reader.peek().word in _FIRST_OF_TWO else ""
    if f"{first} {second}" in DEFINED:
        return reader.skip(first, second)
    return bool(reader.skip_any(DEFINED))


def _account(reader: Reader) -> None:
    """Pass `CURRENT_USER`, `CURRENT_ROLE`, a name, or a name and a host."""
    is_current = reader.peek().word in {"CURRENT_USER", "CURRENT_ROLE"}
    _word_or_string(reader)
    if is_current and reader.peek().kind is TokenKind.SYMBOL and reader.peek().text == "(":
        reader.parentheses()
    if not reader.skip_symbol("@"):
        return
    _word_or_string(reader)
    # A host without quotes: 10.0.0.1, db-1.example.com.
    while reader.skip_symbol(".") or reader.skip_symbol("-") or reader.peek().kind is TokenKind.NUMBER:
        reader.take()


def _word_or_string(reader: Reader) -> None:
    if reader.take().kind not in {TokenKind.WORD, TokenKind.QUOTED, TokenKind.STRING, TokenKind.NUMBER}:
        raise NotUnderstoodError


def pass_settings(reader: Reader) -> None:
    """Pass, after SET STATEMENT, settings that touch no row and no reading of the text, and FOR."""
    while True:
        reader.expect_any(_SETTINGS)
        reader.skip_symbol(":")
        reader.expect_symbol("=")
        if reader.peek().kind is TokenKind.WORD and reader.peek().word not in {"NULL", "TRUE", "FALSE"}:
            reader.name()
        else:
            reader.literal()
        if reader.skip("FOR"):
            return
        reader.expect_symbol(",")


def pass_harmless(verb: str, reader: Reader) -> bool:
    """Pass a statement to its end if the lists have it; false if they do not know its first word.

    Raises:
        NotUnderstoodError: It is another statement than the one that the lists have under this word.
    """
    form = _FORMS.get(verb)
    if form is None:
        return False
    form(reader)
    reader.end()
    return True


def _to_the_end(reader: Reader) -> None:
    while not reader.is_at_end:
        reader.take()


def _analyze(reader: Reader) -> None:
    reader.skip_any(_NOT_LOGGED)
    reader.expect_any(_TABLES)
    reader.tables()
    if reader.skip("UPDATE", "HISTOGRAM"):
        reader.expect("ON")
        reader.names()
        if reader.skip("WITH"):
            reader.number()
            reader.expect("BUCKETS")
        if reader.skip("USING", "DATA"):
            reader.string()
        if reader.skip_any({"AUTO", "MANUAL"}):
            reader.expect("UPDATE")
    elif reader.skip("DROP", "HISTOGRAM"):
        reader.expect("ON")
        reader.names()
    elif reader.skip("PERSISTENT", "FOR"):
        if reader.skip("ALL"):
            return
        reader.expect("COLUMNS")
        _all_or_some(reader)
        reader.expect("INDEXES")
        _all_or_some(reader)


def _all_or_some(reader: Reader) -> None:
    if not reader.skip("ALL"):
        reader.parentheses()


def _maintenance(reader: Reader) -> None:
    reader.skip_any(_NOT_LOGGED)
    reader.expect_any({*_TABLES, "VIEW"})
    reader.tables()
    reader.skip("FOR", "UPGRADE")
    while reader.skip_any(_CHECKS):
        pass
    if reader.skip("WAIT"):
        reader.number()
    reader.skip("NOWAIT")
    reader.skip("FROM", "MYSQL")


def _flush(reader: Reader) -> None:
    """Pass FLUSH, which takes names only."""
    while not reader.is_at_end:
        if reader.peek().kind is TokenKind.SYMBOL and reader.peek().text not in {",", "."}:
            raise NotUnderstoodError
        reader.take()


def _set(reader: Reader) -> None:
    if not reader.skip("PASSWORD"):
        reader.expect("DEFAULT", "ROLE")
    _without_query(reader)


def _install(reader: Reader) -> None:
    reader.expect_any({"PLUGIN", "SONAME", "COMPONENT"})
    while not reader.is_at_end:
        if reader.peek().word == "SET":
            raise NotUnderstoodError
        reader.take()


def _lock(reader: Reader) -> None:
    reader.expect_any({*_TABLES, "INSTANCE"})
    _without_query(reader)


def _without_query(reader: Reader) -> None:
    while not reader.is_at_end:
        if reader.take().word == "SELECT":
            raise NotUnderstoodError


def _one_name(reader: Reader) -> None:
    reader.name()


def _release(reader: Reader) -> None:
    reader.expect("SAVEPOINT")
    reader.name()


_FORMS: Final[Mapping[str, Callable[[Reader], None]]] = {
    "ANALYZE": _analyze,
    "CHECK": _maintenance,
    "FLUSH": _flush,
    "GRANT": _to_the_end,
    "INSTALL": _install,
    "LOCK": _lock,
    "OPTIMIZE": _maintenance,
    "RELEASE": _release,
    "REPAIR": _maintenance,
    "REVOKE": _to_the_end,
    "SAVEPOINT": _one_name,
    "SET": _set,
    "UNINSTALL": _install,
    "UNLOCK": _lock,
    "USE": _one_name,
}

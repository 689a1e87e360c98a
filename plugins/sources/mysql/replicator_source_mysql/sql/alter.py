"""The actions of ALTER TABLE, each read to its end. Pure.

Actions that change neither the rows of a table nor its shape are in closed lists of complete forms: an action that fits none of
them is not understood. Commas between actions are optional here, so that what follows a table option without one is
seen.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Final, NamedTuple

from replicator.model.schema import TableId
from replicator_source_mysql.sql.clauses import AddKey, Clause, DropKey, added, changed, converted, dropped, renamed
from replicator_source_mysql.sql.keys import index, is_open, primary_key, references
from replicator_source_mysql.sql.lexer import TokenKind
from replicator_source_mysql.sql.options import VISIBLE, table_option
from replicator_source_mysql.sql.reader import NotUnderstoodError, Reader

PRIMARY: Final = "PRIMARY"


class Action(StrEnum):
    """The effect of one action on a table."""

    NOTHING = "nothing"
    COLUMNS = "columns"
    """Its columns or its primary key may be different."""
    REPLACED = "replaced"
    """Its engine or its rows may be different."""
    RENAMED = "renamed"
    DEFAULT = "default"
    """A column has another default, for future rows."""


class Altered(NamedTuple):
    """An action.

    Attributes:
        action: Its effect on the table.
        other: The other table that it names.
        clauses: Clauses of COLUMNS. None: they are not understood.
    """

    action: Action
    other: TableId | None = None
    clauses: tuple[Clause, ...] | None = None


_NOTHING: Final = Altered(Action.NOTHING)
_REPLACED: Final = Altered(Action.REPLACED)
_DEFAULT: Final = Altered(Action.DEFAULT)

_INDEX: Final = frozenset({"INDEX", "KEY"})
_MODIFIERS: Final = {
    "ALGORITHM": frozenset({"DEFAULT", "INSTANT", "INPLACE", "COPY", "NOCOPY"}),
    "LOCK": frozenset({"DEFAULT", "NONE", "SHARED", "EXCLUSIVE"}),
}
_PARTITION_UPKEEP: Final = frozenset({"REBUILD", "OPTIMIZE", "ANALYZE", "CHECK", "REPAIR"})
_MOMENTS: Final = frozenset({"CURRENT_TIMESTAMP", "NOW", "LOCALTIME", "LOCALTIMESTAMP"})


def actions(reader: Reader) -> list[Altered]:
    """Read the actions of ALTER TABLE, from the table's name to the end of the statement.

    Raises:
        NotUnderstoodError: One of its actions is none that is known.
    """
    found: list[Altered] = []
    while not reader.is_at_end:
        found += _several(reader) or [_action(reader)]
        if reader.skip_symbol(",") and reader.is_at_end:
            raise NotUnderstoodError
    return found


def _action(reader: Reader) -> Altered:  # noqa: C901, PLR0911, PLR0912 - one branch for each first word
    match reader.peek().word:
        case "ADD":
            return _add(reader)
        case "DROP":
            return _drop(reader)
        case "RENAME":
            return _rename(reader)
        case "ALTER":
            return _alter(reader)
        case "MODIFY" | "CHANGE":
            has_new_name = reader.take().word == "CHANGE"
            return _columns(reader.rest_of_item(), partial(changed, has_new_name=has_new_name))
        case "CONVERT":
            return _convert(reader)
        case "ALGORITHM" | "LOCK":
            allowed = _MODIFIERS[reader.take().word]
            reader.skip_symbol("=")
            reader.expect_any(allowed)
            return _NOTHING
        case "FORCE":
            reader.take()
            return _NOTHING
        case "ENABLE":
            reader.expect("ENABLE", "KEYS")
            return _NOTHING
        case "DISABLE":
            reader.expect("DISABLE", "KEYS")
            return _NOTHING
        case "WITHOUT":
            reader.expect("WITHOUT", "VALIDATION")
            return _NOTHING
        case "WITH" if reader.peek(1).word == "VALIDATION":
            reader.expect("WITH", "VALIDATION")
            return _NOTHING
        case "ORDER":
            return _order(reader)
        case "DISCARD" | "IMPORT" | "TRUNCATE":
            return _alone(reader)
        case "EXCHANGE":
            reader.expect("EXCHANGE", "PARTITION")
            reader.name()
            reader.expect("WITH", "TABLE")
            return Altered(Action.REPLACED, reader.table())
        case "COALESCE" | "REORGANIZE" | "REMOVE" | "PARTITION":
            return _partitions(reader)
        case word if word in _PARTITION_UPKEEP:
            return _partition_upkeep(reader)
        case "SECONDARY_LOAD" | "SECONDARY_UNLOAD":
            reader.take()
            return _NOTHING
        case _:
            return _REPLACED if table_option(reader) else _NOTHING


# ---- columns, keys, constraints ----


def _columns(item: Reader, read: Callable[[Reader], tuple[Clause, ...]]) -> Altered:
    """An action about columns."""
    try:
        clauses = read(item)
    except NotUnderstoodError:
        return Altered(Action.COLUMNS)
    return Altered(Action.COLUMNS, clauses=clauses)


def _add(reader: Reader) -> Altered:
    reader.expect("ADD")
    return _added(reader)


def _added(reader: Reader, *, if_not_exists: bool = False) -> Altered:
    """Read after ADD: a column, unless one of the words outside quotes follows that begin something else."""
    word, behind = reader.peek().word, reader.peek(1).word
    if word in _INDEX:
        reader.take()
        _skip_if(reader, "NOT")
        index(reader, is_named=False)
        return _NOTHING
    if word in {"FULLTEXT", "SPATIAL", "UNIQUE"} or (word == "VECTOR" and behind in _INDEX):
        reader.take()
        reader.skip_any(_INDEX)
        _skip_if(reader, "NOT")
        index(reader, is_named=False)
        return _NOTHING
    if word in {"PRIMARY", "FOREIGN", "CHECK", "CONSTRAINT"}:
        return _constraint(reader)
    if word == "PARTITION":
        return _add_partition(reader)
    return _columns(reader.rest_of_item(), partial(added, if_not_exists=if_not_exists))


def _key_added(item: Reader) -> tuple[Clause, ...]:
    found = AddKey(primary_key(item))
    item.end()
    return (found,)


def _several(reader: Reader) -> list[Altered]:
    """Read ADD [COLUMN] [IF NOT EXISTS] ( … ): columns, and keys between them; empty if something else comes."""
    ahead = 2 if reader.peek(1).word == "COLUMN" else 1
    ahead += 3 if [reader.peek(ahead + i).word for i in range(3)] == ["IF", "NOT", "EXISTS"] else 0
    if reader.peek().word != "ADD" or (reader.peek(ahead).kind, reader.peek(ahead).text) != (TokenKind.SYMBOL, "("):
        return []
    reader.expect("ADD")
    reader.skip("COLUMN")
    if_not_exists = reader.skip("IF", "NOT", "EXISTS")
    inner = reader.parenthesised()
    found = []
    while True:
        found.append(_added(inner, if_not_exists=if_not_exists))
        if not inner.skip_symbol(","):
            break
    inner.end()
    return found


def _constraint(reader: Reader) -> Altered:
    if reader.skip("CONSTRAINT"):
        _skip_if(reader, "NOT")
        if reader.peek().word not in {"PRIMARY", "UNIQUE", "FOREIGN", "CHECK"}:
            reader.name()
    kind = reader.expect_any({"PRIMARY", "UNIQUE", "FOREIGN", "CHECK"})
    if kind == "PRIMARY":
        reader.expect("KEY")
        return _columns(reader.rest_of_item(), _key_added)
    if kind == "UNIQUE":
        reader.skip_any(_INDEX)
        _skip_if(reader, "NOT")
        index(reader, is_named=False)
    elif kind == "CHECK":
        reader.parentheses()
        _enforced(reader, is_optional=True)
    else:
        reader.expect("KEY")
        _skip_if(reader, "NOT")
        if not is_open(reader):
            reader.name()
        reader.parentheses()
        if references(reader):
            # A cascade that the log does not show may have deleted rows before anybody has read the catalogue.
            return _REPLACED
    return _NOTHING


def _drop(reader: Reader) -> Altered:
    reader.expect("DROP")
    word = reader.peek().word
    if word in _INDEX or word in {"CONSTRAINT", "CHECK"}:
        reader.take()
        if_exists = reader.skip("IF", "EXISTS")
        return _key_dropped(if_exists=if_exists) if is_primary(reader.name()) else _NOTHING
    if word == "FOREIGN":
        reader.expect("FOREIGN", "KEY")
        _skip_if(reader)
        reader.name()
        return _NOTHING
    if word == "PRIMARY":
        reader.expect("PRIMARY", "KEY")
        return _key_dropped(if_exists=False)
    if word == "PARTITION":
        return _alone(reader)
    return _columns(reader.rest_of_item(), dropped)


def _key_dropped(*, if_exists: bool) -> Altered:
    return Altered(Action.COLUMNS, clauses=(DropKey(if_exists=if_exists),))


def _alone(reader: Reader) -> Altered:
    """Read an action that is the only one of its statement: its commas separate names of partitions."""
    while not reader.is_at_end:
        reader.take()
    return _REPLACED


def is_primary(name: str) -> bool:
    """Return whether an index of this name is the primary key."""
    return name.upper() == PRIMARY


def _rename(reader: Reader) -> Altered:
    reader.expect("RENAME")
    if reader.peek().word == "COLUMN":
        return _columns(reader.rest_of_item(), renamed)
    if reader.peek().word in _INDEX and reader.peek(1).kind in {TokenKind.WORD, TokenKind.QUOTED}:
        reader.take()
        _skip_if(reader)
        reader.name()
        reader.expect("TO")
        reader.name()
        return _NOTHING
    if not reader.skip_any({"TO", "AS"}):
        reader.skip_symbol("=")
    return Altered(Action.RENAMED, reader.table())


def _alter(reader: Reader) -> Altered:
    """Read ALTER INDEX, ALTER CHECK, ALTER CONSTRAINT, ALTER [COLUMN]: nothing about existing rows."""
    reader.expect("ALTER")
    word = reader.peek().word
    if word in _INDEX:
        reader.take()
        _skip_if(reader)
        reader.name()
        if not reader.skip("NOT", "IGNORED"):
            reader.expect_any(VISIBLE)
        return _NOTHING
    if word in {"CHECK", "CONSTRAINT"}:
        reader.take()
        reader.name()
        _enforced(reader, is_optional=False)
        return _NOTHING
    reader.skip("COLUMN")
    _skip_if(reader)
    reader.name()
    if reader.skip("DROP", "DEFAULT"):
        return _DEFAULT
    if reader.skip("SET", "VISIBLE") or reader.skip("SET", "INVISIBLE"):
        return _NOTHING
    reader.expect("SET", "DEFAULT")
    if reader.peek().word in _MOMENTS:
        reader.take()
        if is_open(reader):
            reader.parentheses()
    elif is_open(reader):
        reader.parentheses()
    else:
        reader.literal()
    return _DEFAULT


def _enforced(reader: Reader, *, is_optional: bool) -> None:
    if not reader.skip("NOT", "ENFORCED") and not reader.skip("ENFORCED") and not is_optional:
        raise NotUnderstoodError


def _convert(reader: Reader) -> Altered:
    reader.expect("CONVERT")
    if reader.skip("TABLE"):
        other = reader.table()
        reader.expect("TO", "PARTITION")
        while not reader.is_at_end:
            reader.take()
        return Altered(Action.REPLACED, other)
    if reader.skip("PARTITION"):
        reader.name()
        reader.expect("TO", "TABLE")
        return Altered(Action.REPLACED, reader.table())
    return _columns(reader.rest_of_item(), converted)


def _order(reader: Reader) -> Altered:
    reader.expect("ORDER", "BY")
    while True:
        reader.name()
        while reader.skip_symbol("."):
            reader.name()
        reader.skip_any({"ASC", "DESC"})
        if not reader.skip_symbol(","):
            return _NOTHING


# ---- partitions: none of these loses rows, but those that are REPLACED ----


def _add_partition(reader: Reader) -> Altered:
    reader.expect("PARTITION")
    _skip_if(reader, "NOT")
    reader.skip_any({"NO_WRITE_TO_BINLOG", "LOCAL"})
    if reader.skip("PARTITIONS"):
        reader.number()
    else:
        reader.parentheses()
    return _NOTHING


def _partitions(reader: Reader) -> Altered:
    if reader.skip("REMOVE", "PARTITIONING"):
        return _NOTHING
    if reader.skip("COALESCE", "PARTITION"):
        reader.skip_any({"NO_WRITE_TO_BINLOG", "LOCAL"})
        reader.number()
        return _NOTHING
    if reader.skip("REORGANIZE", "PARTITION"):
        reader.skip_any({"NO_WRITE_TO_BINLOG", "LOCAL"})
        if not reader.is_at_end:
            reader.names()
            reader.expect("INTO")
            reader.parentheses()
        return _NOTHING
    reader.expect("PARTITION", "BY")
    _partition_kind(reader)
    if reader.skip("PARTITIONS"):
        reader.number()
    if reader.skip("SUBPARTITION", "BY"):
        _partition_kind(reader)
        if reader.skip("SUBPARTITIONS"):
            reader.number()
    if not reader.is_at_end:
        reader.parentheses()
    reader.end()
    return _NOTHING


def _partition_kind(reader: Reader) -> None:
    reader.skip("LINEAR")
    kind = reader.expect_any({"HASH", "KEY", "RANGE", "LIST"})
    if kind == "KEY" and reader.skip("ALGORITHM"):
        reader.expect_symbol("=")
        reader.number()
    if kind in {"RANGE", "LIST"}:
        reader.skip("COLUMNS")
    reader.parentheses()


def _partition_upkeep(reader: Reader) -> Altered:
    kind = reader.take().word
    reader.expect("PARTITION")
    reader.skip_any({"NO_WRITE_TO_BINLOG", "LOCAL"})
    reader.names()
    if kind == "CHECK":
        reader.skip("FOR", "UPGRADE")
        while reader.skip_any({"QUICK", "FAST", "MEDIUM", "EXTENDED", "CHANGED"}):
            pass
    # A repair may drop rows that are in the wrong partition.
    return _repaired(reader) if kind == "REPAIR" else _NOTHING


def _repaired(reader: Reader) -> Altered:
    while reader.skip_any({"QUICK", "EXTENDED", "USE_FRM"}):
        pass
    return _REPLACED


def _skip_if(reader: Reader, *between: str) -> None:
    reader.skip("IF", *between, "EXISTS")

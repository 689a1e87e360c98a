"""Effects of a statement in the log on the replicated tables. Pure.

A statement that is not understood is not harmless (ADR 13). A statement is read to its end; it does nothing only if it is in a closed
list of complete forms (`sql.harmless`, `sql.alter`). A statement that changes rows may reach any table, by triggers,
views, routines and cascades that the log does not show: it is about every table that is replicated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from replicator.model.schema import TableId
from replicator_source_mysql.ddl.mentions import is_mentioned, skeleton
from replicator_source_mysql.events import Query
from replicator_source_mysql.flavors import Flavor
from replicator_source_mysql.sql.alter import Action, Altered, actions, is_primary
from replicator_source_mysql.sql.clauses import Clause, ColumnChanges, DropKey
from replicator_source_mysql.sql.harmless import is_defined, pass_harmless, pass_settings
from replicator_source_mysql.sql.keys import index
from replicator_source_mysql.sql.lexer import TokenKind
from replicator_source_mysql.sql.reader import NotUnderstoodError, Reader


class Effect(StrEnum):
    """The effect of a statement on a table."""

    TRUNCATE = "truncate"
    DROP = "drop"
    RENAME = "rename"
    ALTER = "alter"
    """Its columns or its key may be different now."""
    REPLACED = "replaced"
    """It is another object, or rows came or went that the log does not name."""
    STATEMENT = "statement"
    """Its rows may have been changed by a statement, not row by row."""
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEffect:
    """An effect on a replicated table.

    Attributes:
        new_table: New name in a RENAME.
        columns: Changes of an ALTER that was understood.
        is_other_table: In REPLACED: another table has its name now, whose columns may be different.
    """

    effect: Effect
    table: TableId
    new_table: TableId | None = None
    columns: ColumnChanges | None = None
    is_other_table: bool = False


# They say which tables they are about: what is not understood of them concerns the tables that they name.
_NAMING: Final = frozenset(
    {"ALTER", "CREATE", "DROP", "RENAME", "TRUNCATE", "ANALYZE", "CHECK", "OPTIMIZE", "REPAIR", "FLUSH", "GRANT",
     "REVOKE", "LOCK", "UNLOCK", "INSTALL", "UNINSTALL", "SAVEPOINT", "RELEASE", "USE"}
)  # fmt: skip
_ROWS: Final = frozenset(
    {"BEGIN", "BINLOG", "CALL", "DECLARE", "DELETE", "DO", "EXECUTE", "FOR", "HANDLER", "IF", "IMPORT", "INSERT", "LOAD",
     "LOOP", "REPEAT", "REPLACE", "SELECT", "TABLE", "UPDATE", "VALUES", "WHILE", "WITH", "CASE", "VALUE"}
)  # fmt: skip
_TABLES: Final = frozenset({"TABLE", "TABLES"})
_DATABASES: Final = frozenset({"DATABASE", "SCHEMA"})
# What is said of a temporary table in the same words as of another one; a DROP of one says TEMPORARY in the log.
_MAY_BE_TEMPORARY: Final = frozenset({Effect.ALTER, Effect.RENAME, Effect.TRUNCATE})
# The gravest first: of each table the first one counts.
_ORDER: Final = (
    Effect.UNCLEAR,
    Effect.STATEMENT,
    Effect.RENAME,
    Effect.DROP,
    Effect.ALTER,
    Effect.REPLACED,
    Effect.TRUNCATE,
)


def effects(query: Query, replicated: Collection[TableId], *, flavor: Flavor, is_lower_case: bool) -> list[TableEffect]:
    """Effects of a statement on replicated tables, one for each; for one that is renamed also the effect before that.

    Args:
        query: The statement.
        replicated: Replicated tables, under the names that the server stores.
        flavor: The server's flavor.
        is_lower_case: The server stores names in lower case.
    """
    if not replicated:
        return []
    statement = _Statement(query, replicated, flavor, is_lower_case=is_lower_case)
    try:
        statement.read()
    except _RowsError:
        return [TableEffect(effect=Effect.STATEMENT, table=table) for table in replicated]
    except NotUnderstoodError:
        return [TableEffect(effect=Effect.UNCLEAR, table=table) for table in statement.concerned()]
    found: dict[TableId, list[TableEffect]] = {}
    for effect in sorted(statement.replicated_effects(), key=lambda e: _ORDER.index(e.effect)):
        found.setdefault(effect.table, []).append(effect)
    return [effect for of_table in found.values() for effect in _in_order(of_table)]


def _in_order(effects: Sequence[TableEffect]) -> Sequence[TableEffect]:
    """The effects of a statement on a table that count; they are given by gravity."""
    first, *others = effects
    return [*others[:1], first] if first.effect is Effect.RENAME else [first]


def opens_group(query: Query, flavor: Flavor) -> bool:
    """Return whether the rows of a CREATE TABLE … SELECT follow in the same group: the server wrote START TRANSACTION at its end."""
    reader = Reader(query, flavor, is_lower_case=False)
    try:
        if not reader.skip("CREATE"):
            return False
        reader.skip("OR", "REPLACE")
        reader.skip("TEMPORARY")
        if not reader.skip("TABLE"):
            return False
        last = ("", "")
        while not reader.is_at_end:
            last = (last[1], reader.take().word)
    except NotUnderstoodError:
        return False
    return last == ("START", "TRANSACTION")


class _RowsError(Exception):
    """The statement changes rows, or may do so."""


class _Statement:
    """One statement. `found`: its effects, also on tables that are not replicated."""

    def __init__(self, query: Query, replicated: Collection[TableId], flavor: Flavor, *, is_lower_case: bool) -> None:
        self._query = query
        self._replicated = replicated
        self._reader = Reader(query, flavor, is_lower_case=is_lower_case)
        self._is_lower_case = is_lower_case
        self._verb = ""
        self._found: list[TableEffect] = []

    def read(self) -> None:
        """Read it to its end.

        Raises:
            NotUnderstoodError: It is no form that is known.
            _RowsError: It may change rows.
        """
        reader = self._reader
        if reader.is_at_end:
            return  # a comment: what a server says in place of an event that we would not know
        self._take_verb()
        verb = self._verb
        about_tables = {
            "ALTER": self._alter,
            "CREATE": self._create,
            "DROP": self._drop,
            "RENAME": self._rename,
            "TRUNCATE": self._truncate,
        }
        if verb in about_tables:
            about_tables[verb]()
        elif verb in _ROWS or (verb == "ANALYZE" and self._is_analyzed_statement()):
            if not self._is_upkeep_of_rds():
                raise _RowsError
        elif not pass_harmless(verb, reader):
            raise NotUnderstoodError

    def replicated_effects(self) -> Iterator[TableEffect]:
        """Give its effects on replicated tables."""
        for effect in self._found:
            if effect.table in self._replicated:
                yield effect
            else:
                yield from (TableEffect(effect=Effect.UNCLEAR, table=t) for t in self._alike(effect.table))

    def concerned(self) -> Iterable[TableId]:
        """The replicated tables that a statement which was not understood may be about."""
        if self._verb not in _NAMING:
            return list(self._replicated)
        named = {effect.table for effect in self._found}
        return [table for table in self._replicated if table in named or is_mentioned(self._query, table)]

    def _take_verb(self) -> None:
        """Take the first word, after MariaDB's SET STATEMENT … FOR."""
        reader = self._reader
        if reader.skip("SET", "STATEMENT"):
            pass_settings(reader)
        token = reader.take()
        if token.kind is TokenKind.SYMBOL and token.text == "(":
            raise _RowsError
        self._verb = token.word

    def _add(
        self,
        effect: Effect,
        table: TableId,
        new_table: TableId | None = None,
        *,
        columns: ColumnChanges | None = None,
        is_other_table: bool = False,
    ) -> None:
        if self._query.is_of_session and effect in _MAY_BE_TEMPORARY:
            # It may be a temporary table that hides the one that is replicated: a new snapshot is right in either case.
            effect, new_table, columns = Effect.REPLACED, None, None
        self._found.append(
            TableEffect(effect=effect, table=table, new_table=new_table, columns=columns, is_other_table=is_other_table)
        )

    def _alike(self, table: TableId) -> list[TableId]:
        """Replicated tables whose names may be this one, in letters that were not read or not folded as the server does."""
        if table.name.isascii() and table.namespace.isascii():
            return []
        if not self._is_lower_case and "\ufffd" not in table.name + table.namespace:
            return []
        wanted = skeleton(table)
        return [t for t in self._replicated if skeleton(t) == wanted]

    # ---- statements about rows ----

    def _is_analyzed_statement(self) -> bool:
        """Return whether it is MariaDB's ANALYZE [FORMAT = JSON] DELETE …, which executes the statement."""
        return self._reader.peek().word not in {*_TABLES, "LOCAL", "NO_WRITE_TO_BINLOG"}

    def _is_upkeep_of_rds(self) -> bool:
        """Return whether Amazon RDS wrote it for itself: INSERT into or DELETE from `mysql.rds_…`, with literals only.

        Tables of this database have no triggers, and literals call nothing.
        """
        reader = self._reader
        try:
            if self._verb == "DELETE":
                reader.expect("FROM")
            elif self._verb in {"INSERT", "REPLACE"}:
                reader.skip("INTO")
            else:
                return False
            table = reader.table()
            if table.namespace.lower() != "mysql" or not table.name.lower().startswith("rds_"):
                return False
            if self._verb == "DELETE":
                self._comparisons()
            else:
                self._literals()
            reader.end()
        except NotUnderstoodError:
            return False
        return True

    def _literals(self) -> None:
        reader = self._reader
        if reader.skip_symbol("("):
            reader.names()
            reader.expect_symbol(")")
        reader.expect_any({"VALUES", "VALUE"})
        while True:
            reader.expect_symbol("(")
            reader.literal()
            while reader.skip_symbol(","):
                reader.literal()
            reader.expect_symbol(")")
            if not reader.skip_symbol(","):
                break
        if reader.skip("ON", "DUPLICATE", "KEY", "UPDATE"):
            self._equation()
            while reader.skip_symbol(","):
                self._equation()

    def _comparisons(self) -> None:
        if not self._reader.skip("WHERE"):
            return
        self._equation()
        while self._reader.skip_any({"AND", "OR"}):
            self._equation()

    def _equation(self) -> None:
        self._reader.name()
        self._reader.expect_symbol("=")
        self._reader.literal()

    # ---- statements about tables ----

    def _truncate(self) -> None:
        reader = self._reader
        reader.skip("TABLE")
        table = reader.table()
        self._wait()
        if reader.skip_any({"DROP", "REUSE"}):
            reader.expect("STORAGE")
        reader.end()
        self._add(Effect.TRUNCATE, table)

    def _drop(self) -> None:
        reader = self._reader
        if reader.skip("TEMPORARY"):
            if not reader.skip("SEQUENCE"):
                reader.expect_any(_TABLES)
            reader.skip("IF", "EXISTS")
            list(reader.tables())
            self._wait()
            reader.skip_any({"RESTRICT", "CASCADE"})
            reader.end()
            return
        if reader.skip_any(_DATABASES):
            reader.skip("IF", "EXISTS")
            self._drop_database(reader.database())
            reader.end()
            return
        if reader.skip_any(_TABLES):
            reader.skip("IF", "EXISTS")
            for table in reader.tables():
                self._add(Effect.DROP, table)
            self._wait()
            reader.skip_any({"RESTRICT", "CASCADE"})
            reader.end()
            return
        if is_defined(reader):
            return
        reader.skip_any({"ONLINE", "OFFLINE"})
        reader.expect("INDEX")
        if_exists = reader.skip("IF", "EXISTS")
        name = reader.name()
        reader.expect("ON")
        table = reader.table()
        self._index_options()
        if is_primary(name):
            self._add(Effect.ALTER, table, columns=self._changes([DropKey(if_exists=if_exists)]))

    def _drop_database(self, database: str) -> None:
        for table in self._replicated:
            if table.namespace == database or self._alike(TableId(database, table.name)):
                self._add(Effect.DROP, table)

    def _rename(self) -> None:
        reader = self._reader
        if reader.skip("USER"):
            return
        reader.expect_any(_TABLES)
        if_exists = reader.skip("IF", "EXISTS")
        pairs: list[tuple[TableId, TableId]] = []
        while True:
            old = reader.table()
            self._wait()
            reader.expect("TO")
            pairs.append((old, reader.table()))
            if not reader.skip_symbol(","):
                break
        reader.end()
        if if_exists and len(pairs) > 1:
            # Some of them may have been left out.
            for table in {table for pair in pairs for table in pair}:
                self._add(Effect.REPLACED, table)
            return
        # By the name that a table has now: the one that it had.
        names: dict[TableId, TableId] = {}
        for old, new in pairs:
            names[new] = names.pop(old, old)
        for new, old in names.items():
            # Where the old name belongs to another table now, it was swapped.
            if old not in names:
                self._add(Effect.RENAME, old, new)
            if old != new:
                self._add(Effect.REPLACED, new, is_other_table=True)

    def _create(self) -> None:
        reader = self._reader
        is_replacing = reader.skip("OR", "REPLACE")
        is_temporary = reader.skip("TEMPORARY")
        if reader.skip("TABLE"):
            reader.skip("IF", "NOT", "EXISTS")
            table = reader.table()
            self._refuse_query()
            if is_replacing and not is_temporary:
                self._add(Effect.REPLACED, table, is_other_table=True)
            return
        if is_temporary:
            reader.expect("SEQUENCE")
            return
        if reader.skip_any(_DATABASES):
            reader.skip("IF", "NOT", "EXISTS")
            database = reader.database()
            if is_replacing:
                self._drop_database(database)
            return
        if is_replacing and reader.skip("SEQUENCE"):
            # MariaDB replaces a table of the name, too.
            self._add(Effect.REPLACED, reader.table())
            return
        if is_defined(reader):
            return
        self._create_index()

    def _create_index(self) -> None:
        reader = self._reader
        reader.skip_any({"ONLINE", "OFFLINE"})
        reader.skip_any({"UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR"})
        reader.expect_any({"INDEX", "KEY"})
        reader.skip("IF", "NOT", "EXISTS")
        reader.name()
        if reader.skip_any({"USING", "TYPE"}):
            reader.name()
        reader.expect("ON")
        reader.table()
        index(reader, is_named=True)
        self._index_options()

    def _index_options(self) -> None:
        reader = self._reader
        while word := reader.skip_any({"ALGORITHM", "LOCK"}):
            reader.skip_symbol("=")
            reader.expect_any(
                {"DEFAULT", "INPLACE", "COPY", "INSTANT", "NOCOPY"}
                if word == "ALGORITHM"
                else {"DEFAULT", "NONE", "SHARED", "EXCLUSIVE"}
            )
        self._wait()
        reader.end()

    def _refuse_query(self) -> None:
        """Refuse a CREATE TABLE with a query, which would run with all that it calls: servers in ROW format log columns and rows."""
        reader = self._reader
        while not reader.is_at_end:
            word = reader.take().word
            if word in {"SELECT", "TABLE"}:
                raise _RowsError
            if word == "VALUES" and reader.peek().word not in {"LESS", "IN"}:
                raise _RowsError

    def _alter(self) -> None:
        reader = self._reader
        reader.skip_any({"ONLINE", "OFFLINE"})
        # It deletes rows that a new unique key refuses.
        may_delete = reader.skip("IGNORE")
        if not reader.skip("TABLE"):
            self._alter_other()
            return
        reader.skip("IF", "EXISTS")
        table = reader.table()
        self._wait()
        if may_delete:
            self._add(Effect.REPLACED, table)
        found = actions(reader)
        columns = self._column_changes(found, may_delete=may_delete)
        has_default = any(altered.action is Action.DEFAULT for altered in found) and not self._query.is_of_session
        if any(altered.action is Action.COLUMNS for altered in found) or (has_default and columns is not None):
            self._add(Effect.ALTER, table, columns=columns)
        for altered in found:
            if altered.action is Action.REPLACED:
                self._add(Effect.REPLACED, table)
            elif altered.action is Action.RENAMED and altered.other != table:
                self._add(Effect.RENAME, table, altered.other)
            if altered.other is not None:
                is_renamed = altered.action is Action.RENAMED
                self._add(Effect.REPLACED, altered.other, is_other_table=is_renamed and altered.other != table)

    def _column_changes(self, found: Iterable[Altered], *, may_delete: bool) -> ColumnChanges | None:
        clauses: list[Clause] = []
        changes_rows = may_delete
        for altered in found:
            if altered.action is Action.COLUMNS and altered.clauses is None:
                return None
            clauses += altered.clauses or ()
            changes_rows |= altered.action is Action.REPLACED
        return self._changes(clauses, changes_rows=changes_rows)

    def _changes(self, clauses: Iterable[Clause], *, changes_rows: bool = False) -> ColumnChanges | None:
        if self._query.sql_mode is None:
            return None
        return ColumnChanges(clauses=tuple(clauses), changes_rows=changes_rows, sql_mode=self._query.sql_mode)

    def _alter_other(self) -> None:
        """Read ALTER of something else than a table."""
        reader = self._reader
        if not reader.skip_any(_DATABASES):
            if not is_defined(reader):
                raise NotUnderstoodError
            return
        while not reader.is_at_end:
            if reader.take().word == "UPGRADE":
                raise NotUnderstoodError

    def _wait(self) -> None:
        if self._reader.skip("WAIT"):
            self._reader.number()
        else:
            self._reader.skip("NOWAIT")

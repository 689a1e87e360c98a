"""Definitions that decide which tables a statement may have changed, with proof that they were the same when the statement ran.

The proof is the log: everything that makes, alters or drops a table, view, routine or trigger stands in it. If nothing of that
kind stands between the statement and the end of the log, as it is after the reading, then what was read is what the statement
met. (A transaction keeps the locks on what it used until it is in the log, so no DDL overtakes it.) DDL of a session with
`sql_log_bin = 0` is not in the log, here as everywhere.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

import pymysql

from replicator.model.schema import TableId
from replicator_source_mysql.connecting.connection import Connection, Row, flavor_of, literal, rows_of
from replicator_source_mysql.connecting.errors import number_of
from replicator_source_mysql.coordinates.lineage import NO_EVENT, file_sizes
from replicator_source_mysql.events import Query
from replicator_source_mysql.flavors import Flavor
from replicator_source_mysql.positions.file_position import FIRST_BYTE, WRAP, file_number
from replicator_source_mysql.positions.marks import LogEnd, log_end
from replicator_source_mysql.reach.cascades import read_edges
from replicator_source_mysql.reach.tables import CHANGING, Definition, Definitions
from replicator_source_mysql.server import global_privileges
from replicator_source_mysql.sql.reader import NotUnderstoodError, Reader

_NEEDED: Final = frozenset({"SELECT", "SHOW VIEW", "TRIGGER", "PROCESS"})
"""Privileges on all databases with which the catalogue hides nothing."""
_ALL: Final = "ALL PRIVILEGES"
_DENIED: Final = frozenset({1044, 1142, 1143, 1227, 1370})
_EVENTS_MAX: Final = 20_000
_TRIES_MAX: Final = 5
_FRESH_S: Final = 5.0

# First words of statements that define nothing that matters here.
_DEFINES_NOTHING: Final = CHANGING | {
    "BEGIN", "ROLLBACK", "SAVEPOINT", "RELEASE", "XA", "TRUNCATE", "ANALYZE", "OPTIMIZE", "CHECK", "REPAIR", "FLUSH", "GRANT", "REVOKE"
}  # fmt: skip

_TABLES: Final = """
SELECT table_schema, table_name, table_type, engine FROM information_schema.tables
WHERE LOWER(table_schema) NOT IN ('information_schema', 'performance_schema')
"""
_VIEWS: Final = "SELECT table_schema, table_name, view_definition FROM information_schema.views"
_TRIGGERS: Final = """
SELECT event_object_schema, event_object_table, trigger_schema, trigger_name, action_statement FROM information_schema.triggers
"""


def defines_nothing(query: Query, flavor: Flavor) -> bool:
    """Return whether a statement leaves every table, view, routine and trigger as it is defined."""
    reader = Reader(query, flavor, is_lower_case=False)
    try:
        if reader.is_at_end:
            return True  # a comment
        first = reader.take().word
        if first == "COMMIT":
            return reader.is_at_end  # not COMMIT ALTER
        return first in _DEFINES_NOTHING or (first in {"CREATE", "DROP"} and reader.skip("TEMPORARY"))
    except NotUnderstoodError:
        return False


def first_word(query: Query, flavor: Flavor) -> str:
    """The first word outside of comments, in capitals; empty if it is none."""
    try:
        return Reader(query, flavor, is_lower_case=False).take().word
    except NotUnderstoodError:
        return ""


@dataclass(slots=True, kw_only=True)
class KnownDefinitions:
    """The definitions that a statement met, of one open log.

    Attributes:
        use: Gives a connection to ask the server.
    """

    use: Callable[[str], AbstractContextManager[Connection]]
    clock: Callable[[], float] = time.monotonic
    _found: Definitions | None = field(default=None, init=False)
    _read_at: float = field(default=0.0, init=False)

    def forget(self) -> None:
        """The log has a statement that may have defined something."""
        self._found = None

    def at(self, file: str, pos: int) -> Definitions | None:
        """Return the definitions that a statement met which ends at this byte of the log; None if they cannot be proven.

        Definitions that were read a moment ago are used again.
        """
        if self._found is None or self.clock() - self._read_at > _FRESH_S:
            with self.use("reading views, routines and triggers") as connection:
                self._found = read_definitions(connection, file, pos)
            self._read_at = self.clock()
        return self._found


def read_definitions(connection: Connection, file: str, pos: int) -> Definitions | None:
    """Read them; None if something is hidden from this account, or may have been defined since this byte of the log."""
    if not _sees_all(connection):
        return None
    try:
        # Routines first: MariaDB drops one just before it logs that.
        found = _read(connection)
        end = log_end(connection)
        return found if _is_quiet(connection, file, pos, end) else None
    except pymysql.MySQLError as error:
        if number_of(error) not in _DENIED:
            raise
        return None


def _sees_all(connection: Connection) -> bool:
    """Return whether our account sees every definition: by privileges on all databases, none of which is revoked for some."""
    grants = [row[0] for row in rows_of(connection, "SHOW GRANTS")]
    granted = global_privileges(grants)
    return not any(g.startswith("REVOKE") for g in grants) and (_ALL in granted or granted >= _NEEDED)


def _read(connection: Connection) -> Definitions:
    routines = [
        Definition(database=d, name=n, text=t) for d, n, t in rows_of(connection, flavor_of(connection).routines_query)
    ]
    triggers: dict[TableId, list[Definition]] = defaultdict(list)
    for schema, table, database, name, text in rows_of(connection, _TRIGGERS):
        triggers[TableId(schema, table)].append(Definition(database=database, name=name, text=text))
    views = {TableId(s, n): Definition(database=s, name=n, text=t) for s, n, t in rows_of(connection, _VIEWS)}
    children: dict[TableId, set[TableId]] = defaultdict(set)
    for edge in read_edges(connection):
        children[edge.parent].add(edge.child)
    tables = {TableId(s, n): (kind, engine or "") for s, n, kind, engine in rows_of(connection, _TABLES)}
    return Definitions(tables=tables, views=views, routines=routines, triggers=triggers, children=children)


def _is_quiet(connection: Connection, file: str, pos: int, end: LogEnd) -> bool:
    """Return whether nothing is defined in the log from this byte up to its end."""
    if not file or (file_number(file), pos) > end.position:
        return False
    left = _EVENTS_MAX
    for name in sorted((n for n in file_sizes(connection) if file_number(n) >= file_number(file)), key=file_number):
        is_last = name == end.file
        start = pos if name == file else FIRST_BYTE
        if is_last and start == end.position[1]:
            return True
        rows = _events(connection, name, start, left)
        left -= len(rows)
        if left <= 0 or not all(_is_harmless(row, flavor_of(connection)) for row in rows):
            return False
        if is_last:
            # All of it must be there, up to the end, which the server shows with 32 bits.
            return any((int(row[4]) - end.position[1]) % WRAP == 0 for row in rows)
    return False


def _events(connection: Connection, file: str, pos: int, limit: int) -> Sequence[Row]:
    for tries in range(_TRIES_MAX):
        try:
            return rows_of(connection, f"SHOW BINLOG EVENTS IN {literal(file)} FROM {pos} LIMIT {limit}")
        except pymysql.MySQLError as error:
            # It met an event after the end that is being written: what it had found is lost with the error.
            if number_of(error) != NO_EVENT or tries == _TRIES_MAX - 1:
                break
    return ()


def _is_harmless(row: Row, flavor: Flavor) -> bool:
    kind, info = row[2], row[5]
    if kind == "Incident" or kind.startswith("Unknown"):
        return False
    if "query" not in kind.lower() or kind == "Rows_query":
        return True
    return defines_nothing(Query("", _without_use(info), None), flavor)


def _without_use(info: str) -> str:
    """The statement after "use `shop`; ", which the server writes before it."""
    if not info.startswith("use `"):
        return info
    end = 5
    while (end := info.find("`", end)) >= 0:
        if info.startswith("``", end):
            end += 2
        else:
            return info[end + 1 :].removeprefix(";")
    return info
